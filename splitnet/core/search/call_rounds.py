"""Rounds of calls with as many calls per accelerator as can still be folded."""

from collections.abc import Callable, Sequence
from math import inf
from random import Random

from splitnet.core.search.call_sharing import SharedCalls
from splitnet.core.search.clock import Budget
from splitnet.core.search.orders import ancestry, frontier
from splitnet.core.search.problem import Problem
from splitnet.core.search.rounds import Rounds

__all__ = ["CallRounds"]

SCOUTS = (4.0, 2.0, 1.0, 6.0, 9.0, 12.0, 16.0)
SCOUT_TRIES = 10
TRIES = (10, 40)
NEARBY = (0.85, 1.0, 1.15, 1.35, 1.6)
LEVELLED = 0.5
ROUND_SECONDS = 2e-6
STEPS_PER_ROUNDS = 2000
Keep = Callable[[Sequence[int], str], float]


class CallRounds:
    """Builds plans in rounds, and remembers which number of calls does best.

    More calls overlap better, but each must hear from the one before it on its
    accelerator, so that too many cannot be folded. Scouts with few tries come first.
    """

    __slots__ = ("_fused", "_keep", "_makes", "_scouts", "_shared", "_values")

    def __init__(self, fused: Problem, shared: SharedCalls, keep: Keep) -> None:
        """`keep` judges a plan of `shared.wide`; infinite where it cannot be folded."""
        self._fused, self._shared, self._keep = fused, shared, keep
        self._makes = Rounds(shared.wide)
        self._scouts = [times for times in SCOUTS if times <= shared.times]
        self._values: dict[float, float] = {}

    def search(self, budget: Budget, random: Random) -> None:
        """Make plan after plan until the budget is spent; O(tries x groups) each."""
        fused, most = self._fused, float(self._shared.times)
        while not budget.spent:
            tries = SCOUT_TRIES
            scouts, values = self._scouts, self._values
            if scouts:
                times = scouts.pop(0)
            else:
                best = min(values, key=values.__getitem__)
                times = min(max(1.0, best * random.choice(NEARBY)), most)
                tries = random.choice(TRIES)
            need = ROUND_SECONDS * fused.group_count * tries
            if not budget.counts_steps and budget.usable < need:
                return
            order = frontier(fused, random, noise=random.choice((0.0, 0.3, 1.0)))
            if random.random() < LEVELLED:
                order = _by_level(fused, order)
            calls = int(times * self._shared.accelerators)
            plan = self._makes.plan(order, random, tries=tries, calls=calls)
            budget.spend(STEPS_PER_ROUNDS)
            value = inf if plan is None else self._keep(plan, "rounds of calls")
            values[times] = min(value, values.get(times, inf))


def _by_level(problem: Problem, order: Sequence[int]) -> list[int]:
    """Sort an order by the number of groups on the longest path to each."""
    before, level = ancestry(problem)[0], [0] * len(order)
    for group in order:
        level[group] = 1 + max([level[other] for other in before[group]], default=0)
    return sorted(order, key=level.__getitem__)
