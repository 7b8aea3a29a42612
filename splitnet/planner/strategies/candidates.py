"""Strategies: ways to use a cluster, compared with one simulator and one cost.

placements      one device · stages of even work · what was searched · towers
x executions    at once, or in micro-batches; recomputing where memory lacks
= candidates    each is simulated
-> choose       the simplest of those that are at most 2 % slower than the fastest
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from splitnet.core.plan import Plan, Strategy, StrategyComparison
from splitnet.core.replication import collapse, split_layers, towers_in
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.planner.evaluate import (
    Evaluation,
    Evaluator,
    default_groups,
    evaluator_of,
)
from splitnet.planner.strategies.placements import copied, stages, towers_of_a_part
from splitnet.planner.strategies.space import (
    Placed,
    Space,
    device_counts,
    groups_of,
    may_move,
    obstacles_of,
    workers_of,
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


@dataclass(frozen=True)
class Candidate:
    """A placement and how its parts run, simulated."""

    space: Space
    evaluator: Evaluator
    device_of: Mapping[str, str]
    found: Evaluation

    @property
    def seconds(self) -> float:
        """Of one step."""
        return self.found.timeline.seconds

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory."""
        return self.found.fits

    @property
    def rank(self) -> tuple[int, float]:
        """Bytes that devices lack, then seconds: what is better is less."""
        held, devices = self.found.memory, self.evaluator.cluster
        lacking = (held[d.name].total - d.memory_bytes for d in devices)
        return sum(max(0, count) for count in lacking), self.seconds

    @property
    def is_full(self) -> bool:
        """Whether weights and slots alone overfill a device, however the parts run."""
        held = self.found.memory
        devices = self.evaluator.cluster
        return any(
            held[d.name].weights + held[d.name].slots > d.memory_bytes for d in devices
        )

    @property
    def execution(self) -> Execution:
        """How the parts run."""
        return self.evaluator.execution

    @property
    def split(self) -> Mapping[str, int]:
        """Into how many slices layers were cut for it."""
        return self.space.options.split or {}

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that compute."""
        busy = self.found.timeline.compute_seconds
        return tuple(name for name, seconds in busy.items() if seconds > 0)

    @property
    def towers(self) -> int:
        """How many towers of the model, or of a part of it, there are; 1 for none."""
        counts = (one.count for one in towers_in(self.evaluator.graph).values())
        return max(counts, default=1)

    @property
    def kind(self) -> str:
        """One of `_KINDS`."""
        graph = self.evaluator.graph
        free = {
            call.part
            for call in graph.calls
            if not call.cpu_only
            and not may_move(graph, call.part)
            and graph.part[call.part].kind != "weights"
        }
        if len({self.device_of[part] for part in free}) < 2:
            return "one device"
        if self.towers > 1:
            return "towers"
        if self.split:
            return "split"
        return "pipeline" if self.execution.microbatches > 1 else "placement"

    @property
    def complexity(self) -> tuple[int, int, int, int]:
        """What is simpler is less."""
        one = self.execution
        rank = _KINDS.index(self.kind)
        return (rank, bool(one.recompute), one.microbatches, len(self.devices))

    @property
    def words(self) -> str:
        """The options that fix this strategy."""
        one = self.execution
        said = [f"towers={self.towers}"] if self.towers > 1 else []
        if self.split:
            said.append(f"split={dict(self.split)}")
        if one.microbatches > 1:
            said += [f"microbatches={one.microbatches}", f"schedule={one.schedule!r}"]
        if one.recompute and set(self.devices) <= set(one.recompute):
            said.append("recompute=True")
        return ", ".join(said)

    @property
    def how(self) -> str:
        """What a person types to get it."""
        given = ["strategy='auto'", self.words]
        if self.kind == "one device":
            busy = self.found.timeline.compute_seconds
            given.insert(0, f"pins={{'*': {max(busy, key=busy.__getitem__)!r}}}")
            if self.execution == Execution():
                given.pop(1)
        elif self.towers == 1:
            given.append("towers=1")
        if self.execution.microbatches == 1 and len(given) > 2:
            given.append("microbatches=1")
        return f"plan({', '.join(['source, cluster', *filter(None, given)])})"

    def row(self, kind: str = "", how: str = "") -> Strategy:
        """The strategy as plain data."""
        outcome = self.found
        return Strategy(
            kind or self.kind,
            self.seconds,
            how or self.how,
            self.fits,
            max(outcome.timeline.compute_seconds.values(), default=0.0),
            sum(copy.bytes for copy in outcome.timeline.copies),
            max((memory.total for memory in outcome.memory.values()), default=0),
            self.devices,
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


@dataclass(frozen=True)
class Alternatives:
    """Placements of a kind, of which one that fits will do, and their micro-batches.

    No step of theirs is shorter than `least` seconds.
    """

    kind: str
    made: Iterable[Placed | None]
    counts: Sequence[int]
    least: float = 0.0


def table(space: Space, known: Sequence[Placed] = ()) -> Iterator[Alternatives]:
    """Everything that is tried, in turn; `known` are placements that were searched."""
    evaluator, options, counts = space.evaluator, space.options, space.counts
    cluster, workers = evaluator.cluster, workers_of(evaluator.cluster)
    free = [device.name for device in cluster.free_devices]
    home = [name for name in free if name == cluster.home.name]  # of towers' weights
    once, more = [n for n in counts if n == 1], [n for n in counts if n > 1]
    work = sum(min(each) for each in zip(*evaluator.step.unit_seconds))
    one_stage = options.towers in (None, 1)
    alone = [
        space.placed([device] * len(space.groups))
        for device in evaluator.unlike(free)
        if one_stage
    ]
    found = [("one device", one) for one in alone]
    found += [("placement", one) for one in known if one_stage]
    for kind, one in found:
        yield Alternatives(kind, [one], once)
    for count in reversed(device_counts(len(workers))) if one_stage else ():
        least = work / (count + 1)  # the host may have some of it
        for mixes, copies in (((0.0, 0.5, 1.0), True), ((0.0,), False)):
            cut = stages(space, workers[:count], mixes, copies=copies)
            yield Alternatives("pipeline", cut, more or once, least)
    if options.towers != 1 and "towers" not in space.obstacles and _is_free(space):
        most, fixed = min(len(workers), evaluator.graph.batch), options.towers
        for count in reversed(device_counts(most) if fixed is None else [fixed]):
            for place in dict.fromkeys((*home, workers[0])) if count <= most else ():
                for whole in (True, False):
                    made = towers_of_a_part(space, workers[:count], place, whole=whole)
                    yield Alternatives("towers", made, counts, work / (count + 1))
        for size in reversed(device_counts(len(workers) // (fixed or 2))):
            groups = groups_of(workers, size)[: fixed or most]
            for at in (*home, None) if len(groups) >= (fixed or 2) else ():
                several = _towers_of_stages(space, groups, at)
                least = work / (len(groups) * size + 1)
                yield Alternatives("towers", several, counts, least)
    for kind, one in found:
        yield Alternatives(kind, [one], more)


def _towers_of_stages(
    space: Space, groups: Sequence[Sequence[str]], home: str | None
) -> Iterator[Placed | None]:
    """Stages on the first group of devices, copied to the others."""
    index = {device: i for i, device in enumerate(groups[0])}
    for one, device_of in stages(space, groups[0], (0.0, 0.5, 1.0)):
        parts = {
            part.name: index[device_of[part.name]]
            for part in one.graph.parts
            if part.kind != "input" and device_of[part.name] in index
        }
        yield copied((one, device_of), parts, groups, home)


def _is_free(space: Space) -> bool:
    """Whether nothing but inputs and slices asks for a device."""
    graph, workers = space.evaluator.graph, set(workers_of(space.evaluator.cluster))
    return bool(workers) and all(
        may_move(graph, part) or graph.part[part].kind == "slice"
        for group in space.groups
        if group.apart or not workers <= set(group.allowed)
        for part in group.parts
    )


class Trial:
    """Strategies in turn, simulated.

    A placement is left out where the busiest device alone takes longer than the best
    of its kind. Once a strategy fits, none begins after `until` on the clock.
    """

    def __init__(self, space: Space, until: float = inf) -> None:
        self.space, self.until = space, until
        self.ended_by_clock = False
        self._best: dict[str, float] = {}  # seconds of what fits, by kind

    def candidates(self, known: Sequence[Placed] = ()) -> Iterator[Candidate]:
        """Every strategy that may be chosen; `known` are more placements."""
        done: dict[object, bool] = {}  # whether a placement fits at once
        for row in table(self.space, known):
            limit = (1 + _AS_GOOD) * self._best.get(row.kind, inf)
            if not row.counts or row.least > limit:
                continue
            for placed in row.made:
                if placed is None:
                    continue
                if self._is_late():
                    return
                evaluator, device_of = placed
                at_once = 1 in row.counts
                key = (evaluator.graph.parts, *device_of.values())
                if (key, at_once) in done or evaluator.busiest(device_of) > limit:
                    continue
                depth = pipeline_of(evaluator.graph, device_of, Execution()).depth
                if depth < 2 and done.get((key, True)):
                    continue  # pieces of what fits gain nothing on one device
                tried = self._executions(placed, row.counts, depth)
                done[key, at_once] = any(one.fits for one in tried)
                yield from tried
                if done[key, at_once]:
                    break

    def _is_late(self) -> bool:
        late = bool(self._best) and time.monotonic() > self.until
        self.ended_by_clock |= late
        return late

    def _executions(
        self, placed: Placed, counts: Sequence[int], depth: int
    ) -> list[Candidate]:
        """The ways to run a placement: of stages, so many micro-batches as are best."""
        made: list[Candidate] = []
        done: dict[int, Candidate] = {}
        schedule = self.space.options.schedule

        def run(count: int, order: str) -> Candidate:
            made.extend(self._fitted(placed, Execution(count, order)))
            return made[-1]

        if depth < 2:
            for count in counts:
                one = run(count, schedule or SCHEDULES[count > 1])
                if one.fits or one.is_full or self._is_late():
                    break
            return made
        at = min(range(len(counts)), key=lambda i: abs(counts[i] - _MICROBATCHES))
        for step in (0, 1, -1):
            while 0 <= at + step < len(counts) and counts[at + step] not in done:
                count = counts[at + step]
                done[count] = one = run(count, schedule or SCHEDULES[count > 1])
                if one.is_full or self._is_late():
                    return made
                if one.rank > done[counts[at]].rank:
                    break
                at += step
        if schedule is None and counts[at] > 1:
            run(counts[at], SCHEDULES[0])
        return made

    def _fitted(self, placed: Placed, execution: Execution) -> Iterator[Candidate]:
        """The placement run so, recomputing on devices that are full, until it fits."""
        evaluator, device_of = placed
        options, again = self.space.options, execution.recompute
        if options.recompute:
            again = tuple(device.name for device in evaluator.cluster)
        while True:
            execution = replace(execution, recompute=again)
            judge = replace(evaluator, execution=execution)
            found = judge.evaluate(device_of)
            made = Candidate(self.space, judge, device_of, found)
            if made.fits:
                best = self._best.get(made.kind, inf)
                self._best[made.kind] = min(best, made.seconds)
            yield made
            if made.fits or options.recompute is not None or not evaluator.training:
                return
            again = tuple(
                d.name
                for d in evaluator.cluster
                if d.name in again or found.memory[d.name].total > d.memory_bytes
            )
            fuller = replace(execution, recompute=again)
            parts = recomputed_parts(evaluator.graph, device_of, fuller)
            if again == execution.recompute or not parts:
                return


def compare_plan(plan: Plan) -> StrategyComparison:
    """Compare the ways to run a plan's model on its cluster, with the plan's costs.

    Nothing is searched: a pipeline keeps the plan's devices, or cuts the calls in their
    order into stages of even work. Of a plan with slices no towers are tried.
    """
    whole = collapse(plan.graph)
    mine = replace(evaluator_of(plan), objective="latency")
    free = replace(mine, graph=whole, execution=Execution())
    obstacles = obstacles_of(whole)
    if split_layers(whole):
        obstacles["towers"] = "slices of layers are where the plan has them"
    space = Space(free, default_groups(whole, plan.cluster), obstacles)
    own = Candidate(space, mine, plan.device_of, mine.evaluate(plan.device_of))
    known = (replace(mine, execution=Execution()), plan.device_of)
    others = [c for c in Trial(space).candidates([known]) if c.kind != "placement"]
    kind = "towers and branches" if towers_in(plan.graph) else "branches"
    used = ", ".join(own.devices[:6])
    rows = [
        own.row("plan", f"emit(source, plan): {kind} on {used}"),
        *(one.row() for one in _best_of_each_kind(others)),
    ]
    return StrategyComparison(
        tuple(sorted(rows, key=lambda s: (not s.fits, s.seconds)))
    )


def compared(
    found: Sequence[Candidate], chosen: Candidate | None
) -> StrategyComparison:
    """The best candidate of each kind; of the chosen one's kind, that one."""
    best = [
        chosen if chosen is not None and one.kind == chosen.kind else one
        for one in _best_of_each_kind(found)
    ]
    rows = sorted((one.row() for one in best), key=lambda s: (not s.fits, s.seconds))
    return StrategyComparison(tuple(rows), chosen.kind if chosen is not None else "")


def _best_of_each_kind(found: Iterable[Candidate]) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for one in sorted(found, key=lambda c: (not c.fits, c.seconds)):
        best.setdefault(one.kind, one)
    return list(best.values())
