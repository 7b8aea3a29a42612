"""Simulated annealing on the makespan that moves blocks of neighbouring groups.

The limit of a move's makespan is drawn before the evaluation (threshold of Metropolis
et al. 1953), so that most refused moves end early. What has no room on its new device
changes places with a block from there.
"""

from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import (
    RandomState,
    below,
    compiled,
    entry,
    uniform,
)
from splitnet.planner.engine.load import (
    BEST,
    CONVEX,
    CUTS,
    VALUE,
    Rules,
    State,
    change,
    is_convex,
    may_go,
    move,
)
from splitnet.planner.engine.makespan import Scratch, Tasks, makespan
from splitnet.planner.problem import Ints, LoadGraph

__all__ = ["Blocks", "anneal_blocks", "blocks_for"]


class Blocks(NamedTuple):
    """Scratch: stamps of groups, the last stamp, and the groups of a block."""

    mark: Ints
    stamp: Ints
    block: Ints


def blocks_for(groups: int) -> Blocks:
    """Stamps that nothing has yet."""
    return Blocks(*(np.zeros(n, np.int64) for n in (groups, 1, groups + 1)))


@compiled
def grow_block(
    graph: LoadGraph,
    place: Ints,
    seed: int,
    first: int,
    most: int,
    direction: int,
    blocks: Blocks,
) -> int:
    """Write groups of one device around a seed, breadth first, from `first` on.

    Along edges both ways (0), forward (1) or backward (2). Returns the end.
    """
    block, mark = blocks.block, blocks.mark
    blocks.stamp[0] += 1
    stamp = blocks.stamp[0]
    block[first] = seed
    mark[seed] = stamp
    head, size, most = first, first + 1, first + most
    while head < size and size < most:
        u = block[head]
        head += 1
        for way in range(1, 3):
            if way + direction == 3:
                continue
            start, items = graph.successor_start, graph.successors
            if way == 2:
                start, items = graph.predecessor_start, graph.predecessors
            for e in range(start[u], start[u + 1]):
                v = items[e]
                if mark[v] != stamp and place[v] == place[u] and size < most:
                    mark[v] = stamp
                    block[size] = v
                    size += 1
    return size


@compiled
def shift(graph: LoadGraph, state: State, group: int, device: int) -> None:
    """Move a group to a device."""
    a = state.place[group]
    if a != device:
        added = change(graph, state.pins, group, a, device)
        move(graph, state, group, a, device, added)


@compiled
def is_feasible(
    graph: LoadGraph, rules: Rules, state: State, block: Ints, end: int
) -> bool:
    """Whether what was moved may be where it is; memory is checked before."""
    place = state.place
    for i in range(end):
        if not may_go(graph, rules, place, block[i], place[block[i]], -1):
            return False
    if rules.mode == CONVEX:
        for device in range(len(state.load)):
            if not is_convex(rules, place, device):
                return False
    return True


@entry
def anneal_blocks(
    graph: LoadGraph,
    rules: Rules,
    tasks: Tasks,
    scratch: Scratch,
    blocks: Blocks,
    state: State,
    proposals: int,
    heat: float,
    cut_penalty: float,
    largest: int,
    random: RandomState,
) -> int:
    """Proposals at one temperature; the number of evaluations."""
    place, used, numbers = state.place, state.used, state.numbers
    block, groups, devices = blocks.block, len(state.place), len(state.load)
    evaluations = 0
    for _ in range(proposals):
        x, y = below(random, groups), -1
        a = place[x]
        b = a
        out = graph.successor_start[x + 1] - graph.successor_start[x]
        degree = out + graph.predecessor_start[x + 1] - graph.predecessor_start[x]
        if degree and uniform(random) < 0.8:
            e = below(random, degree)
            if e < out:
                y = graph.successors[graph.successor_start[x] + e]
            else:
                y = graph.predecessors[graph.predecessor_start[x] + e - out]
            b = place[y]
            if a == b and uniform(random) < 0.8:
                continue
        if a == b:
            b, y = below(random, devices), -1
        if a == b or not graph.allowed[x, b]:
            continue
        most = 1
        if uniform(random) >= 0.4:
            most += int(np.exp(uniform(random) * np.log(largest)))
        first, end = 0, 0
        size = grow_block(graph, place, x, first, most, below(random, 3), blocks)
        size_bytes, back_bytes = 0.0, 0.0
        for i in range(size):
            size_bytes += graph.size_bytes[block[i]]
        end, c = size, a
        need = used[b] + size_bytes - graph.capacity_bytes[b]
        if need > 0:
            # What has no room changes places with a block of the other device.
            for _ in range(30):
                if y < 0:
                    y = below(random, groups)
                    y = y if place[y] == b else -1
            if y < 0:
                continue
            if uniform(random) < 0.3:
                c = below(random, devices)
            if c == b:
                continue
            last = grow_block(
                graph, place, y, size, groups - size, below(random, 3), blocks
            )
            while end < last and back_bytes < need:
                back_bytes += graph.size_bytes[block[end]]
                end += 1
            gone = size_bytes if c == a else 0.0
            if back_bytes < need or (
                used[c] + back_bytes - gone > graph.capacity_bytes[c]
            ):
                continue
        for i in range(end):
            shift(graph, state, block[i], b if i < size else c)
        limit = numbers[VALUE] - heat * np.log(1.0 - uniform(random))
        value = np.inf
        if is_feasible(graph, rules, state, block, end):
            factor = 1.0 + cut_penalty * numbers[CUTS]
            value = makespan(tasks, place, limit / factor, scratch) * factor
            evaluations += 1
        if value < np.inf:
            numbers[VALUE] = value
            if value < numbers[BEST]:
                numbers[BEST] = value
                for group in range(groups):
                    state.best[group] = place[group]
        else:
            for i in range(end):
                shift(graph, state, block[i], a if i < size else b)
    return evaluations
