"""The exact latency of one sample when accelerators work in calls.

A call waits for every outside input, then takes receive + compute + send, and all its
outputs exist only when it is finished. Pooled devices (host cores) run node by node,
without limit and free of transfers. The set of one accelerator is cut into calls by
counting how often a path re-enters it.
"""

from collections.abc import Sequence
from math import fsum, inf

from splitnet.planner.search.problem import Assignment, Problem

__all__ = ["call_latency", "calls_of", "is_convex", "is_pipeline", "topological"]


def topological(problem: Problem) -> list[int]:
    """Return the nodes in a topological order; O(nodes + edges)."""
    nodes = problem.nodes
    waiting = [len(row) for row in nodes.predecessors]
    order = [node for node, number in enumerate(waiting) if number == 0]
    for node in order:
        for target in nodes.successors[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    return order


def calls_of(problem: Problem, assignment: Assignment) -> list[tuple[int, int]]:
    """Return per node its unit: (device, call number), or (-1, node) in the pool.

    The number of a call is how often a path to it has entered the device; the largest
    over all paths counts. O(devices x (nodes + edges)).
    """
    nodes = problem.nodes
    place = [assignment[group] for group in nodes.group]
    order = topological(problem)
    unit = [(-1, node) for node in range(len(place))]
    for device in sorted(set(place)):
        if problem.devices[device].pooled:
            continue
        call = [0] * len(place)
        for node in order:
            inside = place[node] == device
            number = 1 if inside else 0
            for source in nodes.predecessors[node]:
                enters = inside and place[source] != device
                number = max(number, call[source] + enters)
            call[node] = number
            if inside:
                unit[node] = (device, number)
    return unit


def call_latency(problem: Problem, assignment: Assignment) -> float:
    """Return when the last node is finished; infinite if calls wait in a circle.

    Needs `problem.nodes`. O(nodes + edges) where one call per accelerator can run, and
    O(devices x (nodes + edges)) where paths come back to one.
    """
    single = [
        (-1, node)
        if problem.devices[assignment[group]].pooled
        else (assignment[group], 1)
        for node, group in enumerate(problem.nodes.group)
    ]
    value = _latency(problem, assignment, single)
    if value < inf:
        return value
    return _latency(problem, assignment, calls_of(problem, assignment))


def _latency(
    problem: Problem, assignment: Assignment, unit: Sequence[tuple[int, int]]
) -> float:
    """Return the latency of units as `calls_of` returns them."""
    nodes = problem.nodes
    kind = [device.kind for device in problem.devices]
    numbers: dict[tuple[int, int], int] = {}
    index = [numbers.setdefault(key, len(numbers)) for key in unit]
    parts: list[list[float]] = [[] for _ in numbers]
    after: list[dict[int, None]] = [{} for _ in numbers]
    paying = [-1] * len(numbers)
    for key, number in numbers.items():
        paying[number] = kind[key[0]] if key[0] >= 0 else -1
    for node, here in enumerate(index):
        where = assignment[nodes.group[node]]
        parts[here].append(nodes.seconds[node][kind[where]])
        guests = {index[target]: None for target in nodes.successors[node]}
        guests.pop(here, None)
        if not guests:
            continue
        after[here].update(guests)
        cost = nodes.transfer_seconds[node]
        for other in (here, *guests):
            if paying[other] >= 0:
                parts[other].append(cost[paying[other]])
    return _longest([fsum(part) for part in parts], after)


def _longest(seconds: list[float], after: list[dict[int, None]]) -> float:
    waiting = [0] * len(seconds)
    for targets in after:
        for target in targets:
            waiting[target] += 1
    start = [0.0] * len(seconds)
    ready = [unit for unit, number in enumerate(waiting) if number == 0]
    last = 0.0
    for unit in ready:
        stop = start[unit] + seconds[unit]
        last = max(last, stop)
        for target in after[unit]:
            start[target] = max(start[target], stop)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return last if len(ready) == len(seconds) else inf


def is_convex(problem: Problem, assignment: Assignment) -> bool:
    """Whether no path of forward nodes leaves a device and comes back.

    O(devices x (nodes + edges)).
    """
    nodes = problem.nodes
    place = [assignment[group] for group in nodes.group]
    order = [node for node in topological(problem) if not nodes.backward[node]]
    for device in sorted(set(place)):
        left = [False] * len(place)
        for node in order:
            if place[node] != device and not left[node]:
                continue
            for target in nodes.successors[node]:
                if nodes.backward[target]:
                    continue
                if place[target] != device:
                    left[target] = True
                elif left[node]:
                    return False
    return True


def is_pipeline(problem: Problem, assignment: Assignment) -> bool:
    """Whether devices can be ordered so that forward edges never go back."""
    after: list[dict[int, None]] = [{} for _ in problem.devices]
    for a, b in problem.forward:
        if assignment[a] != assignment[b]:
            after[assignment[a]][assignment[b]] = None
    return _longest([1.0] * len(after), after) < inf
