"""Towers and pipelines, on plain values."""

import pytest

import splitnet as sn
from splitnet.core import replication
from splitnet.core.graph import Towers
from splitnet.core.replication import batch_shares, collapse, expand, fold
from splitnet.simulator.units import scaled_graph
from tests.planner.quick import plan_graph
from tests.zoo import chain

BOX = sn.Cluster.of("2*gpu", "cpu")
HALVES = {"c[01]": "gpu:0", "c[23]": "gpu:1"}


def towered(graph, part, count):
    towers = {part: Towers(tuple((f"gpu:{i}",) for i in range(count)))}
    sizes = {max(1, n) for n in batch_shares(graph.batch, count)}
    return expand(graph, {n: scaled_graph(graph, n) for n in sizes}, towers)


def test_expanded_towers_share_the_work_and_none_of_it_is_lost():
    """One part becomes three towers, the home of their weights, and the join."""
    plain, graph = chain(2), towered(chain(2), "c0", 3)
    mine = [c for c in graph.calls if c.part in ("c0/0", "c0/1", "c0/2")]

    assert [part.name for part in graph.parts] == [
        *("x", "c0/weights", "c0/0", "c0/1", "c0/2", "c0", "c1")
    ]
    assert graph.parts_of_weights["c0/w"][0] == "c0/weights"
    assert [t.source for t in graph.tensors if t.target == "c0/join"] == [
        *("c0/0/c0", "c0/1/c0", "c0/2/c0")
    ]
    flops = sum(c.forward_flops for c in mine)
    assert flops == pytest.approx(plain.call["c0"].forward_flops)
    assert [c.output_shapes[0][0] for c in mine] == [11, 11, 10]


def test_folding_and_collapsing_undo_an_expansion():
    plain, graph = chain(3), towered(chain(3), "c1", 4)
    back = collapse(graph)

    for calls in (fold(graph), back.calls):
        assert [call.name for call in calls] == [call.name for call in plain.calls]
    assert back.call["c1"].output_shapes == plain.call["c1"].output_shapes
    assert [(t.source, t.target, t.bytes) for t in back.tensors] == [
        (t.source, t.target, t.bytes) for t in plain.tensors
    ]
    assert back.towers == {}


@pytest.mark.parametrize(
    ("count", "samples"), [(1, (11, 11, 10)), (5, (12, 10, 10)), (20, (20, 20, 20))]
)
def test_towers_share_each_piece_of_a_batch_anew(count, samples):
    """32 over 3 are 11, 11, 10; in 20 pieces each has one of each."""
    assert replication.microbatch_growth(towered(chain(), "c1", 3), count, 32) == {
        f"c1/{i}": most / share
        for i, (most, share) in enumerate(zip(samples, (11, 11, 10)))
    }


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipeline_never_beats_the_ideal_and_comes_near_it(schedule):
    """M micro-batches in S stages take (M + S - 1) / (M * S) of the work, at least.

    All four parts run forward and backward for each of them, and update once.
    """
    plan = plan_graph(chain(4, flops=4e11), BOX, pins=HALVES)

    assert sn.simulate(plan, microbatches=1).seconds == plan.seconds
    for count in (2, 4, 8, 16):
        timeline = sn.simulate(plan, microbatches=count, schedule=schedule)
        ran = [(t.part, t.phase, t.microbatch) for t in timeline.tasks if t.part != "x"]
        ideal = plan.seconds * (count + 1) / (2 * count)

        assert ideal <= timeline.seconds <= 1.02 * ideal
        assert len(set(ran)) == len(ran) == 4 * (count + count) + 4
