"""What a call costs: trace it once, and count its operations.

A multiply-add counts as two FLOPs, a transcendental function as four, any other
operation on an element as one.

The call is traced into a graph of its own, forward and backward, on placeholders, which
stand for the layer's variables as well. So nothing is allocated, and TensorFlow's
runtime is not even started. What is kept until the backward pass is what gradient
operations that something needs read of the forward pass.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import tf_api

_VIEWS = {"Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "EnsureShape"}
_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "BroadcastGradientArgs"}
_NO_KERNEL = _VIEWS | _SHAPES | {"Const", "Placeholder", "NoOp", "ReadVariableOp"}
_MOVES = (
    {"Transpose", "ConcatV2", "Split", "SplitV", "StridedSlice", "Slice", "Pad"}
    | {"PadV2", "GatherV2", "ResourceGather", "Tile", "Pack", "Unpack", "ReverseV2"}
    | {"Fill", "Cast"}
)
_GATHERS = {"GatherV2", "ResourceGather"}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_LOOPS = {"While", "StatelessWhile"}
_BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
_MATMULS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}
_GRADIENTS = {"Conv2DBackpropInput", "Conv3DBackpropInputV2"}  # transposed convolutions
_ANEW = (
    _MATMULS | _GRADIENTS | _MOVES | _CALLS | _LOOPS | _BRANCHES | {"Conv2D", "Conv3D"}
)
"""Operations that read an input again while they write the output."""
_CLASSES = {
    **dict.fromkeys({"Conv2D", "Conv3D"} | _GRADIENTS, "convolution"),
    "DepthwiseConv2dNative": "depthwise",
}
_PRODUCTS = ("convolution", "depthwise", "product")  # classes, see core/costs.py
_MORE = ("other", "moved")
_FLOPS = {
    **dict.fromkeys(["Exp", "Expm1", "Log", "Log1p", "Tanh", "Sigmoid", "Erf"], 4),
    **dict.fromkeys(["Sin", "Cos", "Tan"], 4),
    **dict.fromkeys(["Rsqrt", "Softsign", "LeakyRelu", "Relu6"], 2),
    **{"Elu": 5, "Selu": 6, "Softmax": 7, "Softplus": 8, "LogSoftmax": 8, "Pow": 8},
    "ResizeBilinear": 8,
}
"""FLOPs per element, of operations that take more than one."""


@dataclass(frozen=True, slots=True)
class Size:
    """A tensor's shape, every dimension known, and its dtype."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Number of elements, 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor; a string counts 16, its header."""
        return self.elements * _item_bytes(self.dtype)

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can come back through it."""
        return "float" in self.dtype or "complex" in self.dtype


@functools.cache
def _item_bytes(dtype: str) -> int:
    return 16 if dtype == "string" else int(tf.as_dtype(dtype).size)


@dataclass(frozen=True, slots=True)
class Work:
    """What one call computes and keeps.

    `matrix_flops` are those of matrix products and convolutions, twice the
    multiply-adds that papers print. Kept until the backward pass are the inputs
    `saves_inputs`, the outputs `saves_outputs`, and `inner_bytes` besides;
    `workspace_bytes` live only while the call or its backward pass runs, and
    `early_bytes` of them need no gradient. `views` says that the outputs share the
    memory of the first input. The others are those of `graph.Call`.
    """

    matrix_flops: float = 0.0
    other_flops: float = 0.0
    backward_flops: float = 0.0
    saves_inputs: tuple[int, ...] = ()
    saves_outputs: tuple[int, ...] = ()
    inner_bytes: int = 0
    workspace_bytes: int = 0
    early_bytes: int = 0
    moved_bytes: float = 0.0
    views: bool = False
    sequential_steps: int = 1
    efficiency: str = ""
    kernels: int = 0
    cpu_only: bool = False

    @property
    def forward_flops(self) -> float:
        """All FLOPs of the forward pass."""
        return self.matrix_flops + self.other_flops


def trace(
    call: Callable[..., Any], sizes: Sequence[Size], variables: Sequence[Any] = ()
) -> Work:
    """Trace `call` and its gradient on tensors of these sizes; run neither.

    The Keras variables that it may read need not have values.

    Raises:
        Exception: whatever `call` raises on such tensors.
    """
    graph = tf_api.FuncGraph("cost")  # takes tensors that layers hold as captures
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
        ends = [t for t in results if t.dtype.is_floating]
        incoming = [tf.compat.v1.placeholder(t.dtype, t.shape) for t in ends]
        sources = [t for t in given if t.dtype.is_floating]
        own = len(sources)
        sources += [
            t for t, v in zip(states, variables) if v.trainable and t.dtype.is_floating
        ]
        try:
            made = tf.gradients(ends, sources, incoming) if ends and sources else []
        except LookupError:  # an operation has no gradient
            made = []
        returned, learned = (
            tf.nest.flatten([g for g in some if g is not None], expand_composites=True)
            for some in (made[:own], made[own:])
        )
    operations = graph.get_operations()
    needed = _needed(results)
    forward = [op for op in operations[start:stop] if id(op) in needed]
    needed = _needed(returned + learned)
    backward = [op for op in operations[stop:] if id(op) in needed]
    inputs, outputs, inner = _saved(given, states, results, forward, backward)
    pushed = sum(_pushed_bytes(op) for op in forward if id(op) in needed)
    elsewhere = [*given, *states, *learned, *inner]
    ahead = _peak(forward, elsewhere, [], results) - sum(map(_bytes, results))
    early, again = _early(backward, incoming)
    behind = _peak(backward, [*elsewhere, *results], [*incoming, *again], returned)
    behind += sum(map(_bytes, again))
    count = _count(forward, graph)
    matrix = sum(count[name] for name in _PRODUCTS)
    largest = max(_PRODUCTS, key=count.__getitem__)
    return Work(
        matrix_flops=float(matrix),
        other_flops=float(count["other"]),
        saves_inputs=inputs,
        saves_outputs=outputs,
        inner_bytes=sum(map(_bytes, inner)) + pushed,
        workspace_bytes=max(ahead, behind, 0),
        early_bytes=sum(map(_bytes, early + again)),
        moved_bytes=float(count["moved"]),
        views=bool(given and results) and all(_root(t) is given[0] for t in results),
        sequential_steps=max(1, count["steps"]),
        efficiency=largest if matrix > count["other"] else "",
        kernels=count["kernels"],
    )


def _needed(results: Sequence[Any]) -> set[int]:
    """The operations that results depend on, by id; TensorFlow prunes the others."""
    needed: set[int] = set()
    waiting = [tensor.op for tensor in results]
    while waiting:
        op = waiting.pop()
        if id(op) not in needed:
            needed.add(id(op))
            waiting += [tensor.op for tensor in op.inputs]
    return needed


# FLOPs, bytes and kernels --------------------------------------------------------


def _count(operations: Sequence[Any], graph: Any) -> Counter[str]:
    """Sums over operations: loops by their length, branches by the most expensive.

    FLOPs of each class of `_PRODUCTS` and "other" ones, bytes "moved", "kernels", and
    "steps": iterations that wait for each other.
    """
    found: Counter[str] = Counter()
    for op in operations:
        if op.type in _CALLS | _BRANCHES | _LOOPS:
            bodies = [_count(b.get_operations(), b) for b in _bodies(op, graph)]
            worst = max(
                bodies, key=lambda one: sum(one[n] for n in (*_PRODUCTS, *_MORE))
            )
            times = 1
            if op.type in _LOOPS:
                # Each of stacked cells multiplies its input, and then its state.
                inside = [x for b in _bodies(op, graph) for x in b.get_operations()]
                cells = sum(x.type in _MATMULS for x in inside) // 2
                times, worst["steps"] = _length(op), max(worst["steps"], cells, 1)
            for name, amount in worst.items():
                found[name] += times * amount
        elif op.type not in _NO_KERNEL:
            found["kernels"] += 1
            read = op.inputs[1:] if op.type in _GATHERS else op.inputs
            again = op.outputs if op.type in _GATHERS else ()  # rows, not the table
            found["moved"] += sum(_bytes(t) for t in (*read, *again, *op.outputs))
            if flops := _matrix_flops(op):
                found[_CLASSES.get(op.type, "product")] += flops
            elif op.type not in _MOVES:
                # per element of the outputs, or of what a reduction reads
                size = sum(_elements(t) for t in op.outputs if t.dtype.is_floating)
                if size and op.inputs:
                    size = max(size, _elements(op.inputs[0]))
                found["other"] += _FLOPS.get(op.type, 1) * size
    return found


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
            if limit.op.type == "Max":
                limit = limit.op.inputs[0]
            value = tf.get_static_value(limit)
            if value is not None and value.ndim == 0 and value > 0:
                limits.append(int(value))
    return min(limits, default=1)


def _matrix_flops(op: Any) -> int:
    """Two per multiply-add of a matrix product or convolution, 0 for anything else."""
    kind = op.type
    if kind in _MATMULS:
        flag = "transpose_a" if kind == "MatMul" else "adj_x"
        left = op.inputs[0].shape
        common = left[-2] if op.get_attr(flag) else left[-1]
        return int(2 * _elements(op.outputs[0]) * common)
    if kind in _GRADIENTS or kind in ("Conv2D", "Conv3D"):
        kernel = op.inputs[1].shape
        made = op.inputs[2] if kind in _GRADIENTS else op.outputs[0]
        return 2 * _elements(made) * math.prod(kernel[:-1])
    if kind == "DepthwiseConv2dNative":
        return 2 * _elements(op.outputs[0]) * math.prod(op.inputs[1].shape[:2])
    if kind != "Einsum" or len(op.inputs) != 2:
        return 0
    extent: dict[str, int] = {}  # of the space that all letters span together
    equation = op.get_attr("equation").decode()
    for letters, tensor in zip(equation.partition("->")[0].split(","), op.inputs):
        before, dots, after = letters.strip().replace(" ", "").partition("...")
        broad = len(tensor.shape) - len(before) - len(after) if dots else 0
        names = [*before, *(f"...{i - broad}" for i in range(broad)), *after]
        for name, length in zip(names, tensor.shape):
            extent[name] = max(extent.get(name, 1), length)
    return 2 * math.prod(extent.values())


# Memory --------------------------------------------------------------------------


def _saved(
    given: Sequence[Any],
    states: Sequence[Any],
    results: Sequence[Any],
    forward: Sequence[Any],
    backward: Sequence[Any],
) -> tuple[tuple[int, ...], tuple[int, ...], list[Any]]:
    """What gradient operations read: of the inputs, of the outputs, and in between."""
    place = {id(t): i for i, t in enumerate(given)}
    known = {id(t) for t in states}
    made = {id(_root(t)): i for i, t in reversed([*enumerate(results)])}
    before = {id(op) for op in forward}
    inputs: set[int] = set()
    outputs: set[int] = set()
    inner: dict[int, Any] = {}
    for op in backward:
        for root in map(_root, op.inputs) if op.type not in _SHAPES else ():
            while root.op.type == "Transpose" and id(root.op) in before:
                root = _root(root.op.inputs[0])
            if id(root) in place:
                inputs.add(place[id(root)])
            elif id(root) in known or id(root.op) not in before:
                continue
            elif id(root) in made:
                outputs.add(made[id(root)])
            elif root.op.type != "Const":
                inner[id(root)] = root
    return tuple(sorted(inputs)), tuple(sorted(outputs)), list(inner.values())


def _pushed_bytes(op: Any) -> int:
    """Bytes that a loop pushes on lists for its gradient, all iterations together."""
    if op.type not in _LOOPS:
        return 0
    return _length(op) * sum(
        _bytes(inner.inputs[1])
        for body in _bodies(op, op.graph)
        for inner in body.get_operations()
        if inner.type == "TensorListPushBack"
    )


def _peak(
    operations: Sequence[Any],
    elsewhere: Sequence[Any],
    given: Sequence[Any],
    returned: Sequence[Any],
) -> int:
    """The most that operations hold at once, beyond what they are given.

    An operation on elements writes over an input of the same size that nothing else
    reads any more.

    Args:
        operations: in the order in which they run.
        elsewhere: tensors that count elsewhere.
        given: tensors that are there when they begin.
        returned: tensors that stay from when they are made.
    """
    last = {id(_root(t)): op for op in operations for t in op.inputs}
    free = {id(_root(t)) for t in elsewhere}
    kept = {id(_root(t)) for t in returned}
    freed: dict[int, list[int]] = {}
    now = most = start = sum(map(_bytes, given))
    for tensor in given:
        if id(tensor) in last and id(tensor) not in kept:
            freed.setdefault(id(last[id(tensor)]), []).append(_bytes(tensor))
    for op in operations:
        ends = freed.pop(id(op), [])
        for tensor in op.outputs if op.type not in _VIEWS | _SHAPES else ():
            key, size = id(tensor), _bytes(tensor)
            if key in free or op.type in ("Const", "Fill", "Placeholder"):
                continue
            if key in last and key not in kept:
                freed.setdefault(id(last[key]), []).append(size)
            elif key not in kept:
                continue
            if op.type not in _ANEW and size in ends:
                ends.remove(size)
            else:
                now += size
        most = max(most, now)
        now -= sum(ends)
    return most - start


def _early(
    backward: Sequence[Any], incoming: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """What gradient operations read that needs no incoming gradient.

    TensorFlow makes it as soon as the function's backward pass begins: tensors of the
    backward pass, and others. Those are transposes of the forward pass, made again, and
    products with a constant: its optimizer makes c (g a) to g (c a).
    """
    waiting = {id(t.op) for t in incoming}
    made = {id(op) for op in backward}
    found: dict[int, Any] = {}
    others: dict[int, Any] = {}
    for op in backward:
        before = [*(t.op for t in op.inputs), *op.control_inputs]
        if not any(id(one) in waiting for one in before):
            continue
        waiting.add(id(op))
        for root in map(_root, op.inputs):
            if id(root.op) in made - waiting and root.op.type not in _NO_KERNEL:
                found[id(root)] = root
            elif id(root.op) not in made and root.op.type == "Transpose":
                others[id(root)] = root
            if root.op.type == op.type == "Mul" and any(map(_constant, op.inputs)):
                for factor in map(_root, root.op.inputs):
                    if id(factor.op) not in waiting and not _constant(factor):
                        others[id(root)] = factor
    return [t for t in found.values() if t.op.type != "Fill"], list(others.values())


def _constant(tensor: Any) -> bool:
    return tensor.op.type == "Const" and _elements(tensor) == 1


def _is_one(tensor: Any) -> bool:
    """Whether TensorFlow drops a multiplication by it."""
    return _constant(tensor) and tf.get_static_value(tensor).item() == 1


def _root(tensor: Any) -> Any:
    """The tensor whose memory this one shares, also if it only passes a loop."""
    while True:
        op = tensor.op
        if op.type in _VIEWS:
            tensor = op.inputs[0]
        elif op.type == "Mul" and _is_one(op.inputs[0]):
            tensor = op.inputs[1]
        elif op.type in _LOOPS and _passes(tensor):
            tensor = op.inputs[tensor.value_index]
        else:
            return tensor


def _passes(tensor: Any) -> bool:
    """Whether a loop returns this output from its input as it is."""
    body = next(_bodies(tensor.op, tensor.op.graph))
    end = body.outputs[tensor.value_index]
    while end.op.type in _VIEWS:
        end = end.op.inputs[0]
    return end is body.inputs[tensor.value_index]


def _elements(tensor: Any) -> int:
    return tensor.shape.num_elements() or 0


def _bytes(tensor: Any) -> int:
    if tensor.dtype in (tf.variant, tf.resource):
        return 0
    return _elements(tensor) * int(tensor.dtype.size)
