"""Costs of calls: what their traces say (`traced.py`), and those of similar calls."""

import functools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from types import FunctionType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.tf.internals import keras_api
from splitnet.tf.reading.rebuild import forget_traces, without
from splitnet.tf.reading.traced import Work, elements_of, trace

UNKNOWN_EXTENT = 128
"""Stands for a dimension other than the batch that is open (None)."""
_LOOKUPS = keras.layers.StringLookup | keras.layers.IntegerLookup
_CPU_ONLY = ("StringLookup", "IntegerLookup", "TextVectorization", "Hashing")
_CPU_ONLY += ("HashedCrossing", "Eig", "CTCDecode")
"""Layers and operations whose TensorFlow kernels exist for the CPU only."""
_IGNORED = ("name", "seed", "build_config", "shared_object_id", "keras_tensor")
_IGNORED += ("trainable", "dtype", "registered_name", "module", "batch_shape", "sparse")
_OPAQUE = "a value of type "
_READ = re.compile(r'\["([^"]+)"(, \d+, \d+\])')  # a layer, its call, its output


def size_of(tensor: Any, batch: int) -> tf.TensorSpec:
    """Fill in the open dimensions: the first with `batch`, others with a stand-in."""
    node, dtype = keras_api.producer(tensor), tensor.dtype
    lookup = node is not None and isinstance(node.operation, _LOOKUPS)
    if lookup and node.operation.output_mode in ("one_hot", "multi_hot", "count"):
        dtype = "int64"  # Keras declares float32
    return _spec(tuple(tensor.shape), keras.backend.standardize_dtype(dtype), batch)


@functools.lru_cache(4096)
def _spec(shape: tuple[int | None, ...], dtype: str, batch: int) -> tf.TensorSpec:
    known = [
        (UNKNOWN_EXTENT if axis else batch) if extent is None else int(extent)
        for axis, extent in enumerate(shape)
    ]
    return tf.TensorSpec(known, dtype)


def settings_of(operation: Any) -> str:
    """A layer's configuration, or an operation's attributes, as JSON; "" if unknown.

    Names, seeds and types are left out: models that are built twice differ in them.
    """
    try:
        if isinstance(operation, keras.layers.Layer):
            config = operation.get_config()
        else:
            config = {k: v for k, v in vars(operation).items() if k[0] != "_"}
        text = json.dumps(
            without(config, _IGNORED),
            sort_keys=True,
            default=lambda value: _OPAQUE + type(value).__name__,
        )
        known: dict[str, int] = {}  # layers of a model inside, whose names are counted
        return _READ.sub(lambda m: f"[{known.setdefault(m[1], len(known))}{m[2]}", text)
    except Exception:  # a user's get_config may raise anything, or have any keys
        return ""


def cost_of(
    node: Any,
    batch: int,
    settings: str | None = None,
    needed: Sequence[bool] = (),
    *,
    training: bool = True,
) -> Work:
    """The cost of one call of a built layer, raw operation or model; nothing runs.

    `node` is a Keras node or an `InnerNode`; `settings` are those of its operation;
    `needed` says which of its inputs need a gradient, by default all.
    """
    if node.is_input:
        return Work()
    operation = node.operation
    settings = settings_of(operation) if settings is None else settings
    inputs = [size_of(tensor, batch) for tensor in node.input_tensors]
    outputs = [size_of(tensor, batch) for tensor in node.outputs]
    own = [size_of(v, batch) for v in getattr(operation, "variables", ())]
    sizes = (*inputs, *outputs, *own)
    needed = [*needed] or [True] * len(inputs)
    key = _key(node, settings, sizes, needed, training)
    scaled = _SCALED.setdefault(key, Scaled()) if key else Scaled()
    work = scaled.cost(sizes, lambda: _trace(node, inputs, outputs, needed, training))
    # A matrix product more for the gradient of each factor; other work once again.
    # Inside a layer of layers, a product's input comes from another layer.
    inside = keras_api.sublayers(operation) or [operation]
    trained = bool(getattr(operation, "trainable_weights", None))
    flows = (one.dtype.is_floating or one.dtype.is_complex for one in inputs)
    factors = sum(flow and wants for flow, wants in zip(flows, needed))
    factors += trained + (trained and len(inside) > 1)
    strings = any(one.dtype == tf.string for one in (*inputs, *outputs))
    return replace(
        work,
        backward_flops=min(factors, 2) * work.matrix_flops
        + bool(factors) * work.other_flops,
        cpu_only=strings or any(type(one).__name__ in _CPU_ONLY for one in inside),
    )


_SUMS = ("matrix_flops", "other_flops", "inner_bytes", "workspace_bytes")
_SUMS += ("early_bytes", "given_bytes", "moved_bytes", "fused_bytes")
_sums = attrgetter(*_SUMS)
_CHECKS = 2


class Scaled:
    """Costs of calls that differ in sizes alone, from the traces of a few of them.

    Most costs are linear in the numbers of elements of tensors. So a call's cost is the
    combination of traced ones that its numbers are, once two more traces confirm that.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Work] = {}
        self._basis: list[tuple[list[float], Work]] = []  # elements of traced calls
        self._checks = 0.0  # that a trace confirmed; negative: not linear

    def cost(self, sizes: tuple[Any, ...], trace: Callable[[], Work]) -> Work:
        """The cost of a call whose tensors have these sizes; traced if need be."""
        if sizes in self._known:
            return self._known[sizes]
        counts = [1.0, *map(float, map(elements_of, sizes))]
        guess = self._combined(counts)
        if guess and self._checks >= _CHECKS and min(_sums(guess)) >= 0:
            self._known[sizes] = guess
            return guess
        work = self._known[sizes] = trace()
        like = guess or (self._basis[0][1] if self._basis else work)
        if _with_sums(work, _sums(like)) != like:
            self._checks = -math.inf
        elif guess:
            right = np.allclose(_sums(guess), _sums(work), rtol=1e-9, atol=0)
            self._checks += 1 if right else -math.inf
        else:
            self._checks = min(self._checks, 0)
            self._basis.append((counts, work))
        return work

    def _combined(self, counts: list[float]) -> Work | None:
        """The cost by a combination of traced calls; None if there is none."""
        if not self._basis or self._checks < 0:
            return None
        rows = np.array([row for row, _ in self._basis]) / np.maximum(counts, 1)
        wanted = np.minimum(counts, 1)
        shares = np.linalg.lstsq(rows.T, wanted, rcond=None)[0]
        if not np.allclose(shares @ rows, wanted, rtol=1e-9):
            return None
        exact = shares @ np.array([_sums(work) for _, work in self._basis])
        sums = np.rint(exact)
        if not np.allclose(sums, exact, rtol=1e-9, atol=1e-6):
            sums[:] = -1  # no call can have it
        return _with_sums(self._basis[0][1], sums)


def _with_sums(work: Work, sums: Iterable[float]) -> Work:
    kinds = map(type, _sums(work))
    return replace(work, **{n: kind(s) for n, kind, s in zip(_SUMS, kinds, sums)})


_SCALED: dict[str, Scaled] = {}


def _key(node: Any, settings: str, sizes: Sequence[Any], *how: Any) -> str:
    """What the cost depends on besides sizes; "" for code of somebody else's."""
    operation = node.operation
    if not settings or _OPAQUE in settings:
        return ""
    for layer in keras_api.sublayers(operation) or [operation]:
        codes = [value for value in vars(layer).values() if callable(value)]
        kinds = [c if isinstance(c, FunctionType) else type(c) for c in codes]
        caller = next((c for c in type(layer).__mro__ if "call" in vars(c)), object)
        if not all(map(keras_api.from_keras, [caller, *kinds])):
            return ""

    def shape(value: Any) -> Any:
        if isinstance(value, keras.KerasTensor):
            return "sparse" if value.sparse else "tensor"
        return tuple(value.shape) if hasattr(value, "shape") else value

    what = (
        type(operation).__qualname__,
        settings,
        getattr(getattr(operation, "dtype_policy", None), "name", ""),
        [v.trainable for v in getattr(operation, "variables", ())],
        keras.tree.map_structure(
            shape, (node.arguments.args, node.arguments.kwargs, node.outputs)
        ),
        [(size.dtype, [n == 1 for n in size.shape]) for size in sizes],
        *how,
    )
    return repr(what)


def _trace(
    node: Any, inputs: list[Any], outputs: list[Any], needed: list[bool], training: bool
) -> Work:
    """Trace a call; if that fails, a guess from its weights, which is logged."""
    operation = node.operation

    def call(*tensors: Any) -> Any:
        given = {id(old): new for old, new in zip(node.input_tensors, tensors)}
        args, kwargs = node.arguments.fill_in(given)
        return keras_api.operation_fn(operation, training=training)(*args, **kwargs)

    recurrent = [x for x in keras_api.sublayers(operation) if hasattr(x, "use_cudnn")]
    choices = [layer.use_cudnn for layer in recurrent]
    kinds = ("variables", "metrics_variables")
    variables = [v for kind in kinds for v in getattr(operation, kind, ())]
    forget_traces(operation)  # of an open batch, in which nothing has a size
    try:
        for layer in recurrent:  # a kernel of cuDNN hides the loop
            layer.use_cudnn = False
        return trace(call, inputs, variables, needed, training)
    except Exception as error:  # somebody else's code may raise anything
        warn_once(
            f"the cost of {operation.name!r} ({type(operation).__name__}) is guessed "
            f"from its weights: tracing raised {type(error).__name__}"
        )
        parameters = sum(math.prod(v.shape) for v in getattr(operation, "weights", ()))
        positions = math.prod(outputs[0].shape[:-1])
        return Work(2.0 * parameters * positions, saves_inputs=(*range(len(inputs)),))
    finally:
        for layer, choice in zip(recurrent, choices):
            layer.use_cudnn = choice
        forget_traces(operation)  # of this graph


@functools.cache
def warn_once(message: str) -> None:
    """Log what costs rest on, once."""
    logging.getLogger("splitnet").warning(message)
