"""Say why nothing fits, and the smallest changes that would make it fit.

Every remedy is planned before it is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from splitnet.core.cluster import Cluster, Device
from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.core.plan import Memory
from splitnet.planner.constraints import Constraint, Group
from splitnet.planner.evaluate import Evaluator
from splitnet.simulator.microbatch import largest_true, scaled_graph

__all__ = ["Case", "infeasible_error"]

_MOST_PLAYS = 400_000
"""Calls that may be simulated to find the largest batch: a second or two."""
_MOST_DEVICES_MORE = 8
_ROWS = 8


class Fits(Protocol):
    """Whether a changed problem has a solution."""

    def __call__(
        self,
        evaluator: Evaluator,
        *,
        pins: Mapping[str, str] | None = None,
        hard: bool = False,
    ) -> bool:
        """Plan for a moment, with other requests for some parts; longer if `hard`."""
        ...


@dataclass(frozen=True)
class Case:
    """A problem without a solution, and the least broken placement that was found."""

    evaluator: Evaluator
    groups: Sequence[Group]
    constraints: Mapping[str, Constraint]
    device_of: Mapping[str, str]
    fits: Fits

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


def infeasible_error(case: Case) -> InfeasibleError:
    """The error for a case: what does not fit, what is where, and what to try."""
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
    return f"  {name:<8} {format_bytes(max(0, count)):>9}  {text}".rstrip()


def _breakdown(memory: Memory) -> str:
    shown = (
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("optimizer slots", memory.slots),
        ("activations", memory.activations),
        ("workspace", memory.workspace),
    )
    return ", ".join(f"{name} {format_bytes(n)}" for name, n in shown if n)


def _sum_line(case: Case, needs: Mapping[tuple[str, ...], Memory]) -> str:
    """What all parts need together, and what all devices have."""
    total = sum(memory.total for memory in needs.values())
    room = sum(device.memory_bytes for device in case.cluster)
    text = f"for all parts, without copies; the devices have {format_bytes(room)}"
    return _row("in all", total, text)


def _headline(case: Case, culprit: Group, full: str, need: Memory) -> str:
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
    case: Case,
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
        text = f"free of {format_bytes(room)}"
        text += f"; {', '.join(filled)}" if filled else ""
        lines.append(_row(name, room - taken, text))
    if len(shown) > _ROWS:
        lines.append(f"  ... and {len(shown) - _ROWS} devices more")
    return lines


def _filled_by(
    case: Case, others: Sequence[Group], needs: Mapping[tuple[str, ...], Memory]
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


def _apart_text(case: Case, a: int, b: int) -> str:
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


def _remedies(case: Case, culprit: Group, full: str, lack: int) -> list[str]:
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


def _fewer_pins(case: Case, culprit: Group, full: str) -> list[str]:
    """The fewest pins of the full device that are too many, the culprit's first."""
    kind = case.cluster[full].kind
    pinned = [group for group in case.on(full) if case.pinned(group)]
    size = {g.parts: case.evaluator.need(g.parts).total for g in pinned}
    pinned.sort(key=lambda g: (g != culprit, -size[g.parts]))

    def short(count: int) -> bool:
        freed = {part: kind for group in pinned[:count] for part in group.parts}
        return not case.fits(case.evaluator, pins=freed)

    if not pinned or short(len(pinned)):
        return []
    count = 1 + largest_true(short, len(pinned) - 1)
    names = [case.name(group) for group in pinned[:count]]
    requested = case.constraints[names[0]].requested
    text = f'on="{kind}" instead of on="{requested}"'
    if names == [case.name(culprit)]:
        return [text]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"{text} for {', '.join(map(repr, names[:3]))}{more}"]


def _smaller_batch(case: Case) -> int:
    """The largest batch found to fit: a quick search, then a longer one above it."""
    graph = case.evaluator.graph
    tries = max(4, _MOST_PLAYS // max(1, len(graph.calls)) // 4)
    if tries < 2 * graph.batch.bit_length():
        return 0
    known = 0

    def holds(more: int) -> bool:
        smaller = replace(case.evaluator, graph=scaled_graph(graph, known + more))
        return case.fits(smaller, hard=known > 0)

    known = largest_true(holds, graph.batch - 1)
    return known + largest_true(holds, graph.batch - 1 - known) if known else 0


def _more_devices(case: Case) -> list[str]:
    """The fewest devices like the largest GPU that would do, in words."""
    cluster = case.cluster
    for count in range(1, _MOST_DEVICES_MORE + 1):
        cluster = _with_one_more(cluster)
        if case.fits(replace(case.evaluator, cluster=cluster)):
            new = [device.name for device in cluster.devices[-count:]]
            if count == 1:
                return [f"one device more ({new[0]})"]
            return [f"{count} devices more ({new[0]} .. {new[-1]})"]
    return []


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


def _more_memory(case: Case, full: str, lack: int) -> int:
    """The least bytes on one device that help, to a sixteenth of the lack; or 0."""

    def short(sixteenths: int) -> bool:
        more = ceil(lack * sixteenths / 16)
        devices = tuple(
            replace(d, memory_bytes=d.memory_bytes + more * (d.name == full))
            for d in case.cluster
        )
        return not _fits_on(case, devices)

    if lack <= 0 or short(16):
        return 0
    return ceil(lack * (1 + largest_true(short, 15)) / 16)


def _larger_everywhere(case: Case) -> str:
    """The least factor, to a twentieth, by which all memory would have to grow."""

    def short(twentieths: int) -> bool:
        grow = 1 + twentieths / 20
        devices = tuple(
            replace(d, memory_bytes=int(d.memory_bytes * grow)) for d in case.cluster
        )
        return not _fits_on(case, devices)

    most = 20 * 32
    steps = 1 + largest_true(short, most)
    if steps > most:
        return "a smaller model, much larger devices, or fewer pins"
    return f"{1 + steps / 20:.3g} times the memory on every device"


def _fits_on(case: Case, devices: tuple[Device, ...]) -> bool:
    cluster = replace(case.cluster, devices=devices)
    return case.fits(replace(case.evaluator, cluster=cluster))
