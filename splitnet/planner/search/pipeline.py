"""Search over pipelines: cuts of many orders, each around the best plan so far."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from random import Random

from splitnet.planner.search.anneal import anneal
from splitnet.planner.search.chain import (
    MAX_BLOCKS,
    affordable_blocks,
    chain_partition,
)
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.elite import Elite
from splitnet.planner.search.orders import depth_first, frontier
from splitnet.planner.search.problem import Problem, check
from splitnet.planner.search.stages import anneal_stages
from splitnet.planner.search.state import Fixed

__all__ = ["iterated_chains", "stages_of"]

ELITE = 4
KEEP_BORDER = 0.7
HURRY = 0.8
FEWEST_BLOCKS = 60
ANNEALED = 0.3
ANNEAL_SHARE = 0.04
NOISES = (0.0, 0.3, 1.0, 3.0)
HOTS = (0.3, 0.1, 0.03, 0.01)
LOOSE = 0.5
STALE = 16
MELT_HOT = 3.0
MELT_SHARE = 0.2
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
    """Find order after order, each cut around one of the best; anneal between.

    An order that lists the groups stage by stage can be cut into the same stages, so
    a cut is never worse than the plan it started from. Annealing moves single groups
    between stages. Objective: max-load of a pipeline. No further guarantee.
    """
    search = _Pipelines(problem, budget, random, report)
    for plan in starts:
        search.keep(plan, "chain")
    started = bool(search.elite.rows)
    while not budget.spent:
        chosen = search.elite.draw(random) if search.elite.rows else None
        stage = stages_of(problem, chosen) if chosen is not None else None
        if started and chosen and stage and random.random() < ANNEALED:
            search.anneal(chosen, stage)
        elif not search.cut(chosen, stage):
            return


class _Pipelines:
    """The best pipelines so far, and two ways to better ones."""

    def __init__(
        self, problem: Problem, budget: Budget, random: Random, report: Report
    ) -> None:
        self.problem, self.budget, self.random = problem, budget, random
        self.report = report
        self.loose, self.bare = _loosened(problem)
        self.elite = Elite(ELITE)
        self.whole, self.stale = budget.left, 0

    @cached_property
    def fixed(self) -> Fixed:
        """The problem laid out for annealing."""
        return Fixed(self.problem)

    def keep(self, plan: Sequence[int], name: str) -> None:
        """Report a plan, and count how many in a row were no better than the best."""
        known = self.elite.rows[0][0] if self.elite.rows else inf
        value = self.report(plan, name)
        self.stale = 0 if value < known else self.stale + 1
        self.elite.add(value, plan)

    def anneal(self, chosen: Sequence[int], stage: Sequence[int]) -> None:
        """Anneal the stages, or what may be on any; melt them if all else is stale."""
        if self.loose and self.random.random() < LOOSE:
            self.keep(self._rest(chosen), "annealed rest")
            return
        hot, share = self.random.choice(HOTS), ANNEAL_SHARE
        if self.stale > STALE:
            self.stale, hot, share = 0, MELT_HOT, MELT_SHARE
        part = self.budget.limited(self.whole * share)
        found = anneal_stages(
            self.problem, self.fixed, chosen, stage, part, self.random, hot=hot
        )
        self.keep(found, "annealed stages")

    def cut(self, chosen: Sequence[int] | None, stage: Sequence[int] | None) -> bool:
        """Cut a new order, near `chosen` if given; whether there was time for it."""
        problem, random, blocks = self.problem, self.random, MAX_BLOCKS
        if not self.budget.counts_steps:
            blocks = affordable_blocks(problem, self.budget.usable * HURRY)
            if blocks < min(FEWEST_BLOCKS, problem.group_count):
                return False
        order = _random_order(problem, random)
        if stage is not None and chosen is not None:
            borders = [m for m in range(len(stage)) if random.random() < KEEP_BORDER]
            rank = [sum(1 for m in borders if number >= m) for number in stage]
            part_of = [rank[device] for device in chosen]
            order.sort(key=part_of.__getitem__)
        spread = bool(self.loose) and random.random() < LOOSE
        seen = self.bare if spread else problem
        found = chain_partition(seen, order, most_blocks=blocks)
        self.budget.spend(STEPS_PER_CUT)
        if found is not None:
            fits = not spread or not check(problem, found[1])
            plan = self._rest(found[1]) if spread and fits else found[1]
            self.keep(plan, "iterated chains")
        return True

    def _rest(self, plan: Sequence[int]) -> list[int]:
        """Anneal the groups that may be on any stage; `plan` keeps memory and pins."""
        part = self.budget.limited(self.whole * ANNEAL_SHARE)
        hot = self.random.choice(HOTS)
        return anneal(self.fixed, plan, part, self.random, hot=hot, movable=self.loose)[
            1
        ]


def _loosened(problem: Problem) -> tuple[list[int], Problem]:
    """Return the groups that no forward edge touches, and the problem without them.

    Such groups may go to any stage. A cut that does not count them leaves the stages
    room for them; they keep their places in an order, and weigh nothing.
    """
    tied = {group for edge in problem.forward for group in edge}
    loose = [group for group in range(problem.group_count) if group not in tied]
    nothing = (0.0,) * problem.kind_count
    seconds = [
        nothing if g not in tied else row for g, row in enumerate(problem.seconds)
    ]
    nets = [
        net for net in problem.nets if tied.issuperset((net.producer, *net.consumers))
    ]
    return loose, replace(problem, seconds=tuple(seconds), nets=tuple(nets))


def _random_order(problem: Problem, random: Random) -> list[int]:
    if problem.group_count > 20_000 or random.random() < 0.5:
        return depth_first(problem, random, backward=random.random() < 0.5)
    return frontier(problem, random, noise=random.choice(NOISES))
