"""Strategies: ways to use a cluster, compared with one simulator and one cost.

placements      one device · stages of even work · what was searched · towers
x executions    at once, or in micro-batches; recomputing where memory lacks
= candidates    each is simulated
-> climb        parts of the best are moved while it gains
-> choose       the simplest of those that are at most 2 % slower than the fastest
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle, islice, product, repeat
from math import inf

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import grouped
from splitnet.core.plan import FIXED, Plan, PlanOptions, Strategy, StrategyComparison
from splitnet.core.replication import split_layers
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.planner.constraints import Group
from splitnet.planner.evaluate import Evaluator, Placed, default_groups, evaluator_of
from splitnet.planner.problem import bind_shared_weights, in_calls
from splitnet.planner.strategies import space
from splitnet.simulator.microbatch import pipeline_of, recomputed_parts

_COUNTS = (1, 2, 4, 8, 16, 32)  # of micro-batches
_FIRST_COUNT = 8  # of stages; then more, or fewer, as long as that is better
_AS_GOOD = 0.02  # of the step: so much slower a simpler strategy may be
# How much slower than the fastest one a strategy may be that is improved, what a move
# must gain, how many parts of micro-batches are simulated for that, of how many.
_MAY_WIN, _LEAST_GAIN, _MOST_PLAYS, _CLIMBS = 1.25, 1e-3, 20_000, 2
_HOST_SECONDS = 1e-3  # between two steps of Keras' fit: shorter ones do not differ
# Kinds of strategies, the simplest first.
_KINDS = ("one device", "plan", "placement", "split", "towers", "pipeline")


class Candidate:
    """A placement and how its parts run, simulated; `given` if it is that of a plan.

    `rank` has the bytes that devices lack, then seconds. If it `is_full`, weights and
    slots alone overfill a device. What is simpler has less `complexity`; `words` are
    the options that fix this strategy, and `row` is its line in a comparison.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        device_of: Mapping[str, str],
        split: Mapping[str, int] | None = None,
        given: bool = False,
    ) -> None:
        self.evaluator, self.device_of = evaluator, device_of
        self.execution = one = evaluator.execution
        self.found = found = evaluator.evaluate(device_of)
        self.fits, self.seconds = found.fits, found.timeline.seconds
        self.rank = sum(found.lacking.values()), self.seconds
        lasting = ((d, found.memory[d.name]) for d in evaluator.cluster)
        self.is_full = any(m.weights + m.slots > d.memory_bytes for d, m in lasting)
        busy = found.timeline.compute_seconds
        devices = tuple(name for name, seconds in busy.items() if seconds > 0)
        graph, home = evaluator.graph, evaluator.cluster.home.name  # home of merges
        self.towers = max((each.count for each in graph.towers.values()), default=1)
        used = {
            device_of[call.part]
            for call in graph.calls
            if not call.cpu_only
            and graph.part[call.part].kind not in ("input", "weights")
            and not (space.may_move(graph, call.part) and device_of[call.part] == home)
        }
        kind = "split" if split else "pipeline" if one.microbatches > 1 else "placement"
        kind = "towers" if self.towers > 1 else kind
        self.kind = kind = "plan" if given else "one device" if len(used) < 2 else kind
        rank = _KINDS.index(kind), bool(one.recompute)
        self.complexity = *rank, one.microbatches, len(devices)
        said = [f"towers={self.towers}"] if self.towers > 1 else []
        said += [f"split={dict(split)}"] if split else []
        if one.microbatches > 1:
            said += [f"microbatches={one.microbatches}", f"schedule={one.schedule!r}"]
        if one.recompute and set(devices) <= set(one.recompute):
            said.append("recompute=True")
        self.words = ", ".join(said)
        # What a person types to get it.
        words = ["source", "cluster", "strategy='auto'", self.words]
        if kind == "one device":
            name = min(used, default=max(busy, key=busy.__getitem__))
            stay = {p.name: device_of[p.name] for p in graph.parts if p.kind == "merge"}
            pins = {"*": name} | {n: at for n, at in stay.items() if at != name}
            words[2:] = [f"pins={pins}", *words[2:] * (one != Execution())]
        elif self.towers == 1:
            words.append("towers=1")
        if one.microbatches == 1 and len(words) > 4:
            words.append("microbatches=1")
        how = f"plan({', '.join(filter(None, words))})"
        if given:
            what = "towers and branches" if self.towers > 1 else "branches"
            what += f" on {', '.join(devices[:6])}" + " ..." * (len(devices) > 6)
            how = f"emit(source, plan): {what}"
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
    least = min((one.seconds for one in fitting), default=0.0)
    limit = max(least * (1 + _AS_GOOD), _HOST_SECONDS)
    good = [one for one in fitting if one.seconds <= limit]
    return min(good, key=lambda one: (one.complexity, one.seconds), default=None)


def compared(
    found: Iterable[Candidate], chosen: Candidate | None, options: PlanOptions
) -> StrategyComparison:
    """The best of each kind; of its kind the one `chosen` with these options."""
    made = sorted(found, key=lambda c: (not c.fits, c.seconds))
    whole = [c for c in made if "split=" not in c.words]
    typed = [c for c in whole if len(whole) < len(made) and "strategy=" in c.row.how]
    for one in typed:  # layers are cut unless that is fixed
        one.row = replace(one.row, how=f"{one.row.how[:-1]}, split={{}})")
    simple = choose(c for c in whole if c.towers == c.execution.microbatches == 1)
    best = {} if chosen is None else {chosen.kind: chosen}
    if chosen is not None and chosen.kind != "one device":
        given = ((name, getattr(options, name)) for name in FIXED)
        fixed = "".join(f", {n}={value!r}" for n, value in given if value is not None)
        how = f"plan(source, cluster, strategy='auto'{fixed})"
        how += f"  # {chosen.words}" * bool(chosen.words)
        chosen.row = replace(chosen.row, how=how)
    for one in made:
        if one.kind == "placement" and simple and simple.kind == "one device":
            if one.seconds >= simple.seconds or not one.fits:  # no call gives it
                continue
            one.row = replace(one.row, how="plan(source, cluster, cut_penalty=0)")
        if one.kind not in best:  # what is typed gives the simplest of its own
            best[one.kind] = choose(c for c in made if c.row.how == one.row.how) or one
    rows = sorted(best.values(), key=lambda one: (not one.fits, one.seconds))
    return StrategyComparison(tuple(c.row for c in rows), chosen.kind if chosen else "")


def undivided(plan: Plan) -> Evaluator:
    """The evaluator of a plan's model without towers; functions are calls again."""
    graph = plan.graph.plain or plan.graph
    if plan.regroup:
        graph, on = in_calls(graph), {"branch": ("auto",)}
        parts = tuple(replace(p, on=on.get(p.kind, p.on)) for p in graph.parts)
        graph = bind_shared_weights(replace(graph, parts=parts))
    mine = replace(evaluator_of(plan), execution=Execution())
    return replace(mine, graph=graph, regroup=plan.regroup)


def compare_plan(plan: Plan) -> StrategyComparison:
    """Compare a plan with other ways to run its model on its cluster; no search."""
    mine = replace(evaluator_of(plan), objective="latency")
    whole = replace(undivided(plan), objective="latency")
    graph, here = whole.graph, plan.cluster
    obstacles = space.obstacles_of(graph)
    if split_layers(graph):
        obstacles["towers"] = "slices of layers are where the plan has them"
    trial = Trial(whole, default_groups(graph, here), obstacles, PlanOptions())
    trial.run([(replace(mine, execution=Execution()), plan.device_of)])
    # What is typed must free the source of what it asks for.
    has = {"net.towers": plan.graph.towers, "apart=": any(p.apart for p in graph.parts)}
    lacks = " and no ".join(name for name, its in has.items() if its)
    free = all(p.on == ("auto",) or space.may_move(graph, p.name) for p in graph.parts)
    for one in trial.found:
        pins = ", pins={'*': 'auto'})" if one.kind != "one device" and not free else ")"
        how = one.row.how[:-1] + pins + f": where source has no {lacks}" * bool(lacks)
        one.row = replace(one.row, how=how)
    others = (one for one in trial.found if one.kind != "placement")
    found = [Candidate(mine, plan.device_of, given=True), *others]
    return compared(found, None, PlanOptions())


class Trial:
    """The strategies of a graph in turn, simulated.

    `obstacles` say why there are no "microbatches" or "towers"; what `options` fix and
    cannot be raises a `DeclarationError`. `workers` may be used by towers and stages.
    None begins after `until` on the clock, once one fits, nor after `last`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        groups: Sequence[Group],
        obstacles: Mapping[str, str],
        options: PlanOptions,
    ) -> None:
        graph, training = evaluator.graph, evaluator.training
        self.evaluator, self.groups, self.options = evaluator, groups, options
        self.workers = space.workers_of(evaluator.cluster)
        most = graph.batch if training and "microbatches" not in obstacles else 1
        self.counts: Sequence[int] = [n for n in _COUNTS if n <= most]
        self.may_pipeline = most > 1
        if options.microbatches is not None:
            self.counts = [options.microbatches]
        # Towers copy what may be on all workers, if nothing else asks for a device.
        self.may_copy = "towers" not in obstacles and all(
            space.may_move(graph, part) or space.runs_once(graph, part)
            for group in groups
            if group.apart or not {*self.workers} <= {*group.allowed}
            for part in group.parts
        )
        faults = list[str]()
        for name, most, what in (
            ("microbatches", graph.batch, "the batch"),
            ("towers", max(len(self.workers), 1), "the devices for them"),
        ):
            count = getattr(options, name) or 1
            if count > most:
                faults.append(f"{name}={count} is more than {what}, {most}")
            if count > 1 and name in obstacles:
                faults.append(f"{name}={count} would not be exact: {obstacles[name]}")
        if not training and (options.recompute or self.counts[0] > 1):
            faults.append("microbatches= and recompute= are for training")
        if options.schedule is not None and self.counts == [1]:
            faults.append(f"schedule={options.schedule!r} is an order of micro-batches")
        if faults:
            raise DeclarationError("such a strategy cannot be.", faults)
        self.found: list[Candidate] = []
        self.until, self.last, self.ended_by_clock = inf, inf, False

    def run(self, known: Iterable[Placed] = ()) -> None:
        """Every strategy that may be chosen; `known` are placements that were searched.

        Of alternatives one that fits will do. None is simulated whose busiest device
        alone takes longer than the best of its kind.
        """
        seen = set[object]()
        for kind, alternatives, counts in self._table(known):
            fitting = (c.seconds for c in self.found if c.fits and c.kind == kind)
            limit = (1 + _AS_GOOD) * min(fitting, default=inf)
            for evaluator, device_of in alternatives:
                if self._is_late():
                    return
                before = len(self.found)
                key = (evaluator.graph.parts, *device_of.values())
                if key not in seen and evaluator.busiest(device_of) <= limit:
                    seen.add(key)
                    self._run_counts((evaluator, device_of), counts)
                if any(one.fits for one in self.found[before:]):
                    break

    def climb(self) -> None:
        """Move parts of the fastest strategies to other devices as long as that gains.

        Hill climbing, for micro-batches and recomputation: searches place what runs at
        once. What runs as one function is moved as a whole.
        """
        alone = [c for c in self.found if c.fits and c.towers == 1]
        more = [n for n in self.counts if n > 1]
        tight = not all(c.fits for c in self.found)
        if tight and alone and more:  # parts move into room that micro-batches leave
            best = min(alone, key=lambda c: c.seconds)
            count = min(more, key=lambda n: abs(n - _FIRST_COUNT))
            how = Execution(count, self.options.schedule or "1f1b")
            self._fitted((best.evaluator, best.device_of), how)
        fitting = sorted((c for c in self.found if c.fits), key=lambda c: c.seconds)
        whole = (c for c in fitting if c.towers == 1 and c.execution != Execution())
        near = [c for c in whole if c.seconds <= _MAY_WIN * fitting[0].seconds]
        its = grouped(near, lambda c: (c.evaluator.graph.parts, *c.device_of.values()))
        # Of a placement the fastest, and where memory lacks what leaves most room next.
        rest = (sorted(i * tight, key=lambda c: c.row.peak_bytes) for i in its.values())
        by = ([i[0], *others] for i, others in zip(its.values(), rest))
        graph, plays = self.evaluator.graph, 0
        devices = [device.name for device in self.evaluator.cluster.free_devices]
        first = [graph.calls_of[group.parts[0]][0].name for group in self.groups]
        for best in dict.fromkeys(chain.from_iterable(islice(by, _CLIMBS))):
            runs, idle = best.evaluator.graph, 0
            moves = [*product(runs.calls_of.values(), devices)]
            at = {call.name: best.device_of[call.part] for call in runs.calls}
            for calls, device in cycle(moves):
                if idle == len(moves) or plays > _MOST_PLAYS or self._is_late():
                    break
                there, idle = at | {call.name: device for call in calls}, idle + 1
                what = self.evaluator, self.groups, map(there.__getitem__, first)
                made = space.placed_apart(*what, best.seconds)
                for judge, device_of in made if there != at else ():
                    judge = replace(judge, execution=best.execution)
                    one = Candidate(judge, device_of, self.options.split)
                    plays += len(judge.graph.parts) * best.execution.microbatches
                    if one.fits and one.seconds < (1 - _LEAST_GAIN) * best.seconds:
                        best, at, idle = one, there, 0
            if best not in near:  # at once it is what microbatches=1 would not find
                least = min(best.execution.microbatches, 2)
                counts = [count for count in self.counts if count >= least]
                self._run_counts((best.evaluator, best.device_of), counts)

    def _table(
        self, known: Iterable[Placed]
    ) -> Iterator[tuple[str, Iterable[Placed], Sequence[int]]]:
        """Kinds, alternative placements, and micro-batches."""
        what, workers, counts = (self.evaluator, self.groups), self.workers, self.counts
        evaluator, fixed = self.evaluator, self.options.towers
        best = partial(space.fastest, evaluator.cluster)
        single = space.groups_of(workers, 1)
        free = [device.name for device in evaluator.cluster.free_devices]
        if fixed in (None, 1):
            for name in evaluator.unlike(free):
                yield "one device", space.placed_apart(*what, repeat(name)), counts
            yield from (("placement", [one], counts) for one in known)
            for count in reversed(space.device_counts(len(workers))):
                line = [name for (name,) in best(single, count)]
                yield "pipeline", space.stages(*what, line), counts
        if fixed != 1 and self.may_copy:
            most = min(len(workers), evaluator.graph.batch)
            towers = reversed([fixed] if fixed else space.device_counts(most))
            sizes = reversed(space.device_counts(len(workers) // (fixed or 2)))
            lines = [best(single, count) for count in towers]
            for groups in (space.groups_of(workers, size) for size in sizes):
                every, alike = best(groups, fixed or most), best(groups, fixed)
                lines += [every, alike] if alike != every else [every]
            # Weights are on the host, or in the first tower.
            home = [name for name in free if name == evaluator.cluster.home.name]
            alone = [partial(space.towers_of_a_part, whole=w) for w in (True, False)]
            usable = (line for line in lines if len(line) >= (fixed or 2))
            for devices, place in product(usable, (*home, None)):
                for made in alone if len(devices[0]) < 2 else [space.towers_of_stages]:
                    yield "towers", made(*what, devices, place), counts

    def _is_late(self) -> bool:
        now = time.monotonic()
        late = now > self.until and any(one.fits for one in self.found)
        late |= now > self.last and bool(self.found)
        self.ended_by_clock |= late
        return late

    def _run_counts(self, placed: Placed, counts: Sequence[int]) -> None:
        """A placement at once; in as few micro-batches as fit, of stages the best."""
        evaluator, device_of = placed
        depth = pipeline_of(evaluator.graph, device_of, Execution()).depth
        if 1 in counts:
            one = self._fitted(placed, Execution())
            if one.is_full or depth < 2 and one.fits:
                return
        counts = [count for count in counts if count > 1]
        first, fixed = _FIRST_COUNT if depth > 1 else 1, self.options.schedule
        best = min(counts, key=lambda n: abs(n - first), default=1)
        for schedule in [fixed] if fixed else SCHEDULES[::-1][: max(depth, 1)]:
            start, rank = best, (inf, inf)
            more = [count for count in counts if count >= start]
            for line in (more, [count for count in reversed(counts) if count < start]):
                for count in line if best == start else ():
                    one = self._fitted(placed, Execution(count, schedule))
                    if one.is_full or self._is_late() or depth < 2 and one.fits:
                        return
                    if depth > 1 and one.rank > rank:
                        break
                    best, rank = count, one.rank

    def _fitted(self, placed: Placed, execution: Execution) -> Candidate:
        """The placement run so, recomputing on devices that are full, until it fits."""
        (evaluator, device_of), options = placed, self.options
        names = evaluator.cluster.names
        if options.recompute:
            execution = replace(execution, recompute=names)
        while True:
            same = execution == evaluator.execution  # its step is kept
            judge = evaluator if same else replace(evaluator, execution=execution)
            made = Candidate(judge, device_of, options.split)
            self.found.append(made)
            if made.fits or options.recompute is not None or not evaluator.training:
                return made
            full = {*execution.recompute, *made.found.lacking}
            fuller = replace(execution, recompute=tuple(n for n in names if n in full))
            parts = recomputed_parts(evaluator.graph, device_of, fuller)
            if fuller == execution or not parts:
                return made
            execution = fuller
