"""Coarsening: merge the ends of expensive nets, so that a search moves whole blocks."""

from collections.abc import Sequence
from math import inf
from random import Random

from splitnet.core.search.contract import contract
from splitnet.core.search.problem import Problem

__all__ = ["coarsen", "fastest"]


def fastest(problem: Problem) -> list[float]:
    """Return the seconds of every group on the fastest kind it may use."""
    kinds: dict[tuple[int, ...], list[int]] = {}
    for row in problem.allowed:
        if row not in kinds:
            kinds[row] = sorted({problem.devices[device].kind for device in row})
    return [
        min([row[kind] for kind in kinds[allowed]], default=inf)
        for row, allowed in zip(problem.seconds, problem.allowed, strict=True)
    ]


def coarsen(
    problem: Problem,
    target: int,
    random: Random,
    *,
    limit: float,
    noise: float = 0.5,
    weight_power: float = 0.0,
    keep: Sequence[int] | None = None,
) -> tuple[Problem, list[int]]:
    """Merge along the most expensive nets until `target` groups are left.

    No cluster grows past `limit` seconds or half of the largest memory, and only groups
    with the same devices merge. With `keep` (an assignment), only groups on one device
    merge, so the assignment survives the contraction.

    Returns the contracted problem and the cluster of every group. O(nets log nets).
    Source: Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for
    Partitioning Irregular Graphs" (1998), heavy edges first.
    """
    count = problem.group_count
    seconds = fastest(problem)
    sizes = list(problem.size_bytes)
    room = [d.capacity_bytes for d in problem.devices if d.capacity_bytes < inf]
    size_limit = 0.5 * max(room, default=inf)
    allowed = list(problem.allowed)
    parent = list(range(count))

    def root(group: int) -> int:
        while parent[group] != group:
            parent[group] = parent[parent[group]]
            group = parent[group]
        return group

    links = _ranked_links(problem, random, noise, seconds, weight_power)
    left = count
    for a, b in links:
        if left <= target:
            break
        if keep is not None and keep[a] != keep[b]:
            continue
        a, b = root(a), root(b)
        if a == b or seconds[a] + seconds[b] > limit:
            continue
        if sizes[a] + sizes[b] > size_limit:
            continue
        if allowed[a] is not allowed[b] and allowed[a] != allowed[b]:
            continue
        if b < a:
            a, b = b, a
        parent[b] = a
        seconds[a] += seconds[b]
        sizes[a] += sizes[b]
        left -= 1
    numbers: dict[int, int] = {}
    cluster = [numbers.setdefault(root(g), len(numbers)) for g in range(count)]
    return contract(problem, cluster), cluster


def _ranked_links(
    problem: Problem,
    random: Random,
    noise: float,
    seconds: Sequence[float],
    weight_power: float,
) -> list[tuple[int, int]]:
    rows: list[tuple[float, int, int, int]] = []
    for net in problem.nets:
        cost = max(net.seconds) * (1 + noise * (2 * random.random() - 1))
        for consumer in net.consumers:
            rank = cost
            if weight_power:
                weight = 1e-12 + seconds[net.producer] * seconds[consumer]
                rank = cost / weight**weight_power
            rows.append((-rank, len(rows), net.producer, consumer))
    rows.sort()
    return [(a, b) for _, _, a, b in rows]
