"""Search for the best assignment, whatever is minimised.

A memetic multilevel scheme, as in Sanders and Schulz, "Distributed Evolutionary Graph
Partitioning" (2012), in turns of two kinds:

construct   a chain partition of a new order or, for a step, a list schedule
improve     one or two of the best assignments, or a new one: groups are merged along
            expensive edges, the clusters annealed, and refined while they are taken
            apart again

A turn begins anew as often as that has helped of late. What is merged keeps to the
assignment that a turn begins with, unless that is a list schedule or random: those cut
so many edges that hardly any group could be merged.

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
from splitnet.planner.engine.load_graph import (
    Floats,
    Ints,
    bytes_per_device,
    cut_size,
    is_allowed,
    loads,
)
from splitnet.planner.engine.makespan import makespan
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
from splitnet.planner.engine.tasks import Tasks, tasks_of
from splitnet.planner.problem import (
    Problem,
    contract,
    device_line,
    equivalent_devices,
    is_contiguous,
)

__all__ = ["search"]

_STEPS_PER_PEAK = 40
"""Steps that it takes per unit to know what devices hold at their peaks."""

_STEPS_PER_TURN = 200
"""Steps of a turn besides what it counts."""

_KEPT = 0.9
"""Of bytes that peaks were above sums, after an assignment where they are less."""

_ROOMY = 2
"""Where so many times the bytes that peaks were above sums have room, only the best
assignments are simulated for what they hold."""

_CHEAP = 0.02
"""Of the steps so far, those that a chain partition may take where list schedules are
possible."""

_CORRECTIONS = 4
"""How often a turn goes on with the room that the peaks of its answer need."""

_LEAST_NEW, _MOST_NEW, _RECENT, _GOOD = 0.1, 0.6, 0.2, 3
"""Of the turns, those with a new start; weight of the last turn in how often a kind of
turn has helped: its answer is one of so many best."""


class _Style(NamedTuple):
    """How the turns of one kind of problem spend their steps.

    Attributes:
        first: Steps of construction before anything is improved.
        construct: Fraction of the steps for it later on.
        new: Whether turns begin anew at all.
        combine: Of the other turns, those that begin with what two have in common.
        steps: Of a turn, beside the fractions `growth` of those so far for turns that
            begin anew and for others.
        hot: Least temperature to begin with, of a power of the value.
        coarse: Whether every turn merges as far as those that begin anew.
    """

    first: float
    construct: float
    new: bool
    combine: float
    steps: float
    growth: tuple[float, float]
    hot: float
    coarse: bool


class _Search:
    """What the turns of one search share.

    Attributes:
        best: The best assignment found; its value counts cuts.
        nearest: How full its fullest device is, and what else is the least bad.
        margin: Bytes by which peaks are above sums, of assignments like the last ones.
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
            self.tasks = tasks_of(problem)
            events = self.units * (3 if problem.functions is None else 1)
            self.whole = STEPS_PER_RUN + STEPS_PER_EVENT * events
            first, steps = 150 * self.whole, max(3000, 600 * self.whole)
            growth = (0.06, 0.25)
            self.style = _Style(first, 0.0, True, 0.1, steps, growth, 0.01, False)
        elif contiguity == "free":
            growth = (0.004, 0.004)
            self.style = _Style(0.0, 0.08, True, 0.6, steps, growth, 0.05, True)
        else:
            growth = (0.01, 0.01)
            self.style = _Style(0.0, 0.5, False, 0.0, 2 * steps, growth, 0.01, False)
        self.chains = Chains(problem)
        self.kind = np.array(equivalent_devices(problem))
        self.margin = np.zeros(problem.device_count)
        self.ratio = np.ones(problem.device_count)
        self.multilevel = Multilevel(contiguity, budget, self.random, self.state)
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
        fits = bool(np.all(used <= self.capacity * (1 + 1e-12)))
        value = self._seconds(place) if fits else inf
        peaks = problem.step is not None and value < self.best.value
        if self.tasks is not None and self.elite.takes(value):
            peaks |= bool(np.any(used + _ROOMY * self.margin > self.capacity))
        if peaks:
            held = problem.held_bytes(place)
            self.budget.spend(_STEPS_PER_PEAK * self.units)
            sums, most = np.bincount(self.kind, used), np.bincount(self.kind, held)
            self.ratio = (np.maximum(most, 1.0) / np.maximum(sums, 1.0))[self.kind]
            fits, above = bool(np.all(held <= self.capacity)), held - used
            usual = np.maximum(above, _KEPT * self.margin)
            self.margin = np.where(held > self.capacity, above, usual)
            self.problem = self.with_room(self.margin)
        full = float((held / np.maximum(self.capacity, 1.0)).max(initial=0.0))
        if full < self.nearest.value:
            self.nearest = Incumbent(full, place)
        if not fits:
            return held - used if peaks else None
        if self.objective == "memory":
            value = float(held.max(initial=0.0))
        value *= 1 + problem.cut_penalty * cut_size(graph, place)
        if value < self.best.value:
            self.best = Incumbent(value, place)
            self.budget.report(value)
        margin = held - used if peaks else self.margin.copy()
        self.elite.add(graph, Incumbent(value, place, margin))
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
        began, known, tasks = self.budget.spent, bool(self.elite.members), self.tasks
        target, self.turns = self.problem, self.turns + 1
        odd = self.objective == "throughput" and self.turns % 2
        if self.objective == "memory" or not (known or odd):
            target, tasks = self._bytes_for_seconds(known), None
        self.budget.spend(_STEPS_PER_TURN)
        if self.constructed <= self.style.first + self.style.construct * began:
            self.keep(self.constructed_start(target, tasks)[0])
            self.constructed += self.budget.spent - began
        elif known and self.objective == "memory" and self.turns % 4 == 0:
            self.relieve()
        else:
            self.improve(target, tasks)

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

    def constructed_start(
        self, target: Problem, tasks: Tasks | None
    ) -> tuple[Ints, Ints]:
        """A list schedule of a step or a chain partition, and what merging keeps apart.

        Pipelines are mostly cut from orders near the best one.
        """
        graph, random, most, stage = target.graph, self.random, inf, None
        cheap = self.chains.steps(graph) < _CHEAP * self.budget.spent
        chain = tasks is None or self.contiguity != "free"
        if not chain and (not cheap or random.random() < 0.6):
            place = self.scheduled()
            return place, np.zeros_like(place)
        if tasks is None and self.chain.value < inf:
            most = self.chain.value * (1 - 1e-9)
            if random.random() < 0.75:
                line = device_line(target, self.chain.place)
                stage = None if line is None else line[self.chain.place]
        order = random_order(graph, random, stage)
        found = self.chains.cut(graph, order, most=most)
        self.budget.spend(self.chains.steps(graph))
        if found is None:
            return self.nearest.place, self.nearest.place
        if tasks is None:
            self.chain = Incumbent(max(loads(graph, found)), found)
        return found, found

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

    def improve(self, target: Problem, tasks: Tasks | None) -> None:
        """Anneal a new assignment, a good one, or what two good ones share."""
        random, style, members = self.random, self.style, self.elite.members
        groups, good = target.group_count, self.elite.members[:_GOOD]
        share = self.helped[1] / sum(self.helped)
        new = style.new and random.random() < min(_MOST_NEW, max(_LEAST_NEW, share))
        new |= not members
        parent, keep = self.start(tasks, new=new)
        start = parent.place
        if tasks is not None:
            target = self.with_room(parent.margin)
        clusters = (22 + 0.02 * groups) * 3 ** random.random()
        if not (new or style.coarse):
            clusters = groups / 2 * 0.1 ** random.random()
            if random.random() < 0.5:
                clusters = groups
        spent = min(self.budget.spent, 1000 * style.steps)
        run = AnnealingRun(
            style.steps + style.growth[not new] * spent,
            max(clusters, 2 * target.device_count),
            self._most_seconds(target) * float(random.choice([0.3, 0.6, 1.0])),
            style.hot * 6.0 ** random.random(),
            exponent=12 if tasks is not None or random.random() < 0.67 else 24,
            rating=float(random.choice([0.0, 0.15, 0.3, 0.5])),
        )
        for _ in range(_CORRECTIONS):
            start = keep = self.multilevel.place(target, start, keep, run, tasks)
            margin = self.keep(start)
            if margin is None or tasks is None or not self.budget.left:
                break
            parent.margin[:] = np.maximum(parent.margin, margin)
            target = self.with_room(margin)
            run = run._replace(steps=run.steps / 4, clusters=groups, hot=0.01)
        helped = any(one is not other for one, other in zip(members, good))
        self.helped[new] += _RECENT * (helped - self.helped[new])

    def start(self, tasks: Tasks | None, *, new: bool) -> tuple[Incumbent, Ints]:
        """What to begin with, and what merging has to keep apart."""
        random, members, graph = self.random, self.elite.members, self.problem.graph
        if not new:
            rank = int(random.random() ** 3 * len(members))  # mostly a good one
            keep = members[rank].place
            if random.random() < self.style.combine:
                other = members[int(random.integers(len(members)))].place
                keep = keep * self.problem.device_count + other
            return members[rank], keep
        if tasks is not None:
            place, keep = self.constructed_start(self.problem, tasks)
        elif self.contiguity != "free":
            place = keep = self.nearest.place
        else:
            place, keep = random_start(graph, random), 0 * self.nearest.place
        return Incumbent(inf, place, self.margin.copy()), keep

    def _most_seconds(self, target: Problem) -> float:
        """Of a cluster: what a device computes if all compute as long."""
        fastest = target.graph.seconds.min(axis=1, initial=inf).sum()
        limited = int(np.isfinite(self.capacity).sum())
        return float(fastest) / (limited or target.device_count)

    def _bytes_for_seconds(self, known: bool) -> Problem:
        """The problem with bytes for seconds, so that the load is what devices hold.

        As many more as peaks were above sums; fractions of the capacity, which is no
        limit then, while nothing is known to fit. Transfers cost next to nothing, so
        that among equal assignments few cross.
        """
        graph, devices = self.problem.graph, self.problem.device_count
        scale = np.ones(devices) if known else np.maximum(self.capacity, 1.0)
        seconds = graph.size_bytes[:, None] * (self.ratio / scale)
        nets = np.tile(graph.net_seconds.max(axis=1, initial=0.0)[:, None], devices)
        if nets.sum() > 0:
            nets *= 0.01 * seconds.sum() / devices / nets.sum()
        graph = graph._replace(
            seconds=seconds,
            kind=np.arange(devices),
            net_seconds=nets,
            capacity_bytes=graph.capacity_bytes if known else np.full(devices, inf),
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
