"""What a strategy may be: devices, counts, and what stands against a division."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph
from splitnet.core.plan import PlanOptions
from splitnet.planner.constraints import Group
from splitnet.planner.evaluate import Evaluator, placed

Placed = tuple[Evaluator, Mapping[str, str]]
"""What evaluates a placement of the parts of its graph, and the placement."""

Slices = Mapping[str, Sequence[str]]
"""The devices of a layer's slices, by its name."""

_MICROBATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Limits:
    """How a source can be divided, as far as its graph does not show it.

    `obstacles` say why it cannot be cut into "microbatches", or copied into "towers",
    and `obstacle` why a layer cannot be cut into so many slices, "" if it can.
    `sliced` reads the source with slices; None if it has no layers.
    """

    obstacles: Mapping[str, str] = field(default_factory=dict)
    obstacle: Callable[[str, int], str] = lambda name, count: "it is in a graph"
    sliced: Callable[[Slices], Graph] | None = None


@dataclass(frozen=True)
class Space:
    """What may be chosen: devices of each group of parts, and what `options` leave.

    `obstacles` say why the model cannot be cut into "microbatches" or copied into
    "towers".
    """

    evaluator: Evaluator
    groups: Sequence[Group]
    obstacles: Mapping[str, str] = field(default_factory=dict)
    options: PlanOptions = PlanOptions()

    @property
    def counts(self) -> tuple[int, ...]:
        """How many micro-batches may be tried."""
        if self.options.microbatches is not None:
            return (self.options.microbatches,)
        if not self.evaluator.training or "microbatches" in self.obstacles:
            return (1,)
        return tuple(n for n in _MICROBATCHES if n <= self.evaluator.graph.batch)

    @property
    def faults(self) -> list[str]:
        """What is fixed and cannot be."""
        options, batch = self.options, self.evaluator.graph.batch
        devices, found = len(workers_of(self.evaluator.cluster)), list[str]()
        for name, count, most, what in (
            ("microbatches", options.microbatches or 1, batch, "the batch"),
            ("towers", options.towers or 1, devices, "the devices for them"),
        ):
            if count > max(most, 1):
                found.append(f"{name}={count} is more than {what}, {most}")
            if count > 1 and name in self.obstacles:
                why = self.obstacles[name]
                found.append(f"{name}={count} would not be exact: {why}")
        several = (options.microbatches or 1) > 1
        if not self.evaluator.training and (options.recompute or several):
            found.append("microbatches= and recompute= are for training")
        if options.schedule is not None and self.counts == (1,):
            found.append(f"schedule={options.schedule!r} is an order of micro-batches")
        return found

    @property
    def is_free(self) -> bool:
        """Whether nothing but inputs and slices asks for a device."""
        graph, workers = self.evaluator.graph, {*workers_of(self.evaluator.cluster)}
        return bool(workers) and all(
            may_move(graph, part) or graph.part[part].kind == "slice"
            for group in self.groups
            if group.apart or not workers <= set(group.allowed)
            for part in group.parts
        )

    def placed(self, wanted: Iterable[str]) -> Placed | None:
        """The groups on the wanted devices where they may be there, else on others.

        None if two that must be apart would share a device.
        """
        device_of = placed(self.groups, wanted)
        where = [device_of[group.parts[0]] for group in self.groups]
        for group, device in zip(self.groups, where):
            if any(where[other] == device for other in group.apart):
                return None
        return self.evaluator.as_run(device_of)


def sees_batch(call: Call) -> bool:
    """Whether a call sees a batch as a whole, or changes with each call."""
    return call.batch_moments or call.kind == "SpectralNormalization"


def obstacles_of(graph: Graph) -> dict[str, str]:
    """What a graph shows of why its batch or its model cannot be divided."""
    found = {}
    norms = [call.layer for call in graph.calls if sees_batch(call)]
    if norms:
        found["microbatches"] = (
            f"{', '.join(norms[:3])} would normalise each micro-batch by itself"
        )
    if any(call.backward for call in graph.calls):
        why = "its graph has backward calls of its own"
        found.update(microbatches=why, towers=why)
    if graph.towers:
        found["towers"] = "it has towers of its own"
    for call in graph.calls:
        end = call.name in graph.outputs or graph.part[call.part].kind == "input"
        for shape in call.output_shapes if end else ():
            if shape[:1] not in ((), (graph.batch,), (None,)):
                why = f"the first axis of {call.name!r} is not the batch"
                found.update(microbatches=why, towers=why)
    return found


def workers_of(cluster: Cluster) -> list[str]:
    """The devices that towers and stages may use: GPUs, or else all but the first."""
    gpus = [d.name for d in cluster if d.kind == "gpu"]
    others = [d.name for d in cluster if d.name != cluster.home.name]
    return gpus if len(gpus) > 1 else others


def groups_of(workers: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """As many groups of so many devices as there are, each within a host if any is.

    >>> groups_of(["w:0/gpu:0", "w:0/gpu:1", "w:1/gpu:0", "w:1/gpu:1"], 2)
    [('w:0/gpu:0', 'w:0/gpu:1'), ('w:1/gpu:0', 'w:1/gpu:1')]
    """
    hosts: dict[str, list[str]] = {}
    for name in workers:
        hosts.setdefault(name.rpartition("/")[0], []).append(name)

    def cut(line: Sequence[str]) -> list[tuple[str, ...]]:
        starts = range(0, len(line) - size + 1, size)
        return [tuple(line[start : start + size]) for start in starts]

    inside = [group for line in hosts.values() for group in cut(line)]
    return inside or cut([name for line in hosts.values() for name in line])


def device_counts(most: int) -> list[int]:
    """How many devices are tried: small numbers, then multiples of four, and all."""
    return [n for n in range(2, most + 1) if n <= 4 or n % 4 == 0 or n == most]


def may_move(graph: Graph, part: str) -> bool:
    """Whether a part is somewhere by default alone: inputs, and merges on the CPU."""
    one = graph.part[part]
    return one.kind == "input" or one.kind == "merge" and one.on == ("cpu",)
