"""Towers and pipelines, on plain values."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import splitnet as sn
from splitnet.core import replication
from splitnet.core.graph import Towers
from splitnet.core.replication import batch_shares, collapse, expand, fold
from splitnet.simulator.units import scaled_graph
from tests import zoo
from tests.planner.quick import plan_graph

BATCH = 64
BOX = sn.Cluster.of("2*gpu", "cpu")


def chain(stages=4, *, kept=1 << 20):
    """Equal calls one after another: the first half on gpu:0, the rest on gpu:1."""
    plain = zoo.chain(stages, flops=4e11, out=BATCH * 2048)
    shape = (BATCH, 512)
    calls = [
        replace(call, name=f"{call.part}/y", output_shapes=(shape,), activation_bytes=n)
        for call, n in zip(plain.calls, [0, *[kept] * stages])
    ]
    where = [("cpu",), *((f"gpu:{2 * i // stages}",) for i in range(stages))]
    return replace(
        plain,
        batch=BATCH,
        calls=tuple(calls),
        tensors=tuple(
            replace(t, source=f"{t.source}/y", target=f"{t.target}/y", shape=shape)
            for t in plain.tensors
        ),
        parts=tuple(replace(p, on=on) for p, on in zip(plain.parts, where)),
        outputs=(calls[-1].name,),
    )


def towered(graph, part, count):
    towers = {part: Towers(tuple((f"gpu:{i}",) for i in range(count)))}
    sizes = {max(1, n) for n in batch_shares(graph.batch, count)}
    return expand(graph, {n: scaled_graph(graph, n) for n in sizes}, towers)


@given(st.integers(0, 999), st.integers(1, 40))
def test_shares_add_up_and_differ_by_one_at_most(batch, count):
    """Every sample is somewhere, the larger shares come first."""
    found = batch_shares(batch, count)

    assert sum(found) == batch
    assert max(found) - min(found) <= 1
    assert list(found) == sorted(found, reverse=True)


def test_expanded_towers_share_the_work_and_none_of_it_is_lost():
    """One part becomes three towers, the home of their weights, and the join."""
    plain, graph = chain(2), towered(chain(2), "c0", 3)
    mine = [c for c in graph.calls if c.part in ("c0/0", "c0/1", "c0/2")]

    assert [part.name for part in graph.parts] == [
        *("x", "c0/weights", "c0/0", "c0/1", "c0/2", "c0", "c1")
    ]
    assert graph.parts_of_weights["c0/w"][0] == "c0/weights"
    assert [t.source for t in graph.tensors if t.target == "c0/join"] == [
        *("c0/0/y", "c0/1/y", "c0/2/y")
    ]
    flops = sum(c.forward_flops for c in mine)
    assert flops == pytest.approx(plain.call["c0/y"].forward_flops)
    assert [c.output_shapes[0][0] for c in mine] == [22, 21, 21]


def test_folding_and_collapsing_undo_an_expansion():
    plain, graph = chain(3), towered(chain(3), "c1", 4)
    back = collapse(graph)

    for calls in (fold(graph), back.calls):
        assert [call.name for call in calls] == [call.name for call in plain.calls]
    assert back.call["c1/y"].output_shapes == ((BATCH, 512),)
    assert [(t.source, t.target, t.bytes) for t in back.tensors] == [
        (t.source, t.target, t.bytes) for t in plain.tensors
    ]
    assert back.towers == {}


@pytest.mark.parametrize(
    ("count", "samples"), [(1, (22, 21, 21)), (5, (24, 20, 20)), (40, (40, 40, 40))]
)
def test_towers_share_each_piece_of_a_batch_anew(count, samples):
    """64 over 3 are 22, 21, 21; in 40 pieces each has one of each."""
    assert replication.microbatch_growth(towered(chain(), "c1", 3), count, BATCH) == {
        f"c1/{i}": most / share
        for i, (most, share) in enumerate(zip(samples, (22, 21, 21)))
    }


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipeline_never_beats_the_ideal_and_comes_near_it(schedule):
    """M micro-batches in S stages take (M + S - 1) / (M * S) of the work, at least.

    All four parts run forward and backward for each of them, and update once.
    """
    plan = plan_graph(chain(), BOX)

    assert sn.simulate(plan, microbatches=1).seconds == plan.seconds
    for count in (2, 4, 8, 16):
        timeline = sn.simulate(plan, microbatches=count, schedule=schedule)
        ran = [(t.part, t.phase, t.microbatch) for t in timeline.tasks if t.part != "x"]
        ideal = plan.seconds * (count + 1) / (2 * count)

        assert ideal <= timeline.seconds <= 1.02 * ideal
        assert len(set(ran)) == len(ran) == 4 * (count + count) + 4


def test_1f1b_and_recomputing_hold_less_and_recomputing_takes_longer():
    """Two micro-batches in flight instead of eight: a quarter of what is saved."""
    plan = plan_graph(chain(kept=512 << 20), BOX)
    plain, bounded, again = (
        sn.simulate(plan, microbatches=8, **how)
        for how in ({}, {"schedule": "1f1b"}, {"recompute": True})
    )

    assert bounded.peak_bytes["gpu:0"] < 0.4 * plain.peak_bytes["gpu:0"]
    assert again.peak_bytes["gpu:0"] < 0.4 * plain.peak_bytes["gpu:0"]
    assert again.seconds > 1.2 * plain.seconds
