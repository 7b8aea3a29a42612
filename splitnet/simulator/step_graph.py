"""One training step as a task graph of units, in plain numbers.

A unit is what runs as one function on one device: a part of a plan. It starts when all
its inputs are there, and all its outputs are there when it ends. Its forward pass is
one task, its backward pass another, the update of the weights at home there a third.

    a part          |== forward ==| ... |==== backward ====|== update ==|
    saved           |~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~|
    gradients of its weights            |~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~

An output is copied once to each device that reads it, and the gradients of its readers
there are summed before they cross back. A weight that is used away from its home goes
there once in a step, and its summed gradient comes back once.

The event loop, the memory model and the planner's search read the lists of `StepGraph`;
none of them needs the graph of calls.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from splitnet.core.cluster import Cluster, Device
from splitnet.core.costs import CostModel, Measured, Roofline, slots_of
from splitnet.core.graph import Graph
from splitnet.simulator.task_graph import Edge, SharedWeight, TaskGraph, task_graph
from splitnet.simulator.units import (
    Grouping,
    edges_and_memory,
    group_parts,
    single_calls,
)

Table = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class StepGraph:
    """Units, the tensors between them and the weights beside them.

    Units are numbered in an order in which they may run. Tables of seconds have a row
    per device (equal devices share one row object) and a column per unit; tables of
    links a row per source and a column per target.

    Attributes:
        names: Per unit, the name of its first call.
        parts: Per unit, the part of its first call.
        forward: Seconds of forward tasks.
        backward: Seconds of backward tasks; 0 for units without one.
        update: Seconds of update tasks; 0 for units without one.
        has_backward: Which units have a backward task.
        explicit_backward: Units of a graph that holds its backward calls itself.
        edges: Tensors between units.
        all_weights: Weights that units use.
        waits: Pairs of tasks (one, other): the one starts after the other.
        assumed: Such pairs that hold by the order of arrival; nothing forces them.
        weight_bytes: Weights at home at the unit.
        saved_bytes: Saved activations inside the unit, tensors of edges left out.
        saved_floor: Saved activations that all devices together surely hold at one
            moment, assigned to the unit that saves them.
        forward_workspace: Bytes needed beside while the forward task runs.
        backward_workspace: Bytes needed beside while the backward task runs.
        learned_bytes: Gradients of its weights that are there when that is needed.
        waiting_workspace: Bytes needed besides if these gradients are all made last.
        early_workspace: Those of them that are there when the backward pass of the
            unit's function begins.
        calls: How many calls the unit has.
        latency: Seconds before the first byte of a copy arrives.
        gap: Seconds of these for which the copy occupies its link (LogGP).
        seconds_per_byte: Seconds for which each further byte occupies it.
        slot_copies: Optimizer slots per trained weight.
        training: Whether backward and update tasks follow.
        microbatches: How often the units of one micro-batch are repeated.
    """

    names: tuple[str, ...]
    parts: tuple[str, ...]
    forward: Table
    backward: Table
    update: Table
    has_backward: tuple[bool, ...]
    explicit_backward: tuple[bool, ...]
    edges: tuple[Edge, ...]
    all_weights: tuple[SharedWeight, ...]
    waits: tuple[tuple[int, int], ...]
    weight_bytes: tuple[int, ...]
    saved_bytes: tuple[int, ...]
    saved_floor: tuple[int, ...]
    forward_workspace: tuple[int, ...]
    backward_workspace: tuple[int, ...]
    learned_bytes: tuple[int, ...]
    waiting_workspace: tuple[int, ...]
    early_workspace: tuple[int, ...]
    calls: tuple[int, ...]
    latency: Table
    gap: Table
    seconds_per_byte: Table
    slot_copies: int
    training: bool
    assumed: tuple[tuple[int, int], ...] = ()
    microbatches: int = 1

    @property
    def count(self) -> int:
        """How many units there are."""
        return len(self.names)

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return len(self.forward)

    @cached_property
    def weights(self) -> tuple[SharedWeight, ...]:
        """Weights that several units use."""
        return tuple(one for one in self.all_weights if len(one.users) > 1)

    @cached_property
    def trained(self) -> list[list[SharedWeight]]:
        """Per unit, the weights at home there that are updated."""
        return _at_home(self.count, [w for w in self.all_weights if w.gradients_from])

    @cached_property
    def has_update(self) -> tuple[bool, ...]:
        """Which units have an update task."""
        return tuple(map(bool, self.trained))

    @cached_property
    def trained_bytes(self) -> tuple[int, ...]:
        """Weights at home at the unit that are updated."""
        return tuple(sum(w.bytes for w in own) for own in self.trained)

    @cached_property
    def gradient_bytes(self) -> tuple[int, ...]:
        """Their gradients: of an embedding, the rows that are read."""
        return tuple(sum(w.gradient_bytes for w in own) for own in self.trained)

    @cached_property
    def tasks(self) -> TaskGraph:
        """Task dependencies, the same for every placement."""
        waits = (*self.waits, *self.assumed)
        return task_graph(
            self.edges, self.weights, self.has_backward, self.has_update, waits
        )

    @cached_property
    def task_seconds(self) -> Table:
        """Seconds of every task, numbered as in `task_graph`, per device."""
        return self._per_device(lambda f, b, u: (*f, *reversed(b), *u))

    @cached_property
    def unit_seconds(self) -> Table:
        """Seconds of all tasks of every unit per device."""
        return self._per_device(lambda *rows: tuple(map(sum, zip(*rows))))

    def _per_device(self, row_of: Callable[..., tuple[float, ...]]) -> Table:
        """A row from the three rows of every device, once for equal devices."""
        rows = zip(self.forward, self.backward, self.update)
        made = {id(three[0]): row_of(*three) for three in _unlike(rows)}
        return tuple(made[id(row)] for row in self.forward)

    @cached_property
    def tails(self) -> tuple[float, ...]:
        """The least seconds from the end of every task to the end of the step.

        With every task on its fastest device and free copies; tasks that `waits` delays
        are left out. O(units + edges).
        """
        n, tasks = self.count, self.tasks
        fastest = [min(each) for each in zip(*self.task_seconds)]
        tails = [0.0] * len(fastest)
        for task in reversed(range(len(fastest))):
            after = list(tasks.successors[task])
            if task < n:
                after += [r for e in tasks.outputs[task] for r in self.edges[e].readers]
            after += [tasks.reductions[i].task for i in tasks.contributes[task]]
            tails[task] = max(
                (fastest[other] + tails[other] for other in after if other > task),
                default=0.0,
            )
        return tuple(tails)


def step_graph(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel | None = None,
    *,
    training: bool = True,
    optimizer: str = "adam",
    units: Literal["parts", "calls"] | Grouping = "parts",
    recompute: bool | Collection[str] = False,
    calls: StepGraph | None = None,
) -> StepGraph:
    """Lay out one step of a graph as tasks. O(calls x kinds of device + tensors).

    A graph that holds backward calls itself (a workload file) gets no backward tasks.

    Args:
        graph: What runs.
        cluster: The machine.
        costs: Seconds; `Roofline()` if not given.
        training: Whether backward and update tasks follow.
        optimizer: Its name, for slots and the time of updates.
        units: "parts", "calls", or which calls run as one. Parts that would wait for
            each other are divided into their calls. A unit that is no single call costs
            its device the call of a function.
        recompute: Whether backward tasks run the forward pass again, so that of a unit
            only its inputs are saved; or the parts whose tasks do so.
        calls: The step of the graph's single calls, if it is known: its seconds are
            added up.
    """
    costs = costs or Roofline()
    if isinstance(units, Grouping):
        grouping = units
    else:
        grouping = group_parts(graph) if units == "parts" else single_calls(graph)
    first = [graph.calls[calls[0]] for calls in grouping.calls]
    some = graph.part if recompute is True else recompute or ()
    again = [call.part in some for call in first]
    flows = [False] * len(graph.calls)
    if training and not any(call.backward for call in graph.calls):
        flows = _gradient_flow(graph)
    edges, memory = edges_and_memory(graph, grouping, flows, again)
    saved, ahead, behind, learned, waiting, early = zip(*memory)
    weights = _weights(graph, grouping, flows)
    home = _at_home(len(grouping.calls), weights)
    has_backward = tuple(any(flows[i] for i in calls) for calls in grouping.calls)
    if calls is None:
        single = _call_seconds(graph, cluster, costs, flows, optimizer)
    else:
        single = list(zip(calls.forward, calls.backward, calls.update))
    back_and_again = [
        flow and again[unit] for flow, unit in zip(flows, grouping.unit_of_call)
    ]
    rows = _added_up(single, cluster, grouping, back_and_again)
    slots = slots_of(optimizer) if training else 0
    links = [[costs.link(a.name, b.name, cluster) for b in cluster] for a in cluster]
    return StepGraph(
        names=tuple(call.name for call in first),
        parts=tuple(call.part for call in first),
        forward=tuple(ahead for ahead, _, _ in rows),
        backward=tuple(back for _, back, _ in rows),
        update=tuple(update for _, _, update in rows),
        has_backward=has_backward,
        explicit_backward=tuple(call.backward for call in first),
        edges=edges,
        all_weights=tuple(weights),
        waits=(),
        weight_bytes=tuple(
            sum(w.bytes for w in own) + sum(graph.calls[i].size_bytes for i in calls)
            for own, calls in zip(home, grouping.calls)
        ),
        saved_bytes=saved,
        saved_floor=_saved_floor(edges, has_backward, saved),
        forward_workspace=ahead,
        backward_workspace=behind,
        learned_bytes=learned,
        waiting_workspace=waiting,
        early_workspace=early,
        calls=tuple(map(len, grouping.calls)),
        latency=tuple(tuple(one.latency_seconds for one in row) for row in links),
        gap=tuple(tuple(one.gap for one in row) for row in links),
        seconds_per_byte=tuple(
            tuple(1.0 / one.bytes_per_second for one in row) for row in links
        ),
        slot_copies=slots,
        training=training,
    )


def _gradient_flow(graph: Graph) -> list[bool]:
    """Which calls have a backward pass: between a trained weight and an output."""
    index = {call.name: i for i, call in enumerate(graph.calls)}
    trained = {w.name for w in graph.weights if w.trainable}
    needs = [any(name in trained for name in call.weights) for call in graph.calls]
    readers: list[list[int]] = [[] for _ in graph.calls]
    for tensor in graph.tensors:
        if tensor.differentiable:
            readers[index[tensor.source]].append(index[tensor.target])
    for source, targets in enumerate(readers):
        if needs[source]:
            for target in targets:
                needs[target] = True
    reaches = [False] * len(graph.calls)
    for i in reversed(range(len(graph.calls))):
        ends = graph.calls[i].name in graph.outputs if graph.outputs else not readers[i]
        reaches[i] = ends or any(reaches[target] for target in readers[i])
    return [a and b for a, b in zip(needs, reaches)]


def _weights(
    graph: Graph, grouping: Grouping, flows: Sequence[bool]
) -> list[SharedWeight]:
    """Every weight that is used, with the units that use it, home first.

    The gradient of a table is the rows that a call looks up, with their numbers.
    """
    read: dict[str, int] = {}
    for tensor in graph.tensors:
        read[tensor.target] = read.get(tensor.target, 0) + tensor.bytes
    users: dict[str, dict[int, None]] = {w.name: {} for w in graph.weights}
    gradients: dict[str, dict[int, list[int]]] = {w.name: {} for w in graph.weights}
    for call, unit, flow in zip(graph.calls, grouping.unit_of_call, flows):
        for name in call.weights:
            users[name][unit] = None
            if flow and graph.weight[name].trainable:
                rows = call.output_bytes + read.get(call.name, 0)
                made = rows if name in call.lookups else 0
                gradients[name].setdefault(unit, []).append(made)
    found = []
    for w in graph.weights:
        if users[w.name]:
            # A whole gradient beside rows makes the sum of the unit a whole one.
            sent = [sum(s) if all(s) else 0 for s in gradients[w.name].values()]
            found.append(
                SharedWeight(
                    w.name,
                    w.bytes,
                    tuple(users[w.name]),
                    tuple(gradients[w.name]),
                    tuple(sent) if any(sent) else (),
                )
            )
    return found


def _at_home(count: int, weights: Sequence[SharedWeight]) -> list[list[SharedWeight]]:
    """The weights at home at each of so many units."""
    found: list[list[SharedWeight]] = [[] for _ in range(count)]
    for one in weights:
        found[one.users[0]].append(one)
    return found


_Rows = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]
"""Seconds of forward, backward and update of every call or unit on one device."""


def _unlike(rows: Iterable[_Rows]) -> list[_Rows]:
    """The rows of devices, once for those that share them."""
    return list({id(three[0]): three for three in rows}.values())


def _call_seconds(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    flows: Sequence[bool],
    optimizer: str,
) -> list[_Rows]:
    """Seconds of each call per device; equal devices share rows."""
    home = _at_home(len(graph.calls), _weights(graph, single_calls(graph), flows))
    made: dict[object, _Rows] = {}
    keys = [_cost_key(device, costs) for device in cluster]
    for key, device in zip(keys, cluster):
        if key not in made:
            forward = [costs.forward_seconds(call, device) for call in graph.calls]
            backward = [
                costs.backward_seconds(call, device) if flow else 0.0
                for call, flow in zip(graph.calls, flows)
            ]
            update = [
                sum(
                    costs.update_seconds(w.bytes, device, optimizer)
                    for w in own
                    if w.gradients_from
                )
                for own in home
            ]
            made[key] = tuple(forward), tuple(backward), tuple(update)
    return [made[key] for key in keys]


def _added_up(
    calls: Sequence[_Rows],
    cluster: Cluster,
    grouping: Grouping,
    again: Sequence[bool],
) -> list[_Rows]:
    """Seconds of the tasks of units, from those of single calls.

    `again` are the calls that the backward task runs forward once more. A unit of calls
    is a function, whose call costs its device `part_seconds`; what computes nothing is
    no function and costs nothing.
    """
    functions = len(grouping.calls) < len(grouping.unit_of_call)
    made: dict[object, _Rows] = {}
    keys = []
    for device, (ahead, back, update) in zip(cluster, calls):
        part = device.part_seconds if functions else 0.0
        keys.append((id(ahead), part))
        if keys[-1] not in made:
            if any(again):
                back = tuple(b + a * once for a, b, once in zip(ahead, back, again))
            made[keys[-1]] = (
                _per_unit(grouping, ahead, part),
                _per_unit(grouping, back, part),
                _per_unit(grouping, update, 0.0),
            )
    return [made[key] for key in keys]


def _per_unit(
    grouping: Grouping, seconds: Sequence[float], part: float
) -> tuple[float, ...]:
    sums = [sum(seconds[i] for i in calls) for calls in grouping.calls]
    return tuple(total + part if total else 0.0 for total in sums)


def _cost_key(device: Device, costs: CostModel) -> object:
    """Devices of one key cost the same; a foreign cost model may tell all apart.

    What scales the seconds of other `costs` tells apart what those do.
    """
    costs = getattr(costs, "costs", costs)
    figures = (
        device.kind,
        device.flops_per_second,
        device.bytes_per_second,
        device.call_seconds,
        device.part_seconds,
    )
    if isinstance(costs, Roofline):
        return figures
    if isinstance(costs, Measured):
        return (*figures, device.name if device.name in costs.devices else "")
    return device.name


def _saved_floor(
    edges: Sequence[Edge], has_backward: Sequence[bool], saved: Sequence[int]
) -> tuple[int, ...]:
    """Saved bytes of each unit that are surely held at one moment.

    A backward pass begins at an end of the graph when its forward pass is over, and all
    units that lead to this end still hold what they saved. Several ends may begin one
    after the other, so only what leads to the largest of them is certain.
    """
    count = len(has_backward)
    readers: list[list[int]] = [[] for _ in range(count)]
    own = list(saved)
    for edge in edges:
        readers[edge.source] += edge.gradients_from
        if edge.saved_by:
            own[edge.saved_by[0]] += edge.bytes
    leads_to = [0] * count  # a bit for each end
    held: list[int] = []
    for unit in reversed(range(count)):
        if not has_backward[unit]:
            continue
        if not readers[unit]:
            leads_to[unit] = 1 << len(held)
            held.append(0)
        for reader in readers[unit]:
            leads_to[unit] |= leads_to[reader]
        for end in range(len(held)):
            held[end] += own[unit] * (leads_to[unit] >> end & 1)
    largest = 1 << held.index(max(held)) if held else 0
    return tuple(
        size if reached & largest else 0 for size, reached in zip(own, leads_to)
    )
