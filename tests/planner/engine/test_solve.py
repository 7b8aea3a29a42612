"""Solving a problem: constraints kept, values true, optima of small problems."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.plan import PlanOptions
from splitnet.planner.bounds import CriticalPath, lower_bound
from splitnet.planner.constraints import Group
from splitnet.planner.engine.load_graph import cut_size
from splitnet.planner.engine.solve import OBJECTIVES, solve, value_of
from splitnet.planner.evaluate import Evaluator, free_groups
from splitnet.planner.problem import Problem, problem_of
from splitnet.simulator.step_graph import step_graph
from tests.planner.engine.problems import (
    best_of_all,
    calls_problem,
    chain_graph,
    random_graph,
    random_loads,
    step_problem,
)

CONTIGUITIES = ("free", "convex", "pipeline")


def penalized(problem: Problem, value: float, place: np.ndarray) -> float:
    """The value that the search minimises."""
    return value * (1 + problem.cut_penalty * cut_size(problem.graph, place))


@pytest.mark.parametrize("contiguity", CONTIGUITIES)
@pytest.mark.parametrize("seed", range(8))
def test_small_loads_are_optimal(seed: int, contiguity: str) -> None:
    """The value of six groups equals the least of all assignments, and is proven."""
    problem = random_loads(6, seed, cut_penalty=0.01 * (seed % 2))
    best = best_of_all(problem, "throughput", contiguity)

    found = solve(problem, objective="throughput", contiguity=contiguity)

    assert penalized(problem, found.value, found.assignment) == pytest.approx(best)
    assert found.feasible == (best < inf)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(6))
def test_small_steps_are_optimal(seed: int, objective: str) -> None:
    """The value of five calls equals the least of all; no bound is above it."""
    problem = step_problem(5, seed)
    best = best_of_all(problem, objective, "free")

    found = solve(problem, objective=objective)

    assert found.value == pytest.approx(best)
    for bound in (found.bound, lower_bound(problem, objective, hard=True)):
        assert bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_no_placement_of_calls_is_below_the_bound(seed: int) -> None:
    """The bound counts the functions that a chain is cut into, whatever is where."""
    problem, draw = calls_problem(seed), np.random.default_rng(seed)
    bound = lower_bound(problem, "latency")
    kinds = problem.graph.allowed.argmax(axis=1)
    assert bound > CriticalPath(problem).length([-1] * 60)
    for share in (0.0, 0.02, 0.1, 0.3, 1.0) * 4:
        place = draw.integers(3, size=61)[np.cumsum(draw.random(60) < share)]
        place = np.where(problem.graph.allowed[np.arange(60), place], place, kinds)

        assert problem.step_seconds(place) >= bound


@pytest.mark.parametrize("calls", [7, 15, 21, 40])
def test_bound_of_a_chain_is_one_device(calls: int) -> None:
    """No placement of a chain without training is better: the bound says so."""
    box, graph = Cluster.of("2*gpu"), chain_graph(calls)
    evaluator = Evaluator.of(graph, box, PlanOptions(training=False, regroup=True))
    problem = evaluator.problem_of(free_groups(graph, box))
    value = problem.step_seconds(np.zeros(calls, np.int64))

    assert lower_bound(problem, "latency") == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_same_seed_and_effort_give_the_same_answer(objective: str) -> None:
    """A search that ends by its steps is repeated exactly."""
    problem = step_problem(24, 1)

    first, second = (
        solve(problem, objective=objective, effort=40_000, time_limit=600, seed=3)
        for _ in range(2)
    )

    assert not first.ended_by_clock
    assert first.assignment.tolist() == second.assignment.tolist()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_longer_search_is_never_worse(objective: str) -> None:
    """A search of more steps goes on where one of fewer steps ends."""
    problem = step_problem(45, 4, gpus=3)

    values = [
        solve(problem, objective=objective, effort=effort, time_limit=600).value
        for effort in (3_000, 10_000, 30_000)
    ]

    assert values == sorted(values, reverse=True)


def test_clock_ends_a_search_and_says_so() -> None:
    """Steps that last for hours are cut off by the time limit."""
    found = solve(
        step_problem(24, 1), objective="latency", effort=10**12, time_limit=0.2
    )

    assert found.ended_by_clock
    assert found.feasible


@pytest.mark.parametrize("calls", [24, 90])
def test_without_time_the_gpus_are_still_used(calls: int) -> None:
    """No GPU has room for all, four have: the first start is packed onto them."""
    cluster = Cluster.of("4*gpu", "cpu", memory="4 GiB", link="12 GB/s")
    step = step_graph(random_graph(calls, 1), cluster, units="calls")
    anywhere = Group((), tuple(device.name for device in cluster))
    free = problem_of(step, cluster, [anywhere] * calls, group_of_unit=range(calls))
    room = 0.4 * free.held_bytes(np.zeros(calls, np.int64))[0]
    problem = replace(
        free,
        graph=free.graph._replace(capacity_bytes=np.array([room] * 4 + [1e12])),
    )

    found = solve(problem, objective="latency", time_limit=1e-4)

    on_cpu = value_of(problem, "latency", np.full(calls, 4))
    assert found.value < 0.2 * on_cpu


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_cannot_fit_is_infeasible(objective: str) -> None:
    """Too little memory everywhere: an assignment, an infinite value, no exception."""
    problem = step_problem(20, 1)
    tiny = problem.graph._replace(capacity_bytes=np.full(3, 1e6))
    broken = replace(problem, graph=tiny)

    found = solve(broken, objective=objective, effort=20_000)

    assert not found.feasible
    assert found.value == inf
    assert len(found.assignment) == 20


def test_group_without_device_is_infeasible() -> None:
    """A group that may be nowhere makes the problem infeasible."""
    problem = random_loads(5, 0)
    allowed = problem.graph.allowed.copy()
    allowed[2] = False
    broken = replace(problem, graph=problem.graph._replace(allowed=allowed))

    assert not solve(broken, objective="throughput").feasible


def test_empty_problem_is_solved() -> None:
    """Nothing to place costs nothing."""
    problem = random_loads(5, 0)
    none = {"size_bytes": np.zeros(0), "seconds": np.zeros((0, 2))}

    found = solve(
        replace(problem, graph=problem.graph._replace(**none)), objective="memory"
    )

    assert found.assignment.tolist() == []


@pytest.mark.parametrize("calls", [12, 60])
def test_search_for_what_fits_ends_with_it(calls: int) -> None:
    """Any assignment will do: a search without other end comes back with one."""
    problem = step_problem(calls, 1, gpus=3)

    found = solve(
        problem,
        objective="memory",
        time_limit=1e9,
        effort=10**15,
        prove=False,
        until_found=True,
    )

    assert found.feasible
    assert value_of(problem, "memory", found.assignment) == found.value


@pytest.mark.parametrize("seed", range(4))
def test_ten_branches_on_three_small_gpus_fit(seed: int) -> None:
    """No device has much more room than a third: found at once, whatever the seed."""
    cluster = Cluster.of("3*gpu", memory="1 GiB", link="5 GB/s")
    step = step_graph(random_graph(10, 50 + seed), cluster, units="calls")
    anywhere = Group((), tuple(device.name for device in cluster))
    free = problem_of(step, cluster, [anywhere] * 10, group_of_unit=range(10))
    draw = np.random.default_rng(0)
    least = min(free.held_bytes(draw.integers(3, size=10)).max() for _ in range(300))
    graph = free.graph._replace(capacity_bytes=np.full(3, 1.03 * least))

    found = solve(
        replace(free, graph=graph),
        objective="memory",
        time_limit=0.5,
        seed=seed,
        prove=False,
        until_found=True,
    )

    assert found.feasible
