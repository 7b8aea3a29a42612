"""Plan: resolve constraints, search, simulate, and say why each part is where it is.

graph, cluster, options
-> constraints          devices that each group of parts may use
-> search               a device for every group
-> evaluate             the simulator's time, memory and transfers
-> Plan                 with reasons, fallbacks, bound and verdict
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from math import isfinite
from time import monotonic

from splitnet.core.cluster import Cluster
from splitnet.core.costs.model import Roofline, optimizer_name
from splitnet.core.errors import DeclarationError, InfeasibleError
from splitnet.core.graph import Graph, Part
from splitnet.core.plan import Placement, Plan, PlanOptions
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import (
    Constraint,
    Group,
    Pins,
    fallbacks_of,
    requests_of,
    resolve,
)
from splitnet.planner.evaluate import Evaluator
from splitnet.planner.infeasibility import Case, infeasible_error
from splitnet.planner.partitioning import clusters, with_requests
from splitnet.planner.search_adapter import Solution, solve

__all__ = ["default_parts", "find_plan", "fits_somewhere", "plan_graph"]

_CUT_PENALTY = 0.02
"""Of the value: what a plan gives up, by default, for fewer device crossings."""
_REMEDY_SECONDS = 3.0
"""How long remedies for a problem without a solution may be tried."""
_TRY_SECONDS, _HARD_SECONDS = 0.3, 1.0
"""How long each of them may take, and how long where it is worth more."""
_FIRST_SHARE = 0.5
"""Of the time for first requests, if nothing fits; then whole lists are searched."""
_PLAYS_PER_SECOND, _MOST_PLAYS = 3_000, 15_000
"""Calls that may be simulated to tell reasons apart, per second of the time limit."""


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
    asked = options
    if options.parts is not None:
        graph = _clustered(graph, cluster, options)
        options = replace(options, pins=None)
        if options.objective == "throughput" and options.contiguity is None:
            with suppress(InfeasibleError):  # as where pins ask for a return
                convex = replace(options, contiguity="convex")
                return _planned(graph, cluster, convex, asked)
    return _planned(graph, cluster, options, asked)


def default_parts(cluster: Cluster) -> int:
    """Into how many parts the calls of a model are merged that declares none."""
    return min(max(6 * len(cluster.of_kind("gpu")), 12), 48)


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
    found = solve(evaluator, groups, time_limit=seconds, first_fit=True)
    return isfinite(found.value)


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


def _clustered(graph: Graph, cluster: Cluster, options: PlanOptions) -> Graph:
    """The calls of an undeclared model in few parts that keep the pins."""
    fast = max(cluster, key=lambda device: device.flops_per_second)
    costs = options.costs
    return clusters(
        with_requests(graph, options.pins),
        options.parts or default_parts(cluster),
        lambda call: (
            costs.forward_seconds(call, fast) + costs.backward_seconds(call, fast)
        ),
    )


def _planned(
    graph: Graph, cluster: Cluster, options: PlanOptions, asked: PlanOptions
) -> Plan:
    """Search, and make a plan of the best placement."""
    evaluator = Evaluator(
        graph,
        cluster,
        options.objective,
        options.costs,
        options.optimizer,
        options.training,
    )
    constraints, groups, solution = _search(evaluator, options)
    device_of = _device_of(cluster, groups, solution)
    reasons = _reasons(evaluator, constraints, groups, device_of, options.time_limit)
    plan = evaluator.plan(
        tuple(
            Placement(
                part.name,
                device_of[part.name],
                constraints[part.name].requested,
                reasons[part.name],
            )
            for part in graph.parts
        )
    )
    return replace(
        plan,
        fallbacks=fallbacks_of(constraints, device_of),
        strategy=solution.algorithm,
        bound=min(solution.bound, plan.value),
        options=_kept_options(asked, options, solution),
    )


def _search(
    evaluator: Evaluator, options: PlanOptions
) -> tuple[dict[str, Constraint], list[Group], Solution]:
    """Search first requests; where they are full, whole preference lists.

    Raises:
        InfeasibleError: nothing fits.
    """
    began = monotonic()

    def resolved(*, whole_lists: bool) -> tuple[dict[str, Constraint], list[Group]]:
        return resolve(
            evaluator.graph,
            evaluator.cluster,
            pins=options.pins,
            missing=options.missing,
            load_of=evaluator.load,
            whole_lists=whole_lists,
        )

    def searched(groups: Sequence[Group], patience: float) -> Solution:
        return solve(
            evaluator,
            groups,
            contiguity=options.contiguity,
            time_limit=max(0.0, options.time_limit - (monotonic() - began)),
            seed=options.seed,
            cut_penalty=options.cut_penalty or 0.0,
            patience=patience,
            on_progress=options.on_progress,
        )

    constraints, groups = resolved(whole_lists=False)
    if any(one.listed for one in constraints.values()):
        with suppress(InfeasibleError):
            found = searched(groups, _FIRST_SHARE)
            if isfinite(found.value):
                return constraints, groups, found
        constraints, groups = resolved(whole_lists=True)
    found = searched(groups, 1.0)
    if not isfinite(found.value):
        device_of = _device_of(evaluator.cluster, groups, found)
        fits = _Fits(evaluator.graph, options)
        raise infeasible_error(Case(evaluator, groups, constraints, device_of, fits))
    return constraints, groups, found


def _device_of(
    cluster: Cluster, groups: Sequence[Group], solution: Solution
) -> dict[str, str]:
    names = [device.name for device in cluster]
    return {
        part: names[device]
        for group, device in zip(groups, solution.assignment, strict=True)
        for part in group.parts
    }


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


def _reasons(
    evaluator: Evaluator,
    constraints: Mapping[str, Constraint],
    groups: Sequence[Group],
    device_of: Mapping[str, str],
    time_limit: float,
) -> dict[str, str]:
    """The `Placement.reason` of every part."""
    plays = min(_MOST_PLAYS, int(_PLAYS_PER_SECOND * max(0.5, time_limit)))
    tries = plays // max(1, len(evaluator.graph.calls))
    free = _free_reasons(evaluator, groups, device_of, tries)
    return {
        part: _bound_reason(constraints, group, part) or free[i]
        for i, group in enumerate(groups)
        for part in group.parts
    }


def _bound_reason(
    constraints: Mapping[str, Constraint], group: Group, part: str
) -> str:
    """Why a part had no choice; "" if it had one."""
    one = constraints[part]
    fixed = len(one.allowed) == 1 or one.reason in ("fallback", "no kernel")
    if one.reason and fixed:
        return one.reason
    others = [constraints[name] for name in group.parts if name != part]
    if any(len(other.allowed) < len(one.allowed) for other in others):
        return "near"
    return "only choice" if len(group.allowed) == 1 else ""


def _free_reasons(
    evaluator: Evaluator,
    groups: Sequence[Group],
    device_of: Mapping[str, str],
    tries: int,
) -> list[str]:
    """Why each group with a choice is where it is: "cost", "memory" or "tie".

    Every other device is tried, alone, `tries` times in all; fewer than twenty tries
    are not begun.
    """
    reasons = ["cost"] * len(groups)
    free = [i for i, group in enumerate(groups) if len(group.allowed) > 1]
    if tries < 20 or not free:
        return reasons
    value = evaluator.evaluate(device_of).value
    wanted = _without_memory(evaluator, groups, value)
    for i in free:
        here = device_of[groups[i].parts[0]]
        if wanted is not None and here != wanted and wanted in groups[i].allowed:
            reasons[i] = "memory"
        taken = {device_of[groups[j].parts[0]] for j in groups[i].apart}
        for device in groups[i].allowed:
            if device == here or device in taken or tries <= 0:
                continue
            tries -= 1
            moved = dict(device_of) | dict.fromkeys(groups[i].parts, device)
            there = evaluator.evaluate(moved)
            if there.fits and there.value <= value * (1 + 1e-9):
                reasons[i] = "tie" if reasons[i] == "cost" else reasons[i]
            elif not there.fits and there.value < value * (1 - 1e-9):
                reasons[i] = "memory"
    return reasons


def _without_memory(
    evaluator: Evaluator, groups: Sequence[Group], value: float
) -> str | None:
    """The device that would be better for all, if it had the memory; None if none."""
    best: str | None = None
    for device in evaluator.unlike([d.name for d in evaluator.cluster]):
        chosen = {
            part: device if device in group.allowed else group.allowed[0]
            for group in groups
            for part in group.parts
        }
        there = evaluator.evaluate(chosen)
        if not there.fits and there.value < value * (1 - 1e-9):
            best, value = device, there.value
    return best


def _kept_options(
    asked: PlanOptions, options: PlanOptions, solution: Solution
) -> dict[str, object]:
    """What a plan remembers of how it was made; a function cannot be kept."""
    kept: dict[str, object] = {"missing": asked.missing, "seed": asked.seed}
    if isinstance(asked.pins, Mapping):
        kept["pins"] = {
            str(pattern): on if isinstance(on, str) else list(on)
            for pattern, on in asked.pins.items()
        }
    if options.contiguity:
        kept["contiguity"] = options.contiguity
    if solution.ended_by_clock:
        kept["ended_by_clock"] = True
    return kept
