"""Compare parallelism strategies before any is built, with one simulator and one cost.

One device, the plan as it is, towers (data parallel) over the GPUs, and the plan as a
pipeline in micro-batches.
"""

from collections.abc import Iterator
from dataclasses import replace

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.net import Towers
from splitnet.core.plan import Placement, Plan, Strategy, StrategyComparison, as_plan
from splitnet.core.replication import (
    batch_shares,
    collapse,
    expand,
    tower_part,
    towers_in,
    weights_part,
)
from splitnet.core.timeline import Timeline
from splitnet.planner.evaluate import Evaluation, Evaluator, evaluator_of
from splitnet.simulator.microbatch import (
    SCHEDULES,
    ScaledCosts,
    scaled_graph,
    stage_count,
)
from splitnet.simulator.simulate import simulate_microbatches

__all__ = ["compare_strategies"]

_MICROBATCHES = (2, 4, 8, 16)


def compare_strategies(plan: Plan) -> StrategyComparison:
    """Compare the ways to run a plan's model on its cluster, with the plan's costs.

    Nothing is searched: the pipeline keeps the plan's devices, or cuts the calls in
    their order into stages of equal work where the plan has one stage. Towers are of
    the whole model, over the first two, three ... GPUs (where there is one at most, the
    devices beside the first), with weights on the CPU or on the first of them.
    """
    whole = collapse(as_plan(plan).graph)
    evaluator = replace(evaluator_of(plan), graph=whole, objective="latency")
    found = [
        *_single_devices(evaluator),
        _strategy("plan", plan.timeline, _described(plan), _fits(plan)),
        *_towers(evaluator),
        *_pipelines(plan, evaluator),
    ]
    best: dict[str, Strategy] = {}
    for one in sorted(found, key=lambda s: (not s.fits, s.seconds)):
        best.setdefault(one.kind, one)
    return StrategyComparison(tuple(best.values()))


def _strategy(kind: str, timeline: Timeline, how: str, fits: bool) -> Strategy:
    return Strategy(
        kind,
        timeline.seconds,
        how,
        fits,
        max(timeline.compute_seconds.values(), default=0.0),
        sum(copy.bytes for copy in timeline.copies),
    )


def _evaluated(kind: str, found: Evaluation, how: str) -> Strategy:
    return _strategy(kind, found.outcome.timeline, how, found.fits)


def _described(plan: Plan) -> str:
    used = list(dict.fromkeys(t.device for t in plan.timeline.tasks))
    kind = "towers and branches" if towers_in(plan.graph) else "branches"
    return f"emit(source, plan): {kind} on {', '.join(used[:6])}"


def _fits(plan: Plan) -> bool:
    return all(plan.memory[d.name].total <= d.memory_bytes for d in plan.cluster)


def _single_devices(evaluator: Evaluator) -> Iterator[Strategy]:
    for device, device_of in evaluator.single_devices():
        found = evaluator.evaluate(device_of)
        yield _evaluated("one device", found, f"all on {device}")


def _towers(evaluator: Evaluator) -> Iterator[Strategy]:
    """The whole model on each of some devices."""
    devices = _workers(evaluator.cluster)
    one = replace(evaluator, graph=_as_one_part(evaluator.graph))
    for count in range(2, min(len(devices), one.graph.batch) + 1):
        for home in dict.fromkeys((evaluator.cluster.home.name, devices[0])):
            yield _tower(one, devices[:count], home)


def _workers(cluster: Cluster) -> list[str]:
    """The devices that towers and stages may use: GPUs, or else all but the first."""
    gpus = [d.name for d in cluster if d.kind == "gpu"]
    others = [d.name for d in cluster if d.name != cluster.home.name]
    return gpus if len(gpus) > 1 else others


def _tower(one: Evaluator, devices: list[str], home: str) -> Strategy:
    """The whole model on each of some devices, its weights at home."""
    batch, name = one.graph.batch, one.graph.parts[-1].name
    sizes = batch_shares(batch, len(devices))
    graph = expand(
        one.graph,
        {size: scaled_graph(one.graph, size) for size in set(sizes)},
        {name: Towers(tuple((d,) for d in devices), (home,))},
    )
    device_of = dict.fromkeys((p.name for p in graph.parts), one.cluster.home.name)
    if weights_part(name) in device_of:
        device_of[weights_part(name)] = home
    costs: dict[str, tuple[Call, float]] = {}
    for i, (device, size) in enumerate(zip(devices, sizes)):
        part = tower_part(name, i)
        device_of[part] = device
        for call in graph.calls_of[part]:
            plain = f"{name}/{call.name.removeprefix(part + '/')}"
            costs[call.name] = (one.graph.call[plain], size / batch)
    scaled = ScaledCosts(one.costs, costs)
    found = replace(one, graph=graph, costs=scaled).evaluate(device_of)
    where = f"weights_on={home!r}"
    return _evaluated(
        "towers", found, f"data_parallel(model, devices={devices}, {where})"
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


def _pipelines(plan: Plan, whole: Evaluator) -> Iterator[Strategy]:
    """The plan in micro-batches, if its parts follow one another; else equal stages."""
    if not plan.training:
        return
    call = "emit(source, plan"
    if stage_count(plan.graph, plan.device_of) < 2:
        staged = _staged(whole)
        if staged is None:
            return
        plan = staged
        call = "with plan(objective='throughput'), emit(source, plan"
    for count in _MICROBATCHES:
        if count > plan.batch:
            return
        for schedule in SCHEDULES:
            made = simulate_microbatches(plan, count, schedule=schedule)
            held = made.memory
            fits = all(held[d.name].total <= d.memory_bytes for d in plan.cluster)
            how = f"{call}, microbatches={count}, schedule={schedule!r})"
            yield _strategy("pipeline", made.timeline, how, fits)


def _staged(whole: Evaluator) -> Plan | None:
    """The parts in their order on all devices, cut where the work is even."""
    graph, devices = whole.graph, _workers(whole.cluster)
    if len(devices) < 2 or any(call.cpu_only for call in graph.calls):
        return None
    device_of = {p.name: whole.cluster.home.name for p in graph.parts}
    in_order = dict.fromkeys(call.part for call in graph.calls)
    names = [name for name in in_order if graph.part[name].kind != "input"]
    work = {name: whole.load(name, devices[0]) for name in names}
    total, before = sum(work.values()), 0.0
    if total <= 0:
        return None
    for name in names:
        stage = int((before + work[name] / 2) / total * len(devices))
        device_of[name] = devices[min(stage, len(devices) - 1)]
        before += work[name]
    plan = whole.plan(tuple(Placement(n, d, d, "given") for n, d in device_of.items()))
    return plan if stage_count(plan.graph, plan.device_of) > 1 else None
