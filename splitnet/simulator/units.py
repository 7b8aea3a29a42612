"""Units of a step: which calls run as one task, and the memory they need inside.

Inside a unit calls run one after the other. A tensor that no other unit reads lives
there: either it is saved for the backward task, or it is freed after its last reader.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import networkx as nx

from splitnet.core.costs.roofline import VIEWS
from splitnet.core.graph import Call, Graph
from splitnet.simulator.functions import cut_run
from splitnet.simulator.task_graph import Edge

__all__ = ["Grouping", "UnitMemory", "edges_and_memory", "group_calls", "group_parts"]

Key = tuple[int, int]
"""An output tensor: the number of its call and its index among the call's outputs."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Calls grouped into units that stand in an order in which they may run.

    `functions` says whether each unit runs as a function of its own.
    """

    unit_of_call: tuple[int, ...]
    calls: tuple[tuple[int, ...], ...]
    functions: bool = True


def group_parts(graph: Graph) -> Grouping:
    """A unit per function: each part is one, or several if it has many calls.

    Explicit backward calls of a part are a unit of their own, and nothing is cut in a
    graph that has some, because nothing emits it.
    """
    grouping = group_calls(graph, [(call.part, call.backward) for call in graph.calls])
    if any(call.backward for call in graph.calls):
        return grouping
    index = {call.name: i for i, call in enumerate(graph.calls)}
    reads: dict[int, list[Key]] = {}
    for tensor in graph.tensors:
        source = index[tensor.source], tensor.index
        reads.setdefault(index[tensor.target], []).append(source)
    pieces = [tuple(run) for calls in grouping.calls for run in cut_run(calls, reads)]
    unit_of = {call: unit for unit, calls in enumerate(pieces) for call in calls}
    return Grouping(tuple(unit_of[i] for i in range(len(unit_of))), tuple(pieces))


def group_calls(graph: Graph, labels: Sequence[Hashable]) -> Grouping:
    """One unit per label, given a label per call.

    Units that would wait for each other are divided into their calls. Units are sorted
    topologically, ties by their first call. O((calls + tensors) log calls).
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    pairs = {(index[t.source], index[t.target]) for t in graph.tensors}
    units: nx.DiGraph[Hashable] = nx.DiGraph()
    units.add_nodes_from(labels)
    units.add_edges_from(
        (labels[a], labels[b]) for a, b in sorted(pairs) if labels[a] != labels[b]
    )
    cyclic = set[Hashable]()
    for component in nx.strongly_connected_components(units):
        if len(component) > 1:
            cyclic |= component
    if cyclic:
        divided = [
            (label, i) if label in cyclic else (label,)
            for i, label in enumerate(labels)
        ]
        return group_calls(graph, divided)
    first: dict[Hashable, int] = {}
    for i, label in enumerate(labels):
        first.setdefault(label, i)
    order = nx.lexicographical_topological_sort(units, key=first.__getitem__)
    number = {label: i for i, label in enumerate(order)}
    unit_of_call = tuple(number[label] for label in labels)
    calls: list[list[int]] = [[] for _ in number]
    for i, unit in enumerate(unit_of_call):
        calls[unit].append(i)
    return Grouping(unit_of_call, tuple(map(tuple, calls)))


@dataclass(slots=True)
class UnitMemory:
    """Bytes that each unit needs beside its weights and the tensors of its edges.

    `saved` is kept from its forward to its backward task, `forward` and `backward` are
    needed while those tasks run. `early` is what the backward pass computes from saved
    tensors alone: TensorFlow does so as soon as the function's backward pass begins.
    """

    saved: list[int]
    forward: list[int]
    backward: list[int]
    early: list[int]


@dataclass(slots=True)
class _Output:
    """One output tensor of a call, while the units are made."""

    bytes: int
    unit: int
    last: int  # the last call of its own unit that reads it
    leaves: bool = False
    saved: bool = False  # by its own unit
    gradient: bool = False  # a reader inside its unit returns one
    seconds: float | None = None
    readers: dict[int, None] = field(default_factory=dict)
    gradients_from: dict[int, None] = field(default_factory=dict)
    saved_by: dict[int, None] = field(default_factory=dict)  # other units

    def edge(self, again: Sequence[bool]) -> Edge:
        """The tensor as other units see it; `again` are the units that recompute."""
        own = [self.unit] if self.saved and not again[self.unit] else []
        return Edge(
            source=self.unit,
            readers=tuple(self.readers),
            bytes=self.bytes,
            gradients_from=tuple(self.gradients_from),
            saved_by=(*own, *self.saved_by),
            seconds=self.seconds,
        )


def edges_and_memory(
    graph: Graph,
    grouping: Grouping,
    has_backward: Sequence[bool],
    recompute: Sequence[bool],
) -> tuple[tuple[Edge, ...], UnitMemory]:
    """Tensors between units, and the memory of what stays inside them.

    Args:
        graph: What runs.
        grouping: Its units.
        has_backward: Which calls have a backward pass.
        recompute: Whether the backward task of each unit runs its forward pass again,
            so that of the unit only its inputs are saved.
    """
    unit = grouping.unit_of_call
    outputs = _outputs(graph, unit, has_backward)
    buffer = _buffers(graph, unit)
    index = {call.name: i for i, call in enumerate(graph.calls)}
    made = [0] * len(graph.calls)  # bytes of input gradients of a call
    returned: set[tuple[int, Key]] = set()
    for tensor in graph.tensors:
        source, target = index[tensor.source], index[tensor.target]
        key = (source, tensor.index)
        held = buffer.get(key, key)
        returns = tensor.differentiable and has_backward[source]
        returns = returns and has_backward[target]
        saves = _saves(graph.calls[target], kept=tensor.kept) and has_backward[target]
        if returns and (target, key) not in returned:
            returned.add((target, key))
            made[target] += tensor.bytes
        if unit[source] != unit[target]:
            one = outputs[held if unit[held[0]] == unit[source] else key]
            one.leaves = True
            one.readers[unit[target]] = None
            if returns:
                one.gradients_from[unit[target]] = None
        else:
            one = outputs[held]
        if one.unit == unit[target]:
            one.last = max(one.last, target)
            one.gradient |= returns
            one.saved |= saves
        elif saves or (recompute[unit[target]] and has_backward[target]):
            one.saved_by[unit[target]] = None
    views = [k for k in buffer if not outputs[k].leaves]
    for key in views:
        del outputs[key]
    inside = [(k[0], one) for k, one in outputs.items() if not one.leaves]
    edges = [one.edge(recompute) for one in outputs.values() if one.leaves]
    kept = [0] * len(grouping.calls)
    for one in outputs.values():
        kept[one.unit] += one.bytes * (one.leaves and one.saved)
    memory = _memory(graph, grouping, inside, made, has_backward)
    if any(recompute):
        memory = _recomputed(graph, grouping, inside, memory, kept, recompute)
    return tuple(edges), memory


def _outputs(
    graph: Graph, unit: Sequence[int], has_backward: Sequence[bool]
) -> dict[Key, _Output]:
    """Every output tensor; those that no call reads, or that leave the model, leave.

    The loss reads outputs of the model again in the backward pass.
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    outputs: dict[Key, _Output] = {}
    for tensor in graph.tensors:
        i = index[tensor.source]
        one = outputs.setdefault((i, tensor.index), _Output(tensor.bytes, unit[i], i))
        one.bytes = max(one.bytes, tensor.bytes)
    read = {i for i, _ in outputs}
    for i, call in enumerate(graph.calls):
        if i not in read:
            outputs[i, 0] = _Output(call.output_bytes, unit[i], i)
    ends = {index[name] for name in graph.outputs}
    for (i, _), one in outputs.items():
        call = graph.calls[i]
        one.seconds = call.transfer_seconds
        one.leaves = i not in read or i in ends
        keeps = one.leaves or (call.kind not in VIEWS and _keeps_output(call))
        one.saved = has_backward[i] and keeps
    return outputs


def _buffers(graph: Graph, unit: Sequence[int]) -> dict[Key, Key]:
    """For each view, the tensor whose memory it shares inside its unit."""
    index = {call.name: i for i, call in enumerate(graph.calls)}
    read: dict[int, Key] = {}
    for tensor in graph.tensors:
        read.setdefault(index[tensor.target], (index[tensor.source], tensor.index))
    found: dict[Key, Key] = {}
    views = [i for i, call in enumerate(graph.calls) if call.kind in VIEWS]
    for i in (i for i in views if i in read):
        key = read[i]
        found[i, 0] = found.get(key, key) if unit[key[0]] == unit[i] else key
    return found


def _saves(call: Call, *, kept: bool) -> bool:
    """Whether a call's backward pass reads an input; if nobody says, it may."""
    return kept or (call.inner_bytes is None and call.kind not in VIEWS)


def _keeps_output(call: Call) -> bool:
    """Whether a call's backward pass reads its outputs; if nobody says, they count."""
    if call.inner_bytes is None:
        return call.activation_bytes > 0
    return call.keeps_output


def _inner_bytes(call: Call) -> int:
    """Bytes saved for a call's backward pass that are no input and no output of it."""
    if call.inner_bytes is None:
        return max(call.activation_bytes - call.output_bytes, 0)
    return call.inner_bytes


def _memory(
    graph: Graph,
    grouping: Grouping,
    inside: Sequence[tuple[int, _Output]],
    made: Sequence[int],
    has_backward: Sequence[bool],
) -> UnitMemory:
    """Saved and passing bytes of every unit, from the tensors inside of it."""
    count = len(grouping.calls)
    saved, forward, backward, early = ([0] * count for _ in range(4))
    passing: list[list[tuple[int, _Output]]] = [[] for _ in range(count)]
    gradients: list[list[tuple[int, _Output]]] = [[] for _ in range(count)]
    for call, one in inside:
        saved[one.unit] += one.bytes * one.saved
        if not one.saved:
            passing[one.unit].append((call, one))
        if one.gradient:
            gradients[one.unit].append((call, one))
    for u, calls in enumerate(grouping.calls):
        held = [graph.calls[i] for i in calls]
        room = [call.workspace_bytes for call in held]
        forward[u] = _peak(calls, passing[u], room)
        trained = [i for i in calls if has_backward[i]]
        saved[u] += sum(_inner_bytes(graph.calls[i]) for i in trained)
        # What a call needs while it runs backward includes the gradients it makes.
        rest = [
            max(size - made[i], 0) if has_backward[i] else 0
            for i, size in zip(calls, room)
        ]
        made_early = [
            min(size, _inner_bytes(graph.calls[i])) for i, size in zip(calls, rest)
        ]
        before = accumulate(made_early, initial=0)
        rest = [size + waiting for size, waiting in zip(rest, before)]
        backward[u] = _peak(calls, gradients[u], rest)
        early[u] = sum(made_early)
    return UnitMemory(saved, forward, backward, early)


def _recomputed(
    graph: Graph,
    grouping: Grouping,
    inside: Sequence[tuple[int, _Output]],
    memory: UnitMemory,
    outputs: Sequence[int],
    recompute: Sequence[bool],
) -> UnitMemory:
    """Memory if some units save nothing inside and run forward again."""
    passing: list[list[tuple[int, _Output]]] = [[] for _ in grouping.calls]
    for call, one in inside:
        passing[one.unit].append((call, one))
    forward = [
        _peak(calls, passing[u], [graph.calls[i].workspace_bytes for i in calls])
        for u, calls in enumerate(grouping.calls)
    ]
    backward = [
        max(ahead, saved + output + behind)
        for ahead, saved, output, behind in zip(
            memory.forward, memory.saved, outputs, memory.backward
        )
    ]
    early = [sum(bytes) for bytes in zip(memory.saved, outputs, memory.early)]
    again = UnitMemory([0] * len(forward), forward, backward, early)
    chosen = [(again if one else memory, u) for u, one in enumerate(recompute)]
    return UnitMemory(
        [one.saved[u] for one, u in chosen],
        [one.forward[u] for one, u in chosen],
        [one.backward[u] for one, u in chosen],
        [one.early[u] for one, u in chosen],
    )


def _peak(
    calls: Sequence[int], tensors: Sequence[tuple[int, _Output]], room: Sequence[int]
) -> int:
    """The most bytes at any call: tensors from their call to their last reader."""
    position = {call: i for i, call in enumerate(calls)}
    change = [0] * (len(calls) + 1)
    for call, one in tensors:
        change[position[call]] += one.bytes
        change[position[one.last] + 1] -= one.bytes
    return max((live + own for live, own in zip(accumulate(change), room)), default=0)
