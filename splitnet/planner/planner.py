"""Plan: resolve constraints, search, simulate, and say why each part is where it is.

graph, cluster, options
-> constraints          devices that each group of parts may use
-> search               a device for every group
-> evaluate             the simulator's time, memory and transfers
-> Plan                 with reasons, fallbacks, bound and verdict
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.errors import InfeasibleError
from splitnet.core.graph import Graph
from splitnet.core.plan import Placement, Plan, PlanOptions
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import fallbacks_of, with_pins
from splitnet.planner.engine.budget import STEPS_PER_SECOND
from splitnet.planner.engine.load_graph import Ints, cut_size
from splitnet.planner.engine.solve import Solution, solve, value_of
from splitnet.planner.evaluate import Evaluator, Found, placed, reasons_of
from splitnet.planner.infeasibility import infeasible_error
from splitnet.planner.partitioning import bind_shared_weights
from splitnet.planner.problem import Problem, single_devices

_FREE_SHARE = 0.8
"""Of a search for the best assignment; the rest is for fewer transfers."""


def plan_graph(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions | None = None,
    **changes: Any,
) -> Plan:
    """Place every part of a graph on a device of a cluster, as `splitnet.plan` does.

    With no cut penalty the plan is never worse than everything on the best single
    device that is allowed and fits. With `regroup`, the graph has a part per call, and
    the functions that run are the parts of the plan. `changes` beat `options`.

    Raises:
        SplitnetError: as `splitnet.plan`.
    """
    return with_verdict(find_plan(graph, cluster, options, **changes))


def find_plan(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions | None = None,
    **changes: Any,
) -> Plan:
    """As `plan_graph`, without a verdict."""
    options = replace(options or PlanOptions(), **changes)
    try:
        return plan_of(search(graph, cluster, options), options)
    except NothingFitsError as fault:
        raise fault.explained() from None


class NothingFitsError(Exception):
    """No placement was found to fit; `found` is the least broken one."""

    def __init__(self, found: Found) -> None:
        super().__init__(found)
        self.found = found

    def explained(self, *remedies: str) -> InfeasibleError:
        """What lacks, and what would do beside these; finding that takes seconds."""
        return infeasible_error(self.found, remedies)


def plan_of(found: Found, options: PlanOptions) -> Plan:
    """The plan of a placement, with reasons, fallbacks and options."""
    device_of, reasons = found.device_of, reasons_of(found)
    graph = found.evaluator.graph
    rows = (
        Placement(p.name, device_of[p.name], ", ".join(p.on), reasons[p.name])
        for p in graph.parts
    )
    return found.evaluator.plan(
        rows,
        found.solution.bound,
        fallbacks=fallbacks_of(graph, found.evaluator.cluster, device_of),
        strategy=found.solution.algorithm,
        contiguity=options.contiguity,
        ended_by_clock=found.solution.ended_by_clock,
    )


def pinned(graph: Graph, options: PlanOptions) -> Graph:
    """What to place: parts that carry pins; regrouped calls stay with their weights."""
    graph = with_pins(graph, options.pins)
    return bind_shared_weights(graph) if options.regroup else graph


def search(graph: Graph, cluster: Cluster, options: PlanOptions) -> Found:
    """Search a placement as `plan_graph` does; if none fits, a `NothingFitsError`."""
    began = monotonic()
    whole = pinned(graph, options)
    if options.regroup and options.objective != "latency" and not options.contiguity:
        convex = replace(options, contiguity="convex")
        with suppress(NothingFitsError):  # as where pins ask for a return
            return _search(whole, cluster, convex, began)
    return _search(whole, cluster, options, began)


def _search(
    graph: Graph, cluster: Cluster, options: PlanOptions, began: float
) -> Found:
    """Search first requests; where they are full, whole preference lists."""
    evaluator = Evaluator.of(graph, cluster, options)

    missing = options.missing
    tries = [evaluator.resolve(missing, whole_lists=lists) for lists in (False, True)]
    if tries[0] == tries[1]:
        tries.pop()
    for lists in range(len(tries)):
        groups = tries[lists]
        problem = evaluator.problem_of(groups)
        # What follows the search takes about as long as what comes before it.
        around = 2 * (monotonic() - began)
        seconds = max(0.2 * options.time_limit, options.time_limit - around)
        share = 1 / len(tries)
        solution = _solved(problem, options, share, share * seconds)
        if solution.feasible:
            break
        began = monotonic()
    names = [device.name for device in cluster]
    wanted = (names[device] for device in solution.assignment)
    evaluator, device_of = evaluator.as_run(placed(groups, wanted))
    if options.regroup:
        groups = evaluator.resolve(missing, whole_lists=bool(lists))
    found = Found(evaluator, groups, device_of, solution)
    if not solution.feasible:
        raise NothingFitsError(found)
    return found


def _solved(
    problem: Problem, options: PlanOptions, effort: float, seconds: float
) -> Solution:
    """The best assignment, with fewer transfers where they save next to nothing.

    The best assignment is searched first. Then each transfer has a price, so that all
    transfers of that assignment together cost the cut penalty: what is best with these
    prices is worse by no more than the penalty. `effort` is a share of the steps.
    """
    steps = options.effort or STEPS_PER_SECOND * min(options.time_limit, 1e9)

    def solved(penalty: float, share: float, known: Sequence[Ints] = ()) -> Solution:
        return solve(
            replace(problem, cut_penalty=penalty),
            objective=options.objective,
            contiguity=options.contiguity,
            time_limit=share * seconds,
            effort=math.ceil(share * effort * steps),
            seed=options.seed,
            starts=known,
            on_progress=options.on_progress,
            prove=not penalty,
            enough=0.0 if penalty else options.cut_penalty,
        )

    penalty = options.cut_penalty
    best = solved(0.0, _FREE_SHARE if penalty else 1.0)
    cuts = cut_size(problem.graph, best.assignment)
    if not best.feasible or not penalty or not cuts:
        return best
    found = [best, solved(penalty / cuts, 1 - _FREE_SHARE, [best.assignment])]
    limit = best.value * (1 + penalty)
    graph = problem.graph
    for place in single_devices(problem):
        spent = graph.seconds[np.arange(len(place)), graph.kind[place]]
        busiest = float(np.bincount(place, spent).max(initial=0.0))
        if options.objective == "memory" or busiest <= limit:
            value = value_of(problem, options.objective, place, options.contiguity)
            found.append(replace(best, assignment=place, value=value))
    good = [one for one in found if one.feasible and one.value <= limit]
    calm = min(good, key=lambda o: (cut_size(graph, o.assignment), o.value))
    return replace(calm, bound=best.bound)
