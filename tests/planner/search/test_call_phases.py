"""Training: forward and backward calls of one accelerator, annealed as one group."""

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.planner.search import Problem, build_problem, check, search
from splitnet.planner.search.call_chain import chain_calls
from splitnet.planner.search.call_phases import CallPhases
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.latency import call_latency, calls_of
from splitnet.planner.search.orders import fuse_cycles
from splitnet.planner.search.problem import Device

from .problems import problems

quick = settings(max_examples=100, deadline=None)


def trained(
    *, length: int, memory: float, host: float = 50.0, accelerators: int = 3
) -> Problem:
    """A chain forward and, twice as slow, back; each pair of nodes shares a device.

    0 -> 1 -> 2
              v
    5 <- 4 <- 3
    """
    count = 2 * length
    return build_problem(
        [str(node) for node in range(count)],
        seconds=[(1.0, host)] * length + [(2.0, 2 * host)] * length,
        size_bytes=[0.5] * count,
        edges=[(node, node + 1) for node in range(count - 1)],
        transfer_seconds=[(0.25, 0.0)] * count,
        devices=[Device(f"gpu:{i}", 0, memory) for i in range(accelerators)]
        + [Device("cpu:0", 1, pooled=True)],
        together=[min(node, count - 1 - node) for node in range(count)],
        backward=[node >= length for node in range(count)],
    )


def annealed(problem: Problem, plan: list[int], seed: int) -> list[int]:
    """The plan after some annealing of single groups."""
    fused, cluster = fuse_cycles(problem)
    phases = CallPhases(fused, problem, [cluster[g] for g in problem.nodes.group])
    start = [0] * fused.group_count
    for group, index in enumerate(cluster):
        start[index] = plan[group]
    groups = list(range(fused.group_count))
    budget = Budget(iterations=20_000)
    found = phases.anneal(fused, groups, start, budget, Random(seed), hot=0.02)
    return [found[index] for index in cluster]


def test_accelerators_call_forward_and_then_backward() -> None:
    """Nine pairs on three accelerators of four: all work, and eight or six copies."""
    problem = trained(length=9, memory=4.0)
    result = search(problem, "call_latency", iterations=40_000, seed=0)

    units = {unit for unit in calls_of(problem, result.assignment) if unit[0] >= 0}
    assert len(units) == 5  # the one with the middle makes a single call
    assert result.value == pytest.approx(27.0 + 4 * 2 * 0.25)


def test_annealing_moves_both_phases() -> None:
    """Two pairs that wait on the host go to their neighbours."""
    problem = trained(length=9, memory=4.0)
    plan = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    best = call_latency(problem, plan)
    wrong = [0, 0, 3, 1, 1, 1, 3, 2, 2]
    assert call_latency(problem, wrong) > best
    assert call_latency(problem, annealed(problem, wrong, 0)) == pytest.approx(best)


@given(problem=problems(max_nodes=12), seed=st.integers(0, 10_000))
@quick
def test_annealed_phases_fit_and_cost_what_was_counted(
    problem: Problem, seed: int
) -> None:
    """Memory and pins hold, and where the start could run the end does, no later."""
    fused, cluster = fuse_cycles(problem)
    if len(set(cluster)) < problem.group_count or not all(fused.allowed):
        return
    random = Random(seed)
    plan = [random.choice(row) for row in problem.allowed]
    before = call_latency(problem, plan)
    if check(problem, plan):
        return
    found = annealed(problem, plan, seed)

    assert not check(problem, found)
    if before < inf:
        assert call_latency(problem, found) <= before * (1 + 1e-9)


def test_a_stretch_on_the_host_goes_back_too() -> None:
    """Both passes of a stretch count on the host: 12 seconds, 9.5 in a call."""
    problem = trained(length=3, memory=9.0, host=1.3333, accelerators=1)
    order = list(range(3))
    plan = chain_calls(problem, order, list(problem.nodes.group), problem)
    assert plan == [0, 0, 0]
    assert call_latency(problem, plan) == 9.0
