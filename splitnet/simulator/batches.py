"""The same graph for another batch, and the largest batch that fits."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from splitnet.core.graph import Call, Graph, Shape

__all__ = ["largest_true", "rebatched"]


def rebatched(graph: Graph, batch: int) -> Graph:
    """Scale a graph to another batch: bytes of outputs and FLOPs grow in proportion.

    What does not grow with the batch (weights, what a call charges by itself) stays;
    known seconds scale too, which flatters small batches.

    >>> from splitnet.core.graph import Part
    >>> call = Call("a", "a", "Dense", output_shapes=((4, 2),), output_bytes=32)
    >>> graph = Graph("g", 4, (call,), parts=(Part("a"),))
    >>> rebatched(graph, 6).calls[0].output_bytes
    48
    """
    share = batch / graph.batch

    def size(count: int) -> int:
        return ceil(count * share)

    def shape(sizes: Shape) -> Shape:
        return (batch, *sizes[1:]) if sizes and sizes[0] == graph.batch else sizes

    def scaled(call: Call) -> Call:
        return replace(
            call,
            output_shapes=tuple(shape(one) for one in call.output_shapes),
            output_bytes=size(call.output_bytes),
            forward_flops=call.forward_flops * share,
            backward_flops=call.backward_flops * share,
            moved_bytes=call.moved_bytes * share,
            activation_bytes=size(call.activation_bytes),
            workspace_bytes=size(call.workspace_bytes),
            inner_bytes=None if call.inner_bytes is None else size(call.inner_bytes),
            seconds_on=tuple((kind, s * share) for kind, s in call.seconds_on),
        )

    return replace(
        graph,
        batch=batch,
        calls=tuple(scaled(call) for call in graph.calls),
        tensors=tuple(
            replace(t, shape=shape(t.shape), bytes=size(t.bytes)) for t in graph.tensors
        ),
    )


def largest_true(holds: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` that a falling property holds for; or 0.

    Doubles, then halves: O(log most) tries.

    >>> largest_true(lambda n: n * n <= 1000, 4096)
    31
    """
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
