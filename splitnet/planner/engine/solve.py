"""Solve a placement problem: by branch and bound if it is small, else by annealing."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from math import inf
from time import monotonic

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.planner.bounds import lower_bound
from splitnet.planner.constraints import Group
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.uncompiled import BranchAndBound, least_full, packed
from splitnet.planner.load_graph import Ints, cut_size
from splitnet.planner.problem import Problem, problem_of, single_devices, value_of
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.step_graph import step_graph

_LOGGER = logging.getLogger("splitnet")
_ENTRIES = {"latency": "anneal_step", "throughput": "anneal_loads"}  # compiled last
# Groups up to which a program gives the bound, and its share of the time.
_PROGRAM_GROUPS, _PROGRAM_SHARE = 50, 0.2
# Groups up to which branch and bound mostly ends, and up to which it is tried.
_PROVEN_GROUPS, _TREE_GROUPS = 12, 40
_FIT_SECONDS = 1.0  # how much longer than the limit is searched if nothing fits


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """The best assignment found: a device number per group.

    `value`, without cut penalty, is infinite if a constraint is broken. If the search
    was `ended_by_clock`, before its steps, it may go differently the next time.
    """

    assignment: Ints
    value: float
    bound: float
    algorithm: str
    ended_by_clock: bool
    feasible: bool


def compiled_step(problem: Problem) -> Callable[[Ints], tuple[float, int]] | None:
    """Seconds and bytes copied in a step by assignment; None if nothing is compiled."""
    import splitnet.planner.engine.compiler as compiler

    if compiler.INTERPRETED or not compiler.is_compiled(_ENTRIES["latency"]):
        return None
    from splitnet.planner.engine.makespan import makespan
    from splitnet.planner.engine.tasks import tasks_of

    tasks = tasks_of(problem)

    def costs(place: Ints) -> tuple[float, int]:
        seconds = float(makespan(tasks, place, inf))
        return seconds, int(tasks.copies.bytes[: tasks.counted.sent].sum())

    return costs


def solve(
    problem: Problem,
    *,
    objective: str,
    time_limit: float = 5.0,
    effort: int | None = None,
    seed: int = 0,
    starts: Iterable[Ints] = (),
    on_progress: Callable[[float, float], None] | None = None,
    prove: bool = True,
    until_found: bool = False,
    enough: float = 0.0,
) -> Solution:
    """The best assignment found: the least value times 1 + cut penalty x cut size.

    The same problem, seed and effort give the same answer unless the clock ends the
    search. The time limit is without loading or compiling it; if the effort, in steps
    of about a microsecond, is None, the limit gives it. `on_progress` gets the fraction
    done and the best value so far. If there is nothing to `prove`, the bound is 0.

    If `until_found`, any assignment that keeps the constraints will do. So will all on
    one device, without transfers, if its value without the calls of functions is no
    more than the fraction `enough` above the lower bound.
    """
    groups = problem.group_count
    seconds = time_limit * (1.0 - _PROGRAM_SHARE * (groups <= _PROGRAM_GROUPS))
    budget = Budget(seconds, effort, on_progress=on_progress, until_found=until_found)
    given = [np.asarray(start, np.int64) for start in starts]
    place, algorithm, proven = np.zeros(groups, np.int64), "none needed", False
    judge, bound = partial(value_of, problem, objective), -inf

    def solution() -> Solution:
        value = judge(place)
        return Solution(
            *(place, value, min(max(bound, 0.0), value), algorithm),
            *(budget.ended_by_clock, value < inf),
        )

    if groups and problem.graph.allowed.any(axis=1).all():
        if groups > _PROVEN_GROUPS and enough:
            whole = single_devices(problem)
            alone = [p for p in whole if not cut_size(problem.graph, p)]
            place = min(alone, key=judge, default=place)
            value = judge(place) if alone else inf
            if objective == "latency" and value < inf:
                devices = place[problem.group_of_unit].tolist()
                value = run_step(problem.step, devices).seconds
                if value > problem.graph.seconds.min(axis=1).sum() * (1 + enough):
                    value = inf  # a slow device, which no bound is near
            if value < inf:
                bound = lower_bound(problem, objective)
            if value <= bound * (1 + enough):
                algorithm = "comparison with the bound"
                return solution()
        known = any(judge(start) < inf for start in given)
        if not known and (start := packed(problem, budget)) is not None:
            given.append(start)
            if until_found and judge(start) < inf:
                place, algorithm = start, "packing"
                return solution()
        if groups <= _TREE_GROUPS:
            tree = BranchAndBound(problem, objective, budget)
            tree.search(given)
            place, algorithm, proven = tree.place, "branch and bound", tree.complete
            if not proven and not problem.cut_penalty and tree.value < inf:
                proven = tree.value <= lower_bound(problem, objective) * (1 + 2e-6)
            known = tree.value < inf
            given = [*given, place] if known else given
            if proven and not known and not until_found:  # the least broken one is told
                place = least_full(problem, Budget(_FIT_SECONDS, budget.left))
        if not proven and (budget.left or not known):
            algorithm = "multilevel simulated annealing"
            place = _searched(problem, objective, budget, seed, given)
    value = judge(place)
    if value < inf and proven and not problem.cut_penalty:
        bound = value
    elif value < inf and groups and prove:
        bound = max(bound, 0.0) or lower_bound(problem, objective)
        if bound < 0.999 * value and groups <= _PROGRAM_GROUPS and not proven:
            limit = _PROGRAM_SHARE * time_limit
            hard = lower_bound(problem, objective, hard=True, time_limit=limit)
            bound = max(bound, hard)
    return solution()


def _searched(
    problem: Problem, objective: str, budget: Budget, seed: int, starts: list[Ints]
) -> Ints:
    began = monotonic()
    if objective == "latency":
        warm_up(objective)
    places = *starts, *single_devices(problem)
    fits = (value_of(problem, objective, place) < inf for place in places)
    if objective != "latency" or problem.contiguity != "free" or not any(fits):
        warm_up("throughput")  # loads, or bytes until something fits, are minimised
    budget.end += monotonic() - began
    from splitnet.planner.engine.search import search

    found = search(problem, objective, budget, seed, starts)
    if found.value == inf and not budget.until_found:  # longer than the time limit
        found = search(problem, objective, Budget(_FIT_SECONDS), seed, [found.place])
    return found.place


@cache
def warm_up(*objectives: str) -> None:
    """Load what searches for objectives run; say so if it must be compiled first."""
    import splitnet.planner.engine.compiler as compiler

    wanted = objectives or tuple(_ENTRIES)
    if compiler.INTERPRETED:
        return
    if not all(compiler.is_compiled(_ENTRIES[one]) for one in wanted):
        _LOGGER.warning("compiling the planner, once (about 10 s)")
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
    groups = [Group((name,), cluster.names) for name in names]
    step = step_graph(graph, cluster, units="calls")
    sample = problem_of(step, cluster, groups, range(len(names)))
    for objective in wanted:
        search(sample, objective, Budget(inf, 100_000), 0, [])
