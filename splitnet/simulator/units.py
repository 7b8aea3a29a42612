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
from typing import NamedTuple

import networkx as nx

from splitnet.core.costs import VIEWS
from splitnet.core.graph import Graph
from splitnet.core.replication import tower_part, towers_in
from splitnet.simulator.task_graph import Edge

_Key = tuple[int, ...]
"""An output tensor: the number of its call and its index among the call's outputs.

That of a share of the batch that a tower reads: also how many shares there are, and
which it is.
"""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Calls grouped into units that stand in an order in which they may run."""

    unit_of_call: tuple[int, ...]
    calls: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, calls: Sequence[Sequence[int]]) -> "Grouping":
        """The grouping whose units have these calls."""
        unit_of = {call: unit for unit, each in enumerate(calls) for call in each}
        return cls(
            tuple(unit_of[i] for i in range(len(unit_of))), tuple(map(tuple, calls))
        )


def single_calls(graph: Graph) -> Grouping:
    """A unit per call."""
    return Grouping.of([[i] for i in range(len(graph.calls))])


def group_parts(graph: Graph) -> Grouping:
    """A unit per function: each part is one, or several if it has many calls.

    Explicit backward calls of a part are a unit of their own, and nothing is cut in a
    graph that has some, because nothing emits it.
    """
    grouping = _group_calls(graph, [(call.part, call.backward) for call in graph.calls])
    if any(call.backward for call in graph.calls):
        return grouping
    index = {call.name: i for i, call in enumerate(graph.calls)}
    reads: dict[int, list[_Key]] = {}
    for tensor in graph.tensors:
        source = index[tensor.source], tensor.index
        reads.setdefault(index[tensor.target], []).append(source)
    return Grouping.of(
        [run for calls in grouping.calls for run in cut_run(calls, reads)]
    )


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
    calls: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        calls.setdefault(label, []).append(i)
    order = nx.lexicographical_topological_sort(units, key=lambda one: calls[one][0])
    return Grouping.of([calls[label] for label in order])


CALLS = 8
"""A function has this many calls before it is cut, and so does what is left."""


def cut_run(
    run: Sequence[int],
    reads: Mapping[int, Sequence[_Key]],
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
    last: dict[_Key, int] = {}
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


class UnitMemory(NamedTuple):
    """Bytes that a unit needs beside its weights and the tensors of its edges.

    `saved` is kept from the forward to the backward task; `forward` and `backward` are
    needed while those tasks run. Gradients of weights are made one after the other:
    `learned` of their bytes exist at the peak of the backward task. `waiting` is added
    if two backward tasks run side by side, because then the gradients of weights are
    made last, and their inputs are kept until then. `early` is computed from saved
    tensors alone, when the backward pass of the function begins.
    """

    saved: int
    forward: int
    backward: int
    learned: int
    waiting: int
    early: int


@dataclass(slots=True)
class _Output:
    """One output tensor of a call, while the units are made.

    `last` is the last call of its own unit that reads it; `leaves` says that something
    else reads it, `saved` that its own unit does so backward, `gradient` that a reader
    in the unit returns one. The lists are of other units.
    """

    bytes: int
    unit: int
    last: int
    seconds: float | None = None
    leaves: bool = False
    saved: bool = False
    gradient: bool = False
    readers: dict[int, None] = field(default_factory=dict)
    gradients_from: dict[int, None] = field(default_factory=dict)
    saved_by: dict[int, None] = field(default_factory=dict)


def edges_and_memory(
    graph: Graph,
    grouping: Grouping,
    has_backward: Sequence[bool],
    recompute: Sequence[bool],
) -> tuple[tuple[Edge, ...], list[UnitMemory]]:
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
    returned: set[tuple[int, _Key]] = set()
    for tensor, share in zip(graph.tensors, shares):
        source, target = index[tensor.source], index[tensor.target]
        call, key = graph.calls[target], (source, tensor.index, *share)
        held = buffer.get(key, key)
        both = has_backward[source] and has_backward[target]
        returns = tensor.differentiable and both
        # If nobody says what a backward pass reads, it may read every input.
        guessed = call.inner_bytes is None and call.kind not in VIEWS
        saves = (tensor.kept or guessed) and has_backward[target]
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
    for key in [view for view in buffer if not outputs[view].leaves]:
        del outputs[key]
    number = {key: i for i, key in enumerate(k for k in outputs if outputs[k].leaves)}
    view_of = {key: number[held] for key, held in buffer.items() if held in number}
    edges = []
    for key in number:
        one = outputs[key]
        own = [one.unit] if one.saved and not recompute[one.unit] else []
        edges.append(
            Edge(
                source=one.unit,
                readers=tuple(one.readers),
                bytes=one.bytes,
                gradients_from=tuple(one.gradients_from),
                saved_by=(*own, *one.saved_by),
                seconds=one.seconds,
                view_of=view_of.get(key),
            )
        )
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
) -> dict[_Key, _Output]:
    """Every output tensor; those that no call reads, or that leave the model, leave.

    The loss reads outputs of the model again in the backward pass. A share of the batch
    is a tensor of its own, cut where the whole is made.
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    outputs: dict[_Key, _Output] = {}
    cut: dict[_Key, _Output] = {}
    for tensor, share in zip(graph.tensors, shares):
        i, size = index[tensor.source], tensor.bytes
        call = graph.calls[i]
        if share:
            key = i, tensor.index, *share
            cut[key] = _Output(size, unit[i], i, call.transfer_seconds)
            size = min(size * share[0], call.output_bytes)
        one = outputs.setdefault((i, tensor.index), _Output(size, unit[i], i))
        one.bytes = max(one.bytes, size)
    read = {i for i, _ in outputs}
    for i, call in enumerate(graph.calls):
        if i not in read:
            outputs[i, 0] = _Output(call.output_bytes, unit[i], i)
    ends = {index[name] for name in graph.outputs}
    for (i, _), one in outputs.items():
        call = graph.calls[i]
        # If nobody says whether its backward pass reads them, they are what it saves.
        guessed = call.inner_bytes is None and call.activation_bytes > 0
        keeps = call.kind not in VIEWS and (call.keeps_output or guessed)
        one.seconds = call.transfer_seconds
        one.leaves = i not in read or i in ends
        one.saved = has_backward[i] and (one.leaves or keeps)
    return outputs | cut


def _buffers(graph: Graph, unit: Sequence[int]) -> dict[_Key, _Key]:
    """For each view, the tensor whose memory it shares inside its unit."""
    index = {call.name: i for i, call in enumerate(graph.calls)}
    read: dict[int, _Key] = {}
    for tensor in graph.tensors:
        read.setdefault(index[tensor.target], (index[tensor.source], tensor.index))
    found: dict[_Key, _Key] = {}
    for i, call in enumerate(graph.calls):
        if call.kind in VIEWS and i in read:
            key = read[i]
            found[i, 0] = found.get(key, key) if unit[key[0]] == unit[i] else key
    return found


def _memory(
    graph: Graph,
    grouping: Grouping,
    outputs: Mapping[_Key, _Output],
    made: Sequence[int],
    has_backward: Sequence[bool],
    recompute: Sequence[bool],
) -> list[UnitMemory]:
    """Saved and passing bytes of every unit, from the tensors inside of it."""
    inside: list[list[tuple[int, _Output]]] = [[] for _ in grouping.calls]
    kept = [  # that is no input and no output of the call
        max(call.activation_bytes - call.output_bytes, 0)
        if call.inner_bytes is None
        else call.inner_bytes
        for call in graph.calls
    ]
    kept = [size * back for size, back in zip(kept, has_backward)]
    learned = _learned(graph, grouping, has_backward)
    again = list(kept)  # what a backward task has to make again of each call
    for (call, *_), one in outputs.items():
        again[call] += one.bytes * one.saved
        if not one.leaves:
            inside[one.unit].append((call, one))
    found = list[UnitMemory]()
    for u, (own, calls) in enumerate(zip(inside, grouping.calls)):
        position = {call: i for i, call in enumerate(calls)}
        room = [graph.calls[i].workspace_bytes for i in calls]
        # What a call needs while it runs backward includes the gradients it makes.
        rest = [max(b - made[i], 0) * has_backward[i] for i, b in zip(calls, room)]
        passing, gradients, late = [], [], []
        for call, one in own:
            start, stop = position[call], position[one.last]
            if recompute[u] or not one.saved:
                passing.append((start, stop, one.bytes))
            if one.gradient:
                # Gradients of weights are made beside the next call's pass.
                learns = graph.calls[call].weights and start > 0
                alone = graph.calls[call].sequential_steps == 1
                start -= bool(learns and alone)
                gradients.append((start, stop, one.bytes))
                late.append((0 if learns else start, stop, one.bytes))
        # A table whose rows are updated is copied when it is read.
        copied = [
            has_backward[i] * sum(graph.weight[w].bytes for w in graph.calls[i].lookups)
            for i in calls
        ]
        forward, _ = _peak(passing, [sum(two) for two in zip(room, copied)], room)
        if recompute[u]:
            # What is made again is freed as the backward task passes the calls.
            held = list(accumulate(again[i] for i in calls))
            saved, early = 0, held[-1]
            behind = [sum(two) for two in zip(rest, held)]
        else:
            ahead = [graph.calls[i].early_bytes * has_backward[i] for i in calls]
            behind = [sum(two) for two in zip(rest, accumulate(ahead, initial=0))]
            saved = sum(one.bytes for _, one in own if one.saved)
            saved += sum(kept[i] for i in calls)
            early = sum(ahead)
        there = list(accumulate(learned[i] for i in reversed(calls)))[::-1]
        both = [sum(two) for two in zip(behind, there)]
        backward, own_gradients = _peak(gradients, both, there)
        backward -= own_gradients
        waiting = max(_peak(late, behind, there)[0] - backward, 0)
        if recompute[u] and forward > backward + own_gradients:
            backward, own_gradients = forward, 0
        found.append(
            UnitMemory(saved, forward, backward, own_gradients, waiting, early)
        )
    return found


def _learned(
    graph: Graph, grouping: Grouping, has_backward: Sequence[bool]
) -> list[int]:
    """Bytes of the gradients of weights that the backward pass of each call makes.

    A weight of several calls counts at the last of them. Weights of several units are
    left out, and so are tables: the gradient of their rows is an input of the call.
    """
    units: dict[str, set[int]] = {}
    for call, unit in zip(graph.calls, grouping.unit_of_call):
        for name in call.weights:
            units.setdefault(name, set()).add(unit)
    found, seen = [0] * len(graph.calls), set[str]()
    for i in reversed(range(len(graph.calls))):
        call = graph.calls[i]
        for name in call.weights if has_backward[i] else ():
            weight = graph.weight[name]
            if weight.trainable and len(units[name]) == 1 and name not in seen:
                seen.add(name)
                found[i] += 0 if name in call.lookups else weight.bytes
    return found


def _peak(
    tensors: Sequence[tuple[int, int, int]], room: Sequence[int], of: Sequence[int]
) -> tuple[int, int]:
    """The most bytes at any call, of tensors from one to another and its own.

    With them comes the value of `of` at that call.
    """
    change = [0] * (len(room) + 1)
    for start, stop, size in tensors:
        change[start] += size
        change[stop + 1] -= size
    held = [live + own for live, own in zip(accumulate(change), room)]
    most = max(range(len(held)), key=held.__getitem__)
    return held[most], of[most]
