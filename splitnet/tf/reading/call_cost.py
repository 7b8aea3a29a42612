"""Costs of calls: FLOPs, bytes, and what is kept until the backward pass.

A call costs what its trace says (`traced.py`), also a model that is kept as one call.
"""

import functools
import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from types import FunctionType
from typing import Any

import keras

from splitnet.tf.internals import keras_api
from splitnet.tf.reading.rebuild import without
from splitnet.tf.reading.traced import Size, Work, trace

_LOG = logging.getLogger("splitnet")
UNKNOWN_EXTENT = 128
"""Stands for a dimension other than the batch that is open (None)."""
_LOOKUPS = keras.layers.StringLookup | keras.layers.IntegerLookup
_CPU_ONLY = frozenset(
    {"StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "HashedCrossing"}
    | {"Eig", "CTCDecode"}
)
"""Layers and operations whose TensorFlow kernels exist for the CPU only."""


def size_of(tensor: Any, batch: int) -> Size:
    """Fill in the open dimensions: the first with `batch`, others with a stand-in."""
    shape = tuple(
        (UNKNOWN_EXTENT if axis else batch) if extent is None else int(extent)
        for axis, extent in enumerate(tensor.shape)
    )
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    node = keras_api.producer(tensor)
    lookup = node is not None and isinstance(node.operation, _LOOKUPS)
    if lookup and node.operation.output_mode in ("one_hot", "multi_hot", "count"):
        dtype = "int64"  # Keras declares float32
    return Size(shape, dtype)


def keras_class(operation: Any) -> str:
    """The Keras class whose `call` it runs; "" if somebody else wrote that `call`."""
    lineage = type(operation).__mro__
    owner = next((cls for cls in lineage if "call" in vars(cls)), object)
    if not keras_api.from_keras(owner):
        return ""
    return next(cls.__name__ for cls in lineage if keras_api.from_keras(cls))


def cost_of(node: Any, batch: int, *, training: bool = True) -> Work:
    """The cost of one call of a built layer, raw operation or model; nothing runs.

    `node` is a Keras node or an `InnerNode`; its variables need no values.
    """
    if node.is_input:
        return Work()
    operation = node.operation
    inputs = tuple(size_of(tensor, batch) for tensor in node.input_tensors)
    outputs = tuple(size_of(tensor, batch) for tensor in node.outputs)
    own = getattr(operation, "variables", ())
    sizes = (
        *inputs,
        *outputs,
        *(Size(tuple(v.shape), str(v.dtype)) for v in own),
    )
    key = _key(node, sizes, training)
    if key is None:
        work = _trace(node, inputs, outputs, training)
    else:  # equal calls of Keras' own layers are traced once
        scaled = _SCALED.setdefault(key, Scaled())
        work = scaled.cost(sizes, lambda: _trace(node, inputs, outputs, training))
    # A matrix product more for the gradient of each factor; other work once again.
    # Inside a layer of layers, a product's input comes from another layer.
    inside = keras_api.sublayers(operation) or [operation]
    trained = bool(getattr(operation, "trainable_weights", None))
    factors = sum(size.differentiable for size in inputs) + trained
    factors += trained and len(inside) > 1
    strings = any(size.dtype == "string" for size in (*inputs, *outputs))
    return replace(
        work,
        backward_flops=min(factors, 2) * work.matrix_flops
        + bool(factors) * work.other_flops,
        cpu_only=strings or any(keras_class(one) in _CPU_ONLY for one in inside),
    )


# Traces ----------------------------------------------------------------------------

_SUMS = ("matrix_flops", "other_flops", "inner_bytes", "workspace_bytes")
_SUMS += ("early_bytes", "moved_bytes")
_CHECKS = 2


class Scaled:
    """Costs of calls that differ in sizes alone, from the traces of a few of them.

    Most costs are sums over tensors of so much per element. So a call whose numbers of
    elements are a linear combination of those of traced calls costs the same
    combination. That is checked against two more traces before it is used, and sums are
    exact.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Size, ...], Work] = {}
        self._like: Work | None = None  # the first that was traced
        # Sizes and sums in echelon form, each with the place of its leading 1.
        self._rows: list[tuple[int, list[Fraction]]] = []
        self._right = 0.0  # checks that a trace confirmed; negative: not linear

    def cost(self, sizes: tuple[Size, ...], trace: Callable[[], Work]) -> Work:
        """The cost of a call whose tensors have these sizes; traced if need be."""
        if sizes in self._known:
            return self._known[sizes]
        counts = [1, *(size.elements for size in sizes)]
        rest = self._reduced([*counts, *[0] * len(_SUMS)])
        combined = not any(rest[: len(counts)])
        guess = self._guess([-value for value in rest[len(counts) :]])
        if combined and guess and self._right >= _CHECKS:
            self._known[sizes] = guess
            return guess
        work = self._known[sizes] = trace()
        like = self._like = self._like or work
        if combined:
            self._right += 1 if guess == work else -math.inf
        elif replace(work, **_sums(like)) == like:
            self._right = min(self._right, 0.0)
            row = self._reduced([*counts, *_sums(work).values()])
            place = next(i for i, value in enumerate(row) if value)
            self._rows.append((place, [value / row[place] for value in row]))
        else:
            self._right = -math.inf
        return work

    def _guess(self, sums: Sequence[Fraction]) -> Work | None:
        """The cost with these sums; None if no call can have them."""
        if self._like is None:
            return None
        made = {
            name: type(known)(value)
            for (name, known), value in zip(_sums(self._like).items(), sums)
        }
        exact = all(value == made[name] >= 0 for name, value in zip(_SUMS, sums))
        return replace(self._like, **made) if exact else None

    def _reduced(self, row: Sequence[float]) -> list[Fraction]:
        rest = list(map(Fraction, row))
        for place, known in self._rows:
            if factor := rest[place]:
                rest = [a - factor * b for a, b in zip(rest, known)]
        return rest


def _sums(work: Work) -> dict[str, Any]:
    return {name: getattr(work, name) for name in _SUMS}


_SCALED: dict[str, Scaled] = {}


def _key(node: Any, sizes: Sequence[Size], training: bool) -> str | None:
    """What the cost depends on besides sizes.

    None if that cannot be written down: code of somebody else's, in a layer or as its
    activation, or a configuration with functions or arrays.
    """
    operation = node.operation
    for layer in keras_api.sublayers(operation) or [operation]:
        codes = [value for value in vars(layer).values() if callable(value)]
        kinds = [c if isinstance(c, FunctionType) else type(c) for c in codes]
        if not keras_class(layer) or not all(map(keras_api.from_keras, kinds)):
            return None

    def shape(value: Any) -> Any:
        if isinstance(value, keras.KerasTensor):
            return "tensor"
        return tuple(value.shape) if hasattr(value, "shape") else value

    arguments = (node.arguments.args, node.arguments.kwargs)
    ignored = ("name", "seed", "build_config", "shared_object_id")
    try:
        config = {k: v for k, v in vars(operation).items() if not k.startswith("_")}
        if isinstance(operation, keras.layers.Layer):
            config = operation.get_config()
        what = (
            without(config, ignored),
            [v.trainable for v in getattr(operation, "variables", ())],
            repr(keras.tree.map_structure(shape, arguments)),
            [(size.dtype, [n == 1 for n in size.shape]) for size in sizes],
            training,
        )
        return f"{type(operation).__qualname__} {json.dumps(what, sort_keys=True)}"
    except Exception:  # the get_config of a layer inside may raise anything
        return None


def _trace(
    node: Any, inputs: Sequence[Size], outputs: Sequence[Size], training: bool
) -> Work:
    """Trace a call; if that fails, a guess from its weights, which is logged."""
    operation = node.operation

    def call(*tensors: Any) -> Any:
        given = {id(old): new for old, new in zip(node.input_tensors, tensors)}
        args, kwargs = node.arguments.fill_in(given)
        return keras_api.operation_fn(operation, training=training)(*args, **kwargs)

    recurrent = [x for x in keras_api.sublayers(operation) if hasattr(x, "use_cudnn")]
    choices = [layer.use_cudnn for layer in recurrent]
    try:
        for layer in recurrent:  # a kernel of cuDNN hides the loop
            layer.use_cudnn = False
        variables = [
            *getattr(operation, "variables", ()),
            *getattr(operation, "metrics_variables", ()),
        ]
        return trace(call, inputs, variables)
    except Exception as error:  # somebody else's code may raise anything
        _tell(operation.name, type(operation).__name__, type(error).__name__)
        parameters = sum(math.prod(v.shape) for v in getattr(operation, "weights", ()))
        positions = math.prod(outputs[0].shape[:-1])
        return Work(2.0 * parameters * positions, saves_inputs=(*range(len(inputs)),))
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


def kept_tensors(
    calls: Sequence[tuple[Any, Work]], batch: int
) -> dict[int, tuple[int, int]]:
    """The tensors that calls keep, by id: the number of the call that pays, and bytes.

    Several calls may keep one tensor. Its maker pays if its own backward pass reads it,
    and else the first that does. Views have their input's memory.
    """
    memory: dict[int, Any] = {}  # the tensor whose memory a view shares
    for node, work in calls:
        if work.views and node.input_tensors:
            first = node.input_tensors[0]
            whole = memory.get(id(first), first)
            memory |= {id(tensor): whole for tensor in node.outputs}
    kept: dict[int, tuple[int, int]] = {}
    for saves in ("saves_outputs", "saves_inputs"):
        for number, (node, work) in enumerate(calls):
            mine = node.outputs if saves == "saves_outputs" else node.input_tensors
            for place in getattr(work, saves):
                tensor = memory.get(id(mine[place]), mine[place])
                size = size_of(tensor, batch).bytes
                kept.setdefault(id(tensor), (number, size))
    return kept
