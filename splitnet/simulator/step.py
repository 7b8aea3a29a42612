"""One training or inference step as plain numbers, before anything is placed.

The simulator and the searches meet integers and lists here, never a graph library:
units (calls, or whole parts after `contract`) in an order in which they may run, the
nets between them, and the weights beside them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from splitnet.core.cluster import Cluster
from splitnet.core.costs.model import CostModel, late_share, slots_of
from splitnet.core.graph import Graph
from splitnet.simulator.kept import Keeps, keeps_of, kept_at_once
from splitnet.simulator.kernels import code_bytes
from splitnet.simulator.tables import (
    Crowd,
    crowd_table,
    deep_first,
    road_tables,
    seconds_tables,
    start_table,
)
from splitnet.simulator.wires import Net, Shared, Wires, tails_of, wires_of

__all__ = ["Net", "Shared", "Step", "Wires", "step_of"]


@dataclass(frozen=True)
class Step:
    """Times are per device (outer index) and unit (inner index), in seconds.

    Roads are per device and device: latency, the `gap` of it that keeps the road,
    seconds per byte, and the share in which both ends are busy. `start` holds when each
    device may begin, `crowds` the devices that share its processors, `deep_first` which
    of them follow what they have just computed (none if empty).

    `late_share` is the part of each unit's backward pass in which only gradients of its
    own weights are computed.

    `slot_copies` counts optimizer slots per weight; `own_bytes` are the weights whose
    home is the unit, `own_trained` those of them that are updated; `kept_bytes` are the
    activations that are held together whatever the schedule, `keeps` what each unit
    keeps of its own. `code_bytes` are what a worker's process needs to run each unit,
    where that is known. `waits` holds pairs (unit, other): the unit's forward pass
    starts after the other's backward pass.
    """

    names: tuple[str, ...]
    forward: Sequence[Sequence[float]]
    backward: Sequence[Sequence[float]]
    update: Sequence[Sequence[float]]
    has_backward: Sequence[bool]
    has_update: Sequence[bool]
    explicit_backward: Sequence[bool]
    nets: tuple[Net, ...]
    shared: tuple[Shared, ...]
    own_bytes: Sequence[int]
    own_trained: Sequence[int]
    output_bytes: Sequence[int]
    activation_bytes: Sequence[int]
    kept_bytes: Sequence[int]
    workspace_bytes: Sequence[int]
    latency: Sequence[Sequence[float]]
    gap: Sequence[Sequence[float]]
    seconds_per_byte: Sequence[Sequence[float]]
    busy_share: Sequence[Sequence[float]]
    crowds: Sequence[Sequence[Crowd]]
    start: Sequence[float]
    slot_copies: int
    training: bool
    waits: Sequence[tuple[int, int]] = ()
    deep_first: Sequence[bool] = ()
    late_share: Sequence[float] = ()
    keeps: Sequence[Keeps] = ()
    code_bytes: Sequence[int] = ()

    @property
    def count(self) -> int:
        """How many units there are."""
        return len(self.names)

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return len(self.forward)

    @cached_property
    def wires(self) -> Wires:
        """What the engine needs to know of each task, the same for every placement."""
        return wires_of(
            self.nets,
            self.shared,
            has_backward=self.has_backward,
            has_update=self.has_update,
            waits=self.waits,
        )

    @cached_property
    def task_seconds(self) -> Sequence[Sequence[float]]:
        """Seconds of every task (see `Wires`) per device."""
        return _per_device(self, lambda f, b, u: [*f, *reversed(b), *u])

    @cached_property
    def unit_seconds(self) -> Sequence[Sequence[float]]:
        """Forward, backward and update of every unit per device."""
        return _per_device(
            self, lambda f, b, u: [x + y + z for x, y, z in zip(f, b, u)]
        )

    @cached_property
    def tails(self) -> Sequence[float]:
        """The least seconds from the end of every task to the end of the step."""
        times = list(zip(*self.task_seconds))
        early = [max(each) * late for each, late in zip(times, self.late_of_task)]
        return tails_of(self.wires, self.nets, [min(each) for each in times], early)

    @cached_property
    def late_of_task(self) -> Sequence[float]:
        """The `late_share` of every task (see `Wires`): of backward ones alone."""
        late = self.late_share or [0.0] * self.count
        return [*[0.0] * self.count, *reversed(late), *[0.0] * self.count]


def _per_device(step: Step, row: Callable[..., list[float]]) -> list[list[float]]:
    """A row per device; devices that share their tables share the row."""
    known: dict[int, list[float]] = {}
    result = []
    for tables in zip(step.forward, step.backward, step.update):
        if id(tables[0]) not in known:
            known[id(tables[0])] = row(*tables)
        result.append(known[id(tables[0])])
    return result


def step_of(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    *,
    training: bool,
    optimizer: str,
) -> Step:
    """Lay a graph out as numbers, a unit per call, in the graph's order.

    A graph that holds backward calls by itself (a workload file) gets no backward pass
    on top. O(calls x kinds of device + tensors).
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    explicit = any(call.backward for call in graph.calls)
    grads = _gradient_flow(graph, index) if training and not explicit else None
    has_backward = grads or [False] * len(graph.calls)
    weights = _weight_use(graph, index, has_backward)
    own, trained = _owned(graph, weights)
    nets = _nets(graph, index, has_backward)
    activations = [
        call.activation_bytes if kept else 0
        for call, kept in zip(graph.calls, has_backward)
    ]
    tables = seconds_tables(graph, cluster, costs, has_backward, trained, optimizer)
    roads = road_tables(cluster, costs)
    deep, slots = deep_first(cluster), slots_of(optimizer) if training else 0
    return Step(
        names=tuple(index),
        forward=tables[0],
        backward=tables[1],
        update=tables[2],
        has_backward=has_backward,
        has_update=[count > 0 for count in trained],
        explicit_backward=[call.backward for call in graph.calls],
        nets=nets,
        shared=tuple(one for one in weights if len(one.users) > 1),
        own_bytes=own,
        own_trained=trained,
        output_bytes=[call.output_bytes for call in graph.calls],
        activation_bytes=activations,
        kept_bytes=kept_at_once(nets, has_backward, activations),
        workspace_bytes=[call.workspace_bytes for call in graph.calls],
        latency=roads[0],
        gap=roads[1],
        seconds_per_byte=roads[2],
        busy_share=roads[3],
        crowds=crowd_table(cluster, costs),
        start=start_table(cluster, costs),
        slot_copies=slots,
        training=training,
        deep_first=deep,
        late_share=[late_share(call) if deep else 0.0 for call in graph.calls],
        keeps=[keeps_of(call, kept) for call, kept in zip(graph.calls, has_backward)],
        code_bytes=code_bytes(graph, slots) if deep else (),
    )


def _gradient_flow(graph: Graph, index: dict[str, int]) -> list[bool]:
    """Which calls have a backward pass: between a trained weight and an output."""
    count = len(graph.calls)
    trained = {w.name for w in graph.weights if w.trainable}
    needs = [any(name in trained for name in call.weights) for call in graph.calls]
    edges = [
        (index[t.source], index[t.target]) for t in graph.tensors if t.differentiable
    ]
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        readers[source].append(target)
    for source in range(count):
        if needs[source]:
            for target in readers[source]:
                needs[target] = True
    reaches = [False] * count
    ends = [index[name] for name in graph.outputs]
    for end in ends or [i for i in range(count) if not readers[i]]:
        reaches[end] = True
    for source in reversed(range(count)):
        reaches[source] = reaches[source] or any(reaches[t] for t in readers[source])
    return [a and b for a, b in zip(needs, reaches)]


def _weight_use(
    graph: Graph, index: dict[str, int], has_backward: Sequence[bool]
) -> list[Shared]:
    users: dict[str, dict[int, None]] = {w.name: {} for w in graph.weights}
    for i, call in enumerate(graph.calls):
        for name in call.weights:
            users[name][i] = None
    rows = _rows(graph, index)
    found = []
    for w in graph.weights:
        backward = [u for u in users[w.name] if w.trainable and has_backward[u]]
        sent = tuple(rows.get((w.name, u), 0) for u in backward)
        if users[w.name]:
            found.append(
                Shared(
                    w.name,
                    w.bytes,
                    tuple(users[w.name]),
                    tuple(backward),
                    sent if any(sent) else (),
                )
            )
    return found


def _rows(graph: Graph, index: dict[str, int]) -> dict[tuple[str, int], int]:
    """Bytes of the rows, and their numbers, that a call's gradient of a table has."""
    readers = {i: call for i, call in enumerate(graph.calls) if call.lookups}
    numbers = dict.fromkeys(readers, 0)
    for tensor in graph.tensors:
        if index[tensor.target] in readers:
            numbers[index[tensor.target]] += tensor.bytes
    return {
        (name, i): call.output_bytes + numbers[i]
        for i, call in readers.items()
        for name in call.lookups
    }


def _owned(graph: Graph, weights: Sequence[Shared]) -> tuple[list[int], list[int]]:
    """Bytes of the weights at home with each call: all of them, and the trained ones.

    What a workload file charges to a call counts as weights.
    """
    own = [call.size_bytes for call in graph.calls]
    trained = [0] * len(graph.calls)
    for one in weights:
        own[one.users[0]] += one.bytes
        if one.backward:
            trained[one.users[0]] += one.bytes
    return own, trained


def _nets(
    graph: Graph, index: dict[str, int], has_backward: Sequence[bool]
) -> tuple[Net, ...]:
    """A net per output tensor; two tensors of one output are one."""
    some = dict[int, None]
    found: dict[tuple[int, int], tuple[int, some, some, some]] = {}
    for tensor in graph.tensors:
        source, target = index[tensor.source], index[tensor.target]
        key = (source, tensor.index)
        size, readers, back, kept = found.get(key, (0, {}, {}, {}))
        readers[target] = None
        if tensor.differentiable and has_backward[source] and has_backward[target]:
            back[target] = None
        # Where nobody says what a backward pass reads, it may read all of its inputs.
        unsaid = graph.calls[target].inner_bytes is None and target in back
        if has_backward[target] and (tensor.kept or unsaid):
            kept[target] = None
        found[key] = (max(size, tensor.bytes), readers, back, kept)
    return tuple(
        Net(
            source,
            tuple(readers),
            size,
            tuple(back),
            graph.calls[source].transfer_seconds,
            tuple(kept),
        )
        for (source, _), (size, readers, back, kept) in found.items()
    )
