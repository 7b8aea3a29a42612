"""Search over pipelines: cuts of many orders, each around the best plan so far."""

from collections.abc import Callable, Sequence
from random import Random

from splitnet.core.search.chain import MAX_BLOCKS, affordable_blocks, chain_partition
from splitnet.core.search.clock import Budget
from splitnet.core.search.orders import depth_first, frontier
from splitnet.core.search.problem import Problem

__all__ = ["iterated_chains", "stages_of"]

KEEP_BORDER = 0.7
HURRY = 0.8
FEWEST_BLOCKS = 60
Report = Callable[[Sequence[int], str], float]


def stages_of(problem: Problem, assignment: Sequence[int]) -> list[int] | None:
    """Number the devices so that forward edges never go back; None if impossible."""
    width = len(problem.devices)
    after: list[dict[int, None]] = [{} for _ in range(width)]
    waiting = [0] * width
    for a, b in problem.forward:
        x, y = assignment[a], assignment[b]
        if x != y and y not in after[x]:
            after[x][y] = None
            waiting[y] += 1
    queue = [d for d in range(width) if waiting[d] == 0]
    stage = [-1] * width
    for number, device in enumerate(queue):
        stage[device] = number
        for target in after[device]:
            waiting[target] -= 1
            if waiting[target] == 0:
                queue.append(target)
    return stage if len(queue) == width else None


def iterated_chains(
    problem: Problem,
    start: Sequence[int] | None,
    budget: Budget,
    random: Random,
    report: Report,
) -> None:
    """Cut order after order; each keeps some borders of the best pipeline found.

    An order that lists the groups stage by stage can be cut into the same stages, so
    no step is worse than the best before it. Objective: max-load of a pipeline. One
    step is one `chain_partition`. No guarantee beyond monotone improvement.
    """
    best: list[int] | None = list(start) if start is not None else None
    value = report(best, "chain") if best is not None else float("inf")
    while not budget.spent:
        blocks = MAX_BLOCKS
        if not budget.counts_steps:
            blocks = affordable_blocks(problem, budget.left * HURRY)
            if blocks < min(FEWEST_BLOCKS, problem.group_count):
                return
        noise = (0.0, 0.3, 1.0, 3.0)[random.randrange(4)]
        if problem.group_count > 20_000 or random.random() < 0.5:
            order = depth_first(problem, random, backward=random.random() < 0.5)
        else:
            order = frontier(problem, random, noise=noise)
        stage = stages_of(problem, best) if best is not None else None
        if stage is not None and best is not None:
            borders = [m for m in range(len(stage)) if random.random() < KEEP_BORDER]
            rank = [sum(1 for m in borders if number >= m) for number in stage]
            part = [rank[device] for device in best]
            order.sort(key=part.__getitem__)
        found = chain_partition(problem, order, most_blocks=blocks)
        budget.spend(2000)
        if found is not None and found[0] < value * (1 + 1e-9):
            best = found[1]
            value = min(value, report(best, "iterated chains"))
