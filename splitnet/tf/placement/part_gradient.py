"""The forward and the backward function of a part, cut from one graph.

TensorFlow's own gradient of a function computes the gradients of all inputs, of data
and frozen weights too, and keeps every tensor that a gradient op mentions. Here the
gradient ops are made in the graph of the body, those that nothing needs are left out,
shapes are taken in the forward function and transposes again in the backward one, so
that a part keeps what the plain model keeps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from splitnet.tf.internals import tf_api

_SHAPES = ("Shape", "ShapeN", "Size", "Rank")
_AGAIN = ("Const", "Transpose")  # TensorFlow folds transposes into products
_POOLS = ("MaxPool", "MaxPool3D")
# Stateful ops that give other values each time: random, or of Python.
_DRAWS = {"RngReadAndSkip", "seed", "token"}


def not_inlined(body: Callable[..., Any], how: str = "") -> Any:
    """A `tf.function` whose ops stay together where it is called."""
    return tf.function(
        body,
        autograph=False,
        jit_compile=True if how == "xla" else None,
        experimental_attributes={"_noinline": True},
    )


@dataclass(frozen=True, slots=True)
class PartGradient:
    """Two functions of a traced body; inputs and outputs are given by their numbers.

    `forward` takes the `arguments` of the body, and returns its outputs and what is
    kept. `backward` takes the inputs `reused`, what is kept, and the gradients of the
    outputs `flows`. It returns those of the inputs `reached`.
    """

    forward: Any
    backward: Any
    arguments: int
    reused: tuple[int, ...]
    flows: tuple[int, ...]
    reached: tuple[int, ...]


def part_gradient(
    body: Any,
    ops: Iterable[Any],
    wanted: Sequence[int],
    name: str,
    *,
    how: str = "",
    on_cpu: bool = False,
) -> PartGradient | None:
    """The functions of a body and of its gradients; None if no gradient flows.

    `body` is a concrete function, `ops` its ops as it was traced, `wanted` the numbers
    of inputs that need a gradient, in the order in which `backward` returns them; `how`
    is as in `PartFunction`. On a CPU, the gradient of a maximum pooling takes ten times
    as long if the pooling itself is not in the same function.
    """
    graph = body.graph
    outputs = [one for one in graph.outputs if one is not None]
    # What no weight leads to, such as data that is handed on, sends no gradient back.
    sources = {graph.inputs[i].op for i in wanted}
    kinds = enumerate(one.dtype for one in outputs)
    smooth = [number for number, t in kinds if t.is_floating or t.is_complex]
    flows = [n for n in smooth if sources & tf_api.ancestors([outputs[n].op])]
    # Not on the device of the call: TensorFlow would write it into the function.
    with graph.as_default(), tf.device(None), tf.name_scope("gradients"):
        ends, starts = [outputs[i] for i in flows], [graph.inputs[i] for i in wanted]
        given = [tf.compat.v1.placeholder(one.dtype, one.shape) for one in ends]
        made = zip(wanted, tf.gradients(ends, starts, given))
        found = {i: gradient for i, gradient in made if gradient is not None}
    if not found:
        return None
    back = list(found.values())
    flat = tf.nest.flatten(back, expand_composites=True)
    early = tf_api.ancestors(ops)
    both = (*_AGAIN, *_POOLS) if on_cpu else _AGAIN
    known = {one.op for one in graph.inputs} if how == "recompute" else early
    stateful = [op for op in early if op.op_def.is_stateful]
    known = known | {op for op in stateful if _DRAWS & {op.type, *op.node_def.attr}}
    late, read = _late(flat, known, {one.op for one in given}, both)
    early |= known
    captured = {inside.ref() for _, inside in graph.captures}
    numbers = {one.ref(): number for number, one in enumerate(graph.inputs)}
    reused = [one for one in read if one.ref() in numbers.keys() - captured]
    kept = [one for one in read if one.ref() not in numbers]
    arguments = [one for one in graph.inputs if one.ref() not in captured]
    inputs, ahead = [*reused, *kept, *given], [*outputs, *kept]
    return PartGradient(
        forward=_cut(graph, f"_forward_{name}", early, arguments, ahead, how),
        backward=_cut(graph, f"_backward_{name}", late, inputs, back, how),
        arguments=len(arguments),
        reused=tuple(numbers[one.ref()] for one in reused),
        flows=tuple(flows),
        reached=tuple(found),
    )


def _late(
    tensors: Sequence[Any], early: set[Any], given: set[Any], both: Sequence[str]
) -> tuple[set[Any], list[Any]]:
    """Ops of the backward function, and the tensors that it reads of the forward."""
    late: set[Any] = set()
    read: dict[Any, Any] = {}
    ahead = list(tensors)
    while ahead:
        tensor = ahead.pop()
        op = tensor.op
        if op in late or op in given:
            continue
        if op.type in _SHAPES and all(one.op in early for one in op.inputs):
            early.add(op)
        if op in early and op.type not in both:
            read[tensor.ref()] = tensor
            continue
        late.add(op)
        ahead += op.inputs
        after = (one for one in op.control_inputs if one not in early)
        ahead += [one.outputs[0] for one in after if one.outputs]
    return late, list(read.values())


def _cut(
    graph: Any, name: str, ops: set[Any], inputs: Sequence[Any], outputs: Any, how: str
) -> Any:
    """A concrete function of some ops of a graph, which keep their names."""
    captures = {inside.name: outside for outside, inside in graph.captures}
    places = {one.name: number for number, one in enumerate(inputs)}
    given = {key.removesuffix(":0") for key in (*places, *captures)}
    names = {op.name for op in ops} - given
    part = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
    read = set()  # the names of the tensors that they read
    for op in graph.get_operations():
        if op.name in names:
            node = part.node.add()
            node.CopyFrom(op.node_def)
            node.attr.pop("_class", None)  # colocation; all is on one device
            after = [f"^{one.name}" for one in op.control_inputs if one.name in names]
            node.input[:] = [*(one.name for one in op.inputs), *after]
            read |= {one.name for one in op.inputs}
    flat = tf.nest.flatten(outputs, expand_composites=True)

    def body(*given: Any) -> list[Any]:
        values = {key: given[i] for key, i in places.items()}
        here = tf.compat.v1.get_default_graph()
        tf_api.add_functions(graph, here)
        for key in captures.keys() & (read | {one.name for one in flat}):
            values[key] = here.capture(captures[key])
        fetched = [one.name for one in flat if one.name not in values]
        known = {key: values[key] for key in values.keys() & read}
        found = tf.graph_util.import_graph_def(part, known, fetched, name="")
        values |= dict(zip(fetched, found))
        made = [values[one.name] for one in flat]
        for value, one in zip(made, flat):
            value.set_shape(one.shape)
        return tf.nest.pack_sequence_as(outputs, made, expand_composites=True)

    body.__name__ = name
    with tf.init_scope():  # without the devices of the step that is being made
        return not_inlined(body, how).get_concrete_function(
            *[tf.TensorSpec(one.shape, one.dtype) for one in inputs]
        )
