"""Linear orders of the groups for dynamic programs that cut one order."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from random import Random

from splitnet.planner.search.contract import contract
from splitnet.planner.search.problem import Problem

__all__ = ["ancestry", "depth_first", "fuse_cycles", "frontier", "is_ordered"]


WIDEST = 60


def fuse_cycles(problem: Problem) -> tuple[Problem, list[int]]:
    """Merge the strongly connected groups of the forward graph.

    No pipeline separates them. Returns the contracted problem and the cluster of every
    group. O(groups + edges), Tarjan's algorithm without recursion.
    """
    after = _successors(problem)
    count = problem.group_count
    index = [-1] * count
    low = [0] * count
    inside = [False] * count
    cluster = [-1] * count
    stack: list[int] = []
    clock = found = 0
    for root in range(count):
        if index[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            group, position = work.pop()
            if position == 0:
                index[group] = low[group] = clock
                clock += 1
                stack.append(group)
                inside[group] = True
            pushed = False
            while position < len(after[group]):
                other = after[group][position]
                position += 1
                if index[other] < 0:
                    work.append((group, position))
                    work.append((other, 0))
                    pushed = True
                    break
                if inside[other]:
                    low[group] = min(low[group], index[other])
            if pushed:
                continue
            if low[group] == index[group]:
                while True:
                    member = stack.pop()
                    inside[member] = False
                    cluster[member] = found
                    if member == group:
                        break
                found += 1
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[group])
    if found == count:
        return problem, list(range(count))
    numbers: dict[int, int] = {}
    dense = [numbers.setdefault(c, len(numbers)) for c in cluster]
    return contract(problem, dense), dense


def depth_first(
    problem: Problem, random: Random | None = None, *, backward: bool = False
) -> list[int]:
    """Return a topological order that finishes one branch before the next.

    Groups without forward nodes are put beside their neighbours. O(groups + edges).
    """
    after = _successors(problem, backward=backward)
    count = problem.group_count
    entry = [True] * count
    for row in after:
        for other in row:
            entry[other] = False
    roots = [group for group in range(count) if entry[group]]
    if random is not None:
        random.shuffle(roots)
        for row in after:
            random.shuffle(row)
    # Groups in a circle have no entry; they follow in their given order.
    roots += [group for group in range(count) if not entry[group]]
    seen = [False] * count
    order: list[int] = []
    for root in roots:
        if seen[root]:
            continue
        work = [(root, 0)]
        seen[root] = True
        while work:
            group, position = work.pop()
            row = after[group]
            while position < len(row) and seen[row[position]]:
                position += 1
            if position == len(row):
                order.append(group)
                continue
            work.append((group, position + 1))
            seen[row[position]] = True
            work.append((row[position], 0))
    if not backward:
        order.reverse()
    return _settle(problem, order)


def frontier(problem: Problem, random: Random, *, noise: float = 0.5) -> list[int]:
    """Return a topological order that keeps the open nets cheap, greedily.

    The next group is the ready one whose placement adds least to the cost of the nets
    that are started but not finished. Looks at the last 60 ready groups only, so it is
    O(60 x pins).
    """
    after = _successors(problem)
    count = problem.group_count
    waiting = [0] * count
    for row in after:
        for other in row:
            waiting[other] += 1
    touching: list[list[int]] = [[] for _ in range(count)]
    cost, left, size = [], [], []
    for index, net in enumerate(problem.nets):
        pins = [net.producer, *net.consumers]
        for pin in pins:
            touching[pin].append(index)
        cost.append(max(net.seconds))
        left.append(len(pins))
        size.append(len(pins))
    typical = sum(cost) / max(1, len(cost))
    ready = [group for group in range(count) if waiting[group] == 0]
    order = []
    while ready:
        best, best_rank = 0, float("inf")
        first = max(0, len(ready) - WIDEST)
        for position in range(first, len(ready)):
            group = ready[position]
            rank = noise * typical * random.random()
            for net_index in touching[group]:
                if left[net_index] == size[net_index]:
                    rank += cost[net_index]
                if left[net_index] == 1:
                    rank -= cost[net_index]
            if rank < best_rank:
                best, best_rank = position, rank
        group = ready.pop(best)
        order.append(group)
        for net_index in touching[group]:
            left[net_index] -= 1
        for other in after[group]:
            waiting[other] -= 1
            if waiting[other] == 0:
                ready.append(other)
    return _settle(problem, order)


def is_ordered(problem: Problem, order: Sequence[int]) -> bool:
    """Whether every forward edge goes from left to right."""
    place = {group: index for index, group in enumerate(order)}
    return len(place) == problem.group_count and all(
        place[a] < place[b] for a, b in problem.forward
    )


def ancestry(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """Return predecessors and successors of every group in the forward graph."""
    before: list[list[int]] = [[] for _ in range(problem.group_count)]
    for a, b in problem.forward:
        before[b].append(a)
    return before, _successors(problem)


def _successors(problem: Problem, *, backward: bool = False) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(problem.group_count)]
    for a, b in problem.forward:
        if backward:
            rows[b].append(a)
        else:
            rows[a].append(b)
    return rows


def _settle(problem: Problem, order: list[int]) -> list[int]:
    """Put groups that no forward edge touches beside their cheapest neighbours."""
    tied = [False] * problem.group_count
    for a, b in problem.forward:
        tied[a] = tied[b] = True
    if all(tied):
        return order
    around: list[list[tuple[int, float]]] = [[] for _ in range(problem.group_count)]
    for net in problem.nets:
        for consumer in net.consumers:
            around[net.producer].append((consumer, max(net.seconds)))
            around[consumer].append((net.producer, max(net.seconds)))
    spot = {g: float(i) for i, g in enumerate(order) if tied[g]}
    # Prim's rule: the dearest net to a placed group decides, dearest net first.
    heap = [(-c, o, g) for g in list(spot) for o, c in around[g] if not tied[o]]
    heapify(heap)
    while heap:
        _, group, anchor = heappop(heap)
        if group in spot:
            continue
        spot[group] = spot[anchor] + 1e-4
        for other, cost in around[group]:
            if other not in spot:
                heappush(heap, (-cost, other, group))
    last = float(len(order))
    return sorted(order, key=lambda g: (spot.get(g, last), g))
