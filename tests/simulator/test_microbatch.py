"""Micro-batches: schedules, memory, and what does not depend on the batch."""

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Part
from splitnet.core.timeline import Execution
from splitnet.planner.evaluate import score
from splitnet.planner.what_if import simulate
from splitnet.simulator.batch import scaled_graph
from splitnet.simulator.microbatch import in_schedule, pipeline_of
from splitnet.simulator.simulate import outcome_of
from splitnet.simulator.step_graph import step_graph
from tests import zoo
from tests.simulator.small import Seconds, box, dense, graph, view

MIB = 2**20


def stages():
    """Two parts of 4 seconds forward and 8 backward, on a device each."""
    calls = [dense("a", seconds=4.0, out=4), dense("b", seconds=4.0, out=4)]
    return graph(calls, "a-b", batch=4)


def played(one, devices: str, count: int, *, bounded: bool = False):
    """A step of micro-batches of parts on the GPUs whose digits are listed."""
    cluster = box(2)
    device_of = {p.name: f"gpu:{d}" for p, d in zip(one.parts, devices, strict=True)}
    step = step_graph(one, cluster, Seconds(), optimizer="sgd", microbatches=count)
    how = Execution(count, "1f1b" if bounded else "gpipe")
    step = in_schedule(step, pipeline_of(one, device_of, how))
    return outcome_of(cluster, step, device_of)


def order(found, device: str) -> list[str]:
    """Tasks of a device as F0, B0, U0 ..."""
    tasks = [t for t in found.timeline.tasks if t.device == device]
    return [f"{task.phase[0].upper()}{task.microbatch}" for task in tasks]


def test_gpipe_bounds_nothing_and_alternates_where_the_loss_is():
    """Four micro-batches of 1 second forward, 2 backward and copies of 1 second.

    The first stage runs all forward tasks at once. The second has F0 at 2; F1 and B0
    are ready at 3, and what became ready last goes first.
    """
    found = played(stages(), "01", 4)

    assert order(found, "gpu:0")[:4] == ["F0", "F1", "F2", "F3"]
    assert order(found, "gpu:1")[:4] == ["F0", "B0", "F1", "B1"]


def test_1f1b_bounds_the_micro_batches_in_flight():
    """The first of two stages starts F2 after B0; the last alternates."""
    found = played(stages(), "01", 4, bounded=True)

    assert order(found, "gpu:0")[:-1] == [
        *("F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3")
    ]
    assert order(found, "gpu:1")[:-1] == [
        *("F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3")
    ]


def test_a_stage_of_several_parts_takes_one_micro_batch_after_the_other():
    """Not the first part of all micro-batches, which would keep the next stage idle."""
    calls = [dense(name, seconds=4.0, out=4) for name in "abcd"]
    found = played(graph(calls, "a-b b-c c-d", batch=4), "0011", 4)
    parts = [t.part for t in found.timeline.tasks if t.device == "gpu:0"]

    assert "".join(parts[:8]) == "abababab"


def test_a_stage_that_waits_for_another_device_lets_the_next_begin():
    """Before and after a merge elsewhere that computes nothing are two runs."""
    calls = [dense("a", seconds=4.0, out=4), view("m", "m", 4), dense("b", seconds=4.0)]
    one = graph(calls, "a-m m-b", batch=4)
    there = {"a": "gpu:0", "m": "gpu:1", "b": "gpu:0"}

    assert pipeline_of(one, there, Execution()).depth == 1
    assert order(played(one, "010", 4), "gpu:0")[:4] == ["F0", "F1", "F2", "F0"]


def test_weights_are_updated_once_after_the_last_micro_batch():
    """One update task a part, when all of its backward tasks have run."""
    found = played(stages(), "01", 4)
    updates = [t for t in found.timeline.tasks if t.phase == "update"]
    last = max(t.stop for t in found.timeline.tasks if t.phase == "backward")

    assert sorted(task.part for task in updates) == ["a", "b"]
    assert max(task.start for task in updates) >= last


def large_layers(count: int = 10, units: int = 4000):
    """Dense layers of 61 MiB in one part."""
    out = 32 * units * 4
    calls = [
        zoo.call(f"d{i}", "all", out=out, weights=(f"w{i}",), inner_bytes=0)
        for i in range(count)
    ]
    calls = [zoo.source("x", out), *calls]
    names = [one.name for one in calls]
    return zoo.graph_of(
        "large",
        calls,
        list(zip(names, names[1:])),
        weight_bytes=units * units * 4,
        parts=[Part("x", "input", ("cpu",)), Part("all")],
    )


def test_micro_batches_add_two_sets_of_gradients_however_many_they_are():
    """Ten Dense(4000) with Adam by hand: 610 MiB of weights four times is 2,441.

    One step adds 122 MiB for the temporaries of one update: 2,563. With micro-batches
    that alternate, a set of gradients is added to another, which makes a third: 3,662,
    and a few activations.
    """
    plan = score(
        large_layers(), Cluster.of("gpu", "cpu"), {"x": "cpu:0", "all": "gpu:0"}
    )
    peaks = [
        simulate(plan, microbatches=count, schedule="1f1b").peak_bytes["gpu:0"] / MIB
        for count in (2, 8)
    ]

    assert plan.memory["gpu:0"].total / MIB == pytest.approx(2563, rel=0.001)
    assert peaks == pytest.approx([3663, 3663], rel=0.001)


def test_scaled_graph_scales_bytes_and_flops_with_the_batch():
    """Half the batch: half of everything but weights."""
    one = zoo.chain(2)
    half = scaled_graph(one, one.batch // 2)

    assert half.batch == one.batch // 2
    assert half.calls[1].forward_flops == one.calls[1].forward_flops / 2
    assert half.tensors[0].bytes == one.tensors[0].bytes // 2
    assert half.weights == one.weights


def test_stage_count_counts_devices_that_compute_one_after_another():
    """There and back again is three stages."""
    one = graph([dense("a"), dense("b"), dense("c")], "a-b b-c")

    back = {"a": "gpu:0", "b": "gpu:1", "c": "gpu:0"}
    assert pipeline_of(one, back, Execution()).depth == 3
    assert pipeline_of(one, dict.fromkeys("abc", "gpu:0"), Execution()).depth == 1


def test_shares_of_an_odd_batch_differ_by_one_sample():
    """A batch of 5 in two shares: 3 and 2."""
    one = graph([dense("a", seconds=5.0)], "", batch=5)
    forward = [
        task.stop - task.start
        for task in played(one, "0", 2).timeline.tasks
        if task.phase == "forward"
    ]

    assert forward == pytest.approx([3, 2], rel=1e-4)


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"microbatches": 0}, "microbatches= must be a whole number, 1 or more"),
        ({"microbatches": 33}, "microbatches=33 must be from 1"),
        ({"microbatches": 1.5}, "must be a whole number, 1 or more. Received: 1.5"),
        ({"microbatches": 2, "schedule": "zb"}, "must be one of 'gpipe', '1f1b'"),
        ({"microbatches": 33, "schedule": "zb"}, "schedule= must be one"),
    ],
)
def test_simulate_refuses_what_no_pipeline_can_be(asked, fault):
    """The error says what was asked and what is allowed."""
    plan = score(zoo.chain(1), Cluster.of("gpu", "cpu"), {"x": "cpu:0", "c0": "gpu:0"})

    with pytest.raises(DeclarationError, match=fault):
        simulate(plan, **asked)
