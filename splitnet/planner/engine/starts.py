"""What a search begins with: merged groups, chain partitions and list schedules.

Groups are merged along expensive edges: the coarsening of Hendrickson and Leland, "A
Multilevel Algorithm for Partitioning Graphs" (1995), the ends of the most expensive
edges first, with some noise; or chains, in which each group alone feeds the next.

A chain partition cuts a random topological order into one interval per device, with a
dynamic program in NumPy. A list schedule puts each group where it ends first, the most
urgent group first: HEFT of Topcuoglu, Hariri and Wu (2002), with noise for many
different schedules. Or long paths stay whole: linear clustering of Kim and Browne, "A
General Approach to Mapping of Parallel Computations" (1988).
"""

from heapq import heapify, heappop, heappush
from math import inf

import networkx as nx
import numpy as np

from splitnet.planner import load_graph
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.compiler import entry
from splitnet.planner.engine.functions import root_of
from splitnet.planner.load_graph import Bools, Floats, Ints, LoadGraph
from splitnet.planner.problem import Problem, contract

_Random = np.random.Generator
_NOISE = 0.5  # of the cost of an edge
# Steps of a pin for one sort of device, and of a cell of the dynamic program.
_STEPS_PER_PIN, _STEPS_PER_CELL = 0.05, 0.002
_DEPTHS = 0.5, 0.9, 0.97, 1.0  # how often what became ready last is next in an order
# Of the dynamic program: sets of devices used, those times blocks twice, and blocks.
_MOST_STATES, _MOST_CELLS, _MOST_BLOCKS = 10_000, 20_000_000, 600


@entry
def unite(
    edges: Ints, parent: Ints, kind: Ints, sums: Floats, most: Floats, stop: int
) -> None:
    """Unite the ends of edges of one kind, in order, until `stop` sets are left.

    No sum over a set is above its limit, of `sums[:, x]` of the members x.
    """
    left = len(parent)
    for i in range(edges.shape[1]):
        if left <= stop:
            break
        x, y = root_of(parent, edges[0, i]), root_of(parent, edges[1, i])
        unites = x != y and kind[x] == kind[y]
        for k in range(len(most)):
            unites = unites and sums[k, x] + sums[k, y] <= most[k]
        if unites:
            parent[y] = x
            left -= 1
            for k in range(len(most)):
                sums[k, x] += sums[k, y]
    for x in range(len(parent)):
        parent[x] = root_of(parent, x)


def merge_edges(
    problem: Problem,
    keep: Ints,
    target: int,
    random: _Random,
    rating: float,
    most: tuple[float, float],
    *,
    chains: bool = False,
) -> tuple[Ints, int]:
    """Merge the ends of the most expensive edges until `target` clusters are left.

    An edge ranks by the seconds of the nets from one end to the other, give or take
    half of it, over the product of the ends' seconds to the power `rating`. Clusters
    have so many seconds and bytes at `most`. Groups of different `keep`, of different
    allowed devices, or both with `apart` constraints stay separate. With `chains`, only
    edges within chains are merged, and `most` is of groups and bytes. Returns the
    cluster of each group and the number of clusters.
    """
    graph, groups = problem.graph, problem.group_count
    seconds = graph.seconds.min(axis=1, initial=inf)
    net = load_graph.owners(graph.net_start)
    a, b = graph.net_pins[graph.net_start[:-1]][net], graph.net_pins
    cost, real = graph.net_seconds.max(axis=1, initial=0.0)[net], a != b
    alone = (np.diff(graph.successor_start)[a] == 1) & real
    alone &= np.diff(graph.predecessor_start)[b] == 1
    ends = np.minimum(a, b) * groups + np.maximum(a, b)
    pairs, at = np.unique(ends[real], return_inverse=True)
    a, b = np.divmod(pairs, max(1, groups))
    noise = 1 + _NOISE * (2 * random.random(len(pairs)) - 1)
    rank = np.bincount(at, cost[real], len(pairs)) * noise
    least = 1e-3 * seconds.mean() + 1e-300
    rank /= ((seconds[a] + least) * (seconds[b] + least)) ** rating
    order = np.argsort(-rank, kind="stable")
    if chains:
        order = order[np.bincount(at, alone[real], len(pairs))[order] > 0]
        seconds = np.ones(groups)
    sums = np.array([seconds, graph.size_bytes, np.diff(graph.apart_start) > 0])
    parent, limits = np.arange(groups), np.array([*most, 1.0])
    ends = np.array([a[order], b[order]])
    unite(ends, parent, _kinds(graph, keep), sums, limits, target)
    roots, cluster = np.unique(parent, return_inverse=True)
    return cluster, len(roots)


def _kinds(graph: LoadGraph, keep: Ints | int = 0) -> Ints:
    """A number for each group: equal if its allowed devices, and `keep`, are equal."""
    keys = np.random.default_rng(0).integers(2**63, size=1 + graph.allowed.shape[1])
    kind: Ints = keep * keys[0] + graph.allowed @ keys[1:]
    return kind


def fused(problem: Problem) -> tuple[Problem, Ints]:
    """Merge groups on a common cycle: no pipeline separates them."""
    graph, cluster = problem.graph, np.arange(problem.group_count)
    source = load_graph.owners(graph.successor_start).tolist()
    flow = nx.DiGraph(zip(source, graph.successors.tolist()))
    flow.add_nodes_from(cluster.tolist())
    whole = nx.condensation(flow)
    if len(whole) < len(cluster):
        cluster = np.array([whole.graph["mapping"][u] for u in cluster.tolist()])
        problem = contract(problem, cluster, len(whole))
    return problem, cluster


def random_order(graph: LoadGraph, random: _Random, stage: Ints | None = None) -> Ints:
    """A random topological order; groups of early stages come first (Kahn 1962).

    Mostly the next group is the one that became ready last, else any.
    Groups without forward edges stand beside one that they share a net with.
    """
    waits, depth = np.diff(graph.predecessor_start), random.choice(_DEPTHS)
    bound = (waits > 0) | (np.diff(graph.successor_start) > 0)
    after = load_graph.lists_of(graph.successor_start, graph.successors)
    at = (np.zeros_like(waits) if stage is None else stage).tolist()
    left, order = waits.tolist(), list[int]()
    deep, noise = random.random((2, len(waits))).tolist()
    roots = np.flatnonzero(bound & (waits == 0))
    ready = [(at[u], 0.0, noise[u], u) for u in roots.tolist()]
    heapify(ready)
    while ready:
        s, _, _, u = heappop(ready)
        order.append(u)
        for v in after[u]:
            left[v] -= 1
            if not left[v]:
                turn = -len(order) if deep[v] < depth else -len(left) * noise[v]
                heappush(ready, (max(s, at[v]), turn, noise[v], v))
    if len(order) == len(waits):
        return np.array(order, np.int64)
    position = np.full(len(waits), inf)
    position[order] = np.arange(len(order))
    free, pins = position == inf, graph.net_pins
    net = load_graph.owners(graph.net_start)
    for _ in range(6):
        first, near = np.full(len(graph.net_seconds), inf), np.full(len(waits), inf)
        np.minimum.at(first, net, position[pins])
        np.minimum.at(near, pins, first[net])
        position[free] = near[free] + 0.3 + 0.01 * random.random(int(free.sum()))
    return np.argsort(position, kind="stable")


def chain_partition(
    graph: LoadGraph, sort: Ints, order: Ints, budget: Budget
) -> Ints | None:
    """The partition of an order with the least load; None if nothing fits.

    Dynamic program over (devices used of each sort, blocks placed), as in PipeDream
    (Narayanan et al. 2019); exact for the order and its blocks. A set of devices is a
    number in mixed radix. `sort` is that of each device.
    """
    number = np.bincount(sort)
    number[np.cumprod(number + 1.0) > _MOST_STATES] = 0  # further ones stay empty
    radix: list[int] = np.cumprod([1, *number + 1]).tolist()
    states = radix.pop()
    blocks = max(2, min(_MOST_BLOCKS, int((_MOST_CELLS / states) ** 0.5), len(order)))
    bounds = np.linspace(0, len(order), blocks + 1).astype(np.int64)
    load = _block_loads(graph, order, bounds, np.unique(sort, return_index=True)[1])
    best, end = np.full((states, len(bounds)), inf), len(bounds) - 1
    best[0, 0] = 0.0
    for s in range(1, states):
        for c, each in enumerate(radix):
            if s // each % (number[c] + 1):
                longer = np.maximum(best[s - each, :, None], load[c]).min(axis=0)
                np.minimum(best[s], longer, out=best[s])
    budget.spend(len(load) * (len(graph.net_pins) + len(order)) * _STEPS_PER_PIN)
    budget.spend(states * load.size * _STEPS_PER_CELL)
    s, place = states - 1, np.zeros(len(order), np.int64)
    if best[s, end] == inf:
        return None
    left = [np.flatnonzero(sort == c).tolist() for c in range(len(number))]
    while s:
        last: list[tuple[float, int, int]] = []
        for c, each in enumerate(radix):
            if s // each % (number[c] + 1):
                longer = np.maximum(best[s - each], load[c, :, end])
                last.append((longer.min(), c, int(longer.argmin())))
        _, c, begin = min(last)
        place[order[bounds[begin] : bounds[end]]] = left[c].pop()
        s, end = s - radix[c], begin
    return place


def _block_loads(graph: LoadGraph, order: Ints, bounds: Ints, devices: Ints) -> Floats:
    """Load of the blocks from i to before j on each device, at [device, i, j].

    Infinite if the device may not run it, has no room for it, or some must be apart. A
    net costs nothing where it has no pin, and where it has all.
    """
    position, count = np.argsort(order), len(bounds)
    block = np.searchsorted(bounds, position, side="right") - 1

    def within(values: Floats | Bools) -> Floats:
        sums = np.concatenate(([0.0], np.cumsum(values[order])))[bounds]
        return sums - sums[:, None]

    def corner(i: Ints, j: Ints, weights: Floats | None) -> Floats:
        sums = np.bincount(i * count + j, weights, count * count)
        return sums.reshape(count, count).astype(np.float64)

    def around(low: Ints, high: Ints, weights: Floats | None = None) -> Floats:
        """Sums over what goes from block `low` to `high`, by interval around it."""
        return corner(low, high + 1, weights)[::-1].cumsum(axis=0)[::-1].cumsum(axis=1)

    sizes, start = np.diff(graph.net_start), graph.net_start[:-1]
    pins = block[graph.net_pins]
    pins = pins[np.lexsort((pins, load_graph.owners(graph.net_start)))]
    low, high = pins[start], pins[graph.net_start[1:] - 1]
    before = np.insert(pins, start, -1)  # of every gap between pins
    after = np.insert(pins, graph.net_start[1:], count - 1)
    ends = block[load_graph.owners(graph.apart_start)], block[graph.apart]
    together = around(np.minimum(*ends), np.maximum(*ends)) > 0
    size, load = within(graph.size_bytes), np.zeros((len(devices), count, count))
    for one, device in zip(load, devices):
        kind = graph.kind[device]
        paid = graph.net_seconds[:, kind]
        gaps = corner(before + 1, after, np.repeat(paid, sizes + 1))
        outside = gaps[:, ::-1].cumsum(axis=1)[:, ::-1].cumsum(axis=0)
        one += within(np.nan_to_num(graph.seconds[:, kind], posinf=0.0)) + paid.sum()
        one -= outside + around(low, high, paid)
        refused = within(~graph.allowed[:, device]) > 0
        room = graph.capacity_bytes[device] * (1 + 1e-12)
        backwards = np.tri(count, k=-1, dtype=np.bool_)
        one[refused | together | backwards | (size > room)] = inf
    return load


@entry
def schedule(
    graph: LoadGraph, order: Ints, copies: Floats, place: Ints, end: Floats, use: Floats
) -> None:
    """Put every group, in this order, where it ends first; `place` is -1 at first.

    `end` gets when each group ends, `use` how long each device is used, and its bytes.
    """
    until, held = use[0], use[1]
    for i in range(len(order)):
        u, chosen, earliest, begin = order[i], -1, np.inf, 0.0
        for d in range(len(until)):
            if not graph.allowed[u, d]:
                continue
            start, kind = until[d], graph.kind[d]
            for e in range(graph.predecessor_start[u], graph.predecessor_start[u + 1]):
                v = graph.predecessors[e]
                if place[v] >= 0:
                    start = max(start, end[v] + (copies[v] if place[v] != d else 0.0))
            ends = start + graph.seconds[u, kind]
            lacking = held[d] + graph.size_bytes[u] - graph.capacity_bytes[d]
            if lacking > 0.0:
                ends = lacking * 1e100
            if chosen < 0 or ends < earliest:
                earliest, chosen, begin = ends, d, start
        place[u] = chosen
        held[chosen] += graph.size_bytes[u]
        until[chosen] = end[u] = begin + graph.seconds[u, graph.kind[chosen]]


def _scheduled(graph: LoadGraph, rank: Floats, copies: Floats) -> Ints:
    place, end = np.full(len(rank), -1), np.zeros(len(rank))
    order, use = np.argsort(-rank, kind="stable"), np.zeros((2, len(graph.kind)))
    schedule(graph, order, copies, place, end, use)
    return place


def _ranks(graph: LoadGraph, random: _Random) -> tuple[Floats, Floats, list[list[int]]]:
    """Seconds of the longest path from each group on, of its copies, and its readers.

    With noise. A copy takes about as long as on the producer's slowest kind.
    """
    dearest, copies = graph.net_seconds.max(axis=1, initial=0.0), 0 * graph.size_bytes
    np.add.at(copies, graph.net_pins[graph.net_start[:-1]], dearest)
    copies *= float(random.choice([0.5, 1.0, 2.0]))
    seconds = graph.seconds.min(axis=1) + copies
    noise = 0.5 * random.random() * random.random(len(copies))
    rank = (seconds * (1.0 + noise)).tolist()
    after = load_graph.lists_of(graph.successor_start, graph.successors)
    for u in reversed(random_order(graph, random).tolist()):
        rank[u] += max((rank[v] for v in after[u]), default=0.0)
    return np.array(rank), copies, after


def list_schedule(graph: LoadGraph, random: _Random) -> Ints:
    """A list schedule: what has the longest path from it on is first."""
    return _scheduled(graph, *_ranks(graph, random)[:2])


def paths_apart(problem: Problem, random: _Random) -> Ints:
    """Long paths, each whole on the device where it ends first, the longest first."""
    graph, count = problem.graph, 0
    rank, _, after = _ranks(graph, random)
    own = np.arange(1, len(rank) + 1)
    path, kind = -own, _kinds(graph, own * (np.diff(graph.apart_start) > 0))
    for u in np.argsort(-rank, kind="stable").tolist():
        if path[u] < 0:
            path[u], count = count, count + 1
        if free := [v for v in after[u] if path[v] < 0 and kind[v] == kind[u]]:
            path[max(free, key=rank.__getitem__)] = path[u]
    whole, none = contract(problem, path, count).graph, np.zeros(count + 1, np.int64)
    alone = whole._replace(predecessor_start=none)  # whatever a path reads
    return _scheduled(alone, whole.seconds.min(axis=1), np.zeros(count))[path]
