"""Figures and sentences about a plan for pictures and tables."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.graph import Graph
from splitnet.core.plan import Fallback, Plan
from splitnet.core.timeline import Timeline
from splitnet.view.style import Shape, percent

_MOST_ALONE = 8  # with more devices, equivalent ones are drawn together
_GOAL = {
    "latency": "shortest step",
    "throughput": "highest throughput",
    "memory": "smallest memory peak",
}


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What one part is and costs; bytes for the whole batch, seconds per step.

    `weight_bytes` counts weights whose home is this part, so that a sum over parts
    counts each once.
    `where` is the file name and line of its declaration, without folders.
    """

    name: str
    kind: str
    device: str
    reason: str
    fallback: Fallback | None
    layers: tuple[str, ...]
    shapes: tuple[Shape, ...]
    weight_bytes: int
    activation_bytes: int
    seconds: Mapping[str, float]
    is_output: bool
    where: str = ""

    @property
    def total_bytes(self) -> int:
        """Weights and saved activations."""
        return self.weight_bytes + self.activation_bytes

    @property
    def total_seconds(self) -> float:
        """Forward, backward and update together."""
        return sum(self.seconds.values())


def part_facts(plan: Plan) -> Mapping[str, PartFacts]:
    """Gather the facts of each part, in the graph's order."""
    graph = plan.graph
    seconds: dict[str, dict[str, float]] = {part.name: {} for part in graph.parts}
    for task in plan.timeline.tasks:
        if task.part in seconds:
            phases = seconds[task.part]
            phases[task.phase] = phases.get(task.phase, 0.0) + task.stop - task.start
    homes = dict.fromkeys(seconds, 0)
    for weight, parts in graph.parts_of_weights.items():
        if parts:
            homes[parts[0]] += graph.weight[weight].bytes
    fallbacks = {fallback.part: fallback for fallback in plan.fallbacks}
    leaving = _leaving(graph)
    outputs = {graph.call[name].part for name in graph.outputs}
    facts = {}
    for part in graph.parts:
        calls = graph.calls_of[part.name]
        placement = plan[part.name]
        facts[part.name] = PartFacts(
            name=part.name,
            kind=part.kind,
            device=placement.device,
            reason=placement.reason,
            fallback=fallbacks.get(part.name),
            layers=tuple(call.kind for call in calls),
            shapes=leaving[part.name],
            weight_bytes=homes[part.name],
            activation_bytes=sum(call.activation_bytes for call in calls),
            seconds=seconds[part.name],
            is_output=part.name in outputs,
            where=part.where.replace("\\", "/").rpartition("/")[2],
        )
    return facts


def _leaving(graph: Graph) -> Mapping[str, tuple[Shape, ...]]:
    """The shapes of the outputs that other parts, or the model's user, receive."""
    found: dict[str, dict[tuple[str, int], Shape]] = {p.name: {} for p in graph.parts}
    for tensor in graph.tensors:
        source = graph.call[tensor.source]
        if source.part != graph.call[tensor.target].part:
            # Workload files know no shapes.
            shapes = source.output_shapes[tensor.index : tensor.index + 1]
            for shape in (tensor.shape,) if tensor.shape else shapes:
                found[source.part][source.name, tensor.index] = shape
    for name in graph.outputs:
        call = graph.call[name]
        for index, shape in enumerate(call.output_shapes):
            found[call.part].setdefault((name, index), shape)
    return {part: tuple(shapes.values()) for part, shapes in found.items()}


def transfer_sums(
    plan: Plan, *fields: str
) -> dict[tuple[str, ...], tuple[int, int, float]]:
    """Count, bytes and seconds of a step's transfers by their fields, largest first."""
    sums: dict[tuple[str, ...], tuple[int, int, float]] = {}
    for one in plan.transfers:
        key = attrgetter(*fields)(one)
        count, size, spent = sums.get(key, (0, 0, 0.0))
        sums[key] = (count + 1, size + one.bytes, spent + one.seconds)
    return dict(sorted(sums.items(), key=lambda item: -item[1][1]))


def equivalent_devices(timeline: Timeline) -> list[list[str]]:
    """Devices that compute, in groups; of many, equivalent ones of a host together."""
    busy = [d for d in timeline.devices if timeline.compute_seconds[d]]
    does: dict[str, list[Hashable]] = {device: [] for device in busy}
    for task in timeline.tasks:
        if task.stop > task.start:
            times = round(task.start, 9), round(task.stop, 9)
            does[task.device].append((task.phase, task.microbatch, *times))
    found: dict[Hashable, list[str]] = {}
    for device in busy:
        host = device.rpartition("/")[0]
        alone = device if len(busy) <= _MOST_ALONE else None
        found.setdefault((host, tuple(does[device]), alone), []).append(device)
    return list(found.values())


def objective_text(plan: Plan) -> tuple[str, str]:
    """Say what the objective counts, and its value: ("training step", "5.00 ms")."""
    if plan.objective == "memory":
        return "fullest device", format_bytes(plan.value)
    if plan.objective == "throughput":
        return "busiest device", format_seconds(plan.value)
    kind = "training" if plan.training else "inference"
    return f"{kind} step", format_seconds(plan.timeline.seconds)


def fullest_device(plan: Plan) -> tuple[str, float]:
    """The device with the least room left, and its peak in shares of its limit."""
    full = {
        one.name: plan.memory[one.name].total / (one.memory_bytes or 1)
        for one in plan.cluster
    }
    return max(full.items(), key=lambda item: item[1])


def bottleneck_text(plan: Plan) -> str:
    """Name the busiest and the fullest device and the link with the longest copies."""
    used = plan.timeline.utilization
    busiest = max(used, key=used.__getitem__)
    fullest, share = fullest_device(plan)
    words = [
        f"busiest {busiest} ({percent(used[busiest])})",
        f"fullest {fullest} ({percent(share)})",
    ]
    links = transfer_sums(plan, "source_device", "target_device")
    if links:
        slowest = max(links, key=lambda ends: links[ends][2])
        _, size, seconds = links[slowest]
        copied = f"{format_bytes(size)} in {format_seconds(seconds)}"
        words.append(f"slowest link {' → '.join(slowest)} ({copied})")
    return ", ".join(words)


def algorithm_text(plan: Plan) -> str:
    """Say what the planner optimised and which algorithm found the plan."""
    goal = _GOAL.get(plan.objective, plan.objective)
    if plan.strategy == "given":
        said = "placement given by the user"
    else:
        said = f"{goal}, found by {plan.strategy.replace('_', ' ')}"
    return f"{said}; runs {plan.execution}" if str(plan.execution) else said


def verdict_lines(plan: Plan) -> list[str]:
    """Whether the plan is worth it, in the first line; then the bound and advice."""
    if plan.verdict is None:
        return [" ".join(objective_text(plan))]
    return str(plan.verdict).splitlines()
