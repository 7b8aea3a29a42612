"""Contract groups to clusters, and choose the clusters.

Multilevel scheme of Hendrickson and Leland, "A Multilevel Algorithm for Partitioning
Graphs" (1995): merge the ends of the most expensive edges, solve the small problem,
and refine while the clusters are taken apart again.
"""

import networkx as nx
import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.problem import Bools, Floats, Ints, LoadGraph

__all__ = ["Edges", "contract", "edges_of", "fused", "member_of", "merge_edges"]

Edges = tuple[Ints, Ints, Floats]
"""Pairs of groups and the seconds that a cut between them costs."""


def _rows(rows: Ints, items: Ints, count: int) -> tuple[Ints, Ints]:
    """Lists of items by row, sorted and without duplicates."""
    width = int(items.max(initial=0)) + 1
    keys = np.unique(rows * width + items)
    start = np.searchsorted(keys, np.arange(count + 1) * width)
    return start, keys % width


def _pairs(start: Ints, items: Ints, cluster: Ints) -> tuple[Ints, Ints]:
    """Clusters of the two ends of every edge between two clusters."""
    a, b = cluster[np.repeat(np.arange(len(start) - 1), np.diff(start))], cluster[items]
    return a[a != b], b[a != b]


def _sums(cluster: Ints, values: Floats | Bools, count: int) -> Floats:
    """Sums of rows by cluster."""
    columns = [np.bincount(cluster, column, count) for column in values.T]
    return np.ascontiguousarray(np.array(columns, np.float64).reshape(-1, count).T)


def contract(graph: LoadGraph, cluster: Ints, count: int) -> LoadGraph:
    """The problem of the clusters: an assignment of them has the same loads.

    Equal nets are merged, those inside a cluster dropped. Equal sets of pins are found
    by their sum of random keys (Zobrist 1970).
    """
    nets = len(graph.net_start) - 1
    net = np.repeat(np.arange(nets), np.diff(graph.net_start))
    start, pins = _rows(net, cluster[graph.net_pins], nets)
    keys = np.random.default_rng(count).integers(2**63, size=count)
    digest = np.bitwise_xor.reduceat(keys[pins], start[:-1]) if nets else start[:0]
    crossing = np.flatnonzero(np.diff(start) > 1)
    _, first, merged = np.unique(
        digest[crossing], return_index=True, return_inverse=True
    )
    chosen = crossing[first]
    sizes = np.diff(start)[chosen]
    net_start = np.concatenate(([0], np.cumsum(sizes)))
    offset = np.repeat(start[chosen] - net_start[:-1], sizes)
    net_pins = pins[np.arange(net_start[-1]) + offset]
    number = np.repeat(np.arange(len(chosen)), sizes)
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
        *_rows(net_pins, number, count),
        *_rows(*edges, count),
        *_rows(*edges[::-1], count),
        *_rows(*_pairs(graph.apart_start, graph.apart, cluster), count),
    )


def edges_of(graph: LoadGraph) -> Edges:
    """Producer and reader of every net, with the sum of the nets that they share."""
    net = np.repeat(np.arange(len(graph.net_start) - 1), np.diff(graph.net_start))
    a, b = graph.net_pins[graph.net_start[:-1]][net], graph.net_pins
    cost = graph.net_seconds.max(axis=1, initial=0.0)[net]
    real = a != b
    low, high = np.minimum(a, b)[real], np.maximum(a, b)[real]
    groups = max(1, len(graph.size_bytes))
    pairs, at = np.unique(low * groups + high, return_inverse=True)
    total = np.bincount(at, cost[real], len(pairs)).astype(np.float64)
    return np.asarray(pairs // groups), np.asarray(pairs % groups), total


def member_of(cluster: Ints, count: int, values: Ints) -> Ints:
    """The value of a member of each cluster."""
    found = np.empty(count, values.dtype)
    found[cluster] = values
    return found


@compiled
def root_of(parent: Ints, x: int) -> int:
    """Representative of a set, with the path halved (Tarjan and van Leeuwen 1984)."""
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


@entry
def unite(
    edges: Ints,
    parent: Ints,
    kind: Ints,
    seconds: Floats,
    size_bytes: Floats,
    constrained: Ints,
    left: int,
    stop: int,
    most_seconds: float,
    most_bytes: float,
) -> int:
    """Unite the ends of edges of one kind, in order, until `stop` sets are left."""
    for i in range(edges.shape[1]):
        if left <= stop:
            break
        x, y = root_of(parent, edges[0, i]), root_of(parent, edges[1, i])
        if x == y or kind[x] != kind[y] or (constrained[x] and constrained[y]):
            continue
        if seconds[x] + seconds[y] > most_seconds:
            continue
        if size_bytes[x] + size_bytes[y] > most_bytes:
            continue
        parent[y] = x
        seconds[x] += seconds[y]
        size_bytes[x] += size_bytes[y]
        constrained[x] += constrained[y]
        left -= 1
    for x in range(len(parent)):
        parent[x] = root_of(parent, x)
    return left


def merge_edges(
    graph: LoadGraph,
    edges: Edges,
    keep: Ints,
    target: int,
    random: np.random.Generator,
    *,
    noise: float = 0.5,
    rating: float = 0.0,
    most_seconds: float = np.inf,
    most_bytes: float = np.inf,
) -> tuple[Ints, int]:
    """Merge the ends of the most expensive edges until `target` clusters are left.

    An edge ranks by its cost, give or take a fraction `noise`, over the product of the
    ends' seconds to the power `rating`. Groups of different `keep`, of different
    allowed devices, or both with `apart` constraints stay separate. Returns the cluster
    of each group and the number of clusters.
    """
    a, b, cost = edges
    groups = left = len(graph.size_bytes)
    parent, seconds = np.arange(groups), graph.seconds.min(axis=1, initial=np.inf)
    keys = np.random.default_rng(0).integers(2**63, size=1 + graph.allowed.shape[1])
    kind = keep * keys[0] + graph.allowed @ keys[1:]  # equal if both are equal
    sizes, constrained = graph.size_bytes.copy(), np.diff(graph.apart_start)
    noisy = cost * (1 + noise * (2 * random.random(len(a)) - 1))
    least = 1e-3 * seconds.sum() / groups + 1e-300
    for _ in range(8):
        weight = (seconds[parent[a]] + least) * (seconds[parent[b]] + least)
        rank = np.where(parent[a] != parent[b], noisy / weight**rating, 0.0)
        order = np.argsort(-rank, kind="stable")[: np.count_nonzero(rank)]
        before, stop = left, target if rating == 0 else max(target, left // 2)
        left = unite(
            np.array([a[order], b[order]]),
            *(parent, kind, seconds, sizes, constrained, left, stop),
            *(most_seconds, most_bytes),
        )
        if left <= target or left == before or rating == 0:
            break
    roots, cluster = np.unique(parent, return_inverse=True)
    return cluster, len(roots)


def fused(graph: LoadGraph) -> tuple[LoadGraph, Ints]:
    """Merge groups on a common cycle: no pipeline separates them."""
    groups = len(graph.size_bytes)
    cluster, count = np.arange(groups), groups
    ends = _pairs(graph.successor_start, graph.successors, cluster)
    flow = nx.DiGraph(zip(*(end.tolist() for end in ends)))
    flow.add_nodes_from(range(groups))
    if not nx.is_directed_acyclic_graph(flow):
        for count, members in enumerate(nx.strongly_connected_components(flow), 1):
            cluster[list(members)] = count - 1
    return (graph if count == groups else contract(graph, cluster, count)), cluster
