"""Simulated annealing that moves blocks of neighbouring groups.

The objective is any function of the whole assignment that may give up at a limit. The
limit is drawn before the evaluation (threshold of Metropolis et al. 1953), so that most
refused moves end early. What has no room on its new device changes places with a block
from there.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from splitnet.planner.engine.compiler import (
    RandomState,
    below,
    compiled,
    uniform,
)
from splitnet.planner.engine.load import FREE, Rules, is_contiguous
from splitnet.planner.engine.makespan import Scratch, Tasks, makespan
from splitnet.planner.problem import Floats, Ints, LoadGraph

__all__ = ["Marks", "anneal_blocks", "count_cuts", "evaluate", "marks_for"]


class Marks(NamedTuple):
    """Scratch: stamps per group, net and device, and the groups of a block."""

    group: Ints
    net: Ints
    device: Ints
    stamp: Ints
    block: Ints


def marks_for(graph: LoadGraph) -> Marks:
    """Stamps that nothing has yet."""
    groups = len(graph.size_bytes)
    return Marks(
        np.zeros(groups, np.int32),
        np.zeros(len(graph.net_start), np.int32),
        np.zeros(len(graph.capacity_bytes), np.int32),
        np.zeros(1, np.int32),
        np.empty(groups + 1, np.int32),
    )


@compiled
def largest_load(graph: LoadGraph, place: Ints, limit: float, scratch: Floats) -> float:
    """Load of the busiest device; infinite above the limit.

    The scratch has two rows: loads, and the last net that is known to touch a device.
    """
    scratch[:] = 0.0
    load, seen = scratch[0], scratch[1]
    for group in range(len(place)):
        load[place[group]] += graph.seconds[group, graph.kind[place[group]]]
    if load.max() > limit:
        return np.inf
    for net in range(len(graph.net_start) - 1):
        pins = graph.net_pins[graph.net_start[net] : graph.net_start[net + 1]]
        touched = 0
        for pin in pins:
            touched += seen[place[pin]] != net + 1
            seen[place[pin]] = net + 1
        if touched > 1:
            for pin in pins:
                device = place[pin]
                if seen[device] == net + 1:
                    seen[device] = 0
                    load[device] += graph.net_seconds[net, graph.kind[device]]
    top = load.max()
    return top if top <= limit else np.inf


def evaluate(data: Any, place: Ints, limit: float, scratch: Any) -> float:
    """Value of an assignment: the type of `data` decides which objective."""
    if isinstance(data, Tasks):
        return makespan(data, place, limit, scratch)
    return largest_load(data, place, limit, scratch)


@overload(evaluate)
def _evaluate(data, place, limit, scratch):  # type: ignore[no-untyped-def]
    if data.instance_class is Tasks:
        return lambda data, place, limit, scratch: makespan(data, place, limit, scratch)
    return lambda data, place, limit, scratch: largest_load(data, place, limit, scratch)


@compiled
def count_cuts(
    graph: LoadGraph, place: Ints, groups: Ints, count: int, marks: Marks
) -> int:
    """Cross-device transfers of the nets that touch some groups; all if count is 0."""
    cuts, stamp = 0, marks.stamp
    stamp[0] += 1
    now = stamp[0]
    nets = len(graph.net_start) - 1
    for i in range(max(1, count)):
        first, last = 0, nets
        if count:
            first, last = graph.group_start[groups[i]], graph.group_start[groups[i] + 1]
        for e in range(first, last):
            net = graph.group_nets[e] if count else e
            if marks.net[net] == now:
                continue
            marks.net[net] = now
            stamp[0] += 1
            for p in range(graph.net_start[net], graph.net_start[net + 1]):
                device = place[graph.net_pins[p]]
                if marks.device[device] != stamp[0]:
                    marks.device[device] = stamp[0]
                    cuts += graph.net_weight[net]
            cuts -= graph.net_weight[net]
    return cuts


@compiled
def grow_block(
    graph: LoadGraph,
    place: Ints,
    seed: int,
    most: int,
    direction: int,
    block: Ints,
    mark: Ints,
    stamp: int,
) -> int:
    """Groups of one device around a seed, breadth first; their number.

    Along edges both ways (0), forward (1) or backward (2).
    """
    block[0] = seed
    mark[seed] = stamp
    head, size = 0, 1
    while head < size and size < most:
        u = block[head]
        head += 1
        if direction != 2:
            for e in range(graph.successor_start[u], graph.successor_start[u + 1]):
                v = graph.successors[e]
                if mark[v] != stamp and place[v] == place[u] and size < most:
                    mark[v] = stamp
                    block[size] = v
                    size += 1
        if direction != 1:
            for e in range(graph.predecessor_start[u], graph.predecessor_start[u + 1]):
                v = graph.predecessors[e]
                if mark[v] != stamp and place[v] == place[u] and size < most:
                    mark[v] = stamp
                    block[size] = v
                    size += 1
    return size


@compiled
def can_move(
    graph: LoadGraph, place: Ints, block: Ints, first: int, last: int, device: int
) -> bool:
    """Whether a block may be on a device, apart from what is there already."""
    for i in range(first, last):
        x = block[i]
        if not graph.allowed[x, device]:
            return False
        for e in range(graph.apart_start[x], graph.apart_start[x + 1]):
            if place[graph.apart[e]] == device:
                return False
    return True


@compiled
def anneal_blocks(
    graph: LoadGraph,
    rules: Rules,
    data: Tasks | LoadGraph,
    scratch: Scratch | Floats,
    marks: Marks,
    place: Ints,
    used: Floats,
    best_place: Ints,
    values: Floats,
    proposals: int,
    heat: float,
    cut_penalty: float,
    largest: int,
    state: RandomState,
) -> int:
    """Move blocks at one temperature; the number of evaluations.

    `values` holds the penalized value now, that of `best_place`, and the cut size now.
    """
    groups, devices, evaluations = len(place), len(graph.capacity_bytes), 0
    block, stamp = marks.block, marks.stamp
    for _ in range(proposals):
        x = below(state, groups)
        a = place[x]
        b, y = a, -1
        out = graph.successor_start[x + 1] - graph.successor_start[x]
        degree = out + graph.predecessor_start[x + 1] - graph.predecessor_start[x]
        if degree and uniform(state) < 0.8:
            e = below(state, degree)
            if e < out:
                y = graph.successors[graph.successor_start[x] + e]
            else:
                y = graph.predecessors[graph.predecessor_start[x] + e - out]
            b = place[y]
            if a == b and uniform(state) < 0.8:
                continue
        if a == b:
            b, y = below(state, devices), -1
        if a == b or not graph.allowed[x, b]:
            continue
        most = 1
        if uniform(state) >= 0.4:
            most += int(np.exp(uniform(state) * np.log(largest)))
        stamp[0] += 1
        size = grow_block(
            graph, place, x, most, below(state, 3), block, marks.group, stamp[0]
        )
        size_bytes, back_bytes = 0.0, 0.0
        for i in range(size):
            size_bytes += graph.size_bytes[block[i]]
        end, c = size, a
        need = used[b] + size_bytes - graph.capacity_bytes[b]
        if need > 0:
            # What has no room changes places with a block of the other device.
            for _ in range(30):
                if y < 0:
                    y = below(state, groups)
                    y = y if place[y] == b else -1
            if y < 0:
                continue
            if uniform(state) < 0.3:
                c = below(state, devices)
            if c == b:
                continue
            stamp[0] += 1
            rest = block[size:]
            end = grow_block(
                graph,
                place,
                y,
                groups - size,
                below(state, 3),
                rest,
                marks.group,
                stamp[0],
            )
            for i in range(end):
                back_bytes += graph.size_bytes[rest[i]]
                if back_bytes >= need:
                    end = i + 1
                    break
            end += size
            gone = size_bytes if c == a else 0.0
            if back_bytes < need or (
                used[c] + back_bytes - gone > graph.capacity_bytes[c]
            ):
                continue
            if not can_move(graph, place, block, size, end, c):
                continue
        if not can_move(graph, place, block, 0, size, b):
            continue
        factor, cuts = 1.0, values[2]
        if cut_penalty > 0:
            cuts -= count_cuts(graph, place, block, end, marks)
        for i in range(end):
            place[block[i]] = b if i < size else c
        if cut_penalty > 0:
            cuts += count_cuts(graph, place, block, end, marks)
            factor = 1.0 + cut_penalty * cuts
        limit = values[0] - heat * np.log(1.0 - uniform(state))
        value = np.inf
        if rules.mode == FREE or is_contiguous(graph, rules, place):
            value = evaluate(data, place, limit / factor, scratch)
            value *= factor
            evaluations += 1
        if value < np.inf:
            values[0], values[2] = value, cuts
            used[a] -= size_bytes
            used[b] += size_bytes - back_bytes
            used[c] += back_bytes
            if value < values[1]:
                values[1] = value
                best_place[:] = place
        else:
            for i in range(end):
                place[block[i]] = a if i < size else b
    return evaluations
