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

__all__ = ["UNKNOWN_EXTENT", "cost_of", "kept_tensors", "keras_class", "size_of"]

_LOG = logging.getLogger("splitnet")
UNKNOWN_EXTENT = 128
"""Stands for a dimension other than the batch that is open (None)."""
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
    dtype = tensor.dtype
    if _is_encoded_lookup(tensor):  # Keras declares float32 and returns int64
        dtype = "int64"
    return Size(shape, dtype if isinstance(dtype, str) else dtype.name)


def _is_encoded_lookup(tensor: Any) -> bool:
    """Whether a lookup layer makes this tensor, as one-hot rows or counts."""
    node = keras_api.producer(tensor)
    lookups = keras.layers.StringLookup | keras.layers.IntegerLookup
    return (
        node is not None
        and isinstance(node.operation, lookups)
        and node.operation.output_mode in ("one_hot", "multi_hot", "count")
    )


def keras_class(operation: Any) -> str:
    """The Keras class whose `call` it runs; "" if somebody else wrote that `call`."""
    lineage = type(operation).__mro__
    owner = next((cls for cls in lineage if "call" in vars(cls)), object)
    if not keras_api.from_keras(owner):
        return ""
    return next(cls.__name__ for cls in lineage if keras_api.from_keras(cls))


def _holds_code(layer: Any) -> bool:
    """Whether an attribute, such as an activation, is a function of somebody else's."""
    codes = [value for value in vars(layer).values() if callable(value)]
    kinds = [c if isinstance(c, FunctionType) else type(c) for c in codes]
    return not all(map(keras_api.from_keras, kinds))


def cost_of(node: Any, batch: int, *, training: bool = True) -> Work:
    """The cost of one call of a built layer, raw operation or model; nothing runs.

    `node` is a Keras node or an `InnerNode`; its variables need no values.
    """
    if node.is_input:
        return Work()
    inputs = tuple(size_of(tensor, batch) for tensor in node.input_tensors)
    outputs = tuple(size_of(tensor, batch) for tensor in node.outputs)
    operation = node.operation
    work = _traced(node, inputs, outputs, training)
    strings = any(size.dtype == "string" for size in (*inputs, *outputs))
    inside = keras_api.sublayers(operation) or [operation]
    return replace(
        work,
        backward_flops=_backward_flops(operation, inputs, work),
        cpu_only=strings or any(keras_class(one) in _CPU_ONLY for one in inside),
    )


def _backward_flops(operation: Any, inputs: Sequence[Size], work: Work) -> float:
    """A product for the gradient of each factor of a product; other work once again.

    Inside a layer of layers, a product's input comes from another layer.
    """
    trained = bool(getattr(operation, "trainable_weights", None))
    factors = sum(size.differentiable for size in inputs) + trained
    factors += trained and len(keras_api.sublayers(operation)) > 1
    return min(factors, 2) * work.matrix_flops + bool(factors) * work.other_flops


_BYTES = ("inner_bytes", "workspace_bytes", "early_bytes", "moved_bytes")
_SUMS = ("matrix_flops", "other_flops", *_BYTES)
_CHECKS = 2


class Scaled:
    """Costs of calls that differ in sizes alone, from the traces of a few of them.

    Most costs are sums over tensors of so much per element. So a call whose numbers of
    elements are a linear combination of those of traced calls costs the same
    combination. That is checked against two more traces before it is used, and sums are
    exact.
    """

    def __init__(self) -> None:
        # (place of the leading 1, sizes and sums) in echelon form
        self._rows: list[tuple[int, list[Fraction]]] = []
        self._known: dict[tuple[Size, ...], Work] = {}
        self._like: Work | None = None
        self._right = 0
        self._linear = True

    def cost(self, sizes: tuple[Size, ...], trace: Callable[[], Work]) -> Work:
        """The cost of a call whose tensors have these sizes; traced if need be."""
        if sizes not in self._known:
            self._known[sizes] = self._combined(sizes, trace)
        return self._known[sizes]

    def _combined(self, sizes: Sequence[Size], trace: Callable[[], Work]) -> Work:
        counts = [1, *(size.elements for size in sizes)]
        rest = self._reduced([*counts, *[0] * len(_SUMS)])
        combined = not any(rest[: len(counts)])
        guess = self._guess([-value for value in rest[len(counts) :]])
        if self._linear and combined and guess and self._right >= _CHECKS:
            return guess
        work = trace()
        self._like = self._like or work
        if self._linear and combined:
            self._right += 1
            self._linear = guess == work
        elif self._linear:
            self._right = 0
            self._linear = replace(work, **_sums(self._like)) == self._like
            self._learn(counts, work)
        return work

    def _guess(self, sums: Sequence[Fraction]) -> Work | None:
        """The cost with these sums; None if no call can have them."""
        if self._like is None or any(value < 0 for value in sums):
            return None
        kinds = [type(value) for value in _sums(self._like).values()]
        if any(kind is int and v.denominator != 1 for kind, v in zip(kinds, sums)):
            return None
        return replace(
            self._like,
            **{name: kind(v) for name, kind, v in zip(_SUMS, kinds, sums)},
        )

    def _learn(self, counts: list[int], work: Work) -> None:
        row = self._reduced([*counts, *_sums(work).values()])
        place = next(i for i, value in enumerate(row) if value)
        self._rows.append((place, [value / row[place] for value in row]))

    def _reduced(self, row: Sequence[float]) -> list[Fraction]:
        rest = list(map(Fraction, row))
        for place, known in self._rows:
            factor = rest[place]
            if factor:
                rest = [a - factor * b for a, b in zip(rest, known)]
        return rest


def _sums(work: Work) -> dict[str, float]:
    return {name: getattr(work, name) for name in _SUMS}


_SCALED: dict[str, Scaled] = {}


def _traced(
    node: Any, inputs: Sequence[Size], outputs: Sequence[Size], training: bool
) -> Work:
    """The trace of a call; equal calls of Keras' own layers are traced once."""
    operation = node.operation
    inside = keras_api.sublayers(operation) or [operation]
    known = all(map(keras_class, inside)) and not any(map(_holds_code, inside))
    own = [
        Size(tuple(v.shape), str(v.dtype)) for v in getattr(operation, "variables", ())
    ]
    sizes = (*inputs, *outputs, *own)
    kind = _kind(node, sizes, training) if known else None
    if kind is None:
        return _trace(node, inputs, outputs, training)
    scaled = _SCALED.setdefault(kind, Scaled())
    return scaled.cost(sizes, lambda: _trace(node, inputs, outputs, training))


def _kind(node: Any, sizes: Sequence[Size], training: bool) -> str | None:
    """What the cost depends on besides sizes; None if that cannot be written down."""
    operation = node.operation
    if isinstance(operation, keras.layers.Layer):
        try:
            config = operation.get_config()
        except Exception:  # that of a layer inside may raise anything
            return None
    else:
        config = {k: v for k, v in vars(operation).items() if not k.startswith("_")}
    trained = [v.trainable for v in getattr(operation, "variables", ())]
    arguments = keras.tree.map_structure(
        _shape_of, (node.arguments.args, node.arguments.kwargs)
    )
    broadcast = [(size.dtype, [n == 1 for n in size.shape]) for size in sizes]
    ignored = ("name", "seed", "build_config", "shared_object_id")
    what = (without(config, ignored), trained, repr(arguments), broadcast, training)
    try:
        text = json.dumps(what, sort_keys=True)
    except TypeError:  # a function, or an array
        return None
    return f"{type(operation).__qualname__} {text}"


def _shape_of(value: Any) -> Any:
    """A placeholder for what is symbolic, of an array its shape."""
    if isinstance(value, keras.KerasTensor):
        return "tensor"
    return tuple(value.shape) if hasattr(value, "shape") else value


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
    source = _sources(calls)
    kept: dict[int, tuple[int, int]] = {}
    for saves in ("saves_outputs", "saves_inputs"):
        for number, (node, work) in enumerate(calls):
            mine = node.outputs if saves == "saves_outputs" else node.input_tensors
            for place in getattr(work, saves):
                tensor = source.get(id(mine[place]), mine[place])
                size = size_of(tensor, batch).bytes
                kept.setdefault(id(tensor), (number, size))
    return kept


def _sources(calls: Sequence[tuple[Any, Work]]) -> dict[int, Any]:
    """The tensor whose memory a view shares, by the view's id."""
    source: dict[int, Any] = {}
    for node, work in calls:
        if work.views and node.input_tensors:
            first = node.input_tensors[0]
            whole = source.get(id(first), first)
            source |= {id(tensor): whole for tensor in node.outputs}
    return source
