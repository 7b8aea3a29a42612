"""Figures and sentences about a plan for pictures and tables."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Fallback, Plan, value_text
from splitnet.core.timeline import Timeline
from splitnet.view.style import Shape, counted, percent

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
    part_of = {call.name: call.part for call in graph.calls}
    leaving = {
        t.source for t in graph.tensors if part_of[t.source] != part_of[t.target]
    }
    fallbacks = {fallback.part: fallback for fallback in plan.fallbacks}
    facts = {}
    for part in graph.parts:
        calls, placement = graph.calls_of[part.name], plan[part.name]
        ends = [c for c in calls if c.name in leaving or c.name in graph.outputs]
        facts[part.name] = PartFacts(
            name=part.name,
            kind=part.kind,
            device=placement.device,
            reason=placement.reason,
            fallback=fallbacks.get(part.name),
            layers=tuple(call.kind for call in calls),
            shapes=tuple(shape for call in ends for shape in call.output_shapes),
            weight_bytes=homes[part.name],
            activation_bytes=sum(call.activation_bytes for call in calls),
            seconds=seconds[part.name],
            is_output=any(call.name in graph.outputs for call in calls),
            where=part.where.replace("\\", "/").rpartition("/")[2],
        )
    return facts


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
    names = {"memory": "fullest device", "throughput": "busiest device"}
    step = f"{'training' if plan.training else 'inference'} step"
    value = plan.timeline.seconds if plan.objective == "latency" else plan.value
    said = value_text(plan.objective, value, long=False)
    return names.get(plan.objective, step), said


def fullest_device(plan: Plan) -> tuple[str, float]:
    """The device with the least room left, and its peak in shares of its limit."""
    full = {
        one.name: plan.memory[one.name].total / (one.memory_bytes or 1)
        for one in plan.cluster
    }
    return max(full.items(), key=lambda item: item[1])


def bottleneck_text(plan: Plan) -> str:
    """Name the busiest and the fullest device and the link with the longest copies."""
    busiest, used = max(plan.timeline.utilization.items(), key=lambda item: item[1])
    fullest, share = fullest_device(plan)
    text = f"busiest {busiest} ({percent(used)}), fullest {fullest} ({percent(share)})"
    links = transfer_sums(plan, "source_device", "target_device")
    if links:
        ends, (_, size, seconds) = max(links.items(), key=lambda item: item[1][2])
        copied = f"{format_bytes(size)} in {format_seconds(seconds)}"
        text += f", slowest link {' → '.join(ends)} ({copied})"
    return text


def algorithm_text(plan: Plan) -> str:
    """Say what the planner optimised and which algorithm found the plan."""
    said = f"{_GOAL[plan.objective]}, found by {plan.strategy.replace('_', ' ')}"
    if plan.strategy == "given":
        said = "placement given by the user"
    return f"{said}; runs {plan.execution}" if str(plan.execution) else said


def verdict_lines(plan: Plan) -> list[str]:
    """Whether the plan is worth it, in the first line; then the bound and advice."""
    if plan.verdict is None:
        return [" ".join(objective_text(plan))]
    return str(plan.verdict).splitlines()


def audit_text(audit: Audit) -> str:
    """Whether all is as planned, or how many findings are not."""
    found = counted(len(audit.findings), "finding")
    return "all as planned" if audit.ok else f"{found} not as planned"
