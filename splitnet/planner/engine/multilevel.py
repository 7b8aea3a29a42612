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
    CONTIGUITIES,
    VALUE,
    Cooling,
    Rules,
    anneal,
    state_of,
)
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.compiler import RandomState, entry
from splitnet.planner.engine.load_graph import Floats, Ints, LoadGraph, cut_size
from splitnet.planner.engine.makespan import makespan
from splitnet.planner.engine.packing import repaired
from splitnet.planner.engine.tasks import EVENTS, Tasks, root_of
from splitnet.planner.problem import Problem, contract, device_line

__all__ = ["AnnealingRun", "Multilevel", "fused", "member_of", "merge_edges"]

_STEPS_PER_PROPOSAL, _STEPS_PER_NET, _STEPS_PER_CALL = 0.07, 0.02, 0.002
"""Steps of a proposal, of a net of its group, and of a call whose path is followed."""

_SWAPS, _NOISE = 0.1, 0.5
"""Of the proposals, those that exchange two groups; of the cost of an edge."""


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
    stop: int,
    most_seconds: float,
    most_bytes: float,
) -> None:
    """Unite the ends of edges of one kind, in order, until `stop` sets are left."""
    left = len(parent)
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


def merge_edges(
    graph: LoadGraph,
    keep: Ints,
    target: int,
    random: np.random.Generator,
    *,
    rating: float = 0.0,
    most_seconds: float = inf,
    most_bytes: float = inf,
) -> tuple[Ints, int]:
    """Merge the ends of the most expensive edges until `target` clusters are left.

    An edge ranks by its cost, give or take half of it, over the product of the ends'
    seconds to the power `rating`. Groups of different `keep`, of different allowed
    devices, or both with `apart` constraints stay separate. Returns the cluster of each
    group and the number of clusters.
    """
    a, b, cost = _edges(graph)
    seconds = graph.seconds.min(axis=1, initial=inf)
    keys = np.random.default_rng(0).integers(2**63, size=1 + graph.allowed.shape[1])
    kind = keep * keys[0] + graph.allowed @ keys[1:]  # equal if both are equal
    parent, constrained = np.arange(len(seconds)), np.diff(graph.apart_start)
    noisy = cost * (1 + _NOISE * (2 * random.random(len(a)) - 1))
    least = 1e-3 * seconds.mean() + 1e-300
    rank = noisy / ((seconds[a] + least) * (seconds[b] + least)) ** rating
    order = np.argsort(-rank, kind="stable")
    unite(
        np.array([a[order], b[order]]),
        *(parent, kind, seconds, graph.size_bytes.copy(), constrained),
        *(target, most_seconds, most_bytes),
    )
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


@dataclass(frozen=True, slots=True, eq=False)
class Multilevel:
    """What all runs of one search share."""

    contiguity: str
    budget: Budget
    random: np.random.Generator
    state: RandomState

    def place(
        self,
        here: Problem,
        place: Ints,
        keep: Ints,
        run: AnnealingRun,
        tasks: Tasks | None,
    ) -> Ints:
        """Coarsen along edges, anneal the coarsest problem, refine level by level.

        What differs in `keep` is not merged. Without tasks, loads are minimised.
        """
        levels: list[tuple[Problem, Ints]] = []
        room = here.graph.capacity_bytes
        most_bytes = 0.5 * float(np.max(room, initial=0.0, where=np.isfinite(room)))
        end, clusters = self.budget.spent + run.steps, int(run.clusters)
        while (groups := here.group_count) > clusters:
            finer = max(clusters, groups // 2)
            cluster, count = merge_edges(
                here.graph,
                keep,
                clusters if finer < 1.5 * clusters else finer,
                self.random,
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
        share, hot = 0.5 if levels else 1.0, run.hot
        while True:
            steps = share * max(0.0, end - self.budget.spent)
            place = self._anneal(here, place, steps, run._replace(hot=hot), tasks)
            if not levels:
                return place
            here, cluster = levels.pop()
            share, place = 1.0 / (len(levels) + 1), place[cluster]
            hot = min(hot, 0.02)

    def _anneal(
        self,
        problem: Problem,
        place: Ints,
        steps: float,
        run: AnnealingRun,
        tasks: Tasks | None,
    ) -> Ints:
        """Cool down in so many steps, to the best assignment on the way."""
        graph, budget = problem.graph, self.budget
        movable = np.flatnonzero(graph.allowed.sum(axis=1) > 1)
        if not len(movable):
            return place
        line = device_line(problem, place) if self.contiguity == "pipeline" else None
        rules = Rules(
            CONTIGUITIES.index(self.contiguity),
            np.arange(problem.device_count) if line is None else line,
            problem.forward,
            np.zeros(len(problem.forward.group), np.bool_),
        )
        state = state_of(graph, place)
        penalty = 1 + problem.cut_penalty * float(cut_size(graph, place))
        each = _STEPS_PER_PROPOSAL
        each += _STEPS_PER_NET * len(graph.group_nets) / len(place)
        if self.contiguity == "convex":
            each += _STEPS_PER_CALL * len(rules.forward.order)
        steps = max(256 * each, steps)
        proposals, hot, cold = int(max(256, steps / each / 200)), run.hot, 0.002
        if tasks is not None:
            tasks = tasks._replace(group=problem.group_of_unit)
            proposals, hot, cold = 8, hot / run.exponent, 2e-5
            value = makespan(tasks, place, inf) * penalty
            state.numbers[BEST] = state.numbers[VALUE] = value
            tasks.scratch.counted[EVENTS] = 0
        elif np.all(state.used <= graph.capacity_bytes):
            state.numbers[BEST] = state.load.max() * penalty
        cooling = Cooling(
            *(steps, each, proposals, hot, cold, run.exponent, _SWAPS),
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
        return state.best if state.numbers[BEST] < inf else state.place
