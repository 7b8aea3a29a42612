"""Choose a strategy: search placements, try each in several ways, take the simplest."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from splitnet.core.cluster import Cluster
from splitnet.core.costs import optimizer_name, slots_of
from splitnet.core.errors import DeclarationError, InfeasibleError, listed
from splitnet.core.graph import Graph
from splitnet.core.plan import FIXED, Plan, PlanOptions, StrategyComparison
from splitnet.core.timeline import Execution
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import resolve, with_pins
from splitnet.planner.evaluate import Evaluator
from splitnet.planner.planner import Found, NothingFitsError, pinned, plan_of, search
from splitnet.planner.strategies.candidates import Candidate, Trial, choose, compared
from splitnet.planner.strategies.space import (
    Limits,
    Placed,
    Slices,
    Space,
    device_counts,
    obstacles_of,
    workers_of,
)
from splitnet.simulator.batch import scaled_graph

_STAGES_SHARE = 0.2
"""Of the time limit, in addition to it, twice: for devices with equal work."""
_TRIAL_SECONDS = 20.0
"""So long, or the time limit if that is longer, strategies are tried once one fits."""
_PIECES = 8
"""Where no worker has room for the batch, placements are searched for a share of it."""
_SHARES = (1.0, 0.5, 0.25)
"""Of the largest memory: layers that hold more are cut, the largest alone first."""


def plan_strategy(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits
) -> Plan:
    """Plan with the strategy that is best, as far as it is not fixed.

    Raises:
        DeclarationError: what is fixed cannot be.
        InfeasibleError: no strategy fits.
    """
    made = choices(graph, cluster, options, limits)
    found = [one for choice in made for one in choice.found]
    best = choose(found)
    if best is None:
        raise _refusal(made[0].refused, graph, options, limits, cluster)
    [mine] = (choice for choice in made if choice.space is best.space)
    return mine.plan(best, compared(found, best))


def strategies_of(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits
) -> StrategyComparison:
    """The best of each kind of strategy, whether or not any fits."""
    made = choices(graph, cluster, options, limits)
    found = [one for choice in made for one in choice.found]
    return compared(found, choose(found))


def plan_placement(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions,
    limits: Callable[[], Limits],
) -> Plan:
    """As `plan_graph`; where nothing fits, the error names a strategy that does.

    Raises:
        InfeasibleError: no placement fits.
    """
    try:
        return with_verdict(plan_of(_fitting(graph, cluster, options), options))
    except NothingFitsError as fault:
        found: list[Candidate] = []
        if options.training and options.objective == "latency":
            chosen = replace(options, strategy="auto", missing="fallback")
            made = choices(graph, cluster, chosen, limits(), searched=False)
            found = [one for choice in made for one in choice.found]
        raise fault.explained(*_remedy(found)) from None


def _fitting(graph: Graph, cluster: Cluster, options: PlanOptions) -> Found:
    """As `search`; where that finds nothing that fits, the smallest placement."""
    try:
        return search(graph, cluster, options)
    except NothingFitsError:
        if options.objective == "memory":
            raise
        with suppress(NothingFitsError):
            small = search(graph, cluster, replace(options, objective="memory"))
            evaluator = replace(small.evaluator, objective=options.objective)
            value = evaluator.evaluate(small.device_of).value
            known = replace(small.solution, value=value, bound=0.0)
            return replace(small, evaluator=evaluator, solution=known)
        raise


def _refusal(
    refused: NothingFitsError | None,
    graph: Graph,
    options: PlanOptions,
    limits: Limits,
    cluster: Cluster,
) -> InfeasibleError:
    """Why no strategy fits: the memory, or what is fixed; and what does."""
    given = {name: getattr(options, name) for name in FIXED}
    fixed = {name: value for name, value in given.items() if value is not None}
    if not fixed:
        assert refused is not None, "a placement that fits is a strategy"
        return refused.explained()
    head = "no strategy with " + ", ".join(f"{n}={v!r}" for n, v in fixed.items())
    if refused is None:
        return InfeasibleError(f"{head} fits, and plan(source, cluster) does.")
    free: dict[str, Any] = dict.fromkeys(fixed)
    made = choices(graph, cluster, replace(options, **free), limits, searched=False)
    remedies = _remedy([one for choice in made for one in choice.found])
    if remedies:
        return InfeasibleError(f"{head} fits, and without does {remedies[0]}.")
    return InfeasibleError(
        f"{head} fits, nor does any other. Without them: {refused.explained()}"
    )


def _remedy(found: Sequence[Candidate]) -> list[str]:
    """A strategy that fits, and what it costs against the fastest that does not."""
    one = choose(found)
    if one is None:
        return []
    at_once = min(c.seconds for c in found if c.execution == Execution())
    said = [one.words] if one.words else []
    if one.execution.recompute and "recompute" not in one.words:
        said.append(str(replace(one.execution, microbatches=1)))
    said.append(f"predicted {one.seconds / at_once:.2f} times the step")
    return [f"strategy='auto' (fits with {', '.join(said)})"]


def choices(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions,
    limits: Limits,
    *,
    searched: bool = True,
) -> "list[Choice]":
    """What was tried of the whole model, and with layers in slices.

    Layers are cut only where a worker has no room for them, into more slices as long as
    that gains. The first choice is that of the whole model, if it is not fixed.
    """

    def tried(split: dict[str, int]) -> Choice:
        known = replace(options, split=split) if split else options
        cut = graph
        if split and limits.sliced is not None:
            cut = limits.sliced(_slices(split, cluster))
        return Choice(cut, cluster, known, limits.obstacles, searched=searched)

    if options.split is not None:
        if options.split and limits.sliced is None:
            raise DeclarationError(
                f"split={dict(options.split)}: a Graph has no layers to cut. Give the "
                "net or the Keras model that it was read from."
            )
        return [tried(dict(options.split))]
    held = _held(graph, options) if limits.sliced is not None else {}
    large = any(size > _room(cluster) for size in held.values())
    most = max(device.memory_bytes for device in cluster)
    splits = _splits(held, cluster, limits)
    made: list[Choice] = []
    if not any(size > most for size in held.values()):
        made.append(tried({}))
    best = choose(one for choice in made for one in choice.found)
    until = time.monotonic() + max(options.time_limit, _TRIAL_SECONDS)
    for split in splits if large or best is None else ():
        made.append(tried(split))
        own = choose(made[-1].found)
        if own is None:
            continue
        before, best = best, own if best is None else choose([best, own])
        if best is before or time.monotonic() > until:
            break
    if best is None and (not made or made[0].space.options.split):
        made.insert(0, tried({}))
    return made


def _slices(split: dict[str, int], cluster: Cluster) -> Slices:
    """The devices of the slices that are asked for: those with the most memory."""
    workers = _workers(cluster)
    for name, count in split.items():
        if not 2 <= count <= len(workers):
            raise DeclarationError(
                f"split={{{name!r}: {count}}}: the slices must be at least 2 and at "
                f"most the devices for them, {len(workers)}."
            )
    return {name: workers[:count] for name, count in split.items()}


def _splits(
    held: dict[str, int], cluster: Cluster, limits: Limits
) -> Iterator[dict[str, int]]:
    """Layers to cut and their numbers of slices: few layers, few slices first."""
    workers = _workers(cluster)
    tried: list[list[str]] = []
    for share in _SHARES:
        large = [name for name, size in held.items() if size > share * _room(cluster)]
        if not large or large in tried:
            continue
        tried.append(large)
        for count in device_counts(len(workers)):
            names = [name for name in large if not limits.obstacle(name, count)]
            least = cluster[workers[count - 1]].memory_bytes
            if names and sum(held[name] for name in names) <= count * least:
                yield dict.fromkeys(names, count)


def _workers(cluster: Cluster) -> list[str]:
    """The devices for slices, those with the most memory first."""
    return sorted(workers_of(cluster), key=lambda name: -cluster[name].memory_bytes)


def _room(cluster: Cluster) -> int:
    """The memory of the largest worker."""
    return max((cluster[name].memory_bytes for name in workers_of(cluster)), default=0)


def _held(graph: Graph, options: PlanOptions) -> dict[str, int]:
    """Bytes of weights, gradients and slots of each layer that asks for no device."""
    if isinstance(options.pins, Plan):
        return {}
    graph = with_pins(graph, options.pins)
    size = {weight.name: weight.bytes for weight in graph.weights}
    if options.training:
        times = 2 + slots_of(optimizer_name(options.optimizer))
        size |= {w.name: w.bytes * times for w in graph.weights if w.trainable}
    return {
        call.layer: sum(size[name] for name in call.weights)
        for call in graph.calls
        if call.layer and call.weights and graph.part[call.part].on == ("auto",)
    }


class Choice:
    """The strategies that were tried for a graph; without search only simple ones."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        options: PlanOptions,
        obstacles: Any,
        *,
        searched: bool = True,
    ) -> None:
        free: dict[str, Any] = dict.fromkeys(("strategy", *FIXED))
        self._plain = replace(options, **free)
        whole = pinned(graph, self._plain)
        evaluator = Evaluator.of(whole, cluster, self._plain)
        _, groups = resolve(whole, cluster, evaluator.load, missing=options.missing)
        known = obstacles_of(graph) | dict(obstacles)
        self.space = Space(evaluator, groups, known, options)
        _check(self.space)
        self.refused: NothingFitsError | None = None
        more = self._searched(graph) if searched else []
        until = time.monotonic() + max(options.time_limit, _TRIAL_SECONDS)
        trial = Trial(self.space, until)
        self.found: list[Candidate] = list(trial.candidates(more))
        self._ended_by_clock = trial.ended_by_clock

    def _searched(self, graph: Graph) -> list[Placed]:
        """The placements with the shortest step, and with the least maximum load."""
        evaluator, cluster = self.space.evaluator, self.space.evaluator.cluster
        try:
            self._best = _fitting(graph, cluster, self._plain)
            known = [self._of_whole_batch(self._best)]
        except NothingFitsError as fault:
            self._best, self.refused, known = fault.found, fault, []
        if tuple(self.space.counts) == (1,):
            return known
        even = replace(
            self._plain,
            objective="throughput",
            time_limit=_STAGES_SHARE * self._plain.time_limit,
        )
        tries = [(graph, replace(even, contiguity=c)) for c in ("pipeline", "free")]
        workers = workers_of(cluster)
        if not any(
            evaluator.evaluate(device_of).fits
            for name, device_of in evaluator.single_devices()
            if name in workers
        ):
            share = scaled_graph(graph, max(1, graph.batch // _PIECES))
            tries.insert(0, (share, self._plain))
        for one, options in tries:
            with suppress(NothingFitsError):
                known.append(self._of_whole_batch(search(one, cluster, options)))
        return known

    def _of_whole_batch(self, found: Found) -> Placed:
        """A placement that was searched, maybe for a share of the batch."""
        evaluator = self.space.evaluator
        if not evaluator.regroup:
            return evaluator, found.device_of
        calls = zip(evaluator.graph.calls, found.evaluator.graph.calls)
        return evaluator.as_run({a.part: found.device_of[b.part] for a, b in calls})

    def plan(self, one: Candidate, comparison: StrategyComparison) -> Plan:
        """The plan of a strategy that was tried."""
        graph, plain = one.evaluator.graph, one.execution.microbatches == 1
        load = one.evaluator.load
        constraints, groups = resolve(graph, one.evaluator.cluster, load)
        known = self._best.solution
        bound = known.bound if plain and one.towers == 1 else 0.0
        solution = replace(
            known,
            bound=bound,
            algorithm="comparison_of_strategies",
            ended_by_clock=known.ended_by_clock or self._ended_by_clock,
        )
        found = Found(one.evaluator, constraints, groups, one.device_of, solution)
        return with_verdict(plan_of(found, self.space.options), comparison)


def _check(space: Space) -> None:
    """Refuse what is fixed and cannot be."""
    evaluator, faults = space.evaluator, []
    batch, workers = evaluator.graph.batch, workers_of(evaluator.cluster)
    for name, count, most in (
        ("microbatches", space.options.microbatches, f"the batch, {batch}"),
        ("towers", space.options.towers, f"the devices for them, {len(workers)}"),
    ):
        if count is None or count == 1:
            continue
        if count > (batch if name == "microbatches" else len(workers)):
            faults.append(f"{name}={count} is more than {most}")
        if name in space.obstacles:
            faults.append(f"{name}={count} would not be exact: {space.obstacles[name]}")
    if not evaluator.training and (
        space.options.recompute or (space.options.microbatches or 1) > 1
    ):
        faults.append("microbatches= and recompute= are for training")
    if space.options.schedule is not None and tuple(space.counts) == (1,):
        faults.append(
            f"schedule={space.options.schedule!r} is an order of micro-batches"
        )
    if faults:
        raise DeclarationError(listed("such a strategy cannot be.", faults))
