"""What a call costs: trace it once, and count its operations.

A multiply-add counts as two FLOPs, a transcendental function as four, any other
operation on an element as one. The call is traced into a graph of its own, forward and
backward, on placeholders, also for variables: TensorFlow's runtime is not started.
"""

import math
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import tf_api

_TABLE = tomllib.loads(Path(__file__).with_name("operations.toml").read_text("utf-8"))
_FLOPS: dict[str, int] = _TABLE.pop("flops")
OPS = {kind: frozenset(names.split()) for kind, names in _TABLE.items()}
_VIEWS, _SHAPES, _GATHERS = OPS["views"], OPS["shapes"], OPS["gathers"]
_LOOPS, _REDUCTIONS, _GRADIENTS = OPS["loops"], OPS["reductions"], OPS["transposed"]
_MATMULS, _CONVOLUTIONS = OPS["products"], OPS["convolutions"]
_NO_KERNEL = _VIEWS | _SHAPES | OPS["given"]
_NOT_MADE = _VIEWS | _SHAPES | {"Const", "Fill", "Placeholder"}
_MOVES = _GATHERS | OPS["moves"]
_WITH_BODIES = _LOOPS | OPS["calls"]
_ANEW = _MATMULS | _CONVOLUTIONS | _MOVES | _WITH_BODIES
"""Operations that read an input again while they write the output."""
_ALONE = _MATMULS | _CONVOLUTIONS | _GATHERS | {"Einsum", "DepthwiseConv2dNative"}
"""Operations that XLA fuses with none that they read."""
_CLASSES = dict.fromkeys(_CONVOLUTIONS, "convolution")
_CLASSES["DepthwiseConv2dNative"] = "depthwise"
_PRODUCTS = ("convolution", "depthwise", "product")  # classes, see core/costs.py
_Ops = _Tensors = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What one call computes and keeps.

    `matrix_flops` are those of matrix products and convolutions. Gradient operations
    that something needs read the inputs `saves_inputs`, the outputs `saves_outputs`,
    and `inner_bytes` besides. `views`: the outputs share the first input's memory.
    `assigns`: states may change, seeds aside. The others are those of `graph.Call`.
    """

    matrix_flops: float = 0.0
    other_flops: float = 0.0
    backward_flops: float = 0.0
    saves_inputs: tuple[int, ...] = ()
    saves_outputs: tuple[int, ...] = ()
    inner_bytes: int = 0
    workspace_bytes: int = 0
    early_bytes: int = 0
    given_bytes: int = 0
    moved_bytes: float = 0.0
    views: bool = False
    sequential_steps: int = 1
    efficiency: str = ""
    kernels: int = 0
    fused_bytes: float = 0.0
    fused_kernels: int = 0
    cpu_only: bool = False
    fixed_outputs: tuple[int, ...] = ()
    assigns: bool = True

    @property
    def forward_flops(self) -> float:
        """All FLOPs of the forward pass."""
        return self.matrix_flops + self.other_flops


def trace(
    call: Any, sizes: _Tensors, variables: _Tensors, needed: list[bool], training: bool
) -> Work:
    """Trace `call` on these `tf.TensorSpec`s, and the gradient of those `needed`."""
    graph = tf_api.FuncGraph("cost")  # takes tensors that layers hold as captures

    def placed(tensors: Iterable[Any]) -> list[Any]:
        return [tf.compat.v1.placeholder(t.dtype, t.shape) for t in tensors]

    with graph.as_default():
        given, states = placed(sizes), placed(variables)
        start = len(graph.get_operations())
        mapping = list(zip(variables, states))
        with keras.StatelessScope(mapping, initialize_variables=False) as scope:
            results = tf.nest.flatten(call(*given), expand_composites=True)
        assigned = [v.name for v, t in mapping if scope.get_current_value(v) is not t]
        stop = len(graph.get_operations())
        ends = [t for t in results if t.dtype.is_floating]
        incoming = placed(ends)
        own = [t for t in compress(given, needed) if t.dtype.is_floating]
        learned = [t for t, v in zip(states, variables) if v.trainable]
        sources = own + [t for t in learned if t.dtype.is_floating]
        try:
            made = tf.gradients(ends, sources, incoming) if ends and sources else []
        except LookupError:  # an operation has no gradient
            made = []
    returned, updates = (
        [t for t in tf.nest.flatten(some, expand_composites=True) if t is not None]
        for some in (made[: len(own)], made[len(own) :])
    )
    operations = graph.get_operations()
    forward = _needed(operations[start:stop], results)
    backward = _needed(operations[stop:], returned + updates)
    inputs, outputs, inner = _saved(given, states, results, forward, backward)
    pushed = sum(map(_pushed_bytes, _needed(forward, returned + updates)))
    elsewhere = [*given, *states, *updates, *inner]
    there = elsewhere if training else [*given, *states]  # nothing is saved
    ahead = _peak(forward, there, [], results, not training) - bytes_of(*results)
    early, again = _early(backward, incoming)
    known, extra = [*elsewhere, *results], bytes_of(*again)
    behind = _peak(backward, known, [*incoming, *again], returned, False)
    apart = _peak(backward, known, again, returned, False)
    count, fused = _count(forward, graph), _fused(forward, results)
    matrix = sum(count[name] for name in _PRODUCTS)
    largest = max(_PRODUCTS, key=count.__getitem__)
    return Work(
        matrix_flops=float(matrix),
        other_flops=float(count["other"]),
        saves_inputs=inputs,
        saves_outputs=outputs,
        inner_bytes=bytes_of(*inner) + pushed,
        workspace_bytes=max(ahead, (behind + extra) * training, 0),
        early_bytes=bytes_of(*early, *again),
        given_bytes=max(apart - max(behind, ahead - extra), 0),
        moved_bytes=float(count["moved"]),
        views=bool(given and results) and all(_root(t) is given[0] for t in results),
        sequential_steps=max(1, count["steps"]),
        efficiency=largest if matrix > count["other"] else "",
        kernels=count["kernels"],
        fused_bytes=fused[0],
        fused_kernels=fused[1],
        assigns=any("seed" not in name for name in assigned),
    )


def _needed(operations: Iterable[Any], results: Sequence[Any]) -> list[Any]:
    """The operations that results depend on; TensorFlow prunes the others."""
    needed = tf_api.ancestors(tensor.op for tensor in results)
    return [op for op in operations if op in needed]


def _count(operations: Sequence[Any], graph: Any) -> Counter[str]:
    """Sums over operations: loops by their length, branches by the most expensive.

    FLOPs of each class of `_PRODUCTS` and "other" ones, bytes "moved", "kernels", and
    "steps": iterations that wait for each other.
    """
    found: Counter[str] = Counter()
    for op in operations:
        if op.type in _WITH_BODIES:
            bodies = [(b.get_operations(), b) for b in _bodies(op, graph)]
            worst = max([_count(*body) for body in bodies], key=Counter.total)
            times = 1
            if op.type in _LOOPS:
                # Each of stacked cells multiplies its input, and then its state.
                cells = sum(x.type in _MATMULS for x in bodies[0][0]) // 2
                times, worst["steps"] = _length(op), max(worst["steps"], cells, 1)
            for name, amount in worst.items():
                found[name] += times * amount
        elif op.type not in _NO_KERNEL:
            found["kernels"] += 1
            read = [*op.inputs[1:], *op.outputs] if op.type in _GATHERS else op.inputs
            found["moved"] += bytes_of(*read, *op.outputs)
            if flops := _matrix_flops(op):
                found[_CLASSES.get(op.type, "product")] += flops
            elif op.type not in _MOVES:
                # per element of the outputs, or of what a reduction reads
                size = sum(elements_of(t) for t in op.outputs if t.dtype.is_floating)
                if size and op.inputs:
                    size = max(size, elements_of(op.inputs[0]))
                found["other"] += _FLOPS.get(op.type, 1) * size
    return found


def _fused(operations: Sequence[Any], results: Sequence[Any]) -> tuple[float, int]:
    """Bytes that a pass moves and its kernels if XLA compiles it; 0 where it cannot.

    XLA fuses element-wise operations with what reads them. Written to memory is what a
    product or reduction makes, what a product reads, and the results.
    """
    if any(op.type in _WITH_BODIES for op in operations):
        return 0.0, 0
    own = {id(op): op for op in operations}
    alone = [op for op in operations if op.type in _ALONE]
    ends = [*results, *chain.from_iterable(op.inputs for op in alone)]
    written = {id(_root(tensor).op) for tensor in ends} | {*map(id, alone)}
    written |= {key for key, op in own.items() if op.type in _REDUCTIONS}
    kernels = [own[k] for k in own if k in written and own[k].type not in _NO_KERNEL]
    inside, moved = own.keys() - written, 0
    for op in kernels:
        rows = op.type in _GATHERS  # are read, not the table
        read = tf_api.walk(
            map(_root, [*op.inputs][rows:]),
            lambda t: map(_root, t.op.inputs if id(t.op) in inside else ()),
        )
        there = (t for t in read if id(t.op) not in inside)
        moved += bytes_of(*there, *op.outputs, *[*op.outputs] * rows)
    return float(moved), len(kernels)


def _bodies(op: Any, graph: Any) -> list[Any]:
    """The graphs of the functions that an operation calls, without conditions."""
    called = tf_api.functions_called(op.node_def).items()
    return [tf_api.function_body(graph, one) for one, how in called if how != "cond"]


def _length(op: Any) -> int:
    """Iterations of a loop: of its condition `counter < limit`, else of its lists."""
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
    tensors = [t.op.inputs[0] for t in op.inputs if t.op.type == "TensorListFromTensor"]
    lengths = [t.shape[0] for t in tensors if t.shape.rank and t.shape[0]]
    return min(limits or lengths, default=1)


def _matrix_flops(op: Any) -> int:
    """Two per multiply-add of a matrix product or convolution, 0 for anything else."""
    kind, made = op.type, op.outputs[0] if op.outputs else None
    if kind in _MATMULS:
        flag = "transpose_a" if kind == "MatMul" else "adj_x"
        common = op.inputs[0].shape[-2 if op.get_attr(flag) else -1]
        return int(2 * elements_of(made) * common)
    if kind in _CONVOLUTIONS:
        made = op.inputs[2] if kind in _GRADIENTS else made
        return 2 * elements_of(made) * math.prod(op.inputs[1].shape[:-1])
    if kind == "DepthwiseConv2dNative":
        return 2 * elements_of(made) * math.prod(op.inputs[1].shape[:2])
    if kind != "Einsum" or len(op.inputs) != 2:
        return 0
    given, _, result = op.get_attr("equation").decode().partition("->")
    extent: dict[str, int] = {}  # of what is summed over
    for letters, tensor in zip(given.split(","), op.inputs):
        before, _, after = letters.replace(" ", "").partition("...")
        named = [*zip(before, tensor.shape), *zip(after[::-1], tensor.shape[::-1])]
        extent |= {name: length for name, length in named if name not in result}
    return 2 * elements_of(made) * math.prod(extent.values())


def _saved(
    given: _Tensors, states: _Tensors, results: _Tensors, forward: _Ops, backward: _Ops
) -> tuple[tuple[int, ...], tuple[int, ...], list[Any]]:
    """What gradient operations read: of the inputs, of the outputs, and in between."""
    before = {id(op) for op in forward}
    read: dict[int, Any] = {}
    for op in backward:
        for root in map(_root, op.inputs) if op.type not in _SHAPES else ():
            while root.op.type == "Transpose" and id(root.op) in before:
                root = _root(root.op.inputs[0])
            read[id(root)] = root
    inputs = tuple(i for i, t in enumerate(given) if id(t) in read)
    for tensor in [*given, *states]:
        read.pop(id(tensor), None)
    first = {id(_root(t)): i for i, t in reversed([*enumerate(results)])}
    outputs = tuple(sorted(i for key, i in first.items() if key in read))
    rest = (tensor for key, tensor in read.items() if key not in first)
    inner = [t for t in rest if id(t.op) in before and t.op.type != "Const"]
    return inputs, outputs, inner


def _pushed_bytes(op: Any) -> int:
    """Bytes that a loop pushes on lists for its gradient, all iterations together."""
    if op.type not in _LOOPS:
        return 0
    inside = _bodies(op, op.graph)[0].get_operations()
    pushes = [one.inputs[1] for one in inside if one.type == "TensorListPushBack"]
    return _length(op) * bytes_of(*pushes)


def _ahead_bytes(loop: Any) -> int:
    """Bytes that up to 32 iterations of a loop make before its state reaches them."""
    body, made = _bodies(loop, loop.graph)[0], dict[int, Any]()
    both = zip(body.inputs, body.outputs)
    waiting = {id(a.op) for a, b in both if a.dtype.is_floating and _root(b) is not a}
    for op in body.get_operations():
        early = [t for t in map(_root, op.inputs) if id(t.op) not in waiting]
        if len(early) < len(op.inputs):
            waiting.add(id(op))
            made |= {id(t): t for t in early if t.op.type not in _NOT_MADE}
    return min(_length(loop), 32) * bytes_of(*made.values())


def _peak(
    ops: _Ops, away: _Tensors, given: _Tensors, out: _Tensors, loops: bool
) -> int:
    """The most that operations hold at once, beyond what they are given.

    Tensors that are `given` are there at first, those `out` stay, and those `away`
    count elsewhere. `loops` adds what iterations make ahead. An operation on elements
    writes over an input that it reads last, unless others may run beside it.
    """
    last = {id(_root(t)): i for i, op in enumerate(ops) for t in op.inputs}
    last |= {id(_root(t)): len(ops) for t in out}
    counted = {id(_root(t)) for t in away}
    ends = defaultdict[int, dict[int, int]](dict)  # sizes, by what ends them
    for tensor in given:
        ends[last.get(id(tensor), len(ops))][id(tensor)] = bytes_of(tensor)
    turn: dict[int, int] = {}  # of each operation, and the latest that reads a tensor
    now = most = 0
    for i, op in enumerate(ops):
        read = [*map(_root, op.inputs if op.type not in _NO_KERNEL else ())]
        turn[id(op)] = own = 1 + max((turn.get(id(t.op), 0) for t in read), default=0)
        free = [key for key in ends[i] if turn.get(key, 0) < own]
        turn |= {id(t): max(own, turn.get(id(t), 0)) for t in read}
        for tensor in op.outputs if op.type not in _NOT_MADE else ():
            if id(tensor) in counted or id(tensor) not in last:
                continue
            size = bytes_of(tensor)
            ends[last[id(tensor)]][id(tensor)] = size
            over = [key for key in free if ends[i].get(key) == size]
            if op.type not in _ANEW and over:
                del ends[i][over[0]]
            else:
                now += size
        most = max(most, now + (_ahead_bytes(op) if loops and op.type in _LOOPS else 0))
        now -= sum(ends[i].values())
    return most


def _early(backward: _Ops, incoming: _Tensors) -> tuple[list[Any], list[Any]]:
    """What gradient operations read that needs no gradient, so it is made at once."""
    waiting, made = {id(t.op) for t in incoming}, {id(op) for op in backward}
    found, others = dict[int, Any](), dict[int, Any]()
    for op in backward:
        before = [*(t.op for t in op.inputs), *op.control_inputs]
        if not any(id(one) in waiting for one in before):
            continue
        waiting.add(id(op))
        for root in map(_root, op.inputs):
            if id(root.op) not in made:
                if root.op.type == "Transpose":
                    others[id(root)] = root
            elif id(root.op) not in waiting and root.op.type not in _NO_KERNEL:
                found[id(root)] = root
            if root.op.type == op.type == "Mul" and any(map(_constant, op.inputs)):
                for factor in map(_root, root.op.inputs):
                    if id(factor.op) not in waiting and not _constant(factor):
                        others[id(root)] = factor
    return [t for t in found.values() if t.op.type != "Fill"], list(others.values())


def _constant(tensor: Any) -> bool:
    return tensor.op.type == "Const" and elements_of(tensor) == 1


def _root(tensor: Any) -> Any:
    """The tensor whose memory this one shares, also if it only passes a loop."""
    op, place = tensor.op, tensor.value_index
    if op.type in _VIEWS:
        return _root(op.inputs[0])
    if op.type == "Mul" and _constant(op.inputs[0]):
        # TensorFlow drops a multiplication by 1.
        one = tf.get_static_value(op.inputs[0]).item() == 1
        return _root(op.inputs[1]) if one else tensor
    if op.type in _LOOPS:
        body = _bodies(op, op.graph)[0]
        if _root(body.outputs[place]) is body.inputs[place]:
            return _root(op.inputs[place])
    return tensor


def elements_of(tensor: Any) -> int:
    """Number of elements, 1 for a scalar; 0 if a dimension is open."""
    return tensor.shape.num_elements() or 0


def bytes_of(*tensors: Any) -> int:
    """Bytes of tensors together; a text counts 16, its header."""
    own = {tf.string: 16, tf.variant: 0, tf.resource: 0}
    return sum(elements_of(t) * own.get(t.dtype, int(t.dtype.size)) for t in tensors)
