"""Contract groups to clusters, and choose the clusters.

Multilevel scheme of Hendrickson and Leland, "A Multilevel Algorithm for Partitioning
Graphs" (1995): merge the ends of the most expensive edges, solve the small problem,
and refine while the clusters are taken apart again.
"""

import numpy as np

from splitnet.planner.engine.compiler import RandomState, compiled, uniform
from splitnet.planner.problem import Floats, Ints, LoadGraph

__all__ = ["Edges", "contract", "edges_of", "fused", "merge_edges", "min_cuts"]

Edges = tuple[Ints, Ints, Floats]
"""Pairs of groups and the seconds that a cut between them costs."""


@compiled
def unique_rows(count: int, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Lists of targets by source, without loops and duplicates."""
    start = np.zeros(count + 1, np.int32)
    for s in source:
        start[s + 1] += 1
    for i in range(count):
        start[i + 1] += start[i]
    at, row = start[:-1].copy(), np.empty(len(source), np.int32)
    for e in range(len(source)):
        row[at[source[e]]] = target[e]
        at[source[e]] += 1
    items, items_start = np.empty_like(row), np.zeros(count + 1, np.int32)
    last_source, size = np.full(count, -1, np.int32), 0
    for i in range(count):
        for e in range(start[i], start[i + 1]):
            j = row[e]
            if j != i and last_source[j] != i:
                last_source[j] = i
                items[size] = j
                size += 1
        items_start[i + 1] = size
    return items_start, items[:size].copy()


@compiled
def row_numbers(start: Ints) -> Ints:
    """The row of every item."""
    numbers = np.empty(start[-1], np.int32)
    for i in range(len(start) - 1):
        numbers[start[i] : start[i + 1]] = i
    return numbers


@compiled
def nets_of_groups(count: int, net_start: Ints, net_pins: Ints) -> tuple[Ints, Ints]:
    """The nets that each group is a pin of."""
    start = np.zeros(count + 1, np.int32)
    for pin in net_pins:
        start[pin + 1] += 1
    for i in range(count):
        start[i + 1] += start[i]
    at, nets = start[:-1].copy(), np.empty(len(net_pins), np.int32)
    for net in range(len(net_start) - 1):
        for e in range(net_start[net], net_start[net + 1]):
            nets[at[net_pins[e]]] = net
            at[net_pins[e]] += 1
    return start, nets


@compiled
def contract_nets(
    graph: LoadGraph, cluster: Ints, count: int, state: RandomState
) -> tuple[Ints, Ints, Floats, Ints]:
    """Nets between clusters; equal ones are merged, those inside a cluster dropped.

    Equal sets of pins are found by their sum of random keys (Zobrist 1970).
    """
    nets = len(graph.net_start) - 1
    key = np.empty(count, np.uint64)
    for c in range(count):
        uniform(state)
        key[c] = state[0]
    seen = np.full(count, -1, np.int32)
    digest, pin_count = np.zeros(nets, np.uint64), np.zeros(nets, np.int32)
    left = 0
    for net in range(nets):
        for e in range(graph.net_start[net], graph.net_start[net + 1]):
            c = cluster[graph.net_pins[e]]
            if seen[c] != net:
                seen[c] = net
                digest[net] ^= key[c]
                pin_count[net] += 1
        left += pin_count[net] > 1
    crossing = np.empty(left, np.int32)
    size = 0
    for net in range(nets):
        if pin_count[net] > 1:
            crossing[size] = net
            size += 1
    crossing = crossing[np.argsort(digest[crossing], kind="mergesort")]
    first, pins = np.empty(left, np.int32), 0
    seconds = np.zeros((left, graph.net_seconds.shape[1]))
    weight, last = np.zeros(left, np.int32), -1
    for x in range(left):
        net = crossing[x]
        if x == 0 or digest[net] != digest[crossing[x - 1]]:
            last += 1
            first[last] = net
            pins += pin_count[net]
        seconds[last] += graph.net_seconds[net]
        weight[last] += graph.net_weight[net]
    start, items = np.zeros(last + 2, np.int32), np.empty(pins, np.int32)
    seen[:] = -1
    size = 0
    for x in range(last + 1):
        net = first[x]
        for e in range(graph.net_start[net], graph.net_start[net + 1]):
            c = cluster[graph.net_pins[e]]
            if seen[c] != x:
                seen[c] = x
                items[size] = c
                size += 1
        start[x + 1] = size
    return start, items, seconds[: last + 1].copy(), weight[: last + 1].copy()


@compiled
def contract(
    graph: LoadGraph, cluster: Ints, count: int, state: RandomState
) -> LoadGraph:
    """The problem of the clusters: an assignment of them has the same loads."""
    seconds = np.zeros((count, graph.seconds.shape[1]))
    size_bytes = np.zeros(count)
    allowed = np.ones((count, graph.allowed.shape[1]), np.bool_)
    for group in range(len(cluster)):
        c = cluster[group]
        seconds[c] += graph.seconds[group]
        size_bytes[c] += graph.size_bytes[group]
        allowed[c] &= graph.allowed[group]
    net_start, net_pins, net_seconds, net_weight = contract_nets(
        graph, cluster, count, state
    )
    group_start, group_nets = nets_of_groups(count, net_start, net_pins)
    source = cluster[row_numbers(graph.successor_start)]
    target = cluster[graph.successors]
    successor_start, successors = unique_rows(count, source, target)
    predecessor_start, predecessors = unique_rows(count, target, source)
    apart_start, apart = unique_rows(
        count, cluster[row_numbers(graph.apart_start)], cluster[graph.apart]
    )
    return LoadGraph(
        seconds,
        size_bytes,
        allowed,
        graph.capacity_bytes,
        graph.kind,
        net_start,
        net_pins,
        net_seconds,
        net_weight,
        group_start,
        group_nets,
        successor_start,
        successors,
        predecessor_start,
        predecessors,
        apart_start,
        apart,
    )


@compiled
def root_of(parent: Ints, x: int) -> int:
    """Representative of a set, with the path halved (Tarjan and van Leeuwen 1984)."""
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


@compiled
def merge_edges(
    graph: LoadGraph,
    edges: Edges,
    keep: Ints,
    target: int,
    most_seconds: float,
    most_bytes: float,
    noise: float,
    rating: float,
    state: RandomState,
) -> tuple[Ints, int]:
    """Merge the ends of the most expensive edges until `target` clusters are left.

    An edge ranks by its cost, give or take a fraction `noise`, over the product of the
    ends' seconds to the power `rating`. Groups of different `keep`, of different
    allowed devices, or both with `apart` constraints stay separate. Returns the cluster
    of each group and the number of clusters.
    """
    a, b, cost = edges
    groups = len(graph.size_bytes)
    parent = np.arange(groups).astype(np.int32)
    seconds, size_bytes = np.empty(groups), graph.size_bytes.copy()
    constrained = np.zeros(groups, np.bool_)
    for x in range(groups):
        seconds[x] = graph.seconds[x].min()
        constrained[x] = graph.apart_start[x + 1] > graph.apart_start[x]
    left, least = groups, 1e-3 * seconds.sum() / groups + 1e-300
    noisy = np.empty(len(a))
    for i in range(len(a)):
        noisy[i] = cost[i] * (1 + noise * (2 * uniform(state) - 1))
    for _ in range(8):
        rank = np.zeros(len(a))
        for i in range(len(a)):
            x, y = root_of(parent, a[i]), root_of(parent, b[i])
            if x != y:
                weight = (seconds[x] + least) * (seconds[y] + least)
                rank[i] = -noisy[i] / weight**rating
        before = left
        stop = target if rating == 0 else max(target, left // 2)
        for i in np.argsort(rank):
            if left <= stop or rank[i] == 0.0:
                break
            x, y = root_of(parent, a[i]), root_of(parent, b[i])
            if x == y or keep[x] != keep[y] or (constrained[x] and constrained[y]):
                continue
            if seconds[x] + seconds[y] > most_seconds:
                continue
            if size_bytes[x] + size_bytes[y] > most_bytes:
                continue
            if np.any(graph.allowed[x] != graph.allowed[y]):
                continue
            parent[y] = x
            seconds[x] += seconds[y]
            size_bytes[x] += size_bytes[y]
            constrained[x] |= constrained[y]
            left -= 1
        if left <= target or left == before or rating == 0:
            break
    number, cluster = np.full(groups, -1, np.int32), np.empty(groups, np.int32)
    count = 0
    for group in range(groups):
        x = root_of(parent, group)
        if number[x] < 0:
            number[x] = count
            count += 1
        cluster[group] = number[x]
    return cluster, count


def edges_of(graph: LoadGraph) -> Edges:
    """Producer and reader of every net, with the sum of the nets that they share."""
    net = row_numbers(graph.net_start)
    a, b = graph.net_pins[graph.net_start[:-1]][net], graph.net_pins
    cost = graph.net_seconds.max(axis=1, initial=0.0)[net]
    real = a != b
    low, high = np.minimum(a, b)[real], np.maximum(a, b)[real]
    key = low.astype(np.int64) * len(graph.size_bytes) + high
    pairs, at = np.unique(key, return_inverse=True)
    return (
        (pairs // len(graph.size_bytes)).astype(np.int32),
        (pairs % len(graph.size_bytes)).astype(np.int32),
        np.bincount(at, cost[real], len(pairs)).astype(np.float64),
    )


@compiled
def min_cuts(graph: LoadGraph, a: Ints, b: Ints, most_work: int) -> tuple[Floats, int]:
    """For every edge about the cheapest cut between its ends, and the work done.

    Greedy augmenting paths (Edmonds and Karp 1972) that see 100 groups at most, so a
    lower bound on the cut. Edges that the work did not suffice for get -1.
    """
    reach = 100
    groups, nets = len(graph.size_bytes), len(graph.net_start) - 1
    width = np.empty(nets)
    for net in range(nets):
        width[net] = graph.net_seconds[net].max()
    least = 0.02 * width.sum() / max(1, nets)
    cuts, room = np.full(len(a), -1.0), width.copy()
    from_group, from_net = np.zeros(groups, np.int32), np.zeros(groups, np.int32)
    group_seen, net_seen = np.zeros(groups, np.int64), np.zeros(nets, np.int64)
    queue = np.empty(groups, np.int32)
    touched = np.empty(nets, np.int32)
    stamp, work = 0, 0
    for i in range(len(a)):
        if work > most_work:
            break
        source, sink = a[i], b[i]
        flow, touches = 0.0, 0
        for _ in range(40):
            stamp += 1
            group_seen[source] = stamp
            queue[0] = source
            head, size, found = 0, 1, False
            while head < size and size < reach and not found:
                x = queue[head]
                head += 1
                for e in range(graph.group_start[x], graph.group_start[x + 1]):
                    net = graph.group_nets[e]
                    first, last = graph.net_start[net], graph.net_start[net + 1]
                    work += 1
                    if net_seen[net] == stamp or room[net] <= least:
                        continue
                    if last - first > reach:
                        continue
                    net_seen[net] = stamp
                    for p in range(first, last):
                        y = graph.net_pins[p]
                        work += 1
                        if group_seen[y] != stamp:
                            group_seen[y] = stamp
                            from_group[y] = x
                            from_net[y] = net
                            queue[size] = y
                            size += 1
                            found |= y == sink
                    if found or size >= reach:
                        break
            if group_seen[sink] != stamp:
                break
            low, x = np.inf, sink
            while x != source:
                low = min(low, room[from_net[x]])
                x = from_group[x]
            x = sink
            while x != source:
                net = from_net[x]
                if room[net] == width[net] and touches < nets:
                    touched[touches] = net
                    touches += 1
                room[net] -= low
                x = from_group[x]
            flow += low
        for j in range(touches):
            room[touched[j]] = width[touched[j]]
        cuts[i] = flow
    return cuts, work


@compiled
def components(start: Ints, items: Ints) -> tuple[Ints, int]:
    """Strongly connected components, numbered against the edges (Tarjan 1972)."""
    count = len(start) - 1
    index, low = np.full(count, -1, np.int32), np.zeros(count, np.int32)
    on_stack, component = np.zeros(count, np.bool_), np.full(count, -1, np.int32)
    stack, path = np.empty(count, np.int32), np.empty(count, np.int32)
    position, clock, found, top = start[:-1].copy(), 0, 0, 0
    for root in range(count):
        if index[root] >= 0:
            continue
        depth = 1
        path[0] = root
        while depth:
            u = path[depth - 1]
            if index[u] < 0:
                index[u] = low[u] = clock
                clock += 1
                stack[top] = u
                top += 1
                on_stack[u] = True
            if position[u] < start[u + 1]:
                v = items[position[u]]
                position[u] += 1
                if index[v] < 0:
                    path[depth] = v
                    depth += 1
                elif on_stack[v]:
                    low[u] = min(low[u], index[v])
                continue
            depth -= 1
            if depth:
                low[path[depth - 1]] = min(low[path[depth - 1]], low[u])
            if low[u] == index[u]:
                while True:
                    top -= 1
                    v = stack[top]
                    on_stack[v] = False
                    component[v] = found
                    if v == u:
                        break
                found += 1
    return component, found


def fused(graph: LoadGraph, state: RandomState) -> tuple[LoadGraph, Ints]:
    """Merge groups on a common cycle: no pipeline separates them."""
    component, found = components(graph.successor_start, graph.successors)
    return contract(graph, component, found, state), component
