"""Solve a placement problem: by branch and bound if it is small, else by annealing.

latency      makespan of one step
throughput   load of the busiest device (maximum load)
memory       bytes of the fullest device at its peak
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.planner.bounds import lower_bound
from splitnet.planner.constraints import Group
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.load_graph import Ints, cut_size, is_allowed, loads
from splitnet.planner.engine.uncompiled import BranchAndBound, packed
from splitnet.planner.problem import (
    Problem,
    is_contiguous,
    problem_of,
    single_devices,
)
from splitnet.simulator.step_graph import step_graph

OBJECTIVES = ("latency", "throughput", "memory")

_LOGGER = logging.getLogger("splitnet")

_PROGRAM_GROUPS, _PROGRAM_SHARE = 50, 0.2
"""Groups up to which a program gives the bound, and its share of the time."""

_PROVEN_GROUPS, _TREE_GROUPS = 12, 40
"""Groups up to which branch and bound mostly ends, and up to which it is tried."""

_FIT_SECONDS = 1.0
"""How much longer than the limit is searched if nothing fits."""


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
    if not problem.group_count:
        return 0.0
    if not is_allowed(problem.graph, assignment):
        return inf
    if not is_contiguous(problem, assignment, contiguity or "free"):
        return inf
    held = problem.held_bytes(assignment)
    if np.any(held > problem.graph.capacity_bytes * (1 + 1e-12)):
        return inf
    if objective == "memory":
        return float(held.max(initial=0.0))
    if objective == "throughput":
        return max(loads(problem.graph, assignment), default=0.0)
    return problem.step_seconds(assignment)


def step_costs(problem: Problem) -> tuple[Callable[[Ints], tuple[float, int]], bool]:
    """Makespan and copied bytes as a function of the assignment; if it is compiled.

    It is if the compiled search is at hand: compiling it takes longer than 500 runs of
    the interpreted event loop.
    """
    import splitnet.planner.engine.compiler as compiler

    if compiler.INTERPRETED or not compiler.is_compiled("latency"):
        return problem.step_costs, False
    from splitnet.planner.engine.makespan import makespan
    from splitnet.planner.engine.tasks import SENT, tasks_of

    tasks = tasks_of(problem)

    def costs(place: Ints) -> tuple[float, int]:
        seconds = float(makespan(tasks, place, inf))
        return seconds, int(tasks.copies.bytes[: tasks.counted[SENT]].sum())

    return costs, True


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
    prove: bool = True,
    until_found: bool = False,
    enough: float = 0.0,
) -> Solution:
    """The best assignment found for one of `OBJECTIVES`.

    The same problem, seed and effort give the same answer unless the clock ends the
    search.

    Args:
        problem: What to place.
        objective: What to minimise, times 1 + cut penalty x cut size.
        contiguity: "free" (or None), "convex" or "pipeline".
        time_limit: Seconds after which the best so far is returned. Loading or
            compiling the search is not counted.
        effort: Steps of about a microsecond; those of the time limit by default.
        seed: Of the random numbers.
        starts: Assignments to begin with.
        on_progress: Called with the fraction done and the best value so far.
        prove: Whether to look for a lower bound, which is 0 otherwise.
        until_found: Any assignment that keeps the constraints will do; none is looked
            for longer than the time limit.
        enough: All on one device, without transfers, will do if its value is no more
            than this fraction above the lower bound.
    """
    groups, shape = problem.group_count, contiguity or "free"
    seconds = time_limit * (1.0 - _PROGRAM_SHARE * (groups <= _PROGRAM_GROUPS))
    budget = Budget(seconds, effort, on_progress=on_progress, until_found=until_found)
    given = [np.asarray(start, np.int64) for start in starts]
    place, algorithm, proven = np.zeros(groups, np.int64), "none needed", False

    def judge(place: Ints) -> float:
        return value_of(problem, objective, place, shape)

    if groups and problem.graph.allowed.any(axis=1).all():
        if groups > _PROVEN_GROUPS and enough:
            one = _one_device(problem, objective, judge, enough)
            if one is not None:
                return one
        known = any(judge(start) < inf for start in given)
        if not known and (start := packed(problem, budget)) is not None:
            given.append(start)
            if until_found and (value := judge(start)) < inf:
                return Solution(start, value, 0.0, "packing", False, True)
        if groups <= _TREE_GROUPS:
            tree = BranchAndBound(problem, objective, judge, budget)
            tree.search(given)
            place, algorithm, proven = tree.place, "branch and bound", tree.complete
            if not proven and not problem.cut_penalty and tree.value < inf:
                proven = tree.value <= lower_bound(problem, objective) * (1 + 2e-6)
            known = tree.value < inf
            given = [*given, place] if known else given
        if not proven and (budget.left or not known):
            place, algorithm = _searched(problem, objective, shape, budget, seed, given)
    value = value_of(problem, objective, place, shape)
    bound = 0.0
    if value < inf and proven and not problem.cut_penalty:
        bound = value
    elif value < inf and groups and prove:
        bound = lower_bound(problem, objective)
        if bound < 0.999 * value and groups <= _PROGRAM_GROUPS and not proven:
            limit = _PROGRAM_SHARE * time_limit
            hard = lower_bound(problem, objective, hard=True, time_limit=limit)
            bound = max(bound, hard)
    clock = budget.ended_by_clock
    return Solution(place, value, min(bound, value), algorithm, clock, value < inf)


def _one_device(
    problem: Problem, objective: str, judge: Callable[[Ints], float], enough: float
) -> Solution | None:
    """The best device for everything, if that has no transfers and is good enough."""
    whole = [p for p in single_devices(problem) if not cut_size(problem.graph, p)]
    values = [judge(place) for place in whole]
    value = min(values, default=inf)
    if value == inf or value > lower_bound(problem, objective) * (1 + enough):
        return None
    bound = min(value, lower_bound(problem, objective))
    place = whole[values.index(value)]
    return Solution(place, value, bound, "comparison with the bound", False, True)


def _searched(
    problem: Problem,
    objective: str,
    contiguity: str,
    budget: Budget,
    seed: int,
    starts: list[Ints],
) -> tuple[Ints, str]:
    """The best assignment that is found with numba, and the name of the algorithm."""
    began = monotonic()
    known = any(
        value_of(problem, objective, place) < inf
        for place in (*starts, *single_devices(problem))
    )
    if objective == "latency":
        warm_up(objective)
    if not (objective == "latency" and contiguity == "free" and known):
        warm_up("throughput")  # loads, or bytes until something fits, are minimised
    budget.pause(monotonic() - began)
    from splitnet.planner.engine.search import search

    rules: dict[str, Any] = {"contiguity": contiguity, "seed": seed}
    found = search(problem, objective, budget, starts=starts, **rules)
    if found.value == inf and not budget.until_found:  # longer than the time limit
        more = Budget(_FIT_SECONDS)
        found = search(problem, objective, more, starts=[found.place], **rules)
    return found.place, "multilevel simulated annealing"


@cache
def warm_up(*objectives: str) -> None:
    """Load what searches for objectives run; say so if it must be compiled first."""
    import splitnet.planner.engine.compiler as compiler

    wanted = objectives or ("latency", "throughput")
    if compiler.INTERPRETED:
        return
    if not all(map(compiler.is_compiled, wanted)):
        _LOGGER.warning("compiling the planner, once (this takes about 10 s)")
    from splitnet.planner.engine.search import search

    names = [f"c{i}" for i in range(100)]
    graph = Graph(
        "sample",
        1,
        tuple(Call(n, n, "Dense", output_bytes=9, forward_flops=1e9) for n in names),
        tuple(Tensor(a, b, bytes=2**20) for a, b in zip(names, names[1:])),
        parts=tuple(Part(name) for name in names),
    )
    cluster = Cluster.of("2*gpu", "cpu")
    everywhere = tuple(device.name for device in cluster)
    sample = problem_of(
        step_graph(graph, cluster, units="calls"),
        cluster,
        [Group((name,), everywhere) for name in names],
        group_of_unit=range(len(names)),
        cut_penalty=1e-3,
    )
    for objective in wanted:
        search(sample, objective, Budget(60.0, 20_000))
        compiler.mark_compiled(objective)
