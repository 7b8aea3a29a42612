"""Plan: resolve constraints, search, simulate; or say why nothing fits, and what would.

graph, cluster, options
-> constraints          devices that each group of parts may use
-> search               a device for every group
-> evaluate             the simulator's time, memory and transfers
-> Plan                 with reasons, fallbacks, bound and verdict
   or InfeasibleError   with the smallest changes that would fit, each planned
"""

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import chain, count, islice
from operator import itemgetter
from time import monotonic
from typing import Any

from splitnet.core.cluster import Cluster
from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.core.graph import Graph
from splitnet.core.plan import Plan, PlanOptions
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import Group, Request, fallbacks_of, with_pins
from splitnet.planner.engine.budget import STEPS_PER_SECOND
from splitnet.planner.engine.load_graph import Ints, cut_size
from splitnet.planner.engine.solve import Solution, solve, value_of
from splitnet.planner.evaluate import Evaluator, Found, placed, reasons_of
from splitnet.planner.problem import Problem, bind_shared_weights, single_devices
from splitnet.simulator.units import scaled_graph

_FREE_SHARE = 0.8
"""Of a search for the best assignment; the rest is for fewer transfers."""
_TRY_SECONDS = 0.5
"""How long a placement that fits is looked for."""
_REMEDY_SECONDS = 6.0
"""How long each kind of remedy may be looked for."""
_MOST_CALLS = 10_000
"""Calls of a graph for which a smaller batch is looked for."""
_MOST_MORE, _MOST_GROWN = 64, 20 * 32
"""Devices, and twentieths of the memory, that are added in a remedy."""
_MOST_NAMED = 8


def plan_graph(
    graph: Graph, cluster: Cluster, options: PlanOptions | None = None, **changes: Any
) -> Plan:
    """Place every part of a graph on a device of a cluster, as `splitnet.plan` does.

    With no cut penalty the plan is never worse than everything on the best single
    device that is allowed and fits. With `regroup`, the graph has a part per call, and
    the functions that run are the parts of the plan. `changes` beat `options`.
    """
    return with_verdict(find_plan(graph, cluster, options, **changes))


def find_plan(
    graph: Graph, cluster: Cluster, options: PlanOptions | None = None, **changes: Any
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
        return InfeasibleError(_Refusal(self.found).text(remedies))


def plan_of(found: Found, options: PlanOptions) -> Plan:
    """The plan of a placement, with reasons, fallbacks and options."""
    evaluator, solution = found.evaluator, found.solution
    return evaluator.plan(
        found.device_of,
        solution.bound,
        reasons_of(found),
        fallbacks=fallbacks_of(evaluator.graph, evaluator.cluster, found.device_of),
        strategy=solution.algorithm,
        contiguity=options.contiguity,
        ended_by_clock=solution.ended_by_clock,
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
    evaluator, limit = Evaluator.of(graph, cluster, options), options.time_limit
    both = (evaluator.resolve(options.missing, whole_lists=n) for n in (False, True))
    first, every = both
    tries = [first] if first == every else [first, every]
    for groups in tries:
        problem = evaluator.problem_of(groups)
        # What follows the search takes about as long as what comes before it.
        seconds = max(0.2 * limit, limit - 2 * (monotonic() - began)) / len(tries)
        solution = _solved(problem, options, 1 / len(tries), seconds)
        if solution.feasible:
            break
        began = monotonic()
    names = [device.name for device in cluster]
    wanted = (names[device] for device in solution.assignment)
    evaluator, device_of = evaluator.as_run(placed(groups, wanted))
    if options.regroup:
        whole_lists = groups is not first
        groups = evaluator.resolve(options.missing, whole_lists=whole_lists)
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
    for place in single_devices(problem):
        value = value_of(problem, options.objective, place, options.contiguity)
        found.append(replace(best, assignment=place, value=value))
    limit = best.value * (1 + penalty)
    good = [one for one in found if one.feasible and one.value <= limit]
    calm = min(good, key=lambda o: (cut_size(problem.graph, o.assignment), o.value))
    return replace(calm, bound=best.bound)


def first_true(holds: Callable[[int], bool], most: int) -> int:
    """The least number from 1 to `most` for which a rising property holds, or one more.

    >>> first_true(lambda n: n * n > 1000, 4096)
    32
    """
    return 1 + bisect(range(1, most + 1), False, key=holds)


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
    how: dict[str, Any] = {"prove": False, "until_found": True}
    return solve(problem, objective="memory", time_limit=seconds, **how).feasible


class _Refusal:
    """A problem without a solution, and the least broken placement that was found.

    `need` has the bytes of each group, wherever it is; `name` the part that stands for
    it, the one with a request of its own; `on` the groups of each device, the largest
    first.
    """

    def __init__(self, found: Found) -> None:
        self.evaluator, self.groups = found.evaluator, found.groups
        self.graph, self.cluster = self.evaluator.graph, self.evaluator.cluster
        wanted = (found.device_of[group.parts[0]] for group in self.groups)
        self.device_of = placed(self.groups, wanted)
        self.reason: dict[str, str] = {}  # why each part is where it is, if not free
        for part in self.graph.parts:
            request = Request(self.graph, self.cluster, part)
            self.reason[part.name], _ = request.reason(self.device_of[part.name])
        firm = ("pin", "no kernel", "fallback")
        self.need, self.name = dict[Group, int](), dict[Group, str]()
        self.on: dict[str, list[Group]] = {device.name: [] for device in self.cluster}
        for group in self.groups:
            parts = group.parts
            self.need[group] = self.evaluator.need(parts).total
            self.name[group] = min(parts, key=lambda p: self.reason[p] not in firm)
            self.on[self.device_of[parts[0]]].append(group)
        for its in self.on.values():
            its.sort(key=self.need.__getitem__, reverse=True)
        # The device that lacks most, and the largest group there.
        self.held = self.evaluator.evaluate(self.device_of).memory
        lacks = {d.name: self.held[d.name].total - d.memory_bytes for d in self.cluster}
        self.full, self.lacking = max(lacks.items(), key=itemgetter(1))
        self.culprit = self.on[self.full][0]

    def is_pinned(self, group: Group) -> bool:
        """Whether a person put it where it is."""
        return self.reason[self.name[group]] == "pin"

    def text(self, known: Sequence[str]) -> str:
        """What does not fit, what is where, and what to try; `known` remedies first."""
        nothing = "nothing was found that would do; ask for less"
        last = f"  try      {', or '.join([*known, *self._remedies()]) or nothing}"
        for i, one in enumerate(self.groups):
            for other in (self.groups[j] for j in one.apart if i < j):
                where = self.device_of[one.parts[0]]
                if self.device_of[other.parts[0]] == where:
                    return (
                        f"apart= cannot be kept: {self.name[one]!r} and "
                        f"{self.name[other]!r} would share {where}.\n"
                        f"  allowed  {', '.join(one.allowed)}\n{last}"
                    )
        needs = self.evaluator.need(self.culprit.parts)
        held = {f.name.replace("_", " "): getattr(needs, f.name) for f in fields(needs)}
        parts = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in held.items() if n)
        parts = parts.replace(" slots ", " optimizer slots ")
        allowed = {name for g in self.groups if self.need[g] for name in g.allowed}
        rooms = {d.name: d.memory_bytes for d in self.cluster if d.name in allowed}
        shown = ", ".join([*rooms][:_MOST_NAMED]) + " ..." * (len(rooms) > _MOST_NAMED)
        total = f"without copies; {format_bytes(sum(rooms.values()))} on {shown}"
        rows = [_row("needs", needs.total, parts), *self._rooms()]
        rows.append(_row("in all", sum(self.need.values()), total))
        return "\n".join([self._headline(), *rows, last])

    def _headline(self) -> str:
        culprit, full, name = self.culprit, self.full, self.name[self.culprit]
        what = f"{self.graph.part[name].kind} {name!r}"
        if len(culprit.parts) > 1:
            what += f" (with {len(culprit.parts) - 1} near it)"
        if len(culprit.allowed) == 1:
            where = "is declared" if self.is_pinned(culprit) else "must be"
            return f"{what} does not fit on {full}, where it {where}."
        rooms = (self.cluster[name].memory_bytes for name in culprit.allowed)
        if self.need[culprit] > max(rooms):
            names = ", ".join(culprit.allowed)
            return f"{what} does not fit on any device it may use ({names})."
        return (
            f"the parts of {self.graph.name!r} do not fit together; the least that was "
            f"found lacks memory on {full}, where {what} is the largest."
        )

    def _rooms(self) -> Iterator[str]:
        """A line per device: what is free there without the culprit, what fills it."""
        names = dict.fromkeys([self.full, *self.culprit.allowed, *self.on])
        for name in list(names)[:_MOST_NAMED]:
            room, taken = self.cluster[name].memory_bytes, self.held[name].total
            taken -= self.need[self.culprit] if name == self.full else 0
            text = f"{'free' if taken <= room else 'missing'} of {format_bytes(room)}"
            others = [g for g in self.on[name] if g != self.culprit and self.need[g]]
            for group in others[:2]:
                what = "is"
                if len(group.allowed) == 1:
                    what = "is pinned" if self.is_pinned(group) else "must be"
                need = format_bytes(self.need[group])
                text += f"; {self.name[group]!r} {what} there with {need}"
            yield _row(name, abs(room - taken), text)

    def _remedies(self) -> Iterator[str]:
        """The changes that would do, the one that costs least first."""
        graph, cluster, kind = self.graph, self.cluster, self.cluster[self.full].kind
        pinned = [
            [part for part in group.parts if self.reason[part] == "pin"]
            for group in self.on[self.full]
            if self.is_pinned(group)
        ]

        def freed(n: int) -> dict[str, str]:
            return dict.fromkeys(chain(*pinned[:n]), kind)

        fits = self._in_time()
        n = first_true(lambda n: fits(graph=with_pins(graph, freed(n))), len(pinned))
        if n <= len(pinned):
            first, *_ = names = list(freed(n))
            there, those = graph.part[first].on, ", ".join(map(repr, names))
            yield f'on="{kind}" instead of on="{", ".join(there)}" for {those}'
        if self.lacking > 0 and len(graph.calls) <= _MOST_CALLS:
            fits, most = self._in_time(), graph.batch - 1
            n = first_true(lambda n: not fits(graph=scaled_graph(graph, n)), most) - 1
            if n:
                yield f"batch <= {n}"
        devices = cluster.of_kind("gpu") or cluster.devices
        like = max(devices, key=lambda device: device.memory_bytes)
        those_like = (f"{like.name.rpartition(':')[0]}:{i}" for i in count())
        unused = islice((n for n in those_like if n not in cluster), _MOST_MORE)
        more = [replace(like, name=name) for name in unused]

        def enlarged(n: int, twentieths: int = 20) -> Cluster:
            every = (*cluster.devices, *more[:n])
            rooms = [device.memory_bytes * twentieths // 20 for device in every]
            made = (replace(d, memory_bytes=room) for d, room in zip(every, rooms))
            return replace(cluster, devices=tuple(made))

        fits = self._in_time()
        n = first_true(lambda n: fits(cluster=enlarged(n)), _MOST_MORE)
        if n <= _MOST_MORE:
            yield f"{len(devices) + n} devices like {like.name}"
        if self.lacking > 0:
            fits = self._in_time()
            n = first_true(lambda n: fits(cluster=enlarged(0, 20 + n)), _MOST_GROWN)
            if n <= _MOST_GROWN:
                yield f"{1 + n / 20:.3g} times the memory everywhere"

    def _in_time(self) -> Callable[..., bool]:
        """Whether it fits with changes of the evaluator; never, once the time is over.

        A try counts for `_TRY_SECONDS` at most, as the search may be compiled once.
        """
        left = _REMEDY_SECONDS

        def fits(**changes: Any) -> bool:
            nonlocal left
            began = monotonic()
            found = left > 0 and fits_somewhere(replace(self.evaluator, **changes))
            left -= min(monotonic() - began, _TRY_SECONDS)
            return found

        return fits


def _row(name: str, count: int, text: str) -> str:
    return f"  {name:<8} {format_bytes(count):>9}  {text}".rstrip()
