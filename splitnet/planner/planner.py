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
from operator import itemgetter
from time import monotonic
from typing import Any

from splitnet.core.cluster import Cluster, tensorflow_name
from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.core.graph import Graph
from splitnet.core.plan import Plan, PlanOptions
from splitnet.planner.constraints import Group, Request, fallbacks_of, with_pins
from splitnet.planner.engine.budget import STEPS_PER_SECOND
from splitnet.planner.engine.solve import Solution, solve
from splitnet.planner.evaluate import Evaluator, Found, placed, reasons_of
from splitnet.planner.load_graph import Ints, cut_size
from splitnet.planner.problem import Problem, single_devices, value_of
from splitnet.simulator.units import scaled_graph

_WHOLE_SECONDS = 1.0  # a limit up to which setting up is not taken off
_FREE_SHARE = 0.8  # of a search for the best value; the rest is for fewer transfers
# How long a placement that fits is looked for, and for what is less than a remedy.
_TRY_SECONDS, _SURE_SECONDS = 0.5, 2.0
_REMEDY_SECONDS = 6.0  # how long each kind of remedy may be looked for
_MOST_CALLS = 10_000  # of a graph for which a smaller batch is looked for
_MOST_MORE, _MOST_GROWN = 64, 20 * 32  # devices, and twentieths of the memory, added
_MOST_NAMED = 8


class NothingFitsError(Exception):
    """No placement was found to fit; with what a `_Refusal` is made of."""

    def explained(self, *remedies: str, fixed: bool = False) -> InfeasibleError:
        """What lacks, and what would do beside these; if `fixed`, the batch is kept."""
        return InfeasibleError(_Refusal(*(*self.args, fixed)).text(remedies))


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
        regroup=options.regroup,
        ended_by_clock=solution.ended_by_clock,
    )


def search(graph: Graph, cluster: Cluster, options: PlanOptions) -> Found:
    """Search a placement; if none fits, a `NothingFitsError`.

    Parts are where they request first; where that is full, anywhere on their lists.
    """
    began, limit, way = monotonic(), options.time_limit, options.contiguity or "free"
    if options.regroup and options.objective == "throughput" and not options.contiguity:
        with suppress(NothingFitsError):  # as where pins ask for a return
            return search(graph, cluster, replace(options, contiguity="convex"))
    evaluator = Evaluator.of(graph, cluster, options)
    first = evaluator.resolve(options.missing)
    every = evaluator.resolve(options.missing, in_full=True)
    tries = [first] if first == every else [first, every]
    for groups in tries:
        problem = replace(evaluator.problem_of(groups), contiguity=way)
        # What follows the search takes about as long as what comes before it.
        left = limit - 2 * (monotonic() - began)
        seconds = max(left, 0.2 * limit, min(limit, _WHOLE_SECONDS)) / len(tries)
        if (solution := _solve(problem, options, 1 / len(tries), seconds)).feasible:
            break
        began = monotonic()
    wanted = (cluster.devices[device].name for device in solution.assignment)
    whole, (evaluator, device_of) = evaluator, evaluator.as_run(placed(groups, wanted))
    if options.regroup:
        groups = evaluator.resolve(options.missing, in_full=groups is not first)
    found = Found(evaluator, groups, device_of, solution)
    if not solution.feasible:
        raise NothingFitsError(found, whole, way)
    return found


def _solve(problem: Problem, how: PlanOptions, part: float, seconds: float) -> Solution:
    """The best assignment, with fewer transfers where they save next to nothing.

    Each transfer is free, then has a price, so that those of the best assignment cost
    the cut penalty together: what is best then is worse by no more than that. Of what
    needs no more memory than the least, the fastest is searched instead.
    """
    steps = how.effort or STEPS_PER_SECOND * min(how.time_limit, 1e9)
    goal, penalty = how.objective, how.cut_penalty

    def solved(objective: str, share: float, *known: Ints, **changes: Any) -> Solution:
        return solve(
            replace(problem, **changes),
            objective=objective,
            time_limit=share * seconds,
            effort=math.ceil(share * part * steps),
            seed=how.seed,
            starts=known,
            on_progress=how.on_progress if objective == goal else None,
            prove=not known,
            enough=0.0 if known else penalty,
        )

    share = (1 - _FREE_SHARE) / (1 + (goal == "memory"))
    best = solved(goal, _FREE_SHARE if penalty else 1.0)
    cuts = cut_size(problem.graph, best.assignment)
    if not best.feasible or not penalty or not cuts:
        return best
    found = [best, solved(goal, share, best.assignment, cut_penalty=penalty / cuts)]
    alone = ((one, value_of(problem, goal, one)) for one in single_devices(problem))
    found += (replace(best, assignment=one, value=value) for one, value in alone)
    if goal == "memory":
        least = min(found, key=lambda one: one.value)
        room = problem.graph.capacity_bytes.clip(max=least.value)
        tight = problem.graph._replace(capacity_bytes=room)
        fast = solved("latency", share, least.assignment, graph=tight)
        place = (fast if fast.feasible else least).assignment
        return replace(best, assignment=place, value=value_of(problem, "memory", place))
    good = [one for one in found if one.value <= best.value * (1 + penalty)]
    calm = min(good, key=lambda o: (cut_size(problem.graph, o.assignment), o.value))
    return replace(calm, bound=best.bound)


def fits_somewhere(evaluator: Evaluator, seconds: float, contiguity: str) -> bool:
    """Whether a placement that fits is found in a moment."""
    groups = evaluator.resolve(in_full=True)
    problem = replace(evaluator.problem_of(groups), contiguity=contiguity)
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

    `whole` evaluates what was searched, with contiguity `way`, `evaluator` what runs.
    `need` has the bytes of each group wherever it is, `on` the groups of each device,
    the largest first, `full` the device that lacks most, `culprit` its largest group.
    """

    def __init__(self, found: Found, whole: Evaluator, way: str, fixed: bool) -> None:
        self.evaluator, self.groups = found.evaluator, found.groups
        self.whole, self.way, self.fixed_batch = whole, way, fixed
        self.graph, self.cluster = self.evaluator.graph, self.evaluator.cluster
        wanted = (found.device_of[group.parts[0]] for group in self.groups)
        self.device_of = placed(self.groups, wanted)
        requests = (Request(self.graph, self.cluster, p) for p in self.graph.parts)
        why = {r.part.name: r.reason(self.device_of[r.part.name])[0] for r in requests}
        self.pinned = {name for name, reason in why.items() if reason == "pin"}
        self.need = {g: self.evaluator.need(g.parts).total for g in self.groups}
        self.on: dict[str, list[Group]] = {device.name: [] for device in self.cluster}
        for group in sorted(self.groups, key=lambda group: -self.need[group]):
            self.on[self.device_of[group.parts[0]]].append(group)
        self.held = self.evaluator.evaluate(self.device_of).memory
        lacks = {d.name: self.held[d.name].total - d.memory_bytes for d in self.cluster}
        self.full, self.lacking = max(lacks.items(), key=itemgetter(1))
        self.culprit = self.on[self.full][0]

    def _name(self, group: Group) -> str:
        """The part that stands for a group: one that a person pinned, if any."""
        return min(group.parts, key=lambda part: part not in self.pinned)

    def text(self, known: Sequence[str]) -> str:
        """What does not fit, what is where, and what to try; `known` remedies first."""
        nothing = "nothing was found that would do; ask for less"
        last = f"  try       {', or '.join([*known, *self._remedies()]) or nothing}"
        for i, one in enumerate(self.groups):
            for other in (self.groups[j] for j in one.apart if i < j):
                where = self.device_of[one.parts[0]]
                if self.device_of[other.parts[0]] == where:
                    return (
                        f"apart= cannot be kept: {self._name(one)!r} and "
                        f"{self._name(other)!r} would share {where}.\n"
                        f"  allowed  {', '.join(one.allowed)}\n{last}"
                    )
        needs = self.evaluator.need(self.culprit.parts)
        held = ((f.name, getattr(needs, f.name)) for f in fields(needs))
        parts = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in held if n)
        parts = parts.replace("slots", "optimizer slots").replace("_", " ")
        allowed = {name for g in self.groups if self.need[g] for name in g.allowed}
        rooms = {d.name: d.memory_bytes for d in self.cluster if d.name in allowed}
        shown = ", ".join([*rooms][:_MOST_NAMED]) + " ..." * (len(rooms) > _MOST_NAMED)
        total = f"if held at once; {format_bytes(sum(rooms.values()))} on {shown}"
        rows = [_row("needs", needs.total, parts), *self._rooms()]
        rows.append(_row("in all", sum(self.need.values()), total))
        return "\n".join([self._headline(), *rows, last])

    def _headline(self) -> str:
        culprit, full, name = self.culprit, self.full, self._name(self.culprit)
        kind, allowed = self.graph.part[name].kind, culprit.allowed
        what = f"{kind} {name!r}"
        if len(culprit.parts) > 1:
            what += f" (with {len(culprit.parts) - 1} near it)"
        if len(allowed) == 1:
            chosen = " or the strategy put it" * (kind not in ("branch", "merge"))
            where = f"is declared{chosen}" if name in self.pinned else "must be"
            return f"{what} does not fit on {full}, where it {where}."
        if self.need[culprit] > max(self.cluster[d].memory_bytes for d in allowed):
            names = ", ".join(allowed)
            return f"{what} does not fit on any device it may use ({names})."
        least = f"the least that was found lacks memory on {full}, where {what} is the"
        return f"the parts of {self.graph.name!r} do not fit together; {least} largest."

    def _rooms(self) -> Iterator[str]:
        """A line per device: what is free there without the culprit, what fills it."""
        names = dict.fromkeys([self.full, *self.culprit.allowed, *self.on])
        for device in list(names)[:_MOST_NAMED]:
            room, taken = self.cluster[device].memory_bytes, self.held[device].total
            taken = max(0, taken - self.need[self.culprit] * (device == self.full))
            text = f"{'free' if taken <= room else 'missing'} of {format_bytes(room)}"
            others = [g for g in self.on[device] if g != self.culprit and self.need[g]]
            for group in others[:2]:
                name, what = self._name(group), "is"
                if len(group.allowed) == 1:
                    what = "is pinned" if name in self.pinned else "must be"
                text += f"; {name!r} {what} there with {format_bytes(self.need[group])}"
            rest = taken - sum(self.need[group] for group in others)
            if rest > 0.01 * room:
                text += f"; updates and copies take {format_bytes(rest)}"
            yield _row(device, abs(room - taken), text)

    def _remedies(self) -> Iterator[str]:
        """The changes that would do, the one that costs least first."""
        graph, cluster = self.whole.graph, self.cluster
        kind, batch, lacks = cluster[self.full].kind, graph.batch, self.lacking > 0
        runs_in = {a.part: b.part for a, b in zip(graph.calls, self.graph.calls)}
        pins = [g for g in self.on[self.full] if not self.pinned.isdisjoint(g.parts)]
        if self.way != "free" and fits_somewhere(self.whole, _TRY_SECONDS, "free"):
            yield 'contiguity="free"'

        def freed(n: int) -> dict[str, Graph]:
            names = self.pinned & {part for group in pins[:n] for part in group.parts}
            free = {part: kind for part, name in runs_in.items() if name in names}
            return {"graph": with_pins(graph, free)}

        if n := self._least(len(pins), freed):
            names = [p for g in pins[:n] for p in g.parts if p in self.pinned]
            there, those = self.graph.part[names[0]].on, ", ".join(map(repr, names))
            yield f'on="{kind}" instead of on="{", ".join(there)}" for {those}'
        few = len(graph.calls) <= _MOST_CALLS and not self.fixed_batch
        most = (batch - 1) * (lacks and few)
        if n := self._least(most, lambda n: {"graph": scaled_graph(graph, batch - n)}):
            yield f"batch <= {batch - n}"
        gpus = cluster.of_kind("gpu") or cluster.devices
        like = max(gpus, key=lambda device: device.memory_bytes)
        ends = (one.rpartition(":") for d in cluster for one in (d.name, d.target))
        start, host = 1 + max(int(end[2]) for end in ends), like.name.rpartition(":")[0]
        names = [f"{host}:{start + i}" for i in range(_MOST_MORE)]
        more = [replace(like, name=n, target=tensorflow_name(n)) for n in names]

        def enlarged(n: int, twentieths: int = 20) -> dict[str, Cluster]:
            every = (*cluster.devices, *more[:n])
            rooms = [device.memory_bytes * twentieths // 20 for device in every]
            made = (replace(d, memory_bytes=room) for d, room in zip(every, rooms))
            return {"cluster": replace(cluster, devices=tuple(made))}

        if n := self._least(_MOST_MORE, enlarged):
            yield f"{n} more device{'s' * (n > 1)} like {like.name}"
        if n := self._least(_MOST_GROWN * lacks, lambda n: enlarged(0, 20 + n)):
            yield f"{1 + n / 20:.4g} times the memory everywhere"

    def _least(self, most: int, changes: Callable[[int], dict[str, Any]]) -> int:
        """The least n for which changes of the evaluator do, 0 if none in time does."""
        left = _REMEDY_SECONDS

        def fits(n: int, seconds: float = _TRY_SECONDS) -> bool:
            nonlocal left
            began = monotonic()
            one = replace(self.whole, **changes(n))
            found = left > 0 and fits_somewhere(one, seconds, self.way)
            left -= min(monotonic() - began, _TRY_SECONDS)
            return found

        if most and not (fits(most // 2 + 1) or fits(most)):
            return 0  # nor does what is between
        least = (1 + bisect(range(1, most + 1), False, key=fits)) % (most + 1)
        while least > 1 and fits(least - 1, _SURE_SECONDS):
            least -= 1
        return least


def _row(name: str, count: int, text: str) -> str:
    return f"  {name:<8} {format_bytes(count):>9}  {text}".rstrip()
