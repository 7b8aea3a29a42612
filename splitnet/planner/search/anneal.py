"""Simulated annealing of the busiest device (max-load, no contiguity)."""

from collections.abc import Sequence
from math import exp
from random import Random

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.state import Fixed, State

__all__ = ["anneal"]

STRIDE = 256
NEAR = 0.7
FROZEN = 20.0


def anneal(
    fixed: Fixed,
    start: Sequence[int],
    budget: Budget,
    random: Random,
    *,
    hot: float = 0.3,
    cold: float = 0.002,
    power: float = 12.0,
    swaps: float = 0.2,
    movable: Sequence[int] | None = None,
    stray: float = 1.0,
) -> tuple[float, list[int]]:
    """Move and swap groups at a falling temperature; return the best plan seen.

    The energy is the sum of (load / busiest load) ** power: close to the busiest device
    alone, yet every move that relieves a busy device counts. Temperatures are fractions
    of the energy, `hot` falling to `cold` over the budget. Moves go mostly to the
    devices of neighbours; a share `swaps` exchanges two groups, which is what packing
    needs, if they share no net. Where the neighbour drawn is on the same device, a
    share `stray` goes anywhere. Only `movable` groups move, if given. Moves never break
    memory or pins. A proposal is O(pins of the group's nets). No guarantee. Source:
    Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983); moves
    as in Johnson et al. (1989).
    """
    state = State(fixed, start)
    best, best_plan = max(state.load), list(state.device)
    able = range(fixed.groups) if movable is None else movable
    movable = [g for g in able if len(fixed.allowed[g]) > 1]
    if not movable:
        return best, best_plan
    while (spent := budget.fraction) < 1.0:
        heat = hot * (cold / hot) ** spent
        best, best_plan = _stride(
            state, movable, random, heat, power, swaps, stray, best, best_plan
        )
        budget.spend(STRIDE)
    return best, best_plan


def _stride(
    state: State,
    movable: Sequence[int],
    random: Random,
    heat: float,
    power: float,
    swaps: float,
    stray: float,
    best: float,
    best_plan: list[int],
) -> tuple[float, list[int]]:
    """Make `STRIDE` proposals at one temperature."""
    fixed, load, device, used = state.fixed, state.load, state.device, state.used
    allowed, capacity, size = fixed.allowed, fixed.capacity, fixed.size
    change, move, draw, number = state.change, state.move, random.random, len(movable)
    scale = 1.0 / (max(load) or 1.0)
    energy = [(x * scale) ** power if x > 0 else 0.0 for x in load]
    heat *= sum(energy) or 1.0
    for _ in range(STRIDE):
        group = movable[int(draw() * number)]
        here, other = device[group], -1
        if draw() < swaps:
            other = movable[int(draw() * number)]
            there = device[other]
            if here == there or there not in allowed[group]:
                continue
            extra = size[group] - size[other]
            if used[there] + extra > capacity[there] or here not in allowed[other]:
                continue
            if used[here] - extra > capacity[here]:
                continue
            if fixed.meet(group, other):
                continue
            out, into = change(group, there)
            loss, gain = change(other, here)
            left = max(0.0, load[here] + out + gain) * scale
            right = max(0.0, load[there] + into + loss) * scale
        else:
            there = here
            near = fixed.neighbors[group]
            if near and draw() < NEAR:
                there = device[near[int(draw() * len(near))]]
            if here == there:
                if stray < 1.0 and draw() >= stray:
                    continue
                row = allowed[group]
                there = row[int(draw() * len(row))]
            if here == there or used[there] + size[group] > capacity[there]:
                continue
            if there not in allowed[group]:
                continue
            out, into = change(group, there)
            # Loads may be an ulp below zero after many moves.
            left = max(0.0, load[here] + out) * scale
            right = max(0.0, load[there] + into) * scale
        left, right = left**power, right**power
        rise = left + right - energy[here] - energy[there]
        if rise > 0 and (rise > FROZEN * heat or draw() >= exp(-rise / heat)):
            continue
        energy[here], energy[there] = left, right
        move(group, there, out, into)
        if other >= 0:
            move(other, here, loss, gain)
        if load[here] < best and load[there] < best:
            top = max(load)
            if top < best * (1 - 1e-9):
                best, best_plan = top, list(device)
    return best, best_plan
