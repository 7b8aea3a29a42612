"""Starts of a search: chain partitions and list schedules.

A chain partition cuts a random topological order into one interval per device, with a
dynamic program in NumPy. A list schedule puts each group where it ends first, the most
urgent group first: HEFT of Topcuoglu, Hariri and Wu (2002), with noise for many
different schedules.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.compiler import RandomState, entry, uniform
from splitnet.planner.engine.load_graph import (
    Bools,
    Floats,
    Ints,
    LoadGraph,
)
from splitnet.planner.engine.tasks import Records, pop, push, queue_of
from splitnet.planner.problem import Problem, equivalent_devices

_STEPS_PER_PIN, _STEPS_PER_CELL = 0.004, 0.002
"""Steps of a pin of an interval, and of a cell of the dynamic program."""

_DEPTHS = 0.5, 0.9, 0.97, 1.0
"""How often an order goes on with the group that became ready last."""

_MOST_STATES, _MOST_CELLS, _MOST_BLOCKS = 10_000, 20_000_000, 600
"""Size of the dynamic program: sets of devices used, those times blocks twice, and
blocks."""


class Incumbent(NamedTuple):
    """An assignment and its value, infinite if it breaks a constraint.

    `margin` are bytes by which its peaks are above sums, or those of what was found
    from it and had no room.
    """

    value: float
    place: Ints
    margin: Floats = np.zeros(0)


class Elite:
    """The best assignments, kept different in the nets that they cut."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: list[Incumbent] = []
        self.cut: list[Bools] = []

    def takes(self, value: float) -> bool:
        """Whether an assignment of this value would be kept."""
        if len(self.members) >= self.size and value >= self.members[-1].value:
            return False
        return value < inf and not any(
            abs(value - m.value) <= 1e-9 * value for m in self.members
        )

    def add(self, graph: LoadGraph, one: Incumbent) -> None:
        """Keep an assignment of a new value instead of the worse one most like it."""
        value, place, _ = one
        if not self.takes(value):
            return
        cut = np.zeros(len(graph.net_start), np.bool_)
        if len(graph.net_pins):
            start, where = graph.net_start[:-1], place[graph.net_pins]
            low, high = (f.reduceat(where, start) for f in (np.minimum, np.maximum))
            cut[:-1] = low != high
        if len(self.members) >= self.size:
            worse = [i for i, m in enumerate(self.members) if m.value > value]
            i = min(worse, key=lambda i: np.count_nonzero(self.cut[i] ^ cut))
            del self.members[i], self.cut[i]
        i = sum(m.value <= value for m in self.members)
        self.members.insert(i, one)
        self.cut.insert(i, cut)


def random_order(
    graph: LoadGraph, random: np.random.Generator, stage: Ints | None = None
) -> Ints:
    """A random topological order; groups of early stages come first (Kahn 1962).

    Mostly the next group is the one that became ready last, else any.
    Groups without forward edges stand beside one that they share a net with.
    """
    waits, depth = np.diff(graph.predecessor_start), random.choice(_DEPTHS)
    bound = (waits > 0) | (np.diff(graph.successor_start) > 0)
    start, after = graph.successor_start.tolist(), graph.successors.tolist()
    at = [0] * len(waits) if stage is None else stage.tolist()
    ready: list[list[int]] = [[] for _ in range(max(at, default=0) + 1)]
    for u in random.permutation(np.flatnonzero(bound & (waits == 0))).tolist():
        ready[at[u]].append(u)
    draws = iter(random.random((2, len(waits))).T.tolist())
    left, order = waits.tolist(), []
    for s, here in enumerate(ready):
        while here:
            deep, draw = next(draws)
            if deep >= depth:
                i = int(draw * len(here))
                here[i], here[-1] = here[-1], here[i]
            u = here.pop()
            order.append(u)
            near = after[start[u] : start[u + 1]]
            turn = int(draw * len(near))
            for v in near[turn:] + near[:turn]:
                left[v] -= 1
                if not left[v]:
                    ready[max(s, at[v])].append(v)
    if len(order) == len(waits):
        return np.array(order, np.int64)
    position = np.full(len(waits), inf)
    position[order] = np.arange(len(order))
    free, pins = position == inf, graph.net_pins
    net = np.repeat(np.arange(len(graph.net_seconds)), np.diff(graph.net_start))
    for _ in range(6):
        first, near = np.full(len(graph.net_seconds), inf), np.full(len(waits), inf)
        np.minimum.at(first, net, position[pins])
        np.minimum.at(near, pins, first[net])
        position[free] = near[free] + 0.3 + 0.01 * random.random(int(free.sum()))
    return np.argsort(position, kind="stable")


@entry
def interval_loads(
    graph: LoadGraph,
    order: Ints,
    at: Ints,
    bounds: Ints,
    device: Ints,
    inside: Ints,
    load: Floats,
) -> None:
    """Load of every interval of blocks on a device of every class.

    Infinite if the class may not run it, has no room for it, or some must be apart.
    `at` is the position of each group in the order, `inside` scratch per net.
    """
    for i in range(len(bounds)):
        for net in range(len(inside)):
            inside[net] = 0
        size, first = 0.0, bounds[i]
        for c in range(len(device)):
            load[c, i, i] = 0.0
        for j in range(i + 1, len(bounds)):
            for c in range(len(device)):
                load[c, i, j] = load[c, i, j - 1]
            for position in range(bounds[j - 1], bounds[j]):
                u = order[position]
                size += graph.size_bytes[u]
                for c in range(len(device)):
                    seconds = graph.seconds[u, graph.kind[device[c]]]
                    load[c, i, j] += seconds if graph.allowed[u, device[c]] else np.inf
                for e in range(graph.apart_start[u], graph.apart_start[u + 1]):
                    if first <= at[graph.apart[e]] < position:
                        size = np.inf
                for e in range(graph.group_start[u], graph.group_start[u + 1]):
                    net = graph.group_nets[e]
                    inside[net] += 1
                    pins = graph.net_start[net + 1] - graph.net_start[net]
                    sign = int(inside[net] == 1) - int(inside[net] == pins)
                    for c in range(len(device)):
                        seconds = graph.net_seconds[net, graph.kind[device[c]]]
                        load[c, i, j] += sign * seconds
            for c in range(len(device)):
                if size > graph.capacity_bytes[device[c]] * (1 + 1e-12):
                    load[c, i, j] = np.inf


@entry
def partition(
    load: Floats, number: Ints, most: float, best: Floats, last: Ints
) -> None:
    """Least load of each prefix on each multiset of devices, and its last interval.

    A set is the number of devices used of each class, in mixed radix. `best` is `most`
    at first; `last` gets the class and the begin of the interval.
    """
    blocks = load.shape[1]
    best[0, 0] = 0.0
    for s in range(1, len(best)):
        radix = 1
        for c in range(len(number)):
            if s // radix % (number[c] + 1):
                for i in range(blocks):
                    before = best[s - radix, i]
                    if before >= most:
                        continue
                    for j in range(i, blocks):
                        value = max(before, load[c, i, j])
                        if value < best[s, j]:
                            best[s, j] = value
                            last[s, j, 0], last[s, j, 1] = c, i
            radix *= number[c] + 1


class Chains:
    """Assignments that put intervals of a topological order on devices."""

    def __init__(self, problem: Problem) -> None:
        self.owner = np.array(equivalent_devices(problem))
        self.number = np.bincount(self.owner)
        # Further devices stay empty.
        self.number[np.cumprod(self.number + 1.0) > _MOST_STATES] = 0
        self.states = int(np.prod(self.number + 1))

    def cut(
        self, graph: LoadGraph, order: Ints, budget: Budget, *, most: float = inf
    ) -> Ints | None:
        """The partition of an order with the least load; None if none is below `most`.

        Dynamic program over (devices used of each class, blocks placed), as in
        PipeDream (Narayanan et al. 2019); exact for the order and its blocks.
        """
        blocks = max(2, min(_MOST_BLOCKS, int((_MOST_CELLS / self.states) ** 0.5)))
        bounds, classes = _bounds(graph, order, blocks), len(self.number)
        device = np.array([int(np.argmax(self.owner == c)) for c in range(classes)])
        load = np.zeros((classes, len(bounds), len(bounds)))
        inside = np.zeros(len(graph.net_seconds), np.int64)
        interval_loads(graph, order, np.argsort(order), bounds, device, inside, load)
        best = np.full((self.states, len(bounds)), most)
        last = np.zeros((*best.shape, 2), np.int64)
        partition(load, self.number, most, best, last)
        pins, cells = len(graph.net_pins) + len(order), 0.5 * self.states * load.size
        budget.spend(len(bounds) * pins * _STEPS_PER_PIN + cells * _STEPS_PER_CELL)
        s, j = best.shape[0] - 1, len(bounds) - 1
        if not best[s, j] < most:
            return None
        place, radix = np.zeros(len(order), np.int64), np.cumprod([1, *self.number + 1])
        left = [np.flatnonzero(self.owner == c).tolist() for c in range(classes)]
        while s:
            c, i = last[s, j].tolist()
            place[order[bounds[i] : bounds[j]]] = left[c].pop()
            s, j = s - int(radix[c]), i
        return place


def _bounds(graph: LoadGraph, order: Ints, blocks: int) -> Ints:
    """Bounds of so many blocks of an order at most, each where few seconds cross."""
    groups = len(order)
    if groups <= blocks:
        return np.arange(groups + 1)
    at, start = np.argsort(order), graph.net_start[:-1]
    width = np.zeros(groups + 2)
    if len(start):
        seconds, ends = graph.net_seconds.max(axis=1), at[graph.net_pins]
        np.add.at(width, np.minimum.reduceat(ends, start) + 1, seconds)
        np.subtract.at(width, np.maximum.reduceat(ends, start) + 1, seconds)
    parts = np.array_split(np.cumsum(width)[:groups], blocks)[1:]
    first = np.cumsum([groups - sum(map(len, parts)), *map(len, parts[:-1])])
    return np.array([0, *(first + [one.argmin() for one in parts]), groups])


@entry
def schedule(
    graph: LoadGraph,
    order: Ints,
    copies: Floats,
    noise: float,
    queue: Records,
    place: Ints,
    end: Floats,
    free: Floats,
    used: Floats,
    state: RandomState,
) -> None:
    """Every group, the most urgent first, where it ends first and has room.

    Urgent is what has the longest path behind it; the order is topological. Where
    nothing has room, the device with most of it is taken. `place` is -1 at first, the
    other arrays are zero.
    """
    for i in range(len(order) - 1, -1, -1):
        u, rest, fastest = order[i], 0.0, np.inf
        for e in range(graph.successor_start[u], graph.successor_start[u + 1]):
            rest = max(rest, end[graph.successors[e]])
        for kind in range(graph.seconds.shape[1]):
            fastest = min(fastest, graph.seconds[u, kind])
        end[u] = rest + (fastest + copies[u]) * (1.0 + 0.5 * noise * uniform(state))
        push(queue, -end[u], i)
    while queue[0].key:
        u, chosen, roomy = order[queue[1].key], -1, 0
        earliest, most, begin = np.inf, -np.inf, 0.0
        pop(queue)
        for d in range(len(free)):
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
                if place[v] >= 0:
                    copy = copies[v] if place[v] != d else 0.0
                    start = max(start, end[v] + copy)
            ends = start + graph.seconds[u, graph.kind[d]]
            ends *= 1.0 + 0.1 * noise * uniform(state)
            if ends < earliest:
                earliest, chosen, begin = ends, d, start
        if chosen < 0:
            chosen, begin = roomy, free[roomy]
        place[u] = chosen
        used[chosen] += graph.size_bytes[u]
        free[chosen] = end[u] = begin + graph.seconds[u, graph.kind[chosen]]


def list_schedule(
    graph: LoadGraph, noise: float, random: np.random.Generator, state: RandomState
) -> Ints:
    """A list schedule; a producer's copy takes as long as on its slowest kind."""
    groups, devices = len(graph.size_bytes), len(graph.capacity_bytes)
    dearest, copies = graph.net_seconds.max(axis=1, initial=0.0), np.zeros(groups)
    np.add.at(copies, graph.net_pins[graph.net_start[:-1]], dearest)
    copies *= float(random.choice([0.5, 1.0, 2.0]))
    order, place = random_order(graph, random), np.full(groups, -1, np.int64)
    ends = np.zeros(groups), np.zeros(devices), np.zeros(devices)
    schedule(graph, order, copies, noise, queue_of(groups), place, *ends, state)
    return place


def random_start(graph: LoadGraph, random: np.random.Generator) -> Ints:
    """A random allowed device for every group."""
    score: Floats = random.random(graph.allowed.shape) * graph.allowed
    chosen: Ints = np.argmax(score, axis=1)
    return chosen
