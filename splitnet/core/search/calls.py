"""Search for a low single-sample latency: one call per accelerator and a host pool."""

from collections.abc import Sequence
from math import exp, inf
from random import Random

import numpy as np

from splitnet.core.search.chain import interval_loads
from splitnet.core.search.clock import Budget
from splitnet.core.search.problem import Problem, contract, device_classes
from splitnet.core.search.state import Fixed, State

__all__ = ["CallGraph", "anneal_calls", "chain_calls", "coarsen_calls"]


def chain_calls(problem: Problem, order: Sequence[int]) -> list[int] | None:
    """Cut `order` into calls, with host work between them, of least total time.

    Optimal over plans that run the intervals one after the other; O(devices x groups^2).
    """
    count = len(order)
    table = interval_loads(problem, order, list(range(count + 1)))
    pooled = [i for i, d in enumerate(problem.devices) if d.pooled]
    classes: list[list[int]] = []
    owner = device_classes(problem)
    for device, number in enumerate(owner):
        while len(classes) <= number:
            classes.append([])
        if not problem.devices[device].pooled:
            classes[number].append(device)
    line = [device for row in classes for device in row]
    host = [inf] * count
    if pooled:
        host = [float(table[pooled[0]][i, i + 1]) for i in range(count)]
    first = np.full(count + 1, inf)
    first[0] = 0.0
    rows = [_with_host(first, host)]
    for device in line:
        load = table[device]
        best = np.minimum(rows[-1], (rows[-1][:, None] + load).min(axis=0))
        rows.append(_with_host(best, host))
    if rows[-1][-1] == inf:
        return None
    result = [-1] * problem.group_count
    stop, index = count, len(line)
    while stop > 0:
        value = rows[index][stop]
        if stop and rows[index][stop - 1] + host[stop - 1] <= value:
            result[order[stop - 1]] = pooled[0]
            stop -= 1
            continue
        column = rows[index - 1] + table[line[index - 1]][:, stop]
        start = int(column.argmin())
        if column[start] <= value:
            for position in range(start, stop):
                result[order[position]] = line[index - 1]
            stop = start
        index -= 1
    return result


def _with_host(values: np.ndarray, host: Sequence[float]) -> np.ndarray:
    row = values.tolist()
    for position, seconds in enumerate(host):
        row[position + 1] = min(row[position + 1], row[position] + seconds)
    return np.asarray(row)


class CallGraph:
    """An acyclic graph of groups for `anneal_calls`; edges as index lists."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.fixed = Fixed(problem)
        self.after: list[list[int]] = [[] for _ in range(problem.group_count)]
        self.before: list[list[int]] = [[] for _ in range(problem.group_count)]
        for a, b in problem.forward:
            self.after[a].append(b)
            self.before[b].append(a)


def evaluate(graph: CallGraph, state: State, pool: int) -> float:
    device, load = state.device, state.load
    groups = graph.fixed.groups
    width = graph.fixed.devices
    after = graph.after
    unit = [width + g if d == pool else d for g, d in enumerate(device)]
    time = graph.fixed.time
    pending = [0] * (width + groups)
    for g, row in enumerate(graph.before):
        u = unit[g]
        for h in row:
            if unit[h] != u:
                pending[u] += 1
    members: list[list[int]] = [[] for _ in range(width)]
    for g, d in enumerate(device):
        if d != pool:
            members[d].append(g)
    start = [0.0] * (width + groups)
    ready = [u for g, u in enumerate(unit) if u >= width and not pending[u]]
    done = len(ready)
    for d in range(width):
        if members[d] and not pending[d]:
            ready.append(d)
    last = 0.0
    seen = 0
    for u in ready:
        if u >= width:
            g = u - width
            seen += 1
            stop = start[u] + time[g][pool]
            if stop > last:
                last = stop
            for h in after[g]:
                w = unit[h]
                if stop > start[w]:
                    start[w] = stop
                pending[w] -= 1
                if not pending[w]:
                    ready.append(w)
        else:
            stop = start[u] + load[u]
            if stop > last:
                last = stop
            for g in members[u]:
                seen += 1
                for h in after[g]:
                    w = unit[h]
                    if w != u:
                        if stop > start[w]:
                            start[w] = stop
                        pending[w] -= 1
                        if not pending[w]:
                            ready.append(w)
    return last if seen == groups else inf


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
    fixed = graph.fixed
    pool = next((i for i, d in enumerate(graph.problem.devices) if d.pooled), -1)
    state = State(fixed, start)
    now = evaluate(graph, state, pool)
    best, best_device = now, list(state.device)
    neighbors, allowed = fixed.neighbors, fixed.allowed
    movable = [g for g in range(fixed.groups) if len(allowed[g]) > 1]
    if not movable:
        return best, best_device
    draw = random.random
    number = len(movable)
    steps = 0
    device = state.device
    load = state.load
    total = sum(load)
    cost = now + weight * total
    while not budget.spent:
        temperature = hot * (cold / hot) ** budget.fraction * min(best, 1e300)
        for _ in range(16):
            steps += 1
            g = movable[int(draw() * number)]
            a = device[g]
            r = draw()
            ns = neighbors[g]
            if ns and r < 0.6:
                b = device[ns[int(draw() * len(ns))]]
            elif r < 0.7 and pool >= 0:
                b = pool
            else:
                row = allowed[g]
                b = row[int(draw() * len(row))]
            if a == b or not state.fits(g, b):
                continue
            old, new = state.change(g, b)
            state.move(g, b, old, new)
            value = evaluate(graph, state, pool)
            c = value + weight * (total + old + new)
            delta = c - cost
            if delta <= 0 or (value < inf and draw() < exp(-delta / temperature)):
                cost = c
                total += old + new
                if value < best - 1e-9:
                    best, best_device = value, list(device)
            else:
                back = state.change(g, a)
                state.move(g, a, *back)
        budget.spend(16)
    return best, best_device


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


def search_calls(problem, budget, random, report) -> None:
    from splitnet.core.search.orders import depth_first, frontier, fuse_cycles

    fused, cluster = fuse_cycles(problem)
    best = None
    orders = [depth_first(fused), depth_first(fused, backward=True)]
    if fused.group_count < 3000:
        orders.append(frontier(fused, random, noise=0.0))
    for order in orders:
        plan = chain_calls(fused, order)
        if plan is not None:
            value = report([plan[c] for c in cluster], "chain of calls")
            if best is None or value < best[0]:
                best = (value, plan)
    graph = CallGraph(fused)
    sizes = max((d.capacity_bytes for d in fused.devices if not d.pooled), default=inf)
    pool = next((i for i, d in enumerate(fused.devices) if d.pooled), -1)
    whole = budget.left
    while not budget.spent:
        part = budget.limited(whole / 4)
        target = int(20 * 5 ** random.random())
        q, m = coarsen_calls(fused, target, random, noise=0.3, size_limit=0.5 * sizes, limit=inf)
        if pool >= 0:
            a = [pool] * q.group_count
        else:
            a = [0] * q.group_count
        value, a = anneal_calls(CallGraph(q), a, part.slice(0.6), random, hot=0.05)
        a = [a[x] for x in m]
        value, a = anneal_calls(graph, a, part, random, hot=0.005)
        report([a[c] for c in cluster], "multilevel calls")
        if best is not None:
            value, a = anneal_calls(graph, best[1], budget.limited(whole / 8), random, hot=0.003)
            value = report([a[c] for c in cluster], "annealed calls")
            if value < best[0]:
                best = (value, a)
