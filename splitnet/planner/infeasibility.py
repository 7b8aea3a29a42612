"""Say why nothing fits, and the smallest changes that would make it fit.

Every remedy is planned before it is named.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic

from splitnet.core.cluster import Cluster
from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.core.graph import Part
from splitnet.core.timeline import Memory
from splitnet.planner.constraints import Constraint, Group, Pins, requests_of, resolve
from splitnet.planner.engine.solve import solve
from splitnet.planner.evaluate import Evaluator, placed
from splitnet.simulator.microbatch import largest_true, scaled_graph

_TRY_SECONDS, _HARD_SECONDS = 0.3, 1.0
"""How long a placement that fits is looked for, and how long where it is worth more."""
_REMEDY_SECONDS = 6.0
"""How long each kind of remedy may be looked for."""
_MOST_CALLS = 10_000
"""Calls of a graph for which a smaller batch is looked for."""
_MOST_DEVICES_MORE = 64
_ROWS = 8
_NOTHING = "nothing was found that would do; ask for less"


def fits_somewhere(
    evaluator: Evaluator, pins: Pins | None = None, *, seconds: float = _TRY_SECONDS
) -> bool:
    """Whether a placement that fits is found in a moment."""
    graph, cluster = evaluator.graph, evaluator.cluster
    _, groups = resolve(graph, cluster, evaluator.load, pins=pins, whole_lists=True)
    problem = evaluator.problem_of(groups)
    need, room = problem.graph.size_bytes, problem.graph.capacity_bytes
    number = {device.name: i for i, device in enumerate(evaluator.cluster)}
    for allowed in dict.fromkeys(group.allowed for group in groups):
        inside = [i for i, g in enumerate(groups) if set(g.allowed) <= set(allowed)]
        there = room[[number[device] for device in allowed]]
        if need[inside].sum() > there.sum() or need[inside].max() > there.max():
            return False
    found = solve(
        problem, objective="memory", time_limit=seconds, prove=False, until_found=True
    )
    return found.feasible


@dataclass(frozen=True)
class _Case:
    """A problem without a solution, and the least broken placement that was found."""

    evaluator: Evaluator
    groups: Sequence[Group]
    constraints: Mapping[str, Constraint]
    device_of: Mapping[str, str]
    pins: Pins | None

    @property
    def cluster(self) -> Cluster:
        """The devices that do not suffice."""
        return self.evaluator.cluster

    @cached_property
    def held(self) -> Mapping[str, Memory]:
        """What every device would hold."""
        return self.evaluator.evaluate(self.device_of).memory

    @cached_property
    def needs(self) -> Mapping[tuple[str, ...], Memory]:
        """What each group needs wherever it is, by its parts."""
        return {group.parts: self.evaluator.need(group.parts) for group in self.groups}

    def need(self, *groups: Group) -> int:
        """The bytes of some groups."""
        return sum(self.needs[group.parts].total for group in groups)

    def name(self, group: Group) -> str:
        """The part that stands for its group: the one with a request of its own."""
        reasons = ("pin", "no kernel", "fallback")
        firm = [p for p in group.parts if self.constraints[p].reason in reasons]
        return (firm or list(group.parts))[0]

    def on(self, device: str) -> list[Group]:
        """The groups on a device, the largest first."""
        there = [g for g in self.groups if self.device_of[g.parts[0]] == device]
        return sorted(there, key=lambda group: -self.need(group))

    def fits(
        self,
        *,
        pins: Mapping[str, str] | None = None,
        hard: bool = False,
        **changes: object,
    ) -> bool:
        """Whether it fits with other pins or changes of the evaluator.

        A `hard` case is looked at for longer.
        """
        requests = requests_of(self.evaluator.graph, self.pins)

        def on(part: Part) -> tuple[str, ...] | None:
            if pins and part.name in pins:
                return (pins[part.name],)
            requested, pinned = requests[part.name]
            return requested if pinned else None

        evaluator = replace(self.evaluator, **changes)  # type: ignore[arg-type]  # names of its fields
        seconds = _HARD_SECONDS if hard else _TRY_SECONDS
        return fits_somewhere(evaluator, on, seconds=seconds)


def infeasible_error(
    evaluator: Evaluator,
    groups: Sequence[Group],
    constraints: Mapping[str, Constraint],
    device_of: Mapping[str, str],
    pins: Pins | None,
    remedies: Sequence[str] = (),
) -> InfeasibleError:
    """The error for a problem: what does not fit, what is where, and what to try.

    `device_of` is the least broken placement that was found; `remedies` are known to
    do, and are named first.
    """
    there = placed(groups, (device_of[group.parts[0]] for group in groups))
    case = _Case(evaluator, groups, constraints, there, pins)
    for i, one in enumerate(groups):
        for other in (groups[j] for j in one.apart if i < j):
            if there[one.parts[0]] == there[other.parts[0]]:
                return InfeasibleError(
                    f"apart= cannot be kept: {case.name(one)!r} and "
                    f"{case.name(other)!r} would share {there[one.parts[0]]}.\n"
                    f"  allowed  {', '.join(one.allowed)}\n"
                    f"  try      {', or '.join(_more_devices(case) or [_NOTHING])}"
                )
    excess = {d.name: case.held[d.name].total - d.memory_bytes for d in case.cluster}
    full = max(excess, key=excess.__getitem__)
    culprit = case.on(full)[0]
    needs = case.needs[culprit.parts]
    kinds = {
        "weights": needs.weights,
        "gradients": needs.gradients,
        "optimizer slots": needs.slots,
        "activations": needs.activations,
        "workspace": needs.workspace,
    }
    parts = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in kinds.items() if n)
    allowed = {d for g in groups if case.need(g) for d in g.allowed}
    devices = [device for device in case.cluster if device.name in allowed]
    room = format_bytes(sum(device.memory_bytes for device in devices))
    names = _few([device.name for device in devices], 8)
    without = f"without copies; {room} on {names}"
    lines = [
        _headline(case, culprit, full),
        _row("needs", needs.total, parts),
        *_rooms(case, culprit, full),
        _row("in all", case.need(*groups), f"for all parts, {without}"),
        f"  try      {', or '.join([*remedies, *_remedies(case, culprit, full)])}",
    ]
    return InfeasibleError("\n".join(lines))


def _row(name: str, count: int, text: str) -> str:
    return f"  {name:<8} {format_bytes(count):>9}  {text}".rstrip()


def _few(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _headline(case: _Case, culprit: Group, full: str) -> str:
    name, graph = case.name(culprit), case.evaluator.graph
    what = f"{graph.part[name].kind} {name!r}"
    if len(culprit.parts) > 1:
        what += f" (with {len(culprit.parts) - 1} near it)"
    if len(culprit.allowed) == 1:
        where = "is declared" if case.constraints[name].reason == "pin" else "must be"
        return f"{what} does not fit on {culprit.allowed[0]}, where it {where}."
    if all(case.need(culprit) > case.cluster[d].memory_bytes for d in culprit.allowed):
        names = ", ".join(culprit.allowed)
        return f"{what} does not fit on any device it may use ({names})."
    return (
        f"the parts of {graph.name!r} do not fit together; the least that was found "
        f"lacks memory on {full}, where {what} is the largest."
    )


def _rooms(case: _Case, culprit: Group, full: str) -> Iterator[str]:
    """A line per device: what is free there, and what fills it."""
    names = [full, *culprit.allowed, *(device.name for device in case.cluster)]
    shown = list(dict.fromkeys(names))
    for name in shown[:_ROWS]:
        room = case.cluster[name].memory_bytes
        others = [g for g in case.on(name) if g != culprit and case.need(g)]
        taken = case.held[name].total - (case.need(culprit) if name == full else 0)
        filled = []
        for group in others[:2]:
            part, what = case.name(group), "is"
            if len(group.allowed) == 1:
                pinned = case.constraints[part].reason == "pin"
                what = "is pinned" if pinned else "must be"
            filled.append(
                f"{part!r} {what} there with {format_bytes(case.need(group))}"
            )
        if len(others) > 2:
            more = format_bytes(case.need(*others[2:]))
            filled.append(f"{len(others) - 2} more with {more}")
        rest = taken - case.need(*others)
        if rest > 0:
            filled.append(f"copies and workspace take {format_bytes(rest)}")
        text = f"{'free' if taken <= room else 'missing'} of {format_bytes(room)}"
        text += f"; {', '.join(filled)}" if filled else ""
        yield _row(name, abs(room - taken), text)
    if len(shown) > _ROWS:
        yield f"  ... and {len(shown) - _ROWS} devices more"


def _remedies(case: _Case, culprit: Group, full: str) -> list[str]:
    """The changes that would do, the one that costs least first."""
    return [
        *_fewer_pins(case, culprit, full),
        *_smaller_batch(case),
        *_more_devices(case),
        *_more_memory(case),
    ] or [_NOTHING]


def _fewer_pins(case: _Case, culprit: Group, full: str) -> list[str]:
    """The fewest pins of the full device that are too many, the culprit's first."""
    kind = case.cluster[full].kind
    groups = sorted(case.on(full), key=lambda group: group != culprit)
    pinned = [
        [part for part in group.parts if case.constraints[part].reason == "pin"]
        for group in groups
    ]
    pinned = [parts for parts in pinned if parts]
    count = _least(
        lambda count: case.fits(pins=dict.fromkeys(sum(pinned[:count], []), kind)),
        len(pinned),
    )
    if count is None:
        return []
    names = sum(pinned[:count], [])
    text = f'on="{kind}" instead of on="{case.constraints[names[0]].requested}"'
    return [f"{text} for {', '.join(map(repr, names))}"]


def _smaller_batch(case: _Case) -> list[str]:
    """The largest batch found to fit: a quick search, then a longer one above it."""
    graph = case.evaluator.graph
    if len(graph.calls) > _MOST_CALLS:
        return []

    def fits(batch: int) -> bool:
        return case.fits(graph=scaled_graph(graph, batch), hard=known > 0)

    known, tried = 0, _in_time(fits)
    known = largest_true(tried, graph.batch - 1)
    if known:
        known += largest_true(lambda n: tried(known + n), graph.batch - 1 - known)
    return [f"batch <= {known}"] if known else []


def _more_devices(case: _Case) -> list[str]:
    """How many devices like the largest GPU would do, in words."""
    devices = case.cluster.of_kind("gpu") or case.cluster.devices
    largest = max(devices, key=lambda device: device.memory_bytes)
    prefix, _, number = largest.name.rpartition(":")
    numbers = range(int(number), int(number) + _MOST_DEVICES_MORE + len(devices))
    names = (f"{prefix}:{n}" for n in numbers)
    new = [replace(largest, name=name) for name in names if name not in case.cluster]

    def fits(count: int) -> bool:
        larger = (*case.cluster.devices, *new[:count])
        return case.fits(cluster=replace(case.cluster, devices=larger), hard=True)

    count = _least(fits, _MOST_DEVICES_MORE)
    if count is None:
        return []
    if count == 1:
        return [f"one device more ({new[0].name})"]
    span = f"{new[0].name} .. {new[count - 1].name}"
    same = len(case.cluster.of_kind(largest.kind)) + count
    return [f"{count} devices more ({span}), {same} of the kind in all"]


def _more_memory(case: _Case) -> list[str]:
    """How many times the memory every device would have to have, to a twentieth."""

    def fits(twentieths: int) -> bool:
        devices = tuple(
            replace(d, memory_bytes=d.memory_bytes * (20 + twentieths) // 20)
            for d in case.cluster
        )
        return case.fits(cluster=replace(case.cluster, devices=devices))

    steps = _least(fits, 20 * 32)
    return (
        [] if steps is None else [f"{1 + steps / 20:.3g} times the memory everywhere"]
    )


def _least(fits: Callable[[int], bool], most: int) -> int | None:
    """The least number, from 1, that was found to do; None if none was."""
    tried, enough = _in_time(fits), list[int]()

    def short(number: int) -> bool:
        if tried(number):
            enough.append(number)
        return number not in enough

    largest_true(short, most)
    return min(enough, default=None)


def _in_time(fits: Callable[[int], bool]) -> Callable[[int], bool]:
    """The property while there is time to look at it, and then never.

    A try counts for `_HARD_SECONDS` at most: compiling the search, once, is left out.
    """
    left = _REMEDY_SECONDS

    def tried(number: int) -> bool:
        nonlocal left
        began = monotonic()
        found = left > 0 and fits(number)
        left -= min(monotonic() - began, _HARD_SECONDS)
        return found

    return tried
