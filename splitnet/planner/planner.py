"""Plan: resolve constraints, search, simulate; or say why nothing fits, and what would.

graph, cluster, options
-> constraints          devices that each group of parts may use
-> search               a device for every group
-> evaluate             the simulator's time, memory and transfers
-> Plan                 with reasons, fallbacks, bound and verdict
   or InfeasibleError   with the smallest changes that would fit, each planned
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np

from splitnet.core.cluster import Cluster, Device
from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.core.graph import Graph
from splitnet.core.plan import Placement, Plan, PlanOptions
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import Group, Request, fallbacks_of, with_pins
from splitnet.planner.engine.budget import STEPS_PER_SECOND
from splitnet.planner.engine.load_graph import Ints, cut_size
from splitnet.planner.engine.solve import Solution, solve, value_of
from splitnet.planner.evaluate import Evaluator, Found, placed, reasons_of
from splitnet.planner.partitioning import bind_shared_weights
from splitnet.planner.problem import Problem, single_devices
from splitnet.simulator.batch import largest_true, scaled_graph

_FREE_SHARE = 0.8
"""Of a search for the best assignment; the rest is for fewer transfers."""
_TRY_SECONDS = 0.5
"""How long a placement that fits is looked for."""
_REMEDY_SECONDS = 6.0
"""How long each kind of remedy may be looked for."""
_MOST_CALLS = 10_000
"""Calls of a graph for which a smaller batch is looked for."""
_MOST_MORE = 64
_MOST_NAMED = 8


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
        return _infeasible_error(self.found, remedies)


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


def fits_somewhere(evaluator: Evaluator, seconds: float = _TRY_SECONDS) -> bool:
    """Whether a placement that fits is found in a moment."""
    groups = evaluator.resolve(whole_lists=True)
    problem = evaluator.problem_of(groups)
    need = problem.graph.size_bytes
    for allowed in {group.allowed for group in groups}:
        inside = [i for i, g in enumerate(groups) if set(g.allowed) <= set(allowed)]
        room = [evaluator.cluster[name].memory_bytes for name in allowed]
        if need[inside].sum() > sum(room) or need[inside].max() > max(room):
            return False
    found = solve(
        problem, objective="memory", time_limit=seconds, prove=False, until_found=True
    )
    return found.feasible


class _Case:
    """A problem without a solution, and the least broken placement that was found."""

    def __init__(self, found: Found) -> None:
        self.evaluator, self.groups = found.evaluator, found.groups
        wanted = (found.device_of[group.parts[0]] for group in self.groups)
        self.device_of = placed(self.groups, wanted)
        self.held = self.evaluator.evaluate(self.device_of).memory
        self.needs = {g.parts: self.evaluator.need(g.parts).total for g in self.groups}

    def need(self, *groups: Group) -> int:
        """The bytes of some groups, wherever they are."""
        return sum(self.needs[group.parts] for group in groups)

    def reason(self, part: str) -> str:
        """Why a part is where it is, "" where that was free."""
        graph, cluster = self.evaluator.graph, self.evaluator.cluster
        one = Request(graph, cluster, graph.part[part])
        return one.reason(self.device_of[part])[0]

    def name(self, group: Group) -> str:
        """The part that stands for its group: the one with a request of its own."""
        firm = ("pin", "no kernel", "fallback")
        return min(group.parts, key=lambda part: self.reason(part) not in firm)

    def is_pinned(self, group: Group) -> bool:
        """Whether a person put it where it is."""
        return self.reason(self.name(group)) == "pin"

    def on(self, device: str) -> list[Group]:
        """The groups on a device, the largest first."""
        there = [g for g in self.groups if self.device_of[g.parts[0]] == device]
        return sorted(there, key=self.need, reverse=True)


def _infeasible_error(found: Found, known: Sequence[str] = ()) -> InfeasibleError:
    """What does not fit, what is where, and what to try; `known` remedies first."""
    case, cluster = _Case(found), found.evaluator.cluster
    groups, there = case.groups, case.device_of
    excess = {d.name: case.held[d.name].total - d.memory_bytes for d in cluster}
    full = max(excess, key=excess.__getitem__)
    culprit = case.on(full)[0]
    remedies = ", or ".join([*known, *_remedies(case, culprit, full)])
    last = f"  try      {remedies or 'nothing was found that would do; ask for less'}"
    for i, one in enumerate(groups):
        for other in (groups[j] for j in one.apart if i < j):
            if there[one.parts[0]] == there[other.parts[0]]:
                return InfeasibleError(
                    f"apart= cannot be kept: {case.name(one)!r} and "
                    f"{case.name(other)!r} would share {there[one.parts[0]]}.\n"
                    f"  allowed  {', '.join(one.allowed)}\n{last}"
                )
    needs = case.evaluator.need(culprit.parts)
    kinds = {
        "weights": needs.weights,
        "gradients": needs.gradients,
        "optimizer slots": needs.slots,
        "activations": needs.activations,
        "workspace": needs.workspace,
    }
    parts = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in kinds.items() if n)
    allowed = {name for g in groups if case.need(g) for name in g.allowed}
    devices = [device for device in cluster if device.name in allowed]
    room = format_bytes(sum(device.memory_bytes for device in devices))
    shown = ", ".join(device.name for device in devices[:_MOST_NAMED])
    shown += " ..." if len(devices) > _MOST_NAMED else ""
    lines = [
        _headline(case, culprit, full),
        _row("needs", needs.total, parts),
        *_rooms(case, culprit, full),
        _row("in all", case.need(*groups), f"without copies; {room} on {shown}"),
        last,
    ]
    return InfeasibleError("\n".join(lines))


def _row(name: str, count: int, text: str) -> str:
    return f"  {name:<8} {format_bytes(count):>9}  {text}".rstrip()


def _headline(case: _Case, culprit: Group, full: str) -> str:
    graph, cluster = case.evaluator.graph, case.evaluator.cluster
    name = case.name(culprit)
    what = f"{graph.part[name].kind} {name!r}"
    if len(culprit.parts) > 1:
        what += f" (with {len(culprit.parts) - 1} near it)"
    if len(culprit.allowed) == 1:
        where = "is declared" if case.is_pinned(culprit) else "must be"
        return f"{what} does not fit on {full}, where it {where}."
    if all(case.need(culprit) > cluster[d].memory_bytes for d in culprit.allowed):
        names = ", ".join(culprit.allowed)
        return f"{what} does not fit on any device it may use ({names})."
    return (
        f"the parts of {graph.name!r} do not fit together; the least that was found "
        f"lacks memory on {full}, where {what} is the largest."
    )


def _rooms(case: _Case, culprit: Group, full: str) -> Iterator[str]:
    """A line per device: what is free there without the culprit, and what fills it."""
    cluster = case.evaluator.cluster
    names = dict.fromkeys([full, *culprit.allowed, *(d.name for d in cluster)])
    for name in list(names)[:_MOST_NAMED]:
        room = cluster[name].memory_bytes
        taken = case.held[name].total - (case.need(culprit) if name == full else 0)
        text = f"{'free' if taken <= room else 'missing'} of {format_bytes(room)}"
        for group in [g for g in case.on(name) if g != culprit and case.need(g)][:2]:
            what = "is"
            if len(group.allowed) == 1:
                what = "is pinned" if case.is_pinned(group) else "must be"
            need = format_bytes(case.need(group))
            text += f"; {case.name(group)!r} {what} there with {need}"
        yield _row(name, abs(room - taken), text)


def _in_time(case: _Case) -> Callable[..., bool]:
    """Whether it fits with changes of the evaluator; never, once the time is over.

    A try counts for `_TRY_SECONDS` at most: compiling the search, once, is left out.
    """
    left = _REMEDY_SECONDS

    def fits(**changes: Any) -> bool:
        nonlocal left
        began = monotonic()
        found = left > 0 and fits_somewhere(replace(case.evaluator, **changes))
        left -= min(monotonic() - began, _TRY_SECONDS)
        return found

    return fits


def _least(fits: Callable[[int], bool], most: int) -> int:
    """The least number from 1 to `most` that was found to be enough; 0 if none was."""
    number = 1 + largest_true(lambda n: not fits(n), most)
    return number if number <= most else 0


def _remedies(case: _Case, culprit: Group, full: str) -> Iterator[str]:
    """The changes that would do, the one that costs least first."""
    graph, cluster = case.evaluator.graph, case.evaluator.cluster
    kind = cluster[full].kind
    groups = sorted(case.on(full), key=lambda group: group != culprit)
    pinned = [
        [part for part in group.parts if case.reason(part) == "pin"]
        for group in groups
        if case.is_pinned(group)
    ]

    def freed(count: int) -> dict[str, str]:
        return dict.fromkeys(sum(pinned[:count], []), kind)

    fits = _in_time(case)
    count = _least(lambda n: fits(graph=with_pins(graph, freed(n))), len(pinned))
    if count:
        names = list(freed(count))
        there, those = graph.part[names[0]].on, ", ".join(map(repr, names))
        yield f'on="{kind}" instead of on="{", ".join(there)}" for {those}'
    lacking = case.held[full].total > cluster[full].memory_bytes
    if lacking and len(graph.calls) <= _MOST_CALLS:
        fits = _in_time(case)
        most = graph.batch - 1
        batch = largest_true(lambda n: fits(graph=scaled_graph(graph, n)), most)
        if batch:
            yield f"batch <= {batch}"
    devices = cluster.of_kind("gpu") or cluster.devices
    largest = max(devices, key=lambda device: device.memory_bytes)
    fits = _in_time(case)
    more = _least(lambda n: fits(cluster=_with_more(cluster, largest, n)), _MOST_MORE)
    if more:
        yield f"{len(devices) + more} devices like {largest.name}"
    if lacking:
        fits = _in_time(case)
        twentieths = _least(lambda n: fits(cluster=_grown(cluster, n)), 20 * 32)
        if twentieths:
            yield f"{1 + twentieths / 20:.3g} times the memory everywhere"


def _grown(cluster: Cluster, twentieths: int) -> Cluster:
    devices = (
        replace(d, memory_bytes=d.memory_bytes * (20 + twentieths) // 20)
        for d in cluster
    )
    return replace(cluster, devices=tuple(devices))


def _with_more(cluster: Cluster, like: Device, count: int) -> Cluster:
    names = (f"{like.name.rpartition(':')[0]}:{n}" for n in itertools.count())
    new = (replace(like, name=name) for name in names if name not in cluster)
    devices = (*cluster.devices, *itertools.islice(new, count))
    return replace(cluster, devices=devices)
