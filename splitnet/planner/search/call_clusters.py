"""Coarsening for the latency search: clusters whose graph stays without a circle."""

from collections.abc import Sequence
from random import Random

from splitnet.planner.search.contract import contract
from splitnet.planner.search.problem import Problem

__all__ = ["coarsen_calls"]

NOISE = 0.9


def coarsen_calls(
    problem: Problem,
    target: int,
    random: Random,
    room: float,
    *,
    keep: Sequence[int],
) -> tuple[Problem, list[int]]:
    """Merge ends of expensive edges, never closing a circle, until `target` are left.

    An edge merges if it is the only one out of its source or the only one into its
    target: then no other path joins the two. Only groups with equal numbers in `keep`
    merge, and none past `room` bytes. O(rounds x edges log edges).
    """
    after, before = _weighted_edges(problem)
    count = left = problem.group_count
    size, parent = list(problem.size_bytes), list(range(count))
    while left > target:
        ranked = sorted(
            (-weight * (1 + NOISE * (2 * random.random() - 1)), a, b)
            for a, row in enumerate(after)
            for b, weight in row.items()
        )
        merged = 0
        for _, a, b in ranked:
            if left - merged <= target:
                break
            if b not in after[a] or (len(after[a]) > 1 and len(before[b]) > 1):
                continue
            if size[a] + size[b] > room or keep[a] != keep[b]:
                continue
            if problem.allowed[a] != problem.allowed[b]:
                continue
            size[a] += size[b]
            parent[b] = a
            _absorb(after, before, a, b)
            merged += 1
        left -= merged
        if not merged:
            break
    numbers: dict[int, int] = {}
    cluster = []
    for group in range(count):
        while parent[group] != group:
            group = parent[group]
        cluster.append(numbers.setdefault(group, len(numbers)))
    return contract(problem, cluster), cluster


Weights = list[dict[int, float]]


def _weighted_edges(problem: Problem) -> tuple[Weights, Weights]:
    after: Weights = [{} for _ in range(problem.group_count)]
    before: Weights = [{} for _ in range(problem.group_count)]
    for a, b in problem.forward:
        after[a][b] = before[b][a] = 0.0
    for net in problem.nets:
        share = max(net.seconds) / len(net.consumers)
        for consumer in net.consumers:
            if consumer in after[net.producer]:
                after[net.producer][consumer] += share
                before[consumer][net.producer] += share
    return after, before


def _absorb(after: Weights, before: Weights, a: int, b: int) -> None:
    """Hang all edges of b on a."""
    del after[a][b]
    for other, weight in after[b].items():
        after[a][other] = before[other][a] = after[a].get(other, 0.0) + weight
        del before[other][b]
    for other, weight in before[b].items():
        if other != a:
            before[a][other] = after[other][a] = before[a].get(other, 0.0) + weight
            del after[other][b]
    after[b], before[b] = {}, {}
