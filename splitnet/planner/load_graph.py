"""Groups, nets and devices as flat arrays: what an assignment loads and crosses."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class LoadGraph(NamedTuple):
    """Groups, nets and devices; rows of lists are `items[start[i]:start[i + 1]]`.

    `seconds` is per group and kind of device, `net_seconds` per net and kind; the
    producer is the first pin of a net, `net_weight` the cuts that each of its further
    devices counts for. `successors` and `predecessors` are of the forward pass.
    """

    seconds: Floats
    size_bytes: Floats
    allowed: Bools
    capacity_bytes: Floats
    kind: Ints
    net_start: Ints
    net_pins: Ints
    net_seconds: Floats
    net_weight: Ints
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


def rows_of(lists: Iterable[Iterable[int]]) -> tuple[Ints, Ints]:
    """Lists of integers as (start, items)."""
    filled = [list(one) for one in lists]
    start = np.cumsum([0, *map(len, filled)]).astype(np.int64)
    return start, np.array([item for one in filled for item in one], np.int64)


def lists_of(start: Ints, items: Ints) -> list[list[int]]:
    """The inverse of `rows_of`."""
    return [items[first:end].tolist() for first, end in pairwise(start.tolist())]


def owners(start: Ints) -> Ints:
    """The row of each item."""
    return np.repeat(np.arange(len(start) - 1), np.diff(start))


def last_of(cluster: Ints, count: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The value of the last member of each cluster."""
    found = np.empty(count, values.dtype)
    found[cluster] = values
    return found


def contracted(graph: LoadGraph, cluster: Ints, count: int) -> LoadGraph:
    """The graph of clusters; equal nets are merged, those inside a cluster dropped.

    Equal sets of pins have equal sums of random keys (Zobrist 1970).
    """
    nets = len(graph.net_start) - 1
    net = owners(graph.net_start)
    producer = cluster[graph.net_pins[graph.net_start[:-1]]]
    pins = cluster[graph.net_pins]
    start, pins = rows(net, pins + count * (pins != producer[net]), nets)
    pins %= count
    keys = np.random.default_rng(count).integers(2**63, size=count)
    sums = np.bitwise_xor.reduceat(keys[pins], start[:-1]) if nets else start[:0]
    crossing = np.flatnonzero(np.diff(start) > 1)
    _, first, merged = np.unique(sums[crossing], return_index=True, return_inverse=True)
    chosen = crossing[first]
    sizes = np.diff(start)[chosen]
    net_start = np.concatenate(([0], np.cumsum(sizes)))
    offset = np.repeat(start[chosen] - net_start[:-1], sizes)
    net_pins = pins[np.arange(net_start[-1]) + offset]
    edges = _pairs(graph.successor_start, graph.successors, cluster)
    return LoadGraph(
        _sums(cluster, graph.seconds, count),
        np.bincount(cluster, graph.size_bytes, count).astype(np.float64),
        _sums(cluster, ~graph.allowed, count) == 0,
        graph.capacity_bytes,
        graph.kind,
        net_start,
        net_pins,
        _sums(merged, graph.net_seconds[crossing], len(chosen)),
        np.bincount(merged, graph.net_weight[crossing], len(chosen)).astype(np.int64),
        *rows(net_pins, owners(net_start), count),
        *rows(*edges, count),
        *rows(*edges[::-1], count),
        *rows(*_pairs(graph.apart_start, graph.apart, cluster), count),
    )


def rows(rows: Ints, items: Ints, count: int) -> tuple[Ints, Ints]:
    """Lists of items by row, sorted and without duplicates."""
    width = int(items.max(initial=0)) + 1
    keys = np.unique(rows * width + items)
    return np.searchsorted(keys, np.arange(count + 1) * width), keys % width


def _pairs(start: Ints, items: Ints, cluster: Ints) -> tuple[Ints, Ints]:
    """Clusters of the two ends of every edge between two clusters."""
    a, b = cluster[owners(start)], cluster[items]
    return a[a != b], b[a != b]


def _sums(cluster: Ints, values: Floats | Bools, count: int) -> Floats:
    columns = [np.bincount(cluster, column, count) for column in values.T]
    return np.array(columns, np.float64).reshape(values.shape[1], count).T.copy()


def loads(graph: LoadGraph, assignment: npt.ArrayLike) -> list[float]:
    """Busy seconds of every device: computing, sending and receiving."""
    place, devices = np.asarray(assignment, np.int64), len(graph.capacity_bytes)
    here = pins_per_device(graph, place) > 0
    paid = (here & (here.sum(axis=1) > 1)[:, None]) * graph.net_seconds[:, graph.kind]
    seconds = graph.seconds[np.arange(len(place)), graph.kind[place]]
    return list(map(float, np.bincount(place, seconds, devices) + paid.sum(axis=0)))


def pins_per_device(graph: LoadGraph, place: Ints) -> Ints:
    """How many groups of every net are on every device."""
    nets, devices = len(graph.net_start) - 1, len(graph.capacity_bytes)
    keys = owners(graph.net_start) * devices + place[graph.net_pins]
    return np.bincount(keys, minlength=nets * devices).reshape(nets, devices)


def bytes_per_device(graph: LoadGraph, assignment: npt.ArrayLike) -> Floats:
    """Sum of the groups' bytes on every device."""
    place, devices = np.asarray(assignment, np.int64), len(graph.capacity_bytes)
    return np.bincount(place, graph.size_bytes, devices).astype(np.float64)


def cut_size(graph: LoadGraph, assignment: npt.ArrayLike) -> int:
    """Number of cross-device transfers: one per output and device that receives it."""
    used = (pins_per_device(graph, np.asarray(assignment)) > 0).sum(axis=1)
    return int(((used - 1) * graph.net_weight).sum())
