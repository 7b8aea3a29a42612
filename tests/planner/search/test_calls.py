"""Plans for one sample's latency: cuts into calls, and children of two plans."""

from collections.abc import Sequence
from itertools import count
from math import inf
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from splitnet.planner.search import Problem, build_problem, check
from splitnet.planner.search.call_chain import chain_calls
from splitnet.planner.search.calls import search_calls
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.elite import Elite
from splitnet.planner.search.latency import call_latency, is_convex
from splitnet.planner.search.orders import depth_first, fuse_cycles
from splitnet.planner.search.problem import Device
from splitnet.planner.search.recombine import recombine
from splitnet.planner.search.rounds import Rounds

from .problems import feasible_plans, problems

quick = settings(max_examples=60, deadline=None)
TICK = 1e-3
"""Seconds between two readings of a clock that counts them."""


def fork(*, memory: float) -> Problem:
    """Two branches whose ends are dear to send and whose middle is slow on the host.

    0 -> 1 -> 2 -> 3 -> 7   with c(0) = c(3) = c(6) = 9 and c(1) = c(2) = 0.5, and
      -> 4 -> 5 -> 6 ->     nodes 2 and 5 slow on the host.
    """
    send = [9.0, 0.5, 0.5, 9.0, 0.5, 0.5, 9.0, 0.0]
    host = [1.0, 1.0, 40.0, 1.0, 1.0, 40.0, 1.0, 1.0]
    edges = [(0, 1), (1, 2), (2, 3), (3, 7), (0, 4), (4, 5), (5, 6), (6, 7)]
    return build_problem(
        [str(node) for node in range(8)],
        seconds=[(seconds / 10, seconds) for seconds in host],
        size_bytes=[1.0] * 8,
        edges=edges,
        transfer_seconds=[(seconds, 0.0) for seconds in send],
        devices=[Device("gpu:0", 0, memory), Device("gpu:1", 0, memory)]
        + [Device("cpu:0", 1, pooled=True)],
    )


def test_branches_run_side_by_side_with_cheap_ends() -> None:
    """Only the middle of each branch is called: 1 + 1 + (4 + 1) + 1 + 1 seconds."""
    problem = fork(memory=3.0)
    plan = chain_calls(problem, depth_first(problem), list(range(8)), problem)
    assert plan is not None
    assert {plan[2], plan[5]} == {0, 1}
    assert [plan[node] for node in (0, 1, 3, 4, 6, 7)] == [2] * 6
    assert call_latency(problem, plan) == 9.0


@given(problem=problems(max_nodes=10, pins=False), seed=st.integers(0, 99))
@quick
def test_cuts_into_calls_fit(problem: Problem, seed: int) -> None:
    """Cuts of any order keep each memory and support, and can run."""
    fused, cluster = fuse_cycles(problem)
    owner = [cluster[group] for group in problem.nodes.group]
    order = depth_first(fused, Random(seed))
    plan = chain_calls(fused, order, owner, problem)
    if plan is not None:
        assert not check(fused, plan)
        whole = [plan[index] for index in cluster]
        assert call_latency(problem, whole) < float("inf")


def test_cuts_pass_over_an_accelerator_that_is_too_small() -> None:
    """One call of three bytes goes to the second accelerator: the first has two."""
    problem = build_problem(
        ["a", "b", "c"],
        seconds=[(1.0, 50.0)] * 3,
        size_bytes=[1.0] * 3,
        edges=[(0, 1), (1, 2)],
        transfer_seconds=[(9.0, 0.0)] * 3,
        devices=[Device("gpu:0", 0, 2.0), Device("gpu:1", 0, 3.0)]
        + [Device("cpu:0", 1, pooled=True)],
    )
    assert chain_calls(problem, [0, 1, 2], [0, 1, 2], problem) == [1, 1, 1]


@given(problem=problems(max_nodes=7), seed=st.integers(0, 99))
@quick
def test_children_of_two_plans_fit(problem: Problem, seed: int) -> None:
    """A child keeps memory and pins, and left's devices before the cut."""
    plans = feasible_plans(problem)
    if not plans:
        return
    random = Random(seed)
    left, right = random.choice(plans), random.choice(plans)
    order = list(range(problem.group_count))
    cut = random.randrange(len(order) + 1)
    child = recombine(problem, left, right, order, cut)
    if child is not None:
        assert not check(problem, child)
        assert child[:cut] == list(left[:cut])


@given(problem=problems(max_nodes=7), seed=st.integers(0, 99))
@quick
def test_a_plan_joined_with_itself_is_itself(problem: Problem, seed: int) -> None:
    """Where both parents are one plan, so is the child."""
    plans = feasible_plans(problem)
    if not plans:
        return
    random = Random(seed)
    plan = random.choice(plans)
    order = list(range(problem.group_count))
    cut = random.randrange(len(order) + 1)
    assert recombine(problem, plan, plan, order, cut) == list(plan)


def test_accelerators_across_the_cut_go_on() -> None:
    """What crosses the cut in both plans keeps the name it has on the left."""
    problem = fork(memory=9.0)
    left = [0, 0, 0, 0, 2, 2, 2, 2]
    right = [1, 1, 1, 1, 1, 1, 0, 0]
    order = list(range(8))
    assert recombine(problem, left, right, order, 2) == [0, 0, 0, 0, 0, 0, 1, 1]


def lanes(*, length: int, links: tuple[tuple[int, int], ...] = ()) -> Problem:
    """Two chains of calls, `a0 -> a1 ...` before `b0 -> b1 ...`, and a link or two."""
    names = [f"{lane}{row}" for lane in "ab" for row in range(length)]
    edges = [(n, n + 1) for n in range(2 * length - 1) if n != length - 1]
    return build_problem(
        names,
        seconds=[(1.0, 10.0)] * len(names),
        size_bytes=[1.0] * len(names),
        edges=[*edges, *links],
        transfer_seconds=[(0.0, 0.0)] * len(names),
        devices=[Device(f"gpu:{n}", 0, 9e9) for n in range(5)]
        + [Device("cpu:0", 1, pooled=True)],
    )


def test_a_round_runs_lanes_side_by_side() -> None:
    """Two lanes that never meet take half the time of all calls, and so do crossed."""
    crossed = ((3, 12), (10, 5))
    for links in ((), crossed):
        problem = lanes(length=8, links=links)
        makes, random = Rounds(problem), Random(0)
        plans = [makes.plan(depth_first(problem), random, tries=9) for _ in range(9)]
        found = [call_latency(problem, plan) for plan in plans if plan is not None]
        assert min(found) <= 10.0


@given(problem=problems(max_nodes=12), seed=st.integers(0, 99))
@quick
def test_rounds_are_single_calls_that_can_run(problem: Problem, seed: int) -> None:
    """A plan is whole, convex on every accelerator, and never waits in a circle."""
    fused, cluster = fuse_cycles(problem)
    assume(sum(device.pooled for device in problem.devices) <= 1)
    assume(not any(problem.nodes.backward))
    random = Random(seed)
    plan = Rounds(fused).plan(depth_first(fused, random), random, tries=4)
    if plan is None:
        return
    accelerators = [i for i, d in enumerate(problem.devices) if not d.pooled]
    spread = [plan[owner] for owner in cluster]
    assert call_latency(problem, spread) < inf
    if not any(problem.devices[device].pooled for device in spread):
        assert is_convex(problem, spread)
    if len({problem.devices[d].capacity_bytes for d in accelerators}) <= 1:
        faults = [f for f in check(problem, spread) if "bytes" in f]
        assert not faults


def test_a_long_search_anneals_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt after seconds of ten minutes finds plans from every strategy.

    The seconds are of a clock that counts its readings, alike on every machine.
    """
    ticks = count(step=TICK)
    steady = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr("splitnet.planner.search.clock.time", steady)
    problem = lanes(length=30, links=((3, 35), (50, 22)))
    budget, seen = Budget(600.0), list[str]()

    def report(plan: Sequence[int], name: str) -> float:
        assert budget.left > 590.0
        seen.append(name)
        if name == "multilevel calls":
            raise KeyboardInterrupt
        return call_latency(problem, plan)

    with pytest.raises(KeyboardInterrupt):
        search_calls(problem, budget, Random(0), report)
    assert {"rounds of calls", "chain of calls", "multilevel calls"} <= set(seen)


def test_elite_keeps_the_best_of_different_values() -> None:
    """Equal values count once, infinite ones never, and the worst leaves first."""
    elite = Elite(2)
    for value in (3.0, 1.0, 1.0, inf, 2.0):
        elite.add(value, [int(value)] if value < inf else [])
    assert elite.rows == [(1.0, [1]), (2.0, [2])]
    assert elite.draw(Random(0)) in ([1], [2])
