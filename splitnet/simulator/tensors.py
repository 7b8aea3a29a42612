"""Tensors of a step: those between units, and the memory of what stays inside them.

A tensor that no other unit reads lives in its unit: either it is saved for the backward
task, or it is freed after its last reader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, compress
from operator import add
from typing import Any, NamedTuple

from splitnet.core.costs import VIEWS
from splitnet.core.graph import Graph
from splitnet.core.replication import tower_part
from splitnet.simulator.units import Units, unit_of_call

_Key = tuple[int, ...]
"""An output tensor: the number of its call and its index among the call's outputs.

A share of the batch that a tower reads: also how many there are, and which it is.
"""


@dataclass(frozen=True, slots=True)
class Item:
    """What is copied: an output tensor of a unit, or a weight.

    `source` is the unit that computes it, or at which the weight is at home; `readers`
    are the other units that read it, or all that use the weight. The backward tasks of
    those in `gradients_from` make a gradient, which is `row_bytes` of rows of a table
    if those are given and above 0. The units `saved_by`, `source` among them, read the
    tensor in their backward tasks. `seconds` are those of a copy, if known. `view_of`,
    in a single batch, is the edge whose memory it has if both leave one function. A
    `fixed` one has the same size for any batch.
    """

    source: int
    readers: tuple[int, ...]
    bytes: int
    gradients_from: tuple[int, ...] = ()
    row_bytes: tuple[int, ...] = ()
    saved_by: tuple[int, ...] = ()
    seconds: float | None = None
    view_of: int | None = None
    is_weight: bool = False
    fixed: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether its gradient is rows alone, side by side."""
        return bool(self.row_bytes) and all(self.row_bytes)

    @property
    def gradient_bytes(self) -> int:
        """The size of its whole gradient; 0 if it has none."""
        if self.has_rows:
            return sum(self.row_bytes)
        return self.bytes if self.gradients_from else 0

    def sum_bytes(self, present: Sequence[bool]) -> int:
        """Bytes of the sum of the `present` gradients; rows stay side by side."""
        rows = [*compress(self.row_bytes, present)]
        return sum(rows) + (self.bytes if 0 in rows or not rows else 0)

    def shifted(self, by: int) -> "Item":
        """The same tensor between units whose numbers are higher by so many."""
        names = "readers", "gradients_from", "saved_by"
        units: Any = {n: tuple(u + by for u in getattr(self, n)) for n in names}
        return replace(self, source=self.source + by, view_of=None, **units)


class UnitMemory(NamedTuple):
    """Bytes that a unit needs beside its weights and the tensors of its edges.

    `saved` is kept from the forward to the backward task; `forward` and `backward` are
    needed while those run. `learned` of the bytes of weights' gradients exist at the
    peak of the backward task. `waiting` is added if two run side by side, as then these
    are made last, and their inputs are kept. `early` is computed from saved tensors
    alone, when its function's backward pass begins; the unit there also needs `given`.
    """

    saved: int
    forward: int
    backward: int
    learned: int
    waiting: int
    early: int
    given: int


@dataclass(slots=True)
class _Output:
    """One output tensor of a call; the lists are of other units.

    In its own unit, `last` is the last call that reads it; if `saved`, it is read
    backward; `returned_by` return a gradient. If it `leaves`, others read it.
    """

    bytes: int
    unit: int
    last: int
    leaves: bool = False
    saved: bool = False
    returned_by: dict[int, None] = field(default_factory=dict)
    readers: dict[int, None] = field(default_factory=dict)
    gradients_from: dict[int, None] = field(default_factory=dict)
    saved_by: dict[int, None] = field(default_factory=dict)


def edges_and_memory(
    graph: Graph, units: Units, has_backward: Sequence[bool], recompute: Sequence[bool]
) -> tuple[tuple[Item, ...], list[UnitMemory]]:
    """Tensors between units, and the memory of what stays inside them."""
    unit = unit_of_call(units)
    keys, outputs = _outputs(graph, unit, has_backward)
    # For each view, the tensor whose memory it shares inside its unit.
    read = {t.target: key[:2] for t, key in zip(graph.tensors[::-1], keys[::-1])}
    buffer: dict[_Key, _Key] = {}
    for i, call in enumerate(graph.calls):
        if call.kind in VIEWS and call.name in read:
            key = read[call.name]
            buffer[i, 0] = buffer.get(key, key) if unit[key[0]] == unit[i] else key
    # A view that leaves its unit, as nothing else in that memory does, stands for it.
    readers = (unit[graph.number[tensor.target]] for tensor in graph.tensors)
    away = {key for key, reader in zip(keys, readers) if unit[key[0]] != reader}
    known, stands = away | buffer.keys(), dict[_Key, _Key]()
    for view, held in buffer.items():
        alone = unit[held[0]] == unit[view[0]] and held not in known
        if view in away and alone and stands.setdefault(held, view) == view:
            outputs[view].saved |= outputs[held].saved
    buffer = {v: stands.get(o, o) for v, o in buffer.items() if stands.get(o) != v}
    buffer |= stands
    made = [0] * len(graph.calls)  # bytes of input gradients of a call
    returned: set[tuple[int, _Key]] = set()
    for tensor, key in zip(graph.tensors, keys):
        source, target = key[0], graph.number[tensor.target]
        call, one = graph.calls[target], outputs[buffer.get(key, key)]
        both = has_backward[source] and has_backward[target]
        returns = tensor.differentiable and both
        # If nobody says what a backward pass reads, it may read every input.
        guessed = call.inner_bytes is None and call.kind not in VIEWS
        saves = (tensor.kept or guessed) and has_backward[target]
        if returns and (target, key) not in returned:
            returned.add((target, key))
            made[target] += tensor.bytes
        if unit[source] != unit[target]:
            one = outputs[key]
            one.leaves = True
            one.readers[unit[target]] = None
            if returns:
                one.gradients_from[unit[target]] = None
        if one.unit == unit[target]:
            one.last = max(one.last, target)
            if returns:
                one.returned_by[target] = None
            one.saved |= saves
        elif saves or (recompute[unit[target]] and has_backward[target]):
            one.saved_by[unit[target]] = None
    for key in [view for view in buffer if not outputs[view].leaves]:
        del outputs[key]
    number = {key: i for i, key in enumerate(k for k in outputs if outputs[k].leaves)}
    view_of = {key: number[held] for key, held in buffer.items() if held in number}
    edges = tuple(
        Item(
            source=one.unit,
            readers=tuple(one.readers),
            bytes=one.bytes,
            gradients_from=tuple(one.gradients_from),
            saved_by=(
                *([one.unit] if one.saved and not recompute[one.unit] else []),
                *one.saved_by,
            ),
            seconds=graph.calls[key[0]].transfer_seconds,
            view_of=view_of.get(key),
            fixed=key[1] in graph.calls[key[0]].fixed_outputs,
        )
        for key, one in outputs.items()
        if one.leaves
    )
    return edges, _memory(graph, units, outputs, made, has_backward, recompute, view_of)


def _outputs(
    graph: Graph, unit: Sequence[int], has_backward: Sequence[bool]
) -> tuple[list[_Key], dict[_Key, _Output]]:
    """Which output each tensor is, and every output.

    Those that no call reads, or that leave the model, leave their unit; the loss reads
    them again in the backward pass. Shares of the batch are cut where the whole is.
    """
    each = ((n, one, i) for n, one in graph.towers.items() for i in range(one.count))
    towers = {tower_part(name, i): (one, i) for name, one, i in each}
    keys: list[_Key] = []
    outputs, cut = dict[_Key, _Output](), dict[_Key, _Output]()
    for tensor in graph.tensors:
        i, call = graph.number[tensor.source], graph.call[tensor.source]
        key: _Key = i, tensor.index
        size, reader = tensor.bytes, graph.call[tensor.target].part
        if reader in towers and call.part not in towers:
            one, number = towers[reader]
            shape = next(iter(call.output_shapes[tensor.index :]), ())
            if shape[:1] == (graph.batch,) and tensor.index not in call.fixed_outputs:
                key = *key, one.count, number
                cut[key] = _Output(size, unit[i], i)
                size = min(size * one.count, call.output_bytes)
        keys.append(key)
        whole = outputs.setdefault(key[:2], _Output(size, unit[i], i))
        whole.bytes = max(whole.bytes, size)
    read, ends = {i for i, _ in outputs}, set(graph.outputs)
    for i, call in enumerate(graph.calls):
        if i not in read:
            outputs[i, 0] = _Output(call.output_bytes, unit[i], i)
    for (i, _), whole in outputs.items():
        call = graph.calls[i]
        # If nobody says whether its backward pass reads them, they are what it saves.
        guessed = call.inner_bytes is None and call.activation_bytes > 0
        keeps = call.kind not in VIEWS and (call.keeps_output or guessed)
        whole.leaves = i not in read or call.name in ends
        whole.saved = has_backward[i] and (whole.leaves or keeps)
    return keys, outputs | cut


def _memory(
    graph: Graph,
    units: Units,
    outputs: Mapping[_Key, _Output],
    made: Sequence[int],
    has_backward: Sequence[bool],
    recompute: Sequence[bool],
    views: Mapping[_Key, int],
) -> list[UnitMemory]:
    unit = unit_of_call(units)
    inside: list[list[tuple[int, _Output]]] = [[] for _ in units]
    kept = []  # that is no input and no output of the call
    # The gradient of a weight is made by the last of its calls. Weights of several
    # units are left out, and so are tables: that of their rows is an input of the call.
    users: dict[str, set[int]] = {w.name: set() for w in graph.weights if w.trainable}
    last: dict[str, int] = {}
    for i, (call, flow) in enumerate(zip(graph.calls, has_backward)):
        guess = max(call.activation_bytes - call.output_bytes, 0)
        kept.append(flow * (guess if call.inner_bytes is None else call.inner_bytes))
        for name in users.keys() & {*call.weights}:
            users[name].add(unit[i])
            if flow:
                last[name] = i
    learned = [0] * len(kept)  # bytes of gradients of weights that each call makes
    for name, i in last.items():
        if len(users[name]) == 1 and name not in graph.calls[i].lookups:
            learned[i] += graph.weight[name].bytes
    again = list(kept)  # what a backward task has to make again of each call
    for key, one in outputs.items():
        again[key[0]] += one.bytes * one.saved
        if key not in views:
            inside[one.unit].append((key[0], one))
    found = list[UnitMemory]()
    for u, (own, numbers) in enumerate(zip(inside, units)):
        calls = [graph.calls[i] for i in numbers]
        position = {i: at for at, i in enumerate(numbers)}
        passing, gradients, late = [], [], []
        for i, one in own:
            start, stop = position[i], position[one.last]
            if one.leaves:  # it counts from the start of its unit on, and is made later
                passing.append((0, start - 1, -one.bytes * (not recompute[u])))
                continue
            if recompute[u] or not one.saved:
                passing.append((start, stop, one.bytes))
            if one.returned_by:
                # What each reader returns stays until the first one's is there.
                its = (r for r in one.returned_by if graph.calls[r].kind not in VIEWS)
                by = sorted(position[r] for r in its)
                more = [(by[0], reader, one.bytes) for reader in by[:-1]]
                gradients += more
                late += more
                # Gradients of weights are made beside the next call's pass.
                learns = calls[start].weights and start > 0
                late.append((0 if learns else start, stop, one.bytes))
                start -= bool(learns and calls[start].sequential_steps == 1)
                gradients.append((start, stop, one.bytes))
        ahead, behind, held, saved = [], [], 0, 0  # what calls need while they run
        for i, call in zip(numbers, calls):
            # A table whose rows are updated is copied when it is read.
            table = sum(graph.weight[name].bytes for name in call.lookups)
            ahead.append(call.workspace_bytes + has_backward[i] * table)
            # That of the backward pass includes the gradients that it makes. What is
            # made again is freed as the backward task passes the calls.
            rest = has_backward[i] * max(call.workspace_bytes - made[i], 0)
            behind.append(rest + held + again[i] * recompute[u])
            held += again[i] if recompute[u] else call.early_bytes * has_backward[i]
            saved += kept[i]
        saved += sum(one.bytes for _, one in own if one.saved and not one.leaves)
        forward, _ = _peak(passing, ahead, ahead)
        there = list(accumulate(learned[i] for i in reversed(numbers)))[::-1]
        need = list(map(add, behind, there))
        most, learning = _peak(gradients, need, there)
        waiting = max(_peak(late, behind, there)[0] - most + learning, 0)
        if recompute[u] and forward > most:
            most, learning = forward, 0
        need[-1] += calls[-1].given_bytes
        given = max(_peak(gradients, need, there)[0] - most, 0)
        sizes = forward, most - learning, learning, waiting, held, given
        found.append(UnitMemory(saved * (not recompute[u]), *sizes))
    return found


def _peak(
    tensors: Sequence[tuple[int, int, int]], room: Sequence[int], of: Sequence[int]
) -> tuple[int, int]:
    """The most bytes at any call, of tensors and `room`, and what `of` has there."""
    change = [0] * (len(room) + 1)
    for start, stop, size in tensors:
        change[start] += size
        change[stop + 1] -= size
    held = list(map(add, accumulate(change), room))
    most = max(range(len(held)), key=held.__getitem__)
    return held[most], of[most]
