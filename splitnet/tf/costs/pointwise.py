"""Calls that work element by element, and what TensorFlow keeps of them.

Each line of a table gives the FLOPs per element, then what the gradient reads again:
`i` all inputs, `o` the outputs, and how many temporaries of the output's size in
float32. The second column was read off TensorFlow 2.21's own gradient graphs (see
`traced`); tests/tf/test_flops.py reads it again. FLOPs of a transcendental
function are counted as 4 and of a division as 1: a convention, not a measurement.
"""

import math
from typing import Any

from splitnet.tf.costs.value import Case, Size, Work

__all__ = ["ACTIVATIONS", "OPERATIONS", "activation", "after", "dropout", "pointwise"]

ACTIVATIONS: dict[str, tuple[float, str, float]] = {
    "linear": (0, "", 0),
    "relu": (1, "o", 0),
    "relu6": (2, "o", 0),
    "sigmoid": (4, "o", 0),
    "tanh": (4, "o", 0),
    "softplus": (8, "i", 0),
    "softsign": (3, "i", 0),
    "silu": (5, "i", 0),
    "leaky_relu": (2, "i", 0),
    "hard_sigmoid": (4, "", 1),
    "hard_silu": (5, "i", 2),
    "elu": (5, "o", 0),
    "selu": (6, "o", 0),
    "gelu": (9, "", 3),
    "celu": (6, "i", 1),
    "softmax": (7, "o", 0),
    "log_softmax": (8, "o", 0),
    "exponential": (4, "o", 0),
    "mish": (13, "i", 1),
    "glu": (5, "", 1),
    "hard_tanh": (2, "i", 1),
    "squareplus": (5, "i", 1),
    "log_sigmoid": (9, "", 1),
    "tanh_shrink": (5, "", 1),
    "soft_shrink": (5, "", 0.5),
    "hard_shrink": (3, "", 0.25),
    "threshold": (1, "", 0.25),
    "sparse_plus": (6, "", 1.5),
    "sparse_sigmoid": (4, "", 0.5),
    "sparsemax": (12, "", 2.33),
}
"""Keras activation functions by name."""

_NAMES: dict[tuple[float, str, float], str] = {
    (0, "", 0): "StopGradient ZerosLike OnesLike EmptyLike Full FullLike Zeros Ones "
    "Arange Eye Cast SaturateCast Copy Argmax Argmin Argsort OneHot MultiHot "
    "Shape Ndim Size Concatenate Stack Split ArraySplit Hstack Vstack Dstack Append "
    "Repeat Tile Pad Flip Fliplr Flipud Roll Rot90 Transpose Swapaxes Moveaxis "
    "BroadcastTo Unstack Diag Diagonal Diagflat Tril Triu GetItem Slice Take "
    "TakeAlongAxis DepthToSpace SpaceToDepth CropImages PadImages Meshgrid Linspace "
    "Hsplit Vsplit Dsplit Rearrange Nonzero Unique",
    (1, "", 0): "Add Subtract Negative Sign Signbit Round Floor Ceil Trunc FloorDivide "
    "Cumsum Mean Sum Average Nansum Nanmean Equal NotEqual Greater GreaterEqual Less "
    "LessEqual LogicalAnd LogicalOr LogicalNot LogicalXor BitwiseAnd BitwiseOr "
    "BitwiseXor BitwiseNot BitwiseInvert LeftShift RightShift BitwiseLeftShift "
    "BitwiseRightShift Isfinite Isinf Isnan Isneginf Isposinf Isclose Any All "
    "CountNonzero Bincount Digitize SearchSorted SegmentReduction",
    (1, "", 0.25): "Where Select NanToNum",
    (1, "i", 0): "Multiply Divide TrueDivide DivideNoNan Maximum Minimum Fmax Fmin "
    "Absolute Fabs Square Prod Cumprod Mod Fmod Nanprod",
    (1, "io", 0): "Max Min Amax Amin Nanmax Nanmin Norm",
    (2, "i", 0.25): "Clip",
    (1, "o", 0): "Sqrt Reciprocal",
    (2, "o", 0): "Rsqrt",
    (4, "o", 0): "Exp Exp2 Tanh Sigmoid",
    (4, "i", 0): "Expm1 Log Log1p Sin Cos Tan Arcsin Arccos Arctan Arctan2 Sinh Cosh "
    "Arcsinh Arccosh Arctanh Erf Erfc Erfinv",
    (5, "i", 0): "Log2 Log10",
    (8, "io", 0): "Power",
    (4, "", 1): "Var Std Sort Median TopK",
    (6, "", 1.1): "Logsumexp",
    (9, "i", 2.25): "Logaddexp",
}

OPERATIONS = {name: row for row, names in _NAMES.items() for name in names.split()} | {
    "".join(word.capitalize() for word in name.split("_")): row
    for name, row in ACTIVATIONS.items()
}
"""Raw Keras operations by class name; those with names of activations included."""

_SCALES = frozenset({"Multiply", "Divide", "TrueDivide"})
"""Keep nothing if the other side is a constant."""

VIEWS = frozenset({"Reshape", "ExpandDims", "Squeeze", "Ravel", "View", "Identity"})
"""Raw operations whose output shares the memory of their input."""


def activation(function: Any) -> tuple[float, str, float, str]:
    """FLOPs per element, what is kept, temporaries kept, and a note if unknown."""
    if function is None:
        return (0.0, "", 0.0, "")
    name = getattr(function, "__name__", "") or type(function).__name__
    row = ACTIVATIONS.get(name) or OPERATIONS.get(name)
    if row is None:
        row = ACTIVATIONS.get(_snake(name))
    if row is None:
        return (4.0, "i", 1.0, f"activation {name!r} counted as 4 FLOPs per element")
    return (*row, "")


def _snake(name: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


def after(work: Work, output: Size, function: Any) -> Work:
    """Add to `work` the activation that a layer applies to its own result.

    Between the two gradients lives one more, of the result before the activation.
    """
    flops, keeps, temporaries, note = activation(function)
    kept = temporaries * output.bytes + (output.bytes if "i" in keeps else 0)
    return Work(
        matrix_flops=work.matrix_flops,
        product_flops=work.product_flops,
        other_flops=work.other_flops + flops * output.elements,
        saves_inputs=work.saves_inputs,
        saves_outputs=(0,) if "o" in keeps else work.saves_outputs,
        inner_bytes=work.inner_bytes + int(kept),
        transient_bytes=work.transient_bytes + (output.bytes if flops else 0),
        weight_bytes=work.weight_bytes,
        note="; ".join(n for n in (work.note, note) if n),
    )


def pointwise(case: Case, row: tuple[float, str, float]) -> Work:
    """One line of a table, for the larger of the first input and the outputs.

    The larger, because a reduction reads more than it writes.
    """
    flops, keeps, temporaries = row
    written = sum(size.elements for size in case.outputs)
    count = max([written, *(size.elements for size in case.inputs)])
    floats = tuple(i for i, size in enumerate(case.inputs) if size.differentiable)
    scaled = len(case.inputs) == 1 and type(case.operation).__name__ in _SCALES
    return Work(
        other_flops=flops * count,
        saves_inputs=floats if "i" in keeps and not scaled else (),
        saves_outputs=tuple(range(len(case.outputs))) if "o" in keeps else (),
        inner_bytes=int(temporaries * count * case.output.item_bytes),
    )


def dropout(case: Case) -> Work:
    """Draw, compare, scale and mask (Srivastava et al. 2014): 5 FLOPs per element.

    Kept is the mask, a byte per element that is drawn (SpatialDropout draws one for
    each channel); nothing at rate 0.
    """
    layer = case.operation
    if not getattr(layer, "rate", 1.0):
        return Work(views=True)
    shape = case.input.shape
    drawn = case.input.elements
    if type(layer).__name__.startswith("Spatial"):
        first = getattr(layer, "data_format", "") == "channels_first"
        drawn = shape[0] * shape[1 if first else -1]
    elif noise := getattr(layer, "noise_shape", None):
        extents = (e if n is None else n for n, e in zip(noise, shape))
        drawn = math.prod(extents)
    return Work(
        other_flops=2.0 * case.input.elements + 3.0 * drawn,
        inner_bytes=drawn,
    )
