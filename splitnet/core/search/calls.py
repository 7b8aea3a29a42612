"""Search for a low single-sample latency: one call per accelerator and a host pool."""

from collections.abc import Callable, Sequence
from math import inf, log
from random import Random

from splitnet.core.search.call_chain import chain_calls
from splitnet.core.search.call_graph import CallGraph, CallState
from splitnet.core.search.clock import Budget
from splitnet.core.search.orders import depth_first, frontier, fuse_cycles
from splitnet.core.search.problem import Problem, contract

__all__ = ["anneal_calls", "coarsen_calls", "search_calls"]

STRIDE = 16
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
            if near and kind < 0.6:
                there = device[near[int(draw() * len(near))]]
            elif kind < 0.75 and pool >= 0:
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


def coarsen_calls(
    problem: Problem, target: int, random: Random, *, noise: float, size_limit: float,
    limit: float, keep: Sequence[int] | None = None,
) -> tuple[Problem, list[int]]:
    """Merge along expensive edges where that cannot close a circle."""
    count = problem.group_count
    after: list[dict[int, float]] = [{} for _ in range(count)]
    before: list[dict[int, float]] = [{} for _ in range(count)]
    for a, b in problem.forward:
        after[a][b] = before[b][a] = 0.0
    for net in problem.nets:
        for c in net.consumers:
            if c in after[net.producer]:
                w = max(net.seconds) / len(net.consumers)
                after[net.producer][c] += w
                before[c][net.producer] += w
    size = list(problem.size_bytes)
    seconds = [row[0] for row in problem.seconds]
    seconds = [min(row) for row in problem.seconds]
    parent = list(range(count))
    left = count
    progress = True
    alive = [True] * count
    label = list(keep) if keep is not None else [0] * count
    while left > target and progress:
        progress = False
        rows = sorted(
            (-(w * (1 + noise * (2 * random.random() - 1))), a, b)
            for a in range(count) if alive[a]
            for b, w in after[a].items()
        )
        for _, a, b in rows:
            if left <= target:
                break
            if not alive[a] or not alive[b] or b not in after[a]:
                continue
            if len(after[a]) > 1 and len(before[b]) > 1:
                continue
            if size[a] + size[b] > size_limit or seconds[a] + seconds[b] > limit:
                continue
            if label[a] != label[b] or problem.allowed[a] != problem.allowed[b]:
                continue
            # b joins a
            alive[b] = False
            parent[b] = a
            size[a] += size[b]
            seconds[a] += seconds[b]
            del after[a][b]
            for c, w in after[b].items():
                after[a][c] = after[a].get(c, 0.0) + w
                del before[c][b]
                before[c][a] = after[a][c]
            for c, w in before[b].items():
                if c == a:
                    continue
                before[a][c] = before[a].get(c, 0.0) + w
                del after[c][b]
                after[c][a] = before[a][c]
            left -= 1
            progress = True

    def root(g: int) -> int:
        while parent[g] != g:
            g = parent[g]
        return g

    numbers: dict[int, int] = {}
    cluster = [numbers.setdefault(root(g), len(numbers)) for g in range(count)]
    return contract(problem, cluster), cluster



def search_calls(
    problem: Problem, budget: Budget, random: Random, report: Report
) -> None:
    fused, cluster = fuse_cycles(problem)
    node_groups = [cluster[group] for group in problem.nodes.group]

    def judge(plan: Sequence[int], name: str) -> float:
        return report([plan[owner] for owner in cluster], name)

    pool: list[tuple[float, list[int]]] = []
    part = budget.slice(0.15)
    count = 0
    while count < 2 or not part.spent:
        if count % 4 == 3:
            order = frontier(fused, random, noise=random.choice((0.0, 0.3, 1.0, 3.0)))
        elif count < 2:
            order = depth_first(fused, backward=count == 1)
        else:
            order = depth_first(fused, random, backward=random.random() < 0.5)
        count += 1
        plan = chain_calls(fused, order, node_groups, problem)
        budget.spend(5000)
        if plan is not None:
            _keep(pool, judge(plan, "chain of calls"), plan)
        if budget.spent:
            return
    if not pool:
        host = [i for i, d in enumerate(fused.devices) if d.pooled]
        plan = [host[0] if host else row[0] for row in fused.allowed]
        _keep(pool, judge(plan, "start"), plan)
    whole = budget.left
    room = max((d.capacity_bytes for d in fused.devices if not d.pooled), default=inf)
    low, high = 30, max(60, min(400, fused.group_count))
    while not budget.spent:
        value, plan = pool[min(int(random.random() ** 2 * len(pool)), len(pool) - 1)]
        target = int(low * (high / low) ** random.random())
        coarse, owner = coarsen_calls(
            fused, target, random, noise=0.9, size_limit=room, limit=inf, keep=plan
        )
        start = [0] * coarse.group_count
        for group, index in enumerate(owner):
            start[index] = plan[group]
        graph = CallGraph(coarse, problem, [owner[group] for group in node_groups])
        hot = random.choice(HOTS)
        _, found = anneal_calls(graph, start, budget.limited(whole * SLICE), random, hot=hot)
        found = [found[index] for index in owner]
        _keep(pool, judge(found, "multilevel calls"), found)


HOTS = (0.01, 0.003)
SLICE = 0.03
def _keep(pool: list[tuple[float, list[int]]], value: float, plan: list[int]) -> None:
    """Keep the five best plans of distinct values."""
    if value < inf and all(abs(value - v) > 1e-9 * value for v, _ in pool):
        pool.append((value, plan))
        pool.sort(key=lambda row: row[0])
        del pool[5:]
