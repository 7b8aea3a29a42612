"""Units of a step: which calls run as one task, and the memory they need inside.

Inside a unit calls run one after the other. A tensor that no other unit reads lives
there: either it is saved for the backward task, or it is freed after its last reader.

What runs on one device without a hop between is one TensorFlow function, whichever
parts it is of. What a function saves for its backward pass is freed when that pass
ends, so one of many calls would hold everything to the end: a long run is cut at seams,
where one tensor passes. Emission cuts by the same rule.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import networkx as nx

from splitnet.core.costs import VIEWS
from splitnet.core.graph import Call, Graph
from splitnet.core.replication import tower_part, towers_in
from splitnet.simulator.task_graph import Edge

__all__ = [
    "Grouping",
    "UnitMemory",
    "CALLS",
    "cut_run",
    "edges_and_memory",
    "group_parts",
    "single_calls",
]

Key = tuple[int, ...]
"""An output tensor: the number of its call and its index among the call's outputs.

That of a share of the batch that a tower reads: also how many shares there are, and
which it is.
"""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Calls grouped into units that stand in an order in which they may run."""

    unit_of_call: tuple[int, ...]
    calls: tuple[tuple[int, ...], ...]


def single_calls(graph: Graph) -> Grouping:
    """A unit per call."""
    numbers = tuple(range(len(graph.calls)))
    return Grouping(numbers, tuple((i,) for i in numbers))


def group_parts(graph: Graph) -> Grouping:
    """A unit per function: each part is one, or several if it has many calls.

    Explicit backward calls of a part are a unit of their own, and nothing is cut in a
    graph that has some, because nothing emits it.
    """
    grouping = _group_calls(graph, [(call.part, call.backward) for call in graph.calls])
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


def _group_calls(graph: Graph, labels: Sequence[Hashable]) -> Grouping:
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
        return _group_calls(graph, divided)
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


CALLS = 8
"""A function has this many calls before it is cut, and so does what is left."""


def cut_run(
    run: Sequence[int],
    reads: Mapping[int, Sequence[Key]],
    sizes: Mapping[int, int] | None = None,
) -> Iterator[Sequence[int]]:
    """A run of calls, or of units of calls, as one or several functions.

    A function is not cut further if it is taken for a run.

    Args:
        run: Numbers of what can run as one, in running order.
        reads: Per number, the (source, output) pairs that it reads.
        sizes: The calls of each; one if not given.

    >>> [len(one) for one in cut_run(range(20), {i: [(i - 1, 0)] for i in range(20)})]
    [8, 12]
    """
    calls = [1 if sizes is None else sizes[one] for one in run]
    if sum(calls) < 2 * CALLS:
        yield run
        return
    made = dict.fromkeys(run, 0)  # tensors of each that are read in the run
    last: dict[Key, int] = {}
    for i, one in enumerate(run):
        for tensor in reads.get(one, ()):
            if tensor[0] in made:
                made[tensor[0]] += tensor not in last
                last[tensor] = i
    ends = dict.fromkeys(range(len(run)), 0)
    for i in last.values():
        ends[i] += 1
    start = passing = done = 0
    left = sum(calls)
    for i, one in enumerate(run[:-1]):
        passing += made[one] - ends[i]
        done, left = done + calls[i], left - calls[i]
        if done >= CALLS and left >= CALLS and passing <= 1:
            yield from cut_run(run[start : i + 1], reads, sizes)
            start, done = i + 1, 0
    if start:
        yield from cut_run(run[start:], reads, sizes)
    else:
        yield run


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

    def edge(self, again: Sequence[bool], view_of: int | None) -> Edge:
        """The tensor as other units see it; `again` are the units that recompute."""
        own = [self.unit] if self.saved and not again[self.unit] else []
        return Edge(
            source=self.unit,
            readers=tuple(self.readers),
            bytes=self.bytes,
            gradients_from=tuple(self.gradients_from),
            saved_by=(*own, *self.saved_by),
            seconds=self.seconds,
            view_of=view_of,
        )


def edges_and_memory(
    graph: Graph,
    grouping: Grouping,
    has_backward: Sequence[bool],
    recompute: Sequence[bool],
) -> tuple[tuple[Edge, ...], UnitMemory]:
    """Tensors between units, and the memory of what stays inside them.

    `has_backward` says of each call whether it has a backward pass, `recompute` of each
    unit whether that runs forward again, so that only the unit's inputs are saved.
    """
    unit = grouping.unit_of_call
    shares = _shares(graph)
    outputs = _outputs(graph, unit, has_backward, shares)
    buffer = _buffers(graph, unit)
    index = {call.name: i for i, call in enumerate(graph.calls)}
    made = [0] * len(graph.calls)  # bytes of input gradients of a call
    returned: set[tuple[int, Key]] = set()
    for tensor, share in zip(graph.tensors, shares):
        source, target = index[tensor.source], index[tensor.target]
        key = (source, tensor.index, *share)
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
    number = {key: i for i, key in enumerate(k for k in outputs if outputs[k].leaves)}
    view_of = {key: number[held] for key, held in buffer.items() if held in number}
    edges = [outputs[key].edge(recompute, view_of.get(key)) for key in number]
    memory = _memory(graph, grouping, outputs, made, has_backward, recompute)
    return tuple(edges), memory


def _shares(graph: Graph) -> list[tuple[int, ...]]:
    """Per tensor, the number of shares that it is one of, and its own; () if whole."""
    towers = {
        tower_part(name, i): (one, i)
        for name, one in towers_in(graph).items()
        for i in range(one.count)
    }
    found: list[tuple[int, ...]] = []
    for tensor in graph.tensors:
        source, reader = graph.call[tensor.source], graph.call[tensor.target].part
        share: tuple[int, ...] = ()
        if reader in towers and source.part not in towers:
            one, number = towers[reader]
            [shape] = source.output_shapes[tensor.index : tensor.index + 1] or [()]
            if shape[:1] == (graph.batch,) and source.part not in one.broadcast:
                share = one.count, number
        found.append(share)
    return found


def _outputs(
    graph: Graph,
    unit: Sequence[int],
    has_backward: Sequence[bool],
    shares: Sequence[tuple[int, ...]],
) -> dict[Key, _Output]:
    """Every output tensor; those that no call reads, or that leave the model, leave.

    The loss reads outputs of the model again in the backward pass. A share of the batch
    is a tensor of its own, cut where the whole is made.
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    outputs: dict[Key, _Output] = {}
    cut: dict[Key, _Output] = {}
    for tensor, share in zip(graph.tensors, shares):
        i, size = index[tensor.source], tensor.bytes
        if share:
            seconds = graph.calls[i].transfer_seconds
            cut[i, tensor.index, *share] = _Output(size, unit[i], i, seconds=seconds)
            size = min(size * share[0], graph.calls[i].output_bytes)
        one = outputs.setdefault((i, tensor.index), _Output(size, unit[i], i))
        one.bytes = max(one.bytes, size)
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
    return outputs | cut


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
    outputs: Mapping[Key, _Output],
    made: Sequence[int],
    has_backward: Sequence[bool],
    recompute: Sequence[bool],
) -> UnitMemory:
    """Saved and passing bytes of every unit, from the tensors inside of it."""
    inside: list[list[tuple[int, _Output]]] = [[] for _ in grouping.calls]
    kept = [_inner_bytes(c) * back for c, back in zip(graph.calls, has_backward)]
    again = list(kept)  # what a backward task has to make again of each call
    for (call, *_), one in outputs.items():
        again[call] += one.bytes * one.saved
        if not one.leaves:
            inside[one.unit].append((call, one))
    found = UnitMemory([], [], [], [])
    for u, (own, calls) in enumerate(zip(inside, grouping.calls)):
        room = [graph.calls[i].workspace_bytes for i in calls]
        # What a call needs while it runs backward includes the gradients it makes.
        rest = [max(b - made[i], 0) * has_backward[i] for i, b in zip(calls, room)]
        gradients = [t for t in own if t[1].gradient]
        if recompute[u]:
            # What is made again is freed as the backward task passes the calls.
            held = list(accumulate(again[i] for i in calls))
            forward, saved, early = _peak(calls, own, room), 0, held[-1]
            backward = _peak(calls, gradients, [sum(two) for two in zip(rest, held)])
            backward = max(forward, backward)
        else:
            ahead = [graph.calls[i].early_bytes * has_backward[i] for i in calls]
            behind = [sum(two) for two in zip(rest, accumulate(ahead, initial=0))]
            forward = _peak(calls, [t for t in own if not t[1].saved], room)
            saved = sum(one.bytes for _, one in own if one.saved)
            saved += sum(kept[i] for i in calls)
            backward, early = _peak(calls, gradients, behind), sum(ahead)
        found.saved.append(saved)
        found.forward.append(forward)
        found.backward.append(backward)
        found.early.append(early)
    return found


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
