"""Certificates for contiguous parts: ideals of pipelines, and convex sets."""

from itertools import combinations
from math import inf
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from splitnet.planner.search import Problem, check, max_load, search
from splitnet.planner.search.chain import chain_partition
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.convex import Reach, anneal_convex, search_convex
from splitnet.planner.search.ideals import ideal_partition, ideal_seconds, ideals_of
from splitnet.planner.search.latency import is_convex, is_pipeline
from splitnet.planner.search.orders import depth_first, fuse_cycles
from splitnet.planner.search.problem import Device
from splitnet.planner.search.state import Fixed

from .problems import convex_by_paths, feasible_plans, problems, slow_loads
from .test_strategies import quick


def crossed() -> Problem:
    """Return a -> b and c -> d on two devices: balanced only if they wait in turns."""
    return build_problem(
        ["a", "b", "c", "d"],
        seconds=[(5.0,), (2.0,), (4.0,), (1.0,)],
        size_bytes=[0.0] * 4,
        edges=[(0, 1), (2, 3)],
        transfer_seconds=[(0.0,)] * 4,
        devices=[Device("gpu:0", 0), Device("gpu:1", 0)],
    )


def lanes(count: int, width: int, seed: int) -> Problem:
    """Return lanes of groups with transfers, far too many plans to try them all."""
    random = Random(seed)
    return build_problem(
        [str(node) for node in range(count)],
        seconds=[(random.random(), 9 * random.random()) for _ in range(count)],
        size_bytes=[random.random() for _ in range(count)],
        edges=[(n - width, n) for n in range(width, count)]
        + [(n - width - 1, n) for n in range(2 * width, count, 7)],
        transfer_seconds=[(random.random(), 0.0) for _ in range(count)],
        devices=[Device(f"gpu:{i}", 0, count / 5) for i in range(3)]
        + [Device("cpu:0", 1, pooled=True)],
    )


@given(problem=problems(max_nodes=9))
@quick
def test_ideals_are_all_closed_sets(problem: Problem) -> None:
    """Every set that holds its sources is listed once, a smaller one first."""
    problem, _ = fuse_cycles(problem)
    closed = [
        sum(1 << group for group in chosen)
        for size in range(problem.group_count + 1)
        for chosen in combinations(range(problem.group_count), size)
        if all(a in chosen for a, b in problem.forward if b in chosen)
    ]
    found = ideals_of(problem, 1000)
    assert found is not None
    sizes = [ideal.bit_count() for ideal in found]

    assert sorted(found) == sorted(closed)
    assert sizes == sorted(sizes)
    assert ideals_of(problem, len(closed) - 1) is None


@given(problem=problems(max_nodes=7, kinds=3))
@quick
def test_ideal_partition_equals_exhaustion(problem: Problem) -> None:
    """The value is that of the best pipeline of all, and the plan has it."""
    fused, cluster = fuse_cycles(problem)
    ideals = ideals_of(fused, 1000)
    assert ideals is not None
    found = ideal_partition(fused, ideals)
    plans = [p for p in feasible_plans(problem) if is_pipeline(problem, p)]
    best = min((max(slow_loads(problem, plan)) for plan in plans), default=inf)

    assert ideal_seconds(fused, len(ideals)) > 0
    if found is None:
        assert best == inf
        return
    plan = [found[1][owner] for owner in cluster]
    assert is_pipeline(problem, plan)
    assert check(problem, plan) == []
    assert found[0] == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert max_load(problem, plan) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_ideals_refuse_more_kinds_of_machines_than_they_can_count() -> None:
    """Where the cut would not be exact, nothing is called exact."""
    many = lanes(4, 1, seed=0)
    devices = tuple(Device(f"gpu:{i}", 0, 10.0 + i) for i in range(12))
    wide = Problem(
        names=many.names,
        seconds=many.seconds,
        size_bytes=many.size_bytes,
        nets=many.nets,
        devices=devices,
        allowed=(tuple(range(12)),) * 4,
        forward=many.forward,
        nodes=many.nodes,
    )
    ideals = ideals_of(wide, 100)
    assert ideals is not None

    with pytest.raises(ValueError, match="too many classes of devices"):
        ideal_partition(wide, ideals)
    assert search(wide, contiguity="pipeline", iterations=3000).value > 0


def test_pipelines_of_few_ideals_are_proven_optimal() -> None:
    """The search ends at once, with no gap and no worse than the best chain."""
    problem = lanes(40, 2, seed=1)
    chain = chain_partition(problem, depth_first(problem))
    result = search(problem, contiguity="pipeline", iterations=10**9)

    assert result.gap == 0.0
    assert result.bound_by == "all ideals"
    assert chain is not None
    assert result.value <= chain[0]


@given(problem=problems(max_nodes=9), seed=st.integers(0, 999))
@quick
def test_reach_tells_convex_sets(problem: Problem, seed: int) -> None:
    """The sets of bits agree with all pairs of paths."""
    assume(all(problem.allowed))
    random = Random(seed)
    plan = [random.choice(row) for row in problem.allowed]
    reach = Reach(problem)
    parts = [
        [group for group, where in enumerate(plan) if where == device]
        for device in range(len(problem.devices))
    ]

    assert all(map(reach.is_convex, parts)) == convex_by_paths(problem, plan)


@given(problem=problems(max_nodes=16), seed=st.integers(0, 99))
@settings(quick, max_examples=40)
def test_annealed_sets_stay_convex(problem: Problem, seed: int) -> None:
    """Moves and swaps keep devices convex and fitting, and never lose the start."""
    fused, cluster = fuse_cycles(problem)
    found = chain_partition(fused, depth_first(fused))
    assume(found is not None)
    assert found is not None
    start = [found[1][owner] for owner in cluster]
    reach, fixed, budget = Reach(problem), Fixed(problem), Budget(iterations=1500)
    plan = anneal_convex(reach, fixed, start, budget, Random(seed), hot=1.0)

    assert is_convex(problem, plan)
    assert check(problem, plan) == []
    assert max_load(problem, plan) <= found[0] + 1e-9


def test_convex_sets_may_wait_in_turns() -> None:
    """The best convex plan of crossed chains is no pipeline, and better than one."""
    problem, seen = crossed(), []
    search_convex(
        problem,
        [0, 0, 1, 1],
        Budget(iterations=3000),
        Random(0),
        lambda plan, _: seen.append(max_load(problem, plan)) or seen[-1],
    )

    assert min(seen) == 6.0
    assert search(problem, contiguity="convex").value == 6.0
    assert search(problem, contiguity="pipeline").value == 7.0


def test_convex_plans_are_no_worse_than_pipelines() -> None:
    """From a pipeline on, and without any to start from, convex plans are found."""
    problem = lanes(40, 2, seed=2)
    best = search(problem, contiguity="pipeline", iterations=10**9).value
    seen: list[float] = []

    def report(plan: list[int], _: str) -> float:
        assert is_convex(problem, plan)
        assert check(problem, plan) == []
        seen.append(max_load(problem, plan))
        return seen[-1]

    search_convex(problem, None, Budget(iterations=4000), Random(0), report)
    assert seen
    assert search(problem, contiguity="convex", iterations=40_000).value <= best
