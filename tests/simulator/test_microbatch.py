"""Micro-batches: schedules, memory, and what does not depend on the batch."""

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.timeline import Execution
from splitnet.planner.evaluate import score
from splitnet.planner.what_if import simulate
from splitnet.simulator.memory import outcome_of
from splitnet.simulator.microbatch import in_schedule, pipeline_of
from splitnet.simulator.step_graph import step_graph
from tests import zoo
from tests.simulator.small import Seconds, box, dense, graph, view


def played(one, devices, count, schedule="gpipe"):
    """A step of micro-batches of parts on the GPUs whose digits are listed."""
    cluster = box(2)
    device_of = {p.name: f"gpu:{d}" for p, d in zip(one.parts, devices, strict=True)}
    step = step_graph(one, cluster, Seconds(), optimizer="sgd", microbatches=count)
    step = in_schedule(step, pipeline_of(one, device_of, Execution(count, schedule)))
    return outcome_of(cluster, step, device_of)


def order(found, device):
    """Tasks of a device but updates as F0 B0 ..."""
    tasks = [t for t in found.timeline.tasks if t.device == device]
    names = [f"{task.phase[0].upper()}{task.microbatch}" for task in tasks]
    return " ".join(name for name in names if name[0] != "U")


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        # The first stage runs all forward tasks at once. The second has F0 at 2; F1 and
        # B0 are ready at 3, and what became ready last goes first.
        ("gpipe", "F0 F1 F2 F3 B0 B1 B2 B3"),
        # The first of two stages starts F2 after B0; the last alternates.
        ("1f1b", "F0 F1 B0 F2 B1 F3 B2 B3"),
    ],
)
def test_a_schedule_orders_the_tasks_of_stages(schedule, first):
    """Four micro-batches of 1 second forward, 2 backward and copies of 1 second.

    Weights are updated once, when all backward tasks have run.
    """
    calls = [dense("a", seconds=4.0, out=4), dense("b", seconds=4.0, out=4)]
    found = played(graph(calls, "a-b", batch=4), "01", 4, schedule)
    updates = [t for t in found.timeline.tasks if t.phase == "update"]
    ends = [t.stop for t in found.timeline.tasks if t.phase == "backward"]

    assert order(found, "gpu:0") == first
    assert order(found, "gpu:1") == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert sorted(task.part for task in updates) == ["a", "b"]
    assert max(task.start for task in updates) >= max(ends)


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

    assert order(played(one, "010", 4), "gpu:0").startswith("F0 F1 F2 F0")


@pytest.mark.parametrize(("count", "held"), [(1, 2563), (2, 3663), (8, 3663)])
def test_gradients_of_a_large_part_in_micro_batches(count, held):
    """Ten Dense(4000) with Adam: 610 MiB of weights four times is 2,441.

    One step adds 122 MiB for the temporaries of one update. With micro-batches that
    alternate, a set of gradients is added to another, which makes a third, and a few
    activations.
    """
    out, names = 32 * 4000 * 4, [f"d{i}" for i in range(10)]
    calls = [zoo.source("x", out)]
    for n in names:
        calls.append(zoo.call(n, "all", out=out, weights=(n,), inner_bytes=0))
    edges = list(zip(["x", *names], names))
    large = zoo.graph_of("large", calls, edges, weight_bytes=4000 * 4000 * 4)
    plan = score(large, Cluster.of("gpu", "cpu"), {"x": "cpu:0", "all": "gpu:0"})
    step = simulate(plan, microbatches=count, schedule="1f1b")

    assert step.peak_bytes["gpu:0"] / 2**20 == pytest.approx(held, rel=0.001)


@pytest.mark.parametrize(("schedule", "sets"), [("gpipe", 7), ("1f1b", 4)])
def test_stages_hold_gradients_until_they_are_added_up(schedule, sets):
    """Of six micro-batches all and their sum, or a sum, two more and what is made."""
    calls = [dense("a", seconds=6.0, out=6), dense("b", seconds=6.0, out=6)]
    one = graph(calls, "a-b", batch=6, weight_bytes=10**6)
    held = played(one, "01", 6, schedule).memory

    for name in ("gpu:0", "gpu:1"):
        assert held[name].total == pytest.approx((1 + sets) * 10**6, rel=1e-3)


def test_shares_of_an_odd_batch_differ_by_one_sample():
    one = graph([dense("a", seconds=5.0)], "", batch=5)
    tasks = played(one, "0", 2).timeline.tasks
    forward = [task.stop - task.start for task in tasks if task.phase == "forward"]

    assert forward == pytest.approx([3, 2], rel=1e-4)
