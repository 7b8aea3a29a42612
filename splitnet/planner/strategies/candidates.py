"""Strategies: ways to use a cluster, compared with one simulator and one cost.

placements      one device · stages of even work · what was searched · towers
x executions    at once, or in micro-batches; recomputing where memory lacks
= candidates    each is simulated
-> choose       the simplest of those that are at most 2 % slower than the fastest
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from splitnet.core.plan import Plan, Strategy, StrategyComparison
from splitnet.core.replication import collapse, split_layers
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.planner.evaluate import Evaluator, default_groups, evaluator_of
from splitnet.planner.strategies.space import (
    Placed,
    Space,
    device_counts,
    groups_of,
    may_move,
    obstacles_of,
    stages,
    towers_of_a_part,
    towers_of_stages,
)
from splitnet.simulator.microbatch import pipeline_of, recomputed_parts

_MICROBATCHES = 8
"""Of stages these are tried first; more, or fewer, as long as that is better."""
_AS_GOOD = 0.02
"""Of the step: a simpler strategy may be slower than the fastest by so much."""
_HOST_SECONDS = 1e-3
"""Keras' fit takes so long between two steps: shorter ones do not differ."""
_KINDS = ("one device", "plan", "placement", "split", "towers", "pipeline")
"""Kinds of strategies, the simplest first."""


class Candidate:
    """A placement and how its parts run, simulated; `given` if it is that of a plan.

    `rank` has the bytes that devices lack, then seconds: what is better is less. If it
    `is_full`, weights and slots alone overfill a device, however the parts run. `kind`
    is one of `_KINDS`; what is simpler has less `complexity`; `words` are the options
    that fix this strategy, and `row` is its line in a comparison.
    """

    def __init__(
        self,
        space: Space,
        evaluator: Evaluator,
        device_of: Mapping[str, str],
        given: bool = False,
    ) -> None:
        self.space, self.evaluator, self.device_of = space, evaluator, device_of
        self.execution = one = evaluator.execution
        self.found = found = evaluator.evaluate(device_of)
        self.fits, self.seconds = found.fits, found.timeline.seconds
        self.rank = sum(found.lacking.values()), self.seconds
        lasting = ((d, found.memory[d.name]) for d in evaluator.cluster)
        self.is_full = any(m.weights + m.slots > d.memory_bytes for d, m in lasting)
        busy = found.timeline.compute_seconds
        devices = tuple(name for name, seconds in busy.items() if seconds > 0)
        graph, split = evaluator.graph, space.options.split
        self.towers = max((each.count for each in graph.towers.values()), default=1)
        used = {
            device_of[call.part]
            for call in graph.calls
            if not call.cpu_only
            and not may_move(graph, call.part)
            and graph.part[call.part].kind != "weights"
        }
        kind = "pipeline" if one.microbatches > 1 else "placement"
        kind = "split" if split else kind
        kind = "towers" if self.towers > 1 else kind
        kind = "one device" if len(used) < 2 else kind
        self.kind = kind = "plan" if given else kind
        rank = _KINDS.index(kind), bool(one.recompute)
        self.complexity = *rank, one.microbatches, len(devices)
        said = [f"towers={self.towers}"] if self.towers > 1 else []
        if split:
            said.append(f"split={dict(split)}")
        if one.microbatches > 1:
            said += [f"microbatches={one.microbatches}", f"schedule={one.schedule!r}"]
        if one.recompute and set(devices) <= set(one.recompute):
            said.append("recompute=True")
        self.words = ", ".join(said)
        # What a person types to get it.
        words = ["source", "cluster", "strategy='auto'", self.words]
        if kind == "one device":
            words.insert(2, f"pins={{'*': {max(busy, key=busy.__getitem__)!r}}}")
            if one == Execution():
                words.remove("strategy='auto'")
        elif self.towers == 1:
            words.append("towers=1")
        if one.microbatches == 1 and len(words) > 4:
            words.append("microbatches=1")
        how = f"plan({', '.join(filter(None, words))})"
        if given:
            what = "towers and branches" if self.towers > 1 else "branches"
            how = f"emit(source, plan): {what} on {', '.join(devices[:6])}"
        self.row = Strategy(
            *(kind, self.seconds, how, self.fits, max(busy.values(), default=0.0)),
            sum(copy.bytes for copy in found.timeline.copies),
            max((memory.total for memory in found.memory.values()), default=0),
            devices,
        )


def choose(found: Iterable[Candidate]) -> Candidate | None:
    """The simplest that fits and is at most 2 % slower than the fastest that fits.

    Steps of less than a millisecond are equally fast.
    """
    fitting = [one for one in found if one.fits]
    if not fitting:
        return None
    best = min(one.seconds for one in fitting)
    limit = max(best * (1 + _AS_GOOD), _HOST_SECONDS)
    good = [one for one in fitting if one.seconds <= limit]
    return min(good, key=lambda one: (one.complexity, one.seconds))


def compared(
    found: Iterable[Candidate], chosen: Candidate | None = None
) -> StrategyComparison:
    """The best candidate of each kind; of the chosen one's kind, that one."""
    best = {} if chosen is None else {chosen.kind: chosen}
    for one in sorted(found, key=lambda c: (not c.fits, c.seconds)):
        best.setdefault(one.kind, one)
    rows = [one.row for one in best.values()]
    rows.sort(key=lambda row: (not row.fits, row.seconds))
    return StrategyComparison(tuple(rows), "" if chosen is None else chosen.kind)


def compare_plan(plan: Plan) -> StrategyComparison:
    """Compare the ways to run a plan's model on its cluster, with the plan's costs.

    Nothing is searched: a pipeline keeps the plan's devices, or cuts the calls in their
    order into stages of even work. Of a plan with slices no towers are tried.
    """
    whole = collapse(plan.graph)
    mine = replace(evaluator_of(plan), objective="latency")
    obstacles = obstacles_of(whole)
    if split_layers(whole):
        obstacles["towers"] = "slices of layers are where the plan has them"
    once = replace(mine, execution=Execution())
    groups = default_groups(whole, plan.cluster)
    space = Space(replace(once, graph=whole), groups, obstacles)
    others = Trial(space).run([(once, plan.device_of)])
    own = Candidate(space, mine, plan.device_of, given=True)
    return compared([own, *(one for one in others if one.kind != "placement")])


class Trial:
    """Strategies in turn, simulated.

    A placement is left out where the busiest device alone takes longer than the best
    of its kind. Once a strategy fits, none begins after `until` on the clock.
    """

    def __init__(self, space: Space, until: float = inf) -> None:
        self.space, self.until = space, until
        self.found: list[Candidate] = []
        self.ended_by_clock = False
        self._best: dict[str, float] = {}  # seconds of what fits, by kind

    def run(self, known: Iterable[Placed] = ()) -> list[Candidate]:
        """Every strategy that may be chosen; `known` are placements that were searched.

        Of alternatives one that fits will do.
        """
        done: dict[object, bool] = {}  # whether a placement fits at once
        for kind, alternatives, counts in self._table(known):
            limit = (1 + _AS_GOOD) * self._best.get(kind, inf)
            for evaluator, device_of in alternatives if counts else ():
                if self._is_late():
                    return self.found
                key = (evaluator.graph.parts, *device_of.values())
                at_once, before = 1 in counts, len(self.found)
                if (key, at_once) in done or evaluator.busiest(device_of) > limit:
                    continue
                depth = pipeline_of(evaluator.graph, device_of, Execution()).depth
                if depth < 2 and done.get((key, True)):
                    continue  # pieces of what fits gain nothing on one device
                self._run_counts((evaluator, device_of), counts, depth)
                done[key, at_once] = any(one.fits for one in self.found[before:])
                if done[key, at_once]:
                    break
        return self.found

    def _table(
        self, known: Iterable[Placed]
    ) -> Iterator[tuple[str, Iterable[Placed], Sequence[int]]]:
        """Kinds, alternative placements, and micro-batches."""
        space, evaluator, workers = self.space, self.space.evaluator, self.space.workers
        cluster, counts, fixed = evaluator.cluster, space.counts, space.options.towers
        once, more = [n for n in counts if n == 1], [n for n in counts if n > 1]
        free = [device.name for device in cluster.free_devices]
        home = [name for name in free if name == cluster.home.name]  # of weights
        alone = (space.placed([d] * len(space.groups)) for d in evaluator.unlike(free))
        everywhere = [("one device", [one]) for one in alone if one is not None]
        everywhere += [("placement", [one]) for one in known]
        if fixed in (None, 1):
            yield from ((kind, placed, once) for kind, placed in everywhere)
            for count in reversed(device_counts(len(workers))):
                yield "pipeline", stages(space, workers[:count]), more or once
        if fixed != 1 and "towers" not in space.obstacles and space.is_free:
            most = min(len(workers), evaluator.graph.batch)
            for count in reversed([fixed] if fixed else device_counts(most)):
                for at in dict.fromkeys((*home, workers[0])) if count <= most else ():
                    for whole in (True, False):
                        made = towers_of_a_part(space, workers[:count], at, whole=whole)
                        yield "towers", made, counts
            for size in reversed(device_counts(len(workers) // (fixed or 2))):
                groups = groups_of(workers, size)[: fixed or most]
                for place in (*home, None) if len(groups) >= (fixed or 2) else ():
                    yield "towers", towers_of_stages(space, groups, place), counts
        if fixed in (None, 1):
            yield from ((kind, placed, more) for kind, placed in everywhere)

    def _is_late(self) -> bool:
        late = bool(self._best) and time.monotonic() > self.until
        self.ended_by_clock |= late
        return late

    def _run_counts(self, placed: Placed, counts: Sequence[int], depth: int) -> None:
        """A placement at once or in micro-batches: of stages, as many as are best.

        On one device, so few that it fits.
        """
        schedule = self.space.options.schedule
        start = min(counts, key=lambda n: abs(n - _MICROBATCHES) if depth > 1 else n)
        more = [count for count in counts if count >= start]
        fewer = [count for count in reversed(counts) if count < start]
        best, rank = start, (inf, inf)
        for line in (more, fewer):
            for count in line if best == start else ():
                order = schedule or SCHEDULES[count > 1]
                one = self._fitted(placed, Execution(count, order))
                if one.is_full or self._is_late() or depth < 2 and one.fits:
                    return
                if depth > 1 and one.rank > rank:
                    break
                best, rank = count, one.rank
        if schedule is None and depth > 1 and best > 1:
            self._fitted(placed, Execution(best, SCHEDULES[0]))

    def _fitted(self, placed: Placed, execution: Execution) -> Candidate:
        """The placement run so, recomputing on devices that are full, until it fits."""
        (evaluator, device_of), options = placed, self.space.options
        names = [device.name for device in evaluator.cluster]
        if options.recompute:
            execution = replace(execution, recompute=tuple(names))
        while True:
            judge = replace(evaluator, execution=execution)
            made = Candidate(self.space, judge, device_of)
            self.found.append(made)
            if made.fits:
                best = self._best.get(made.kind, inf)
                self._best[made.kind] = min(best, made.seconds)
            if made.fits or options.recompute is not None or not evaluator.training:
                return made
            full = {*execution.recompute, *made.found.lacking}
            fuller = replace(execution, recompute=tuple(n for n in names if n in full))
            parts = recomputed_parts(evaluator.graph, device_of, fuller)
            if fuller == execution or not parts:
                return made
            execution = fuller
