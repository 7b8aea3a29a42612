"""Search for the assignment with the shortest step, or by any full evaluation.

Single devices, list schedules and chain partitions first; then simulated annealing with
blocks from the best few.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import inf

import numpy as np

from splitnet.planner.engine.block_annealing import (
    anneal_blocks,
    count_cuts,
    evaluate,
    marks_for,
)
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.coarsening import contract, edges_of, merge_edges
from splitnet.planner.engine.compiler import random_state
from splitnet.planner.engine.load import is_contiguous, rules_of
from splitnet.planner.engine.load_search import Found, repaired, search_load
from splitnet.planner.engine.makespan import Scratch, Tasks, scratch_for, tasks_of
from splitnet.planner.engine.starts import (
    block_bounds,
    list_schedule,
    partition_chain,
    random_order,
    urgency_order,
)
from splitnet.planner.problem import (
    Floats,
    Ints,
    LoadGraph,
    Problem,
    bytes_per_device,
)
from splitnet.planner.problem import equivalent_devices as device_classes

__all__ = ["lower_peak", "search_makespan"]

_STEPS_PER_EVENT = 0.1
_WORK_PER_STEP = 250
_MOST_MEMBERS = 6


class _Search:
    """The objective, the constraints and the best assignments so far."""

    def __init__(
        self,
        problem: Problem,
        budget: Budget,
        seed: int,
        data: Tasks | LoadGraph,
        contiguity: str,
    ) -> None:
        self.problem, self.graph, self.budget = problem, problem.graph, budget
        self.state, self.random = random_state(seed), np.random.default_rng(seed)
        self.rules, self.contiguity = rules_of(problem, contiguity), contiguity
        self.data, self.marks = data, marks_for(problem.graph)
        devices = problem.device_count
        self.scratch: Scratch | Floats = (
            scratch_for(data) if isinstance(data, Tasks) else np.zeros((2, devices))
        )
        count = 3 * len(data.group) if isinstance(data, Tasks) else len(data.net_pins)
        self.steps_per_evaluation = 1 + _STEPS_PER_EVENT * count
        self.edges = edges_of(problem.graph)
        self.members: list[Found] = []
        self.best = Found(inf, np.zeros(problem.group_count, np.int32))

    def fits(self, place: Ints) -> bool:
        """Whether constraints hold, as far as sums of bytes tell."""
        graph = self.graph
        used = bytes_per_device(graph, place)
        if not graph.allowed[np.arange(len(place)), place].all():
            return False
        if not is_feasible(self.problem, place, self.contiguity):
            return False
        return bool(np.all(used <= graph.capacity_bytes * (1 + 1e-12)))

    def penalized(self, place: Ints) -> float:
        """Value with the cut penalty."""
        value = evaluate(self.data, place, inf, self.scratch)
        self.budget.spend(self.steps_per_evaluation)
        if self.problem.cut_penalty:
            cuts = count_cuts(self.graph, place, place, 0, self.marks)
            value *= 1 + self.problem.cut_penalty * cuts
        return value

    def work_of(self, evaluations: int) -> float:
        """Steps of the last evaluations, most of which ended early."""
        if not isinstance(self.scratch, Scratch):
            return evaluations * self.steps_per_evaluation
        events, self.scratch.work[0] = int(self.scratch.work[0]), 0
        return evaluations + _STEPS_PER_EVENT * events

    def keep(self, place: Ints) -> None:
        """Add an assignment to the best few; lower capacities if its peak is higher."""
        if not self.fits(place):
            return
        value = self.penalized(place)
        if value < self.best.value and self.problem.step is not None:
            held = self.problem.held_bytes(place)
            excess = held - self.problem.graph.capacity_bytes
            if np.any(excess > 0):
                room = self.graph.capacity_bytes - 1.05 * np.maximum(excess, 0)
                self.graph = self.graph._replace(capacity_bytes=np.maximum(room, 0))
                self.members = [m for m in self.members if self.fits(m.place)]
                return
        if value < self.best.value:
            self.best = Found(value, place.copy())
            self.budget.report(value)
        if all(abs(value - one.value) > 1e-9 * value for one in self.members):
            self.members.append(Found(value, place.copy()))
            self.members.sort(key=lambda one: one.value)
            del self.members[_MOST_MEMBERS:]

    def anneal(
        self,
        start: Ints,
        steps: float,
        hot: float,
        cold: float = 1e-5,
        *,
        clusters: int | None = None,
    ) -> Ints:
        """Cool down in so many steps; temperatures are fractions of the value.

        With `clusters` groups of one device are merged to that many, which move as one.
        """
        graph, data, rules, place = self.graph, self.data, self.rules, start.copy()
        cluster = np.arange(len(start), dtype=np.int32)
        if clusters is not None:
            rating = float(self.random.choice([0.0, 0.15, 0.3, 0.5]))
            cluster, count = merge_edges(
                graph, self.edges, start, clusters, inf, inf, 0.5, rating, self.state
            )
            graph = contract(graph, cluster, count, self.state)
            place = np.zeros(count, np.int32)
            place[cluster] = start
            forward = rules.forward
            forward = forward._replace(group=cluster[forward.group])
            rules = rules._replace(forward=forward)
            data = graph
            if isinstance(self.data, Tasks):
                data = self.data._replace(group=cluster[self.data.group])
            self.budget.spend(0.1 * len(self.edges[0]))
        marks, used = marks_for(graph), bytes_per_device(graph, place)
        value = self.penalized(start)
        cuts = count_cuts(graph, place, place, 0, marks)
        values, best = np.array([value, value, float(cuts)]), place.copy()
        strides = 50
        each = steps / strides
        self.work_of(0)
        spent, proposals = 0.0, max(1, int(each / self.steps_per_evaluation))
        while spent < steps and self.budget.left:
            heat = value * hot * (cold / hot) ** (spent / steps)
            evaluations = anneal_blocks(
                graph,
                rules,
                data,
                self.scratch,
                marks,
                place,
                used,
                best,
                values,
                proposals,
                heat,
                self.problem.cut_penalty,
                max(2, len(place) // 3),
                self.state,
            )
            cost = 0.2 * proposals + self.work_of(evaluations)
            self.budget.spend(cost)
            spent += cost
            # Most evaluations end early; aim at the same steps in every stride.
            wanted = proposals * min(each, 50_000) / max(cost, 1e-9)
            proposals = int(min(2 * proposals, max(1, wanted)))
        return best[cluster]

    def construct(self, starts: Iterable[Ints]) -> None:
        """Given starts, single devices, list schedules and chain partitions."""
        groups, devices = self.problem.group_count, self.problem.device_count
        for start in starts:
            self.keep(repaired(self.graph, start.astype(np.int32)))
        for device in range(devices):
            self.keep(np.full(groups, device, np.int32))
        owner = np.array(device_classes(self.problem), np.int32)
        number = np.bincount(owner).astype(np.int32)
        copy_seconds = self.copy_seconds()
        total, turn = self.budget.left, 0
        end = self.budget.spent + 0.15 * total
        zero = np.zeros(groups, np.int32)
        while turn < 4 or self.budget.spent < end:
            if turn and not self.budget.left:
                return
            depth = float(self.random.choice([0.0, 0.5, 0.9, 1.0]))
            order = random_order(self.graph, zero, 1, depth, self.state)
            if turn % 4 == 1:
                blocks = block_bounds(self.graph, order, 200)
                _, place, _, work = partition_chain(
                    self.graph, order, blocks, owner, number, inf
                )
                self.budget.spend(work / _WORK_PER_STEP)
                self.keep(place)
            noise = 0.0 if turn < 3 else float(self.random.random())
            if turn % 4 != 3:
                weight = float(self.random.choice([0.0, 1.0, 2.0]))
                order = urgency_order(
                    self.graph, order, copy_seconds * weight, 0.5 * noise, self.state
                )
            factor = (1.0, 2.0, 0.5, 4.0)[turn % 4]
            place = list_schedule(
                self.graph, order, copy_seconds * factor, 0.1 * noise, self.state
            )
            self.budget.spend(0.1 * groups * devices)
            self.keep(place)
            turn += 1

    def copy_seconds(self) -> Floats:
        """What every group sends, on its most expensive kind of device."""
        graph = self.graph
        sent = np.zeros(len(graph.size_bytes))
        producer = graph.net_pins[graph.net_start[:-1]]
        np.add.at(sent, producer, graph.net_seconds.max(axis=1, initial=0.0))
        return sent


def search_makespan(
    problem: Problem,
    budget: Budget,
    *,
    seed: int = 0,
    starts: Iterable[Ints] = (),
    data: Tasks | LoadGraph | None = None,
    contiguity: str = "free",
) -> Found:
    """The best assignment found; its value counts cuts and is infinite if none fits.

    Args:
        problem: What to place.
        budget: How long.
        seed: Of the random numbers.
        starts: Assignments to begin with.
        data: What is evaluated: the problem's step, or loads.
        contiguity: "free", "convex" or "pipeline".
    """
    if data is None:
        assert problem.step is not None, "a makespan is that of a step"
        data = tasks_of(problem.step, problem.group_of_unit)
    search = _Search(problem, budget, seed, data, contiguity)
    search.construct(starts)
    if not search.members:
        packed = packing(problem, budget.part(0.3), seed)
        search.graph = problem.graph
        search.keep(packed)
        if not search.members and problem.step is not None:
            search.keep(lower_peak(problem, packed, budget.part(0.5), relative=True))
        if not search.members:
            return Found(inf, packed)
    total, groups = budget.left, problem.group_count
    # A move changes less of a larger step, so that it needs lower temperatures.
    small = groups < 500
    cycle = total / (25 if small else 5)
    temperatures = [0.01, 0.003, 0.001] if small else [0.003, 0.001, 0.0003]
    while budget.left > 1 and search.members:
        rank = int(search.random.random() ** 2 * len(search.members))
        hot = float(search.random.choice(temperatures))
        clusters = None
        if groups > 60 and search.random.random() < 0.3:
            clusters = int(groups / 2 * 0.2 ** search.random.random())
        start = search.members[rank].place
        steps = min(budget.left, cycle)
        search.keep(search.anneal(start, steps, hot, clusters=clusters))
    return search.best


def packing(problem: Problem, budget: Budget, seed: int) -> Ints:
    """An assignment whose fullest device, relative to its memory, is least full."""
    graph = problem.graph
    full = graph.size_bytes[:, None] / np.maximum(graph.capacity_bytes, 1.0)
    devices = problem.device_count
    relative = graph._replace(
        seconds=np.ascontiguousarray(full),
        kind=np.arange(devices, dtype=np.int32),
        net_seconds=np.zeros((len(graph.net_seconds), devices)),
        capacity_bytes=np.full(devices, inf),
    )
    target = replace(problem, graph=relative, step=None)
    return search_load(target, budget, seed=seed).place


def lower_peak(
    problem: Problem,
    start: Ints,
    budget: Budget,
    *,
    relative: bool = False,
    contiguity: str = "free",
) -> Ints:
    """Descent on the bytes of the fullest device at its peak.

    Groups of the fullest device go, one at a time, where they lower its peak. With
    `relative` bytes are fractions of the memory, and it ends when all fits.
    """
    graph, place = problem.graph, start.copy()
    scale = np.maximum(graph.capacity_bytes, 1.0) if relative else 1.0
    held = problem.held_bytes(place) / scale
    units = len(problem.group_of_unit) or problem.group_count
    improved = True
    while improved and budget.left and not (relative and held.max() <= 1.0):
        improved, fullest = False, int(held.argmax())
        members = np.flatnonzero(place == fullest)
        for group in sorted(members, key=lambda g: -graph.size_bytes[g]):
            for device in np.argsort(held, kind="stable"):
                if not graph.allowed[group, device] or not budget.left:
                    continue
                if held[device] + graph.size_bytes[group] / np.max(scale) >= held.max():
                    continue
                other = place.copy()
                other[group] = device
                budget.spend(40 * units)
                if not is_feasible(problem, other, contiguity):
                    continue
                bytes_now = problem.held_bytes(other) / scale
                over = not relative and np.any(bytes_now > graph.capacity_bytes)
                if bytes_now.max() < held.max() * (1 - 1e-9) and not over:
                    place, held, improved = other, bytes_now, True
                    break
            if improved:
                break
    return place


def is_feasible(problem: Problem, place: Ints, contiguity: str) -> bool:
    """Whether constraints other than memory hold."""
    graph = problem.graph
    group = np.repeat(np.arange(len(place)), np.diff(graph.apart_start))
    if np.any(place[group] == place[graph.apart]):
        return False
    return is_contiguous(graph, rules_of(problem, contiguity), place)
