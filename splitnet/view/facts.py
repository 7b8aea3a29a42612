"""What pictures and tables say about a plan: parts, flows, sharing, transfers."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.graph import Call, Graph, Tensor
from splitnet.core.plan import Fallback, Plan, Transfer
from splitnet.core.timeline import PHASES
from splitnet.view.style import Shape, percent

__all__ = [
    "PartFlow",
    "PartFacts",
    "Sharing",
    "TransferSum",
    "algorithm_text",
    "bottleneck_text",
    "findings_by_part",
    "flows_of",
    "known_shape",
    "objective_text",
    "part_facts",
    "phases_of",
    "reason_text",
    "sharings_of",
    "transfer_sums",
    "utilization",
    "verdict_lines",
]

_GOAL = {
    "latency": "shortest step",
    "throughput": "highest throughput",
    "memory": "smallest memory peak",
}
_ALGORITHM = {
    "single_device": "the best single device",
    "earliest_finish": "list scheduling (earliest finish time)",
    "simple": "list scheduling (earliest finish time)",
    "chain": "dynamic programming over the chain of parts",
    "convex": "one convex segment per device",
    "fitted": "list scheduling with memory limits",
    "multilevel": "multilevel coarsening",
    "refine": "local search",
    "program": "mixed-integer programming",
    "exhaustive": "exhaustive search",
}


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What one part is and costs; bytes for the whole batch, seconds per step.

    `weight_bytes` counts weights whose home is this part, so that a sum over parts
    counts each once; `borrowed` names the weights that it uses of other parts.
    `where` is the file name and line of its declaration, without folders.
    """

    name: str
    kind: str
    device: str
    requested: str
    reason: str
    fallback: Fallback | None
    layers: tuple[str, ...]
    shapes: tuple[Shape, ...]
    weight_bytes: int
    activation_bytes: int
    seconds: Mapping[str, float]
    calls: int
    is_output: bool
    borrowed: tuple[str, ...] = ()
    where: str = ""

    @property
    def total_bytes(self) -> int:
        """Weights and saved activations."""
        return self.weight_bytes + self.activation_bytes

    @property
    def total_seconds(self) -> float:
        """Forward, backward and update together."""
        return sum(self.seconds.values())


@dataclass(slots=True)
class PartFlow:
    """What passes from one part to another in a step.

    `bytes` is the size of the tensors; `sent_bytes` and `returned_bytes` are what the
    plan copies between devices for them: activations forward, gradients back. A tensor
    that is already on the target's device is not copied again.
    """

    source: str
    target: str
    shapes: list[Shape] = field(default_factory=list)
    bytes: int = 0
    sent_bytes: int = 0
    returned_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """Weights that several parts use: their layers, their home part, their bytes."""

    layers: tuple[str, ...]
    home: str
    others: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class TransferSum:
    """All transfers of one kind between two devices in one step."""

    source: str
    target: str
    kind: str
    count: int
    bytes: int
    seconds: float


def part_facts(plan: Plan) -> Mapping[str, PartFacts]:
    """Gather the facts of each part, in the graph's order."""
    graph = plan.graph
    seconds: dict[str, dict[str, float]] = {part.name: {} for part in graph.parts}
    for task in plan.timeline.tasks:
        if task.part in seconds:
            phases = seconds[task.part]
            phases[task.phase] = phases.get(task.phase, 0.0) + task.stop - task.start
    homes = dict.fromkeys(seconds, 0)
    borrowed: dict[str, list[str]] = {name: [] for name in seconds}
    for weight, parts in graph.parts_of_weights.items():
        if parts:
            homes[parts[0]] += graph.weight[weight].bytes
        for other in parts[1:]:
            borrowed[other].append(weight)
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
            requested=placement.requested,
            reason=placement.reason,
            fallback=fallbacks.get(part.name),
            layers=tuple(call.kind for call in calls),
            shapes=leaving[part.name],
            weight_bytes=homes[part.name],
            activation_bytes=sum(call.activation_bytes for call in calls),
            seconds=seconds[part.name],
            calls=len(calls),
            is_output=part.name in outputs,
            borrowed=tuple(borrowed[part.name]),
            where=part.where.replace("\\", "/").rpartition("/")[2],
        )
    return facts


def _leaving(graph: Graph) -> Mapping[str, tuple[Shape, ...]]:
    """The shapes of the outputs that other parts, or the model's user, receive."""
    found: dict[str, dict[tuple[str, int], Shape]] = {p.name: {} for p in graph.parts}
    for tensor in graph.tensors:
        source = graph.call[tensor.source]
        if source.part != graph.call[tensor.target].part:
            for shape in known_shape(source, tensor):
                found[source.part][source.name, tensor.index] = shape
    for name in graph.outputs:
        call = graph.call[name]
        for index, shape in enumerate(call.output_shapes):
            found[call.part].setdefault((name, index), shape)
    return {part: tuple(shapes.values()) for part, shapes in found.items()}


def known_shape(source: Call, tensor: Tensor) -> tuple[Shape, ...]:
    """The shape of a tensor; empty for workload files, which know no shapes."""
    if tensor.shape:
        return (tensor.shape,)
    return source.output_shapes[tensor.index : tensor.index + 1]


def flows_of(plan: Plan) -> list[PartFlow]:
    """Gather what passes between parts, in the order of the graph's tensors."""
    graph = plan.graph
    flows: dict[tuple[str, str], PartFlow] = {}
    counted: set[tuple[str, int, str]] = set()
    for tensor in graph.tensors:
        source, target = (graph.call[n].part for n in (tensor.source, tensor.target))
        if source == target or (tensor.source, tensor.index, target) in counted:
            continue
        counted.add((tensor.source, tensor.index, target))
        flow = flows.setdefault((source, target), PartFlow(source, target))
        flow.shapes += known_shape(graph.call[tensor.source], tensor)
        flow.bytes += tensor.bytes
    for transfer in plan.transfers:
        _add_transfer(flows, transfer)
    return list(flows.values())


def _add_transfer(flows: dict[tuple[str, str], PartFlow], transfer: Transfer) -> None:
    """Count activations along their edge, gradients on it as returned."""
    there = flows.get((transfer.source, transfer.target))
    back = flows.get((transfer.target, transfer.source))
    if transfer.kind == "activation" and there:
        there.sent_bytes += transfer.bytes
        there.seconds += transfer.seconds
    elif transfer.kind == "gradient" and (flow := back or there):
        flow.returned_bytes += transfer.bytes
        flow.seconds += transfer.seconds


def sharings_of(graph: Graph) -> list[Sharing]:
    """Gather the weights that several parts use, one entry per set of parts."""
    layers: dict[tuple[str, ...], dict[str, None]] = {}
    sizes: dict[tuple[str, ...], int] = {}
    users = graph.parts_of_weights
    for weight, found in users.items():
        if len(found) > 1:
            layers.setdefault(found, {})
            sizes[found] = sizes.get(found, 0) + graph.weight[weight].bytes
    for call in graph.calls:
        for weight in call.weights:
            if users[weight] in layers:
                layers[users[weight]][call.layer or call.name] = None
    return [
        Sharing(tuple(names), found[0], found[1:], sizes[found])
        for found, names in layers.items()
    ]


def transfer_sums(plan: Plan) -> list[TransferSum]:
    """Sum the transfers by pair of devices and kind, the largest first."""
    sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for one in plan.transfers:
        key = (one.source_device, one.target_device, one.kind)
        count, size, spent = sums.get(key, (0, 0, 0.0))
        sums[key] = (count + 1, size + one.bytes, spent + one.seconds)
    found = [TransferSum(*key, *values) for key, values in sums.items()]
    return sorted(found, key=lambda one: -one.bytes)


def phases_of(plan: Plan) -> tuple[str, ...]:
    """The phases that the plan's step has."""
    return PHASES if plan.training else PHASES[:1]


def utilization(plan: Plan, device: str) -> float:
    """The share of the step in which a device computes, 0 to 1."""
    return plan.timeline.utilization.get(device, 0.0)


def reason_text(one: PartFacts) -> str:
    """Why a part is on its device; for a fallback, what was requested."""
    return f"requested {one.fallback.requested}" if one.fallback else one.reason


def objective_text(plan: Plan) -> tuple[str, str]:
    """Say what the objective counts, and its value: ("training step", "5.00 ms")."""
    if plan.objective == "memory":
        return "fullest device", format_bytes(plan.value)
    if plan.objective == "throughput":
        return "busiest device", format_seconds(plan.value)
    kind = "training" if plan.training else "inference"
    return f"{kind} step", format_seconds(plan.timeline.seconds)


def bottleneck_text(plan: Plan) -> str:
    """Name the busiest and the fullest device and the link with the longest copies."""
    cluster = plan.cluster
    busiest = max(cluster, key=lambda one: utilization(plan, one.name)).name
    words = [f"busiest {busiest} ({percent(utilization(plan, busiest))})"]
    full = {
        one.name: plan.memory[one.name].total / one.memory_bytes
        for one in cluster
        if one.name in plan.memory and one.memory_bytes
    }
    if full:
        fullest = max(full, key=full.__getitem__)
        words.append(f"fullest {fullest} ({percent(full[fullest])})")
    sums: dict[tuple[str, str], list[float]] = {}
    for one in transfer_sums(plan):
        link = sums.setdefault((one.source, one.target), [0.0, 0.0])
        link[0] += one.seconds
        link[1] += one.bytes
    if sums:
        slowest = max(sums, key=lambda ends: sums[ends][0])
        seconds, size = sums[slowest]
        copied = f"{format_bytes(size)} in {format_seconds(seconds)}"
        words.append(f"slowest link {slowest[0]} → {slowest[1]} ({copied})")
    return ", ".join(words)


def algorithm_text(plan: Plan) -> str:
    """Say what the planner optimised and which algorithm found the plan."""
    goal = _GOAL.get(plan.objective, plan.objective)
    if plan.strategy == "given":
        return "placement given by the user"
    found = _ALGORITHM.get(plan.strategy, plan.strategy.replace("_", " "))
    return f"{goal}, found by {found}"


def verdict_lines(plan: Plan) -> list[str]:
    """Whether the plan is worth it, in the first line; then the bound and advice."""
    if plan.verdict is None:
        return [" ".join(objective_text(plan))]
    return str(plan.verdict).splitlines()


def findings_by_part(audit: Audit | None) -> Mapping[str, list[str]]:
    """What each part of an audit did on another device, in a few words each."""
    found: dict[str, list[str]] = {}
    for finding in audit.findings if audit is not None else ():
        text = f"{finding.aspect} on {finding.actual or 'no device'}"
        found.setdefault(finding.part, []).append(text)
    return found
