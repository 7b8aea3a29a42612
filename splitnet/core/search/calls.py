"""Search for a low single-sample latency: one call per accelerator and a host pool."""

from collections.abc import Callable, Iterator, Sequence
from math import inf, log
from random import Random

from splitnet.core.search.call_chain import chain_calls
from splitnet.core.search.call_graph import CallGraph, CallState, coarsen_calls
from splitnet.core.search.clock import Budget
from splitnet.core.search.orders import depth_first, frontier, fuse_cycles
from splitnet.core.search.problem import Problem
from splitnet.core.search.recombine import recombine

__all__ = ["anneal_calls", "search_calls"]

STRIDE = 16
NEAR = 0.6
TO_HOST = 0.15
ELITE = 5
CHAIN_SHARE = 0.25
CYCLE_SHARE = 0.03
LONGEST_CYCLE = 0.3
RECOMBINED = 0.5
CLUSTERS = (30, 400)
HOTS = (0.02, 0.006, 0.002)
LONGEST_ORDER = 1000
FEWEST_BLOCKS = 60
CHAIN_SECONDS = 1e-6
EDGE_SECONDS = 6e-5
STEPS_PER_CHAIN = 5000
Report = Callable[[Sequence[int], str], float]


def anneal_calls(
    graph: CallGraph,
    start: Sequence[int],
    budget: Budget,
    random: Random,
    *,
    hot: float = 0.02,
    cold: float = 0.0005,
    weight: float = 0.02,
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
            extra = calls.move(group, there)
            rest = weight * (total + extra)
            ceiling = cost - scale * log(1.0 - draw())
            value = calls.latency(ceiling - rest)
            if value + rest <= ceiling and value < inf:
                cost, total = value + rest, total + extra
                if value < best * (1 - 1e-12):
                    best, best_plan = value, list(device)
            else:
                calls.move(group, here)
        budget.spend(STRIDE * 8)
    return best, best_plan


def search_calls(
    problem: Problem, budget: Budget, random: Random, report: Report
) -> None:
    """Cut many orders into calls, then anneal clusters of the best plans in cycles.

    Objective: call latency; plans with one call per accelerator. `report` judges every
    plan by the exact latency and is infinite for one that does not fit. No guarantee.
    """
    fused, cluster = fuse_cycles(problem)
    node_groups = [cluster[group] for group in problem.nodes.group]
    elite: list[tuple[float, list[int]]] = []

    def keep(plan: Sequence[int], name: str) -> None:
        value = report([plan[owner] for owner in cluster], name)
        if value < inf and all(abs(value - v) > 1e-9 * value for v, _ in elite):
            elite.append((value, list(plan)))
            elite.sort(key=lambda row: row[0])
            del elite[ELITE:]

    room = max((d.capacity_bytes for d in fused.devices if not d.pooled), default=inf)
    length = LONGEST_ORDER
    if not budget.counts_steps:
        length = min(length, int((budget.usable * CHAIN_SHARE / CHAIN_SECONDS) ** 0.5))
    affordable = budget.counts_steps or budget.usable > EDGE_SECONDS * fused.group_count
    if length >= min(FEWEST_BLOCKS, fused.group_count) and affordable:
        part = budget.slice(CHAIN_SHARE)
        short, owner = fused, list(range(fused.group_count))
        if fused.group_count > length:
            same = [0] * fused.group_count
            short, owner = coarsen_calls(fused, length, random, room, keep=same)
        node_short = [owner[group] for group in node_groups]
        for order in _orders(short, random):
            if short.group_count > LONGEST_ORDER:
                break
            before = part.left
            plan = chain_calls(short, order, node_short, problem)
            budget.spend(STEPS_PER_CHAIN)
            if plan is not None:
                keep([plan[index] for index in owner], "chain of calls")
            if part.left <= before - part.left:
                break
    if not elite:
        host = [i for i, d in enumerate(fused.devices) if d.pooled]
        for device in host[:1] or range(len(fused.devices)):
            keep([device] * fused.group_count, "single device")
    whole = budget.left
    low, high = CLUSTERS
    high = max(2 * low, min(high, fused.group_count))
    least = 0.0 if budget.counts_steps else EDGE_SECONDS * fused.group_count
    cycle = whole * CYCLE_SHARE
    if not budget.counts_steps:
        cycle = min(cycle, max(LONGEST_CYCLE, 2 * least))
    while elite and budget.usable > least:
        plan = elite[int(random.random() ** 2 * len(elite))][1]
        if len(elite) > 1 and random.random() < RECOMBINED:
            plan = _child(fused, [row[1] for row in elite], random) or plan
        target = int(low * (high / low) ** random.random())
        coarse, owner = coarsen_calls(fused, target, random, room, keep=plan)
        start = [0] * coarse.group_count
        for group, index in enumerate(owner):
            start[index] = plan[group]
        graph = CallGraph(coarse, problem, [owner[group] for group in node_groups])
        part = budget.limited(cycle)
        found = anneal_calls(graph, start, part, random, hot=random.choice(HOTS))[1]
        keep([found[index] for index in owner], "multilevel calls")


def _child(
    problem: Problem, plans: Sequence[Sequence[int]], random: Random
) -> list[int] | None:
    """Join two of the plans at a random cut of a random order."""
    left, right = random.sample(range(len(plans)), 2)
    order = depth_first(problem, random, backward=random.random() < 0.5)
    cut = random.randrange(1, max(2, len(order)))
    return recombine(problem, plans[left], plans[right], order, cut)


def _orders(problem: Problem, random: Random) -> Iterator[list[int]]:
    """Yield topological orders without end, the plain ones first."""
    yield depth_first(problem)
    yield depth_first(problem, backward=True)
    while True:
        yield depth_first(problem, random, backward=random.random() < 0.5)
        noise = random.choice((0.0, 0.3, 1.0, 3.0))
        yield frontier(problem, random, noise=noise)
        yield depth_first(problem, random, backward=random.random() < 0.5)
