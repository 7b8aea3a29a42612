"""Anneal clusters of groups, and refine while they are taken apart again.

Multilevel scheme of Hendrickson and Leland, "A Multilevel Algorithm for Partitioning
Graphs" (1995): merge the ends of the most expensive edges, solve the small problem,
and refine while the clusters are taken apart again.
"""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import networkx as nx
import numpy as np

from splitnet.planner.engine.annealing import (
    BEST,
    VALUE,
    Cooling,
    anneal,
    rules_of,
    state_of,
)
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.compiler import RandomState, entry
from splitnet.planner.engine.cutting import root_of
from splitnet.planner.engine.makespan import Tasks, makespan
from splitnet.planner.engine.packing import repaired
from splitnet.planner.engine.starts import Incumbent
from splitnet.planner.problem import (
    Floats,
    Ints,
    LoadGraph,
    Problem,
    contract,
    cut_size,
    device_line,
)

__all__ = ["AnnealingRun", "Multilevel", "fused", "member_of", "merge_edges"]

_STEPS_PER_PROPOSAL, _STEPS_PER_NET, _STEPS_PER_CALL = 0.07, 0.02, 0.002
"""Steps of a proposal, of a net of its group, and of a call whose path is followed."""


def _edges(graph: LoadGraph) -> tuple[Ints, Ints, Floats]:
    """Producer and reader of every net, with the seconds of the nets they share."""
    net = np.repeat(np.arange(len(graph.net_start) - 1), np.diff(graph.net_start))
    a, b = graph.net_pins[graph.net_start[:-1]][net], graph.net_pins
    cost = graph.net_seconds.max(axis=1, initial=0.0)[net]
    real = a != b
    low, high = np.minimum(a, b)[real], np.maximum(a, b)[real]
    groups = max(1, len(graph.size_bytes))
    pairs, at = np.unique(low * groups + high, return_inverse=True)
    total = np.bincount(at, cost[real], len(pairs)).astype(np.float64)
    return np.asarray(pairs // groups), np.asarray(pairs % groups), total


def member_of(cluster: Ints, count: int, values: Ints) -> Ints:
    """The value of a member of each cluster."""
    found = np.empty(count, values.dtype)
    found[cluster] = values
    return found


@entry
def unite(
    edges: Ints,
    parent: Ints,
    kind: Ints,
    seconds: Floats,
    size_bytes: Floats,
    constrained: Ints,
    left: int,
    stop: int,
    most_seconds: float,
    most_bytes: float,
) -> int:
    """Unite the ends of edges of one kind, in order, until `stop` sets are left."""
    for i in range(edges.shape[1]):
        if left <= stop:
            break
        x, y = root_of(parent, edges[0, i]), root_of(parent, edges[1, i])
        if x == y or kind[x] != kind[y] or (constrained[x] and constrained[y]):
            continue
        if seconds[x] + seconds[y] > most_seconds:
            continue
        if size_bytes[x] + size_bytes[y] > most_bytes:
            continue
        parent[y] = x
        seconds[x] += seconds[y]
        size_bytes[x] += size_bytes[y]
        constrained[x] += constrained[y]
        left -= 1
    for x in range(len(parent)):
        parent[x] = root_of(parent, x)
    return left


def merge_edges(
    graph: LoadGraph,
    keep: Ints,
    target: int,
    random: np.random.Generator,
    *,
    noise: float = 0.5,
    rating: float = 0.0,
    most_seconds: float = np.inf,
    most_bytes: float = np.inf,
) -> tuple[Ints, int]:
    """Merge the ends of the most expensive edges until `target` clusters are left.

    An edge ranks by its cost, give or take a fraction `noise`, over the product of the
    ends' seconds to the power `rating`. Groups of different `keep`, of different
    allowed devices, or both with `apart` constraints stay separate. Returns the cluster
    of each group and the number of clusters.
    """
    a, b, cost = _edges(graph)
    groups = left = len(graph.size_bytes)
    parent, seconds = np.arange(groups), graph.seconds.min(axis=1, initial=np.inf)
    keys = np.random.default_rng(0).integers(2**63, size=1 + graph.allowed.shape[1])
    kind = keep * keys[0] + graph.allowed @ keys[1:]  # equal if both are equal
    sizes, constrained = graph.size_bytes.copy(), np.diff(graph.apart_start)
    noisy = cost * (1 + noise * (2 * random.random(len(a)) - 1))
    least = 1e-3 * seconds.sum() / groups + 1e-300
    for _ in range(8):
        weight = (seconds[parent[a]] + least) * (seconds[parent[b]] + least)
        rank = np.where(parent[a] != parent[b], noisy / weight**rating, 0.0)
        order = np.argsort(-rank, kind="stable")[: np.count_nonzero(rank)]
        before, stop = left, target if rating == 0 else max(target, left // 2)
        left = unite(
            np.array([a[order], b[order]]),
            *(parent, kind, seconds, sizes, constrained, left, stop),
            *(most_seconds, most_bytes),
        )
        if left <= target or left == before or rating == 0:
            break
    roots, cluster = np.unique(parent, return_inverse=True)
    return cluster, len(roots)


def fused(problem: Problem) -> tuple[Problem, Ints]:
    """Merge groups on a common cycle: no pipeline separates them."""
    graph, groups = problem.graph, problem.group_count
    source = np.repeat(np.arange(groups), np.diff(graph.successor_start))
    flow = nx.DiGraph(zip(source.tolist(), graph.successors.tolist()))
    flow.add_nodes_from(range(groups))
    cluster, count = np.arange(groups), 0
    for count, members in enumerate(nx.strongly_connected_components(flow), 1):
        cluster[list(members)] = count - 1
    if count == groups:
        return problem, np.arange(groups)
    return contract(problem, cluster, count), cluster


class AnnealingRun(NamedTuple):
    """Settings of a multilevel annealing run: how far to coarsen, how to cool."""

    steps: float
    clusters: float
    most_seconds: float
    hot: float
    exponent: int
    rating: float
    noise: float


@dataclass(frozen=True, slots=True, eq=False)
class Multilevel:
    """What all runs of one search share; without tasks they minimise loads."""

    contiguity: str
    budget: Budget
    random: np.random.Generator
    state: RandomState
    tasks: Tasks | None

    def place(
        self, target: Problem, start: Ints, keep: Ints, run: AnnealingRun, *, step: bool
    ) -> Ints:
        """Coarsen along edges, anneal the coarsest problem, refine level by level."""
        levels: list[tuple[Problem, Ints]] = []
        here, place = target, start
        room = target.graph.capacity_bytes
        most_bytes = 0.5 * float(np.max(room, initial=0.0, where=np.isfinite(room)))
        end, clusters = self.budget.spent + run.steps, int(run.clusters)
        while (groups := here.group_count) > clusters:
            finer = max(clusters, groups // 4)
            cluster, count = merge_edges(
                here.graph,
                keep,
                clusters if finer < 2 * clusters else finer,
                self.random,
                noise=run.noise,
                rating=run.rating,
                most_seconds=run.most_seconds,
                most_bytes=most_bytes or inf,
            )
            if count > 0.95 * groups:
                break
            self.budget.spend(200 + 0.3 * len(here.graph.net_pins))
            levels.append((here, cluster))
            here = contract(here, cluster, count)
            place = member_of(cluster, count, place)
            keep = member_of(cluster, count, keep)
        if self.contiguity == "free":
            place = repaired(here.graph, place)
        hot, coarse, value = run.hot, bool(levels), inf
        while True:
            left = max(0.0, end - self.budget.spent)
            share = 0.75 if levels and hot > 0.03 else 1.0 / (len(levels) + 1)
            gentle = step or (not levels and (coarse or hot <= 0.03))
            found = self.anneal(
                *(here, place, value, left * share, hot, run.exponent),
                gentle=gentle,
                step=step,
            )
            if not levels:
                return found.place
            here, cluster = levels.pop()
            value, place, hot = found.value, found.place[cluster], min(hot, 0.02)

    def anneal(
        self,
        problem: Problem,
        place: Ints,
        value: float,
        steps: float,
        hot: float,
        exponent: int,
        *,
        gentle: bool,
        step: bool,
    ) -> Incumbent:
        """Cool down in so many steps; `gentle` moves are few swaps and near groups."""
        graph, budget = problem.graph, self.budget
        movable = np.flatnonzero(graph.allowed.sum(axis=1) > 1)
        if not len(movable):
            return Incumbent(value, place)
        line = device_line(problem, place) if self.contiguity == "pipeline" else None
        rules = rules_of(problem, self.contiguity, line)
        state, tasks = state_of(graph, place), None
        penalty = 1 + problem.cut_penalty * float(cut_size(graph, place))
        each = _STEPS_PER_PROPOSAL
        each += _STEPS_PER_NET * len(graph.group_nets) / len(place)
        if self.contiguity == "convex":
            each += _STEPS_PER_CALL * len(rules.forward.order)
        steps = max(256 * each, steps)
        proposals, cold = int(max(256, steps / each / 200)), 0.002
        if step and self.tasks is not None:
            tasks = self.tasks._replace(group=problem.group_of_unit)
            proposals, hot, cold = 8, hot / 12, 2e-5
            value = makespan(tasks, place, inf) * penalty
            state.numbers[BEST] = state.numbers[VALUE] = value
            tasks.scratch.work[0] = 0
        elif np.all(state.used <= graph.capacity_bytes):
            state.numbers[BEST] = state.load.max() * penalty
        swaps, stray = (0.05 if tasks is None else 0.2, 0.1) if gentle else (0.2, 1.0)
        cooling = Cooling(
            *(steps, each, proposals, hot, cold, exponent, swaps, stray),
            max(2, len(place) // 3),
            problem.cut_penalty,
        )
        spent = 0.0
        while spent < steps and budget.left:
            before, until = spent, min(steps, spent + 20_000.0)
            spent = anneal(
                *(graph, rules, state, movable, cooling, tasks),
                *(spent, until, self.state),
            )
            budget.spend(spent - before)
        if state.numbers[BEST] < inf:
            return Incumbent(float(state.numbers[BEST]), state.best)
        return Incumbent(inf, state.place)
