"""What a call costs when there is no formula for it: trace it once, and count.

The call is traced into a graph of its own, forward and backward, on placeholders; the
layer's variables are replaced by such tensors, too. So nothing is allocated on any
device, and TensorFlow's runtime is not even started. In the traced graph every
operation can be counted, and what is kept until the backward pass is what a gradient
operation reads of the forward pass.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.costs.value import Size, Work
from splitnet.tf.internals import tf_api

__all__ = ["Traced", "trace"]

_VIEWS = {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "EnsureShape"}
_SHAPE_ONLY = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "BroadcastGradientArgs"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}
_BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
_MOVES = frozenset(
    ("Transpose", "ConcatV2", "Split", "SplitV", "StridedSlice", "Pad", "PadV2")
    + ("GatherV2", "ResourceGather", "Slice", "Tile", "Pack", "Unpack", "ReverseV2")
    + ("Fill",)
)
_FREE = (
    _VIEWS | _SHAPE_ONLY | {"Const", "Placeholder", "NoOp", "ReadVariableOp"} | _MOVES
)


@dataclass(frozen=True, slots=True)
class Traced:
    """FLOPs of the forward graph and what its gradient graph reads of it."""

    matrix_flops: float
    other_flops: float
    saves_inputs: tuple[int, ...]
    saves_outputs: tuple[int, ...]
    inner_bytes: int

    def work(self, note: str) -> Work:
        """The finding as a formula would state it."""
        return Work(
            matrix_flops=self.matrix_flops,
            other_flops=self.other_flops,
            saves_inputs=self.saves_inputs,
            saves_outputs=self.saves_outputs,
            inner_bytes=self.inner_bytes,
            note=note,
        )


def trace(
    call: Callable[..., Any], sizes: Sequence[Size], variables: Sequence[Any] = ()
) -> Traced:
    """Trace `call` and its gradient on tensors of these sizes; run neither.

    Args:
        call: takes as many tensors as there are sizes, returns tensors.
        sizes: every dimension known.
        variables: the Keras variables it may read; need not have values.

    Raises:
        Exception: whatever `call` raises on such tensors.
    """
    graph = tf.Graph()
    with graph.as_default():
        given = [tf.compat.v1.placeholder(s.dtype, s.shape) for s in sizes]
        states = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in variables]
        scope = keras.StatelessScope(
            state_mapping=list(zip(variables, states)), initialize_variables=False
        )
        start = len(graph.get_operations())
        with scope:
            results = tf.nest.flatten(call(*given), expand_composites=True)
        stop = len(graph.get_operations())
        trained = [t for t, v in zip(states, variables) if v.trainable]
        sources = [t for t in (*given, *trained) if t.dtype.is_floating]
        targets = [t for t in results if t.dtype.is_floating]
        gradients = _gradients(targets, sources)
    marks = {
        "given": given,
        "states": states,
        "results": results,
        "gradients": tf.nest.flatten(
            [g for g in gradients if g is not None], expand_composites=True
        ),
        "forward": graph.get_operations()[start:stop],
        "backward": graph.get_operations()[stop:],
    }
    needed = _needed(marks["results"])
    matrix, other = _count([o for o in marks["forward"] if id(o) in needed], graph)
    return Traced(matrix, other, *_saved(marks))


def _gradients(targets: Sequence[Any], sources: Sequence[Any]) -> list[Any]:
    """Gradients of the sum of the targets; none if an operation has no gradient."""
    if not targets or not sources:
        return []
    try:
        return list(tf.gradients(targets, sources))
    except LookupError:
        return []


def _needed(results: Sequence[Any]) -> set[int]:
    """Operations that a result hangs on; TensorFlow prunes the others, so do we."""
    needed: set[int] = set()
    waiting = [tensor.op for tensor in results]
    while waiting:
        op = waiting.pop()
        if id(op) not in needed:
            needed.add(id(op))
            waiting += [tensor.op for tensor in op.inputs]
    return needed


def _count(operations: Sequence[Any], graph: Any) -> tuple[float, float]:
    """Matrix FLOPs and other FLOPs of these operations, loops times their length."""
    matrix = other = 0.0
    for op in operations:
        if op.type in _CALLS | _LOOPS | _BRANCHES:
            found = [_count(body.get_operations(), body) for body in _bodies(op, graph)]
            times = _length(op) if op.type in _LOOPS else 1
            matrix += times * max((m for m, _ in found), default=0.0)
            other += times * max((o for _, o in found), default=0.0)
        elif flops := _matrix_flops(op):
            matrix += flops
        elif op.type not in _FREE:
            other += _other_flops(op)
    return matrix, other


def _other_flops(op: Any) -> float:
    """One per element of the outputs, or of what a reduction reads."""
    written = sum(_elements(t) for t in op.outputs if t.dtype.is_floating)
    if not written or not op.inputs:
        return float(written)
    return float(max(written, _elements(op.inputs[0])))


def _bodies(op: Any, graph: Any) -> Iterator[Any]:
    for name in ("f", "body", "then_branch", "else_branch"):
        try:
            function = op.get_attr(name)
        except ValueError:
            continue
        yield tf_api.function_body(graph, function.name)


def _length(op: Any) -> int:
    """Iterations of a loop, read off its condition `counter < limit`; 1 if hidden."""
    condition = tf_api.function_body(op.graph, op.get_attr("cond").name)
    places = {t.op.name: i for i, t in enumerate(condition.inputs)}
    limits = []
    for less in condition.get_operations():
        if less.type == "Less":
            limit = less.inputs[1]
            if limit.op.name in places:
                limit = op.inputs[places[limit.op.name]]
            if (value := _static(limit)) > 0:
                limits.append(value)
    return min(limits, default=1)


def _static(tensor: Any) -> int:
    """The value of an integer scalar that is known while tracing, else 0."""
    if tensor.op.type == "Max":
        tensor = tensor.op.inputs[0]
    value = tf.get_static_value(tensor)
    return int(value) if value is not None and value.ndim == 0 else 0


def _matrix_flops(op: Any) -> float:
    """Two per multiply-add of a matrix product or convolution, 0 for anything else."""
    kind = op.type
    if kind in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        flag = "transpose_a" if kind == "MatMul" else "adj_x"
        left = op.inputs[0].shape
        return (
            2.0
            * _elements(op.outputs[0])
            * (left[-2] if op.get_attr(flag) else left[-1])
        )
    if kind in ("Conv2D", "Conv3D"):
        kernel = op.inputs[1].shape
        return 2.0 * _elements(op.outputs[0]) * math.prod(kernel[:-1])
    if kind == "DepthwiseConv2dNative":
        return 2.0 * _elements(op.outputs[0]) * math.prod(op.inputs[1].shape[:2])
    if kind in ("Conv2DBackpropInput", "Conv3DBackpropInputV2"):
        kernel = op.inputs[1].shape
        return 2.0 * _elements(op.inputs[2]) * math.prod(kernel[:-1])
    if kind == "Einsum" and len(op.inputs) == 2:
        return einsum_flops(
            op.get_attr("equation").decode(), [tuple(t.shape) for t in op.inputs]
        )
    return 0.0


def einsum_flops(equation: str, shapes: Sequence[tuple[int, ...]]) -> float:
    """Two per element of the space that all letters span together."""
    extent: dict[str, int] = {}
    for letters, shape in zip(equation.partition("->")[0].split(","), shapes):
        before, dots, after = letters.strip().replace(" ", "").partition("...")
        broad = len(shape) - len(before) - len(after) if dots else 0
        names = [*before, *(f"...{i - broad}" for i in range(broad)), *after]
        for name, length in zip(names, shape):
            extent[name] = max(extent.get(name, 1), length)
    return 2.0 * math.prod(extent.values())


def _saved(marks: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """What gradient operations read: of the inputs, of the outputs, and in between."""
    given = {id(t): i for i, t in enumerate(marks["given"])}
    states = {id(t) for t in marks["states"]}
    results = {id(_root(t)): i for i, t in reversed([*enumerate(marks["results"])])}
    forward = {id(op): op for op in marks["forward"]}
    needed = _needed(marks["gradients"])
    inner: dict[int, Any] = {}
    inputs: dict[int, None] = {}
    outputs: dict[int, None] = {}
    for op in marks["backward"]:
        if id(op) not in needed or op.type in _SHAPE_ONLY:
            continue
        for root in map(_root, op.inputs):
            if id(root) in given:
                inputs[given[id(root)]] = None
            elif id(root) in states or id(root.op) not in forward:
                continue
            elif id(root) in results:
                outputs[results[id(root)]] = None
            elif root.op.type != "Const":
                inner[id(root)] = root
    found = sum(_bytes(tensor) for tensor in inner.values())
    found += sum(_loop_bytes(op) for op in forward.values() if id(op) in needed)
    return tuple(sorted(inputs)), tuple(sorted(outputs)), found


def _loop_bytes(op: Any) -> int:
    """Bytes that a loop pushes on lists for its gradient, all iterations together."""
    if op.type not in _LOOPS:
        return 0
    pushed = 0
    for body in _bodies(op, op.graph):
        for inner in body.get_operations():
            if inner.type == "TensorListPushBack":
                pushed += _bytes(inner.inputs[1])
    return pushed * _length(op)


def _root(tensor: Any) -> Any:
    """The tensor whose memory this one shares, also if it only rode through a loop."""
    while True:
        if tensor.op.type in _VIEWS:
            tensor = tensor.op.inputs[0]
        elif tensor.op.type in _LOOPS and _rides(tensor):
            tensor = tensor.op.inputs[tensor.value_index]
        else:
            return tensor


def _rides(tensor: Any) -> bool:
    """Whether a loop hands this output on from its input as it is."""
    for body in _bodies(tensor.op, tensor.op.graph):
        end = body.outputs[tensor.value_index]
        while end.op.type in _VIEWS:
            end = end.op.inputs[0]
        return end is body.inputs[tensor.value_index]
    return False


def _elements(tensor: Any) -> int:
    return tensor.shape.num_elements() or 0


def _bytes(tensor: Any) -> int:
    return _elements(tensor) * max(tensor.dtype.size, 1) if tensor.dtype.size else 0
