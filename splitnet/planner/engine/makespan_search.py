"""Search for the assignment with the shortest step.

Given starts, single devices, chain partitions and list schedules first; then simulated
annealing with blocks from the best few.
"""

from dataclasses import replace
from math import inf

import numpy as np

from splitnet.planner.engine.block_annealing import anneal_blocks, blocks_for
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.coarsening import (
    contract,
    edges_of,
    member_of,
    merge_edges,
)
from splitnet.planner.engine.compiler import random_state
from splitnet.planner.engine.load import BEST, CUTS, VALUE, rules_of, state_of
from splitnet.planner.engine.load_search import Found, repaired
from splitnet.planner.engine.makespan import makespan, scratch_for, tasks_of
from splitnet.planner.engine.starts import (
    ChainStarts,
    copy_seconds,
    list_schedule,
    urgency,
)
from splitnet.planner.problem import (
    Ints,
    Problem,
    bytes_per_device,
    device_line,
    is_allowed,
    is_contiguous,
)

__all__ = ["search_makespan"]

_STEPS_PER_EVENT = 0.1
_MOST_MEMBERS = 6
_STRIDES = 50

_LARGE = 500
"""Groups from which list schedules are better starts than annealing is quick, and a
move changes so little that it needs lower temperatures."""


class _Search:
    """The constraints, and the best assignments so far."""

    def __init__(
        self, problem: Problem, budget: Budget, seed: int, contiguity: str
    ) -> None:
        assert problem.step is not None, "a makespan is that of a step"
        self.problem, self.graph, self.budget = problem, problem.graph, budget
        self.state, self.random = random_state(seed), np.random.default_rng(seed)
        self.contiguity = contiguity
        self.tasks = tasks_of(problem.step, problem.group_of_unit)
        self.scratch = scratch_for(self.tasks)
        self.whole_steps = 1 + _STEPS_PER_EVENT * 3 * len(self.tasks.group)
        self.edges = edges_of(problem.graph)
        self.members: list[Found] = []
        self.best = Found(inf, np.zeros(problem.group_count, np.int64))

    def fits(self, place: Ints) -> bool:
        """Whether constraints hold, as far as sums of bytes tell."""
        used = bytes_per_device(self.graph, place)
        return (
            bool(np.all(used <= self.graph.capacity_bytes * (1 + 1e-12)))
            and is_allowed(self.graph, place)
            and is_contiguous(self.problem, place, self.contiguity)
        )

    def keep(self, place: Ints) -> None:
        """Add an assignment to the best few; lower capacities if its peak is higher."""
        if not self.fits(place):
            return
        cuts = float(state_of(self.graph, place).numbers[CUTS])
        value = makespan(self.tasks, place, inf, self.scratch)
        value *= 1 + self.problem.cut_penalty * cuts
        self.budget.spend(self.whole_steps)
        if value < self.best.value:
            excess = self.problem.held_bytes(place) - self.problem.graph.capacity_bytes
            self.budget.spend(40 * len(self.tasks.group))
            if np.any(excess > 0):
                room = self.graph.capacity_bytes - 1.05 * np.maximum(excess, 0)
                self.graph = self.graph._replace(capacity_bytes=np.maximum(room, 1.0))
                self.members = [m for m in self.members if self.fits(m.place)]
                return
            self.best = Found(value, place.copy())
            self.budget.report(value)
        if all(abs(value - one.value) > 1e-9 * value for one in self.members):
            self.members.append(Found(value, place.copy()))
            self.members.sort(key=lambda one: one.value)
            del self.members[_MOST_MEMBERS:]

    def anneal(
        self, start: Found, steps: float, hot: float, clusters: int | None
    ) -> Ints:
        """Cool down in so many steps from a temperature, a fraction of the value.

        With `clusters` groups of one device are merged to that many, which move as one.
        """
        graph, tasks, place, cold = self.graph, self.tasks, start.place, 1e-5
        cluster = np.arange(len(place))
        line = device_line(self.problem, place) if self.contiguity != "free" else None
        rules = rules_of(self.problem, self.contiguity, line)
        if clusters is not None:
            rating = float(self.random.choice([0.0, 0.15, 0.3, 0.5]))
            cluster, count = merge_edges(
                graph, self.edges, place, clusters, self.random, rating=rating
            )
            graph, place = (
                contract(graph, cluster, count),
                member_of(cluster, count, place),
            )
            forward = rules.forward._replace(group=cluster[rules.forward.group])
            rules = rules._replace(forward=forward)
            tasks = tasks._replace(group=cluster[tasks.group])
            self.budget.spend(0.5 * len(self.edges[0]))
        state, blocks = state_of(graph, place), blocks_for(len(place))
        state.numbers[BEST] = state.numbers[VALUE] = start.value
        each, spent, work = steps / _STRIDES, 0.0, self.scratch.work
        proposals = max(1, int(each / self.whole_steps))
        while spent < steps and self.budget.left:
            heat = start.value * hot * (cold / hot) ** (spent / steps)
            work[0] = 0
            evaluations = anneal_blocks(
                graph,
                rules,
                tasks,
                self.scratch,
                blocks,
                state,
                proposals,
                heat,
                self.problem.cut_penalty,
                max(2, len(place) // 3),
                self.state,
            )
            cost = 0.2 * proposals + evaluations + _STEPS_PER_EVENT * int(work[0])
            self.budget.spend(cost)
            spent += cost
            # Most evaluations end early; aim at the same steps in every stride.
            wanted = proposals * min(each, 50_000) / max(cost, 1e-9)
            proposals = int(min(2 * proposals, max(1, wanted)))
        return state.best[cluster]

    def construct(self, starts: list[Ints]) -> None:
        """Keep given starts, single devices, chain partitions and list schedules."""
        for start in starts:
            self.keep(repaired(self.graph, start))
        for device in range(self.problem.device_count):
            single = np.where(self.graph.allowed[:, device], device, 0)
            self.keep(repaired(self.graph, single))
        chains = ChainStarts(self.problem, self.state)
        chains.most_blocks = 200
        end, turn = self.budget.spent + 0.15 * self.budget.left, 0
        while turn < 3 or (self.budget.spent < end and self.budget.left):
            depth = float(self.random.choice([0.0, 0.5, 0.9, 1.0]))
            if turn % 3 == 2 or self.problem.group_count < _LARGE:
                place, _, steps = chains.cut(chains.order(depth))
                self.budget.spend(steps)
                self.keep(place)
            else:
                self.keep(self.scheduled(depth, noisy=turn > 3))
            turn += 1

    def scheduled(self, depth: float, *, noisy: bool) -> Ints:
        """A list schedule, if noisy sometimes of clusters."""
        graph, groups = self.graph, self.problem.group_count
        cluster, noise = np.arange(groups), 0.0
        if noisy:
            noise = float(self.random.random())
            most = self.problem.device_count * 2
            if groups > most and self.random.random() < 0.5:
                target = int(groups * (most / groups) ** self.random.random())
                cluster, count = merge_edges(
                    *(graph, self.edges, np.zeros_like(cluster), target, self.random),
                    rating=float(self.random.choice([0.0, 0.15, 0.3, 0.5])),
                )
                graph = contract(graph, cluster, count)
        copies = copy_seconds(graph) * float(self.random.choice([0.5, 1.0, 2.0]))
        problem = replace(self.problem, graph=graph)
        order = ChainStarts(problem, self.state).order(depth)
        rank = urgency(graph, order, copies, 0.5 * noise, self.state)
        order = np.argsort(-rank, kind="stable")
        self.budget.spend(0.1 * groups * self.problem.device_count)
        return list_schedule(graph, order, copies, 0.1 * noise, self.state)[cluster]


def search_makespan(
    problem: Problem,
    budget: Budget,
    *,
    contiguity: str = "free",
    seed: int = 0,
    starts: list[Ints] | None = None,
) -> Found:
    """The best assignment found; its value counts cuts and is infinite if none fits.

    Args:
        problem: What to place, with a step.
        budget: How long.
        contiguity: "free", "convex" or "pipeline".
        seed: Of the random numbers.
        starts: Assignments to begin with.
    """
    search = _Search(problem, budget, seed, contiguity)
    search.construct(starts or [])
    total, groups = budget.left, problem.group_count
    # A move changes less of a larger step, so that it needs lower temperatures.
    small = groups < _LARGE
    cycle = total / (25 if small else 5)
    temperatures = [0.01, 0.003, 0.001] if small else [0.003, 0.001, 0.0003]
    while budget.left > 1 and search.members:
        rank = int(search.random.random() ** 2 * len(search.members))
        hot = float(search.random.choice(temperatures))
        clusters = None
        if groups > 60 and search.random.random() < 0.65:
            clusters = int(groups / 2 * 0.2 ** search.random.random())
        steps = min(budget.left, cycle)
        search.keep(search.anneal(search.members[rank], steps, hot, clusters))
    return search.best
