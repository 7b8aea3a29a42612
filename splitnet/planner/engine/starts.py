"""Starts of a search: chain partitions and list schedules.

A chain partition cuts a random topological order into one interval per device. A list
schedule puts each group where it ends first, the most urgent group first: HEFT of
Topcuoglu, Hariri and Wu (2002), with noise for many different schedules.
"""

from math import inf

import numpy as np

from splitnet.planner.engine.compiler import (
    RandomState,
    below,
    compiled,
    entry,
    uniform,
)
from splitnet.planner.problem import (
    Bools,
    Floats,
    Ints,
    LoadGraph,
    Problem,
    equivalent_devices,
)

__all__ = ["ChainStarts", "copy_seconds", "list_schedule", "urgency"]

_WORK_PER_STEP = 250
"""Inner steps of the chain partition in a microsecond."""

_MOST_STATES, _MOST_CELLS = 10_000, 1_000_000
"""Size of the dynamic program: sets of devices used, and those times blocks."""


class ChainStarts:
    """Assignments that put intervals of a topological order on devices.

    `line` is the place of each device in the line of the last partition.
    """

    def __init__(self, problem: Problem, state: RandomState) -> None:
        self.graph, self.state = problem.graph, state
        self.owner = np.array(equivalent_devices(problem))
        self.number = np.bincount(self.owner)
        states = np.cumprod(self.number + 1.0)
        self.number[states > _MOST_STATES] = 0  # devices of other classes stay empty
        self.states = int(states[states <= _MOST_STATES].max(initial=2))
        self.line = np.zeros(problem.device_count, np.int64)
        self.most_blocks = 1000 if problem.group_count < 20_000 else 300

    def order(self, depth: float, stage: Ints | None = None) -> Ints:
        """A random topological order; groups of early stages come first."""
        groups = len(self.graph.size_bytes)
        position, bound = np.full(groups, inf), np.zeros(groups, np.bool_)
        if stage is None:
            stage = np.zeros(groups, np.int64)
        stages = int(stage.max(initial=0)) + 1
        random_order(self.graph, stage, stages, depth, position, bound, self.state)
        if not bound.all():
            stand_beside(self.graph, position, bound, self.state)
        return np.argsort(position, kind="stable")

    def cut(self, order: Ints, *, most: float = inf) -> tuple[Ints, Ints, float]:
        """Best partition of an order; its line; the steps that it took.

        Loads above `most` are of no interest.
        """
        at, place = np.empty_like(order), np.zeros_like(order)
        at[order] = np.arange(len(order))
        line, blocks = np.zeros(len(self.owner), np.int64), self._blocks(at)
        work = partition_chain(
            *(self.graph, order, at, blocks, self.owner, self.number, most),
            *(place, line),
        )
        line[np.argsort(line, kind="stable")] = np.arange(len(line))
        return place, line, work / _WORK_PER_STEP + 0.1 * len(order)

    def _blocks(self, at: Ints) -> Ints:
        """Bounds of the blocks of an order, each where few seconds cross."""
        graph, groups = self.graph, len(at)
        most = max(2, min(self.most_blocks, _MOST_CELLS // self.states))
        if groups <= most:
            return np.arange(groups + 1)
        ends, start = at[graph.net_pins], graph.net_start[:-1]
        seconds, width = (
            graph.net_seconds.max(axis=1, initial=0.0),
            np.zeros(groups + 2),
        )
        if len(ends):
            np.add.at(width, np.minimum.reduceat(ends, start) + 1, seconds)
            np.subtract.at(width, np.maximum.reduceat(ends, start) + 1, seconds)
        width = np.cumsum(width)
        lows = np.arange(1, most) * groups // most
        highs = np.arange(2, most + 1) * groups // most
        bounds = [low + int(width[low:high].argmin()) for low, high in zip(lows, highs)]
        return np.array([0, *bounds, groups])


@entry
def random_order(
    graph: LoadGraph,
    stage: Ints,
    stages: int,
    depth: float,
    position: Floats,
    bound: Bools,
    state: RandomState,
) -> None:
    """A random topological order of the forward edges, early stages first.

    With probability `depth` the next group is the one that became ready last, else any.
    Groups without forward edges are not `bound` to a position.
    """
    groups = len(stage)
    waits, ready = np.empty(groups, np.int64), np.empty(groups, np.int64)
    first_of, next_of = np.full(stages, -1, np.int64), np.full(groups, -1, np.int64)
    for u in range(groups):
        ready[u] = u
    for i in range(groups - 1, 0, -1):  # shuffle (Fisher and Yates 1938)
        j = below(state, i + 1)
        u = ready[i]
        ready[i] = ready[j]
        ready[j] = u
    for i in range(groups):
        u = ready[i]
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
            position[u] = done
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


@entry
def stand_beside(
    graph: LoadGraph, position: Floats, bound: Bools, state: RandomState
) -> None:
    """Put groups without a position beside the neighbour of their dearest net."""
    for sweep in range(6):
        for u in range(len(position)):
            if bound[u] or (position[u] < np.inf and sweep == 0):
                continue
            most = 0.0
            for e in range(graph.group_start[u], graph.group_start[u + 1]):
                net, cost = graph.group_nets[e], 0.0
                for kind in range(graph.net_seconds.shape[1]):
                    cost = max(cost, graph.net_seconds[net, kind])
                for p in range(graph.net_start[net], graph.net_start[net + 1]):
                    v = graph.net_pins[p]
                    if v != u and position[v] < np.inf and cost > most:
                        most = cost
                        position[u] = position[v] + 0.3 + 0.01 * uniform(state)


@compiled
def interval_loads(
    graph: LoadGraph,
    order: Ints,
    at: Ints,
    blocks: Ints,
    device_of: Ints,
    most: float,
    load: Floats,
    end: Ints,
) -> int:
    """Load of every interval of blocks on a device of every class; the work done.

    Infinite if the class may not run it, has no room for it, if its groups alone take
    more than `most`, or some must be apart. `at` is the inverse of the order.
    `end[i]` is the last bound that an interval from i can have.
    """
    classes, kinds = len(device_of), graph.seconds.shape[1]
    pins = np.zeros(len(graph.net_start) - 1, np.int64)
    seconds, crossing = np.zeros(kinds), np.zeros(kinds)
    refused, work = np.zeros(classes, np.bool_), 0
    for i in range(len(blocks)):
        for k in range(kinds):
            seconds[k] = crossing[k] = 0.0
        for c in range(classes):
            refused[c], load[c, i, i] = False, 0.0
        size_bytes, together, end[i] = 0.0, False, i
        for j in range(i, len(blocks) - 1):
            for q in range(blocks[j], blocks[j + 1]):
                u = order[q]
                size_bytes += graph.size_bytes[u]
                for k in range(kinds):
                    seconds[k] += graph.seconds[u, k]
                for c in range(classes):
                    refused[c] |= not graph.allowed[u, device_of[c]]
                for e in range(graph.apart_start[u], graph.apart_start[u + 1]):
                    together |= blocks[i] <= at[graph.apart[e]] <= q
                for e in range(graph.group_start[u], graph.group_start[u + 1]):
                    net = graph.group_nets[e]
                    size = graph.net_start[net + 1] - graph.net_start[net]
                    sign = int(pins[net] == 0) - int(pins[net] == size - 1)
                    if sign != 0:
                        for k in range(kinds):
                            crossing[k] += sign * graph.net_seconds[net, k]
                    pins[net] += 1
                work += 3 + graph.group_start[u + 1] - graph.group_start[u]
            end[i], alive = j + 1, False
            for c in range(classes):
                kind = graph.kind[device_of[c]]
                room = graph.capacity_bytes[device_of[c]] * (1 + 1e-12)
                fits = size_bytes <= room and seconds[kind] <= most
                if fits and not refused[c] and not together:
                    load[c, i, j + 1] = seconds[kind] + crossing[kind]
                    alive = True
            if not alive:
                break
        for q in range(blocks[i], blocks[end[i]]):
            u = order[q]
            for e in range(graph.group_start[u], graph.group_start[u + 1]):
                pins[graph.group_nets[e]] = 0
    return work


@entry
def partition_chain(
    graph: LoadGraph,
    order: Ints,
    at: Ints,
    blocks: Ints,
    owner: Ints,
    number: Ints,
    most: float,
    place: Ints,
    line: Ints,
) -> int:
    """Cut an order into an interval per device so that the largest load is least.

    Dynamic program over (devices used of each class, blocks placed), as in PipeDream
    (Narayanan et al. 2019). `owner` is the class of each device, `number` the size of
    each class. Exact for the order and its blocks. Writes the assignment and the place
    of each device in the line, or zeros if no load is below `most`; returns the work.
    """
    count, classes, devices = len(blocks) - 1, len(number), len(owner)
    device_of, radix = np.zeros(classes, np.int64), np.ones(classes, np.int64)
    for d in range(devices - 1, -1, -1):
        device_of[owner[d]] = d
    load = np.full((classes, count + 1, count + 1), np.inf)
    end, states = np.zeros(count + 1, np.int64), 1
    work = interval_loads(graph, order, at, blocks, device_of, most, load, end)
    for c in range(classes):
        radix[c] = states
        states *= number[c] + 1
    best = np.full((states, count + 1), np.inf)
    choice = np.zeros((2, states, count + 1), np.int64)  # class and first block
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
                        choice[0, s, j], choice[1, s, j] = c, i
    if best[states - 1, count] == np.inf:
        return work
    s, j, stage = states - 1, count, devices
    for c in range(classes):
        device_of[c] = number[c]  # devices of the class that are left
    while s:
        c, i = choice[0, s, j], choice[1, s, j]
        device_of[c] -= 1
        device, skip = 0, device_of[c]
        while owner[device] != c or skip:
            skip -= owner[device] == c
            device += 1
        stage -= 1
        line[device] = stage
        for q in range(blocks[i], blocks[j]):
            place[order[q]] = device
        s -= radix[c]
        j = i
    return work


def copy_seconds(graph: LoadGraph) -> Floats:
    """What every group sends, on its most expensive kind of device."""
    seconds, producer = np.zeros(len(graph.size_bytes)), graph.net_start[:-1]
    dearest = graph.net_seconds.max(axis=1, initial=0.0)
    np.add.at(seconds, graph.net_pins[producer], dearest)
    return seconds


@entry
def urgency(
    graph: LoadGraph, order: Ints, copies: Floats, noise: float, state: RandomState
) -> Floats:
    """Longest path behind each group (upward rank), give or take a fraction `noise`.

    The order is topological.
    """
    rank = np.zeros(len(order))
    for i in range(len(order) - 1, -1, -1):
        u, rest, fastest = order[i], 0.0, np.inf
        for e in range(graph.successor_start[u], graph.successor_start[u + 1]):
            rest = max(rest, rank[graph.successors[e]])
        for kind in range(graph.seconds.shape[1]):
            fastest = min(fastest, graph.seconds[u, kind])
        seconds = (fastest + copies[u]) * (1.0 + noise * uniform(state))
        rank[u] = rest + seconds + 1e-12
    return rank


@entry
def list_schedule(
    graph: LoadGraph, order: Ints, copies: Floats, noise: float, state: RandomState
) -> Ints:
    """Every group, in order, on the device on which it ends first and has room.

    Where nothing has room, the device with most of it is taken.
    """
    devices, groups = len(graph.capacity_bytes), len(order)
    place, end = np.full(groups, -1, np.int64), np.zeros(groups)
    free, used = np.zeros(devices), np.zeros(devices)
    for i in range(groups):
        u, chosen, earliest, most, begin = order[i], -1, np.inf, -np.inf, 0.0
        roomy = 0
        for d in range(devices):
            room = graph.capacity_bytes[d] - used[d] - graph.size_bytes[u]
            if not graph.allowed[u, d]:
                continue
            if room > most:
                most, roomy = room, d
            together = False
            for e in range(graph.apart_start[u], graph.apart_start[u + 1]):
                together |= place[graph.apart[e]] == d
            if together or room < 0.0:
                continue
            start = free[d]
            for e in range(graph.predecessor_start[u], graph.predecessor_start[u + 1]):
                v = graph.predecessors[e]
                there = end[v] + (copies[v] if place[v] != d else 0.0)
                start = max(start, there)
            ends = start + graph.seconds[u, graph.kind[d]]
            ends *= 1.0 + noise * uniform(state)
            if ends < earliest:
                earliest, chosen, begin = ends, d, start
        if chosen < 0:
            chosen, begin = roomy, free[roomy]
        place[u] = chosen
        used[chosen] += graph.size_bytes[u]
        free[chosen] = end[u] = begin + graph.seconds[u, graph.kind[chosen]]
    return place
