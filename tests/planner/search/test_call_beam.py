"""Plans that grow by steps: they fold as they are, and cost what their steps say."""

from collections.abc import Sequence
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.planner.search import Problem, build_problem, check
from splitnet.planner.search.call_beam import CallBeam
from splitnet.planner.search.call_partial import Partial
from splitnet.planner.search.call_sharing import SharedCalls
from splitnet.planner.search.call_steps import Steps
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.latency import call_latency, calls_of
from splitnet.planner.search.problem import Device

from .problems import problems

quick = settings(max_examples=300, deadline=None)


def lanes(*, width: int, length: int, accelerators: int, every: int) -> Problem:
    """Lanes side by side; now and then one hears from the next one too."""
    edges = [(node, node + width) for node in range(width * (length - 1))]
    edges += [
        (row * width + lane, (row + 1) * width + (lane + 1) % width)
        for row in range(length - 1)
        for lane in range(width)
        if (row + 3 * lane) % every == 0
    ]
    count = width * length
    return build_problem(
        [str(node) for node in range(count)],
        seconds=[(1.0, 20.0)] * count,
        size_bytes=[1.0] * count,
        edges=edges,
        transfer_seconds=[(0.1, 0.0)] * count,
        devices=[Device(f"gpu:{i}", 0) for i in range(accelerators)]
        + [Device("cpu:0", 1, pooled=True)],
    )


def grown(steps: Steps, random: Random) -> Partial | None:
    """A plan after as many steps as it takes; None where it is stuck."""
    plan = steps.begin()
    while plan is not None and plan.ready:
        share = random.choice((0.5, 2.0, 8.0))
        cheap = random.choice(steps.cheap)
        plan = steps.step(
            plan, random, share=share, cheap=cheap, devices=steps.accelerators
        )
    return plan


@given(
    problem=problems(max_nodes=14, kinds=3, colors=False, backward=False),
    seed=st.integers(0, 10_000),
)
@quick
def test_a_grown_plan_fits_and_costs_what_its_steps_say(
    problem: Problem, seed: int
) -> None:
    """Its calls are those that the benchmark's rule finds, and memory and pins hold."""
    steps = Steps(problem)
    plan = grown(steps, Random(seed))
    if plan is None:
        return
    assignment = steps.assignment(plan)

    assert not check(problem, assignment)
    assert call_latency(problem, assignment) == pytest.approx(plan.end, rel=1e-9)
    assert plan.work == pytest.approx(steps.work, rel=1e-9)


@given(seed=st.integers(0, 10_000))
@quick
def test_the_calls_of_a_grown_plan_are_found_by_the_rule(seed: int) -> None:
    """As many units on accelerators as calls were made, several on some."""
    problem = lanes(width=3, length=12, accelerators=3, every=4)
    steps = Steps(problem)
    plan = grown(steps, Random(seed))
    assert plan is not None
    assignment = steps.assignment(plan)

    units = {unit for unit in calls_of(problem, assignment) if unit[0] >= 0}
    assert len(units) == len(plan.device)


@given(seed=st.integers(0, 10_000))
@quick
def test_a_grown_plan_can_be_annealed(seed: int) -> None:
    """With a device for each call it costs the same; too many calls are refused."""
    problem = lanes(width=3, length=12, accelerators=3, every=4)
    steps = Steps(problem)
    plan = grown(steps, Random(seed))
    assert plan is not None
    assignment = steps.assignment(plan)
    most = max(plan.device.count(device) for device in steps.accelerators)
    nodes = list(problem.nodes.group)

    shared = SharedCalls(problem, problem, nodes, most)
    wide = shared.widen(assignment, plan.call)
    assert wide is not None
    assert call_latency(shared.wide, wide) == pytest.approx(plan.end, rel=1e-9)
    if most > 1:
        fewer = SharedCalls(problem, problem, nodes, most - 1)
        assert fewer.widen(assignment, plan.call) is None


def test_a_beam_shares_accelerators_in_lanes() -> None:
    """Six lanes on three accelerators, a quarter below all of it on one."""
    problem = lanes(width=6, length=60, accelerators=3, every=7)
    found: list[float] = []

    def keep(plan: Sequence[int], calls: Sequence[int]) -> float:
        assert not check(problem, plan)
        assert max(calls) >= 3
        found.append(call_latency(problem, plan))
        return found[-1]

    CallBeam(problem, keep).search(Budget(iterations=100_000), Random(0))
    assert min(found) < 270.0


def test_a_beam_ends_where_nothing_can_be_placed() -> None:
    """A node that is too large for the accelerator, and may not be on the host."""
    problem = build_problem(
        ["a", "b"],
        seconds=[(1.0, inf), (1.0, inf)],
        size_bytes=[1.0, 9.0],
        edges=[(0, 1)],
        transfer_seconds=[(0.1, 0.0)] * 2,
        devices=[Device("gpu:0", 0, 4.0)],
    )
    found: list[Sequence[int]] = []

    def keep(plan: Sequence[int], calls: Sequence[int]) -> float:
        found.append(plan)
        return 0.0

    CallBeam(problem, keep).search(Budget(iterations=10_000), Random(0))
    assert not found
