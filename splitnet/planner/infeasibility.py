"""Say why nothing fits, and the smallest changes that would make it fit.

Every remedy is planned before it is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic

from splitnet.core.cluster import Cluster, Device
from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.core.graph import Part
from splitnet.core.plan import Memory
from splitnet.planner.constraints import Constraint, Group, Pins, requests_of, resolve
from splitnet.planner.engine.solve import solve
from splitnet.planner.evaluate import Evaluator
from splitnet.simulator.microbatch import largest_true, scaled_graph

__all__ = ["fits_somewhere", "infeasible_error"]

_TRY_SECONDS, _HARD_SECONDS = 0.3, 1.0
"""How long a placement that fits is looked for, and how long where it is worth more."""
_REMEDY_SECONDS = 6.0
"""How long each kind of remedy may be looked for."""
_MOST_PLAYS = 400_000
"""Calls that may be simulated to find the largest batch: a second or two."""
_MOST_DEVICES_MORE = 64
_ROWS = 8


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
    problem = evaluator.problem_of(groups)
    need, room = problem.graph.size_bytes, problem.graph.capacity_bytes
    number = {device.name: i for i, device in enumerate(evaluator.cluster)}
    for allowed in dict.fromkeys(group.allowed for group in groups):
        inside = [i for i, g in enumerate(groups) if set(g.allowed) <= set(allowed)]
        if need[inside].sum() > room[[number[device] for device in allowed]].sum():
            return False
    return any(
        solve(problem, objective=objective, time_limit=seconds).feasible
        for objective in dict.fromkeys(("memory", evaluator.objective))
    )


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

    def name(self, group: Group) -> str:
        """The part that stands for its group: the one with a request of its own."""
        reasons = ("pin", "no kernel", "fallback")
        firm = [p for p in group.parts if self.constraints[p].reason in reasons]
        return (firm or list(group.parts))[0]

    def on(self, device: str) -> list[Group]:
        """The groups on a device."""
        return [g for g in self.groups if self.device_of[g.parts[0]] == device]

    def pinned(self, group: Group) -> bool:
        """Whether a part of the group is pinned."""
        return any(self.constraints[p].reason == "pin" for p in group.parts)

    def fits(
        self,
        evaluator: Evaluator,
        pins: Mapping[str, str] | None = None,
        *,
        hard: bool = False,
    ) -> bool:
        """Whether it fits with other requests for some parts; sought longer if hard."""
        requests = requests_of(self.evaluator.graph, self.pins)

        def on(part: Part) -> tuple[str, ...] | None:
            if pins and part.name in pins:
                return (pins[part.name],)
            requested, pinned = requests[part.name]
            return requested if pinned else None

        seconds = _HARD_SECONDS if hard else _TRY_SECONDS
        return fits_somewhere(evaluator, on, seconds=seconds)


def infeasible_error(
    evaluator: Evaluator,
    groups: Sequence[Group],
    constraints: Mapping[str, Constraint],
    device_of: Mapping[str, str],
    pins: Pins | None,
) -> InfeasibleError:
    """The error for a problem: what does not fit, what is where, and what to try.

    `device_of` is the least broken placement that was found.
    """
    there = {
        part: device_of[part] if device_of[part] in group.allowed else group.allowed[0]
        for group in groups
        for part in group.parts
    }
    case = _Case(evaluator, groups, constraints, there, pins)
    number = {part: i for i, group in enumerate(case.groups) for part in group.parts}
    for i, group in enumerate(case.groups):
        for j in group.apart:
            a, b = group.parts[0], case.groups[j].parts[0]
            if i < j and case.device_of[a] == case.device_of[b]:
                return InfeasibleError(_apart_text(case, number[a], number[b]))
    held = case.evaluator.evaluate(case.device_of).outcome.memory
    excess = {d.name: held[d.name].total - d.memory_bytes for d in case.cluster}
    full = max(excess, key=excess.__getitem__)
    needs = {group.parts: case.evaluator.need(group.parts) for group in case.groups}
    culprit = max(case.on(full), key=lambda g: needs[g.parts].total)
    lines = [
        _headline(case, culprit, full, needs[culprit.parts]),
        _row("needs", needs[culprit.parts].total, _breakdown(needs[culprit.parts])),
        *_rooms(case, culprit, full, needs, held),
        _sum_line(case, needs),
        f"  try      {', or '.join(_remedies(case, culprit, full, excess[full]))}",
    ]
    return InfeasibleError("\n".join(lines))


def _row(name: str, count: int, text: str) -> str:
    return f"  {name:<8} {format_bytes(count):>9}  {text}".rstrip()


def _breakdown(memory: Memory) -> str:
    shown = (
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("optimizer slots", memory.slots),
        ("activations", memory.activations),
        ("workspace", memory.workspace),
    )
    return ", ".join(f"{name} {format_bytes(n)}" for name, n in shown if n)


def _sum_line(case: _Case, needs: Mapping[tuple[str, ...], Memory]) -> str:
    """What all parts need together, and what all devices have."""
    total = sum(memory.total for memory in needs.values())
    allowed = {
        device for g in case.groups if needs[g.parts].total for device in g.allowed
    }
    room = sum(d.memory_bytes for d in case.cluster if d.name in allowed)
    text = f"for all parts, without copies; {format_bytes(room)} on "
    names = [device.name for device in case.cluster if device.name in allowed]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return _row("in all", total, f"{text}{', '.join(names[:8])}{more}")


def _headline(case: _Case, culprit: Group, full: str, need: Memory) -> str:
    name = case.name(culprit)
    graph = case.evaluator.graph
    what = f"{graph.part[name].kind} {name!r}"
    near = len(culprit.parts) - 1
    if near:
        what += f" (with {near} near it)"
    if len(culprit.allowed) == 1:
        pinned = case.constraints[name].reason == "pin"
        where = "where it is declared" if pinned else "where it must be"
        return f"{what} does not fit on {culprit.allowed[0]}, {where}."
    if all(need.total > case.cluster[d].memory_bytes for d in culprit.allowed):
        names = ", ".join(culprit.allowed)
        return f"{what} does not fit on any device it may use ({names})."
    return (
        f"the parts of {graph.name!r} do not fit together; the least that was found "
        f"lacks memory on {full}, where {what} is the largest."
    )


def _rooms(
    case: _Case,
    culprit: Group,
    full: str,
    needs: Mapping[tuple[str, ...], Memory],
    held: Mapping[str, Memory],
) -> list[str]:
    """A line per device: what is free there, and what fills it."""
    names = [full, *culprit.allowed, *(device.name for device in case.cluster)]
    shown = list(dict.fromkeys(names))
    lines = []
    for name in shown[:_ROWS]:
        room = case.cluster[name].memory_bytes
        others = [g for g in case.on(name) if g != culprit and needs[g.parts].total]
        taken = held[name].total - (needs[culprit.parts].total if name == full else 0)
        rest = taken - sum(needs[g.parts].total for g in others)
        filled = _filled_by(case, others, needs)
        if rest > 0:
            filled.append(f"copies and workspace take {format_bytes(rest)}")
        text = f"{'free' if taken <= room else 'missing'} of {format_bytes(room)}"
        text += f"; {', '.join(filled)}" if filled else ""
        lines.append(_row(name, abs(room - taken), text))
    if len(shown) > _ROWS:
        lines.append(f"  ... and {len(shown) - _ROWS} devices more")
    return lines


def _filled_by(
    case: _Case, others: Sequence[Group], needs: Mapping[tuple[str, ...], Memory]
) -> list[str]:
    ranked = sorted(others, key=lambda g: -needs[g.parts].total)
    texts = []
    for group in ranked[:2]:
        name = case.name(group)
        what = "is"
        if len(group.allowed) == 1:
            pinned = case.constraints[name].reason == "pin"
            what = "is pinned" if pinned else "must be"
        texts.append(
            f"{name!r} {what} there with {format_bytes(needs[group.parts].total)}"
        )
    if len(ranked) > 2:
        rest = sum(needs[g.parts].total for g in ranked[2:])
        texts.append(f"{len(ranked) - 2} more with {format_bytes(rest)}")
    return texts


def _apart_text(case: _Case, a: int, b: int) -> str:
    """Too many parts that must be apart for the devices they may use."""
    first, second = case.groups[a], case.groups[b]
    found = [*_more_devices(case), "fewer apart=, or wider on="]
    return "\n".join(
        [
            f"apart= cannot be kept: {case.name(first)!r} and {case.name(second)!r} "
            f"would share {case.device_of[first.parts[0]]}.",
            f"  allowed  {', '.join(first.allowed)}",
            f"  try      {', or '.join(found)}",
        ]
    )


def _remedies(case: _Case, culprit: Group, full: str, lack: int) -> list[str]:
    """The changes that would do, the one that costs least first."""
    found = [*_fewer_pins(case, culprit, full)]
    batch = _smaller_batch(case)
    if batch:
        found.append(f"batch <= {batch}")
    found += _more_devices(case)
    more = _more_memory(case, full, lack)
    if more:
        found.append(f"{format_bytes(more)} more memory on {full}")
    return found or [_larger_everywhere(case)]


def _fewer_pins(case: _Case, culprit: Group, full: str) -> list[str]:
    """The fewest pins of the full device that are too many, the culprit's first."""
    kind = case.cluster[full].kind
    pinned = [group for group in case.on(full) if case.pinned(group)]
    size = {g.parts: case.evaluator.need(g.parts).total for g in pinned}
    pinned.sort(key=lambda g: (g != culprit, -size[g.parts]))

    def short(count: int) -> bool:
        freed = {part: kind for group in pinned[:count] for part in group.parts}
        return not case.fits(case.evaluator, pins=freed)

    count = _least(short, len(pinned))
    if count is None:
        return []
    names = [case.name(group) for group in pinned[:count]]
    requested = case.constraints[names[0]].requested
    text = f'on="{kind}" instead of on="{requested}"'
    if names == [case.name(culprit)]:
        return [text]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"{text} for {', '.join(map(repr, names[:3]))}{more}"]


def _smaller_batch(case: _Case) -> int:
    """The largest batch found to fit: a quick search, then a longer one above it."""
    graph = case.evaluator.graph
    tries = max(4, _MOST_PLAYS // max(1, len(graph.calls)) // 4)
    if tries < 2 * graph.batch.bit_length():
        return 0
    known, clock = 0, _Clock(_REMEDY_SECONDS)

    def holds(more: int) -> bool:
        smaller = replace(case.evaluator, graph=scaled_graph(graph, known + more))
        return not clock.over and clock.timed(
            lambda: case.fits(smaller, hard=known > 0)
        )

    known = largest_true(holds, graph.batch - 1)
    return known + largest_true(holds, graph.batch - 1 - known) if known else 0


def _more_devices(case: _Case) -> list[str]:
    """How many devices like the largest GPU would do, in words."""
    before = {device.name for device in case.cluster}
    clusters = [case.cluster]
    for _ in range(_MOST_DEVICES_MORE):
        clusters.append(_with_one_more(clusters[-1]))

    def short(count: int) -> bool:
        larger = replace(case.evaluator, cluster=clusters[count])
        return not case.fits(larger, hard=True)

    count = _least(short, _MOST_DEVICES_MORE)
    if count is None:
        return []
    new = [device.name for device in clusters[count] if device.name not in before]
    same = len(clusters[count].of_kind(clusters[count][new[0]].kind))
    if count == 1:
        return [f"one device more ({new[0]})"]
    return [f"{count} devices more ({new[0]} .. {new[-1]}), {same} of the kind in all"]


def _least(short: Callable[[int], bool], most: int) -> int | None:
    """The least number, from 1, that was found not to fall short; None if none was."""
    clock = _Clock(_REMEDY_SECONDS)
    enough: list[int] = []

    def still(number: int) -> bool:
        if clock.over or clock.timed(lambda: short(number)):
            return True
        enough.append(number)
        return False

    largest_true(still, most)
    return min(enough, default=None)


class _Clock:
    """Seconds that tries may take; compiling the search, once, does not count."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self._left <= 0

    def timed(self, tried: Callable[[], bool]) -> bool:
        """The result of a try, the time of which is taken off."""
        began = monotonic()
        result = tried()
        self._left -= min(monotonic() - began, _HARD_SECONDS)
        return result


def _with_one_more(cluster: Cluster) -> Cluster:
    """The cluster with one more of its largest GPU, or else of its largest device."""
    devices = cluster.of_kind("gpu") or cluster.devices
    largest = max(devices, key=lambda device: device.memory_bytes)
    prefix, _, number = largest.name.rpartition(":")
    free = int(number)
    while f"{prefix}:{free}" in cluster:
        free += 1
    another = replace(largest, name=f"{prefix}:{free}")
    return replace(cluster, devices=(*cluster.devices, another))


def _more_memory(case: _Case, full: str, lack: int) -> int:
    """The least bytes on one device that help, to a sixteenth of the lack; or 0."""

    def short(sixteenths: int) -> bool:
        more = ceil(lack * sixteenths / 16)
        return not _fits_with(case, lambda d: more * (d.name == full))

    sixteenths = _least(short, 16) if lack > 0 else None
    return ceil(lack * sixteenths / 16) if sixteenths else 0


def _larger_everywhere(case: _Case) -> str:
    """The least factor, to a twentieth, by which all memory would have to grow."""

    def short(twentieths: int) -> bool:
        return not _fits_with(case, lambda d: int(d.memory_bytes * twentieths / 20))

    steps = _least(short, 20 * 32)
    if steps is None:
        return "a smaller model, much larger devices, or fewer pins"
    return f"{1 + steps / 20:.3g} times the memory on every device"


def _fits_with(case: _Case, more: Callable[[Device], int]) -> bool:
    """Whether it fits with more bytes on the devices."""
    devices = (replace(d, memory_bytes=d.memory_bytes + more(d)) for d in case.cluster)
    cluster = replace(case.cluster, devices=tuple(devices))
    return case.fits(replace(case.evaluator, cluster=cluster))
