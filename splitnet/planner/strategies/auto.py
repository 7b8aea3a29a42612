"""Choose a strategy: search placements, try each in several ways, take the simplest."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import ceil, inf
from typing import Any

from splitnet.core.cluster import Cluster, Device
from splitnet.core.costs import slots_of
from splitnet.core.errors import DeclarationError, InfeasibleError
from splitnet.core.graph import Graph
from splitnet.core.plan import FIXED, Plan, PlanOptions, StrategyComparison
from splitnet.core.timeline import Execution
from splitnet.planner.analysis import with_verdict
from splitnet.planner.evaluate import Evaluator, Found, Placed
from splitnet.planner.planner import NothingFitsError, plan_of, search
from splitnet.planner.strategies import space
from splitnet.planner.strategies.candidates import Candidate, Trial, choose, compared
from splitnet.planner.strategies.space import Limits
from splitnet.simulator.units import scaled_graph

Limited = Callable[[], Limits | None]  # None where no strategy may be chosen
_FREE: dict[str, Any] = dict.fromkeys(("strategy", *FIXED))
_SHORT = 0.2  # of the limits, added to them for each search of micro-batches
_TRIAL_SECONDS = 20.0  # or the time limit: how long others are tried once one fits


def plan_strategy(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits, *its: "Choice"
) -> Plan:
    """Plan with the strategy that is best, as far as it is not fixed."""
    made = its or choices(graph, cluster, options, limits)
    found = {one: choice for choice in made for one in choice.found}
    if (best := choose(found)) is not None:
        return found[best].plan(best, compared(found, best, options))
    fixed = {n: v for n in FIXED if (v := getattr(options, n)) is not None}
    refused, others = made[0].refused, ["plan(source, cluster)"]
    if refused and fixed:
        others = _remedies(graph, cluster, replace(options, **_FREE), limits)
    said = ", ".join(f"{name}={value!r}" for name, value in fixed.items())
    if refused and not (fixed and others):
        head = f"no strategy with {said} fits, nor one without that: " * bool(fixed)
        note = "\n  note      each fits without a strategy; with one, less may do"
        text = refused.explained(fixed="batch" in limits.obstacles)
        raise InfeasibleError(f"{head}{text}{note}")
    if found:
        raise InfeasibleError(f"no strategy with {said} fits; {others[0]} does.")
    why = "" if made[0].may_copy else " where parts ask for devices or must be apart"
    said += f" is possible{why * bool(options.towers)}"
    raise InfeasibleError(f"no strategy with {said}; {others[0]} is.")


def strategies_of(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits
) -> StrategyComparison:
    """The best of each kind of strategy, whether or not any fits."""
    made = choices(graph, cluster, options, limits)
    found = [one for choice in made for one in choice.found]
    if not found:  # none is possible, and this says why
        plan_strategy(graph, cluster, options, limits, *made)
    return compared(found, choose(found), options)


def plan_placement(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limited
) -> Plan:
    """The fastest placement; where none fits, the error names a strategy that does."""
    try:
        return with_verdict(plan_of(_fitting(graph, cluster, options), options))
    except NothingFitsError as fault:
        known, remedies = limits(), list[str]()
        if known and options.training and options.objective == "latency":
            chosen = replace(options, missing="fallback")
            remedies = _remedies(graph, cluster, chosen, known)
        fixed = known is not None and "batch" in known.obstacles
        raise fault.explained(*remedies, fixed=fixed) from None


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


def _remedies(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits
) -> list[str]:
    """A strategy that fits, and what it costs against the fastest that does not."""
    made = choices(graph, cluster, options, limits, searched=False)
    found = [one for choice in made for one in choice.found]
    if (one := choose(found)) is None:
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

    Layers are cut only of groups that no worker has room for, into more slices as long
    as there is time. The first choice is that of the whole model, if it is not fixed.
    """
    workers = space.workers_of(cluster)  # for slices, those with the most memory first
    workers.sort(key=lambda name: -cluster[name].memory_bytes)
    made = list[Choice]()

    def tried(split: Mapping[str, int]) -> None:
        for name, count in split.items():
            if not 2 <= count <= len(workers):
                most = f"at least 2 and at most the devices for them, {len(workers)}"
                fault = f"split={{{name!r}: {count}}}: the slices must be {most}."
                raise DeclarationError(fault)
        known, cut = options, graph
        if split and limits.sliced is not None:
            known = replace(options, strategy="auto", split=split)
            cut = limits.sliced({name: workers[:n] for name, n in split.items()})
        made.append(Choice(cut, cluster, known, limits.obstacles, searched=searched))

    if options.split and limits.sliced is None:
        fault = f"split={dict(options.split)}: a Graph has no layers to cut."
        hint = "Give the net or the Keras model that it was read from."
        raise DeclarationError(f"{fault} {hint}")
    tried(options.split or {})
    if options.split is not None or limits.sliced is None or not workers:
        return made
    until = time.monotonic() + max(options.time_limit, _TRIAL_SECONDS)
    full = [*_overfull(made[0], cluster[workers[0]])]
    # A slice may have to share a device with the rest of its group.
    for count, shares in product(space.device_counts(len(workers)), (False, True)):
        split, need = dict[str, int](), 0
        for layers, lacking in full:
            may = [n for n in layers if not limits.obstacle(n, count)]
            for name in sorted(may, key=layers.__getitem__, reverse=True):
                if lacking > 0:
                    split[name], need = count, need + layers[name]
                    lacking -= layers[name] * (1 - shares / count)
        room = count * cluster[workers[count - 1]].memory_bytes
        if split and need <= room and split not in [one.options.split for one in made]:
            tried(split)
            if time.monotonic() > until and any(o.fits for c in made for o in c.found):
                break
    return made


def _overfull(one: "Choice", device: Device) -> Iterator[tuple[dict[str, int], float]]:
    """Layers of each group that has no room alone, with their bytes; what it lacks."""
    evaluator, home = one.evaluator, one.evaluator.cluster.home.name
    graph, room, name = evaluator.graph, device.memory_bytes, device.name
    times = 2 + slots_of(evaluator.optimizer) if evaluator.training else 1
    size = {w.name: w.bytes * (times if w.trainable else 1) for w in graph.weights}
    for group in one.groups:
        if 2 * evaluator.need(group.parts).total > room:
            at = dict.fromkeys(graph.part, home) | dict.fromkeys(group.parts, name)
            lacking = evaluator.evaluate(at).memory[name].total - room
            free = {part for part in group.parts if graph.part[part].on == ("auto",)}
            calls = [call for call in graph.calls if call.part in free and call.layer]
            own = {call.layer: [size[w] for w in call.weights] for call in calls}
            yield {layer: sum(held) for layer, held in own.items() if held}, lacking


class Choice(Trial):
    """The strategies that were tried for a graph; without search only simple ones."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        options: PlanOptions,
        obstacles: Mapping[str, str],
        *,
        searched: bool = True,
    ) -> None:
        self._plain = replace(options, **_FREE)
        evaluator = Evaluator.of(graph, cluster, self._plain)
        known = space.obstacles_of(graph) | dict(obstacles)
        super().__init__(evaluator, evaluator.resolve(options.missing), known, options)
        self.refused: NothingFitsError | None = None
        more = [*self._searched(graph)] if searched else []
        seconds = max(options.time_limit, _TRIAL_SECONDS)
        self.until = time.monotonic() + seconds
        self.last = inf if searched else self.until + seconds  # a remedy may be missed
        self.run(more)
        if searched:
            self.climb()

    def _searched(self, graph: Graph) -> Iterator[Placed]:
        """Placements with the shortest step, also of a share, and the least load."""
        evaluator, workers, known = self.evaluator, self.workers, list[Found]()
        try:
            self._single = _fitting(graph, evaluator.cluster, self._plain)
            known.append(self._single)
        except NothingFitsError as fault:
            self._single, self.refused = fault.args[0], fault
        alone = [there for name, there in evaluator.single_devices() if name in workers]
        limit, effort = self._plain.time_limit, self._plain.effort
        short = replace(self._plain, time_limit=_SHORT * limit)
        short = replace(short, effort=effort and ceil(_SHORT * effort))
        even = replace(short, objective="throughput")
        fits = any(evaluator.evaluate(at).fits for at in alone)
        tries = [(4, short), (8, short if fits else self._plain)]
        tries += [(1, replace(even, contiguity=way)) for way in ("pipeline", "free")]
        for pieces, options in tries if self.may_pipeline else ():
            share = scaled_graph(graph, max(1, graph.batch // pieces))
            with suppress(NothingFitsError):
                known.append(search(share, evaluator.cluster, options))
        for found in known:
            # Functions of a share of the batch may have other names than of the whole.
            calls = zip(evaluator.graph.calls, found.evaluator.graph.calls)
            where = {call.part: found.device_of[other.part] for call, other in calls}
            yield evaluator.as_run({**found.device_of, **where})

    def plan(self, one: Candidate, comparison: StrategyComparison) -> Plan:
        """The plan of a strategy that was tried."""
        known = self._single.solution
        solution = replace(
            known,
            bound=known.bound if one.execution.microbatches == one.towers == 1 else 0.0,
            algorithm="comparison_of_strategies",
            ended_by_clock=known.ended_by_clock or self.ended_by_clock,
        )
        found = Found(one.evaluator, one.evaluator.resolve(), one.device_of, solution)
        return with_verdict(plan_of(found, self.options), comparison)
