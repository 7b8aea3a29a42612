"""Say why nothing fits, and the smallest changes that would make it fit.

Every remedy is planned before it is named.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from splitnet.core.cluster import Cluster, Device
from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.planner.constraints import Group, Request, with_pins
from splitnet.planner.engine.solve import solve
from splitnet.planner.evaluate import Evaluator, Found, placed
from splitnet.simulator.batch import largest_true, scaled_graph

_TRY_SECONDS = 0.5
"""How long a placement that fits is looked for."""
_REMEDY_SECONDS = 6.0
"""How long each kind of remedy may be looked for."""
_MOST_CALLS = 10_000
"""Calls of a graph for which a smaller batch is looked for."""
_MOST_MORE = 64
_MOST_NAMED = 8


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


def infeasible_error(found: Found, known: Sequence[str] = ()) -> InfeasibleError:
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
