"""Strategies: ways to use a cluster, compared with one simulator and one cost.

placements      one device · the plan's own · stages of even work · towers
x executions    at once, or in micro-batches; recomputing where memory lacks
= candidates    each is simulated
-> choose       the simplest of those that are at most 2 % slower than the fastest
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from splitnet.core.plan import Plan, Strategy, StrategyComparison
from splitnet.core.replication import as_one_part, collapse, towers_in
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.planner.evaluate import (
    Evaluation,
    Evaluator,
    default_groups,
    evaluator_of,
)
from splitnet.planner.strategies.placements import (
    Placed,
    Space,
    copied,
    device_counts,
    groups_of,
    may_move,
    obstacles_of,
    stages,
    workers_of,
)
from splitnet.simulator.microbatch import recomputed_parts, stage_count

_GAIN = 0.01
"""Of the step: more micro-batches that gain less are the last that are tried."""
_AS_GOOD = 0.02
"""Of the step: a simpler strategy may be slower than the fastest by so much."""
_HOST_SECONDS = 1e-3
"""Keras' fit takes so long between two steps: shorter ones do not differ."""
_KINDS = ("one device", "plan", "placement", "split", "towers", "pipeline")
"""Kinds of strategies, the simplest first."""


@dataclass(frozen=True)
class Candidate:
    """A placement and how its parts run, simulated.

    `split` says into how many slices layers were cut for it.
    """

    evaluator: Evaluator
    device_of: Mapping[str, str]
    found: Evaluation
    split: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of one step."""
        return self.found.timeline.seconds

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory."""
        return self.found.fits

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
    def devices(self) -> tuple[str, ...]:
        """The devices that compute."""
        busy = self.found.timeline.compute_seconds
        return tuple(name for name, seconds in busy.items() if seconds > 0)

    @property
    def towers(self) -> int:
        """Into how many towers the whole model is copied; 1 if it is not."""
        counts = (one.count for one in towers_in(self.evaluator.graph).values())
        return max(counts, default=1)

    @property
    def kind(self) -> str:
        """One of `_KINDS`."""
        graph = self.evaluator.graph
        parts = {c.part for c in graph.calls if not c.cpu_only}
        free = [
            p
            for p in parts
            if not may_move(graph, p) and graph.part[p].kind != "weights"
        ]
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
        elif self.towers == 1 and not self.split:
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


class Trial:
    """Strategies in turn, those on many devices first.

    A placement is left out where the busiest device alone takes longer than the best
    of its kind. Once a strategy fits, none begins after `until` on the clock.
    """

    def __init__(self, space: Space, until: float = inf) -> None:
        self.space, self.until = space, until
        self.ended_by_clock = False
        self._best: dict[str, float] = {}  # seconds of what fits, by kind

    def candidates(self, known: Iterable[Placed] = ()) -> Iterator[Candidate]:
        """Every strategy that may be chosen, simulated; `known` are more placements."""
        space, evaluator = self.space, self.space.evaluator
        if space.options.towers in (None, 1):
            for device in evaluator.unlike([d.name for d in evaluator.cluster]):
                placed = space.placed([device] * len(space.groups))
                if placed is not None:
                    yield from self._executions(placed)
            workers = workers_of(evaluator.cluster)
            for count in reversed(device_counts(len(workers))):
                several = stages(space, workers[:count])
                yield from self._first_that_fits("pipeline", several)
            for placed in known:
                if not self._is_late():
                    yield from self._executions(placed)
        if space.options.towers != 1 and "towers" not in space.obstacles:
            yield from self._towers()

    def _towers(self) -> Iterator[Candidate]:
        """The whole model on each of some devices, or its stages on some groups."""
        space, evaluator = self.space, self.space.evaluator
        workers, graph = workers_of(evaluator.cluster), evaluator.graph
        asked = [
            group
            for group in space.groups
            if group.apart or not set(workers) <= set(group.allowed)
            if not all(may_move(graph, part) for part in group.parts)
        ]
        if asked or not workers:
            return
        home, fixed = evaluator.cluster.home.name, space.options.towers
        one = replace(evaluator, graph=as_one_part(graph), regroup=False)
        at_home = {part.name: home for part in graph.parts}
        whole = one, at_home | {one.graph.parts[-1].name: workers[0]}
        for size in [1, *reversed(device_counts(len(workers) // (fixed or 2)))]:
            groups = groups_of(workers, size)[: min(fixed or len(workers), graph.batch)]
            counts = device_counts(len(groups)) if size == 1 else [len(groups)]
            for count in reversed(counts if fixed is None else [fixed]):
                if not 2 <= count <= len(groups):
                    continue
                for at in dict.fromkeys((home, workers[0] if size == 1 else None)):
                    firsts: Iterable[Placed | None] = [whole]
                    if size > 1:
                        firsts = stages(space, groups[0])
                    copies = (
                        copied(first, groups[:count], at)
                        for first in firsts
                        if first is not None
                    )
                    yield from self._first_that_fits("towers", copies)

    def _first_that_fits(
        self, kind: str, several: Iterable[Placed | None]
    ) -> Iterator[Candidate]:
        """The ways to run one placement after the other, until one fits."""
        for placed in several:
            if placed is None:
                continue
            if self._is_late():
                return
            evaluator, device_of = placed
            best = self._best.get(kind, inf)
            if best < inf and evaluator.busiest(device_of) > (1 + _AS_GOOD) * best:
                return
            tried = list(self._executions(placed))
            yield from tried
            if any(one.fits for one in tried):
                return

    def _is_late(self) -> bool:
        late = bool(self._best) and time.monotonic() > self.until
        self.ended_by_clock |= late
        return late

    def _executions(self, placed: Placed) -> Iterator[Candidate]:
        """The ways to run a placement: more micro-batches as long as they gain."""
        schedule = self.space.options.schedule
        depth = stage_count(placed[0].graph, placed[1])
        last: Candidate | None = None
        tried: list[Candidate] = []
        for count in self.space.counts:
            if last is not None and last.fits and depth < 2:
                return
            order = SCHEDULES[0] if count == 1 else SCHEDULES[1]
            one = self._fitted(placed, Execution(count, schedule or order))
            yield one
            if (not one.fits and one.is_full) or self._is_late():
                return
            if count > 1:
                tried.append(one)
            plain = last is not None and last.fits and not one.execution.recompute
            if plain and last is not None and one.seconds > (1 - _GAIN) * last.seconds:
                break
            last = one
        if tried and schedule is None and depth > 1:
            best = min(tried, key=lambda one: (not one.fits, one.seconds))
            count = best.execution.microbatches
            yield self._fitted(placed, Execution(count, SCHEDULES[0]))

    def _fitted(self, placed: Placed, execution: Execution) -> Candidate:
        """The placement run so, recomputing on devices that are full; then on all."""
        evaluator, device_of = placed
        options, again = self.space.options, execution.recompute
        if options.recompute:
            again = tuple(device.name for device in evaluator.cluster)
        while True:
            execution = replace(execution, recompute=again)
            judge = replace(evaluator, execution=execution)
            found = judge.evaluate(device_of)
            made = Candidate(judge, device_of, found, options.split or {})
            if made.fits:
                best = self._best.get(made.kind, inf)
                self._best[made.kind] = min(best, made.seconds)
            if made.fits or options.recompute is not None or not evaluator.training:
                return made
            again = tuple(
                d.name
                for d in evaluator.cluster
                if d.name in again or found.memory[d.name].total > d.memory_bytes
            )
            fuller = replace(execution, recompute=again)
            parts = recomputed_parts(evaluator.graph, device_of, fuller)
            if again == execution.recompute or not parts:
                return made


def compare_plan(plan: Plan) -> StrategyComparison:
    """Compare the ways to run a plan's model on its cluster, with the plan's costs.

    Nothing is searched: a pipeline keeps the plan's devices, or cuts the calls in their
    order into stages of even work. Towers are of the whole model, over the first two,
    three ... GPUs (where there is one at most, the devices beside the first), with
    weights on the CPU or on the first of them.
    """
    whole = collapse(plan.graph)
    mine = replace(evaluator_of(plan), objective="latency")
    free = replace(mine, graph=whole, execution=Execution())
    space = Space(free, default_groups(whole, plan.cluster), obstacles_of(whole))
    own = Candidate(mine, plan.device_of, mine.evaluate(plan.device_of))
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
