"""Units of a step: which calls run as one task, how long it takes, for any batch.

A unit is a TensorFlow function of a part; in micro-batches, what runs on one device
without a hop between is one. What a function saves for its backward pass is held until
that pass ends, so a long run is cut where one tensor passes.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import chain
from math import ceil, inf
from typing import Any

import networkx as nx

from splitnet.core.cluster import Device
from splitnet.core.costs import CostModel
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Shape, grouped

Row = tuple[float, ...]
Units = Sequence[tuple[int, ...]]
"""The calls of each unit; units stand in an order in which they may run."""
_SIZES = ["output_bytes", "activation_bytes", "workspace_bytes", "early_bytes"]
_SIZES += ["inner_bytes", "given_bytes"]
_MOVED = ["moved_bytes", "fused_bytes"]
_WORK = ["forward_flops", "backward_flops", "transfer_seconds", *_MOVED]


@lru_cache(8)  # each strategy tried asks for a few, again and again
def scaled_graph(graph: Graph, batch: int) -> Graph:
    """The graph for another batch: bytes of outputs and FLOPs grow in proportion.

    Weights, the bytes of reading them, fixed outputs, and what a call charges by itself
    stay. Known seconds scale too, which flatters small batches.
    """
    if batch == graph.batch:
        return graph
    share = batch / graph.batch

    def size(count: int) -> int:
        return ceil(count * share)

    def shape(sizes: Shape, fixed: bool = False) -> Shape:
        return sizes if fixed or sizes[:1] != (graph.batch,) else (batch, *sizes[1:])

    def scaled(call: Call) -> Call:
        if len(call.fixed_outputs) == (len(call.output_shapes) or 1):
            return call
        grown: dict[str, Any] = {
            name: size(count) if name in _SIZES else count * share
            for name in (*_SIZES, *_WORK)
            if (count := getattr(call, name)) is not None
        }
        grown["output_bytes"] += int(call.bytes_of(call.fixed_outputs) * (1 - share))
        read = sum(graph.weight[n].bytes for n in call.weights if n not in call.lookups)
        for name in _MOVED:
            grown[name] += min(read, getattr(call, name)) * (1 - share)
        seconds = tuple((kind, count * share) for kind, count in call.seconds_on)
        pairs = enumerate(call.output_shapes)
        shapes = tuple(shape(its, i in call.fixed_outputs) for i, its in pairs)
        return replace(call, output_shapes=shapes, seconds_on=seconds, **grown)

    calls = tuple(map(scaled, graph.calls))
    tensors = tuple(
        t
        if t.index in graph.call[t.source].fixed_outputs
        else replace(t, shape=shape(t.shape), bytes=size(t.bytes))
        for t in graph.tensors
    )
    plain = graph.plain and scaled_graph(graph.plain, batch)
    return replace(graph, batch=batch, calls=calls, tensors=tensors, plain=plain)


def unit_of_call(units: Units) -> list[int]:
    """The unit of each call."""
    unit_of = {call: unit for unit, own in enumerate(units) for call in own}
    return [unit_of[call] for call in range(len(unit_of))]


def condensed(
    group: Sequence[Hashable], pairs: Iterable[tuple[int, int]]
) -> "nx.DiGraph[Any]":
    """Which groups of numbers read of which, as a graph; of (source, reader) pairs."""
    order = nx.DiGraph((group[source], group[reader]) for source, reader in pairs)
    order.add_nodes_from(group)
    order.remove_edges_from(list(nx.selfloop_edges(order)))
    return order


def group_parts(graph: Graph) -> Units:
    """A unit per function: each part is one, or several if it has many calls.

    Parts that would wait for each other are divided into their calls. Explicit backward
    calls of a part are a unit of their own, and nothing is cut in a graph that has
    some, because nothing emits it. O((calls + tensors) log calls).
    """
    labels: list[Hashable] = [(call.part, call.backward) for call in graph.calls]
    number, reads = graph.number, [list[tuple[int, int]]() for _ in labels]
    for tensor in graph.tensors:
        reads[number[tensor.target]].append((number[tensor.source], tensor.index))
    pairs = [(source, n) for n, own in enumerate(reads) for source, _ in own]
    cyclic: set[Hashable] = {None}
    while cyclic:
        labels = [(n, i) if n in cyclic else n for i, n in enumerate(labels)]
        calls = grouped(range(len(labels)), labels.__getitem__)
        units = condensed(labels, pairs)
        circles = (c for c in nx.strongly_connected_components(units) if len(c) > 1)
        cyclic = set().union(*circles)
    order = nx.lexicographical_topological_sort(units, key=lambda one: calls[one][0])
    runs = [tuple(calls[label]) for label in order]
    if any(call.backward for call in graph.calls):
        return runs
    return [tuple(piece) for run in runs for piece in cut_run(run, reads)]


def function_runs(
    reads: Sequence[Sequence[tuple[int, int]]],
    where: Sequence[Hashable],
    sizes: Sequence[int] | None = None,
) -> list[Sequence[int]]:
    """The numbers that run as one function each, numbers in running order.

    They are connected, in one place, with as many hops between places before and after
    them; long runs are cut. `reads` and `sizes` as in `cut_run`. O(numbers + reads).
    """
    count = len(where)
    arcs = [(s, n, where[s] != where[n]) for n in range(count) for s, _ in reads[n]]
    before, after = [0] * count, [0] * count
    for source, number, hop in arcs:
        before[number] = max(before[number], before[source] + hop)
    for source, number, hop in reversed(arcs):
        after[source] = max(after[source], after[number] + hop)
    rank = list(zip(where, before, after))
    runs = nx.utils.UnionFind(range(count))
    for source, number, _ in arcs:
        if rank[source] == rank[number]:
            runs.union(source, number)
    whole = map(sorted, runs.to_sets())
    return [piece for run in whole for piece in cut_run(run, reads, sizes)]


CALLS = 8  # that a function has before it is cut, and that are left


def cut_run(
    run: Sequence[int],
    reads: Sequence[Sequence[tuple[int, int]]],
    sizes: Sequence[int] | None = None,
) -> Iterator[Sequence[int]]:
    """Cut calls, or units of calls, in running order into functions.

    `reads` has the (source, output) pairs that each number reads, `sizes` its calls, if
    not one. A function is not cut further if it is taken for a run.

    >>> [len(one) for one in cut_run(range(20), [[(i - 1, 0)] for i in range(20)])]
    [8, 12]
    """
    calls = [1 if sizes is None else sizes[one] for one in run]
    if sum(calls) < 2 * CALLS:
        yield run
        return
    made = dict.fromkeys(run, 0)  # tensors of each that are read in the run
    last: dict[tuple[int, int], int] = {}
    for i, one in enumerate(run):
        for tensor in reads[one]:
            if tensor[0] in made:
                made[tensor[0]] += tensor not in last
                last[tensor] = i
    ends = Counter(last.values())
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


def call_seconds(
    pieces: Sequence[Graph],
    device: Device,
    costs: CostModel,
    optimizer: str,
    flows: Sequence[bool],
    recompute: Collection[str],
) -> Row:
    """Seconds of the tasks of single calls on a device, micro-batch after micro-batch.

    Gradients are added to the earlier ones. XLA compiles no towers, nor `recompute`.
    """
    graph = pieces[0]
    plain = {part.name for part in graph.parts if part.kind == "tower"}.union(recompute)
    trained = {w.name: w.bytes for w in graph.weights if w.trainable}

    @cache
    def passes(size: int, adds: bool) -> tuple[list[float], list[float]]:
        calls = [
            replace(call, fused_kernels=0) if call.part in plain else call
            for call in next(p.calls for p in pieces if p.batch == size)
        ]
        ahead = [costs.forward_seconds(call, device) for call in calls]
        back = [0.0] * len(calls)
        for i, call in enumerate(calls):
            if flows[i]:
                back[i] = costs.backward_seconds(call, device)
                made = sum(trained.get(name, 0) for name in call.weights)
                if adds and made:
                    back[i] += costs.update_seconds(made, device, "sgd")
                back[i] += ahead[i] * (call.part in recompute)
            if not (0 <= ahead[i] < inf and 0 <= back[i] < inf):
                who = f"for {call.name!r} on {device.name} the cost model gives"
                given = f"{ahead[i]} s forward and {back[i]} s backward"
                raise DeclarationError(f"{who} {given}; give finite seconds from 0 on.")
        return ahead, back

    uses = [(name, i) for i, call in enumerate(graph.calls) for name in call.weights]
    home, learned = dict(reversed(uses)), {name for name, i in uses if flows[i]}
    update = [0.0] * len(flows) * len(pieces)  # later micro-batches update nothing
    for name in filter(learned.__contains__, trained):
        update[home[name]] += costs.update_seconds(trained[name], device, optimizer)
    each = [passes(piece.batch, m > 0) for m, piece in enumerate(pieces)]
    ahead, back = (list(chain(*rows)) for rows in zip(*each))
    return (*ahead, *reversed(back), *update)


def function_seconds(row: Row, units: Units, called: float) -> Row:
    """Seconds of the tasks of units, from those of single calls on a device.

    A unit of calls is a function, whose call costs so much, unless it computes nothing.
    """
    count, size = len(row) // 3, sum(map(len, units))
    called *= len(units) < size
    first = range(0, count, max(size, 1))  # calls of the micro-batches
    every = [[m + i for i in own] for m in first for own in units]
    ahead = [sum(row[i] for i in own) for own in every]
    back = [sum(row[2 * count - 1 - i] for i in own) for own in every]
    update = [sum(row[2 * count + i] for i in own) for own in every]
    ahead, back = ([s + called if s else 0.0 for s in one] for one in (ahead, back))
    return (*ahead, *reversed(back), *update)
