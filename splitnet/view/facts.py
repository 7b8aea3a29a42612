"""Figures and sentences about a plan for pictures and tables."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds, percent
from splitnet.core.graph import Shape, grouped
from splitnet.core.plan import OBJECTIVES, Fallback, Plan, value_text
from splitnet.core.timeline import PHASES, Timeline
from splitnet.view.style import counted

_MOST_ALONE = 8  # with more devices, equivalent ones are drawn together
_GOALS = "shortest step", "highest throughput", "smallest memory peak"


@dataclass(frozen=True, slots=True)
class PartFacts:
    """One part and its costs: bytes for the whole batch, seconds per step by phase.

    `weight_bytes` counts weights whose home is this part, so that a sum over parts
    counts each once. `where` is the file name and line of its declaration.
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
    where: str

    @property
    def total_bytes(self) -> int:
        """Weights and saved activations."""
        return self.weight_bytes + self.activation_bytes

    @property
    def total_seconds(self) -> float:
        """Forward, backward and update together."""
        return sum(self.seconds.values())


def part_facts(plan: Plan) -> dict[str, PartFacts]:
    """Gather the facts of each part, in the graph's order."""
    graph = plan.graph
    seconds = defaultdict[str, dict[str, float]](lambda: dict.fromkeys(PHASES, 0.0))
    for task in plan.timeline.tasks:
        seconds[task.part][task.phase] += task.stop - task.start
    homes: Counter[str] = Counter()
    for weight, parts in graph.parts_of_weights.items():
        homes.update(dict.fromkeys(parts[:1], graph.weight[weight].bytes))
    owner = {call.name: call.part for call in graph.calls}
    leaving = {t.source for t in graph.tensors if owner[t.source] != owner[t.target]}
    fallbacks = {fallback.part: fallback for fallback in plan.fallbacks}
    facts = {}
    for part, placement in zip(graph.parts, plan.placements):
        calls = graph.calls_of[part.name]
        ends = [c for c in calls if c.name in leaving or c.name in graph.outputs]
        facts[part.name] = PartFacts(
            *(part.name, part.kind, placement.device, placement.reason),
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


def summed(members: Sequence[PartFacts], times: int = 0) -> PartFacts:
    """The facts of parts together; what repeats `times` has the layers of one turn."""
    period = len(members) // times if times else 0
    return replace(
        members[0],
        kind=members[0].kind if len({one.kind for one in members}) == 1 else "branch",
        reason=", ".join(dict.fromkeys(one.reason for one in members)),
        layers=tuple(n for one in members[:period] for n in one.layers),
        shapes=members[-1].shapes if times else (),
        weight_bytes=sum(one.weight_bytes for one in members),
        activation_bytes=sum(one.activation_bytes for one in members),
        seconds={p: sum(one.seconds[p] for one in members) for p in PHASES},
        is_output=any(one.is_output for one in members),
    )


def sums_sent(plan: Plan, *by: str) -> dict[tuple[str, ...], tuple[int, int, float]]:
    """Count, bytes and seconds of a step's transfers, by fields, largest first."""
    sums = {
        key: (len(its), sum(c.bytes for c in its), sum(c.stop - c.start for c in its))
        for key, its in grouped(plan.transfers, attrgetter(*by)).items()
    }
    return dict(sorted(sums.items(), key=lambda item: -item[1][1]))


def equivalent_devices(timeline: Timeline) -> list[list[str]]:
    """Devices that compute, host by host; of many, equivalent ones together."""
    hosts = grouped(timeline.devices, lambda name: name.rpartition("/")[0]).values()
    busy = [d for its in hosts for d in its if timeline.compute_seconds[d]]
    if len(busy) <= _MOST_ALONE:
        return [[device] for device in busy]
    does: dict[str, list[Hashable]] = {device: [] for device in busy}
    for task in timeline.tasks:
        if task.stop > task.start:
            times = round(task.start, 9), round(task.stop, 9)
            does[task.device].append((task.phase, task.microbatch, *times))
    alike = grouped(busy, lambda name: (name.rpartition("/")[0], tuple(does[name])))
    return list(alike.values())


def objective_text(plan: Plan) -> tuple[str, str]:
    """Say what the objective counts, and its value: ("training step", "5.00 ms")."""
    names = {"memory": "fullest device", "throughput": "busiest device"}
    step = f"{'training' if plan.training else 'inference'} step"
    said = value_text(plan.objective, plan.value, long=False)
    return names.get(plan.objective, step), said


def bottleneck_text(plan: Plan) -> str:
    """Name the busiest and the fullest device and the link with the longest copies."""
    used, held = plan.timeline.utilization, plan.memory
    full = {d.name: held[d.name].total / (d.memory_bytes or 1) for d in plan.cluster}
    busiest, fullest = (max(its, key=its.__getitem__) for its in (used, full))
    text = f"busiest {busiest} ({percent(used[busiest])}), "
    text += f"fullest {fullest} ({percent(full[fullest])})"
    if links := sums_sent(plan, "source_device", "target_device"):
        ends, (_, size, seconds) = max(links.items(), key=lambda item: item[1][2])
        copied = f"{format_bytes(size)} in {format_seconds(seconds)}"
        text += f", slowest link {' → '.join(ends)} ({copied})"
    return text


def algorithm_text(plan: Plan) -> str:
    """Say what the planner optimised and which algorithm found the plan."""
    goal = _GOALS[OBJECTIVES.index(plan.objective)]
    said = f"{goal}, found by {plan.strategy.replace('_', ' ')}"
    if plan.strategy == "given":
        said = "placement given by the user"
    return f"{said}; runs {plan.execution}" if str(plan.execution) else said


def audit_text(audit: Audit) -> str:
    """Whether all is as planned, or how many findings are not."""
    found = counted(len(audit.findings), "finding")
    return "all as planned" if audit.ok else f"{found} not as planned"
