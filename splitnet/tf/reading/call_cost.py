"""Costs of calls: FLOPs, bytes, and what is kept until the backward pass.

A call costs what its formula says, or its trace if it has none; a model inside a model
costs the sum of its calls.
"""

import functools
import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from splitnet.core.costs import efficiency_of, kernels_of
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.flatten import flow_of, inside
from splitnet.tf.reading.formulas import (
    Case,
    formula,
    keras_class,
    size_of,
    weight_bytes,
)
from splitnet.tf.reading.traced import Size, Work, trace

__all__ = ["CallCost", "cost_of", "kept_tensors", "traced"]

_LOG = logging.getLogger("splitnet")
_CPU_ONLY = frozenset(
    {"StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "HashedCrossing"}
    | {"Eig", "CTCDecode"}
)
"""Layers and operations whose TensorFlow kernels exist for the CPU only."""


@dataclass(frozen=True, slots=True)
class CallCost:
    """What a call costs for one batch; the words are those of `Work` and `graph.Call`.

    `matrix_flops` is the share of `forward_flops` in matrix products and convolutions,
    twice the multiply-adds that papers print.
    """

    work: Work
    forward_flops: float
    backward_flops: float
    moved_bytes: float
    cpu_only: bool


def cost_of(node: Any, batch: int) -> CallCost:
    """The cost of one call of a built layer, raw operation or model; nothing runs.

    Args:
        node: a Keras node, or an `InnerNode`; variables need no values.
        batch: what stands for None in the first axis of tensors.
    """
    inputs = tuple(size_of(tensor, batch) for tensor in node.input_tensors)
    outputs = tuple(size_of(tensor, batch) for tensor in node.outputs)
    operation = node.operation
    if (model := inside(operation)) is not None:
        return _of_model(model, inputs, batch)
    case = Case(operation, inputs, outputs)
    work = formula(case) or traced(node, case)
    strings = inputs and any(size.dtype == "string" for size in (*inputs, *outputs))
    return CallCost(
        work,
        work.matrix_flops + work.other_flops,
        _backward_flops(case, work),
        _moved_bytes(case, work) if work.moved_bytes is None else work.moved_bytes,
        cpu_only=bool(strings) or keras_class(operation) in _CPU_ONLY,
    )


def _backward_flops(case: Case, work: Work) -> float:
    """A product for the gradient of each factor of a product; other work once again."""
    factors = sum(size.differentiable for size in case.inputs)
    factors += bool(getattr(case.operation, "trainable_weights", None))
    return min(factors, 2) * work.matrix_flops + bool(factors) * work.other_flops


def _moved_bytes(case: Case, work: Work) -> float:
    sizes = () if work.views else (*case.inputs, *case.outputs)
    outside = sum(size.bytes for size in sizes) + weight_bytes(case.operation)
    return float(outside + 2 * (work.inner_bytes + work.workspace_bytes))


# Calls that are traced -----------------------------------------------------------


def traced(node: Any, case: Case) -> Work:
    """The trace of a call; Keras' own layers of one configuration are traced once."""
    key = _key(node, case) if keras_class(case.operation) else None
    if key is None:
        return _trace(node, case)
    if key not in _TRACES:
        _TRACES[key] = _trace(node, case)
    return _TRACES[key]


_TRACES: dict[str, Work] = {}


def _key(node: Any, case: Case) -> str | None:
    """What the cost of a call depends on; None if that cannot be written down."""
    operation = case.operation
    if isinstance(operation, keras.layers.Layer):
        try:
            config = operation.get_config()
        except Exception:  # that of a layer inside may raise anything
            return None
    else:
        config = {k: v for k, v in vars(operation).items() if not k.startswith("_")}
    variables = [
        (tuple(v.shape), str(v.dtype), v.trainable)
        for v in getattr(operation, "variables", ())
    ]
    arguments = keras.tree.map_structure(
        _shape_of, (node.arguments.args, node.arguments.kwargs)
    )
    what = (_without_names(config), variables, repr(arguments))
    try:
        text = json.dumps(what, sort_keys=True)
    except TypeError:  # a function, or an array
        return None
    return f"{type(operation).__qualname__} {text} {case.inputs}"


def _shape_of(value: Any) -> Any:
    return tuple(value.shape) if hasattr(value, "shape") else value


def _without_names(config: Any) -> Any:
    if isinstance(config, dict):
        ignored = ("name", "seed", "build_config", "shared_object_id")
        return {k: _without_names(v) for k, v in config.items() if k not in ignored}
    if isinstance(config, list | tuple):
        return [_without_names(item) for item in config]
    return config


def _trace(node: Any, case: Case) -> Work:
    """Trace a call; if that fails, a guess from its weights, which is logged."""
    operation = case.operation

    def call(*tensors: Any) -> Any:
        given = {id(old): new for old, new in zip(node.input_tensors, tensors)}
        args, kwargs = node.arguments.fill_in(given)
        return keras_api.operation_fn(operation, training=True)(*args, **kwargs)

    recurrent = [x for x in keras_api.sublayers(operation) if hasattr(x, "use_cudnn")]
    choices = [layer.use_cudnn for layer in recurrent]
    try:
        for layer in recurrent:  # a kernel of cuDNN hides the loop
            layer.use_cudnn = False
        variables = [
            *getattr(operation, "variables", ()),
            *getattr(operation, "metrics_variables", ()),
        ]
        return trace(call, case.inputs, variables)
    except Exception as error:  # somebody else's code may raise anything
        _tell(operation.name, type(operation).__name__, type(error).__name__)
        parameters = sum(math.prod(v.shape) for v in getattr(operation, "weights", ()))
        positions = case.output.elements // max(1, *case.output.shape[-1:])
        return Work(
            2.0 * parameters * positions, saves_inputs=(*range(len(case.inputs)),)
        )
    finally:
        for layer, choice in zip(recurrent, choices):
            layer.use_cudnn = choice


@functools.cache
def _tell(name: str, kind: str, error: str) -> None:
    """Log a guess, once for each layer."""
    _LOG.warning(
        "the cost of %r (%s) is guessed from its weights: tracing raised %s",
        name,
        kind,
        error,
    )


# Models inside models, and what several calls keep -------------------------------


Priced = tuple[Any, CallCost]
"""A node and its cost."""


def kept_tensors(calls: Sequence[Priced], batch: int) -> dict[int, tuple[int, int]]:
    """The tensors that calls keep, by id: the number of the call that pays, and bytes.

    Several calls may keep one tensor. Its maker pays if its own backward pass reads it,
    and else the first that does. Views have their input's memory.
    """
    source = _sources(calls)
    kept: dict[int, tuple[int, int]] = {}
    for saves in ("saves_outputs", "saves_inputs"):
        for number, (node, cost) in enumerate(calls):
            mine = node.outputs if saves == "saves_outputs" else node.input_tensors
            for place in getattr(cost.work, saves):
                tensor = source.get(id(mine[place]), mine[place])
                size = size_of(tensor, batch).bytes
                kept.setdefault(id(tensor), (number, size))
    return kept


def _sources(calls: Iterable[Priced]) -> dict[int, Any]:
    """The tensor whose memory a view shares, by the view's id."""
    source: dict[int, Any] = {}
    for node, cost in calls:
        if cost.work.views and node.input_tensors:
            first = node.input_tensors[0]
            whole = source.get(id(first), first)
            source |= {id(tensor): whole for tensor in node.outputs}
    return source


def _of_model(model: Any, inputs: Sequence[Size], batch: int) -> CallCost:
    """The sum over the calls of a functional model, at the sizes of its inputs."""
    sizes = inputs[: len(model.inputs)]  # masks may follow
    given = list(model.inputs)
    if [tuple(t.shape[1:]) for t in given] != [size.shape[1:] for size in sizes]:
        given = [keras.KerasTensor(size.shape, size.dtype) for size in sizes]
    flow = flow_of(model, "expand", inputs=given)
    calls = [(node, cost_of(node, batch)) for node in flow.nodes]
    kept, source = kept_tensors(calls, batch), _sources(calls)
    ends = [
        [id(source.get(id(tensor), tensor)) for tensor in side]
        for side in (given, flow.outputs)
    ]
    saved = [tuple(i for i, key in enumerate(side) if key in kept) for side in ends]
    outside = {*ends[0], *ends[1]}
    works = [cost.work for _, cost in calls]
    return CallCost(
        Work(
            matrix_flops=sum(work.matrix_flops for work in works),
            other_flops=sum(work.other_flops for work in works),
            saves_inputs=saved[0],
            saves_outputs=saved[1],
            inner_bytes=sum(work.inner_bytes for work in works)
            + sum(size for key, (_, size) in kept.items() if key not in outside),
            workspace_bytes=_workspace(calls, kept, outside, batch),
            sequential_steps=max(
                1, sum(w.sequential_steps for w in works if w.sequential_steps > 1)
            ),
            efficiency=_efficiency(calls),
            kernels=sum(
                cost.work.kernels or kernels_of(_kind(node)) for node, cost in calls
            ),
        ),
        forward_flops=sum(cost.forward_flops for _, cost in calls),
        backward_flops=sum(cost.backward_flops for _, cost in calls),
        moved_bytes=sum(cost.moved_bytes for _, cost in calls),
        cpu_only=any(cost.cpu_only for _, cost in calls),
    )


def _kind(node: Any) -> str:
    return type(node.operation).__name__


def _efficiency(calls: Iterable[Priced]) -> str:
    """The class of kernels that most of the FLOPs in products belong to."""
    flops: Counter[str] = Counter()
    for node, cost in calls:
        name = cost.work.efficiency or efficiency_of(_kind(node))
        flops[name] += int(cost.work.matrix_flops)
    return max(flops, key=lambda name: flops[name], default="")


def _workspace(
    calls: Sequence[Priced],
    kept: dict[int, tuple[int, int]],
    outside: set[int],
    batch: int,
) -> int:
    """The most that the backward pass holds besides what was kept when it began.

    A gradient lives from its reader's backward pass to its maker's; what a call has
    kept is freed with its backward pass.
    """
    source = _sources(calls)
    freed = [cost.work.inner_bytes for _, cost in calls]
    for key, (number, size) in kept.items():
        freed[number] += 0 if key in outside else size
    pending: dict[int, int] = {}
    gone = most = 0
    for number in reversed(range(len(calls))):
        node, cost = calls[number]
        for tensor in node.input_tensors:
            whole = source.get(id(tensor), tensor)
            size = size_of(whole, batch)
            if size.differentiable and id(whole) not in outside:
                pending[id(whole)] = size.bytes
        most = max(most, sum(pending.values()) + cost.work.workspace_bytes - gone)
        gone += freed[number]
        for tensor in node.outputs:
            pending.pop(id(tensor), None)
    return most
