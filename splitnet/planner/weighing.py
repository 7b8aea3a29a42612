"""Compare strategies: one device, the plan, towers (data parallelism) and a pipeline.

Each is simulated with the same costs; none is built.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from splitnet.core.cluster import Cluster
from splitnet.core.cost import CostModel
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.net import Towers
from splitnet.core.plan import Placement, Plan, Strategy, StrategyComparison
from splitnet.core.replication import (
    batch_shares,
    collapse,
    expand,
    tower_part,
    towers_in,
    weights_part,
)
from splitnet.core.timeline import Timeline
from splitnet.planner.replay import single_devices, step_of_plan
from splitnet.simulator.old_simulate import Outcome, outcome_of
from splitnet.simulator.pipeline import SCHEDULES, simulate_pipeline, stages_of
from splitnet.simulator.scaled import ScaledCosts, scaled_graph
from splitnet.simulator.step import step_of

__all__ = ["compare_strategies"]

_MICROBATCHES = (2, 4, 8, 16)


def compare_strategies(plan: Plan) -> StrategyComparison:
    """Simulate four strategies for a plan's model on its cluster, and rank them.

    Nothing is searched: the pipeline keeps the plan's devices, or cuts the calls in
    their order into stages of equal work where the plan has one stage. Towers are of
    the whole model, over the first two, three ... GPUs (where there is one at most, the
    devices beside the first), with weights on the CPU or on the first of them.
    """
    whole = collapse(plan.graph)
    found = [
        *_single(plan, whole),
        _way("plan", plan.timeline, _described(plan), _fits_plan(plan)),
        *_towers(plan, whole),
        *_pipelines(plan, whole),
    ]
    kinds: dict[str, Strategy] = {}
    for way in sorted(found, key=lambda w: (not w.fits, w.seconds)):
        kinds.setdefault(way.kind, way)
    return StrategyComparison(tuple(kinds.values()))


def _way(kind: str, timeline: Timeline, how: str, fits: bool) -> Strategy:
    return Strategy(
        kind,
        timeline.seconds,
        how,
        fits,
        max(timeline.compute_seconds.values(), default=0.0),
        sum(copy.bytes for copy in timeline.copies),
    )


def _described(plan: Plan) -> str:
    used = list(dict.fromkeys(t.device for t in plan.timeline.tasks))
    kind = "towers and branches" if towers_in(plan.graph) else "branches"
    return f"emit(source, plan): {kind} on {', '.join(used[:6])}"


def _fits_plan(plan: Plan) -> bool:
    return all(plan.memory[d.name].total <= d.memory_bytes for d in plan.cluster)


def _single(plan: Plan, whole: Graph) -> Iterator[Strategy]:
    """Everything on one device, for each that differs."""
    for device, device_of in single_devices(plan, step_of_plan(plan), whole):
        made = _played(whole, plan, device_of, plan.costs)
        yield _way(
            "one device",
            made.timeline,
            f"all on {device}",
            _fits(plan.cluster, made),
        )


def _towers(plan: Plan, whole: Graph) -> Iterator[Strategy]:
    devices = _equals(plan.cluster)
    one = _as_one_part(whole)
    for count in range(2, len(devices) + 1):
        if count > plan.batch:
            return
        for home in (plan.cluster.home.name, devices[0]):
            yield _tower(plan, one, devices[:count], home)


def _equals(cluster: Cluster) -> list[str]:
    """The devices that towers and stages may use: GPUs, or else all but the first."""
    gpus = [d.name for d in cluster if d.kind == "gpu"]
    others = [d.name for d in cluster if d.name != cluster.home.name]
    return gpus if len(gpus) > 1 else others


def _tower(plan: Plan, one: Graph, devices: list[str], home: str) -> Strategy:
    """The whole model on each of some devices, its weights at home."""
    name = one.parts[-1].name
    towers = Towers(tuple((d,) for d in devices), (home,))
    sizes = batch_shares(one.batch, len(devices))
    smaller = {n: scaled_graph(one, n) for n in set(sizes)}
    graph = expand(one, smaller, {name: towers})
    device_of = dict.fromkeys((p.name for p in graph.parts), plan.cluster.home.name)
    if weights_part(name) in device_of:
        device_of[weights_part(name)] = home
    costs: dict[str, tuple[tuple[Call, ...], float]] = {}
    for i, (device, size) in enumerate(zip(devices, sizes)):
        part = tower_part(name, i)
        device_of[part] = device
        for call in graph.calls_of[part]:
            plain = f"{name}/{call.name.removeprefix(part + '/')}"
            costs[call.name] = ((one.call[plain],), size / one.batch)
    made = _played(graph, plan, device_of, ScaledCosts(plan.costs, costs))
    where = f"weights_on={home!r}"
    return _way(
        "towers",
        made.timeline,
        f"data_parallel(model, devices={devices}, {where})",
        _fits(plan.cluster, made),
    )


def _as_one_part(graph: Graph) -> Graph:
    """All calls but the inputs as one part, the last, named for the model."""
    inputs = {p.name for p in graph.parts if p.kind == "input"}
    name = graph.name
    while name in inputs:
        name += "_towers"
    new = {
        call.name: call.name if call.part in inputs else f"{name}/{call.name}"
        for call in graph.calls
    }
    return replace(
        graph,
        calls=tuple(
            call
            if call.part in inputs
            else replace(call, name=new[call.name], part=name)
            for call in graph.calls
        ),
        tensors=tuple(
            replace(t, source=new[t.source], target=new[t.target])
            for t in graph.tensors
        ),
        parts=(*(p for p in graph.parts if p.name in inputs), Part(name, "towers")),
        outputs=tuple(new[n] for n in graph.outputs),
    )


def _pipelines(plan: Plan, whole: Graph) -> Iterator[Strategy]:
    """The plan in micro-batches, if its parts follow one another; else equal stages."""
    if not plan.training:
        return
    call = "emit(source, plan"
    if stages_of(plan) < 2:
        staged = _staged(plan, whole)
        if staged is None:
            return
        plan = staged
        call = "with plan(objective='throughput'), emit(source, plan"
    fits = _fits_plan(plan)
    for count in _MICROBATCHES:
        if count > plan.batch:
            return
        for schedule in SCHEDULES:
            made = simulate_pipeline(plan, count, schedule=schedule)
            room = all(made.peak_bytes[d.name] <= d.memory_bytes for d in plan.cluster)
            how = f"{call}, microbatches={count}, schedule={schedule!r})"
            yield _way("pipeline", made, how, room or fits)


def _staged(plan: Plan, whole: Graph) -> Plan | None:
    """The calls in their order on all devices, cut where the work is even."""
    devices = _equals(plan.cluster)
    parts = [p for p in whole.parts if p.kind != "input"]
    work = {
        part.name: sum(
            plan.costs.forward_seconds(c, plan.cluster[devices[0]])
            + plan.costs.backward_seconds(c, plan.cluster[devices[0]])
            for c in whole.calls_of[part.name]
        )
        for part in parts
        if devices
    }
    total = sum(work.values())
    if len(devices) < 2 or total <= 0 or any(c.cpu_only for c in whole.calls):
        return None
    home = plan.cluster.home.name
    device_of = {p.name: home for p in whole.parts}
    before = 0.0
    for name in dict.fromkeys(call.part for call in whole.calls):
        if name not in work:
            continue
        place = int((before + work[name] / 2) / total * len(devices))
        device_of[name] = devices[min(place, len(devices) - 1)]
        before += work[name]
    made = _played(whole, plan, device_of, plan.costs)
    placements = tuple(Placement(n, d, d, "given") for n, d in device_of.items())
    staged = replace(
        plan,
        graph=whole,
        placements=placements,
        memory=made.memory,
        timeline=made.timeline,
    )
    return staged if stages_of(staged) > 1 else None


def _played(
    graph: Graph, plan: Plan, device_of: Mapping[str, str], costs: CostModel
) -> Outcome:
    step = step_of(
        graph, plan.cluster, costs, training=plan.training, optimizer=plan.optimizer
    )
    return outcome_of(graph, plan.cluster, step, device_of)


def _fits(cluster: Cluster, made: Outcome) -> bool:
    return all(made.memory[d.name].total <= d.memory_bytes for d in cluster)
