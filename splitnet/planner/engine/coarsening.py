"""Merge groups along expensive edges.

The coarsening of Hendrickson and Leland, "A Multilevel Algorithm for Partitioning
Graphs" (1995): the ends of the most expensive edges first, with some noise.
"""

from math import inf

import networkx as nx
import numpy as np

from splitnet.planner.engine.compiler import entry
from splitnet.planner.engine.functions import root_of
from splitnet.planner.engine.load_graph import Floats, Ints, LoadGraph
from splitnet.planner.problem import Problem, contract

_NOISE = 0.5
"""Of the cost of an edge."""


def member_of(cluster: Ints, count: int, values: Ints) -> Ints:
    """The value of a member of each cluster."""
    found = np.empty(count, values.dtype)
    found[cluster] = values
    return found


@entry
def unite(
    edges: Ints,
    parent: Ints,
    kind: Ints,
    seconds: Floats,
    size_bytes: Floats,
    constrained: Ints,
    stop: int,
    most_seconds: float,
    most_bytes: float,
) -> None:
    """Unite the ends of edges of one kind, in order, until `stop` sets are left."""
    left = len(parent)
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


def merge_edges(
    graph: LoadGraph,
    keep: Ints,
    target: int,
    random: np.random.Generator,
    rating: float,
    most_seconds: float,
    most_bytes: float,
) -> tuple[Ints, int]:
    """Merge the ends of the most expensive edges until `target` clusters are left.

    An edge ranks by the seconds of the nets from one end to the other, give or take
    half of it, over the product of the ends' seconds to the power `rating`. Groups of
    different `keep`, of different allowed devices, or both with `apart` constraints
    stay separate. Returns the cluster of each group and the number of clusters.
    """
    groups, seconds = len(graph.seconds), graph.seconds.min(axis=1, initial=inf)
    net = np.repeat(np.arange(len(graph.net_start) - 1), np.diff(graph.net_start))
    a, b = graph.net_pins[graph.net_start[:-1]][net], graph.net_pins
    cost, real = graph.net_seconds.max(axis=1, initial=0.0)[net], a != b
    ends = np.minimum(a, b) * groups + np.maximum(a, b)
    pairs, at = np.unique(ends[real], return_inverse=True)
    a, b = np.divmod(pairs, max(1, groups))
    noise = 1 + _NOISE * (2 * random.random(len(pairs)) - 1)
    rank = np.bincount(at, cost[real], len(pairs)) * noise
    least = 1e-3 * seconds.mean() + 1e-300
    rank /= ((seconds[a] + least) * (seconds[b] + least)) ** rating
    order = np.argsort(-rank, kind="stable")
    keys = np.random.default_rng(0).integers(2**63, size=1 + graph.allowed.shape[1])
    kind = keep * keys[0] + graph.allowed @ keys[1:]  # equal if both are equal
    parent, constrained = np.arange(groups), np.diff(graph.apart_start)
    unite(
        np.array([a[order], b[order]]),
        *(parent, kind, seconds, graph.size_bytes.copy(), constrained),
        *(target, most_seconds, most_bytes),
    )
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
