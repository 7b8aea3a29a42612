"""What if: other micro-batches, costs, batches or devices."""

import random
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated

from msgspec import Meta

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.costs import CostModel
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.plan import Plan, PlanOptions
from splitnet.core.timeline import Timeline
from splitnet.planner import planner
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import fallbacks_of, with_pins
from splitnet.planner.evaluate import Evaluator, evaluator_of, executed, replayed, score
from splitnet.simulator.memory import lacking_bytes
from splitnet.simulator.microbatch import execution_of
from splitnet.simulator.units import scaled_graph

_EFFORT_PER_DRAW = 500_000  # half a second of search; not the clock, which others share


def simulate(
    plan: Plan,
    *,
    microbatches: int | None = None,
    schedule: str | None = None,
    recompute: bool | None = None,
) -> Timeline:
    """Simulate the step of a plan: forward, backward and update; times in seconds.

    Args:
        plan: its placement is kept, and how it runs where an option is None.
        microbatches: how many micro-batches pass through the parts one after another.
        schedule: "gpipe", or "1f1b", which bounds the micro-batches in flight in each
            stage by the number of stages from it to the end.
        recompute: whether parts save only their inputs, and run forward again in their
            backward pass.

    Raises:
        DeclarationError: invalid `microbatches` or `schedule`.
    """
    execution = execution_of(plan, microbatches, schedule, recompute)
    return executed(plan, execution).timeline


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How a plan fares when the costs are not quite what was assumed.

    `changed` is the share of draws in which another placement, run as the plan is, is
    better by more than a thousandth, `regret` what the plan loses to that at worst, as
    a share of its value; `moved` counts for each part in how many draws it would be
    elsewhere. Equivalent devices count as the same.
    """

    draws: int
    perturbation: float
    changed: float
    regret: float
    moved: Mapping[str, int]

    def __str__(self) -> str:
        off, changed = 100 * self.perturbation, 100 * self.changed
        text = f"costs off by up to {off:.0f} %: the plan changes in {changed:.0f} % "
        text += f"of {self.draws} draws and loses at most {100 * self.regret:.1f} %"
        top = ", ".join(sorted(self.moved, key=lambda part: -self.moved[part])[:3])
        return f"{text}; least sure of {top}." if top else f"{text}."

    __repr__ = __str__  # what a prompt or a notebook shows


@dataclass(frozen=True, slots=True)
class _Perturbed:
    """A cost model with every call and link off by a factor of its own."""

    costs: CostModel
    factor: Mapping[object, float]

    def forward_seconds(self, call: Call, device: Device) -> float:
        return self.costs.forward_seconds(call, device) * self.factor[call.name]

    def backward_seconds(self, call: Call, device: Device) -> float:
        return self.costs.backward_seconds(call, device) * self.factor[call.name]

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        return self.costs.update_seconds(count, device, optimizer)

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        link = self.costs.link(source, target, cluster)
        speed = link.bytes_per_second / self.factor[source, target]
        return replace(link, bytes_per_second=max(1.0, speed))


def sensitivity(
    plan: Plan,
    perturbation: Annotated[float, Meta(ge=0, lt=1)] = 0.1,
    *,
    draws: Positive = 20,
    seed: int = 0,
) -> Sensitivity:
    """Plan again with perturbed costs, and count how often the decision changes.

    Args:
        plan: the decision, whose constraints are kept.
        perturbation: every call and every link is slower or faster by up to this share.
        draws: how often.
        seed: of the draws.
    """
    draw, evaluator = random.Random(seed), evaluator_of(plan)
    names = "objective", "contiguity", "optimizer", "training"
    kept = {name: getattr(plan, name) for name in names}
    how = PlanOptions(seed=seed, effort=_EFFORT_PER_DRAW, **kept)
    off: list[object] = [*plan.graph.call, *product(plan.cluster.names, repeat=2)]
    moved_in, changed, regret = Counter[str](), 0, 0.0
    for _ in range(draws):
        factor = {one: 1 + draw.uniform(-perturbation, perturbation) for one in off}
        costs = _Perturbed(plan.costs, factor)
        judge = replace(evaluator, costs=costs)
        try:
            found = planner.search(plan.graph, plan.cluster, replace(how, costs=costs))
        except planner.NothingFitsError as fault:  # at once, but maybe as the plan runs
            found = fault.args[0]
        there, here = (judge.evaluate(one.device_of) for one in (found, plan))
        loss = 1 - there.value / here.value if there.fits and here.value > 0 else 0.0
        if loss > 1e-3 and (parts := _elsewhere(plan, found.device_of, evaluator)):
            changed, regret = changed + 1, max(regret, loss)
            moved_in.update(parts)
    return Sensitivity(draws, perturbation, changed / draws, regret, dict(moved_in))


def _elsewhere(plan: Plan, now: Mapping[str, str], evaluator: Evaluator) -> list[str]:
    """Parts that would be elsewhere; of equivalent devices most keep their names."""
    before, sort = plan.device_of, evaluator.sort_of
    pairs = Counter((now[part], before[part]) for part in now)
    name: dict[str, str] = {}
    for (new, old), _ in pairs.most_common():
        if sort[new] == sort[old] and new not in name and old not in name.values():
            name[new] = old
    return [part for part in now if name.get(now[part]) != before[part]]


def largest_batch(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str] | Plan | None,
    options: PlanOptions,
    most: int,
) -> int:
    """As `splitnet.largest_batch`, of a graph."""

    def lacks(batch: int) -> bool:
        one = scaled_graph(graph, batch)
        if device_of is None:
            whole, way = Evaluator.of(one, cluster, options), options.contiguity
            return not planner.fits_somewhere(whole, 2.0, way or "free")
        memory = score(one, cluster, device_of, options).memory
        return bool(lacking_bytes(cluster, memory))

    return bisect(range(1, most + 1), False, key=lacks)


def relocate(plan: Plan, cluster: Cluster) -> Plan:
    """The plan on another cluster; for a missing device the next of a part's list."""

    def wish(part: Part) -> tuple[str, ...]:
        device, on = plan.device_of[part.name], part.on
        return device, *on[on.index(device) + 1 if device in on else 0 :]

    evaluator = replace(evaluator_of(plan), cluster=cluster)
    wanted = with_pins(plan.graph, wish)
    load = dict.fromkeys(cluster.names, 0.0)
    device_of: dict[str, str] = {}
    groups = replace(evaluator, graph=wanted).resolve()
    for group in sorted(groups, key=lambda group: len(group.allowed)):
        device = min(group.allowed, key=load.__getitem__)
        load[device] += sum(evaluator.load(part, device) for part in group.parts)
        device_of |= dict.fromkeys(group.parts, device)
    there = with_pins(plan.graph, lambda part: device_of[part.name])
    replace(evaluator, graph=there).resolve()  # refuses what must be apart
    recomputing = plan.execution.recompute
    again = {device_of[p]: 0 for p, d in plan.device_of.items() if d in recomputing}
    fallbacks = {one.part: one for one in fallbacks_of(wanted, cluster, device_of)}
    kept = (one for one in plan.fallbacks if one.part not in fallbacks)
    rows = []
    for one in plan.placements:
        reason = "fallback" if one.part in fallbacks else one.reason
        rows.append(replace(one, device=device_of[one.part], reason=reason))
    fell = (*kept, *fallbacks.values())
    plan = replace(plan, cluster=cluster, placements=tuple(rows), fallbacks=fell)
    execution = replace(plan.execution, recompute=tuple(again))
    return with_verdict(replayed(plan, execution=execution))
