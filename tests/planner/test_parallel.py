"""Towers and pipelines, on plain values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import splitnet as sn
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.net import Towers
from splitnet.core.replication import (
    batch_shares,
    collapse,
    expand,
    fold,
    microbatch_growth,
    towers_in,
)
from splitnet.simulator.batch import scaled_graph
from tests.planner.quick import plan_graph

BATCH, WIDTH = 64, 512


def chain(stages: int = 4, *, flops: float = 4e11, kept: int = 1 << 20) -> Graph:
    """Equal calls one after another: the first half on gpu:0, the rest on gpu:1."""
    size = BATCH * WIDTH * 4
    shape = {"output_shapes": ((BATCH, WIDTH),), "output_dtypes": ("float32",)}
    calls = [Call("x", "x", "InputLayer", output_bytes=size, **shape)]
    calls += [
        Call(
            f"p{i}/dense",
            f"p{i}",
            "Dense",
            output_bytes=size,
            forward_flops=flops,
            backward_flops=2 * flops,
            activation_bytes=kept,
            weights=(f"w{i}",),
            **shape,
        )
        for i in range(stages)
    ]
    return Graph(
        "chain",
        BATCH,
        tuple(calls),
        tuple(
            Tensor(a.name, b.name, 0, (BATCH, WIDTH), "float32", size)
            for a, b in zip(calls, calls[1:])
        ),
        tuple(Weights(f"w{i}", WIDTH * WIDTH * 4) for i in range(stages)),
        (
            Part("x", "input", ("cpu",)),
            *(
                Part(f"p{i}", "branch", (f"gpu:{2 * i // stages}",))
                for i in range(stages)
            ),
        ),
        (calls[-1].name,),
    )


def towered(graph: Graph, part: str, count: int) -> Graph:
    """The graph with one part as towers."""
    towers = {part: Towers(tuple((f"gpu:{i}",) for i in range(count)))}
    sizes = {max(1, n) for n in batch_shares(graph.batch, count)}
    return expand(graph, {n: scaled_graph(graph, n) for n in sizes}, towers)


@given(st.integers(0, 999), st.integers(1, 40))
def test_shares_add_up_and_differ_by_one_at_most(batch: int, count: int) -> None:
    """Every sample is somewhere, the larger shares come first."""
    found = batch_shares(batch, count)

    assert sum(found) == batch
    assert max(found) - min(found) <= 1
    assert list(found) == sorted(found, reverse=True)


def test_expanded_towers_have_parts_weights_and_a_join_of_their_own() -> None:
    """One part becomes three towers, the home of their weights, and the join."""
    graph = towered(chain(2), "p0", 3)

    assert [part.name for part in graph.parts] == [
        *("x", "p0/weights", "p0/0", "p0/1", "p0/2", "p0", "p1")
    ]
    assert graph.parts_of_weights["w0"][0] == "p0/weights"
    assert [t.source for t in graph.tensors if t.target == "p0/join"] == [
        *("p0/0/dense", "p0/1/dense", "p0/2/dense")
    ]


def test_towers_share_the_work_and_none_of_it_is_lost() -> None:
    """FLOPs and output bytes of the towers add up to those of the body."""
    plain, graph = chain(2), towered(chain(2), "p0", 3)
    mine = [c for c in graph.calls if c.part in ("p0/0", "p0/1", "p0/2")]

    assert sum(c.forward_flops for c in mine) == pytest.approx(
        plain.call["p0/dense"].forward_flops
    )
    assert [c.output_shapes[0][0] for c in mine] == [22, 21, 21]


def test_folding_and_collapsing_undo_an_expansion() -> None:
    """The plain calls come back, by name and by cost."""
    plain, graph = chain(3), towered(chain(3), "p1", 4)

    assert [call.name for call in fold(graph)] == [call.name for call in plain.calls]
    back = collapse(graph)
    assert [call.name for call in back.calls] == [call.name for call in plain.calls]
    assert back.call["p1/dense"].output_shapes == ((BATCH, WIDTH),)
    assert [(t.source, t.target, t.bytes) for t in back.tensors] == [
        (t.source, t.target, t.bytes) for t in plain.tensors
    ]
    assert towers_in(back) == {}


def test_towers_share_each_piece_of_a_batch_anew() -> None:
    """64 over 3 are 22, 21, 21; in 5 pieces 24, 20, 20; in 40 each has one of each."""
    graph = towered(chain(), "p1", 3)

    assert microbatch_growth(graph, 1) == {"p1/0": 1.0, "p1/1": 1.0, "p1/2": 1.0}
    assert microbatch_growth(graph, 5) == {
        "p1/0": 24 / 22,
        "p1/1": 20 / 21,
        "p1/2": 20 / 21,
    }
    assert microbatch_growth(graph, 40) == {
        "p1/0": 40 / 22,
        "p1/1": 40 / 21,
        "p1/2": 40 / 21,
    }


def test_towers_survive_the_file_of_a_plan(tmp_path: object) -> None:
    """What `emit` needs to know of towers is in the saved plan."""
    graph = towered(chain(2), "p0", 2)
    plan = plan_graph(graph, sn.Cluster.of("2*gpu", "cpu"))

    plan.save(f"{tmp_path}/plan.json")

    assert towers_in(sn.load_plan(f"{tmp_path}/plan.json").graph) == towers_in(graph)


def two_stages() -> sn.Plan:
    """Two equal stages on two GPUs."""
    return plan_graph(chain(), sn.Cluster.of("2*gpu", "cpu"))


SCHEDULES = pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])


@SCHEDULES
@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_pipeline_never_beats_the_ideal_and_comes_near_it(
    schedule: str, count: int
) -> None:
    """M micro-batches in S stages take (M + S - 1) / (M * S) of the work, at least."""
    plan = two_stages()
    ideal = plan.seconds * (count + 1) / (2 * count)
    seconds = sn.simulate(plan, microbatches=count, schedule=schedule).seconds

    assert ideal <= seconds <= 1.02 * ideal


@SCHEDULES
def test_pipeline_runs_every_microbatch_once_in_each_phase(schedule: str) -> None:
    """All four parts run forward and backward for each of them, and update once."""
    timeline = sn.simulate(two_stages(), microbatches=4, schedule=schedule)

    ran = [(t.part, t.phase, t.microbatch) for t in timeline.tasks if t.part != "x"]
    assert len(set(ran)) == len(ran) == 4 * (4 + 4) + 4


def test_one_microbatch_is_the_plan_itself() -> None:
    """Nothing is paid for a pipeline of one."""
    plan = two_stages()

    assert sn.simulate(plan, microbatches=1).seconds == plan.seconds


def peak(graph: Graph, **pipeline: object) -> int:
    """The peak of the first GPU, in bytes."""
    plan = plan_graph(graph, sn.Cluster.of("2*gpu", "cpu"))
    return sn.simulate(plan, microbatches=8, **pipeline).peak_bytes["gpu:0"]


def test_one_forward_one_backward_bounds_activations() -> None:
    """Two micro-batches in flight instead of eight: a quarter of them."""
    big = chain(kept=256 << 20)

    assert peak(big, schedule="1f1b") < 0.4 * peak(big)


def test_recomputing_trades_activations_for_time() -> None:
    """Less is kept, and the step takes longer."""
    big, plan = chain(kept=256 << 20), two_stages()

    assert peak(big, recompute=True) < 0.4 * peak(big)
    assert (
        sn.simulate(plan, microbatches=4, recompute=True).seconds
        > 1.2 * sn.simulate(plan, microbatches=4).seconds
    )
