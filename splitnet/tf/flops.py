"""Say what a call costs before anything runs: FLOPs, bytes, memory until backward.

`cost_of` answers for one call: a formula if its class is Keras' own, the sum over its
calls if it is a model, and otherwise one abstract trace by TensorFlow. `settle`
looks at all calls of a model together and corrects what one call cannot know: a tensor
that two calls keep is kept once, and where nothing upstream is trained no gradient
flows.

    conv -> batch norm -> relu -> conv        o  kept: batch norm and conv read their
         o             .       o                 input again, relu its output
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from splitnet.tf.costs import dense
from splitnet.tf.costs.layers import CPU_ONLY, FORMULAS
from splitnet.tf.costs.pointwise import OPERATIONS, VIEWS, pointwise
from splitnet.tf.costs.value import (
    UNKNOWN_EXTENT,
    CallCost,
    Case,
    Work,
    finish,
    size_of,
    weight_sizes,
)

__all__ = ["UNKNOWN_EXTENT", "CallCost", "cost_of", "settle"]

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
) -> CallCost:
    """Estimate one call's FLOPs and bytes; nothing runs, nothing is allocated.

    Args:
        operation: a built Keras layer (its variables need no values), a raw Keras
            operation, or a functional or Sequential model.
        inputs: the call's tensors in order, flat; anything with `shape` and `dtype`.
        outputs: likewise.
        batch: what stands for None in the first axis. None elsewhere is counted as
            `UNKNOWN_EXTENT`, and noted.
        kwargs: Python arguments of the call, handed to a traced call.

    Returns:
        The cost for the whole batch; `note` says what was guessed.
    """
    case = Case(
        operation,
        tuple(size_of(tensor, batch) for tensor in inputs),
        tuple(size_of(tensor, batch) for tensor in outputs),
        batch,
        dict(kwargs or {}),
    )
    if isinstance(operation, keras.Sequential | keras.Model) and _graph_of(operation):
        return _nested(case, _graph_of(operation))
    return finish(case, _work(case))


def _work(case: Case) -> Work:
    name = _keras_class(case.operation)
    if isinstance(case.operation, keras.layers.Layer):
        formula: Callable[[Case], Work | None] | None = FORMULAS.get(name)
        found = formula(case) if formula else None
    else:
        found = _raw(case, name)
    if found is None:
        found = _traced(case)
    return replace(found, cpu_only=True) if name in CPU_ONLY else found


def _keras_class(operation: Any) -> str:
    """The Keras class whose `call` it runs; "" if somebody else wrote that `call`."""
    owner = next(cls for cls in type(operation).__mro__ if "call" in vars(cls))
    if owner.__module__.split(".")[0] != "keras":
        return ""
    own = [c for c in type(operation).__mro__ if c.__module__.split(".")[0] == "keras"]
    return own[0].__name__


def _raw(case: Case, name: str) -> Work | None:
    if name in VIEWS:
        return Work(views=True)
    if name in _PRODUCTS:
        return _PRODUCTS[name](case)
    if name in OPERATIONS:
        return pointwise(case, OPERATIONS[name])
    return None


def _traced(case: Case) -> Work:
    """Trace the call; if it cannot be traced so, a guess that says so."""
    from splitnet.tf.costs.traced import trace

    operation, kwargs = case.operation, dict(case.kwargs)
    name = type(operation).__name__
    if "training" in inspect.signature(operation.call).parameters:
        kwargs.setdefault("training", True)
    try:
        found = trace(
            lambda *tensors: operation(*tensors, **kwargs),
            case.inputs,
            getattr(operation, "variables", ()),
        )
    except Exception as error:  # somebody else's code: it may raise anything
        parameters = sum(s.elements for s in weight_sizes(operation))
        last = case.output.shape[-1] if case.output.shape else 1
        positions = case.output.elements / max(last, 1)
        return Work(
            matrix_flops=2.0 * parameters * positions,
            saves_inputs=tuple(range(len(case.inputs))),
            note=f"{name}: guessed from its weights, since tracing raised "
            f"{type(error).__name__}",
        )
    return found.work(f"{name}: counted by tracing it")


def _graph_of(model: Any) -> Any:
    """The function behind a functional or built Sequential model, else None."""
    if isinstance(model, keras.Sequential):
        return getattr(model, "_functional", None)
    return model if hasattr(model, "_run_through_graph") else None


def _nested(case: Case, graph: Any) -> CallCost:
    """Sum over the calls inside, at the sizes of this call."""
    calls: list[tuple[CallCost, list[Any], list[Any]]] = []

    def record(operation: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            results = operation.compute_output_spec(*args, **kwargs)
            given = _tensors((args, kwargs))
            made = _tensors(results)
            calls.append((cost_of(operation, given, made, case.batch), given, made))
            return results

        return run

    given = [keras.KerasTensor(s.shape, s.dtype) for s in case.inputs]
    packed = keras.tree.pack_sequence_as(graph._inputs_struct, given)
    made = _tensors(graph._run_through_graph(packed, operation_fn=record))
    through = settle(calls, case.batch, differentiable=given)
    alone = settle(calls, case.batch)
    kept_inputs, kept_outputs = _kept(calls, given), _kept(calls, made)
    outside = sum(
        size.bytes
        for sizes, kept in ((case.inputs, kept_inputs), (case.outputs, kept_outputs))
        for index, size in enumerate(sizes)
        if index in kept
    )
    kept = sum(cost.activation_bytes for cost in through)
    backward = sum(cost.backward_flops for cost in through)
    notes = dict.fromkeys(cost.note for cost in through if cost.note)
    return CallCost(
        forward_flops=sum(cost.forward_flops for cost in through),
        backward_flops=backward,
        moved_bytes=sum(cost.moved_bytes for cost in through),
        activation_bytes=kept,
        workspace_bytes=max((cost.workspace_bytes for cost in through), default=0),
        cpu_only=any(cost.cpu_only for cost in through),
        matrix_flops=sum(cost.matrix_flops for cost in through),
        input_gradient_flops=backward - sum(cost.backward_flops for cost in alone),
        inner_bytes=max(kept - outside, 0),
        saves_inputs=kept_inputs,
        saves_outputs=kept_outputs,
        trainable=any(cost.trainable for cost in through),
        note="; ".join(notes),
    )


def _tensors(tree: Any) -> list[Any]:
    return [t for t in keras.tree.flatten(tree) if isinstance(t, keras.KerasTensor)]


def _kept(
    calls: Sequence[tuple[CallCost, Sequence[Any], Sequence[Any]]],
    tensors: Sequence[Any],
) -> tuple[int, ...]:
    """Which of these tensors some call keeps."""
    root = _roots(calls)
    kept = {
        root.get(id(tensor), id(tensor))
        for cost, inputs, outputs in calls
        for tensor in _saved(cost, inputs, outputs)
    }
    return tuple(i for i, t in enumerate(tensors) if root.get(id(t), id(t)) in kept)


def _saved(cost: CallCost, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    return [inputs[i] for i in cost.saves_inputs] + [
        outputs[i] for i in cost.saves_outputs
    ]


def _roots(
    calls: Sequence[tuple[CallCost, Sequence[Any], Sequence[Any]]],
) -> dict[int, int]:
    """For each output that is a view, the tensor whose memory it shares."""
    root: dict[int, int] = {}
    for cost, inputs, outputs in calls:
        if cost.views and inputs:
            for tensor in outputs:
                root[id(tensor)] = root.get(id(inputs[0]), id(inputs[0]))
    return root


def settle(
    calls: Sequence[tuple[CallCost, Sequence[Any], Sequence[Any]]],
    batch: int,
    *,
    differentiable: Sequence[Any] = (),
) -> list[CallCost]:
    """Correct the costs of calls by what only all of them together show.

    A kept tensor is charged once, to the call that made it (or to the first that
    keeps it, if none of these calls made it). A call upstream of which nothing is
    trained has no gradient to compute for its inputs; one that is not trained either
    keeps nothing.

    Args:
        calls: in an order in which they may run: cost, inputs, outputs. Tensors are
            the same if they are the same object.
        batch: as given to `cost_of`.
        differentiable: tensors from outside that need a gradient.

    Returns:
        One cost per call, in order, with `activation_bytes`, `backward_flops` and
        `workspace_bytes` corrected.
    """
    root = _roots(calls)
    maker: dict[int, int] = {}
    for index, (cost, _, outputs) in enumerate(calls):
        if not cost.views:
            for tensor in outputs:
                maker.setdefault(id(tensor), index)
    active = {id(tensor) for tensor in differentiable}
    charged: set[int] = set()
    kept = [0] * len(calls)
    settled: list[CallCost] = []
    for index, (cost, inputs, outputs) in enumerate(calls):
        flows = any(id(tensor) in active for tensor in inputs)
        if flows or cost.trainable:
            active.update(id(t) for t in outputs if size_of(t, batch).differentiable)
            kept[index] += cost.inner_bytes
            for tensor in _saved(cost, inputs, outputs):
                key = root.get(id(tensor), id(tensor))
                if key not in charged:
                    charged.add(key)
                    kept[maker.get(key, index)] += size_of(tensor, batch).bytes
        settled.append(_without_gradient(cost, flows))
    return [replace(cost, activation_bytes=count) for cost, count in zip(settled, kept)]


def _without_gradient(cost: CallCost, flows: bool) -> CallCost:
    if flows:
        return cost
    if not cost.trainable:
        return replace(cost, backward_flops=0.0, input_gradient_flops=0.0)
    spared = cost.backward_flops - cost.input_gradient_flops
    return replace(cost, backward_flops=spared, input_gradient_flops=0.0)
