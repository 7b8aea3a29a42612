"""The placement problem as flat arrays.

A *group* is what must be on one device. A *net* is what one group sends, its pins are
the producer and the groups that read it. Times are in seconds (or any one unit), sizes
in bytes. An assignment is the number of a device for every group.

    load of a device = seconds of its groups + seconds of every net that crosses its
                       border, once, in either direction

This is the load of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (NeurIPS 2020), with any number of kinds of device.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Bools",
    "ForwardGraph",
    "Floats",
    "Ints",
    "LoadGraph",
    "Problem",
    "cut_size",
    "equivalent_devices",
    "load_problem",
    "loads",
    "rows_of",
    "violations",
]

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class LoadGraph(NamedTuple):
    """Groups, nets and devices; rows of lists are `items[start[i]:start[i + 1]]`.

    `seconds` is per group and kind of device, `net_seconds` per net and kind; the
    producer is the first pin of a net. `successors` and `predecessors` hold the edges
    of the forward pass. Groups in `apart` may not share a device.
    """

    seconds: Floats
    size_bytes: Floats
    allowed: Bools
    capacity_bytes: Floats
    kind: Ints
    net_start: Ints
    net_pins: Ints
    net_seconds: Floats
    group_start: Ints
    group_nets: Ints
    successor_start: Ints
    successors: Ints
    predecessor_start: Ints
    predecessors: Ints
    apart_start: Ints
    apart: Ints


class ForwardGraph(NamedTuple):
    """Forward calls before contraction, which decide whether a device's set is convex.

    `order` is a topological order of the forward calls, `group` the group of each call.
    """

    order: Ints
    successor_start: Ints
    successors: Ints
    group: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What to place and under which constraints.

    `tasks` are the tasks of a step for the objective "latency"; `peak_bytes`, if given,
    returns the bytes that each device holds at its fullest moment. `cut_penalty` is the
    fraction of the value that one cross-device transfer costs.
    """

    graph: LoadGraph
    forward: ForwardGraph
    tasks: object | None = None
    cut_penalty: float = 0.0
    peak_bytes: Callable[[Ints], Floats] | None = None

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return len(self.graph.size_bytes)

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return len(self.graph.capacity_bytes)


def rows_of(lists: Iterable[Iterable[int]]) -> tuple[Ints, Ints]:
    """Lists of integers as (start, items)."""
    filled = [list(one) for one in lists]
    start = np.cumsum([0, *map(len, filled)]).astype(np.int32)
    return start, np.array([item for one in filled for item in one], np.int32)


def load_problem(
    *,
    seconds: Sequence[Sequence[float]],
    size_bytes: Sequence[float],
    edges: Iterable[tuple[int, int]],
    transfer_seconds: Sequence[Sequence[float]],
    kind: Sequence[int],
    capacity_bytes: Sequence[float],
    group: Sequence[int] | None = None,
    backward: Sequence[bool] | None = None,
    allowed: Mapping[int, Sequence[int]] | None = None,
    apart: Iterable[tuple[int, int]] = (),
    cut_penalty: float = 0.0,
) -> Problem:
    """Make a problem of calls with times, sizes and edges.

    Args:
        seconds: Per call and kind; infinite if the kind cannot run the call.
        size_bytes: What each call holds on any device.
        edges: Pairs (source, target) of calls; an acyclic graph.
        transfer_seconds: Per call and kind: what a device of that kind pays if the
            call's output crosses its border.
        kind: Kind of each device.
        capacity_bytes: Memory of each device.
        group: Group of each call, numbered from 0; a group per call by default.
        backward: Marks backward calls, which contiguity does not constrain.
        allowed: Group -> devices it may use; all others may use any.
        apart: Pairs of groups that may not share a device.
        cut_penalty: See `Problem`.
    """
    count = len(seconds)
    group_of = np.arange(count) if group is None else np.asarray(group)
    groups = int(group_of.max()) + 1 if count else 0
    kinds = np.asarray(kind, np.int32)
    kind_count = len(seconds[0]) if count else 1
    times = np.zeros((groups, kind_count))
    np.add.at(times, group_of, np.asarray(seconds, np.float64).reshape(count, -1))
    may = np.isfinite(times)[:, kinds]
    for number, devices in (allowed or {}).items():
        chosen = np.zeros(len(kinds), np.bool_)
        chosen[list(devices)] = True
        may[number] &= chosen
    pairs = list(dict.fromkeys(edges))
    forward = _forward_graph(group_of, pairs, backward or [False] * count)
    graph = LoadGraph(
        times,
        np.bincount(group_of, np.asarray(size_bytes, np.float64), groups),
        np.ascontiguousarray(may),
        np.asarray(capacity_bytes, np.float64),
        kinds,
        *_nets(group_of, pairs, transfer_seconds, kind_count, groups),
        *_group_edges(forward, groups),
        *_both_ways(apart, groups),
    )
    return Problem(graph, forward, cut_penalty=cut_penalty)


def _nets(
    group_of: npt.NDArray[np.int64],
    edges: Sequence[tuple[int, int]],
    transfer_seconds: Sequence[Sequence[float]],
    kind_count: int,
    groups: int,
) -> tuple[Ints, Ints, Floats, Ints, Ints]:
    """Nets between groups; those with equal pins are one, with the sum of their costs."""
    group = group_of.tolist()
    readers: list[dict[int, None]] = [{} for _ in group]
    for source, target in edges:
        if group[target] != group[source]:
            readers[source][group[target]] = None
    merged: dict[tuple[int, ...], list[Sequence[float]]] = {}
    for call, read in enumerate(readers):
        if read:
            pins = (group[call], *sorted(read))
            merged.setdefault(pins, []).append(transfer_seconds[call])
    costs = [[fsum(column) for column in zip(*rows)] for rows in merged.values()]
    start, pins_of_net = rows_of(merged)
    touching: list[list[int]] = [[] for _ in range(groups)]
    for net, pins in enumerate(merged):
        for pin in pins:
            touching[pin].append(net)
    seconds = np.array(costs, np.float64).reshape(len(costs), kind_count)
    return start, pins_of_net, seconds, *rows_of(touching)


def _forward_graph(
    group_of: npt.NDArray[np.int64],
    edges: Sequence[tuple[int, int]],
    backward: Sequence[bool],
) -> ForwardGraph:
    """Forward calls in a topological order (Kahn 1962) and the edges among them."""
    count = len(group_of)
    after: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for source, target in edges:
        if not backward[source] and not backward[target]:
            after[source].append(target)
            waits[target] += 1
    order = [call for call in range(count) if not waits[call] and not backward[call]]
    for call in order:
        for target in after[call]:
            waits[target] -= 1
            if not waits[target]:
                order.append(target)
    start, items = rows_of(after)
    return ForwardGraph(
        np.array(order, np.int32), start, items, group_of.astype(np.int32)
    )


def _group_edges(forward: ForwardGraph, groups: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Successors and predecessors of every group."""
    after: list[dict[int, None]] = [{} for _ in range(groups)]
    before: list[dict[int, None]] = [{} for _ in range(groups)]
    source = np.repeat(
        np.arange(len(forward.group)), np.diff(forward.successor_start)
    )
    ends = forward.group[source].tolist(), forward.group[forward.successors].tolist()
    for a, b in zip(*ends):
        if a != b:
            after[a][b] = None
            before[b][a] = None
    return *rows_of(after), *rows_of(before)


def _both_ways(pairs: Iterable[tuple[int, int]], groups: int) -> tuple[Ints, Ints]:
    """For every group those it may not share a device with."""
    others: list[dict[int, None]] = [{} for _ in range(groups)]
    for a, b in pairs:
        others[a][b] = None
        others[b][a] = None
    return rows_of(others)


def loads(graph: LoadGraph, assignment: npt.ArrayLike) -> list[float]:
    """Busy seconds of every device: computing, sending and receiving."""
    place = np.asarray(assignment).tolist()
    kind = graph.kind.tolist()
    parts: list[list[float]] = [[] for _ in kind]
    seconds = graph.seconds.tolist()
    for group, device in enumerate(place):
        parts[device].append(seconds[group][kind[device]])
    start, pins = graph.net_start.tolist(), graph.net_pins.tolist()
    for net, cost in enumerate(graph.net_seconds.tolist()):
        here = {place[pin] for pin in pins[start[net] : start[net + 1]]}
        if len(here) > 1:
            for device in here:
                parts[device].append(cost[kind[device]])
    return [fsum(part) for part in parts]


def cut_size(graph: LoadGraph, assignment: npt.ArrayLike) -> int:
    """Number of cross-device transfers: devices that read each net, its own left out."""
    place = np.asarray(assignment).tolist()
    start, pins = graph.net_start.tolist(), graph.net_pins.tolist()
    return sum(
        len({place[pin] for pin in pins[first:last]}) - 1
        for first, last in zip(start, start[1:])
    )


def violations(problem: Problem, assignment: npt.ArrayLike) -> list[str]:
    """Every broken constraint in words; an empty list means feasible."""
    graph = problem.graph
    place = np.asarray(assignment)
    if place.shape != (problem.group_count,):
        return [f"{place.size} groups placed, {problem.group_count} expected"]
    if place.size and not 0 <= place.min() <= place.max() < problem.device_count:
        return ["a group is on an unknown device"]
    faults = [
        f"group {group} may not use device {place[group]}"
        for group in np.flatnonzero(~graph.allowed[np.arange(place.size), place])
    ]
    for group in range(place.size):
        for at in range(graph.apart_start[group], graph.apart_start[group + 1]):
            other = graph.apart[at]
            if group < other and place[group] == place[other]:
                faults.append(f"groups {group} and {other} share a device")
    held = np.bincount(place, graph.size_bytes, problem.device_count)
    if problem.peak_bytes is not None and not faults:
        held = problem.peak_bytes(place.astype(np.int32))
    for device in np.flatnonzero(held > graph.capacity_bytes * (1 + 1e-12)):
        faults.append(
            f"device {device} needs {held[device]:.12g} bytes, has "
            f"{graph.capacity_bytes[device]:.12g}"
        )
    return faults


def equivalent_devices(problem: Problem) -> list[int]:
    """Number devices so that interchangeable ones share a number.

    They have equal kind and memory, and every group may use both or neither. For steps
    their links must be equal, too.
    """
    graph = problem.graph
    seen: dict[Hashable, int] = {}
    found = []
    for device, capacity in enumerate(graph.capacity_bytes.tolist()):
        key = (
            int(graph.kind[device]),
            capacity,
            graph.allowed[:, device].tobytes(),
        )
        found.append(seen.setdefault(key, len(seen)))
    return found
