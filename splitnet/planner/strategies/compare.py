"""Compare the strategies of a model on a cluster; nothing is searched."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from splitnet.core.plan import Plan, StrategyComparison
from splitnet.core.replication import collapse, towers_in
from splitnet.core.timeline import Execution
from splitnet.planner.evaluate import default_groups, evaluator_of
from splitnet.planner.strategies.candidates import Candidate, Trial
from splitnet.planner.strategies.placements import Space, obstacles_of

__all__ = ["compare_plan", "compared", "executed"]


def compare_plan(plan: Plan) -> StrategyComparison:
    """Compare the ways to run a plan's model on its cluster, with the plan's costs.

    Nothing is searched: a pipeline keeps the plan's devices, or cuts the calls in their
    order into stages of even work. Towers are of the whole model, over the first two,
    three ... GPUs (where there is one at most, the devices beside the first), with
    weights on the CPU or on the first of them.
    """
    whole = collapse(plan.graph)
    mine = replace(evaluator_of(plan), objective="latency")
    free = replace(mine, graph=whole, execution=Execution())
    space = Space(free, default_groups(whole, plan.cluster), obstacles_of(whole))
    own = Candidate(mine, plan.device_of, mine.evaluate(plan.device_of))
    known = (replace(mine, execution=Execution()), plan.device_of)
    others = [c for c in Trial(space).candidates([known]) if c.kind != "placement"]
    kind = "towers and branches" if towers_in(plan.graph) else "branches"
    used = ", ".join(own.devices[:6])
    rows = [
        own.row("plan", f"emit(source, plan): {kind} on {used}"),
        *(one.row() for one in _best_of_each_kind(others)),
    ]
    return StrategyComparison(
        tuple(sorted(rows, key=lambda s: (not s.fits, s.seconds)))
    )


def compared(
    found: Sequence[Candidate], chosen: Candidate | None
) -> StrategyComparison:
    """The best candidate of each kind; of the chosen one's kind, that one."""
    best = [
        chosen if chosen is not None and one.kind == chosen.kind else one
        for one in _best_of_each_kind(found)
    ]
    rows = sorted((one.row() for one in best), key=lambda s: (not s.fits, s.seconds))
    return StrategyComparison(tuple(rows), chosen.kind if chosen is not None else "")


def _best_of_each_kind(found: Iterable[Candidate]) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for one in sorted(found, key=lambda c: (not c.fits, c.seconds)):
        best.setdefault(one.kind, one)
    return list(best.values())


def executed(plan: Plan, execution: Execution) -> Plan:
    """The plan run another way, simulated anew; micro-batches have no lower bound."""
    if execution == plan.execution:
        return plan
    made = replace(evaluator_of(plan), execution=execution).plan(plan.placements)
    return replace(
        plan,
        execution=execution,
        memory=made.memory,
        timeline=made.timeline,
        value=made.value,
        bound=min(plan.bound, made.value) if execution.microbatches == 1 else 0.0,
    )
