"""Walk over graphs given as pairs of numbers: successors, an order, a cycle."""

from collections.abc import Sequence

__all__ = ["adjacent", "cycle_in", "running_order"]


def adjacent(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """List the successors of every node."""
    successors: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        successors[source].append(target)
    return successors


def running_order(successors: Sequence[Sequence[int]]) -> list[int]:
    """Order nodes so that edges go forward; leaves out what is behind a cycle."""
    waiting = [0] * len(successors)
    for row in successors:
        for target in row:
            waiting[target] += 1
    order = [node for node, number in enumerate(waiting) if number == 0]
    for node in order:
        for target in successors[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    return order


def cycle_in(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return one cycle as a closed path, or nothing; O(nodes + edges)."""
    successors = adjacent(count, edges)
    left = set(range(count)) - set(running_order(successors))
    if not left:
        return []
    before = {t: s for s, t in edges if s in left and t in left}
    # Every node left has a predecessor left, so walking back must repeat.
    seen: dict[int, int] = {}
    walk: list[int] = []
    node = min(left)
    while node not in seen:
        seen[node] = len(walk)
        walk.append(node)
        node = before[node]
    return [node, *reversed(walk[seen[node] :])]
