"""Say what a call costs before anything runs: FLOPs, bytes, memory until backward.

`cost_of` answers for one call: a formula if its class is Keras' own, the sum over its
calls if it is a model, and otherwise one abstract trace by TensorFlow. `settle`
looks at all calls of a model together and corrects what one call cannot know: a tensor
that two calls keep is kept once, and where nothing upstream is trained no gradient
flows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from splitnet.tf.costs import dense
from splitnet.tf.costs.layers import CPU_ONLY, FORMULAS
from splitnet.tf.costs.pointwise import OPERATIONS, VIEWS, pointwise
from splitnet.tf.costs.shared import Made, kept_among, peak_bytes, settle
from splitnet.tf.costs.unknown import unknown
from splitnet.tf.costs.value import (
    UNKNOWN_EXTENT,
    CallCost,
    Case,
    Size,
    Work,
    finish,
    keras_class,
    notes_of,
    size_of,
    total_bytes,
    weight_sizes,
)
from splitnet.tf.internals import keras_api

__all__ = [
    "UNKNOWN_EXTENT",
    "CallCost",
    "calls_inside",
    "cost_of",
    "costs_of",
    "peak_bytes",
    "settle",
]

_PRODUCTS: dict[str, Callable[[Case], Work]] = {
    "Matmul": dense.matmul,
    "Dot": dense.matmul,
    "Inner": dense.matmul,
    "Vdot": dense.matmul,
    "Einsum": dense.einsum,
}


def cost_of(
    operation: Any,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    batch: int,
    kwargs: Mapping[str, Any] | None = None,
    *,
    args: tuple[Any, ...] | None = None,
) -> CallCost:
    """Estimate one call's FLOPs and bytes; nothing runs, nothing is allocated.

    Args:
        operation: a built Keras layer (its variables need no values), a raw Keras
            operation, or a functional or Sequential model.
        inputs: the call's tensors in order, flat; anything with `shape` and `dtype`.
        outputs: likewise.
        batch: what stands for None in the first axis. None elsewhere is counted as
            `UNKNOWN_EXTENT`, and noted.
        kwargs: keyword arguments of the call, tensors among them or not; only a call
            that must be traced needs them.
        args: positional arguments likewise; if not given, the tensors themselves.

    Returns:
        The cost for the whole batch; `note` says what was guessed.
    """
    given = tuple(size_of(tensor, batch) for tensor in inputs)
    made = tuple(_like(size_of(t, batch), t, given) for t in outputs)
    case = Case(operation, given, made, batch, args, dict(kwargs or {}))
    if _graph_of(operation) is not None:
        return _nested(case)
    return finish(case, _work(case))


def _like(size: Size, tensor: Any, inputs: Sequence[Size]) -> Size:
    """Give an output's open dimensions the extents of the input that it resembles."""
    for other in inputs[:1] if size.guessed else ():
        if len(other.shape) == len(size.shape) and not other.guessed:
            extents = zip(size.shape, tensor.shape, other.shape)
            filled = tuple(
                of_input if axis and extent is None else known
                for axis, (known, extent, of_input) in enumerate(extents)
            )
            return Size(filled, size.dtype)
    return size


def _work(case: Case) -> Work:
    name = keras_class(case.operation)
    if isinstance(case.operation, keras.layers.Layer):
        formula: Callable[[Case], Work | None] | None = FORMULAS.get(name)
        found = formula(case) if formula else None
    else:
        found = _raw(case, name)
    if found is None:
        found = unknown(case)
    return replace(found, cpu_only=True) if name in CPU_ONLY else found


def _raw(case: Case, name: str) -> Work | None:
    if name in VIEWS:
        return Work(views=True)
    if name in _PRODUCTS:
        return _PRODUCTS[name](case)
    if name in OPERATIONS:
        return pointwise(case, OPERATIONS[name])
    return None


def _graph_of(model: Any) -> Any:
    """The function behind a functional or built Sequential model, else None."""
    if isinstance(model, keras.Sequential):
        return getattr(model, "_functional", None)
    if isinstance(model, keras.Model) and hasattr(model, "_run_through_graph"):
        return model if keras_class(model) == "Functional" else None
    return None


def calls_inside(
    model: Any, batch: int, inputs: Sequence[Any] | None = None
) -> tuple[list[Made], list[Any], list[Any]]:
    """Cost every call of a functional or Sequential model, not settled yet.

    Args:
        model: built.
        batch: what stands for None in the first axis.
        inputs: flat, in the model's order; if their shapes are not the model's own,
            shapes are worked out anew. By default the model's own.

    Returns:
        Cost, inputs and outputs of each call in running order; the model's inputs;
        its outputs.
    """
    graph = _graph_of(model)
    own = list(graph.inputs)
    if inputs is not None and _open_or_other(own, inputs, batch):
        return _worked_out(graph, inputs, batch)
    return _made(keras_api.nodes_of(graph), batch), own, list(graph.outputs)


def costs_of(nodes: Sequence[Any], batch: int) -> list[CallCost]:
    """Cost all nodes of a model together: `cost_of` each, then `settle`.

    Args:
        nodes: Keras nodes in an order in which they may run; inputs may be among them
            and cost nothing.
        batch: what stands for None in the first axis.
    """
    return settle(_made(nodes, batch), batch)


def _made(nodes: Sequence[Any], batch: int) -> list[Made]:
    return [
        (_cost_of_node(node, batch), node.input_tensors, node.outputs) for node in nodes
    ]


def _cost_of_node(node: Any, batch: int) -> CallCost:
    if node.is_input:
        return CallCost()
    given, arguments = node.input_tensors, node.arguments
    return cost_of(
        node.operation,
        given,
        node.outputs,
        batch,
        arguments.kwargs,
        args=arguments.args,
    )


def _open_or_other(own: Sequence[Any], inputs: Sequence[Any], batch: int) -> bool:
    sizes = [size_of(tensor, batch) for tensor in own]
    return any(size.guessed for size in sizes) or [s.shape for s in sizes] != [
        size_of(tensor, batch).shape for tensor in inputs
    ]


def _worked_out(
    graph: Any, inputs: Sequence[Any], batch: int
) -> tuple[list[Made], list[Any], list[Any]]:
    calls: list[Made] = []

    def record(operation: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            results = operation.compute_output_spec(*args, **kwargs)
            given, made = _tensors((args, kwargs)), _tensors(results)
            cost = cost_of(operation, given, made, batch, kwargs, args=args)
            calls.append((cost, given, made))
            return results

        return run

    given = [keras.KerasTensor(size_of(t, batch).shape, t.dtype) for t in inputs]
    packed = keras.tree.pack_sequence_as(keras_api.input_structure(graph), given)
    outputs = keras_api.run_through_graph(graph, packed, record)
    return calls, given, _tensors(outputs)


def _nested(case: Case) -> CallCost:
    """Sum over the calls inside, at the sizes of this call."""
    count = len(_graph_of(case.operation).inputs)  # a mask may come after them
    given = [keras.KerasTensor(s.shape, s.dtype) for s in case.inputs[:count]]
    calls, given, made = calls_inside(case.operation, case.batch, given)
    return _summed(case, calls, given, made)


def _summed(
    case: Case, calls: list[Made], given: list[Any], made: list[Any]
) -> CallCost:
    through = settle(calls, case.batch, differentiable=given)
    alone = settle(calls, case.batch)
    backward = sum(cost.backward_flops for cost in through)
    kept_inputs, kept_outputs = kept_among(calls, given), kept_among(calls, made)
    outside = sum(case.inputs[i].bytes for i in kept_inputs)
    outside += sum(case.outputs[i].bytes for i in kept_outputs)
    kept = sum(cost.activation_bytes for cost in through)
    peak = peak_bytes(
        calls,
        case.batch,
        differentiable=given,
        gradients=False,
        outside=(*given, *made),
    )
    return CallCost(
        forward_flops=sum(cost.forward_flops for cost in through),
        backward_flops=backward,
        moved_bytes=sum(cost.moved_bytes for cost in through),
        activation_bytes=kept,
        workspace_bytes=max(peak - max(kept - outside, 0), 0),
        cpu_only=any(cost.cpu_only for cost in through),
        matrix_flops=sum(cost.matrix_flops for cost in through),
        input_gradient_flops=backward - sum(cost.backward_flops for cost in alone),
        inner_bytes=max(kept - outside, 0),
        saves_inputs=kept_inputs,
        saves_outputs=kept_outputs,
        trained_bytes=total_bytes(weight_sizes(case.operation, trainable_only=True)),
        note=notes_of(case, *(cost.note for cost in through)),
    )


def _tensors(tree: Any) -> list[Any]:
    return [t for t in keras.tree.flatten(tree) if isinstance(t, keras.KerasTensor)]
