"""Starts of a search: chain partitions and list schedules.

A chain partition cuts a random topological order into one interval per device, with a
dynamic program in NumPy. A list schedule puts each group where it ends first, the most
urgent group first: HEFT of Topcuoglu, Hariri and Wu (2002), with noise for many
different schedules.
"""

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import RandomState, entry, uniform
from splitnet.planner.problem import (
    Bools,
    Floats,
    Ints,
    LoadGraph,
    Problem,
    equivalent_devices,
)

__all__ = ["Chains", "Elite", "Incumbent", "list_schedule", "random_order"]

_CELLS_PER_STEP = 700
"""Cells of a table that NumPy goes over in a microsecond."""

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

    def add(self, graph: LoadGraph, value: float, place: Ints, margin: Floats) -> None:
        """Keep an assignment of a new value instead of the worse one most like it."""
        if not self.takes(value):
            return
        cut = np.zeros(len(graph.net_start), np.bool_)
        if len(graph.net_pins):
            start, where = graph.net_start[:-1], place[graph.net_pins]
            low, high = (f.reduceat(where, start) for f in (np.minimum, np.maximum))
            cut[:-1] = low != high
        if len(self.members) >= self.size:
            worse = [i for i, one in enumerate(self.members) if one.value > value]
            i = min(worse, key=lambda i: np.count_nonzero(self.cut[i] ^ cut))
            del self.members[i], self.cut[i]
        i = sum(one.value <= value for one in self.members)
        self.members.insert(i, Incumbent(value, place.copy(), margin))
        self.cut.insert(i, cut)


def random_order(
    graph: LoadGraph,
    depth: float,
    random: np.random.Generator,
    stage: Ints | None = None,
) -> Ints:
    """A random topological order; groups of early stages come first (Kahn 1962).

    With probability `depth` the next group is the one that became ready last, else any.
    Groups without forward edges stand beside the neighbour of their dearest net.
    """
    waits = np.diff(graph.predecessor_start)
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
    return np.argsort(_beside(graph, position, random), kind="stable")


def _beside(graph: LoadGraph, position: Floats, random: np.random.Generator) -> Floats:
    """Positions of all groups, if only some have one yet."""
    cost = graph.net_seconds.max(axis=1, initial=0.0)
    net = np.repeat(np.arange(len(cost)), np.diff(graph.net_start))
    free = position == inf
    for _ in range(6):
        known = np.full(len(cost), inf)
        np.minimum.at(known, net, position[graph.net_pins])
        for e in np.argsort(cost[net], kind="stable"):
            u = graph.net_pins[e]
            if free[u] and known[net[e]] < inf:
                position[u] = known[net[e]] + 0.3 + 0.01 * random.random()
    return position


class Chains:
    """Assignments that put intervals of a topological order on devices."""

    def __init__(self, problem: Problem) -> None:
        self.owner = np.array(equivalent_devices(problem))
        number = np.bincount(self.owner)
        number[np.cumprod(number + 1.0) > _MOST_STATES] = 0  # other devices stay empty
        self.number: list[int] = number.tolist()
        self.states = int(np.prod(number + 1))

    def steps(self, graph: LoadGraph) -> float:
        """About how many steps a cut takes."""
        blocks = min(len(graph.size_bytes), self._most_blocks()) + 1
        tables = 20.0 * len(self.number) + 4.0 * self.states * len(self.number)
        return tables * blocks**2 / _CELLS_PER_STEP

    def _most_blocks(self) -> int:
        return max(2, min(_MOST_BLOCKS, int((_MOST_CELLS / self.states) ** 0.5)))

    def cut(
        self, graph: LoadGraph, order: Ints, *, most: float = inf
    ) -> tuple[Ints | None, float]:
        """The partition of an order with the least load, and the steps that it took.

        None if no load is below `most`. Dynamic program over (devices used of each
        class, blocks placed), as in PipeDream (Narayanan et al. 2019); exact for the
        order and its blocks. A first pass tells only whether there is a partition.
        """
        blocks = self._blocks(graph, order)
        load = self._interval_loads(graph, order, blocks)
        count, radix = len(blocks) - 1, np.cumprod([1, *np.add(self.number, 1)])
        steps = 20.0 * load.size / _CELLS_PER_STEP + 0.5 * len(order)
        ways = [
            (s, c)
            for s in range(1, self.states)
            for c, number in enumerate(self.number)
            if s // radix[c] % (number + 1)
        ]
        if most < inf:
            good = (load < most).astype(np.float32)
            reached = np.zeros((self.states, count + 1), np.float32)
            reached[0, 0] = 1.0
            for s, c in ways:
                reached[s] += reached[s - radix[c]] @ good[c]
                np.minimum(reached[s], 1.0, out=reached[s])
            if not reached[-1, count]:
                return None, steps + len(ways) * load[0].size / _CELLS_PER_STEP / 5
        best = np.full((self.states, count + 1), inf)
        best[0, 0] = 0.0
        chosen: dict[tuple[int, int], Ints] = {}
        for s, c in ways:
            before = best[s - radix[c]]
            rows = np.flatnonzero(before < most)
            if not len(rows):
                continue
            larger = np.maximum(before[rows, None], load[c, rows])
            first = larger.argmin(axis=0)
            found = larger[first, np.arange(count + 1)]
            chosen[s, c] = rows[first]
            best[s] = np.minimum(best[s], found)
        steps += 4.0 * len(ways) * load[0].size / _CELLS_PER_STEP
        if not best[-1, count] < inf:
            return None, steps
        return self._assignment(order, blocks, load, best, chosen, radix), steps

    def _assignment(
        self,
        order: Ints,
        blocks: Ints,
        load: Floats,
        best: Floats,
        chosen: dict[tuple[int, int], Ints],
        radix: Ints,
    ) -> Ints:
        """Follow the choices of the dynamic program back from its end."""
        place, s, j = np.zeros(len(order), np.int64), self.states - 1, len(blocks) - 1
        left = [np.flatnonzero(self.owner == c).tolist() for c in range(len(radix) - 1)]
        left = [devices[: self.number[c]] for c, devices in enumerate(left)]
        while s:
            for c in range(len(left)):
                if left[c] and (s, c) in chosen:
                    i = int(chosen[s, c][j])
                    if max(best[s - radix[c], i], load[c, i, j]) <= best[s, j]:
                        break
            place[order[blocks[i] : blocks[j]]] = left[c].pop()
            s, j = s - int(radix[c]), i
        return place

    def _blocks(self, graph: LoadGraph, order: Ints) -> Ints:
        """Bounds of the blocks of an order, each where few seconds cross."""
        groups = len(order)
        most = self._most_blocks()
        if groups <= most:
            return np.arange(groups + 1)
        at = np.argsort(order)
        ends, start = at[graph.net_pins], graph.net_start[:-1]
        seconds = graph.net_seconds.max(axis=1, initial=0.0)
        width = np.zeros(groups + 2)
        if len(ends):
            np.add.at(width, np.minimum.reduceat(ends, start) + 1, seconds)
            np.subtract.at(width, np.maximum.reduceat(ends, start) + 1, seconds)
        width = np.cumsum(width)
        lows = np.arange(1, most) * groups // most
        highs = np.arange(2, most + 1) * groups // most
        bounds = [low + int(width[low:high].argmin()) for low, high in zip(lows, highs)]
        return np.array([0, *bounds, groups])

    def _interval_loads(self, graph: LoadGraph, order: Ints, blocks: Ints) -> Floats:
        """Load of every interval of blocks on a device of every class.

        Infinite if the class may not run it, has no room for it, or some must be apart.
        A net touches the intervals that begin after one of its pins and hold the next.
        """
        count, classes = len(blocks) - 1, len(self.number)
        device = [int(np.flatnonzero(self.owner == c)[0]) for c in range(classes)]
        block = np.empty(len(order), np.int64)
        block[order] = np.repeat(np.arange(count), np.diff(blocks))
        each = [graph.seconds, ~graph.allowed[:, device], graph.size_bytes[:, None]]
        sums = np.zeros((count + 1, sum(one.shape[1] for one in each)))
        np.add.at(sums, block + 1, np.nan_to_num(np.hstack(each), posinf=0.0))
        sums = np.cumsum(sums, axis=0)
        inside = sums[None, :] - sums[:, None]
        nets = len(graph.net_start) - 1
        net = np.repeat(np.arange(nets), np.diff(graph.net_start))
        net, pin = np.divmod(np.unique(net * count + block[graph.net_pins]), count)
        start = np.searchsorted(net, np.arange(nets))
        before = np.roll(pin, 1) + 1
        before[start] = 0
        first, last = pin[start], pin[np.append(start[1:], len(pin)) - 1]
        group = np.repeat(np.arange(len(order)), np.diff(graph.apart_start))
        a, b = np.sort([block[group], block[graph.apart]], axis=0)
        refused = _corner_sums(count, [(0, b, 1.0), (a + 1, b, -1.0)]) > 0.5
        refused |= np.tri(count + 1, k=-1, dtype=np.bool_)
        loads, kinds = [], graph.seconds.shape[1]
        for kind in range(kinds):
            cost = graph.net_seconds[:, kind]
            crossing = _corner_sums(
                count,
                (
                    (before, pin, cost[net]),
                    (pin + 1, pin, -cost[net]),
                    (0, last, -cost),
                    (first + 1, last, cost),
                ),
            )
            loads.append(inside[:, :, kind] + crossing)
        found = np.empty((classes, count + 1, count + 1))
        for c, d in enumerate(device):
            never = refused | (inside[:, :, kinds + c] > 0)
            never |= inside[:, :, -1] > graph.capacity_bytes[d] * (1 + 1e-12)
            found[c] = np.where(never, inf, loads[graph.kind[d]])
        return found


def _corner_sums(
    count: int, corners: Iterable[tuple[Ints | int, Ints, Floats | float]]
) -> Floats:
    """Table of sums over the corners (i, j, value) with i <= row and j < column."""
    table = np.zeros((count + 2, count + 2))
    for i, j, value in corners:
        np.add.at(table, (np.asarray(i), j + 1), value)
    return np.cumsum(np.cumsum(table, axis=0), axis=1)[:-1, :-1]


@entry
def upward_rank(
    graph: LoadGraph, order: Ints, copies: Floats, rank: Floats, state: RandomState
) -> None:
    """Longest path behind each group, give or take a fraction `rank[0]` of noise.

    The order is topological; `rank` is overwritten.
    """
    noise = rank[0]
    for i in range(len(order) - 1, -1, -1):
        u, rest, fastest = order[i], 0.0, np.inf
        for e in range(graph.successor_start[u], graph.successor_start[u + 1]):
            rest = max(rest, rank[graph.successors[e]])
        for kind in range(graph.seconds.shape[1]):
            fastest = min(fastest, graph.seconds[u, kind])
        seconds = (fastest + copies[u]) * (1.0 + noise * uniform(state))
        rank[u] = rest + seconds + 1e-12


@entry
def fill_schedule(
    graph: LoadGraph,
    order: Ints,
    copies: Floats,
    noise: float,
    place: Ints,
    end: Floats,
    free: Floats,
    used: Floats,
    state: RandomState,
) -> None:
    """Every group, in order, on the device on which it ends first and has room.

    Where nothing has room, the device with most of it is taken. `place` is -1 at first,
    the other arrays are zero.
    """
    for i in range(len(order)):
        u, chosen, earliest, most, begin = order[i], -1, np.inf, -np.inf, 0.0
        roomy = 0
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


def list_schedule(
    graph: LoadGraph, noise: float, random: np.random.Generator, state: RandomState
) -> Ints:
    """A list schedule; a producer's copy takes as long as on its slowest kind."""
    groups, devices = len(graph.size_bytes), len(graph.capacity_bytes)
    dearest, copies = graph.net_seconds.max(axis=1, initial=0.0), np.zeros(groups)
    np.add.at(copies, graph.net_pins[graph.net_start[:-1]], dearest)
    copies *= float(random.choice([0.5, 1.0, 2.0]))
    rank, place = np.full(groups, 0.5 * noise), np.full(groups, -1, np.int64)
    upward_rank(graph, random_order(graph, 0.5, random), copies, rank, state)
    order = np.argsort(-rank, kind="stable")
    end, free, used = np.zeros(groups), np.zeros(devices), np.zeros(devices)
    fill_schedule(graph, order, copies, 0.1 * noise, place, end, free, used, state)
    return place
