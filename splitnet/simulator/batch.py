"""Graphs for another batch."""

from bisect import bisect
from collections.abc import Callable
from dataclasses import replace
from math import ceil

from splitnet.core.graph import Call, Graph, Shape
from splitnet.core.replication import MOMENTS, broadcast_inputs


def scaled_graph(graph: Graph, batch: int) -> Graph:
    """The graph for another batch: bytes of outputs and FLOPs grow in proportion.

    Weights, inputs that towers read whole and what a call charges by itself stay. Known
    seconds scale too, which flatters small batches; reading the model again is more
    exact.

    >>> from splitnet.core.graph import Part
    >>> call = Call("a", "a", "Dense", output_bytes=32)
    >>> graph = Graph("g", 4, (call,), parts=(Part("a"),))
    >>> scaled_graph(graph, 6).calls[0].output_bytes
    48
    """
    if batch == graph.batch:
        return graph
    share = batch / graph.batch
    whole = {c.name for name in broadcast_inputs(graph) for c in graph.calls_of[name]}
    whole |= {call.name for call in graph.calls if call.kind == MOMENTS}

    def size(count: int) -> int:
        return ceil(count * share)

    def shape(sizes: Shape) -> Shape:
        return (batch, *sizes[1:]) if sizes and sizes[0] == graph.batch else sizes

    def scaled(call: Call) -> Call:
        if call.name in whole:
            return call
        known = call.transfer_seconds
        return replace(
            call,
            output_shapes=tuple(map(shape, call.output_shapes)),
            output_bytes=size(call.output_bytes),
            forward_flops=call.forward_flops * share,
            backward_flops=call.backward_flops * share,
            moved_bytes=call.moved_bytes * share,
            activation_bytes=size(call.activation_bytes),
            workspace_bytes=size(call.workspace_bytes),
            early_bytes=size(call.early_bytes),
            inner_bytes=None if call.inner_bytes is None else size(call.inner_bytes),
            seconds_on=tuple((kind, s * share) for kind, s in call.seconds_on),
            transfer_seconds=None if known is None else known * share,
        )

    return replace(
        graph,
        batch=batch,
        calls=tuple(map(scaled, graph.calls)),
        tensors=tuple(
            t
            if t.source in whole
            else replace(t, shape=shape(t.shape), bytes=size(t.bytes))
            for t in graph.tensors
        ),
        plain=graph.plain and scaled_graph(graph.plain, batch),
    )


def largest_true(holds: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` for which a falling property holds, or 0.

    Doubles, then halves: O(log most) tries.

    >>> largest_true(lambda n: n * n <= 1000, 4096)
    31
    """
    high = 1
    while high <= most and holds(high):
        high *= 2
    ends = high // 2 + 1, min(high, most + 1)
    return bisect(range(high), False, *ends, key=lambda n: not holds(n)) - 1
