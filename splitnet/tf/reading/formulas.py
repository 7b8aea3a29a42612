"""Sizes of tensors, and what common calls compute and keep, by closed formulas.

A multiply-add counts as two FLOPs, a transcendental function as four, any other
operation on an element as one. What is kept for the backward pass was read off
TensorFlow's gradient graphs; `tests/tf/reading/test_costs.py` compares both. Calls
without a formula, and activation functions, are traced (`traced.py`), which takes some
10 to 300 ms each.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

import keras

from splitnet.tf.internals import keras_api
from splitnet.tf.reading.traced import Size, Work, einsum_flops, trace

__all__ = [
    "UNKNOWN_EXTENT",
    "Case",
    "formula",
    "keras_class",
    "size_of",
    "weight_bytes",
]

UNKNOWN_EXTENT = 128
"""Stands for a dimension other than the batch that is open (None)."""


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


@dataclass(frozen=True, slots=True)
class Case:
    """One call as a formula sees it."""

    operation: Any
    inputs: tuple[Size, ...]
    outputs: tuple[Size, ...]

    @property
    def input(self) -> Size:
        """The first input, or a scalar if the call has none."""
        return self.inputs[0] if self.inputs else Size(())

    @property
    def output(self) -> Size:
        """The first output, or a scalar if the call has none."""
        return self.outputs[0] if self.outputs else Size(())

    @property
    def channels(self) -> int:
        """The last axis of the input, or the first after the batch."""
        return self.input.shape[self.channel_axis]

    @property
    def channel_axis(self) -> int:
        """Where the layer's data format has its channels."""
        first = getattr(self.operation, "data_format", None) == "channels_first"
        return 1 if first else -1


def weight_bytes(operation: Any) -> int:
    """Bytes of a layer's variables, which need no values."""
    found = getattr(operation, "weights", None) or ()
    return sum(Size(tuple(v.shape), str(v.dtype)).bytes for v in found)


def keras_class(operation: Any) -> str:
    """The Keras class whose `call` it runs; "" if somebody else wrote that `call`."""
    lineage = type(operation).__mro__
    owner = next((cls for cls in lineage if "call" in vars(cls)), object)
    if not _from_keras(owner):
        return ""
    return next(cls.__name__ for cls in lineage if _from_keras(cls))


def _from_keras(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "keras"


def formula(case: Case) -> Work | None:
    """What a call computes and keeps; None if it has no formula, so must be traced."""
    found = _FORMULAS.get(keras_class(case.operation))
    if isinstance(found, Elementwise):
        return _elementwise(case, found)
    return None if found is None else found(case)


# Calls that work element by element ----------------------------------------------


class Elementwise(NamedTuple):
    """What a call that works element by element costs.

    FLOPs per element; what the gradient reads again, `i`nputs or `o`utputs; and how
    many temporaries of the output's size it reads besides, and works with.
    """

    flops: float
    keeps: str = ""
    temporaries: float = 0.0
    workspace: float = 0.0


_SAMPLE = Size((4, 64))

_ROWS: dict[Elementwise, str] = {
    Elementwise(
        0
    ): "Permute RepeatVector Cropping1D Cropping2D Cropping3D ZeroPadding1D "
    "ZeroPadding2D ZeroPadding3D Concatenate StopGradient Cast Stack Split Transpose "
    "Swapaxes Moveaxis BroadcastTo Flip Roll Pad Tile Repeat GetItem OneHot Argmax "
    "CategoryEncoding Discretization StringLookup IntegerLookup TextVectorization "
    "Hashing HashedCrossing",
    Elementwise(
        1
    ): "Add Subtract Average Negative Mean Sum Masking Equal NotEqual Greater "
    "GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalNot",
    Elementwise(1, "i"): "Multiply Divide TrueDivide Maximum Minimum Absolute Square "
    "LayerScale",
    Elementwise(1, "o"): "Sqrt",
    Elementwise(2): "Rescaling Normalization CustomScaleLayer StochasticDepth",
    Elementwise(2, "o"): "Rsqrt",
    Elementwise(4, "o"): "Exp",
    Elementwise(4, "i"): "Log",
}


def _elementwise(case: Case, row: Elementwise) -> Work | None:
    """A row of a table, for the larger of inputs and outputs: a reduction reads more.

    Sums of n tensors take n - 1 operations; products of more than two are traced.
    """
    if row.keeps and len(case.inputs) > 2:
        return None
    sizes = (*case.inputs, *case.outputs)
    if not row.flops:
        sizes = ()
    count = max((size.elements for size in sizes), default=0)
    floats = tuple(i for i, size in enumerate(case.inputs) if size.differentiable)
    scaled = len(case.inputs) == 1 and type(case.operation).__name__ in _SCALES
    return Work(
        other_flops=row.flops * count * max(len(case.inputs) - 1, 1),
        saves_inputs=floats if "i" in row.keeps and not scaled else (),
        saves_outputs=tuple(range(len(case.outputs))) if "o" in row.keeps else (),
        inner_bytes=int(row.temporaries * case.output.bytes),
        workspace_bytes=int(row.workspace * case.output.bytes),
    )


_SCALES = frozenset({"Multiply", "Divide", "TrueDivide"})
"""Keep nothing if the other side is a constant."""


def _view(case: Case) -> Work:
    return Work(views=True)


def _activation(case: Case) -> Work | None:
    row = _row_of(case.operation.activation)
    if row is None:
        return None
    return _elementwise(case, row) if row.flops else _view(case)


def _row_of(function: Any) -> Elementwise | None:
    """The row of an activation function; None for one that must be traced in place."""
    if function is None:
        return Elementwise(0)
    return _traced_row(function) if isinstance(function, FunctionType) else None


@functools.lru_cache(maxsize=64)
def _traced_row(function: FunctionType) -> Elementwise | None:
    """What a small trace of a function tells, which must keep the shape."""
    shapes: list[Any] = []

    def call(tensor: Any) -> Any:
        made = function(tensor)
        shapes.append(tuple(made.shape))
        return made

    try:
        found = trace(call, [_SAMPLE])
    except Exception:  # somebody else's function may raise anything
        return None
    if shapes[-1] != _SAMPLE.shape:
        return None
    keeps = "i" * len(found.saves_inputs) + "o" * len(found.saves_outputs)
    return Elementwise(
        found.other_flops / _SAMPLE.elements,
        keeps,
        round(found.inner_bytes / _SAMPLE.bytes, 2),
        found.workspace_bytes / _SAMPLE.bytes,
    )


def _dropout(case: Case) -> Work:
    """Draw, compare, scale and mask; kept is the mask, a byte per element drawn."""
    layer, shape = case.operation, case.input.shape
    if not layer.rate:
        return Work(views=True)
    drawn = getattr(layer, "noise_shape", None) or (None,) * len(shape)
    if "Spatial" in type(layer).__name__:
        drawn = [1] * len(shape)
        drawn[0] = drawn[case.channel_axis] = None
    count = math.prod(n if one is None else one for n, one in zip(shape, drawn))
    flops = 2.0 * case.input.elements + 3.0 * count
    return Work(other_flops=flops, inner_bytes=count)


def _batch_norm(case: Case) -> Work:
    """Mean, variance, scale, shift; the centred square lives for a moment.

    Keras does not use TensorFlow's fused kernel.
    """
    channels = case.input.shape[case.operation.axis] if case.inputs else 0
    return Work(
        other_flops=8.0 * case.input.elements,
        saves_inputs=(0,),
        inner_bytes=3 * channels * 4,
        workspace_bytes=case.input.bytes,
    )


def _layer_norm(case: Case) -> Work:
    """As a batch normalization over features; keeps a scale for each element.

    Two gradients of that scale live at once.
    """
    return Work(
        other_flops=10.0 * case.input.elements,
        saves_inputs=(0,),
        inner_bytes=case.input.bytes,
        workspace_bytes=2 * case.input.bytes,
    )


# Products ------------------------------------------------------------------------


def _product(case: Case, flops: float, inner_bytes: int = 0) -> Work | None:
    """A product of the input with weights, the bias, and the layer's activation.

    Between the two gradients lives one more, of the result before the activation, and
    what the activation's own gradient works with.
    """
    layer, output = case.operation, case.output
    row = _row_of(layer.activation)
    if row is None:
        return None
    trained = bool(layer.trainable_weights)
    kept = (row.temporaries + ("i" in row.keeps)) * output.bytes
    biased = getattr(layer, "bias", None) is not None
    return Work(
        matrix_flops=float(flops),
        other_flops=float((biased + row.flops) * output.elements),
        saves_inputs=(0,) if trained else (),
        saves_outputs=(0,) if "o" in row.keeps else (),
        inner_bytes=int(kept) + (inner_bytes if trained else 0),
        workspace_bytes=int(max(row.workspace, bool(row.flops)) * output.bytes),
    )


def _kernel(layer: Any) -> tuple[int, ...]:
    return tuple(keras_api.kernel_variable(layer).shape)


def _dense(case: Case) -> Work | None:
    """2 * positions * inputs * units, where a position is all but the last axis."""
    return _product(case, 2.0 * case.input.elements * case.operation.units)


def _einsum_dense(case: Case) -> Work | None:
    layer = case.operation
    shapes = [case.input.shape, _kernel(layer)]
    return _product(case, einsum_flops(layer.equation, shapes))


def _embedding(case: Case) -> Work:
    """No FLOPs: rows are read and written. The gradient is sparse: indices are kept."""
    moved = float(case.input.bytes + 2 * case.output.bytes)
    return Work(saves_inputs=(0,), moved_bytes=moved)


def _conv(case: Case) -> Work | None:
    """2 * output positions * kernel elements (He et al. 2015, table 1).

    Padding is counted; groups are in the kernel's shape (k..., channels / groups,
    filters). What causal padding makes of the input is kept, so that is traced.
    """
    if case.operation.padding == "causal":
        return None
    positions = case.output.elements // case.output.shape[case.channel_axis]
    return _product(case, 2.0 * positions * math.prod(_kernel(case.operation)))


def _conv_transpose(case: Case) -> Work | None:
    """2 * input positions * kernel elements: the gradient of a convolution."""
    positions = case.input.elements // case.channels
    return _product(case, 2.0 * positions * math.prod(_kernel(case.operation)))


def _depthwise(case: Case) -> Work | None:
    """2 * output elements * window (Howard et al. 2017, equation 4)."""
    window = math.prod(case.operation.kernel_size)
    return _product(case, 2.0 * case.output.elements * window)


def _separable(case: Case) -> Work | None:
    """Depthwise, then pointwise (Chollet 2016); what lies between is kept."""
    layer, output = case.operation, case.output
    positions = output.elements // output.shape[case.channel_axis]
    between = replace(output, shape=(positions, case.channels * layer.depth_multiplier))
    window = math.prod(layer.kernel_size)
    flops = 2.0 * between.elements * (window + layer.filters)
    return _product(case, flops, between.bytes)


def _pool(case: Case) -> Work:
    """One FLOP per element of a window; a maximum reads input and output again."""
    layer = case.operation
    flops = float(case.output.elements * math.prod(layer.pool_size))
    keeps = (0,) if "Max" in type(layer).__name__ else ()
    return Work(other_flops=flops, saves_inputs=keeps, saves_outputs=keeps)


_Formula = Callable[[Case], Work | None]
_GROUPS: dict[_Formula, str] = {
    _view: "InputLayer Identity Reshape Flatten ActivityRegularization ExpandDims "
    "Squeeze Ravel View",
    _activation: "Activation",
    _dropout: "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D",
    _batch_norm: "BatchNormalization",
    _layer_norm: "LayerNormalization",
    _dense: "Dense",
    _einsum_dense: "EinsumDense",
    _embedding: "Embedding",
    _conv: "Conv1D Conv2D Conv3D",
    _conv_transpose: "Conv1DTranspose Conv2DTranspose Conv3DTranspose",
    _depthwise: "DepthwiseConv1D DepthwiseConv2D",
    _separable: "SeparableConv1D SeparableConv2D",
    _pool: "MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D "
    "AveragePooling3D",
}

_FORMULAS: dict[str, Elementwise | _Formula] = {
    **{name: row for row, names in _ROWS.items() for name in names.split()},
    **{name: one for one, names in _GROUPS.items() for name in names.split()},
}
