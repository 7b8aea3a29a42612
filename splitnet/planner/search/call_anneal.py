"""Annealing of calls: one cluster moves after the other."""

from collections.abc import Callable, Sequence
from math import inf, log
from random import Random

from splitnet.planner.search.call_graph import CallGraph, CallState
from splitnet.planner.search.clock import Budget

__all__ = ["anneal_calls"]

STRIDE = 16
NEAR = 0.6
TO_HOST = 0.15


def anneal_calls(
    graph: CallGraph,
    start: Sequence[int],
    budget: Budget,
    random: Random,
    *,
    hot: float = 0.02,
    cold: float = 0.0005,
    weight: float = 0.02,
    keeps: Callable[[Sequence[int]], bool] = lambda _: True,
) -> tuple[float, list[int]]:
    """Anneal the latency, with a small weight on the sum of all loads.

    The sum guides where the longest path alone is flat. Temperatures are fractions of
    the best latency. One proposal is O(atoms + edges). No guarantee. Source:
    Kirkpatrick et al. (1983).
    """
    fixed, pool = graph.fixed, graph.pool
    calls = CallState(graph, start)
    state = calls.state
    value = calls.latency()
    best, best_plan = value, list(state.device)
    movable = [g for g in range(fixed.groups) if len(fixed.allowed[g]) > 1]
    if not movable:
        return best, best_plan
    draw, device, number = random.random, state.device, len(movable)
    total = sum(state.load)
    cost = value + weight * total
    calls.settle()
    while not budget.spent:
        scale = hot * (cold / hot) ** budget.fraction * min(best, 1e300)
        for _ in range(STRIDE):
            group = movable[int(draw() * number)]
            here, kind, near = device[group], draw(), fixed.neighbors[group]
            if near and kind < NEAR:
                there = device[near[int(draw() * len(near))]]
            elif kind < NEAR + TO_HOST and pool >= 0:
                there = pool
            else:
                row = fixed.allowed[group]
                there = row[int(draw() * len(row))]
            if here == there or not state.fits(group, there):
                continue
            if calls.encloses(group, there):
                continue
            out, into = state.change(group, there)
            rest = weight * (total + out + into)
            ceiling = cost - scale * log(1.0 - draw()) - rest
            if calls.forecast(group, there, out, into) > ceiling:
                continue
            calls.move(group, there, out, into)
            value = calls.latency(ceiling)
            if value < inf:
                cost, total = value + rest, total + out + into
                calls.settle()
                if value < best * (1 - 1e-12) and keeps(device):
                    best, best_plan = value, list(device)
            else:
                calls.move(group, here, *state.change(group, here))
        budget.spend(STRIDE * 8)
    return best, best_plan
