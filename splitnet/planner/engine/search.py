"""Search for the best assignment, whatever is minimised.

A memetic multilevel scheme, as in Sanders and Schulz, "Distributed Evolutionary Graph
Partitioning" (2012), in turns of two kinds:

construct   a chain partition of a new order or, for a step, a list schedule
improve     one or two of the best assignments, or a new one: groups are merged along
            expensive edges, the clusters annealed, and refined while they are taken
            apart again

A turn on a step begins anew as often as that has helped of late. What is merged keeps
to the assignment that a turn begins with, unless that is a list schedule: those cut so
many edges that hardly any group could be merged.

What devices hold at their peaks is known only afterwards. An assignment that has no
room lowers the capacity with which the search goes on; while nothing fits, bytes are
minimised instead, as they are for the objective "memory".

A turn depends on the steps that were spent, not on those that are left. So a longer
search goes on where a shorter one ends, and its answer is never worse.
"""

from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.annealing import STEPS_PER_EVENT, STEPS_PER_RUN
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.compiler import random_state
from splitnet.planner.engine.makespan import Tasks, makespan, tasks_of
from splitnet.planner.engine.multilevel import (
    AnnealingRun,
    Multilevel,
    fused,
    member_of,
    merge_edges,
)
from splitnet.planner.engine.packing import random_start, repaired
from splitnet.planner.engine.starts import (
    Chains,
    Elite,
    Incumbent,
    list_schedule,
    random_order,
)
from splitnet.planner.problem import (
    Floats,
    Ints,
    Problem,
    bytes_per_device,
    contract,
    cut_size,
    device_line,
    equivalent_devices,
    is_allowed,
    is_contiguous,
    loads,
)

__all__ = ["Incumbent", "search"]

_STEPS_PER_PEAK = 40
"""Steps that it takes per unit to know what devices hold at their peaks."""

_STEPS_PER_TURN = 200
"""Steps of a turn besides what it counts."""

_KEPT = 0.9
"""Of bytes that peaks were above sums, after an assignment where they are less."""


_ROOMY = 2
"""Where so many times the bytes that peaks were above sums have room, only the best
assignments are simulated for what they hold."""

_CORRECTIONS = 4
"""How often a turn goes on with the room that the peaks of its answer need."""

_NEW_LENGTH, _LENGTH = 0.06, 0.25
"""Of the steps so far, those of a turn on a step: from a new start, a good one."""

_LEAST_NEW, _MOST_NEW, _RECENT, _GOOD = 0.1, 0.6, 0.2, 3
"""Of the turns on a step, those with a new start; weight of the last turn in how often
a kind of turn has helped: its answer is one of so many best."""


class _Style(NamedTuple):
    """Steps of construction at first, fractions of steps, and of kinds of improvement.

    The rest of the improvements starts from one good assignment. The first has `steps`,
    each further one is longer by the fraction `growth` of that. Those of a step have
    rules of their own.
    """

    first: float
    construct: float
    fresh: float
    combine: float
    steps: float
    growth: float


class _Search:
    """What the turns of one search share.

    Attributes:
        best: The best assignment found; its value counts cuts.
        nearest: How full its fullest device is, and what else is the least bad.
    """

    def __init__(
        self,
        problem: Problem,
        objective: str,
        contiguity: str,
        budget: Budget,
        seed: int,
    ) -> None:
        self.problem, self.objective, self.budget = problem, objective, budget
        self.contiguity, self.capacity = contiguity, problem.graph.capacity_bytes
        self.state, self.random = random_state(seed), np.random.default_rng(seed)
        self.units, self.turns, self.constructed = len(problem.group_of_unit), 0, 0
        self.tasks: Tasks | None = None
        groups = problem.group_count
        steps = max(10_000.0, 20.0 * groups)
        if objective == "latency":
            assert problem.step is not None, "a makespan is that of a step"
            self.tasks = tasks_of(problem)
            events = self.units * (3 if problem.functions is None else 1)
            self.whole = STEPS_PER_RUN + STEPS_PER_EVENT * events
            first, steps = 150 * self.whole, max(3000, 600 * self.whole)
            style = _Style(first, 0.0, 0.0, 0.1, steps, 0.0)
        elif contiguity == "free":
            style = _Style(0.0, 0.08, 0.3, 0.45, steps, 1 / 250)
        else:
            style = _Style(0.0, 0.5, 0.0, 0.0, 2 * steps, 1 / 100)
        self.style, self.chains = style, Chains(problem)
        self.kind = np.array(equivalent_devices(problem))
        self.margin = self.parent = np.zeros(problem.device_count)
        self.ratio = np.ones(problem.device_count)
        self.multilevel = Multilevel(
            contiguity, budget, self.random, self.state, self.tasks
        )
        self.elite, self.helped = Elite(10), [1.0, 1.0]
        self.chain = self.best = Incumbent(inf, np.zeros(groups, np.int64))
        self.nearest = Incumbent(inf, np.zeros(groups, np.int64))

    def keep(self, place: Ints) -> Floats | None:
        """Add an assignment to the best ones if it keeps all constraints.

        If only its peaks have no room: the bytes by which they are above sums.
        """
        problem, graph = self.problem, self.problem.graph
        if not is_allowed(graph, place):
            return None
        if not is_contiguous(problem, place, self.contiguity):
            return None
        held = used = bytes_per_device(graph, place)
        value = inf
        if np.all(used <= self.capacity * (1 + 1e-12)):
            value = self._seconds(place)
        peaks = problem.step is not None and value < self.best.value
        if self.tasks is not None and self.elite.takes(value):
            peaks |= bool(np.any(used + _ROOMY * self.margin > self.capacity))
        if peaks:
            held = problem.held_bytes(place)
            self.budget.spend(_STEPS_PER_PEAK * self.units)
            sums, most = np.bincount(self.kind, used), np.bincount(self.kind, held)
            self.ratio = (np.maximum(most, 1.0) / np.maximum(sums, 1.0))[self.kind]
        if self.objective == "memory" and value < inf:
            value = float(held.max(initial=0.0))
        value *= 1 + problem.cut_penalty * cut_size(graph, place)
        full = float((held / np.maximum(self.capacity, 1.0)).max(initial=0.0))
        if full < self.nearest.value:
            self.nearest = Incumbent(full, place)
        if peaks:
            margin, broken = held - used, held > self.capacity
            kept = np.where(self.margin > margin, _KEPT, 1.0)
            mean = kept * self.margin + (1 - kept) * margin
            self.margin = np.where(broken, margin, mean)
            self.problem = self.with_room(self.margin)
            if full > 1:
                self.parent[broken] = margin[broken]
                return margin
        if value < self.best.value:
            self.best = Incumbent(value, place)
            self.budget.report(value)
        margin = held - used if peaks else self.margin.copy()
        self.elite.add(graph, value, place, margin)
        return None

    def with_room(self, margin: Floats) -> Problem:
        """The problem with the memory of each device, less a margin."""
        room = np.maximum(self.capacity - margin, 1.0)
        graph = self.problem.graph._replace(capacity_bytes=room)
        return replace(self.problem, graph=graph)

    def _seconds(self, place: Ints) -> float:
        """Makespan or largest load, without cuts; nothing if memory is minimised."""
        if self.objective == "memory":
            return 0.0
        if self.tasks is None:
            return max(loads(self.problem.graph, place), default=0.0)
        self.budget.spend(self.whole)
        return makespan(self.tasks, place, inf)

    def turn(self) -> None:
        """Construct an assignment, or improve the best ones."""
        target, step = self.problem, True
        known = bool(self.elite.members)
        if known and self.objective == "memory":
            target = self._bytes_for_seconds(np.ones_like(self.capacity))
            room = self.problem.graph.capacity_bytes
            target = replace(target, graph=target.graph._replace(capacity_bytes=room))
        elif not known and (self.objective != "throughput" or self.turns % 2):
            target, step = self._bytes_for_seconds(self.capacity), False
        began, self.turns = self.budget.spent, self.turns + 1
        self.parent = np.zeros_like(self.capacity)
        self.budget.spend(_STEPS_PER_TURN)
        if self.constructed <= self.style.first + self.style.construct * began:
            self.construct(target)
            self.constructed += self.budget.spent - began
        elif known and self.objective == "memory" and self.turns % 4 == 0:
            self.relieve()
        elif step and self.tasks is not None:
            self.improve_step()
        else:
            self.improve(target)

    def relieve(self) -> None:
        """Move a group off the fullest device of the best assignment, if that helps."""
        value, place, _ = self.best
        held = self.problem.held_bytes(place)
        self.budget.spend(_STEPS_PER_PEAK * self.units)
        groups = np.flatnonzero(place == held.argmax())
        for group in self.random.permutation(groups)[:20]:
            for device in np.flatnonzero(self.problem.graph.allowed[group]):
                other = place.copy()
                other[group] = device
                self.keep(other)
                if self.best.value < value or not self.budget.left:
                    return

    def construct(self, target: Problem) -> None:
        """A list schedule for large steps, else a partition of a chain.

        Pipelines are mostly cut from orders near the best one.
        """
        graph, random = target.graph, self.random
        if self.tasks is not None and target is self.problem:
            self.keep(self.scheduled())
            return
        depth, most, stage = float(random.choice([0.5, 0.9, 0.97, 1.0])), inf, None
        if self.tasks is None and self.chain.value < inf:
            most = self.chain.value * (1 - 1e-9)
            if random.random() < 0.75:
                line = device_line(target, self.chain.place)
                stage = None if line is None else line[self.chain.place]
        order = random_order(graph, depth, random, stage)
        place, steps = self.chains.cut(graph, order, most=most)
        self.budget.spend(steps)
        if place is not None:
            self.chain = Incumbent(max(loads(graph, place)), place)
            self.keep(place)

    def scheduled(self) -> Ints:
        """A list schedule, mostly a noisy one, sometimes of clusters."""
        problem, random, groups = self.problem, self.random, self.problem.group_count
        cluster, most = np.arange(groups), 2 * self.problem.device_count
        noise = float(random.random()) if self.turns > 4 else 0.0
        if noise and groups > most and random.random() < 0.5:
            target = int(groups * (most / groups) ** random.random())
            rating = float(random.choice([0.0, 0.15, 0.3, 0.5]))
            cluster, count = merge_edges(
                problem.graph, 0 * cluster, target, random, rating=rating
            )
            problem = contract(problem, cluster, count)
        self.budget.spend((1.0 + 0.1 * problem.device_count) * groups)
        return list_schedule(problem.graph, noise, random, self.state)[cluster]

    def improve(self, target: Problem) -> None:
        """Anneal loads from a random assignment, what two share, or a good one."""
        random, style, members = self.random, self.style, self.elite.members
        groups, draw, hot = target.group_count, random.random(), 0.3
        keep = np.zeros(groups, np.int64)
        clusters, seconds = 22 * 3.0 ** random.random(), 0.25 + 0.45 * random.random()
        if self.contiguity != "free" and not members:
            keep = start = self.nearest.place
        elif len(members) < 4 and style.fresh or draw < style.fresh or not members:
            start = random_start(target.graph, random)
        elif len(members) > 1 and draw < style.fresh + style.combine:
            start, keep, _ = self.two_members()
            hot = 0.2
        else:
            start = keep = members[int(random.integers(len(members)))].place
            hot = 0.1
        if self.contiguity != "free":
            hot = float(random.choice([0.1, 0.03, 0.01]))
            clusters = groups / 2 * 0.1 ** random.random()
            if random.random() < 0.2:
                clusters = groups
        run = AnnealingRun(
            style.steps * (1 + style.growth * self.turns),
            clusters,
            seconds * self.most_seconds(target),
            hot,
            exponent=12 if random.random() < 0.67 else 24,
            rating=float(random.choice([0.0, 0.15, 0.3, 0.5])),
            noise=float(random.choice([0.1, 0.5])),
        )
        self.keep(self.multilevel.place(target, start, keep, run, step=False))

    def improve_step(self) -> None:
        """Anneal a step from a new assignment, a good one, or what two share."""
        random, members, target = self.random, self.elite.members, self.problem
        groups = target.group_count
        spent = min(self.budget.spent, 600 * groups * self.whole)
        seconds = self.most_seconds(target)
        share = self.helped[1] / sum(self.helped)
        new = random.random() < min(_MOST_NEW, max(_LEAST_NEW, share))
        length = max(self.style.steps, (_NEW_LENGTH if new else _LENGTH) * spent)
        if new:
            start, keep = self.new_start(0.3 * length)
            hot, clusters = 0.01 * 6.0 ** random.random(), 0.02 * groups
            clusters *= 10.0 ** random.random()
            seconds *= float(random.choice([0.3, 1.0]))
        else:
            rank = int(random.random() ** 3 * len(members))  # mostly a good one
            _, start, self.parent = members[rank]
            keep, hot = start, 0.012 * 6.0 ** random.random()
            if len(members) > 1 and random.random() < self.style.combine:
                start, keep, self.parent = self.two_members()
            target = self.with_room(self.parent)
            clusters = groups / 2 * 0.1 ** random.random()
            if random.random() < 0.5:
                clusters = groups
        run = AnnealingRun(
            length,
            max(clusters, 2 * target.device_count),
            seconds,
            hot,
            exponent=12,
            rating=float(random.choice([0.15, 0.3, 0.5])),
            noise=float(random.choice([0.1, 0.5])),
        )
        good = members[:_GOOD]
        for _ in range(_CORRECTIONS):
            start = keep = self.multilevel.place(target, start, keep, run, step=True)
            margin = self.keep(start)
            if margin is None or not self.budget.left:
                break
            target = self.with_room(margin)
            run = run._replace(steps=run.steps / 4, clusters=groups, hot=0.01)
        helped = any(one is not other for one, other in zip(members, good))
        self.helped[new] += _RECENT * (helped - self.helped[new])

    def new_start(self, most_steps: float) -> tuple[Ints, Ints]:
        """A chain partition or a list schedule, and what merging has to keep apart."""
        graph, random = self.problem.graph, self.random
        cheap = self.chains.steps(graph) < most_steps
        if self.contiguity != "free" or (cheap and random.random() < 0.4):
            depth = float(random.choice([0.5, 0.9, 0.97, 1.0]))
            place, steps = self.chains.cut(graph, random_order(graph, depth, random))
            self.budget.spend(steps)
            if place is not None:
                return place, place
        return self.scheduled(), np.zeros(len(graph.size_bytes), np.int64)

    def two_members(self) -> tuple[Ints, Ints, Floats]:
        """One of two good assignments, what both have in common, and its margin."""
        members = self.elite.members
        i, j = sorted(self.random.choice(len(members), 2, replace=False))
        start = members[i].place
        keep = start * self.problem.device_count + members[j].place
        return start, keep, members[i].margin

    def most_seconds(self, target: Problem) -> float:
        """Of a cluster: what a device computes if all compute as long."""
        fastest = target.graph.seconds.min(axis=1, initial=inf).sum()
        limited = int(np.isfinite(self.capacity).sum())
        return float(fastest) / (limited or target.device_count)

    def _bytes_for_seconds(self, scale: Floats) -> Problem:
        """The problem with bytes for seconds, so that the load is what devices hold.

        Bytes are in units of `scale`, and as many more as peaks were above sums.
        Transfers cost next to nothing, so that among equal assignments few cross.
        """
        graph, devices = self.problem.graph, len(scale)
        seconds = graph.size_bytes[:, None] * (self.ratio / np.maximum(scale, 1.0))
        nets = np.tile(graph.net_seconds.max(axis=1, initial=0.0)[:, None], devices)
        if nets.sum() > 0:
            nets *= 0.01 * seconds.sum() / devices / nets.sum()
        graph = graph._replace(
            seconds=seconds,
            kind=np.arange(devices),
            net_seconds=nets,
            capacity_bytes=np.full(devices, inf),
        )
        return replace(self.problem, graph=graph)


def search(
    problem: Problem,
    objective: str,
    budget: Budget,
    *,
    contiguity: str = "free",
    seed: int = 0,
    starts: list[Ints] | None = None,
) -> Incumbent:
    """The best assignment found; its value counts cuts and is infinite if none fits.

    Args:
        problem: What to place.
        objective: "latency", "throughput" or "memory".
        budget: How long.
        contiguity: "free", "convex" or "pipeline".
        seed: Of the random numbers.
        starts: Assignments to begin with.
    """
    cluster = np.arange(problem.group_count)
    if contiguity == "pipeline":
        problem, cluster = fused(problem)
    one = _Search(problem, objective, contiguity, budget, seed)
    graph = problem.graph
    singles = np.arange(problem.device_count)[:, None]
    singles = np.where(graph.allowed.T, singles, graph.allowed.argmax(axis=1))
    for start in [member_of(cluster, problem.group_count, s) for s in starts or []]:
        one.keep(start)
        one.keep(repaired(graph, start))
    for d in dict.fromkeys(one.kind.tolist()):
        one.keep(repaired(graph, singles[one.kind.tolist().index(d)]))
    while budget.left or not one.turns:
        one.turn()
    found = one.best if one.best.value < inf else Incumbent(inf, one.nearest.place)
    return Incumbent(found.value, found.place[cluster])
