"""Plan: resolve constraints, search, simulate, and say why each part is where it is.

graph, cluster, options
-> constraints          devices that each group of parts may use
-> search               a device for every group
-> evaluate             the simulator's time, memory and transfers
-> Plan                 with reasons, fallbacks, bound and verdict
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from time import monotonic

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.costs.model import Roofline, optimizer_name
from splitnet.core.errors import DeclarationError, InfeasibleError
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.plan import Placement, Plan, PlanOptions
from splitnet.planner.analysis import with_verdict
from splitnet.planner.bounds import lower_bound
from splitnet.planner.constraints import (
    Constraint,
    Group,
    Pins,
    fallbacks_of,
    requests_of,
    resolve,
)
from splitnet.planner.engine import Solution, solve
from splitnet.planner.engine.solve import value_of
from splitnet.planner.evaluate import Evaluator, reasons_of
from splitnet.planner.infeasibility import Case, infeasible_error
from splitnet.planner.partitioning import (
    bind_shared_weights,
    clusters,
    partition,
    with_requests,
)
from splitnet.planner.problem import Ints, Problem, cut_size, problem_of
from splitnet.simulator.step_graph import StepGraph, step_graph

__all__ = [
    "default_parts",
    "find_plan",
    "fits_somewhere",
    "in_clusters",
    "plan_graph",
    "proven_bound",
]

_CUT_PENALTY = 0.02
"""Of the value: what a plan gives up, by default, for fewer device crossings."""
_FIT_SECONDS = 1.0
"""How long at least a placement that fits is looked for, whatever the time limit."""
_FEW = 200
"""Assignments that are tried one by one to prove the bound of a plan from a file."""
_REMEDY_SECONDS = 3.0
"""How long remedies for a problem without a solution may be tried."""
_TRY_SECONDS, _HARD_SECONDS = 0.3, 1.0
"""How long each of them may take, and how long where it is worth more."""
_FIRST_SHARE = 0.5
"""Of the time for first requests, if nothing fits; then whole lists are searched."""
_CLUSTER_SHARE = 0.4
"""Of the time for clusters of a model's calls; the rest is for the calls."""
_FREE_SHARE = 0.7
"""Of a search for the best assignment; the rest is for fewer transfers."""
_PLAYS_PER_SECOND, _MOST_PLAYS = 3_000, 15_000
"""Units that may be simulated to tell reasons apart, per second of the time limit."""


def plan_graph(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions | None = None,
    **changes: object,
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
        DeclarationError: unknown options, or pins that cannot be kept.
        DeviceError: a device is missing and may not be replaced, or constraints
            contradict each other.
        InfeasibleError: no placement fits.
    """
    return with_verdict(find_plan(graph, cluster, options, **changes))


def find_plan(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions | None = None,
    **changes: object,
) -> Plan:
    """As `plan_graph`, without a verdict."""
    options = _checked(options or PlanOptions(), changes)
    seconds = options.time_limit
    if options.parts is None:
        found = _search_parts(graph, cluster, options, seconds)
    elif options.objective == "throughput" and options.contiguity is None:
        convex = replace(options, contiguity="convex")
        try:
            found = _search_calls(graph, cluster, convex, seconds)
        except InfeasibleError:  # as where pins ask for a return
            found = _search_calls(graph, cluster, options, seconds)
    else:
        found = _search_calls(graph, cluster, options, seconds)
    return _plan_of(found, options)


def default_parts(cluster: Cluster) -> int:
    """Into how many parts the calls of a model are merged that declares none."""
    return min(max(6 * len(cluster.of_kind("gpu")), 12), 48)


def in_clusters(graph: Graph, cluster: Cluster, options: PlanOptions) -> Graph:
    """The calls of an undeclared model in few parts, which keep the pins."""
    options = _checked(options, {})
    most = options.parts or default_parts(cluster)
    base = with_requests(graph, options.pins)
    return clusters(base, most, _weight_of(cluster, options))


def fits_somewhere(
    evaluator: Evaluator, pins: Pins | None = None, *, seconds: float = _TRY_SECONDS
) -> bool:
    """Whether a placement that fits is found in a moment.

    Raises:
        DeclarationError: as `resolve`.
        DeviceError: as `resolve`.
    """
    _, groups = resolve(
        evaluator.graph,
        evaluator.cluster,
        pins=pins,
        load_of=evaluator.load,
        whole_lists=True,
    )
    problem = _problem(evaluator, evaluator.step, groups)
    need, room = problem.graph.size_bytes, problem.graph.capacity_bytes
    if need.sum() > room.sum():
        return False
    return solve(problem, objective="memory", time_limit=seconds).feasible


def proven_bound(evaluator: Evaluator, groups: Sequence[Group]) -> float:
    """What no placement of the groups can be below, after a second's work at most."""
    problem = _problem(evaluator, evaluator.step, groups)
    if prod(len(group.allowed) for group in groups) <= _FEW:
        return solve(problem, objective=evaluator.objective).bound
    return lower_bound(problem, evaluator.objective, hard=True)


def _checked(options: PlanOptions, changes: Mapping[str, object]) -> PlanOptions:
    """The options with changes, each of them one of its choices."""
    known = [field.name for field in fields(PlanOptions)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise DeclarationError(
            f"there is no option {', '.join(map(repr, unknown))}. Options: "
            f"{', '.join(known)}."
        )
    options = replace(options, **changes)  # type: ignore[arg-type]  # it checks itself
    penalty = _CUT_PENALTY if options.cut_penalty is None else options.cut_penalty
    return replace(
        options,
        cut_penalty=penalty,
        costs=options.costs or Roofline(),
        optimizer=optimizer_name(options.optimizer),
    )


@dataclass(frozen=True)
class _Found:
    """A placement of the parts of a graph, and how it was found."""

    evaluator: Evaluator
    constraints: Mapping[str, Constraint]
    groups: Sequence[Group]
    device_of: Mapping[str, str]
    value: float
    algorithm: str
    bound: float
    ended_by_clock: bool


def _plan_of(found: _Found, options: PlanOptions) -> Plan:
    """The plan of a placement, with reasons, fallbacks and options."""
    plays = min(_MOST_PLAYS, int(_PLAYS_PER_SECOND * max(0.5, options.time_limit)))
    evaluator, device_of = found.evaluator, found.device_of
    reasons = reasons_of(evaluator, found.constraints, found.groups, device_of, plays)
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
        strategy=found.algorithm,
        bound=min(found.bound, plan.value),
        options=_kept_options(options, ended_by_clock=found.ended_by_clock),
    )


def _evaluator(graph: Graph, cluster: Cluster, options: PlanOptions) -> Evaluator:
    return Evaluator(
        graph,
        cluster,
        options.objective,
        options.costs,
        options.optimizer,
        options.training,
    )


def _search_parts(
    graph: Graph, cluster: Cluster, options: PlanOptions, seconds: float
) -> _Found:
    """Search first requests; where they are full, whole preference lists.

    Raises:
        InfeasibleError: nothing fits.
    """
    evaluator = _evaluator(graph, cluster, options)
    constraints, groups = _resolved(evaluator, options)
    if any(one.listed for one in constraints.values()):
        first = _solved(evaluator, groups, options, _FIRST_SHARE * seconds)
        if first.feasible:
            return _found(evaluator, constraints, groups, first)
        constraints, groups = _resolved(evaluator, options, whole_lists=True)
        seconds *= 1 - _FIRST_SHARE
    solution = _solved(evaluator, groups, options, seconds)
    found = _found(evaluator, constraints, groups, solution)
    if not solution.feasible:
        device_of = {
            part: where if where in group.allowed else group.allowed[0]
            for group in groups
            for part in group.parts
            for where in [found.device_of[part]]
        }
        fits = _Fits(graph, options)
        raise infeasible_error(Case(evaluator, groups, constraints, device_of, fits))
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
) -> _Found:
    names = [device.name for device in evaluator.cluster]
    device_of = {
        part: names[device]
        for group, device in zip(groups, solution.assignment, strict=True)
        for part in group.parts
    }
    return _Found(
        evaluator,
        constraints,
        groups,
        device_of,
        solution.value,
        solution.algorithm,
        solution.bound,
        solution.ended_by_clock,
    )


def _search_calls(
    graph: Graph, cluster: Cluster, options: PlanOptions, seconds: float
) -> _Found:
    """Search a model's calls, and cut the best placement into parts.

    First the calls are clustered along the model's seams, and the clusters placed. From
    there the calls are placed one by one, and cut into parts where the devices demand
    it. The simulator judges both, part by part.

    Raises:
        InfeasibleError: nothing fits.
    """
    base = with_requests(graph, options.pins)
    options = replace(options, pins=None)
    weight = _weight_of(cluster, options)
    most = options.parts or default_parts(cluster)
    coarse = _search_parts(
        clusters(base, most, weight), cluster, options, _CLUSTER_SHARE * seconds
    )
    evaluator = _evaluator(bind_shared_weights(base), cluster, options)
    whole_lists = not _keeps_first_requests(evaluator, options, coarse)
    constraints, groups = _resolved(evaluator, options, whole_lists=whole_lists)
    start = _start_from(coarse, evaluator, groups)
    left = (1 - _CLUSTER_SHARE) * seconds
    fine = _solved(evaluator, groups, options, left, units="calls", starts=[start])
    if not fine.feasible:
        return coarse
    placed = _found(evaluator, constraints, groups, fine)
    candidates = [replace(coarse, bound=fine.bound)]
    for cut_at_sends in (True, False):
        parted, device_of = partition(
            base, placed.device_of, most, weight, cut_at_sends=cut_at_sends
        )
        judge = _evaluator(parted, cluster, options)
        found = judge.evaluate(device_of)
        if found.fits:
            constraints, groups = _resolved(judge, options, whole_lists=whole_lists)
            candidates.append(
                _Found(
                    judge,
                    constraints,
                    groups,
                    device_of,
                    found.value,
                    fine.algorithm,
                    fine.bound,
                    fine.ended_by_clock,
                )
            )
    limit = min(c.value for c in candidates) * (1 + (options.cut_penalty or 0.0))
    good = [c for c in candidates if c.value <= limit]
    return min(good, key=lambda c: (_transfers(c), c.value))


def _transfers(found: _Found) -> int:
    return len(found.evaluator.evaluate(found.device_of).outcome.transfers)


def _keeps_first_requests(
    evaluator: Evaluator, options: PlanOptions, coarse: _Found
) -> bool:
    """Whether the clusters were placed without going down preference lists."""
    constraints = coarse.constraints.values()
    return all(
        not one.preferred or coarse.device_of[one.part] in one.preferred
        for one in constraints
    )


def _start_from(coarse: _Found, evaluator: Evaluator, groups: Sequence[Group]) -> Ints:
    """The placement of the clusters as one of the groups of calls."""
    number = {device.name: i for i, device in enumerate(evaluator.cluster)}
    where = {c.name: coarse.device_of[c.part] for c in coarse.evaluator.graph.calls}
    calls = evaluator.graph.calls_of
    start = []
    for group in groups:
        near = [where[call.name] for part in group.parts for call in calls[part]]
        wanted = near[0] if near and near[0] in group.allowed else group.allowed[0]
        start.append(number[wanted])
    return np.array(start, np.int32)


def _weight_of(cluster: Cluster, options: PlanOptions) -> Callable[[Call], float]:
    """Seconds of a call on the fastest device, to make parts of like weight."""
    fast = max(cluster, key=lambda device: device.flops_per_second)
    costs = options.costs
    return lambda call: (
        costs.forward_seconds(call, fast) + costs.backward_seconds(call, fast)
    )


def _problem(
    evaluator: Evaluator,
    step: StepGraph,
    groups: Sequence[Group],
    *,
    cut_penalty: float = 0.0,
) -> Problem:
    number = {part: i for i, group in enumerate(groups) for part in group.parts}
    return problem_of(
        step,
        evaluator.cluster,
        groups,
        group_of_unit=[number[part] for part in step.parts],
        cut_penalty=cut_penalty,
    )


def _solved(
    evaluator: Evaluator,
    groups: Sequence[Group],
    options: PlanOptions,
    seconds: float,
    *,
    units: str = "parts",
    starts: Sequence[Ints] = (),
) -> Solution:
    """The best assignment, with fewer transfers where they save next to nothing.

    The best assignment is searched first. Then each transfer has a price, so that all
    transfers of that assignment together cost the cut penalty: what is best with these
    prices is worse by no more than the penalty.
    """
    step = evaluator.step
    if units == "calls":
        step = step_graph(
            evaluator.graph,
            evaluator.cluster,
            evaluator.costs,
            training=evaluator.training,
            optimizer=evaluator.optimizer,
            units="calls",
        )
    problem = _problem(evaluator, step, groups)
    effort = options.effort
    if effort is not None and options.time_limit > 0:
        effort = int(effort * seconds / options.time_limit)

    def solved(penalty: float, share: float, known: Sequence[Ints]) -> Solution:
        return solve(
            replace(problem, cut_penalty=penalty),
            objective=options.objective,
            contiguity=options.contiguity,
            time_limit=share * seconds,
            effort=None if effort is None else max(1, int(share * effort)),
            seed=options.seed,
            starts=known,
            on_progress=options.on_progress,
        )

    penalty = options.cut_penalty or 0.0
    best = solved(0.0, _FREE_SHARE if penalty else 1.0, starts)
    if not best.feasible:
        best = _made_to_fit(problem, options, seconds, best)
    cuts = cut_size(problem.graph, best.assignment)
    if not best.feasible or not penalty or not cuts:
        return best
    fewer = solved(penalty / cuts, 1 - _FREE_SHARE, [*starts, best.assignment])
    calmer = fewer.feasible and fewer.value <= best.value * (1 + penalty)
    if not calmer or cut_size(problem.graph, fewer.assignment) >= cuts:
        return best
    return replace(fewer, bound=max(best.bound, 0.0))


class _Fits:
    """Whether a changed problem has a solution that is found in a moment."""

    def __init__(self, graph: Graph, options: PlanOptions) -> None:
        self._requests = requests_of(graph, options.pins)
        self._ends = monotonic() + _REMEDY_SECONDS

    def __call__(
        self,
        evaluator: Evaluator,
        *,
        pins: Mapping[str, str] | None = None,
        hard: bool = False,
    ) -> bool:
        if monotonic() > self._ends:
            return False

        def on(part: Part) -> tuple[str, ...] | None:
            if pins and part.name in pins:
                return (pins[part.name],)
            requested, pinned = self._requests[part.name]
            return requested if pinned else None

        seconds = _HARD_SECONDS if hard else _TRY_SECONDS
        return fits_somewhere(evaluator, on, seconds=seconds)


def _made_to_fit(
    problem: Problem, options: PlanOptions, seconds: float, best: Solution
) -> Solution:
    """Look for less memory on the fullest device where nothing was found to fit."""
    found = solve(
        problem,
        objective="memory",
        contiguity=options.contiguity,
        time_limit=max(_FIT_SECONDS, seconds),
        seed=options.seed,
    )
    if not found.feasible:
        return best
    again = solve(
        problem,
        objective=options.objective,
        contiguity=options.contiguity,
        time_limit=seconds,
        seed=options.seed,
        starts=[found.assignment],
    )
    if again.feasible:
        return again
    place = found.assignment
    value = value_of(problem, options.objective, place, options.contiguity)
    return replace(found, value=value, bound=min(again.bound, value))


def _kept_options(options: PlanOptions, *, ended_by_clock: bool) -> dict[str, object]:
    """What a plan remembers of how it was made; a function cannot be kept."""
    kept: dict[str, object] = {"missing": options.missing, "seed": options.seed}
    if isinstance(options.pins, Mapping):
        kept["pins"] = {
            str(pattern): on if isinstance(on, str) else list(on)
            for pattern, on in options.pins.items()
        }
    if options.contiguity:
        kept["contiguity"] = options.contiguity
    if ended_by_clock:
        kept["ended_by_clock"] = True
    return kept
