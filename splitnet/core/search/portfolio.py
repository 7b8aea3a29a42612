"""Choose and run strategies until the time is up; always keep the best plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from time import perf_counter

from splitnet.core.errors import InfeasibleError
from splitnet.core.search import baselines, bounds
from splitnet.core.search.calls import search_calls
from splitnet.core.search.chain import (
    MAX_BLOCKS,
    affordable_blocks,
    chain_partition,
)
from splitnet.core.search.clock import Budget
from splitnet.core.search.exhaustive import exhaustive, plan_count
from splitnet.core.search.feasibility import explain_infeasible, pack
from splitnet.core.search.judge import Judge
from splitnet.core.search.latency import call_latency, is_convex, is_pipeline
from splitnet.core.search.multilevel import evolve
from splitnet.core.search.orders import depth_first, frontier, fuse_cycles
from splitnet.core.search.pipeline import iterated_chains
from splitnet.core.search.problem import Problem, check, device_classes
from splitnet.core.search.program import integer_program, program_size

__all__ = ["CONTIGUITIES", "OBJECTIVES", "Progress", "Result", "search"]

OBJECTIVES = ("throughput", "call_latency")
CONTIGUITIES = ("free", "convex", "pipeline")
EXHAUSTIVE_PLANS = 3e5
EXHAUSTIVE_CALLS = 1e5
OPTIMAL = 1e-9
CHAIN_SHARE = 0.5
FEWEST_BLOCKS = 60
SECONDS_PER_GROUP = 4e-6
PROGRAM_RATE = 250.0
PROGRAM_START = 0.6
PROGRAM_SHARE = 0.6
PROGRAM_TOLERANCE = 1e-6


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


def search(
    problem: Problem,
    objective: str = "throughput",
    contiguity: str = "free",
    *,
    time_limit: float = 5.0,
    seed: int = 0,
    iterations: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Return the best plan found within `time_limit` seconds, and a proven bound.

    Args:
        problem: What to place, and where.
        objective: `throughput` (the busiest device) or `call_latency` (one sample).
        contiguity: `free`, `convex` (forward nodes of a device are convex) or
            `pipeline` (forward edges never go back in some order of the devices).
        time_limit: Seconds on the wall.
        seed: Fixes every random choice.
        iterations: A budget of steps that replaces the clock: same seed and budget,
            same plan, on any machine.
        on_progress: Called after every improvement.

    Raises:
        InfeasibleError: no plan fits; the message says why and what would help.
        ValueError: an unknown objective or contiguity.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} (must be one of {OBJECTIVES})")
    if contiguity not in CONTIGUITIES:
        raise ValueError(f"contiguity {contiguity!r} (must be one of {CONTIGUITIES})")
    reason = explain_infeasible(problem)
    if reason:
        raise InfeasibleError(reason)
    problem = _with_room(problem)
    run = _Run(problem, objective, contiguity, on_progress)
    budget = Budget(time_limit, iterations=iterations)
    random = Random(seed)
    try:
        run.simple(budget)
        run.bounds(budget)
        if not run.proven:
            _improve(run, budget, random)
    except KeyboardInterrupt:
        if run.best is None:
            raise
    except _Proven:
        pass
    return run.result()


def _with_room(problem: Problem) -> Problem:
    """Drop devices that are too small for a group from its domain."""
    capacity = [device.capacity_bytes * (1 + 1e-12) for device in problem.devices]
    smallest = min(capacity)
    if max(problem.size_bytes, default=0.0) <= smallest:
        return problem
    allowed = list(problem.allowed)
    for group, size in enumerate(problem.size_bytes):
        if size > smallest:
            allowed[group] = tuple(d for d in allowed[group] if size <= capacity[d])
    return replace(problem, allowed=tuple(allowed))


class _Proven(Exception):  # noqa: N818
    """The value has met the bound: nothing is left to find."""


class _Run:
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
        """Judge a plan, keep it if it is the best; raise `_Proven` at the bound."""
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
                raise _Proven
        return value

    def raise_bound(self, bound: tuple[float, str]) -> None:
        """Keep the better bound."""
        if bound[0] > self.bound:
            self.bound, self.bound_by = bound

    def affords(self, budget: Budget, passes: float) -> bool:
        """Whether so many passes over all groups fit in what is left."""
        need = passes * SECONDS_PER_GROUP * self.problem.group_count
        return budget.counts_steps or budget.left > need

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
        for name, passes, rule in rules:
            if self.best is not None and not self.affords(budget, passes + judging):
                continue
            found = rule()
            if found is not None:
                self.offer_plan(found, name)

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
            raise InfeasibleError(
                "no plan was found that fits every memory and pin"
                f" and is {self.contiguity!r}; give more memory, one more device, or"
                " more time"
            )
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


def _exhaust(run: _Run, budget: Budget) -> bool:
    """Try everything if there is little enough; whether the optimum is now known."""
    busiest = run.objective == "throughput"
    if plan_count(run.problem) > (EXHAUSTIVE_PLANS if busiest else EXHAUSTIVE_CALLS):
        return False
    _, plan, complete = exhaustive(
        run.problem, run.value_of, budget.slice(0.5), busiest=busiest, known=run.value
    )
    if plan is not None:
        run.offer_plan(plan, "exhaustive")
    if complete:
        run.raise_bound((run.value, "exhaustion"))
    return complete


def _improve(run: _Run, budget: Budget, random: Random) -> None:
    if _exhaust(run, budget):
        return
    if run.objective == "throughput":
        _throughput(run, budget, random)
    else:
        search_calls(run.problem, budget, random, run.offer_plan)


def _throughput(run: _Run, budget: Budget, random: Random) -> None:
    problem = run.problem
    if run.best is None:
        plan = pack(problem, budget)
        if plan is not None:
            run.offer_plan(plan, "packing")
    if not run.affords(budget, 5.0):
        return
    fused, cluster = fuse_cycles(problem)

    def report(plan: Sequence[int], name: str) -> float:
        return run.offer_plan([plan[owner] for owner in cluster], name)

    chains: list[list[int]] = []
    makers: list[Callable[[], list[int]]] = [
        lambda: depth_first(fused),
        lambda: depth_first(fused, backward=True),
        lambda: frontier(fused, random, noise=0.0),
    ]
    for make in makers:
        blocks = MAX_BLOCKS
        if not budget.counts_steps:
            blocks = affordable_blocks(fused, budget.left * CHAIN_SHARE)
        if blocks < min(FEWEST_BLOCKS, fused.group_count):
            break
        found = chain_partition(fused, make(), most_blocks=blocks)
        if found is not None:
            report(found[1], "chain")
            chains.append(found[1])
    if run.contiguity != "free":
        iterated_chains(fused, chains, budget, random, report)
        return
    starts = [(run.value, run.best)] if run.best is not None else []
    if not budget.counts_steps and program_size(problem) <= budget.left * PROGRAM_RATE:
        evolve(problem, starts, budget.slice(PROGRAM_START), random, run.offer_plan)
        _solve(run, budget)
        starts = [(run.value, run.best)] if run.best is not None else []
    evolve(problem, starts, budget, random, run.offer_plan)


def _solve(run: _Run, budget: Budget) -> None:
    """Spend most of what is left on the integer program, for its bound."""
    seconds = budget.left * PROGRAM_SHARE
    _, plan, bound = integer_program(run.problem, seconds, known=run.value)
    # HiGHS stops at its own tolerance, so its bound may be above by as much.
    run.raise_bound((bound * (1 - PROGRAM_TOLERANCE), "integer program"))
    if plan is not None:
        run.offer_plan(plan, "integer program")
    if run.proven:
        raise _Proven
