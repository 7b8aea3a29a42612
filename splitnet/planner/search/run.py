"""One search: its best plan so far, judged exactly, and its bound."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter

from splitnet.core.errors import InfeasibleError
from splitnet.planner.search import baselines, bounds
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.feasibility import explain_no_plan
from splitnet.planner.search.judge import Judge
from splitnet.planner.search.latency import call_latency, is_convex, is_pipeline
from splitnet.planner.search.orders import depth_first
from splitnet.planner.search.problem import Problem, check, device_classes

__all__ = ["Progress", "Proven", "Result", "Run"]

OPTIMAL = 1e-9
SECONDS_PER_GROUP = 4e-6
SHORTEST_MEASURED = 0.05


@dataclass(frozen=True, slots=True)
class Progress:
    """The best plan so far, `seconds` after the search began."""

    seconds: float
    value: float
    bound: float
    strategy: str


@dataclass(frozen=True, slots=True)
class Result:
    """The best plan found, with a proven lower `bound` on every plan's value.

    `assignment` gives the device index of every group; `history` every improvement.
    """

    assignment: tuple[int, ...]
    value: float
    bound: float
    bound_by: str
    strategy: str
    seconds: float
    history: tuple[Progress, ...]

    @property
    def gap(self) -> float:
        """How far the value may be above the optimum, relative to the value."""
        return max(0.0, 1.0 - self.bound / self.value) if self.value > 0 else 0.0


class Proven(Exception):  # noqa: N818  # no error: it ends a search
    """The value has met the bound: nothing is left to find."""


class Run:
    """The best plan of one search, judged exactly, and its bound."""

    def __init__(
        self,
        problem: Problem,
        objective: str,
        contiguity: str,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.problem, self.objective, self.contiguity = problem, objective, contiguity
        self.on_progress = on_progress
        self.began = perf_counter()
        self.best: list[int] | None = None
        self.judge = Judge(problem)
        self.value, self.bound = inf, 0.0
        self.strategy, self.bound_by = "none", "none"
        self.history: list[Progress] = []

    @property
    def proven(self) -> bool:
        """Whether the best value has met the bound."""
        return self.value <= self.bound * (1 + OPTIMAL)

    def value_of(self, assignment: Sequence[int]) -> float:
        """Return the objective; infinite outside the feasible set of contiguity."""
        if self.contiguity == "convex" and not is_convex(self.problem, assignment):
            return inf
        if self.contiguity == "pipeline" and not is_pipeline(self.problem, assignment):
            return inf
        if self.objective == "throughput":
            return self.judge.max_load(assignment)
        return call_latency(self.problem, assignment)

    def offer_plan(self, assignment: Sequence[int], strategy: str) -> float:
        """Judge a plan, keep it if it is the best; raise `Proven` at the bound."""
        if check(self.problem, assignment):
            return inf
        value = self.value_of(assignment)
        if value < self.value:
            self.value, self.best, self.strategy = value, list(assignment), strategy
            progress = Progress(
                perf_counter() - self.began, value, self.bound, strategy
            )
            self.history.append(progress)
            if self.on_progress is not None:
                self.on_progress(progress)
            if self.proven:
                raise Proven
        return value

    def raise_bound(self, bound: tuple[float, str]) -> None:
        """Keep the better bound."""
        if bound[0] > self.bound:
            self.bound, self.bound_by = bound

    def affords(self, budget: Budget, passes: float) -> bool:
        """Whether so many passes over all groups fit in what is left."""
        need = passes * SECONDS_PER_GROUP * self.problem.group_count
        return budget.counts_steps or budget.usable > need

    def simple(self, budget: Budget) -> None:
        """Offer every baseline; for a problem of many groups only while time lasts."""
        problem = self.problem
        classes = device_classes(problem)
        tried = set()
        for plan in baselines.single_devices(problem):
            number = classes[plan[0]] if plan else 0
            if number not in tried:
                tried.add(number)
                self.offer_plan(plan, "single device")
        order = depth_first(problem)
        rules: list[tuple[str, float, Callable[[], list[int] | None]]] = [
            ("topological fill", 1, lambda: baselines.topological_fill(problem, order)),
            ("longest first", 1, lambda: baselines.longest_first(problem)),
            ("first fit", 1, lambda: baselines.first_fit(problem)),
            ("earliest finish", 8, lambda: baselines.earliest_finish(problem)),
        ]
        judging = 1.0
        if self.objective == "call_latency":
            judging += len(problem.devices) / 2
        # One device may be a hundred times worse than the cheapest rule, whose second
        # per million groups is well spent even where no time is left.
        free = rules[0][0] if self.objective == "throughput" else ""
        for name, passes, rule in rules:
            affordable = name == free or self.affords(budget, passes + judging)
            if self.best is not None and not affordable:
                continue
            began = perf_counter()
            found = rule()
            if found is not None:
                self.offer_plan(found, name)
            expected = (passes + judging) * SECONDS_PER_GROUP * problem.group_count
            if expected > SHORTEST_MEASURED and not budget.counts_steps:
                budget.observe(perf_counter() - began, expected=expected)

    def bounds(self, budget: Budget) -> None:
        """Compute every bound that fits in a tenth of the time."""
        problem = self.problem
        if self.objective == "call_latency":
            self.raise_bound(bounds.critical_path_bound(problem))
        else:
            self.raise_bound(bounds.largest_group_bound(problem))
            if self.affords(budget, 4.0):
                self.raise_bound(bounds.work_bound(problem))
            if problem.group_count <= 5000:
                share = budget.slice(0.1)
                self.raise_bound(bounds.cut_bound(problem, share))

    def result(self) -> Result:
        """Return the best plan; raise `InfeasibleError` if there is none."""
        if self.best is None:
            raise InfeasibleError(explain_no_plan(self.problem, self.contiguity))
        # Within rounding of the bound the value is the optimum, and so the bound.
        bound = self.value if self.proven else self.bound
        return Result(
            tuple(self.best),
            self.value,
            bound,
            self.bound_by,
            self.strategy,
            perf_counter() - self.began,
            tuple(self.history),
        )
