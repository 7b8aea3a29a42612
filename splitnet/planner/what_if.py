"""What if: other micro-batches, costs, batches or devices; single parts elsewhere."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from msgspec import Meta

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.costs import CostModel
from splitnet.core.graph import Call, Graph
from splitnet.core.plan import DeviceOf, Plan, PlanOptions
from splitnet.core.timeline import Execution, Timeline
from splitnet.planner.analysis import (
    Alternative,
    alternative,
    other_devices,
    with_verdict,
)
from splitnet.planner.constraints import fallbacks_of, with_pins
from splitnet.planner.engine.solve import step_costs
from splitnet.planner.evaluate import (
    Evaluator,
    decisions_of,
    evaluator_of,
    executed,
    moved,
    options_of,
    score,
)
from splitnet.planner.planner import find_plan, fits_somewhere, pinned
from splitnet.simulator.batch import largest_true, scaled_graph
from splitnet.simulator.microbatch import execution_of

_SECONDS_PER_DRAW = 0.5
_SECONDS_PER_BATCH = 0.5
# Units that may be simulated to find what moves cost, 1 to 3 s each: with memory,
# without it, and by the compiled event loop.
_MOST_DETAILED, _MOST_SIMULATED, _MOST_COMPILED = 20_000, 220_000, 10_000_000


def simulate(
    plan: Plan,
    *,
    microbatches: int | None = None,
    schedule: str | None = None,
    recompute: bool | None = None,
) -> Timeline:
    """Simulate the step of a plan: forward, backward and update; times in seconds.

    Args:
        plan: Its placement is kept, and how it runs where an option is None.
        microbatches: How many shares of the batch pass through the parts one after
            another.
        schedule: "gpipe", or "1f1b", which bounds the micro-batches in flight in each
            stage by the number of stages from it to the end.
        recompute: Whether parts save their inputs only, and run forward again in their
            backward pass.

    Raises:
        DeclarationError: invalid `microbatches` or `schedule`.
    """
    execution = execution_of(plan, microbatches, schedule, recompute)
    evaluator = replace(evaluator_of(plan), execution=execution)
    return evaluator.evaluate(plan.device_of).timeline


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How a plan fares when the costs are not quite what was assumed.

    `changed` is the share of draws in which another plan would be better by more than a
    thousandth, `regret` what this plan loses to the better one at worst, as a share of
    its value; `moved` counts for each part in how many draws it would be elsewhere.
    Equivalent devices count as the same.
    """

    draws: int
    perturbation: float
    changed: float
    regret: float
    moved: Mapping[str, int]

    def __str__(self) -> str:
        """A sentence."""
        text = (
            f"costs off by up to {self.perturbation:.0%}: the plan changes in "
            f"{self.changed:.0%} of {self.draws} draws and loses at most "
            f"{self.regret:.1%}"
        )
        unsure = sorted(self.moved, key=lambda part: -self.moved[part])[:3]
        return text + (f"; least sure of {', '.join(unsure)}." if unsure else ".")

    __repr__ = __str__  # what a prompt or a notebook shows


@dataclass(frozen=True, slots=True)
class _Perturbed:
    """A cost model with every call and link off by a factor of its own."""

    costs: CostModel
    call: Mapping[str, float]
    links: Mapping[tuple[str, str], float]

    def forward_seconds(self, call: Call, device: Device) -> float:
        return self.costs.forward_seconds(call, device) * self.call[call.name]

    def backward_seconds(self, call: Call, device: Device) -> float:
        return self.costs.backward_seconds(call, device) * self.call[call.name]

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        return self.costs.update_seconds(count, device, optimizer)

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        link = self.costs.link(source, target, cluster)
        factor = self.links.get((source, target), 1.0)
        return replace(link, bytes_per_second=link.bytes_per_second / factor)


def sensitivity(
    plan: Plan,
    perturbation: Annotated[float, Meta(ge=0, lt=1)] = 0.1,
    *,
    draws: Positive = 20,
    seed: int = 0,
) -> Sensitivity:
    """Plan again with perturbed costs, and count how often the decision changes.

    Args:
        plan: The decision. Its constraints are kept.
        perturbation: Every call and every link is slower or faster by up to this share.
        draws: How often.
        seed: Of the draws.

    Raises:
        DeclarationError: arguments of another type or out of range.
    """
    draw = random.Random(seed)
    evaluator = evaluator_of(plan)
    names = [device.name for device in plan.cluster]
    moved_in: Counter[str] = Counter()
    changed, regret = 0, 0.0

    def factor() -> float:
        return 1 + draw.uniform(-perturbation, perturbation)

    for _ in range(draws):
        costs = _Perturbed(
            plan.costs,
            {call.name: factor() for call in plan.graph.calls},
            {(a, b): factor() for a in names for b in names},
        )
        how = {"costs": costs, "seed": seed, "time_limit": _SECONDS_PER_DRAW}
        again = find_plan(plan.graph, plan.cluster, options_of(plan), **how)
        kept = replace(evaluator, costs=costs).evaluate(plan.device_of)
        loss = 1 - again.value / kept.value if kept.value > 0 else 0.0
        elsewhere = _elsewhere(plan, again, evaluator) if loss > 1e-3 else []
        if elsewhere:
            changed, regret = changed + 1, max(regret, loss)
            moved_in.update(elsewhere)
    return Sensitivity(draws, perturbation, changed / draws, regret, dict(moved_in))


def _elsewhere(plan: Plan, again: Plan, evaluator: Evaluator) -> list[str]:
    """Parts that would be elsewhere; equivalent devices are named so that most stay."""
    before, sort = plan.device_of, evaluator.sort_of
    pairs = Counter((device, before[part]) for part, device in again.device_of.items())
    name: dict[str, str] = {}
    for (now, then), _ in pairs.most_common():
        if sort[now] == sort[then] and now not in name and then not in name.values():
            name[now] = then
    now_on = again.device_of.items()
    return [part for part, device in now_on if name.get(device) != before[part]]


def heaviest_moves(plan: Plan, most: int = 50) -> dict[str, list[Alternative]]:
    """What each of the heaviest parts would cost elsewhere, each moved alone.

    In large graphs memory is estimated; in even larger ones fewer parts are tried.
    """
    evaluator = evaluator_of(plan)
    spent = dict.fromkeys((p.name for p in plan.graph.parts if p.kind != "input"), 0.0)
    for task in plan.timeline.tasks:
        if task.part in spent:
            spent[task.part] += task.stop - task.start
    targets = {
        part: other_devices(plan, evaluator, plan.device_of[part])
        for part in sorted(spent, key=lambda name: -spent[name])[:most]
    }
    size = max(1, len(plan.graph.parts) * plan.execution.microbatches)
    move: _Move = partial(alternative, plan, evaluator)
    tries = _MOST_DETAILED // size
    if sum(map(len, targets.values())) > tries and plan.execution == Execution():
        move, units = _estimate(plan, evaluator)
        tries = units // size
    found: dict[str, list[Alternative]] = {}
    for part, devices in targets.items():
        if devices and tries >= len(devices):
            found[part] = [move(part, device) for device in devices]
            tries -= len(devices)
    return found


_Move = Callable[[str, str], Alternative]
"""What a plan would be with a part on a device."""


def _estimate(plan: Plan, evaluator: Evaluator) -> tuple[_Move, int]:
    """As `alternative`, with estimated memory, and how many units it may simulate."""
    costs, compiled = step_costs(evaluator.problem)
    number = {one.name: i for i, one in enumerate(plan.cluster)}

    def move(part: str, device: str) -> Alternative:
        where = moved(plan.graph, plan.device_of, part, device)
        parts = [name for name in where if where[name] != plan.device_of[name]]
        need = evaluator.need(parts).total
        held = {name: memory.total for name, memory in plan.memory.items()}
        held[plan.device_of[part]] -= need
        held[device] += need
        place = np.array([number[where[one.name]] for one in plan.graph.parts])
        value, sent = costs(place)
        if plan.objective == "throughput":
            value = evaluator.load_of(where)
        elif plan.objective == "memory":
            value = float(max(held.values()))
        fits = held[device] <= plan.cluster[device].memory_bytes
        return Alternative(device, value, fits, sent, held[device], True)

    return move, _MOST_COMPILED if compiled else _MOST_SIMULATED


def largest_batch(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str] | Plan | None = None,
    options: PlanOptions | None = None,
    most: int = 1 << 20,
) -> int:
    """As `splitnet.largest_batch`, of a graph.

    Raises:
        DeclarationError: a placement that misses a part, or a limit below 1.
    """
    options = options or PlanOptions()
    known = device_of.plan if isinstance(device_of, DeviceOf) else device_of
    how = known.execution if isinstance(known, Plan) else Execution()

    def fits(batch: int) -> bool:
        one = scaled_graph(graph, batch)
        if device_of is None:
            evaluator = Evaluator.of(pinned(one, options), cluster, options)
            return fits_somewhere(evaluator, _SECONDS_PER_BATCH)
        plan = score(one, cluster, device_of, options)
        pieces = min(how.microbatches, batch)
        plan = executed(plan, replace(how, microbatches=pieces))
        return all(plan.memory[d.name].total <= d.memory_bytes for d in cluster)

    return largest_true(fits, most)


def relocate(plan: Plan, cluster: Cluster) -> Plan:
    """The plan on another cluster, every part pinned to the device that it had.

    A missing device is replaced by the least loaded one of its kind, and recorded in
    `fallbacks`. The figures are simulated again.

    Raises:
        DeviceError: parts that must be apart would share a device.
    """
    evaluator = replace(evaluator_of(plan), cluster=cluster)
    wanted = with_pins(plan.graph, lambda part: plan.device_of[part.name])
    load = dict.fromkeys((device.name for device in cluster), 0.0)
    device_of: dict[str, str] = {}
    groups = replace(evaluator, graph=wanted).resolve()
    for group in sorted(groups, key=lambda group: len(group.allowed)):
        device = min(group.allowed, key=load.__getitem__)
        load[device] += sum(evaluator.load(part, device) for part in group.parts)
        device_of |= dict.fromkeys(group.parts, device)
    there = with_pins(plan.graph, lambda part: device_of[part.name])
    replace(evaluator, graph=there).resolve()  # refuses what must be apart
    again = {
        device_of[part]: None
        for part, device in plan.device_of.items()
        if device in plan.execution.recompute
    }
    execution = replace(plan.execution, recompute=tuple(again))
    fallbacks = {one.part: one for one in fallbacks_of(wanted, cluster, device_of)}
    rows = (
        replace(
            one,
            device=device_of[one.part],
            reason="fallback" if one.part in fallbacks else one.reason,
        )
        for one in plan.placements
    )
    kept = (one for one in plan.fallbacks if one.part not in fallbacks)
    known = decisions_of(plan) | {"fallbacks": (*kept, *fallbacks.values())}
    evaluator = replace(evaluator, execution=execution)
    return with_verdict(evaluator.plan(rows, **known))
