"""Lines of groups: merged for the beam, and the same calls once taken apart."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.planner.search import Problem, check
from splitnet.planner.search.call_lines import merge_lines
from splitnet.planner.search.call_steps import Steps
from splitnet.planner.search.latency import call_latency, calls_of

from .problems import problems
from .test_call_beam import grown, lanes

quick = settings(max_examples=200, deadline=None)


def test_lanes_become_lines() -> None:
    """Ninety nodes in three lanes with a link after every fifth, about six to a line.

    Each of the eighteen links begins a line at most, and none is longer than twice six.
    """
    problem = lanes(width=3, length=30, accelerators=2, every=5)
    short, line = merge_lines(problem, 15)
    sizes = [line.count(index) for index in range(short.group_count)]
    assert short.group_count <= 3 + 18
    assert 3 < max(sizes) <= 12
    assert sum(row[0] for row in short.seconds) == 90.0


@given(
    problem=problems(max_nodes=16, kinds=3, colors=False, backward=False),
    target=st.integers(1, 8),
    seed=st.integers(0, 10_000),
)
@quick
def test_plans_of_lines_cost_no_more_than_they_say(
    problem: Problem, target: int, seed: int
) -> None:
    """A plan of lines fits, and its calls are those that the benchmark's rule finds."""
    short, line = merge_lines(problem, target)
    steps = Steps(short)
    plan = grown(steps, Random(seed))
    if plan is None:
        return
    whole = steps.assignment(plan)
    assignment = [whole[index] for index in line]

    assert not check(problem, assignment)
    assert call_latency(problem, assignment) <= plan.end * (1 + 1e-9)
    made = {call for index, call in enumerate(plan.call) if call >= 0 and index in line}
    found = {unit for unit in calls_of(problem, assignment) if unit[0] >= 0}
    assert len(found) == len(made)
