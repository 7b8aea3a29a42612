"""Coarsening: merge the ends of expensive nets, so that a search moves whole blocks."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from random import Random

from splitnet.planner.search.contract import contract
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.strength import Link

__all__ = ["coarsen", "fastest"]

LIGHTEST = 1e-3
ROUNDING = 1e-9


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
    power: float = 0.0,
    keep: Sequence[int] | None = None,
    links: Iterable[Link] | None = None,
) -> tuple[Problem, list[int]]:
    """Merge along the most expensive links until `target` groups are left.

    Without `links` these are the nets. A link ranks by its cost, give or take a share
    `noise`, over (seconds of both ends) ** `power`: with a power small clusters merge
    first, and large ones, which are hard to pack, stay apart. No cluster
    grows past `limit` seconds or half of the largest memory, and only groups with the
    same devices merge. With `keep` (an assignment), only groups on one device merge, so
    the assignment survives the contraction.

    Returns the contracted problem and the cluster of every group. O(nets log nets).
    Source: Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for
    Partitioning Irregular Graphs" (1998), heavy edges first; weights of the ends:
    Holtgrewe, Sanders and Schulz, "Engineering a Scalable High Quality Graph
    Partitioner" (2010).
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

    # So that ends of no weight leave a rank finite.
    least = LIGHTEST * sum(seconds) / max(1, count) + 1e-300

    def ranked(cost: float, a: int, b: int) -> float:
        weight: float = ((seconds[a] + least) * (seconds[b] + least)) ** power
        return -cost / weight

    heap = []
    for number, (cost, a, b) in enumerate(_ends(problem) if links is None else links):
        if keep is None or keep[a] == keep[b]:
            cost *= 1 + noise * (2 * random.random() - 1)
            heap.append((ranked(cost, a, b), number, cost, a, b))
    heapify(heap)
    left = count
    while heap and left > target:
        rank, number, cost, a, b = heap[0]
        a, b = root(a), root(b)
        same = allowed[a] is allowed[b] or allowed[a] == allowed[b]
        heavy = seconds[a] + seconds[b] > limit or sizes[a] + sizes[b] > size_limit
        if a == b or heavy or not same:
            heappop(heap)
            continue
        now = ranked(cost, a, b) if power else rank
        if now > rank * (1 - ROUNDING):
            # Its ends have grown since it was ranked.
            heapreplace(heap, (now, number, cost, a, b))
            continue
        heappop(heap)
        if b < a:
            a, b = b, a
        parent[b] = a
        seconds[a] += seconds[b]
        sizes[a] += sizes[b]
        left -= 1
    numbers: dict[int, int] = {}
    cluster = [numbers.setdefault(root(g), len(numbers)) for g in range(count)]
    return contract(problem, cluster), cluster


def _ends(problem: Problem) -> list[Link]:
    return [
        (max(net.seconds), net.producer, consumer)
        for net in problem.nets
        for consumer in net.consumers
    ]
