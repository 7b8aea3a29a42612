"""Choose and run strategies until the time is up; always keep the best plan."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from splitnet.core.errors import InfeasibleError
from splitnet.planner.search.calls import search_calls
from splitnet.planner.search.chain import (
    MAX_BLOCKS,
    affordable_blocks,
    chain_partition,
    state_count,
)
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.convex import search_convex
from splitnet.planner.search.exhaustive import exhaustive, plan_count
from splitnet.planner.search.feasibility import explain_infeasible, pack
from splitnet.planner.search.ideals import (
    MAX_STATES,
    ideal_partition,
    ideal_seconds,
    ideals_of,
)
from splitnet.planner.search.multilevel import evolve
from splitnet.planner.search.orders import depth_first, frontier, fuse_cycles
from splitnet.planner.search.pipeline import iterated_chains
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.program import integer_program, program_size
from splitnet.planner.search.run import Progress, Proven, Result, Run

__all__ = ["CONTIGUITIES", "OBJECTIVES", "Progress", "Result", "search"]

OBJECTIVES = ("throughput", "call_latency")
CONTIGUITIES = ("free", "convex", "pipeline")
EXHAUSTIVE_PLANS = 3e5
EXHAUSTIVE_CALLS = 1e5
CHAIN_SHARE = 0.5
FEWEST_BLOCKS = 60
PROGRAM_RATE = 250.0
PROGRAM_START = 0.6
PROGRAM_SHARE = 0.6
PROGRAM_TOLERANCE = 1e-6
MOST_IDEALS = 4000
MOST_IDEALS_IN_STEPS = 400
IDEAL_SHARE = 0.5
IDEAL_ROUNDING = 1e-10
STEPS_PER_IDEAL = 50
PIPELINE_SHARE = 0.5
MANY_GROUPS = 20_000
CUT_SHARE = 0.4
MOST_NODES = 5000
SECONDS_PER_NODE = 5e-5
Report = Callable[[Sequence[int], str], float]


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
    run = Run(problem, objective, contiguity, on_progress)
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
    except Proven:
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


def _exhaust(run: Run, budget: Budget) -> bool:
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


def _improve(run: Run, budget: Budget, random: Random) -> None:
    if _exhaust(run, budget):
        return
    if run.objective == "throughput":
        _throughput(run, budget, random)
    else:
        search_calls(run.problem, budget, random, run.offer_plan, run.best)


def _throughput(run: Run, budget: Budget, random: Random) -> None:
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
            blocks = affordable_blocks(fused, budget.usable * CHAIN_SHARE)
        if blocks < min(FEWEST_BLOCKS, fused.group_count):
            break
        found = chain_partition(fused, make(), most_blocks=blocks)
        if found is not None:
            report(found[1], "chain")
            chains.append(found[1])
    if run.contiguity != "free":
        _exact_pipeline(run, fused, budget, report)
        convex = run.contiguity == "convex" and len(problem.nodes.group) <= MOST_NODES
        share = PIPELINE_SHARE if convex else 1.0
        iterated_chains(fused, chains, budget.slice(share), random, report)
        least = SECONDS_PER_NODE * len(problem.nodes.group)
        if convex and (budget.counts_steps or budget.usable > least):
            search_convex(problem, run.best, budget, random, run.offer_plan)
        return
    if problem.group_count > MANY_GROUPS:
        # A cut moves thousands of groups at once, and annealing one after the other.
        iterated_chains(fused, chains, budget.slice(CUT_SHARE), random, report)
    starts = [(run.value, run.best)] if run.best is not None else []
    if not budget.counts_steps and program_size(problem) <= budget.left * PROGRAM_RATE:
        evolve(problem, starts, budget.slice(PROGRAM_START), random, run.offer_plan)
        _solve(run, budget)
        starts = [(run.value, run.best)] if run.best is not None else []
    evolve(problem, starts, budget, random, run.offer_plan)


def _exact_pipeline(run: Run, fused: Problem, budget: Budget, report: Report) -> None:
    """Find the best pipeline of all if there are few ideals, and time for them."""
    if state_count(fused) > MAX_STATES:
        return
    ideals = ideals_of(fused, MOST_IDEALS)
    if ideals is None or len(ideals) > MOST_IDEALS_IN_STEPS and budget.counts_steps:
        return
    seconds = ideal_seconds(fused, len(ideals))
    if not budget.counts_steps and seconds > IDEAL_SHARE * budget.usable:
        return
    found = ideal_partition(fused, ideals)
    budget.spend(STEPS_PER_IDEAL * len(ideals))
    if found is None:
        return
    if run.contiguity == "pipeline":
        run.raise_bound((found[0] * (1 - IDEAL_ROUNDING), "all ideals"))
    report(found[1], "all ideals")
    if run.proven:
        raise Proven


def _solve(run: Run, budget: Budget) -> None:
    """Spend most of what is left on the integer program, for its bound."""
    seconds = budget.left * PROGRAM_SHARE
    _, plan, bound = integer_program(run.problem, seconds, known=run.value)
    # HiGHS stops at its own tolerance, so its bound may be above by as much.
    run.raise_bound((bound * (1 - PROGRAM_TOLERANCE), "integer program"))
    if plan is not None:
        run.offer_plan(plan, "integer program")
    if run.proven:
        raise Proven
