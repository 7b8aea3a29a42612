"""Say why nothing fits, and the smallest change that would make it fit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from splitnet.core.batches import largest_true, rebatched
from splitnet.core.board import Assignment, Board
from splitnet.core.cluster import Cluster
from splitnet.core.devices import Device
from splitnet.core.errors import InfeasibleError
from splitnet.core.graph import Graph
from splitnet.core.plan import Memory
from splitnet.core.units import format_bytes
from splitnet.core.wishes import Group, Wish

__all__ = ["Case", "Fits", "infeasible_error"]

_MOST_PLAYS = 400_000
"""Calls that may be played to find a remedy: a second or two."""


Fits = Callable[[Graph, Cluster, Sequence[str], str], bool]


@dataclass(frozen=True)
class Case:
    """A problem that has no answer, and `chosen`, the least broken assignment found.

    `fits(graph, cluster, parts, on)` says whether another graph on another cluster
    would do, with `on` as the wish of those parts.
    """

    graph: Graph
    cluster: Cluster
    board: Board
    groups: Sequence[Group]
    wishes: Mapping[str, Wish]
    chosen: Assignment
    fits: Fits


def infeasible_error(case: Case) -> InfeasibleError:
    """The error for a case: what does not fit, what is where, and what to try."""
    score = case.board.exact(case.chosen)
    if score.broken:
        return InfeasibleError(_apart_text(case))
    held = case.board.held(case.chosen)
    over = [m.total - top for m, top in zip(held, case.board.capacity)]
    worst = over.index(max(over))
    here = [g for g, device in enumerate(case.chosen) if device == worst]
    needs = [_need(case, group) for group in range(len(case.groups))]
    culprit = max(here, key=lambda g: (needs[g].total, -g))
    lines = [
        _headline(case, culprit, worst, needs[culprit]),
        _row("needs", needs[culprit].total, _breakdown(needs[culprit])),
    ]
    lines += _rooms(case, culprit, needs, held, worst)
    lines += _remedies(case, culprit, worst, over[worst])
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


def _need(case: Case, group: int) -> Memory:
    """What one group needs wherever it is, without transfers."""
    units = case.board.units
    mine = [u for u, g in enumerate(case.board.group_of_unit) if g == group]
    trained = sum(units.own_trained[u] for u in mine) if units.training else 0
    kept = sum(units.kept_bytes[u] for u in mine)
    return Memory(
        weights=sum(units.own_bytes[u] for u in mine),
        gradients=trained,
        slots=trained * units.slot_copies,
        activations=max(kept, max((units.output_bytes[u] for u in mine), default=0)),
        workspace=max((units.workspace_bytes[u] for u in mine), default=0),
    )


def _name(case: Case, group: int) -> str:
    """The part that speaks for its group: the one with a wish of its own."""
    parts = case.groups[group].parts
    firm = [p for p in parts if case.wishes[p].why in ("pin", "no kernel", "fallback")]
    return (firm or list(parts))[0]


def _headline(case: Case, culprit: int, worst: int, need: Memory) -> str:
    name = _name(case, culprit)
    what = f"{case.graph.part[name].kind} {name!r}"
    near = len(case.groups[culprit].parts) - 1
    if near:
        what += f" (with {near} near it)"
    devices = [case.cluster.devices[d] for d in case.board.allowed[culprit]]
    if len(devices) == 1:
        why = case.wishes[name].why
        where = {"pin": "where it is declared"}.get(why, "where it must be")
        return f"{what} does not fit on {devices[0].name}, {where}."
    if all(need.total > device.memory_bytes for device in devices):
        names = ", ".join(device.name for device in devices)
        return f"{what} does not fit on any device it may use ({names})."
    full = case.cluster.devices[worst].name
    return (
        f"the parts of {case.graph.name!r} do not fit together; the least that was "
        f"found lacks room on {full}, where {what} is the largest."
    )


def _rooms(
    case: Case,
    culprit: int,
    needs: Sequence[Memory],
    held: Sequence[Memory],
    worst: int,
) -> list[str]:
    """A line per device: what is free there, and who fills it."""
    shown = [worst]
    shown += [d for d in case.board.allowed[culprit] if d != worst]
    shown += [d for d in range(len(case.cluster)) if d not in shown]
    lines = []
    for number in shown[:8]:
        device = case.cluster.devices[number]
        others = [
            g
            for g, where in enumerate(case.chosen)
            if where == number and g != culprit and needs[g].total
        ]
        taken = held[number].total
        taken -= needs[culprit].total if number == worst else 0
        rest = taken - sum(needs[g].total for g in others)
        text = f"free of {format_bytes(device.memory_bytes)}"
        fillers = _fillers(case, others, needs)
        if rest > 0:
            fillers.append(f"copies and workspace take {format_bytes(rest)}")
        if fillers:
            text += "; " + ", ".join(fillers)
        lines.append(_row(device.name, device.memory_bytes - taken, text))
    if len(shown) > 8:
        lines.append(f"  ... and {len(shown) - 8} devices more")
    return lines


def _fillers(case: Case, others: Sequence[int], needs: Sequence[Memory]) -> list[str]:
    ranked = sorted(others, key=lambda g: (-needs[g].total, g))
    texts = []
    for group in ranked[:2]:
        name = _name(case, group)
        what = "is"
        if len(case.board.allowed[group]) == 1:
            what = "is pinned" if case.wishes[name].why == "pin" else "must be"
        texts.append(f"{name!r} {what} there with {format_bytes(needs[group].total)}")
    if len(ranked) > 2:
        rest = sum(needs[g].total for g in ranked[2:])
        texts.append(f"{len(ranked) - 2} more with {format_bytes(rest)}")
    return texts


def _remedies(case: Case, culprit: int, worst: int, lack: int) -> list[str]:
    """The changes that would do, each tried before it is named."""
    tries = max(4, _MOST_PLAYS // max(1, len(case.graph.calls)) // 4)
    found = []
    pin = _relaxed(case, culprit)
    if pin:
        found.append(pin)
    batch = _smaller_batch(case, tries)
    if batch:
        found.append(f"batch <= {batch}")
    if case.fits(case.graph, _with_one_more(case.cluster), (), ""):
        extra = _with_one_more(case.cluster).devices[-1].name
        found.append(f"one device more ({extra})")
    more = _more_memory(case, worst, lack)
    if more:
        name = case.cluster.devices[worst].name
        found.append(f"{format_bytes(more)} more memory on {name}")
    if not found:
        found.append(_larger_everywhere(case))
    return [f"  try      {', or '.join(found)}"]


def _more_memory(case: Case, worst: int, lack: int) -> int:
    """The least bytes on one device that help, to a sixteenth of the lack; or 0."""
    room = case.cluster.devices[worst].memory_bytes

    def short(sixteenths: int) -> bool:
        more = room + ceil(lack * sixteenths / 16)
        return not case.fits(
            case.graph, _with_memory(case.cluster, worst, more), (), ""
        )

    if short(16):
        return 0
    return ceil(lack * (1 + largest_true(short, 15)) / 16)


def _larger_everywhere(case: Case) -> str:
    """The least factor, to a twentieth, by which all memory would have to grow."""

    def short(twentieths: int) -> bool:
        devices = tuple(
            replace(d, memory_bytes=int(d.memory_bytes * (1 + twentieths / 20)))
            for d in case.cluster
        )
        return not case.fits(case.graph, replace(case.cluster, devices=devices), (), "")

    most = 20 * 32
    steps = 1 + largest_true(short, most)
    if steps > most:
        return "a smaller model, much larger devices, or fewer pins"
    return f"{1 + steps / 20:.3g} times the memory on every device"


def _relaxed(case: Case, culprit: int) -> str | None:
    """The fewest pins of the full device that are too many, the culprit's first."""
    worst = case.chosen[culprit]
    kind = case.cluster.devices[worst].kind
    pinned = [
        g
        for g, device in enumerate(case.chosen)
        if device == worst
        and any(case.wishes[p].why == "pin" for p in case.groups[g].parts)
    ]
    need = case.board.group_bytes
    pinned.sort(key=lambda g: (g != culprit, -need[g], g))

    def short(count: int) -> bool:
        freed = [part for g in pinned[:count] for part in case.groups[g].parts]
        return not case.fits(case.graph, case.cluster, freed, kind)

    if not pinned or short(len(pinned)):
        return None
    names = [_name(case, g) for g in pinned[: 1 + largest_true(short, len(pinned) - 1)]]
    asked = case.wishes[names[0]].asked
    text = f'on="{kind}" instead of on="{asked}"'
    if names == [_name(case, culprit)]:
        return text
    shown = ", ".join(map(repr, names[:3]))
    return f"{text} for {shown}" + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )


def _smaller_batch(case: Case, tries: int) -> int:
    graph = case.graph
    if tries < 2 * graph.batch.bit_length():
        return 0

    def holds(batch: int) -> bool:
        return case.fits(rebatched(graph, batch), case.cluster, (), "")

    return largest_true(holds, graph.batch - 1)


def _with_one_more(cluster: Cluster) -> Cluster:
    """The cluster with a twin of its largest GPU, or else of its largest device."""
    devices = cluster.of_kind("gpu") or cluster.devices
    largest = max(devices, key=lambda device: device.memory_bytes)
    prefix, _, number = largest.name.rpartition(":")
    free = int(number)
    while f"{prefix}:{free}" in cluster:
        free += 1
    twin: Device = replace(largest, name=f"{prefix}:{free}")
    return replace(cluster, devices=(*cluster.devices, twin))


def _with_memory(cluster: Cluster, number: int, memory_bytes: int) -> Cluster:
    devices = list(cluster.devices)
    devices[number] = replace(devices[number], memory_bytes=memory_bytes)
    return replace(cluster, devices=tuple(devices))


def _apart_text(case: Case) -> str:
    """Too many parts that must be apart for the devices they may use."""
    broken = [(a, b) for a, b in case.board.apart if case.chosen[a] == case.chosen[b]]
    pairs = ", ".join(
        f"{_name(case, a)!r} and {_name(case, b)!r}" for a, b in broken[:4]
    )
    device = case.cluster.devices[case.chosen[broken[0][0]]].name
    names = [case.cluster.devices[d].name for d in case.board.allowed[broken[0][0]]]
    lines = [
        f"apart= cannot be kept: {pairs} would share {device}.",
        f"  allowed  {', '.join(names)}",
    ]
    remedies = ["fewer apart=, or wider on="]
    if case.fits(case.graph, _with_one_more(case.cluster), (), ""):
        extra = _with_one_more(case.cluster).devices[-1].name
        remedies.insert(0, f"one device more ({extra})")
    return "\n".join([*lines, f"  try      {', or '.join(remedies)}"])
