"""Simulated annealing of the busiest device (max-load, no contiguity)."""

from collections.abc import Sequence
from math import exp, inf
from random import Random

from splitnet.core.search.clock import Budget
from splitnet.core.search.state import Fixed, State

__all__ = ["anneal"]

STRIDE = 256
POWER = 12.0


def anneal(
    fixed: Fixed,
    start: Sequence[int],
    budget: Budget,
    random: Random,
    *,
    hot: float = 0.3,
    cold: float = 0.002,
    power: float = POWER,
) -> tuple[float, list[int]]:
    state = State(fixed, start)
    load, device, near, count = state.load, state.device, state.near, state.count
    used = state.used
    width = fixed.devices
    times, totals, wides, sizes = fixed.time, fixed.total, fixed.wide, fixed.size
    pairs, neighbors, allowed = fixed.pairs, fixed.neighbors, fixed.allowed
    capacity = fixed.capacity
    best, best_device = max(load), list(device)
    groups = fixed.groups
    movable = [g for g in range(groups) if len(allowed[g]) > 1]
    if not movable:
        return best, best_device
    draw = random.random
    number = len(movable)
    steps = accepted = 0
    while True:
        f = budget.fraction
        if f >= 1.0:
            break
        temperature = hot * (cold / hot) ** f
        scale = 1.0 / max(load)
        energy = [(x * scale) ** power for x in load]
        norm = sum(energy)
        for _ in range(STRIDE):
            g = movable[int(draw() * number)]
            a = device[g]
            ns = neighbors[g]
            if ns and draw() < 0.7:
                b = device[ns[int(draw() * len(ns))]]
                if b == a:
                    row = allowed[g]
                    b = row[int(draw() * len(row))]
            else:
                row = allowed[g]
                b = row[int(draw() * len(row))]
            if a == b or used[b] + sizes[g] > capacity[b] or b not in allowed[g]:
                continue
            base = g * width
            time, total = times[g], totals[g]
            old = 2.0 * near[base + a] - total[a] - time[a]
            new = total[b] - 2.0 * near[base + b] + time[b]
            for offset, producer, cost, consumers, produces in wides[g]:
                at_old, at_new = count[offset + a], count[offset + b]
                if produces:
                    if at_old == 0:
                        old -= cost[a]
                    elif at_old == consumers:
                        old += cost[a]
                    if at_new == 0:
                        new += cost[b]
                    elif at_new == consumers:
                        new -= cost[b]
                    continue
                home = device[producer]
                if home == a:
                    if at_old == consumers:
                        old += cost[a]
                elif at_old == 1:
                    old -= cost[a]
                if home == b:
                    if at_new + 1 == consumers:
                        new -= cost[b]
                elif at_new == 0:
                    new += cost[b]
            ea = (load[a] + old) * scale
            eb = (load[b] + new) * scale
            ea = ea**power if ea > 0 else 0.0
            eb = eb**power if eb > 0 else 0.0
            delta = ea + eb - energy[a] - energy[b]
            if delta <= 0 or (delta < 20 * temperature * norm and draw() < exp(-delta / (temperature * norm))):
                accepted += 1
                energy[a], energy[b] = ea, eb
                norm += delta
                device[g] = b
                load[a] += old
                load[b] += new
                size = sizes[g]
                used[a] -= size
                used[b] += size
                for other, cost in pairs[g]:
                    base = other * width
                    near[base + a] -= cost[a]
                    near[base + b] += cost[b]
                for offset, _, _, _, produces in wides[g]:
                    if not produces:
                        count[offset + a] -= 1
                        count[offset + b] += 1
                if load[a] < best and load[b] < best:
                    top = max(load)
                    if top < best * (1 - 1e-9):
                        best, best_device = top, list(device)
        steps += STRIDE
        budget.spend(STRIDE)
    return best, best_device
