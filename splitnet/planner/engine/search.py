"""Search for the best assignment, whatever is minimised.

A memetic multilevel scheme, as in Sanders and Schulz, "Distributed Evolutionary Graph
Partitioning" (2012), in turns of two kinds:

construct   a chain partition of a new order, if loads are minimised
improve     one or two of the best assignments, or a new one: groups are merged, short
            chains or along expensive edges, and refined as they are taken apart

What devices hold at their peaks is estimated with the makespan, else as sums of bytes.
What the simulator finds above that lowers the capacity with which the search goes on;
while nothing fits, bytes are minimised instead, as for the objective "memory".
"""

from bisect import insort
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from splitnet.core.plan import CONTIGUITIES
from splitnet.planner import load_graph
from splitnet.planner import problem as problems
from splitnet.planner.engine import annealing, starts
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.compiler import random_state
from splitnet.planner.engine.functions import merged, regrouped
from splitnet.planner.engine.makespan import makespan
from splitnet.planner.engine.tasks import Tasks, tasks_of
from splitnet.planner.engine.uncompiled import repaired, with_bytes_as_seconds
from splitnet.planner.load_graph import Floats, Ints
from splitnet.planner.problem import Problem

_STEPS_PER_PEAK = 50  # and unit, of a simulation with what devices hold
# Steps of a proposal, of a net of its group, and of a call whose path is followed.
_STEPS_PER_PROPOSAL, _STEPS_PER_NET, _STEPS_PER_CALL = 0.07, 0.02, 0.002
# Of bytes that peaks were above estimates, after an assignment where they are less;
# where so many times those, and of the capacity, are left an assignment is taken to fit
# until the end. An estimate of so many times the capacity is not simulated.
_KEPT, _ROOMY, _UNSURE, _TOO_FULL = 0.9, 2, 0.1, 1.2
_ELITE = 10  # best assignments that are kept
_NEW, _CHAINS = (0.15, 0.4), 0.8  # of turns: with new starts of calls, of parts; chains
# Most groups and bytes of a chain; how often, per group, a turn simulates merged parts.
_CHAIN, _QUICK = (3.0, inf), 1e-4
# List schedules to begin with; how often a turn goes on with the room that peaks need.
_SCHEDULES, _CORRECTIONS = 10, 4


class Incumbent(NamedTuple):
    """An assignment and its value."""

    value: float
    place: Ints


_Level = tuple[Problem, Tasks | None]
"""What is annealed: a problem, and the tasks of its step if its makespan counts."""


class _Search:
    """What the turns of one search share."""

    def __init__(self, problem: Problem, goal: str, budget: Budget, seed: int) -> None:
        self.problem, self.objective, self.budget = problem, goal, budget
        self.capacity = problem.graph.capacity_bytes
        self.state, self.random = random_state(seed), np.random.default_rng(seed)
        self.units, self.constructed, self.begun = len(problem.group_of_unit), 0, 0
        groups, self.free = problem.group_count, problem.contiguity == "free"
        self.tasks = tasks_of(problem) if goal == "latency" else None
        # Steps of a turn; fractions of those so far besides, of turns that begin anew
        # and of others; the fraction of steps for chain partitions; of the other turns,
        # those that begin with what two good assignments have in common; how much more
        # often those are the best ones; and the least temperature, of loads' power.
        self.steps = max(10_000.0, 20.0 * groups) * (2 - self.free)
        rules = (0.01, 0.01), 0.5, 0.0, 3, 0.01
        if self.tasks is not None:
            events = self.units * (7 if problem.functions is None else 4)
            self.whole = annealing.STEPS_PER_RUN + annealing.STEPS_PER_EVENT * events
            self.steps = max(3000.0, 300 * self.whole)
            rules = (0.06, 0.25), 0.1 * (not self.free), 0.2, 6, 0.01
        elif self.free:
            rules = (0.004, 0.004), 0.08, 0.6, 3, 0.05
        self.growth, self.construct, self.combine, self.greed, self.hottest = rules
        # Parts run one by one; merged ones are quick to simulate, as one function.
        self.parts = self.tasks is not None and problem.functions is None
        self.hot = self.end = self.guided = 0.0  # of this turn
        self.kind = np.array(problems.equivalent_devices(problem))
        # Bytes by which peaks are above estimates, of assignments like the last ones.
        self.margin = np.zeros(problem.device_count)
        self.elite: list[Incumbent] = []
        self.best = Incumbent(inf, np.zeros(groups, np.int64))
        self.nearest = self.best  # the value is how full its fullest device is

    def takes(self, value: float) -> bool:
        """Whether an assignment of this value would be one of the best."""
        full = len(self.elite) >= _ELITE and value >= self.elite[-1].value
        near = (abs(value - one.value) <= 1e-9 * value for one in self.elite)
        return value < inf and not full and not any(near)

    def keep(self, place: Ints) -> Floats | None:
        """Add to the best if allowed; what lacks if only its peaks have no room."""
        problem, graph = self.problem, self.problem.graph
        if not problems.is_legal(problem, place):
            return None
        held = used = load_graph.bytes_per_device(graph, place)
        fits = bool(np.all(used <= self.capacity * (1 + 1e-12)))
        value, known = self.value_of(place) if fits else inf, bool(self.elite)
        if self.tasks is not None and fits:
            held = used = self.tasks.devices.peak.copy()
            value = value if np.all(used <= _TOO_FULL * self.capacity) else inf
        peaks = value < self.best.value
        if (known or self.tasks is not None) and self.objective != "memory":
            peaks |= self.tasks is not None and self.takes(value)
            unsure = np.maximum(_ROOMY * self.margin, _UNSURE * self.capacity)
            peaks &= bool(np.any(used + unsure > self.capacity))
        if peaks:
            _, held = problem.simulated(place)
            self.budget.spend(_STEPS_PER_PEAK * self.units)
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
        value *= 1 + problem.cut_penalty * load_graph.cut_size(graph, place)
        one = Incumbent(value, place)
        if value < self.best.value:
            self.best = one
            self.budget.report(value)
        if self.takes(value):
            insort(self.elite, one, key=lambda member: member.value)
            del self.elite[_ELITE:]
        return None

    def found(self) -> Incumbent:
        """The best assignment whose peaks have room, as far as any is known."""
        for one in self.elite:
            if np.all(self.problem.simulated(one.place)[1] <= self.capacity):
                return one
        return self.nearest._replace(value=inf)

    def with_room(self, margin: Floats) -> Problem:
        """The problem with the memory of each device, less a margin."""
        room = np.maximum(self.capacity - margin, 1.0)
        graph = self.problem.graph._replace(capacity_bytes=room)
        return replace(self.problem, graph=graph)

    def value_of(self, place: Ints) -> float:
        """Makespan or largest load, without cuts; nothing if memory is minimised."""
        if self.objective == "memory":
            return 0.0
        if self.tasks is None:
            return max(load_graph.loads(self.problem.graph, place), default=0.0)
        self.budget.spend(self.whole)
        return makespan(self.tasks, place, inf)

    def begin(self, places: list[Ints]) -> None:
        """Keep the best start, repaired to fit: given, one device or a list schedule.

        With a cut penalty schedules are left out: what is best without one is given.
        """
        graph = self.problem.graph
        places += problems.single_devices(self.problem)
        roomy = graph._replace(capacity_bytes=graph.capacity_bytes + inf)
        if self.tasks is not None and self.free and not self.problem.cut_penalty:
            for number in range(_SCHEDULES if self.budget.left else 0):
                self.budget.spend((3.0 + 0.1 * len(graph.kind)) * len(graph.size_bytes))
                room = graph if number % 2 else roomy
                places.append(starts.list_schedule(room, self.random))
        for place in sorted(places, key=self.value_of):
            for _ in range(_CORRECTIONS if self.tasks else 2):  # until peaks have room
                self.keep(place)
                if self.elite and self.objective == "latency":
                    return
                above = self.margin
                if self.tasks is not None:
                    self.value_of(place)
                    above = self.tasks.devices.peak + self.margin
                    above -= load_graph.bytes_per_device(graph, place)
                place = repaired(self.with_room(above).graph, place)

    def turn(self) -> None:
        """Construct an assignment, or improve the best ones."""
        began, known, tasks = self.budget.spent, bool(self.elite), self.tasks
        target = self.problem
        if self.objective == "memory" or not known:
            scale, room = np.ones(len(self.capacity)), target.graph.capacity_bytes
            if not known:
                scale, room = np.maximum(room, 1.0), room + inf
            target, tasks = with_bytes_as_seconds(target, scale, room), None
        self.budget.spend(200)
        if self.constructed < self.construct * began:
            # Mostly of an order near that of the best one.
            best, near = self.best.place, known and self.random.random() < 0.75
            line = problems.device_line(target, best) if near else None
            stage = None if line is None else line[best]
            order = starts.random_order(target.graph, self.random, stage)
            found = starts.chain_partition(target.graph, self.kind, order, self.budget)
            self.keep(self.nearest.place if found is None else found)
            self.constructed += self.budget.spent - began
        else:
            self._improve(target, tasks)

    def _improve(self, target: Problem, tasks: Tasks | None) -> None:
        """Anneal a new assignment, a good one, or what two good ones share."""
        random, groups, new = self.random, target.group_count, not self.elite
        new |= random.random() < _NEW[self.parts] and (self.free or tasks is not None)
        if new:
            start, keep = self.nearest.place, self.nearest.place * (not self.free)
        else:
            number = int(random.random() ** self.greed * len(self.elite))
            start = keep = self.elite[number].place
            if random.random() < self.combine:
                other = self.elite[int(random.integers(len(self.elite)))].place
                keep = start * self.problem.device_count + other
        clusters = (22 + 0.02 * groups) * 3 ** random.random()
        if not new and (tasks is not None or not self.free):
            clusters = groups / 2 * 0.1 ** random.random()
            clusters = groups if random.random() < 0.5 else clusters
        spent = min(self.budget.spent, 1000 * self.steps)
        self.begun += new  # every second time with paths
        if new and tasks is not None and self.free and self.begun % 2:
            self.budget.spend(4 * groups)
            start = keep = repaired(target.graph, starts.paths_apart(target, random))
            new = False  # groups on unlike devices are not merged
        steps = self.steps + self.growth[not new] * spent
        self.guided = 0.7 * (self.tasks is None and random.random() < 0.5)
        self.hot, anew = self.hottest * 6.0 ** random.random(), new and self.free
        for _ in range(_CORRECTIONS):
            self.end, level = self.budget.spent + steps, (target, tasks)
            start = keep = self._multilevel(level, start, keep, clusters, new=anew)
            above = self.keep(start)
            if above is None or tasks is None or not self.budget.left:
                break
            target, anew = self.with_room(above), False
            steps, clusters, self.hot = steps / 4, groups, 0.01

    def _multilevel(
        self, level: _Level, place: Ints, keep: Ints, clusters: float, *, new: bool
    ) -> Ints:
        """Merge groups, anneal the clusters, and refine while they are taken apart.

        What differs in `keep` is not merged. A `new` assignment is made of clusters.
        """
        finer: list[tuple[_Level, Ints]] = []
        (here, tasks), random = level, self.random
        room, fastest = here.graph.capacity_bytes, here.graph.seconds.min(axis=1).sum()
        limited = np.isfinite(room)
        power, each = random.choice([0.0, 0.15, 0.3, 0.5]), random.choice([0.3, 0.6, 1])
        each *= fastest / (int(limited.sum()) or len(room))  # of equal devices
        most = each, 0.5 * room.max(initial=0.0, where=limited) or inf
        target = max(int(clusters), 2 * here.device_count)
        chains = tasks is not None and random.random() < _CHAINS
        quick = new or not self.parts or random.random() < _QUICK * here.group_count
        merge = merged if quick else regrouped
        while (groups := here.group_count) > target or chains:
            count = target if groups // 2 < 1.5 * target else groups // 2
            how = (1, random, 0.0, _CHAIN) if chains else (count, random, power, most)
            cluster, count = starts.merge_edges(here, keep, *how, chains=chains)
            if count > 0.95 * groups and not chains:
                break
            chains = False
            self.budget.spend(200 + 0.3 * len(here.graph.net_pins))
            finer.append(((here, tasks), cluster))
            here = problems.contract(here, cluster, count)
            place = load_graph.last_of(cluster, count, place)
            keep = load_graph.last_of(cluster, count, keep)
            if tasks is not None:
                self.budget.spend(400 + len(tasks.units))
                tasks = merge(tasks, cluster)
        if new and tasks is not None:
            place = starts.list_schedule(here.graph, random)
        elif new:
            score = random.random(here.graph.allowed.shape) * here.graph.allowed
            place = score.argmax(axis=1)
        if self.free:
            place = repaired(here.graph, place)
        share = 0.5 if finer else 1.0
        while True:
            place = self._anneal((here, tasks), place, share)
            if not finer:
                return place
            (here, tasks), cluster = finer.pop()
            share, place = 1.0 / (len(finer) + 1), place[cluster]
            self.hot = min(self.hot, 0.02)

    def _anneal(self, level: _Level, place: Ints, share: float) -> Ints:
        """Cool down in a share of the turn, to the best assignment on the way."""
        (problem, tasks), budget, graph = level, self.budget, level[0].graph
        state = annealing.state_of(graph, place, self.state)
        if not len(state.movable):
            return place
        penalty = 1 + problem.cut_penalty * state.numbers.cuts
        each = _STEPS_PER_PROPOSAL + _STEPS_PER_NET * len(graph.group_nets) / len(place)
        if problem.contiguity == "convex":
            each += _STEPS_PER_CALL * len(problem.forward.order)
        steps = max(256 * each, share * (self.end - budget.spent))
        proposals, hot, cold = int(max(256, steps / each / 200)), self.hot, 0.002
        if tasks is not None:
            proposals, hot, cold = 8, hot / 12, 2e-5
            value = makespan(tasks, place, inf) * penalty
            over = annealing.excess(tasks, graph.capacity_bytes)
            state.numbers.value, state.numbers.excess = value, over
            state.numbers.best = value * (1 + annealing.OVERFULL * over)
            tasks.counted.events = 0
        elif np.all(state.used <= graph.capacity_bytes):
            state.numbers.best = state.load.max() * penalty
        in_line = problem.contiguity == "pipeline"
        line = problems.device_line(problem, place) if in_line else None
        rules = annealing.Rules(
            *(steps, each, proposals, hot, cold, self.guided, problem.cut_penalty),
            CONTIGUITIES.index(problem.contiguity),
            np.arange(problem.device_count) if line is None else line,
            problem.forward,
            np.zeros(len(problem.forward.group), np.bool_),
        )
        spent = 0.0
        while spent < steps and budget.left:
            given, before = (graph, rules, state, spent), spent
            if tasks is not None:
                spent = annealing.anneal_step(*given, tasks)
            else:
                spent = annealing.anneal_loads(*given)
            budget.spend(spent - before)
        return state.best if state.numbers.best < inf else state.place


def search(
    problem: Problem, objective: str, budget: Budget, seed: int, given: list[Ints]
) -> Incumbent:
    """The best assignment found; its value counts cuts and is infinite if none fits."""
    cluster = np.arange(problem.group_count)
    if problem.contiguity == "pipeline":
        problem, cluster = starts.fused(problem)
    one = _Search(problem, objective, budget, seed)
    one.begin([load_graph.last_of(cluster, problem.group_count, s) for s in given])
    one.turn()
    while budget.left:
        one.turn()
    found = one.found()
    return found._replace(place=found.place[cluster])
