"""Plan: resolve constraints, search, simulate, and say why each part is where it is.

graph, cluster, options
-> constraints          devices that each group of parts may use
-> search               a device for every group
-> evaluate             the simulator's time, memory and transfers
-> Plan                 with reasons, fallbacks, bound and verdict
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.errors import InfeasibleError
from splitnet.core.graph import Graph
from splitnet.core.plan import Placement, Plan, PlanOptions
from splitnet.planner.analysis import with_verdict
from splitnet.planner.bounds import lower_bound
from splitnet.planner.constraints import (
    Constraint,
    Group,
    Pins,
    fallbacks_of,
    resolve,
)
from splitnet.planner.engine.budget import STEPS_PER_SECOND
from splitnet.planner.engine.solve import Solution, solve, value_of
from splitnet.planner.evaluate import (
    Evaluator,
    reasons_of,
    weights,
)
from splitnet.planner.infeasibility import infeasible_error
from splitnet.planner.partitioning import (
    bind_shared_weights,
    clusters,
    with_requests,
)
from splitnet.planner.problem import (
    Floats,
    Ints,
    Problem,
    cut_size,
    equivalent_devices,
)
from splitnet.simulator.step_graph import StepGraph

__all__ = [
    "Found",
    "NothingFitsError",
    "default_parts",
    "find_plan",
    "in_clusters",
    "plan_graph",
    "plan_of",
    "search",
]

_FIRST_SHARE = 0.5
"""Of the time for first requests, if nothing fits; then whole lists are searched."""
_CLUSTER_SHARE, _CLUSTER_STEPS = 0.2, 100_000
"""Of the time for clusters of a model's calls, and steps that are enough for them."""
_FINE_CLUSTERS = (128, 40)
"""Clusters that are placed for latency, in turn: finer ones run as one function."""
_FIRST_STEPS = 100_000
"""Of the first two placements that are judged by functions; the next two take twice."""
_FREE_SHARE = 0.7
"""Of a search for the best assignment; the rest is for fewer transfers."""


def plan_graph(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions | None = None,
    **changes: Any,
) -> Plan:
    """Place every part of a graph on a device of a cluster.

    Constraints are kept: pins, kinds, near and apart, memory. A device that is not
    available is replaced, and recorded in `plan.fallbacks`. The rest is searched. With
    no cut penalty the plan is never worse than everything on the best single device
    that is allowed and fits.

    Args:
        graph: What runs; `splitnet.read` makes it.
        cluster: The machine.
        options: See `splitnet.plan`. With `parts`, the graph has a part per call, and
            the plan has about so many parts; otherwise the graph's parts are placed.
        **changes: Single options by name, which beat `options`.

    Raises:
        DeclarationError: options out of range, or pins that cannot be kept.
        DeviceError: a device is missing and may not be replaced, or constraints
            contradict each other.
        InfeasibleError: no placement fits.
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


def default_parts(cluster: Cluster) -> int:
    """Into how many parts the calls of a model are merged that declares none."""
    return min(max(6 * len(cluster.of_kind("gpu")), 12), 48)


def in_clusters(graph: Graph, cluster: Cluster, options: PlanOptions) -> Graph:
    """The calls of an undeclared model in few parts, which keep the pins."""
    most = options.parts or default_parts(cluster)
    base = with_requests(graph, options.pins)
    return clusters(base, most, weights(cluster, options))


@dataclass(frozen=True)
class Found:
    """A placement of the parts of a graph, and the solution that it comes from."""

    evaluator: Evaluator
    constraints: Mapping[str, Constraint]
    groups: Sequence[Group]
    device_of: Mapping[str, str]
    solution: Solution


class NothingFitsError(Exception):
    """No placement was found to fit; `found` is the least broken one."""

    def __init__(self, found: Found, pins: Pins | None) -> None:
        super().__init__(found, pins)
        self.found, self.pins = found, pins

    def explained(self, *remedies: str) -> InfeasibleError:
        """What lacks, and what would do beside these; finding that takes seconds."""
        one = self.found
        return infeasible_error(
            *(one.evaluator, one.groups, one.constraints, one.device_of, self.pins),
            remedies,
        )


def search(graph: Graph, cluster: Cluster, options: PlanOptions) -> Found:
    """Search a placement of a graph, as `plan_graph` does.

    Raises:
        NothingFitsError: nothing fits.
    """
    seconds = options.time_limit
    if options.parts is None:
        return _search_parts(graph, cluster, options, seconds)
    if options.objective != "latency" and options.contiguity is None:
        convex = replace(options, contiguity="convex")
        with suppress(NothingFitsError):  # as where pins ask for a return
            return _search_calls(graph, cluster, convex, seconds)
    return _search_calls(graph, cluster, options, seconds)


def plan_of(found: Found, options: PlanOptions) -> Plan:
    """The plan of a placement, with reasons, fallbacks and options."""
    evaluator, device_of = found.evaluator, found.device_of
    reasons = reasons_of(evaluator, found.constraints, found.groups, device_of)
    plan = evaluator.plan(
        tuple(
            Placement(
                part.name,
                device_of[part.name],
                found.constraints[part.name].requested,
                reasons[part.name],
            )
            for part in evaluator.graph.parts
        )
    )
    return replace(
        plan,
        fallbacks=fallbacks_of(found.constraints, device_of),
        strategy=found.solution.algorithm,
        bound=min(found.solution.bound, plan.value),
        options=_kept_options(options, found.solution),
    )


def _search_parts(
    graph: Graph, cluster: Cluster, options: PlanOptions, seconds: float
) -> Found:
    """Search first requests; where they are full, whole preference lists.

    Raises:
        NothingFitsError: nothing fits.
    """
    evaluator = Evaluator.of(graph, cluster, options)
    constraints, groups = _resolved(evaluator, options)
    whole = _resolved(evaluator, options, whole_lists=True)
    if groups != whole[1]:
        solution = _solved(evaluator, groups, options, _FIRST_SHARE * seconds)
        if solution.feasible:
            return _found(evaluator, constraints, groups, solution)
        constraints, groups = whole
        seconds *= 1 - _FIRST_SHARE
    solution = _solved(evaluator, groups, options, seconds)
    found = _found(evaluator, constraints, groups, solution)
    if not solution.feasible:
        raise NothingFitsError(found, options.pins)
    return found


def _resolved(
    evaluator: Evaluator, options: PlanOptions, *, whole_lists: bool = False
) -> tuple[dict[str, Constraint], list[Group]]:
    return resolve(
        evaluator.graph,
        evaluator.cluster,
        pins=options.pins,
        missing=options.missing,
        load_of=evaluator.load,
        whole_lists=whole_lists,
    )


def _found(
    evaluator: Evaluator,
    constraints: Mapping[str, Constraint],
    groups: Sequence[Group],
    solution: Solution,
) -> Found:
    names = [device.name for device in evaluator.cluster]
    device_of = {
        part: names[device]
        for group, device in zip(groups, solution.assignment, strict=True)
        for part in group.parts
    }
    return Found(evaluator, constraints, groups, device_of, solution)


def _search_calls(
    graph: Graph, cluster: Cluster, options: PlanOptions, seconds: float
) -> Found:
    """Search a model's calls; the functions that then run are the parts.

    First the calls are clustered along the model's seams, and the clusters placed.
    Then finer clusters for latency, or single calls for other objectives, where sums
    count. What runs on one device between two hops runs as one function, later and with
    more memory than its calls would: placements are judged by their functions, and
    where these do not fit, the search goes on with less room.

    Raises:
        NothingFitsError: nothing fits.
    """
    base = with_requests(graph, options.pins)
    options = replace(options, pins=None)
    weight = weights(cluster, options)
    most = options.parts or default_parts(cluster)
    fine_most = max(most, *_FINE_CLUSTERS)
    per_step = 1 / STEPS_PER_SECOND
    if options.effort:
        per_step = options.time_limit / options.effort
    first = min(_CLUSTER_SHARE * seconds, _CLUSTER_STEPS * per_step)
    try:
        best = _search_parts(clusters(base, most, weight), cluster, options, first)
    except NothingFitsError:
        if len(base.calls) <= most:
            raise
        with suppress(NothingFitsError):
            return _search_parts(
                clusters(base, fine_most, weight), cluster, options, seconds
            )
        raise
    latency = options.objective == "latency"
    parts = best.evaluator.graph.parts
    if latency and len(clusters(base, fine_most, weight).parts) <= len(parts):
        return best
    calls = Evaluator.of(bind_shared_weights(base), cluster, options)
    whole_lists = not _keeps_first_requests(best)
    _, groups = _resolved(calls, options, whole_lists=whole_lists)
    problem = calls.problem_of(groups, calls.call_step)
    bound = lower_bound(problem, options.objective)
    best = replace(best, solution=replace(best.solution, bound=bound))
    room = np.array([device.memory_bytes for device in cluster], np.float64)
    kind = np.array(equivalent_devices(problem))  # the search may exchange devices
    known = calls.as_functions(_device_of_calls(best))[2]
    limit = known.value / (1 + options.cut_penalty) if known.fits else inf
    evaluators = {
        count: Evaluator.of(clusters(base, count, weight), cluster, options)
        for count in _FINE_CLUSTERS
        if latency
    }
    turn, left = 0, seconds - first
    while left > 0:
        count, share = 0, left
        if latency:  # a longer search begins with all attempts of a shorter one
            count = _FINE_CLUSTERS[turn % len(_FINE_CLUSTERS)]
            share = min(left, _FIRST_STEPS * per_step * 2 ** (turn // 2))
        turn, left = turn + 1, left - share
        evaluator = evaluators.get(count, calls)
        constraints, groups = _resolved(evaluator, options, whole_lists=whole_lists)
        fine = _solved(
            *(evaluator, groups, replace(options, seed=options.seed + turn), share),
            step=evaluator.step if count else evaluator.call_step,
            starts=[_start_from(best, evaluator, groups)],
            room=room,
            prove=False,
        )
        if not fine.feasible:
            continue
        placed = _found(evaluator, constraints, groups, fine)
        judge, device_of, found = calls.as_functions(_device_of_calls(placed))
        if found.fits and found.value < limit:
            constraints, groups = _resolved(judge, options, whole_lists=whole_lists)
            solution = replace(fine, value=found.value, bound=bound)
            best = Found(judge, constraints, groups, device_of, solution)
            limit = found.value
        held = [found.outcome.memory[device.name].total for device in cluster]
        full = np.array([d.memory_bytes for d in cluster]) / np.maximum(held, 1)
        full = np.array([full[kind == one].min() for one in kind])
        room = room * np.where(full < 1, 0.98 * full, 1.0)
    return best


def _device_of_calls(found: Found) -> dict[str, str]:
    calls = found.evaluator.graph.calls
    return {call.name: found.device_of[call.part] for call in calls}


def _keeps_first_requests(found: Found) -> bool:
    """Whether everything was placed without going down preference lists."""
    return all(
        not one.preferred or found.device_of[one.part] in one.preferred
        for one in found.constraints.values()
    )


def _start_from(coarse: Found, evaluator: Evaluator, groups: Sequence[Group]) -> Ints:
    """The placement of the clusters as one of the groups of calls."""
    number = {device.name: i for i, device in enumerate(evaluator.cluster)}
    where = _device_of_calls(coarse)
    calls = evaluator.graph.calls_of
    start = []
    for group in groups:
        near = [where[call.name] for part in group.parts for call in calls[part]]
        wanted = near[0] if near and near[0] in group.allowed else group.allowed[0]
        start.append(number[wanted])
    return np.array(start, np.int64)


def _solved(
    evaluator: Evaluator,
    groups: Sequence[Group],
    options: PlanOptions,
    seconds: float,
    *,
    step: StepGraph | None = None,
    starts: Sequence[Ints] = (),
    room: Floats | None = None,
    prove: bool = True,
) -> Solution:
    """The best assignment, with fewer transfers where they save next to nothing.

    The best assignment is searched first. Then each transfer has a price, so that all
    transfers of that assignment together cost the cut penalty: what is best with these
    prices is worse by no more than the penalty.
    """
    problem = evaluator.problem_of(groups, step)
    if room is not None:
        problem = replace(problem, graph=problem.graph._replace(capacity_bytes=room))
    effort = options.effort
    if effort is not None and options.time_limit > 0:
        effort = int(effort * seconds / options.time_limit)

    def solved(
        penalty: float, share: float, known: Sequence[Ints], *, prove: bool
    ) -> Solution:
        return solve(
            replace(problem, cut_penalty=penalty),
            objective=options.objective,
            contiguity=options.contiguity,
            time_limit=share * seconds,
            effort=None if effort is None else max(1, int(share * effort)),
            seed=options.seed,
            starts=known,
            on_progress=options.on_progress,
            prove=prove,
        )

    penalty = options.cut_penalty
    best = solved(0.0, _FREE_SHARE if penalty else 1.0, starts, prove=prove)
    cuts = cut_size(problem.graph, best.assignment)
    if not best.feasible or not penalty or not cuts:
        return best
    known = [*starts, best.assignment]
    fewer = solved(penalty / cuts, 1 - _FREE_SHARE, known, prove=False)
    found = [best, fewer]
    for place in _single_devices(problem):
        value = value_of(problem, options.objective, place, options.contiguity)
        found.append(replace(best, assignment=place, value=value))
    limit = best.value * (1 + penalty)
    good = [one for one in found if one.feasible and one.value <= limit]
    calm = min(good, key=lambda o: (cut_size(problem.graph, o.assignment), o.value))
    return replace(calm, bound=best.bound)


def _single_devices(problem: Problem) -> Iterator[Ints]:
    """Everything on one device, as far as it may be there, for each that differs."""
    allowed = problem.graph.allowed
    sorts = equivalent_devices(problem)
    for device in dict(zip(reversed(sorts), reversed(range(len(sorts))))).values():
        yield np.where(allowed[:, device], device, allowed.argmax(axis=1))


def _kept_options(options: PlanOptions, solution: Solution) -> dict[str, object]:
    """What a plan remembers of how it was made; a function cannot be kept."""
    kept: dict[str, object] = {"missing": options.missing, "seed": options.seed}
    if isinstance(options.pins, Mapping):
        kept["pins"] = {
            str(pattern): on if isinstance(on, str) else list(on)
            for pattern, on in options.pins.items()
        }
    if options.contiguity:
        kept["contiguity"] = options.contiguity
    if options.strategy:
        kept["strategy"] = options.strategy
    if solution.ended_by_clock:
        kept["ended_by_clock"] = True
    return kept
