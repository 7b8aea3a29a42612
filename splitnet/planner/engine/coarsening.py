"""Choose clusters of groups to contract.

Multilevel scheme of Hendrickson and Leland, "A Multilevel Algorithm for Partitioning
Graphs" (1995): merge the ends of the most expensive edges, solve the small problem,
and refine while the clusters are taken apart again.
"""

import networkx as nx
import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.problem import Floats, Ints, LoadGraph, Problem, contract

__all__ = ["fused", "member_of", "merge_edges"]


def _edges(graph: LoadGraph) -> tuple[Ints, Ints, Floats]:
    """Producer and reader of every net, with the seconds of the nets they share."""
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
    a, b, cost = _edges(graph)
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


def fused(problem: Problem) -> tuple[Problem, Ints]:
    """Merge groups on a common cycle: no pipeline separates them."""
    graph, groups = problem.graph, problem.group_count
    source = np.repeat(np.arange(groups), np.diff(graph.successor_start))
    flow = nx.DiGraph(zip(source.tolist(), graph.successors.tolist()))
    flow.add_nodes_from(range(groups))
    cluster, count = np.arange(groups), 0
    for count, members in enumerate(nx.strongly_connected_components(flow), 1):
        cluster[list(members)] = count - 1
    if count == groups:
        return problem, np.arange(groups)
    return contract(problem, cluster, count), cluster
