"""Rounds of calls, one call per accelerator, from many orders."""

from collections.abc import Callable, Sequence
from random import Random

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.orders import ancestry, frontier
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.rounds import Rounds

__all__ = ["CallRounds"]

TRIES = (10, 40)
LEVELLED = 0.5
ROUND_SECONDS = 2e-6
STEPS_PER_ROUNDS = 2000
Keep = Callable[[Sequence[int], str], float]


class CallRounds:
    """Builds plans in rounds for as long as it is given."""

    __slots__ = ("_fused", "_keep", "_makes")

    def __init__(self, fused: Problem, keep: Keep) -> None:
        """`keep` judges a plan."""
        self._fused, self._keep, self._makes = fused, keep, Rounds(fused)

    def search(self, budget: Budget, random: Random) -> None:
        """Make plan after plan until the budget is spent; O(tries x groups) each."""
        fused = self._fused
        while not budget.spent:
            tries = random.choice(TRIES)
            need = ROUND_SECONDS * fused.group_count * tries
            if not budget.counts_steps and budget.usable < need:
                return
            order = frontier(fused, random, noise=random.choice((0.0, 0.3, 1.0)))
            if random.random() < LEVELLED:
                order = _by_level(fused, order)
            plan = self._makes.plan(order, random, tries=tries)
            budget.spend(STEPS_PER_ROUNDS)
            if plan is not None:
                self._keep(plan, "rounds of calls")


def _by_level(problem: Problem, order: Sequence[int]) -> list[int]:
    """Sort an order by the number of groups on the longest path to each."""
    before, level = ancestry(problem)[0], [0] * len(order)
    for group in order:
        level[group] = 1 + max([level[other] for other in before[group]], default=0)
    return sorted(order, key=level.__getitem__)
