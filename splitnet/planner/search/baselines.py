"""Simple planners: the plans that no search may lose to.

Each returns an assignment, or None when its rule runs out of room.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from splitnet.planner.search.orders import ancestry
from splitnet.planner.search.problem import Problem

__all__ = [
    "earliest_finish",
    "first_fit",
    "longest_first",
    "single_devices",
    "topological_fill",
]

WIDEST = 8


def single_devices(problem: Problem) -> list[list[int]]:
    """Return every feasible plan that uses one device only; O(groups x devices)."""
    total = sum(problem.size_bytes)
    able = [True] * len(problem.devices)
    for row in problem.allowed:
        if len(row) < len(able):
            inside = set(row)
            able = [fine and d in inside for d, fine in enumerate(able)]
    return [
        [index] * problem.group_count
        for index, device in enumerate(problem.devices)
        if able[index] and total <= device.capacity_bytes
    ]


class _Room:
    """Bytes left and seconds per device, read from the problem."""

    def __init__(self, problem: Problem) -> None:
        self.free = [d.capacity_bytes * (1 + 1e-13) for d in problem.devices]
        self.kind = [device.kind for device in problem.devices]
        self.problem = problem

    def options(self, group: int) -> list[int]:
        size = self.problem.size_bytes[group]
        return [d for d in self.problem.allowed[group] if size <= self.free[d]]

    def take(self, group: int, device: int) -> None:
        self.free[device] -= self.problem.size_bytes[group]

    def seconds(self, group: int, device: int) -> float:
        return self.problem.seconds[group][self.kind[device]]


def longest_first(problem: Problem) -> list[int] | None:
    """Give the longest group first to the device that is then least busy.

    Objective: max-load without transfers; at most 4/3 of the optimum on identical
    devices without memory limits. O(groups x devices). Source: Graham, "Bounds on
    Multiprocessing Timing Anomalies" (1969).
    """
    room = _Room(problem)
    busy = [0.0] * len(problem.devices)
    result = [0] * problem.group_count
    rank = [
        min((room.seconds(g, d) for d in row), default=inf)
        for g, row in enumerate(problem.allowed)
    ]
    for group in sorted(range(problem.group_count), key=lambda g: (-rank[g], g)):
        options = room.options(group)
        if not options:
            return None
        device = min(options, key=lambda d: busy[d] + room.seconds(group, d))
        busy[device] += room.seconds(group, device)
        room.take(group, device)
        result[group] = device
    return result


def first_fit(problem: Problem) -> list[int] | None:
    """Give the largest group first to the fullest device that still has room.

    No objective but feasibility. O(groups x devices). Source: best fit decreasing,
    Johnson, "Near-Optimal Bin Packing Algorithms" (1973).
    """
    room = _Room(problem)
    result = [0] * problem.group_count
    sizes = problem.size_bytes
    for group in sorted(
        range(problem.group_count),
        key=lambda g: (len(problem.allowed[g]), -sizes[g], g),
    ):
        options = room.options(group)
        if not options:
            return None
        device = min(options, key=lambda d: room.free[d])
        room.take(group, device)
        result[group] = device
    return result


def topological_fill(problem: Problem, order: Sequence[int]) -> list[int] | None:
    """Fill one device after the other along `order`, each up to its share of bytes.

    Objective: none but balanced memory. O(groups x devices). Source: m-TOPO of Jeon et
    al., "Baechi: Fast Device Placement of Machine Learning Graphs" (SoCC 2020).
    """
    room = _Room(problem)
    limited = [i for i, d in enumerate(problem.devices) if d.capacity_bytes < inf]
    line = limited or list(range(len(problem.devices)))
    share = sum(problem.size_bytes) / max(1, len(line))
    cap = share + max(problem.size_bytes, default=0.0)
    result = [0] * problem.group_count
    current, filled = 0, 0.0
    for group in order:
        size = problem.size_bytes[group]
        if filled + size > cap and current + 1 < len(line):
            current, filled = current + 1, 0.0
        device = line[current]
        if device not in problem.allowed[group] or size > room.free[device]:
            options = room.options(group)
            if not options:
                return None
            device = options[0]
        else:
            filled += size
        room.take(group, device)
        result[group] = device
    return result


def earliest_finish(problem: Problem) -> list[int] | None:
    """Schedule the ready group that can finish first where it finishes first.

    Objective: makespan of one sample with a transfer on every cut edge, within memory.
    Where many groups are ready, the eight that ranked first decide, so that it is
    O(groups x (devices + log groups) + edges x devices). Source: m-ETF of Baechi (SoCC
    2020), after Hwang et al., "Scheduling Precedence Graphs" (1989).
    """
    room = _Room(problem)
    before, after = ancestry(problem)
    send: dict[tuple[int, int], tuple[float, ...]] = {}
    for net in problem.nets:
        for consumer in net.consumers:
            send[net.producer, consumer] = net.seconds
    waiting = [len(row) for row in before]
    free_at = [0.0] * len(problem.devices)
    stop = [0.0] * problem.group_count
    result = [-1] * problem.group_count

    def best(group: int) -> tuple[float, int]:
        found = (inf, -1)
        for device in room.options(group):
            start = free_at[device]
            for source in before[group]:
                arrival = stop[source]
                if result[source] != device and (source, group) in send:
                    row = send[source, group]
                    arrival += row[room.kind[device]] + row[room.kind[result[source]]]
                start = max(start, arrival)
            found = min(found, (start + room.seconds(group, device), device))
        return found

    heap = [(best(g), g) for g in range(problem.group_count) if not waiting[g]]
    heapify(heap)
    placed = 0
    while placed < problem.group_count:
        # Devices fill up, so what a group was ranked by may be out of date.
        looked: list[tuple[tuple[float, int], int]] = []
        while heap and len(looked) < WIDEST:
            _, group = heappop(heap)
            looked.append((best(group), group))
            if not heap or looked[-1][0] <= heap[0][0]:
                break
        if looked:
            now, group = min(looked)
            for row in looked:
                if row[1] != group:
                    heappush(heap, row)
        else:  # a circle of groups: take the first that is left
            group = result.index(-1)
            now = best(group)
        if now[1] < 0:
            return None
        stop[group], device = now
        result[group] = device
        free_at[device] = now[0]
        room.take(group, device)
        placed += 1
        for target in after[group]:
            waiting[target] -= 1
            if waiting[target] == 0 and result[target] < 0:
                heappush(heap, (best(target), target))
    return result
