"""List scheduling: each group where it ends first, the most urgent group first.

HEFT of Topcuoglu, Hariri and Wu (2002), with noise for many different schedules.
"""

import numpy as np

from splitnet.planner.engine.compiler import RandomState, entry, uniform
from splitnet.planner.problem import Floats, Ints, LoadGraph

__all__ = ["copy_seconds", "list_schedule", "urgency"]


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
