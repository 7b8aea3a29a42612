"""What the pictures and the tables say of a plan, worked out once from plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from splitnet.core.audit import Audit, Row
from splitnet.core.graph import Call, Graph, Tensor
from splitnet.core.plan import Fallback, Plan, Transfer
from splitnet.core.units import format_bytes, format_seconds

__all__ = [
    "Flow",
    "PartFacts",
    "Sharing",
    "audit_row",
    "flows_of",
    "known_shape",
    "objective_text",
    "part_facts",
    "search_text",
    "sharings_of",
    "strayed_of",
    "verdict_line",
]

Shape = tuple[int | None, ...]

_SOUGHT = {
    "latency": "the fastest step",
    "throughput": "the least busy devices",
    "memory": "the smallest peak of memory",
    "call_latency": "the fastest single sample",
}
_FOUND = {
    "single_device": "trying each device alone",
    "earliest_finish": "serving each part where it ends first",
    "simple": "serving each part where it ends first",
    "chain": "cutting the chain of parts",
    "convex": "giving each device one stretch",
    "fitted": "serving parts with room to spare",
    "multilevel": "placing blocks of neighbours first",
    "refine": "moving parts while it helped",
    "program": "an integer program",
    "exhaustive": "trying everything",
}


@dataclass(frozen=True, slots=True)
class PartFacts:
    """What one part is and costs; bytes for the whole batch, seconds per step.

    `weight_bytes` counts the weights whose home is this part, so that a sum over parts
    counts each once; `borrowed` names the weights it uses that live in another part.
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
    fetched_bytes: int = 0
    where: str = ""

    @property
    def total_bytes(self) -> int:
        """Weights and the activations kept for the backward pass."""
        return self.weight_bytes + self.activation_bytes

    @property
    def total_seconds(self) -> float:
        """Forward, backward and update together."""
        return sum(self.seconds.values())


@dataclass(slots=True)
class Flow:
    """What passes from one part to another in a step.

    `bytes` are the tensors that the graph says; `sent_bytes` and `returned_bytes` what
    the plan moves between devices for them: activations there, gradients back. A
    tensor that a neighbour on the same device has fetched already is sent by nobody.
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


def part_facts(plan: Plan) -> Mapping[str, PartFacts]:
    """Gather what is to be said of each part, in the graph's order."""
    graph = plan.graph
    seconds: dict[str, dict[str, float]] = {p.name: {} for p in graph.parts}
    for task in plan.timeline.tasks:
        if task.part in seconds:
            phases = seconds[task.part]
            phases[task.phase] = phases.get(task.phase, 0.0) + task.stop - task.start
    homes: dict[str, int] = dict.fromkeys(seconds, 0)
    borrowed: dict[str, list[str]] = {name: [] for name in seconds}
    for weight, parts in graph.parts_of_weights.items():
        if parts:
            homes[parts[0]] += graph.weight[weight].bytes
            for other in parts[1:]:
                borrowed[other].append(weight)
    fallbacks = {fallback.part: fallback for fallback in plan.fallbacks}
    fetched = dict.fromkeys(seconds, 0)
    for transfer in plan.transfers:
        if transfer.kind == "weights" and transfer.target in fetched:
            fetched[transfer.target] += transfer.bytes
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
            fetched_bytes=fetched[part.name],
            where=part.where,
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
    """The shape of a tensor, or nothing: workload files know bytes or times only."""
    if tensor.shape:
        return (tensor.shape,)
    return source.output_shapes[tensor.index : tensor.index + 1]


def flows_of(plan: Plan) -> list[Flow]:
    """Gather what passes between parts, in the order of the graph's tensors."""
    graph = plan.graph
    flows: dict[tuple[str, str], Flow] = {}
    counted: set[tuple[str, int, str]] = set()
    for tensor in graph.tensors:
        source, target = (graph.call[n].part for n in (tensor.source, tensor.target))
        if source == target or (tensor.source, tensor.index, target) in counted:
            continue
        counted.add((tensor.source, tensor.index, target))
        flow = flows.setdefault((source, target), Flow(source, target))
        flow.shapes += known_shape(graph.call[tensor.source], tensor)
        flow.bytes += tensor.bytes
    for transfer in plan.transfers:
        _add_transfer(flows, transfer)
    return list(flows.values())


def _add_transfer(flows: dict[tuple[str, str], Flow], transfer: Transfer) -> None:
    """Activations go with their edge; gradients against it, on the same edge."""
    there = flows.get((transfer.source, transfer.target))
    back = flows.get((transfer.target, transfer.source))
    if transfer.kind == "activation" and there:
        there.sent_bytes += transfer.bytes
        there.seconds += transfer.seconds
    elif transfer.kind == "gradient" and (back or there):
        flow = back or there
        assert flow is not None
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
            found = users[weight]
            if found in layers:
                layers[found][call.layer or call.name] = None
    return [
        Sharing(tuple(names), found[0], found[1:], sizes[found])
        for found, names in layers.items()
    ]


def objective_text(plan: Plan) -> tuple[str, str]:
    """Say what the objective counts, and its value: ("training step", "5.00 ms")."""
    if plan.objective == "memory":
        return "fullest device", format_bytes(plan.value)
    if plan.objective == "throughput":
        return "busiest device", format_seconds(plan.value)
    if plan.objective == "call_latency":
        return "one sample", format_seconds(plan.value)
    kind = "training" if plan.training else "inference"
    return f"{kind} step", format_seconds(plan.timeline.seconds)


def search_text(plan: Plan) -> str:
    """Say what was sought and how the plan was found, without a program's names."""
    sought = _SOUGHT.get(plan.objective, plan.objective)
    if plan.strategy == "given":
        return f"{sought}: a placement that was given"
    found = _FOUND.get(plan.strategy, plan.strategy.replace("_", " "))
    return f"{sought}, found by {found}"


def verdict_line(plan: Plan) -> str:
    """Say in one line whether the plan is worth it."""
    return str(plan.verdict).partition("\n")[0]


def audit_row(row: Row) -> tuple[str, ...]:
    """Write an audit's row as texts: the part, the plan, where each aspect was."""
    seen = (row.forward, row.backward, row.variables, row.slots, row.updates)
    return (row.part, row.planned, *(device or "-" for device in seen), str(row.ops))


def strayed_of(audit: Audit | None) -> Mapping[str, list[str]]:
    """What each part of an audit did elsewhere, in a few words each."""
    found: dict[str, list[str]] = {}
    for finding in audit.findings if audit is not None else ():
        text = f"{finding.aspect} on {finding.actual or 'no device'}"
        found.setdefault(finding.part, []).append(text)
    return found
