"""Starts that have room: one device is filled after the other, or all alike.

Next-fit packing (Johnson 1973) of a topological order; where that has no room and
groups are few, branch and bound over the fullest device. Sums of bytes leave out what
is only there for a while, so the simulator's peaks correct the room of each device.
"""

import numpy as np

from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.load_graph import Floats, Ints
from splitnet.planner.partitioning import running_order
from splitnet.planner.problem import Problem

_ROUNDS, _STEPS = 12, 200_000
"""How often the room is corrected by the peaks, a simulation each; steps for that."""

_MOST_BALANCED, _NODES = 100, 5_000
"""Groups for which the fullest device is made as empty as possible; nodes for that."""


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
    order = running_order(*rows)
    order += sorted(set(groups) - set(order))  # those on a cycle
    best, least, each = single, np.inf, 30 * len(problem.group_of_unit)
    for fill in (_next_fit, _balanced)[: 1 + (len(order) <= _MOST_BALANCED)]:
        room = capacity.copy()
        for _ in range(max(1, min(_ROUNDS, _STEPS // max(1, each)))):
            budget.spend(each)
            place = fill(problem, order, line, room)
            held = problem.held_bytes(place)
            full = float((held / np.maximum(capacity, 1.0)).max())
            if full < least:
                best, least = place, full
            if full <= 1.0:
                return best
            scale = 0.97 * capacity / np.maximum(held, 1.0)
            room = np.where(held > capacity, scale * room, room)
    return best


def _next_fit(
    problem: Problem, order: list[int], line: list[int], room: Floats
) -> Ints:
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


def _balanced(
    problem: Problem, order: list[int], line: list[int], room: Floats
) -> Ints:
    """Fill the fullest device least: the best of all assignments, if groups are few.

    Branch and bound; what it tries first is largest first, where most is left (Graham
    1969). Of devices that are equally full only the first is tried.
    """
    graph = problem.graph
    sizes, allowed = graph.size_bytes.tolist(), graph.allowed
    start, apart = graph.apart_start.tolist(), graph.apart.tolist()
    order = sorted(order, key=lambda group: (-sizes[group], group))
    place, used = [-1] * len(order), [0.0] * len(line)
    best, least, nodes = np.zeros(len(order), np.int64), np.inf, 0

    def assign(depth: int, full: float) -> None:
        nonlocal best, least, nodes
        nodes += 1
        if depth == len(order):
            best, least = np.array(place, np.int64), full
            return
        group = order[depth]
        size = sizes[group]
        others = {place[other] for other in apart[start[group] : start[group + 1]]}
        options = {
            (max(full, (used[d] + size) / max(room[d], 1.0)), used[d], room[d]): d
            for d in reversed(line)
            if allowed[group, d] and d not in others
        }
        for (fuller, _, _), device in sorted(options.items()):
            if fuller >= least or (nodes > _NODES and least < np.inf):
                return
            place[group] = device
            used[device] += size
            assign(depth + 1, fuller)
            used[device] -= size
        place[group] = -1

    assign(0, 0.0)
    return best
