"""Choose a strategy: search placements, try each in several ways, take the simplest."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, InfeasibleError, listed
from splitnet.core.graph import Graph
from splitnet.core.plan import FIXED, Plan, PlanOptions, StrategyComparison
from splitnet.core.timeline import Execution
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import resolve
from splitnet.planner.evaluate import Evaluator
from splitnet.planner.planner import Found, NothingFitsError, pinned, plan_of, search
from splitnet.planner.strategies.candidates import Candidate, Trial, choose, compared
from splitnet.planner.strategies.placements import (
    Placed,
    Space,
    obstacles_of,
    workers_of,
)
from splitnet.planner.strategies.splits import (
    Limits,
    layers_too_large,
    slices_of,
    slices_to_try,
)
from splitnet.simulator.microbatch import scaled_graph

_STAGES_SHARE = 0.4
"""Of the time limit, in addition to it: for stages of equal work."""
_TRIAL_SECONDS = 20.0
"""So long, or the time limit if that is longer, strategies are tried once one fits."""
_PIECES = 8
"""Where no worker has room for the batch, placements are searched for a share of it."""


def plan_strategy(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits
) -> Plan:
    """Plan with the strategy that is best, as far as it is not fixed.

    Raises:
        DeclarationError: what is fixed cannot be.
        InfeasibleError: no strategy fits.
    """
    return choices(graph, cluster, options, limits).plan()


def choices(
    graph: Graph,
    cluster: Cluster,
    options: PlanOptions,
    limits: Limits,
    *,
    searched: bool = True,
) -> "Choice":
    """The strategies that were tried; layers are cut only where a worker lacks room.

    More slices are tried as long as they gain.
    """

    def tried(split: Mapping[str, int]) -> Choice:
        if not split:
            return Choice(graph, cluster, options, limits.obstacles, searched=searched)
        assert limits.sliced is not None
        cut = limits.sliced(slices_of(split, cluster))
        known = replace(options, split=split)
        return Choice(cut, cluster, known, limits.obstacles, searched=searched)

    if options.split is not None or limits.sliced is None:
        return tried(limits.checked(options.split))
    large, nowhere = layers_too_large(graph, cluster, options)
    whole = None if nowhere else tried({})
    best = choose(whole.found) if whole else None
    if whole is not None and best is not None and not large:
        return whole
    until = time.monotonic() + max(options.time_limit, _TRIAL_SECONDS)
    made = [whole] if whole else []
    for split in slices_to_try(graph, cluster, options, limits):
        made.append(tried(split))
        own, before = choose(made[-1].found), best
        best = choose(one for one in (before, own) if one is not None)
        if own is not None and (best is before or time.monotonic() > until):
            break
    if best is None:
        return whole or tried({})
    known = [one for each in made for one in each.found]
    best = choose(known)
    first = next(each for each in made if any(one is best for one in each.found))
    first.found = known
    return first


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
            found = choices(graph, cluster, chosen, limits(), searched=False).found
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


def _remedy(found: Sequence[Candidate]) -> list[str]:
    """A strategy that fits, and what it costs against the fastest that does not."""
    one = choose(found)
    if one is None:
        return []
    at_once = min(
        replace(other, evaluator=plain, found=plain.evaluate(other.device_of)).seconds
        for other in found
        if other.execution.microbatches == 1
        for plain in [replace(other.evaluator, execution=Execution())]
    )
    said = [one.words] if one.words else []
    if one.execution.recompute and "recompute" not in one.words:
        said.append(str(replace(one.execution, microbatches=1)))
    said.append(f"predicted {one.seconds / at_once:.2f} times the step")
    return [f"strategy='auto' (fits with {', '.join(said)})"]


def strategies_of(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits
) -> StrategyComparison:
    """The best of each kind of strategy, whether or not any fits."""
    found = choices(graph, cluster, options, limits).found
    return compared(found, choose(found))


class Choice:
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
        self.cluster, self.options = cluster, options
        free: dict[str, Any] = dict.fromkeys(("strategy", *FIXED))
        self._plain = replace(options, **free)
        whole, placing = pinned(graph, self._plain)
        self._pins = placing.pins
        evaluator = Evaluator.of(whole, cluster, placing)
        _, groups = resolve(
            *(whole, cluster, evaluator.load),
            pins=self._pins,
            missing=options.missing,
        )
        self.space = Space(
            evaluator, groups, obstacles_of(graph) | dict(obstacles), options
        )
        _check(self.space)
        self._refused: NothingFitsError | None = None
        known = self._searched(graph) if searched else []
        seconds = max(options.time_limit, _TRIAL_SECONDS)
        self._trial = Trial(self.space, time.monotonic() + seconds)
        self.found: list[Candidate] = list(self._trial.candidates(known))

    def _searched(self, graph: Graph) -> list[Placed]:
        """The placements with the shortest step, and with stages of equal work."""
        try:
            self._best = _fitting(graph, self.cluster, self._plain)
            known = [self._of_whole_batch(self._best)]
        except NothingFitsError as fault:
            self._best, self._refused, known = fault.found, fault, []
        if tuple(self.space.counts) == (1,):
            return known
        busiest = replace(
            self._plain,
            objective="throughput",
            contiguity="pipeline",
            time_limit=_STAGES_SHARE * self._plain.time_limit,
        )
        tries = [(graph, busiest)]
        if self._refused is not None or self._is_tight():
            share = scaled_graph(graph, max(1, graph.batch // _PIECES))
            tries.insert(0, (share, self._plain))
        for one, options in tries:
            with suppress(NothingFitsError):
                known.append(self._of_whole_batch(search(one, self.cluster, options)))
        return known

    def _is_tight(self) -> bool:
        """Whether no worker has room for the whole model and batch."""
        evaluator = self.space.evaluator
        alone = (
            self.space.placed([device] * len(self.space.groups))
            for device in evaluator.unlike(workers_of(self.cluster))
        )
        return not any(
            placed[0].evaluate(placed[1]).fits for placed in alone if placed is not None
        )

    def _of_whole_batch(self, found: Found) -> Placed:
        """A placement that was searched, maybe for a share of the batch."""
        evaluator = self.space.evaluator
        if not evaluator.regroup:
            return evaluator, found.device_of
        calls = zip(evaluator.graph.calls, found.evaluator.graph.calls)
        return evaluator.as_run({a.part: found.device_of[b.part] for a, b in calls})

    def plan(self) -> Plan:
        """The plan of the strategy that is chosen."""
        one = choose(self.found)
        if one is None:
            raise self._refusal()
        graph, plain = one.evaluator.graph, one.execution.microbatches == 1
        constraints, groups = resolve(
            *(graph, self.cluster, one.evaluator.load),
            pins=self._pins if graph is self.space.evaluator.graph else None,
        )
        known = self._best.solution
        bound = known.bound if plain and one.towers == 1 else 0.0
        solution = replace(
            known,
            bound=bound,
            algorithm="comparison_of_strategies",
            ended_by_clock=known.ended_by_clock or self._trial.ended_by_clock,
        )
        found = Found(one.evaluator, constraints, groups, one.device_of, solution)
        return with_verdict(plan_of(found, self.options), compared(self.found, one))

    def _refusal(self) -> InfeasibleError:
        """Why nothing fits: the memory, or what is fixed."""
        if self._refused is not None:
            return self._refused.explained()
        fixed = [
            f"{name}={getattr(self.options, name)!r}"
            for name in FIXED
            if getattr(self.options, name) is not None
        ]
        return InfeasibleError(
            f"no strategy with {', '.join(fixed)} fits, and others do: leave some out. "
            "compare_strategies(source, cluster) lists what fits."
        )


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
