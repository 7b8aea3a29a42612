"""Constructive starts: topological orders, chain partition, list scheduling."""

import numpy as np

from splitnet.planner.engine.compiler import (
    RandomState,
    below,
    compiled,
    uniform,
)
from splitnet.planner.problem import Floats, Ints, LoadGraph

__all__ = [
    "block_bounds",
    "list_schedule",
    "partition_chain",
    "random_order",
    "urgency_order",
]


@compiled
def random_order(
    graph: LoadGraph, stage: Ints, stages: int, depth: float, state: RandomState
) -> Ints:
    """A random topological order of the forward edges, early stages first.

    With probability `depth` the next group is the one that became ready last, else any.
    Groups without forward edges stand beside the neighbour of their most expensive net.
    """
    groups = len(graph.size_bytes)
    waits, order = np.empty(groups, np.int32), np.empty(groups, np.int32)
    first_of, next_of = np.full(stages, -1, np.int32), np.full(groups, -1, np.int32)
    shuffled = np.arange(groups).astype(np.int32)
    for i in range(groups - 1, 0, -1):
        j = below(state, i + 1)
        u = shuffled[i]
        shuffled[i] = shuffled[j]
        shuffled[j] = u
    ready, bound = np.empty(groups, np.int32), np.zeros(groups, np.bool_)
    for u in shuffled:
        waits[u] = graph.predecessor_start[u + 1] - graph.predecessor_start[u]
        bound[u] = waits[u] > 0 or (
            graph.successor_start[u + 1] > graph.successor_start[u]
        )
        if waits[u] == 0 and bound[u]:
            next_of[u] = first_of[stage[u]]
            first_of[stage[u]] = u
    done = 0
    for s in range(stages):
        size, w = 0, first_of[s]
        while w >= 0:
            ready[size] = w
            size += 1
            w = next_of[w]
        while size:
            i = size - 1 if uniform(state) < depth else below(state, size)
            u = ready[i]
            ready[i] = ready[size - 1]
            size -= 1
            order[done] = u
            done += 1
            start = graph.successor_start[u]
            degree = graph.successor_start[u + 1] - start
            turn = below(state, degree) if degree else 0
            for e in range(degree):
                v = graph.successors[start + (turn + e) % degree]
                waits[v] -= 1
                if waits[v] == 0 and stage[v] <= s:
                    ready[size] = v
                    size += 1
                elif waits[v] == 0:
                    next_of[v] = first_of[stage[v]]
                    first_of[stage[v]] = v
    if done == groups:
        return order
    position = np.full(groups, np.inf)
    for i in range(done):
        position[order[i]] = i
    for sweep in range(6):
        for u in range(groups):
            if bound[u] or (position[u] < np.inf and sweep == 0):
                continue
            most = 0.0
            for e in range(graph.group_start[u], graph.group_start[u + 1]):
                net = graph.group_nets[e]
                cost = graph.net_seconds[net].max()
                for p in range(graph.net_start[net], graph.net_start[net + 1]):
                    v = graph.net_pins[p]
                    if v != u and position[v] < np.inf and cost > most:
                        most = cost
                        position[u] = position[v] + 0.3 + 0.01 * uniform(state)
    return np.argsort(position, kind="mergesort").astype(np.int32)


@compiled
def block_bounds(graph: LoadGraph, order: Ints, most: int) -> Ints:
    """Bounds of at most so many blocks of an order, each where few seconds cross."""
    groups = len(order)
    if groups <= most:
        return np.arange(groups + 1).astype(np.int32)
    position, width = np.empty(groups, np.int32), np.zeros(groups + 2)
    for i in range(groups):
        position[order[i]] = i
    for net in range(len(graph.net_start) - 1):
        low = high = position[graph.net_pins[graph.net_start[net]]]
        for e in range(graph.net_start[net], graph.net_start[net + 1]):
            low = min(low, position[graph.net_pins[e]])
            high = max(high, position[graph.net_pins[e]])
        width[low + 1] += graph.net_seconds[net].max()
        width[high + 1] -= graph.net_seconds[net].max()
    for i in range(1, groups + 1):
        width[i] += width[i - 1]
    bounds = np.zeros(most + 1, np.int32)
    for block in range(1, most):
        low, high = block * groups // most, (block + 1) * groups // most
        bounds[block] = low
        for i in range(low, high):
            if width[i] < width[bounds[block]]:
                bounds[block] = i
    bounds[most] = groups
    return bounds


@compiled
def interval_loads(
    graph: LoadGraph, order: Ints, blocks: Ints, device_of: Ints, most: float
) -> tuple[Floats, Ints, int]:
    """Load of every interval of blocks on a device of every class, and work done.

    Infinite if the class may not run it, has no room for it, or its groups alone take
    more than `most`. `end[i]` is the last bound that an interval from i can have.
    """
    blocks_count, classes = len(blocks) - 1, len(device_of)
    kinds = graph.seconds.shape[1]
    load = np.full((classes, blocks_count + 1, blocks_count + 1), np.inf)
    end = np.zeros(blocks_count + 1, np.int32)
    pins = np.zeros(len(graph.net_start) - 1, np.int32)
    seconds, crossing = np.zeros(kinds), np.zeros(kinds)
    refused, work = np.zeros(classes, np.bool_), 0
    for i in range(blocks_count + 1):
        seconds[:] = 0.0
        crossing[:] = 0.0
        refused[:] = False
        size_bytes = 0.0
        end[i] = i
        for c in range(classes):
            load[c, i, i] = 0.0
        for j in range(i, blocks_count):
            for q in range(blocks[j], blocks[j + 1]):
                u = order[q]
                size_bytes += graph.size_bytes[u]
                for k in range(kinds):
                    seconds[k] += graph.seconds[u, k]
                for c in range(classes):
                    refused[c] |= not graph.allowed[u, device_of[c]]
                for e in range(graph.group_start[u], graph.group_start[u + 1]):
                    net = graph.group_nets[e]
                    if pins[net] == 0:
                        for k in range(kinds):
                            crossing[k] += graph.net_seconds[net, k]
                    pins[net] += 1
                    if pins[net] == graph.net_start[net + 1] - graph.net_start[net]:
                        for k in range(kinds):
                            crossing[k] -= graph.net_seconds[net, k]
                work += 3 + graph.group_start[u + 1] - graph.group_start[u]
            end[i] = j + 1
            alive = False
            for c in range(classes):
                kind = graph.kind[device_of[c]]
                room = graph.capacity_bytes[device_of[c]] * (1 + 1e-12)
                if not refused[c] and size_bytes <= room and seconds[kind] <= most:
                    load[c, i, j + 1] = seconds[kind] + crossing[kind]
                    alive = True
            if not alive:
                break
        for q in range(blocks[i], blocks[end[i]]):
            for e in range(
                graph.group_start[order[q]], graph.group_start[order[q] + 1]
            ):
                pins[graph.group_nets[e]] = 0
    return load, end, work


@compiled
def partition_chain(
    graph: LoadGraph,
    order: Ints,
    blocks: Ints,
    owner: Ints,
    number: Ints,
    most: float,
) -> tuple[float, Ints, Ints, int]:
    """Cut an order into an interval per device so that the largest load is least.

    Dynamic program over (devices used of each class, blocks placed), as in PipeDream
    (Narayanan et al. 2019). `owner` is the class of each device, `number` the size of
    each class. Exact for the order and its blocks. Returns the value (infinite if above
    `most`), the assignment, the place of each device in the line, and the work done.
    """
    count, classes, devices = len(blocks) - 1, len(number), len(owner)
    device_of = np.zeros(classes, np.int32)
    for d in range(devices - 1, -1, -1):
        device_of[owner[d]] = d
    load, end, work = interval_loads(graph, order, blocks, device_of, most)
    radix, states = np.ones(classes, np.int64), 1
    for c in range(classes):
        radix[c] = states
        states *= number[c] + 1
    best = np.full((states, count + 1), np.inf)
    class_of = np.zeros((states, count + 1), np.int32)
    start_of = np.zeros((states, count + 1), np.int32)
    best[0, 0] = 0.0
    for s in range(1, states):
        for c in range(classes):
            if (s // radix[c]) % (number[c] + 1) == 0:
                continue
            before = s - radix[c]
            for i in range(count + 1):
                value = best[before, i]
                if value > most:
                    continue
                work += (end[i] + 1 - i) // 3
                for j in range(i, end[i] + 1):
                    larger = max(value, load[c, i, j])
                    if larger < best[s, j]:
                        best[s, j] = larger
                        class_of[s, j] = c
                        start_of[s, j] = i
    place, line = np.zeros(len(order), np.int32), np.zeros(devices, np.int32)
    value = best[states - 1, count]
    if value == np.inf:
        return value, place, line, work
    s, j, left, stage = states - 1, count, number.copy(), devices
    while s:
        c, i = class_of[s, j], start_of[s, j]
        left[c] -= 1
        device, skip = 0, left[c]
        while owner[device] != c or skip:
            skip -= owner[device] == c
            device += 1
        stage -= 1
        line[device] = stage
        for q in range(blocks[i], blocks[j]):
            place[order[q]] = device
        s -= radix[c]
        j = i
    return value, place, line, work


@compiled
def urgency_order(
    graph: LoadGraph,
    order: Ints,
    copy_seconds: Floats,
    noise: float,
    state: RandomState,
) -> Ints:
    """Groups by the longest path behind each, give or take a fraction `noise`.

    The upward rank of HEFT (Topcuoglu, Hariri and Wu 2002).
    """
    rank = np.zeros(len(order))
    for i in range(len(order) - 1, -1, -1):
        u, rest = order[i], 0.0
        for e in range(graph.successor_start[u], graph.successor_start[u + 1]):
            rest = max(rest, rank[graph.successors[e]])
        seconds = graph.seconds[u].min() + copy_seconds[u]
        rank[u] = rest + seconds * (1 + noise * uniform(state)) + 1e-12
    return np.argsort(-rank, kind="mergesort").astype(np.int32)


@compiled
def list_schedule(
    graph: LoadGraph,
    order: Ints,
    copy_seconds: Floats,
    noise: float,
    state: RandomState,
) -> Ints:
    """Every group, in order, on the device on which it ends first and has room.

    Earliest finish time of HEFT, with noise. Every direction of a link carries one copy
    at a time, and a group's output goes to a device once. Where nothing has room, the
    device with most of it is taken.
    """
    devices, groups = len(graph.capacity_bytes), len(order)
    place = np.full(groups, -1, np.int32)
    free, used = np.zeros(devices), np.zeros(devices)
    link_free = np.zeros((devices, devices))
    there = np.full((groups, devices), np.inf)  # when each output is on each device
    for u in order:
        chosen, earliest, begin = -1, np.inf, 0.0
        first, last = graph.predecessor_start[u], graph.predecessor_start[u + 1]
        for d in range(devices):
            if not graph.allowed[u, d]:
                continue
            if used[d] + graph.size_bytes[u] > graph.capacity_bytes[d]:
                continue
            together = False
            for e in range(graph.apart_start[u], graph.apart_start[u + 1]):
                together |= place[graph.apart[e]] == d
            if together:
                continue
            start = free[d]
            for e in range(first, last):
                v = graph.predecessors[e]
                a = place[v]
                ready = there[v, d]
                if ready == np.inf and a >= 0:
                    ready = max(there[v, a], link_free[a, d]) + copy_seconds[v]
                if a >= 0:
                    start = max(start, ready)
            end = (start + graph.seconds[u, graph.kind[d]]) * (
                1 + noise * uniform(state)
            )
            if end < earliest:
                earliest, chosen, begin = end, d, start
        if chosen < 0:
            for d in range(devices):
                room = graph.capacity_bytes[d] - used[d]
                if graph.allowed[u, d] and (
                    chosen < 0 or room > graph.capacity_bytes[chosen] - used[chosen]
                ):
                    chosen = d
            begin = free[chosen]
        for e in range(first, last):
            v = graph.predecessors[e]
            a = place[v]
            if a >= 0 and there[v, chosen] == np.inf:
                sent = max(there[v, a], link_free[a, chosen]) + copy_seconds[v]
                link_free[a, chosen] = there[v, chosen] = sent
                begin = max(begin, sent)
        place[u] = chosen
        used[chosen] += graph.size_bytes[u]
        free[chosen] = begin + graph.seconds[u, graph.kind[chosen]]
        there[u, chosen] = free[chosen]
    return place
