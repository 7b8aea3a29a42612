"""A beam of plans that grow by steps; only those that promise most go on."""

from collections.abc import Callable
from math import exp, inf, log
from random import Random

from splitnet.planner.search.call_partial import Partial
from splitnet.planner.search.call_steps import Steps
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.problem import Problem

__all__ = ["CallBeam"]

STAGES = 30
FIRST_RATE = 0.35
HASTE = (0.35, 0.5)
TRUSTED = 0.5
PILOT, CHILDREN = (2, 3), (8, 12)
ALL_DEVICES = 0.6
FEWEST_DEVICES = 3
GROUPS_PER_CALL, CALLS_PER_DEVICE = 3, 150
RUNS_PER_WIDTH = 3
STEPS_PER_CHILD = 30
HOPELESS = 1.1
SMALLEST = 1e-300
Keep = Callable[[list[int], list[int]], float]
Guess = Callable[[Partial], float]


class CallBeam:
    """Makes plan after plan of one problem, with wider and wider beams.

    By what a plan that is not finished is judged decides most, and what is best for
    one graph is bad for another: so there are several ways, and the one that led to the
    best plan is used most.
    """

    __slots__ = ("_keep", "_rate", "_runs", "_seconds", "_steps", "_values", "_width")

    def __init__(self, fused: Problem, keep: Keep) -> None:
        """`keep` takes a plan: the device of each group, and its call, or -1."""
        self._steps, self._keep = Steps(fused), keep
        self._rate = FIRST_RATE * max(1, len(self._steps.accelerators))
        self._values: dict[int, float] = {}
        self._width, self._runs, self._seconds = 1, 0, 0.0

    def scout(self, budget: Budget, random: Random) -> None:
        """Make plans by each way to judge, the narrowest beams, while time allows it.

        The first have few children, so that large graphs get a plan at all.
        """
        if not self._steps.accelerators:
            return
        for children in (PILOT, CHILDREN):
            for way in range(len(self._ways())):
                if not budget.spent:
                    self._make(way, children, budget, random)

    def search(self, budget: Budget, random: Random) -> None:
        """Make plans until the budget is spent; beams widen while that leaves time.

        Objective: call latency. No guarantee. A beam is O(width x children) steps for
        each of some dozen stages.
        """
        if not self._values:
            self.scout(budget, random)
        while not budget.spent and min(self._values.values(), default=inf) < inf:
            while self._width > 1 and self._width * self._seconds > budget.left:
                self._width //= 2
            way = min(self._values, key=self._values.__getitem__)
            if random.random() > TRUSTED:
                way = random.randrange(len(self._ways()))
            self._make(way, CHILDREN, budget, random)
            self._runs += 1
            if self._runs >= RUNS_PER_WIDTH:
                self._runs = 0
                self._width *= 2

    def _make(
        self, way: int, children: tuple[int, ...], budget: Budget, random: Random
    ) -> None:
        """Make one plan, and note its value and what it took."""
        began, value = budget.left, inf
        plan = self._beam(self._ways()[way], children, budget, random)
        if plan is not None:
            value = plan.end
            best = min(self._values.values(), default=inf)
            if value < best:
                self._rate = self._steps.work / max(value, SMALLEST)
            if value < HOPELESS * best:
                self._keep(self._steps.assignment(plan), plan.call)
        if plan is not None or not budget.spent:
            self._values[way] = min(value, self._values.get(way, inf))
            self._seconds = (began - budget.left) / self._width

    def _ways(self) -> list[Guess]:
        """Return the ways to guess when all will be done.

        At the pace of the plan so far, as if each step began when the longest call
        before it ends, or seen from where its last calls end; or the rest at some share
        of the best rate of a whole plan: a small one prefers plans that have done much.
        """
        steps = self._steps
        work, rest = steps.work, steps.rest

        def pace(plan: Partial) -> float:
            ready = sum(plan.ready.values()) / max(1, len(plan.ready))
            spent = (plan.end + ready) / 2 + steps.overhead
            return spent * work / max(plan.work, SMALLEST)

        def tempo(plan: Partial) -> float:
            return plan.spent * work / max(plan.work, SMALLEST)

        def at(rate: float) -> Guess:
            def guess(plan: Partial) -> float:
                value = plan.end + (work - plan.work) / rate
                return max([value, *[t + rest[g] for g, t in plan.ready.items()]])

            return guess

        return [
            pace,
            tempo,
            *[at(max(SMALLEST, haste * self._rate)) for haste in HASTE],
        ]

    def _beam(
        self, guess: Guess, children: tuple[int, ...], budget: Budget, random: Random
    ) -> Partial | None:
        """Return the best plan of one beam; None if none was finished in time.

        A plan waits in the bucket of the share of the work that it has done.
        """
        steps, best = self._steps, None
        root = steps.begin()
        if root is None or not root.ready:
            return root
        buckets: list[list[Partial]] = [[] for _ in range(STAGES + 1)]
        buckets[0] = [root]
        for stage in range(STAGES + 1):
            while buckets[stage]:
                rows = sorted(buckets[stage], key=lambda plan: plan.worth)
                buckets[stage] = []
                for plan in rows[: self._width]:
                    for _ in range(random.choice(children)):
                        budget.spend(STEPS_PER_CHILD)
                        child = self._step(plan, random)
                        if child is None:
                            continue
                        if child.ready:
                            child.worth = guess(child)
                            done = child.work / max(steps.work, SMALLEST)
                            later = min(STAGES, int(done * STAGES))
                            buckets[max(stage, later)].append(child)
                        elif best is None or child.end < best.end:
                            best = child
                    if budget.spent:
                        return best
        return best

    def _step(self, plan: Partial, random: Random) -> Partial | None:
        """Draw how the next step is made."""
        steps = self._steps
        devices, number = steps.accelerators, len(steps.accelerators)
        if random.random() > ALL_DEVICES:
            least = max(1, number // FEWEST_DEVICES)
            devices = random.sample(devices, random.randint(least, number))
        high = steps.work / number / 2
        low = max(
            GROUPS_PER_CALL * steps.work / len(steps.seconds),
            steps.work / number / CALLS_PER_DEVICE,
        )
        share = high
        if 0 < low < high:
            share = low * exp(random.random() * log(high / low))
        cheap = random.choice(steps.cheap)
        return steps.step(plan, random, share=share, cheap=cheap, devices=devices)
