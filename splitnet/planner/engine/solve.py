"""Solve a placement problem: exhaustively if it is small, else by compiled search.

latency      makespan of one step
throughput   load of the busiest device (maximum load)
memory       bytes of the fullest device at its peak
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.planner.bounds import lower_bound
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.exhaustive import exhaustive, is_small
from splitnet.planner.problem import (
    Floats,
    Ints,
    LoadGraph,
    Problem,
    is_contiguous,
    loads,
    problem_of,
    violations,
)
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.step_graph import step_graph

__all__ = ["OBJECTIVES", "Solution", "solve", "value_of", "warm_up"]

OBJECTIVES = ("latency", "throughput", "memory")

_LOGGER = logging.getLogger("splitnet")

_PROGRAM_GROUPS, _PROGRAM_SHARE = 50, 0.2
"""Groups up to which a program gives the bound, and its share of the time."""

_SMALL = 14
"""Groups up to which all assignments are tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best assignment found: a device number per group.

    `value` is that of the objective, without cut penalty, and infinite if a constraint
    is broken. `bound` is a lower bound of it. `ended_by_clock` says that the time ended
    the search before its steps did, so that it may go differently the next time.
    """

    assignment: Ints
    value: float
    bound: float
    algorithm: str
    ended_by_clock: bool
    feasible: bool


def value_of(
    problem: Problem, objective: str, assignment: Ints, contiguity: str | None = None
) -> float:
    """Value of an assignment without cut penalty; infinite if it is infeasible."""
    if violations(problem, assignment):
        return inf
    if not is_contiguous(problem, assignment, contiguity or "free"):
        return inf
    if objective == "memory":
        return float(problem.held_bytes(assignment).max(initial=0.0))
    if objective == "throughput":
        return max(loads(problem.graph, assignment), default=0.0)
    assert problem.step is not None, "a makespan is that of a step"
    return run_step(problem.step, problem.unit_devices(assignment)).seconds


def solve(
    problem: Problem,
    *,
    objective: str,
    contiguity: str | None = None,
    time_limit: float = 5.0,
    effort: int | None = None,
    seed: int = 0,
    starts: Iterable[Ints] = (),
    on_progress: Callable[[float, float], None] | None = None,
) -> Solution:
    """The best assignment found for one of `OBJECTIVES`.

    The same problem, seed and effort give the same answer unless the clock ends the
    search.

    Args:
        problem: What to place.
        objective: What to minimise, times 1 + cut penalty x cut size.
        contiguity: "free" (or None), "convex" or "pipeline".
        time_limit: Seconds after which the best so far is returned.
        effort: Steps of about a microsecond; those of the time limit by default.
        seed: Of the random numbers.
        starts: Assignments to begin with.
        on_progress: Called with the fraction done and the best value so far.
    """
    groups, shape = problem.group_count, contiguity or "free"
    seconds = time_limit * (1.0 - _PROGRAM_SHARE * (groups <= _PROGRAM_GROUPS))
    budget = Budget(seconds, effort, on_progress=on_progress)

    def value(place: Ints) -> float:
        return value_of(problem, objective, place, shape)

    def solution(place: Ints, algorithm: str, bound: float = 0.0) -> Solution:
        found = value(place)
        if not bound and found < inf:
            bound = lower_bound(problem, objective)
            if bound < 0.999 * found and groups <= _PROGRAM_GROUPS:
                seconds = _PROGRAM_SHARE * time_limit
                bound = max(
                    bound,
                    lower_bound(problem, objective, hard=True, time_limit=seconds),
                )
        return Solution(
            place,
            found,
            min(bound, found),
            algorithm,
            budget.ended_by_clock,
            found < inf,
        )

    if not groups or not problem.graph.allowed.any(axis=1).all():
        return solution(np.zeros(groups, np.int32), "none needed")
    leaf = _leaf_nodes(problem, objective)
    if groups <= _SMALL and is_small(problem, leaf):
        tried = exhaustive(
            problem,
            value,
            _bound_rows(problem, objective),
            leaf_nodes=leaf,
            late=lambda: not budget.left,
        )
        if tried.complete or not budget.left:
            bound = tried.least if tried.complete and tried.value < inf else 0.0
            return solution(tried.place, "exhaustive search", bound)
        if tried.value < inf:
            starts = [*starts, tried.place]
    given = [np.asarray(start, np.int32) for start in starts]
    place, algorithm = _compiled_search(problem, objective, shape, budget, seed, given)
    return solution(place, algorithm)


def _bound_rows(problem: Problem, objective: str) -> list[list[float]]:
    """Per group and device, what it adds at least to the value if it is there."""
    graph = problem.graph
    if objective == "memory":
        rows = np.tile(graph.size_bytes[:, None], problem.device_count)
    else:
        rows = graph.seconds[:, graph.kind]
    found: list[list[float]] = rows.tolist()
    return found


def _leaf_nodes(problem: Problem, objective: str) -> int:
    """How many nodes of the tree take as long as the value of an assignment."""
    units = len(problem.group_of_unit)
    return 5 + (6 * units if objective == "memory" else 4 * units)


def _compiled_search(
    problem: Problem,
    objective: str,
    contiguity: str,
    budget: Budget,
    seed: int,
    starts: list[Ints],
) -> tuple[Ints, str]:
    """Search with numba; the name of the algorithm is that of the main part."""
    began = monotonic()
    _prepare(objective)
    budget.pause(monotonic() - began)

    from splitnet.planner.engine.makespan_search import lower_peak, search_makespan

    if objective == "latency":
        found = search_makespan(
            problem, budget, seed=seed, starts=starts, contiguity=contiguity
        )
        return found.place, "simulated annealing"
    if objective == "memory":
        target = replace(problem, graph=_bytes_graph(problem), step=None)
        place = _search_loads(target, contiguity, budget.part(0.7), seed, starts)
        if value_of(problem, objective, place, contiguity) == inf:
            place = lower_peak(problem, place, budget.part(0.7), relative=True)
        place = lower_peak(problem, place, budget, contiguity=contiguity)
        return place, "simulated annealing and steepest descent"
    algorithm = "multilevel simulated annealing"
    if problem.step is None:
        return _search_loads(problem, contiguity, budget, seed, starts), algorithm
    # The peaks of devices are known only afterwards: take that much less and repeat.
    target = replace(problem, step=None)
    capacity = problem.graph.capacity_bytes
    for fraction in (0.15, 0.2, 0.3):
        place = _search_loads(target, contiguity, budget.part(fraction), seed, starts)
        excess = np.maximum(problem.held_bytes(place) - capacity, 0.0)
        if not excess.any():
            starts = [*starts, place]
            break
        less = np.maximum(target.graph.capacity_bytes - 1.05 * excess, 0.0)
        target = replace(target, graph=target.graph._replace(capacity_bytes=less))
    last = _search_loads(target, contiguity, budget, seed, starts)
    if value_of(problem, objective, last, contiguity) < inf:
        return last, algorithm
    if value_of(problem, objective, place, contiguity) < inf:
        return place, algorithm
    rest = budget.part(1.0) if budget.left else Budget(1.0, 200_000)
    return lower_peak(problem, last, rest, relative=True), algorithm


def _search_loads(
    problem: Problem, contiguity: str, budget: Budget, seed: int, starts: list[Ints]
) -> Ints:
    """The least largest load, with the cut penalty; memory is sums of groups' bytes."""
    from splitnet.planner.engine.load_search import search_load
    from splitnet.planner.engine.makespan_search import search_makespan

    rules: dict[str, Any] = {"seed": seed, "contiguity": contiguity}
    if not problem.cut_penalty:
        return search_load(problem, budget, starts=starts, **rules).place
    found = search_load(problem, budget.part(0.4), starts=starts, **rules)
    line = search_load(problem, budget.part(0.3), seed=seed, contiguity="pipeline")
    return search_makespan(
        problem,
        budget,
        starts=[*starts, found.place, line.place],
        data=problem.graph,
        **rules,
    ).place


def _bytes_graph(problem: Problem) -> LoadGraph:
    """The problem with bytes for seconds, so that the load is what devices hold."""
    graph = problem.graph
    kinds: Floats = np.tile(graph.size_bytes[:, None], graph.seconds.shape[1])
    return graph._replace(
        seconds=np.ascontiguousarray(kinds),
        net_seconds=np.zeros_like(graph.net_seconds),
    )


_PREPARED: set[str] = set()


def _prepare(objective: str) -> None:
    """Load the compiled search; say so if it has to be compiled."""
    if objective in _PREPARED:
        return
    import splitnet.planner.engine.compiler as compiler

    if not compiler.is_compiled(objective):
        _LOGGER.warning("compiling the planner, once (this takes about 20 s)")
    warm_up((objective,))


def warm_up(objectives: Iterable[str] = OBJECTIVES) -> None:
    """Compile the search for these objectives; keep the machine code if possible."""
    import splitnet.planner.engine.compiler as compiler

    problem = _sample()
    for objective in objectives:
        _PREPARED.add(objective)
        for contiguity in ("free", "pipeline"):
            for penalty in (0.0, problem.cut_penalty):
                sample = replace(problem, cut_penalty=penalty)
                budget = Budget(60.0, 20_000)
                _compiled_search(sample, objective, contiguity, budget, 0, [])
        compiler.mark_compiled(objective)


class _Everywhere(NamedTuple):
    """A group of the sample."""

    allowed: tuple[str, ...]
    apart: tuple[int, ...] = ()


def _sample() -> Problem:
    """A problem to compile for: sixteen calls on three devices."""
    names = [f"c{i}" for i in range(16)]
    graph = Graph(
        "sample",
        1,
        tuple(Call(n, n, "Dense", output_bytes=9, forward_flops=1e9) for n in names),
        tuple(Tensor(a, b, bytes=2**20) for a, b in zip(names, names[1:])),
        parts=tuple(Part(name) for name in names),
    )
    cluster = Cluster.of("2*gpu", "cpu")
    every = _Everywhere(tuple(device.name for device in cluster))
    return problem_of(
        step_graph(graph, cluster, units="calls"),
        cluster,
        [every] * len(names),
        group_of_unit=range(len(names)),
        cut_penalty=1e-3,
    )
