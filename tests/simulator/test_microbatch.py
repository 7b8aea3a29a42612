"""Micro-batches: schedules, memory, and what does not depend on the batch."""

from itertools import pairwise

import pytest

from splitnet.core.timeline import Execution
from tests.simulator.small import box, dense, graph, outcome, view


def order(found, device):
    """Tasks of a device but updates as F0 B0 ..."""
    tasks = [t for t in found.timeline.tasks if t.device == device]
    names = [f"{task.phase[0].upper()}{task.microbatch}" for task in tasks]
    return " ".join(name for name in names if name[0] != "U")


@pytest.mark.parametrize(
    ("names", "devices", "schedule", "first", "second"),
    [
        # The first stage runs all forward tasks at once. The second has F0 at 2; F1 and
        # B0 are ready at 3, and what became ready last goes first.
        ("ab", "01", "gpipe", "F0 F1 F2 F3 B0 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"),
        # The first of two stages starts F2 after B0; the last alternates.
        ("ab", "01", "1f1b", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"),
        # A stage of two parts runs both for a micro-batch before it takes the next.
        ("abcd", "0011", "gpipe", "F0 F0 F1 F1 F2 F2 F3 F3", "F0 F0 B0 B0"),
        # Before and after a merge elsewhere that computes nothing are two runs.
        ("amb", "010", "gpipe", "F0 F1 F2 F0", "F0 F1 F2 F3"),
    ],
)
def test_a_schedule_orders_the_tasks_of_stages(names, devices, schedule, first, second):
    """Four micro-batches of 1 s forward, 2 s backward; one update; copies take 1 s."""
    calls = [view(n, n, 4) if n == "m" else dense(n, seconds=4.0, out=4) for n in names]
    edges = " ".join(map("-".join, pairwise(names)))
    how = Execution(4, schedule)
    found = outcome(graph(calls, edges, batch=4), box(), devices, how)
    updates = [t for t in found.timeline.tasks if t.phase == "update"]
    assert order(found, "gpu:0").startswith(first)
    assert order(found, "gpu:1").startswith(second)
    assert sorted(task.part for task in updates) == sorted(set(names) - {"m"})
    for update in updates:
        its = [t for t in found.timeline.tasks if t.part == update.part]
        assert max(its, key=lambda task: task.start) == update


@pytest.mark.parametrize(
    ("parts", "devices", "schedule", "held"),
    [
        ("ab", "01", "gpipe", (8, 8)),
        ("ab", "01", "1f1b", (5, 5)),
        ("aa", "0", "1f1b", (8, 0)),
        ("aa", "0", "gpipe", (8, 0)),
    ],
)
def test_stages_hold_gradients_until_they_are_added_up(parts, devices, schedule, held):
    """Beside weights of 1 MB: with gpipe six sets of gradients, and their sum."""
    calls = [dense(n, part, seconds=6.0, out=6) for n, part in zip("ab", parts)]
    one = graph(calls, "a-b", batch=6, weight_bytes=10**6)
    memory = outcome(one, box(), devices, Execution(6, schedule)).memory
    for name, megabytes in zip(("gpu:0", "gpu:1"), held):
        assert memory[name].total == pytest.approx(megabytes * 10**6, rel=1e-3)


def test_shares_of_an_odd_batch_differ_by_one_sample():
    one = graph([dense("a", seconds=5.0)], "", batch=5)
    tasks = outcome(one, box(), "0", Execution(2)).timeline.tasks
    forward = [task.stop - task.start for task in tasks if task.phase == "forward"]
    assert forward == pytest.approx([3, 2], rel=1e-4)
