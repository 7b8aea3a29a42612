"""Search over pipelines: cuts of many orders, each around the best plan so far."""

from collections.abc import Callable, Sequence
from random import Random

from splitnet.core.search.chain import (
    MAX_BLOCKS,
    affordable_blocks,
    chain_partition,
)
from splitnet.core.search.clock import Budget
from splitnet.core.search.elite import Elite
from splitnet.core.search.orders import depth_first, frontier
from splitnet.core.search.problem import Problem
from splitnet.core.search.stages import anneal_stages
from splitnet.core.search.state import Fixed

__all__ = ["iterated_chains", "stages_of"]

ELITE = 4
KEEP_BORDER = 0.7
HURRY = 0.8
FEWEST_BLOCKS = 60
ANNEALED = 0.3
ANNEAL_SHARE = 0.04
NOISES = (0.0, 0.3, 1.0, 3.0)
HOTS = (0.3, 0.1, 0.03, 0.01)
STEPS_PER_CUT = 2000
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
    starts: Sequence[Sequence[int]],
    budget: Budget,
    random: Random,
    report: Report,
) -> None:
    """Cut order after order, each around one of the best pipelines; anneal between.

    An order that lists the groups stage by stage can be cut into the same stages, so
    a cut is never worse than the plan it started from. Annealing moves single groups
    between stages. Objective: max-load of a pipeline. No further guarantee.
    """
    elite = Elite(ELITE)

    def keep(plan: Sequence[int], name: str) -> None:
        elite.add(report(plan, name), plan)

    for plan in starts:
        keep(plan, "chain")
    fixed = Fixed(problem) if elite.rows else None
    whole = budget.left
    while not budget.spent:
        chosen = elite.draw(random) if elite.rows else None
        stage = stages_of(problem, chosen) if chosen is not None else None
        if fixed and chosen and stage and random.random() < ANNEALED:
            part = budget.limited(whole * ANNEAL_SHARE)
            hot = random.choice(HOTS)
            keep(
                anneal_stages(problem, fixed, chosen, stage, part, random, hot=hot),
                "annealed stages",
            )
            continue
        blocks = MAX_BLOCKS
        if not budget.counts_steps:
            blocks = affordable_blocks(problem, budget.usable * HURRY)
            if blocks < min(FEWEST_BLOCKS, problem.group_count):
                return
        order = _random_order(problem, random)
        if stage is not None and chosen is not None:
            borders = [m for m in range(len(stage)) if random.random() < KEEP_BORDER]
            rank = [sum(1 for m in borders if number >= m) for number in stage]
            part_of = [rank[device] for device in chosen]
            order.sort(key=part_of.__getitem__)
        found = chain_partition(problem, order, most_blocks=blocks)
        budget.spend(STEPS_PER_CUT)
        if found is not None:
            keep(found[1], "iterated chains")


def _random_order(problem: Problem, random: Random) -> list[int]:
    if problem.group_count > 20_000 or random.random() < 0.5:
        return depth_first(problem, random, backward=random.random() < 0.5)
    return frontier(problem, random, noise=random.choice(NOISES))
