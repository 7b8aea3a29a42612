"""The critical path and the reasons of gaps, by hand and on random nets."""

from itertools import pairwise

import pytest

from splitnet.core.timeline import Copy, Task, Timeline, critical_path, waits
from splitnet.planner.what_if import simulate
from tests.view.layouts import random_plan
from tests.view.plans import chain


def copy(source: str, target: str, start: float, stop: float) -> Copy:
    """A copy of part `a0` on gpu:0 to part `b1` on gpu:1, for source and target."""
    ends = f"gpu:{source[1]}", f"gpu:{target[1]}"
    return Copy(source, target, *ends, "activation", "forward", 8, start, stop)


#   gpu:0   |== a0 ==|= c0 =|         |= d0 =|
#   0 to 1           |~ p ~| .. |~ q ~|          q waits for the link until 4
#   gpu:1            0   2  |== b1 ==|
#   1 to 0                           |~~|
BY_HAND = Timeline(
    (
        Task("a0", "gpu:0", "forward", 0.0, 2.0),
        Task("c0", "gpu:0", "forward", 2.0, 3.0),
        Task("b1", "gpu:1", "forward", 4.0, 6.0),
        Task("e1", "gpu:1", "forward", 6.0, 6.0),
        Task("f1", "gpu:1", "forward", 6.5, 7.0),
        Task("d0", "gpu:0", "forward", 7.5, 9.0),
    ),
    (
        copy("a0", "b1", 2.0, 4.0),
        copy("c0", "f1", 3.5, 6.5),
        copy("e1", "d0", 6.0, 7.5),
    ),
    ("gpu:0", "gpu:1", "gpu:2"),
    {},
)


def test_critical_path_follows_tasks_copies_and_a_full_link() -> None:
    """Through a task of no length to what it waited for; a copy queues behind one."""
    path = critical_path(BY_HAND)
    a, c, b, _, f, d = BY_HAND.tasks
    first, second, back = BY_HAND.copies

    assert [(span.event, span.start, span.stop) for span in path] == [
        (a, 0.0, 2.0),
        (first, 2.0, 4.0),
        (b, 4.0, 6.0),
        (back, 6.0, 7.5),
        (d, 7.5, 9.0),
    ]
    shorter = Timeline((a, c, f), (first, second), ("gpu:0", "gpu:1"), {})
    queued = [(span.event, span.start, span.stop) for span in critical_path(shorter)]
    assert queued == [(a, 0.0, 2.0), (first, 2.0, 3.5), (second, 3.5, 6.5), (f, 6.5, 7)]


def test_waits_fill_every_gap_with_what_happens_elsewhere() -> None:
    """gpu:1 waits for a0, then for its copy; gpu:2 for nothing at all."""
    found = waits(BY_HAND)
    a, _, b, *_ = BY_HAND.tasks
    first, second, back = BY_HAND.copies

    assert found["gpu:0"] == [(first, 3.0, 4.0), (b, 4.0, 6.0), (back, 6.0, 7.5)]
    assert found["gpu:1"] == [
        (a, 0.0, 2.0),
        (first, 2.0, 4.0),
        (second, 6.0, 6.5),
        (None, 7.0, 9.0),
    ]
    assert found["gpu:2"] == [(None, 0.0, 9.0)]


@pytest.mark.parametrize("seed", range(12))
def test_critical_path_of_a_random_step_is_as_long_as_the_step(seed: int) -> None:
    """No gap from 0 to the end; and with the gaps every device's step is complete."""
    plan = random_plan(seed)
    for timeline in (plan.timeline, simulate(plan, microbatches=2)):
        path = critical_path(timeline)
        assert path[0].start == 0.0
        assert path[-1].stop == timeline.seconds
        assert all(one.stop == two.start for one, two in pairwise(path))
        for device, spans in waits(timeline).items():
            idle = sum(span.stop - span.start for span in spans)
            busy = timeline.compute_seconds[device]
            assert idle + busy == pytest.approx(timeline.seconds)
            assert all(s.event for s in spans if s.stop < timeline.seconds)


def test_critical_path_of_a_pipeline_has_every_stage_and_a_measured_step_none() -> None:
    """Each stage waits for the one before it; a gap without a reason gives no path."""
    step = simulate(chain(8), microbatches=4, schedule="1f1b")
    on_path = {s.event.device for s in critical_path(step) if isinstance(s.event, Task)}
    assert on_path >= {f"gpu:{n}" for n in range(4)}

    tasks = tuple(Task("a", "gpu:0", "forward", n, n + 0.5) for n in range(3))
    measured = Timeline(tasks, (), ("gpu:0",), {})
    assert critical_path(measured) == []
    assert [span.event for span in waits(measured)["gpu:0"]] == [None, None]
    assert critical_path(Timeline((), (), ("gpu:0",), {})) == []
