"""Search for the assignment whose busiest device is least busy.

`free` sets are searched by a memetic multilevel scheme: fresh runs, combinations of two
good assignments and cycles of one, as in Sanders and Schulz, "Distributed Evolutionary
Graph Partitioning" (2012). Pipelines are cut from many orders and annealed along the
best one's line.
"""

from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.coarsening import (
    Edges,
    contract,
    edges_of,
    fused,
    member_of,
    merge_edges,
)
from splitnet.planner.engine.compiler import random_state
from splitnet.planner.engine.load import (
    BEST,
    CONVEX,
    CUTS,
    Cooling,
    Rules,
    cool,
    cooling_of,
    rules_of,
    state_of,
)
from splitnet.planner.engine.starts import ChainStarts
from splitnet.planner.problem import (
    Bools,
    Floats,
    Ints,
    LoadGraph,
    Problem,
    bytes_per_device,
    is_allowed,
    is_contiguous,
)

__all__ = ["Found", "repaired", "search_load"]

_STEPS_PER_PROPOSAL = 0.07
_STEPS_PER_NET = 0.02


class Found(NamedTuple):
    """An assignment and its value, infinite if it breaks a constraint."""

    value: float
    place: Ints


class Multilevel(NamedTuple):
    """One multilevel run: how far to coarsen, how to cool."""

    steps: float
    clusters: int
    most_seconds: float
    hot: float
    exponent: int
    rating: float
    noise: float = 0.5


class _Search:
    """State that all parts of a search share."""

    def __init__(self, problem: Problem, budget: Budget, seed: int) -> None:
        self.problem, self.graph, self.budget = problem, problem.graph, budget
        self.state, self.random = random_state(seed), np.random.default_rng(seed)
        self.free = rules_of(problem, "free")
        fastest = self.graph.seconds.min(axis=1, initial=inf).sum()
        limited = int(np.isfinite(self.graph.capacity_bytes).sum())
        self.fair = fastest / max(1, limited or problem.device_count)

    def value(self, graph: LoadGraph, place: Ints) -> float:
        """Largest load with the cut penalty, infinite if a constraint is broken."""
        state = state_of(graph, place)
        full = state.used > graph.capacity_bytes * (1 + 1e-12)
        if full.any() or not is_allowed(graph, place):
            return inf
        cuts = float(state.numbers[CUTS])
        return float(state.load.max()) * (1 + self.problem.cut_penalty * cuts)

    def anneal(
        self,
        graph: LoadGraph,
        rules: Rules,
        start: Ints,
        steps: float,
        hot: float,
        exponent: int,
        *,
        gentle: bool = False,
    ) -> Ints:
        """Cool down in so many steps; `gentle` moves are few swaps and near groups."""
        movable = np.flatnonzero(graph.allowed.sum(axis=1) > 1)
        if not len(movable):
            return start
        state = state_of(graph, start)
        if np.all(state.used <= graph.capacity_bytes):
            cuts = state.numbers[CUTS]
            penalty = 1 + self.problem.cut_penalty * cuts
            state.numbers[BEST] = state.load.max() * penalty
        each = _STEPS_PER_PROPOSAL
        each += _STEPS_PER_NET * len(graph.group_nets) / len(graph.size_bytes)
        if rules.mode == CONVEX:
            each += 0.002 * len(rules.forward.order)
        cooling: Cooling = cooling_of(
            steps, each, hot, exponent, self.problem.cut_penalty
        )
        if gentle:
            cooling = cooling._replace(swaps=0.05, stray=0.1)
        batch = max(1, int(20_000 / (each * cooling.proposals)))
        for first in range(0, cooling.strides, batch):
            if not self.budget.left:
                break
            last = min(cooling.strides, first + batch)
            cool(graph, rules, state, movable, cooling, first, last, self.state)
            self.budget.spend((last - first) * cooling.proposals * each)
        return state.best if state.numbers[BEST] < inf else state.place

    def multilevel(
        self,
        graph: LoadGraph,
        rules: Rules,
        start: Ints,
        keep: Ints,
        edges: Edges,
        run: Multilevel,
    ) -> Ints:
        """Coarsen along edges, anneal the coarsest graph, refine level by level."""
        levels: list[tuple[LoadGraph, Ints]] = []
        here, place = graph, start
        room = graph.capacity_bytes[np.isfinite(graph.capacity_bytes)]
        most_bytes = 0.5 * float(room.max()) if len(room) else inf
        end = self.budget.spent + run.steps
        while (groups := len(here.size_bytes)) > run.clusters:
            target = max(run.clusters, groups // 4)
            cluster, count = merge_edges(
                here,
                edges,
                keep,
                run.clusters if target < 2 * run.clusters else target,
                self.random,
                noise=run.noise,
                rating=run.rating,
                most_seconds=run.most_seconds,
                most_bytes=most_bytes,
            )
            if count > 0.95 * groups:
                break
            self.budget.spend(200 + 0.2 * (len(edges[0]) + len(here.net_pins)))
            levels.append((here, cluster))
            here = contract(here, cluster, count)
            place = member_of(cluster, count, place)
            keep = member_of(cluster, count, keep)
            a, b = cluster[edges[0]], cluster[edges[1]]
            edges = a[a != b], b[a != b], edges[2][a != b]
        if rules is self.free:
            place = repaired(here, place)
        hot, coarse = run.hot, bool(levels)
        while True:
            left = max(0.0, end - self.budget.spent)
            share = 0.75 if levels and hot > 0.03 else 1.0 / (len(levels) + 1)
            gentle = not levels and (coarse or hot <= 0.03)
            place = self.anneal(
                here, rules, place, left * share, hot, run.exponent, gentle=gentle
            )
            if not levels:
                return place
            here, cluster = levels.pop()
            place, hot = place[cluster], min(hot, 0.02)


def repaired(graph: LoadGraph, place: Ints) -> Ints:
    """Move groups that may not be or have no room where they are, largest first."""
    used = bytes_per_device(graph, place)
    stray = ~graph.allowed[np.arange(len(place)), place]
    for group in np.flatnonzero(np.diff(graph.apart_start)):
        others = graph.apart[graph.apart_start[group] : graph.apart_start[group + 1]]
        stray[group] |= bool(np.any(place[others[others < group]] == place[group]))
    moved = np.flatnonzero(stray | (used > graph.capacity_bytes)[place])
    place = place.copy()
    for group in sorted(moved, key=lambda g: -graph.size_bytes[g]):
        here, size = place[group], graph.size_bytes[group]
        if not stray[group] and used[here] <= graph.capacity_bytes[here]:
            continue
        room = graph.allowed[group] & (used + size <= graph.capacity_bytes)
        others = graph.apart[graph.apart_start[group] : graph.apart_start[group + 1]]
        room[place[others]] = False
        if room.any():
            seconds = np.where(room, graph.seconds[group, graph.kind], inf)
            filled = np.where(np.isfinite(graph.capacity_bytes), used, 0.0)
            target = int(np.lexsort((filled, seconds))[0])
            used[here] -= size
            used[target] += size
            place[group] = target
    return place


class _Elite:
    """The best assignments, kept different in the nets that they cut."""

    def __init__(self, graph: LoadGraph, size: int = 10) -> None:
        self.graph, self.size = graph, size
        self.members: list[tuple[float, Ints, Bools]] = []

    def add(self, value: float, place: Ints) -> None:
        """Keep an assignment of a new value instead of the worse one most like it."""
        known = any(abs(value - one[0]) <= 1e-9 * value for one in self.members)
        if value == inf or known:
            return
        cut = np.zeros(len(self.graph.net_start), np.bool_)
        if len(self.graph.net_pins):
            start, where = self.graph.net_start[:-1], place[self.graph.net_pins]
            low, high = (f.reduceat(where, start) for f in (np.minimum, np.maximum))
            cut[:-1] = low != high
        if len(self.members) >= self.size:
            worse = [i for i, one in enumerate(self.members) if one[0] > value]
            if not worse:
                return
            del self.members[
                min(worse, key=lambda i: np.count_nonzero(self.members[i][2] ^ cut))
            ]
        self.members.append((value, place.copy(), cut))
        self.members.sort(key=lambda one: one[0])


def _search_free(search: _Search, starts: list[Ints]) -> Found:
    """Fresh runs, combinations of two assignments, and cycles of one."""
    graph, random, budget = search.graph, search.random, search.budget
    devices, elite = len(graph.capacity_bytes), _Elite(graph)
    groups, total = len(graph.size_bytes), budget.left
    last = repaired(graph, _random_start(graph, random))
    for start in starts:
        elite.add(search.value(graph, start), start)
    line = _search_pipeline(search, 0.08 * total)
    edges = edges_of(graph)
    steps = max(total / 400, min(total / 12, max(10_000, 20 * groups)))
    none = np.zeros(groups, np.int64)
    while budget.left > 1000:
        draw, members, keep, hot = random.random(), elite.members, none, 0.3
        if len(members) < 4 or draw < 0.3:
            start = _random_start(graph, random)
            if members and draw < 0.03:
                start = members[0][1]
        elif draw < 0.75:
            i, j = sorted(random.choice(len(members), 2, replace=False))
            start, hot = members[i][1], 0.2
            keep = start * devices + members[j][1]
        else:
            start = keep = members[random.integers(len(members))][1]
            hot = 0.1
        run = Multilevel(
            min(budget.left, steps),
            clusters=int(22 * 3.0 ** random.random()),
            most_seconds=(0.25 + 0.45 * random.random()) * search.fair,
            hot=hot,
            exponent=12 if random.random() < 0.67 else 24,
            rating=float(random.choice([0.0, 0.15, 0.3, 0.5])),
            noise=float(random.choice([0.1, 0.5])),
        )
        last = search.multilevel(graph, search.free, start, keep, edges, run)
        elite.add(search.value(graph, last), last)
        if elite.members:
            budget.report(elite.members[0][0])
    found = Found(*elite.members[0][:2]) if elite.members else Found(inf, last)
    return line if line.value < found.value else found


def _random_start(graph: LoadGraph, random: np.random.Generator) -> Ints:
    """A random allowed device for every group."""
    score: Floats = random.random(graph.allowed.shape) * graph.allowed
    chosen: Ints = np.argmax(score, axis=1)
    return chosen


def _search_pipeline(search: _Search, effort: float = inf) -> Found:
    """Partitions of many orders, then annealing along the best one's line."""
    graph, cluster = fused(search.graph)
    random, budget, groups = search.random, search.budget, len(graph.size_bytes)
    chains = ChainStarts(replace(search.problem, graph=graph), search.state)
    edges, failures, turn = edges_of(graph), 0, 0
    best, line = Found(inf, np.zeros(groups, np.int64)), chains.line
    end = budget.spent + effort
    while turn == 0 or (budget.left and budget.spent < end):
        known, new_line = best.value < inf, line
        if known and failures > 8 and turn % 4 == 3:
            run = Multilevel(
                min(budget.left, max(20_000, 200 * groups)),
                clusters=int(30 * 10 ** random.random()),
                most_seconds=(0.1 + 0.4 * random.random()) * search.fair,
                hot=float(random.choice([0.1, 0.03, 0.01])),
                exponent=12 if random.random() < 0.5 else 24,
                rating=float(random.choice([0.0, 0.3, 0.5])),
            )
            rules = rules_of(search.problem, "pipeline", line)
            place = search.multilevel(graph, rules, best.place, best.place, edges, run)
        else:
            near = known and random.random() < 0.75
            depth = float(random.choice([0.5, 0.9, 0.97, 1.0]))
            most = best.value * (1 + 1e-9) if known else inf
            stage = line[best.place] if near else None
            place, new_line, steps = chains.cut(chains.order(depth, stage), most=most)
            budget.spend(steps)
        value = search.value(graph, place)
        failures = 0 if value < best.value * (1 - 1e-9) else failures + 1
        if value <= best.value and value < inf:
            best, line = Found(value, place), new_line
            budget.report(value)
        turn += 1
    return Found(best.value, best.place[cluster])


def _search_convex(search: _Search, starts: list[Ints]) -> Found:
    """From the best pipeline into the larger set of convex assignments."""
    found = _search_pipeline(search, 0.4 * search.budget.left)
    rules = rules_of(search.problem, "convex")
    for start in starts:
        value = search.value(search.graph, start)
        if value < found.value and is_contiguous(search.problem, start, "convex"):
            found = Found(value, start)
    steps = max(1.0, search.budget.left / 8)
    while found.value < inf and search.budget.left > 1000:
        hot = float(search.random.choice([0.1, 0.03, 0.01]))
        exponent = 12 if search.random.random() < 0.5 else 24
        place = search.anneal(search.graph, rules, found.place, steps, hot, exponent)
        value = search.value(search.graph, place)
        if value < found.value:
            found = Found(value, place)
            search.budget.report(value)
    return found


def search_load(
    problem: Problem,
    budget: Budget,
    *,
    contiguity: str = "free",
    seed: int = 0,
    starts: list[Ints] | None = None,
) -> Found:
    """The best assignment found; its value counts cuts and is infinite if none fits.

    Args:
        problem: What to place.
        budget: How long.
        contiguity: "free", "convex" or "pipeline".
        seed: Of the random numbers.
        starts: Assignments to begin with.
    """
    search = _Search(problem, budget, seed)
    if contiguity == "pipeline":
        return _search_pipeline(search)
    if contiguity == "convex":
        return _search_convex(search, starts or [])
    return _search_free(search, starts or [])
