"""Starts that have room: one device is filled after the other, or one repaired.

Next-fit packing (Johnson 1973) of a topological order. Sums of bytes leave out what is
only there for a while, so the simulator's peaks correct the room of each device.
"""

import numpy as np

from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.load_graph import Floats, Ints
from splitnet.planner.partitioning import running_order
from splitnet.planner.problem import Problem

_ROUNDS, _STEPS = 12, 200_000
"""How often the room is corrected by the peaks, a simulation each; steps for that."""


def packed(problem: Problem, budget: Budget) -> Ints | None:
    """Groups in running order on the fastest devices; None if one device has room.

    What has no room on any device is where there is most, so the assignment may break
    a constraint. O(groups x devices) and some simulations, even without time.
    """
    graph = problem.graph
    capacity = graph.capacity_bytes
    seconds = graph.seconds.sum(axis=0)[graph.kind]
    fastest = int(np.lexsort((-capacity, seconds))[0])
    single = np.where(graph.allowed[:, fastest], fastest, graph.allowed.argmax(axis=1))
    if np.all(problem.held_bytes(single) <= capacity):
        return None
    line = np.lexsort((np.arange(len(capacity)), -capacity, seconds)).tolist()
    groups = range(problem.group_count)
    rows = [
        [items[start[g] : start[g + 1]].tolist() for g in groups]
        for start, items in (
            (graph.predecessor_start, graph.predecessors),
            (graph.successor_start, graph.successors),
        )
    ]
    order, room = running_order(*rows), capacity.copy()
    order += sorted(set(groups) - set(order))  # those on a cycle
    best, least, each = single, np.inf, 30 * len(problem.group_of_unit)
    for _ in range(max(1, min(_ROUNDS, _STEPS // max(1, each)))):
        budget.spend(each)
        place = _filled(problem, order, line, room)
        held = problem.held_bytes(place)
        full = float((held / np.maximum(capacity, 1.0)).max())
        if full < least:
            best, least = place, full
        if full <= 1.0:
            break
        scale = 0.97 * capacity / np.maximum(held, 1.0)
        room = np.where(held > capacity, scale * room, room)
    return best


def _filled(problem: Problem, order: list[int], line: list[int], room: Floats) -> Ints:
    """Next fit: a group goes where the one before it went, or on along the line."""
    graph = problem.graph
    allowed, sizes = graph.allowed.tolist(), graph.size_bytes.tolist()
    start, apart = graph.apart_start.tolist(), graph.apart.tolist()
    place, left, at = [-1] * len(order), room.tolist(), 0
    for group in order:
        others = {place[other] for other in apart[start[group] : start[group + 1]]}
        may = [d for d in line if allowed[group][d] and d not in others]
        fits = [i for i, d in enumerate(line) if d in may and left[d] >= sizes[group]]
        ahead = [i for i in fits if i >= at] or fits
        if ahead:
            device = line[ahead[0]]
            if len(may) > 1:
                at = ahead[0]
        else:
            device = max(may or line, key=left.__getitem__)
        place[group] = device
        left[device] -= sizes[group]
    return np.array(place, np.int64)
