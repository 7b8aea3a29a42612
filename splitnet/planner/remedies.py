"""The smallest changes that make a problem feasible that is not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from splitnet.core.cluster import Cluster, Device
from splitnet.core.errors import format_bytes
from splitnet.core.graph import Graph
from splitnet.planner.board import Assignment, Board
from splitnet.planner.wishes import Group, Wish
from splitnet.simulator.batches import largest_true, rebatched

__all__ = ["Case", "Fits", "another_device", "remedies"]

_MOST_PLAYS = 400_000
"""Calls that may be played to find a remedy: a second or two."""


class Fits(Protocol):
    """Whether a changed problem has an answer."""

    def __call__(
        self,
        graph: Graph,
        cluster: Cluster,
        *,
        parts: Sequence[str] = (),
        on: str = "",
        hard: bool = False,
    ) -> bool:
        """Look for a moment, with `on` as the wish of `parts`; longer if `hard`."""
        ...


@dataclass(frozen=True)
class Case:
    """A problem that has no answer, and `chosen`, the least broken assignment found."""

    graph: Graph
    cluster: Cluster
    board: Board
    groups: Sequence[Group]
    wishes: Mapping[str, Wish]
    chosen: Assignment
    fits: Fits

    def name(self, group: int) -> str:
        """The part that speaks for its group: the one with a wish of its own."""
        parts = self.groups[group].parts
        firm = [
            p for p in parts if self.wishes[p].why in ("pin", "no kernel", "fallback")
        ]
        return (firm or list(parts))[0]


def remedies(case: Case, culprit: int, worst: int, lack: int) -> list[str]:
    """The changes that would do, each tried before it is named."""
    tries = max(4, _MOST_PLAYS // max(1, len(case.graph.calls)) // 4)
    pin = [text for text in [_relaxed(case, culprit)] if text]
    found = list(pin)
    batch = _smaller_batch(case, tries)
    found += another_device(case)
    more = _more_memory(case, worst, lack)
    if more:
        name = case.cluster.devices[worst].name
        found.append(f"{format_bytes(more)} more memory on {name}")
    if batch:
        batch = _smaller_batch(case, tries, known=batch)
        found.insert(len(pin), f"batch <= {batch}")
    if not found:
        found.append(_larger_everywhere(case))
    return found


def another_device(case: Case) -> list[str]:
    """The name of a twin that would do, in words; else nothing."""
    cluster = _with_one_more(case.cluster)
    if not case.fits(case.graph, cluster):
        return []
    return [f"one device more ({cluster.devices[-1].name})"]


def _more_memory(case: Case, worst: int, lack: int) -> int:
    """The least bytes on one device that help, to a sixteenth of the lack; or 0."""
    room = case.cluster.devices[worst].memory_bytes

    def short(sixteenths: int) -> bool:
        more = room + ceil(lack * sixteenths / 16)
        return not case.fits(case.graph, _with_memory(case.cluster, worst, more))

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
        return not case.fits(case.graph, replace(case.cluster, devices=devices))

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
        return not case.fits(case.graph, case.cluster, parts=freed, on=kind)

    if not pinned or short(len(pinned)):
        return None
    names = [case.name(g) for g in pinned[: 1 + largest_true(short, len(pinned) - 1)]]
    asked = case.wishes[names[0]].asked
    text = f'on="{kind}" instead of on="{asked}"'
    if names == [case.name(culprit)]:
        return text
    shown = ", ".join(map(repr, names[:3]))
    return f"{text} for {shown}" + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )


def _smaller_batch(case: Case, tries: int, *, known: int = 0) -> int:
    """The largest batch found to fit; beyond one that is known, by looking harder."""
    graph, hard = case.graph, known > 0
    if tries < 2 * graph.batch.bit_length():
        return 0

    def holds(more: int) -> bool:
        return case.fits(rebatched(graph, known + more), case.cluster, hard=hard)

    return known + largest_true(holds, graph.batch - 1 - known)


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
