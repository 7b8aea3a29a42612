"""The critical path and the reasons of gaps, by hand and on random nets."""

from itertools import pairwise

import pytest

from splitnet.core.timeline import Timeline
from splitnet.planner.what_if import simulate
from tests.view.layouts import random_plan
from tests.view.test_timeline import copy_of, task

#   gpu:0   |== a ==|= c =|         |= d =|
#   0 to 1          |~ p ~| .. |~ q ~|         q waits for the link until 4
#   gpu:1           0   2  |== b ==|
#   1 to 0                         |~~|
A, C, B = task("a", 0, 2), task("c", 2, 3), task("b", 4, 6, 1)
E, F, D = task("e", 6, 6, 1), task("f", 6.5, 7, 1), task("d", 7.5, 9)
P, Q = copy_of(2, 4), copy_of(3.5, 6.5, "c", target="f")
R = copy_of(6, 7.5, "e", "10", target="d")
LONGEST = [(A, 0, 2), (P, 2, 4), (B, 4, 6), (R, 6, 7.5), (D, 7.5, 9)]
DEVICES = ("gpu:0", "gpu:1", "gpu:2")


@pytest.mark.parametrize(
    ("tasks", "copies", "path"),
    [
        ((A, C, B, E, F, D), (P, Q, R), LONGEST),
        ((A, C, F), (P, Q), [(A, 0, 2), (P, 2, 3.5), (Q, 3.5, 6.5), (F, 6.5, 7)]),
        # A measured step has gaps without a reason.
        ((task("a", 0, 0.5), task("a", 1, 1.5)), (), []),
        ((), (), []),
    ],
)
def test_critical_path_follows_tasks_copies_and_a_full_link(tasks, copies, path):
    assert Timeline(tasks, copies, DEVICES, {}).critical_path == path


def test_waits_fill_every_gap_with_what_happens_elsewhere():
    """gpu:1 waits for a, then for its copy; gpu:2 for nothing at all."""
    found = Timeline((A, C, B, E, F, D), (P, Q, R), DEVICES, {}).waits
    measured = Timeline((task("a", 1, 2),), (), DEVICES, {}).waits
    assert found["gpu:0"] == [(P, 3, 4), (B, 4, 6), (R, 6, 7.5)]
    assert found["gpu:1"] == [(A, 0, 2), (P, 2, 4), (Q, 6, 6.5), (None, 7, 9)]
    assert found["gpu:2"] == [(None, 0, 9)]
    assert measured["gpu:0"] == [(None, 0, 1)]


@pytest.mark.parametrize("seed", range(6))
def test_critical_path_of_a_random_step_is_as_long_as_the_step(seed):
    """No gap from 0 to the end; and with the gaps every device's step is complete."""
    plan = random_plan(seed)
    for timeline in (plan.timeline, simulate(plan, microbatches=2)):
        path = timeline.critical_path
        assert path[0].start == 0.0
        assert path[-1].stop == timeline.seconds
        assert all(one.stop == two.start for one, two in pairwise(path))
        for device, spans in timeline.waits.items():
            idle = sum(span.stop - span.start for span in spans)
            busy = timeline.compute_seconds[device]
            assert idle + busy == pytest.approx(timeline.seconds)
            assert all(s.event for s in spans if s.stop < timeline.seconds)
