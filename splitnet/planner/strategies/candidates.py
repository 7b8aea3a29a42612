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

from splitnet.core.graph import Graph
from splitnet.core.plan import Strategy
from splitnet.core.replication import as_one_part, towers_in
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.planner.evaluate import Evaluation, Evaluator
from splitnet.planner.strategies.placements import (
    Placed,
    Space,
    copied,
    device_counts,
    groups_of,
    may_move,
    stages,
    workers_of,
)
from splitnet.simulator.microbatch import recomputed_parts, stage_count

__all__ = [
    "Candidate",
    "Trial",
    "choose",
]

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
        free = [p for p in parts if not may_move(graph, p) and not _holds(graph, p)]
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
            yield from self._staged()
            for placed in known:
                if not self._is_late():
                    yield from self._executions(placed)
        if space.options.towers != 1 and "towers" not in space.obstacles:
            yield from self._towers()

    def _staged(self) -> Iterator[Candidate]:
        """Parts in their order on some devices."""
        workers = workers_of(self.space.evaluator.cluster)
        for count in reversed(device_counts(len(workers))):
            several = stages(self.space, workers[:count])
            yield from self._first_that_fits("pipeline", several)

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
        most = min(len(workers), graph.batch)
        one = replace(evaluator, graph=as_one_part(graph))
        name, home = one.graph.parts[-1].name, evaluator.cluster.home.name
        there = dict.fromkeys((p.name for p in graph.parts), home)
        whole = one, there | {name: workers[0]}
        counts = (
            device_counts(most)
            if space.options.towers is None
            else [space.options.towers]
        )
        for count in reversed(counts):
            groups = groups_of(workers[:count], 1)
            for at in dict.fromkeys((home, workers[0])):
                yield from self._first_that_fits("towers", [copied(whole, groups, at)])
        for size in reversed(
            device_counts(len(workers) // (space.options.towers or 2))
        ):
            groups = groups_of(workers, size)[
                : min(space.options.towers or most, graph.batch)
            ]
            if len(groups) < max(2, space.options.towers or 2):
                continue
            for where in (home, None):
                yield from self._first_that_fits("towers", self._copies(groups, where))

    def _copies(
        self, groups: Sequence[Sequence[str]], home: str | None
    ) -> Iterator[Placed]:
        """Stages on the first group, copied to the others."""
        for placed in stages(self.space, groups[0]):
            if placed is not None:
                yield copied(placed, groups, home)

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
            if evaluator.busiest(device_of) > (1 + _AS_GOOD) * best:
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
        space = self.space
        depth = stage_count(placed[0].graph, placed[1])
        last: Candidate | None = None
        best: Candidate | None = None
        for count in space.counts:
            if last is not None and last.fits and depth < 2:
                return
            schedule = space.options.schedule or (
                SCHEDULES[1] if count > 1 else SCHEDULES[0]
            )
            one = self._fitted(placed, Execution(count, schedule))
            yield one
            if (not one.fits and one.is_full) or self._is_late():
                return
            if count > 1 and (best is None or _rank(one) < _rank(best)):
                best = one
            plain = last is not None and last.fits and not one.execution.recompute
            if plain and last is not None and one.seconds > (1 - _GAIN) * last.seconds:
                break
            last = one
        if best is not None and space.options.schedule is None and depth > 1:
            count = best.execution.microbatches
            yield self._fitted(placed, Execution(count, SCHEDULES[0]))

    def _fitted(self, placed: Placed, execution: Execution) -> Candidate:
        """The placement run so, recomputing on devices that are full; then on all."""
        evaluator, device_of = placed
        cluster = evaluator.cluster
        everywhere = tuple(device.name for device in cluster)
        if self.space.options.recompute:
            execution = replace(execution, recompute=everywhere)

        def run(one: Execution) -> Candidate:
            judge = replace(evaluator, execution=one)
            found = judge.evaluate(device_of)
            return Candidate(judge, device_of, found, self.space.options.split or {})

        made = run(execution)
        fixed = self.space.options.recompute is not None or not evaluator.training
        while not made.fits and not fixed:
            held = made.found.memory
            again = tuple(
                d.name
                for d in cluster
                if d.name in made.execution.recompute
                or held[d.name].total > d.memory_bytes
            )
            execution = replace(execution, recompute=again)
            if not recomputed_parts(evaluator.graph, device_of, execution):
                break
            fixed = again == made.execution.recompute
            made = run(execution)
        if made.fits:
            best = self._best.get(made.kind, inf)
            self._best[made.kind] = min(best, made.seconds)
        return made


def _holds(graph: Graph, part: str) -> bool:
    """Whether a part is the weights of towers, which run elsewhere."""
    return graph.part[part].kind == "weights"


def _rank(one: Candidate) -> tuple[bool, float]:
    return not one.fits, one.seconds
