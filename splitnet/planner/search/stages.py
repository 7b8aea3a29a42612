"""Annealing of a pipeline: groups move between stages without crossing their edges.

stage      0        1        2
group    a, b  ->  c, d  ->  e        b may move to 1 if all its successors
are on stage 1 or later
"""

from collections.abc import Sequence
from random import Random

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.energy import Energy
from splitnet.planner.search.orders import ancestry
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.state import Fixed, State

__all__ = ["anneal_stages"]

STRIDE = 128


def anneal_stages(
    problem: Problem,
    fixed: Fixed,
    start: Sequence[int],
    stage: Sequence[int],
    budget: Budget,
    random: Random,
    *,
    hot: float = 0.05,
    cold: float = 0.001,
    power: float = 12.0,
) -> list[int]:
    """Anneal the busiest device over plans whose devices keep the order `stage`.

    `stage[d]` numbers the devices so that `start` never goes back. Energy and
    temperatures as in `anneal`. Groups move to any stage between those of their
    forward neighbours, so that a pipeline stays one. Returns the best plan seen. A
    proposal is O(edges and pins of a group). No guarantee.
    """
    before, after = ancestry(problem)
    line = sorted(range(len(stage)), key=lambda d: stage[d])
    state = State(fixed, start)
    load, device, used = state.load, state.device, state.used
    best, best_plan = max(load), list(device)
    movable = [g for g in range(fixed.groups) if len(fixed.allowed[g]) > 1]
    while movable and (spent := budget.fraction) < 1.0:
        energy = Energy(load, power, hot * (cold / hot) ** spent)
        for _ in range(STRIDE):
            group = movable[int(random.random() * len(movable))]
            here = device[group]
            low = max([stage[device[g]] for g in before[group]], default=0)
            high = min([stage[device[g]] for g in after[group]], default=len(line) - 1)
            if low >= high:
                continue
            there = line[low + int(random.random() * (high - low + 1))]
            if here == there or there not in fixed.allowed[group]:
                continue
            if used[there] + fixed.size[group] > fixed.capacity[there]:
                continue
            out, into = state.change(group, there)
            loads = load[here] + out, load[there] + into
            if not energy.takes(here, there, loads, random):
                continue
            energy.settle(here, there, loads)
            state.move(group, there, out, into)
            if load[here] < best and load[there] < best:
                top = max(load)
                if top < best * (1 - 1e-9):
                    best, best_plan = top, list(device)
        budget.spend(STRIDE)
    return best_plan
