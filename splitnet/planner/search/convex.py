"""Search over convex sets: no path of forward nodes leaves a device and comes back.

A pipeline is convex, but convex devices may also wait for each other in turns:

    device 0    a     d            a -> b, c -> d
    device 1    b     c            no path joins a and d, or b and c

What lies between a set of nodes is what it reaches and what reaches it, so that a test
costs a few operations on sets of bits.
"""

from collections.abc import Callable, Sequence
from random import Random

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.elite import Elite
from splitnet.planner.search.energy import Energy
from splitnet.planner.search.latency import topological
from splitnet.planner.search.orders import depth_first
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.state import Fixed, State

__all__ = ["Reach", "anneal_convex", "search_convex"]

STRIDE = 128
NEAR = 0.7
SWAPS = 0.2
FRESH = 0.2
ELITE = 4
RUN_SHARE = 0.1
HOTS = (1.0, 0.3, 0.1, 0.03)
Report = Callable[[Sequence[int], str], float]


class Reach:
    """Which forward nodes each group has, is reached from and reaches, as bits."""

    __slots__ = ("above", "below", "nodes")

    def __init__(self, problem: Problem) -> None:
        """Follow all paths; O(nodes x edges) bits."""
        nodes = problem.nodes
        order = [node for node in topological(problem) if not nodes.backward[node]]
        above, below = [0] * len(nodes.group), [0] * len(nodes.group)
        for node in order:
            for source in nodes.predecessors[node]:
                if not nodes.backward[source]:
                    above[node] |= above[source] | 1 << source
        for node in reversed(order):
            for target in nodes.successors[node]:
                if not nodes.backward[target]:
                    below[node] |= below[target] | 1 << target
        count = problem.group_count
        self.nodes, self.above, self.below = [0] * count, [0] * count, [0] * count
        for node in order:
            group = nodes.group[node]
            self.nodes[group] |= 1 << node
            self.above[group] |= above[node]
            self.below[group] |= below[node]

    def is_convex(self, groups: Sequence[int]) -> bool:
        """Whether no path leaves these groups and comes back; O(groups) set unions."""
        nodes = above = below = 0
        for group in groups:
            nodes |= self.nodes[group]
            above |= self.above[group]
            below |= self.below[group]
        return not above & below & ~nodes


def anneal_convex(
    reach: Reach,
    fixed: Fixed,
    start: Sequence[int],
    budget: Budget,
    random: Random,
    *,
    hot: float = 0.3,
    cold: float = 0.002,
    power: float = 12.0,
) -> list[int]:
    """Anneal the busiest device over plans whose devices are all convex.

    Energy and temperatures as in `anneal`; a move that would be taken is refused if it
    leaves the old or the new device not convex. `start` must be convex. Returns the
    best plan seen. A proposal is O(pins of a group), a move O(groups) set unions. No
    guarantee.
    """
    state = State(fixed, start)
    load, device, used = state.load, state.device, state.used
    members: list[dict[int, None]] = [{} for _ in range(fixed.devices)]
    for group, here in enumerate(device):
        members[here][group] = None
    best, best_plan = max(load), list(device)
    movable = [g for g in range(fixed.groups) if len(fixed.allowed[g]) > 1]
    while movable and (spent := budget.fraction) < 1.0:
        energy = Energy(load, power, hot * (cold / hot) ** spent)
        for _ in range(STRIDE):
            group, other = movable[int(random.random() * len(movable))], -1
            here, near = device[group], fixed.neighbors[group]
            row = fixed.allowed[group]
            there = row[int(random.random() * len(row))]
            if random.random() < SWAPS:
                other = movable[int(random.random() * len(movable))]
                there = device[other]
            elif near and random.random() < NEAR:
                there = device[near[int(random.random() * len(near))]]
            if here == there or there not in row:
                continue
            extra = fixed.size[group] - (fixed.size[other] if other >= 0 else 0.0)
            if used[there] + extra > fixed.capacity[there]:
                continue
            if used[here] - extra > fixed.capacity[here]:
                continue
            if other >= 0 and here not in fixed.allowed[other]:
                continue
            before = load[here], load[there]
            state.move(group, there, *state.change(group, there))
            if other >= 0:
                state.move(other, here, *state.change(other, here))
            loads = load[here], load[there]
            refused = not energy.takes(here, there, loads, random)
            if not refused:
                _exchange(members, group, other, here, there)
                if not all(reach.is_convex(list(members[d])) for d in (here, there)):
                    _exchange(members, group, other, there, here)
                    refused = True
            if refused:
                state.move(group, here, *state.change(group, here))
                if other >= 0:
                    state.move(other, there, *state.change(other, there))
                load[here], load[there] = before
                continue
            energy.settle(here, there, loads)
            if load[here] < best and load[there] < best:
                top = max(load)
                if top < best * (1 - 1e-9):
                    best, best_plan = top, list(device)
        budget.spend(STRIDE)
    return best_plan


def _exchange(
    members: Sequence[dict[int, None]], group: int, other: int, here: int, there: int
) -> None:
    """Take `group` from `here` to `there`, and `other`, if there is one, back."""
    del members[here][group]
    members[there][group] = None
    if other >= 0:
        del members[there][other]
        members[here][other] = None


def search_convex(
    problem: Problem,
    start: Sequence[int] | None,
    budget: Budget,
    random: Random,
    report: Report,
) -> None:
    """Anneal from the best convex plans, hotter and cooler, until the budget is spent.

    Objective: max-load over convex plans; `report` judges every plan and is infinite
    for one that does not fit. No guarantee.
    """
    reach, fixed = Reach(problem), Fixed(problem)
    while start is None and not budget.spent:
        start = _fill(problem, reach, depth_first(problem, random), random)
        budget.spend(STRIDE)
    if start is None:
        return
    elite = Elite(ELITE)
    elite.add(report(start, "convex"), start)
    share = budget.left * RUN_SHARE
    while elite.rows and not budget.spent:
        plan = elite.draw(random)
        if random.random() < FRESH:
            order = depth_first(problem, random)
            plan = _fill(problem, reach, order, random) or plan
        part = budget.limited(share)
        hot = random.choice(HOTS)
        plan = anneal_convex(reach, fixed, plan, part, random, hot=hot)
        elite.add(report(plan, "annealed convex sets"), plan)


def _fill(
    problem: Problem, reach: Reach, order: Sequence[int], random: Random
) -> list[int] | None:
    """Put one group after the other on some device that has room and stays convex."""
    free = [d.capacity_bytes * (1 + 1e-13) for d in problem.devices]
    members: list[list[int]] = [[] for _ in free]
    plan = [-1] * problem.group_count
    for group in order:
        size = problem.size_bytes[group]
        for device in random.sample(
            problem.allowed[group], len(problem.allowed[group])
        ):
            inside = members[device]
            if size <= free[device] and reach.is_convex([*inside, group]):
                inside.append(group)
                free[device] -= size
                plan[group] = device
                break
        else:
            return None
    return plan
