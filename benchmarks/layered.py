"""Make large graphs for the planner's benchmarks."""

import random
from math import inf

from splitnet.planner.problem import Problem, load_problem

__all__ = ["layered"]


def layered(count: int, devices: int, *, seed: int = 0) -> Problem:
    """Make a layered random graph: blocks of branches between joins, and a host core.

    Branches are chains; joins and skips give nets with several consumers. Transfers
    cost about as much as computing, memory is twice what is needed.
    """
    draw = random.Random(seed)
    edges: list[tuple[int, int]] = []
    join, node = 0, 1
    while node < count:
        width = draw.randint(1, 6)
        ends = []
        for _ in range(width):
            previous = join
            for _ in range(draw.randint(1, 6)):
                if node >= count:
                    break
                edges.append((previous, node))
                previous, node = node, node + 1
            ends.append(previous)
        if node < count:
            edges += [(end, node) for end in dict.fromkeys(ends)]
            join, node = node, node + 1
    seconds = [draw.lognormvariate(0.0, 1.0) for _ in range(count)]
    send = [draw.lognormvariate(0.0, 1.0) for _ in range(count)]
    sizes = [draw.lognormvariate(0.0, 0.5) for _ in range(count)]
    memory = 2.0 * sum(sizes) / devices
    return load_problem(
        seconds=[(value, 10.0 * value) for value in seconds],
        size_bytes=sizes,
        edges=edges,
        transfer_seconds=[(value, 0.0) for value in send],
        kind=[0] * devices + [1],
        capacity_bytes=[memory] * devices + [inf],
    )
