"""Graphs for another batch."""

from bisect import bisect
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import Any

from splitnet.core.graph import Call, Graph, Shape
from splitnet.core.replication import MOMENTS, broadcast_inputs

_SIZES = "output_bytes", "activation_bytes", "workspace_bytes", "early_bytes"
_WORK = "forward_flops", "backward_flops", "moved_bytes"


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
        known, inner = call.transfer_seconds, call.inner_bytes
        sizes: dict[str, Any] = {name: size(getattr(call, name)) for name in _SIZES}
        return replace(
            call,
            output_shapes=tuple(map(shape, call.output_shapes)),
            **sizes,
            **{name: getattr(call, name) * share for name in _WORK},
            inner_bytes=None if inner is None else size(inner),
            seconds_on=tuple((kind, s * share) for kind, s in call.seconds_on),
            transfer_seconds=None if known is None else known * share,
        )

    calls = (call if call.name in whole else scaled(call) for call in graph.calls)
    tensors = (
        t
        if t.source in whole
        else replace(t, shape=shape(t.shape), bytes=size(t.bytes))
        for t in graph.tensors
    )
    return replace(
        graph,
        batch=batch,
        calls=tuple(calls),
        tensors=tuple(tensors),
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
