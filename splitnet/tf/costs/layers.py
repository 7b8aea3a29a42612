"""Formulas of the small layers, and which formula belongs to which Keras layer."""

from collections.abc import Callable
from typing import Any

from splitnet.tf.costs import attention, conv, dense, recurrent
from splitnet.tf.costs.pointwise import ACTIVATIONS, activation, dropout
from splitnet.tf.costs.value import (
    Case,
    Work,
    keras_class,
    total_bytes,
    weight_sizes,
)

__all__ = ["FORMULAS", "CPU_ONLY"]

CPU_ONLY = frozenset(
    {"StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "HashedCrossing"}
    | {"Eig", "CTCDecode"}
)
"""Layers and operations whose TensorFlow kernels exist for the CPU only."""


def view(case: Case) -> Work:
    """No FLOPs and no bytes: the output shares the input's memory."""
    return Work(views=True)


def move(case: Case) -> Work:
    """No FLOPs: bytes are read and written; the gradient moves them back."""
    return Work()


def _each(
    flops: float, *, inputs: bool = False, outputs: bool = False, inner: float = 0.0
) -> Callable[[Case], Work]:
    """FLOPs per input element, and what is kept, temporaries in units of the input."""

    def formula(case: Case) -> Work:
        return Work(
            other_flops=flops * case.input.elements,
            saves_inputs=(0,) if inputs and case.input.differentiable else (),
            saves_outputs=(0,) if outputs else (),
            inner_bytes=int(inner * case.input.bytes),
        )

    return formula


def _by_name(name: str) -> Callable[[Case], Work]:
    flops, keeps, inner = ACTIVATIONS[name]
    return _each(flops, inputs="i" in keeps, outputs="o" in keeps, inner=inner)


def activate(case: Case) -> Work:
    """`layers.Activation`: whatever its function costs."""
    flops, keeps, inner, note = activation(case.operation.activation)
    found = _each(flops, inputs="i" in keeps, outputs="o" in keeps, inner=inner)(case)
    if not flops:
        return Work(views=True)
    return Work(
        other_flops=found.other_flops,
        saves_inputs=found.saves_inputs,
        saves_outputs=found.saves_outputs,
        inner_bytes=found.inner_bytes,
        note=note,
    )


def relu(case: Case) -> Work:
    """`layers.ReLU`, whose forms differ: plain and capped at 6, leaky, clipped."""
    layer = case.operation
    if getattr(layer, "threshold", 0):
        return _each(3, inner=0.25)(case)
    if getattr(layer, "negative_slope", 0):
        return _by_name("leaky_relu")(case)
    if getattr(layer, "max_value", None) in (None, 6, 6.0):
        return _by_name("relu")(case)
    return _each(3, inner=2)(case)


def prelu(case: Case) -> Work:
    """Two rectifiers and a product (He et al. 2015); keeps both sides and slopes."""
    slopes = total_bytes(weight_sizes(case.operation))
    return Work(
        other_flops=5.0 * case.input.elements,
        inner_bytes=2 * case.input.bytes + slopes,
    )


def merge(flops: float, keeps: str = "") -> Callable[[Case], Work]:
    """Elementwise over all inputs: n - 1 operations per element of the output."""

    def formula(case: Case) -> Work:
        count = max(len(case.inputs) - 1, 1)
        kept = tuple(i for i, s in enumerate(case.inputs) if s.differentiable)
        between = max(count - 1, 0) if keeps else 0
        return Work(
            other_flops=flops * count * case.output.elements,
            saves_inputs=kept if keeps else (),
            inner_bytes=between * case.output.bytes,
        )

    return formula


def batch_norm(case: Case) -> Work:
    """Mean, variance, scale, shift: 8 per element (Ioffe and Szegedy 2015).

    The gradient reads the input and statistics of one channel each. Keras 3 does not
    use TensorFlow's fused kernel: the centred square lives for a moment.
    """
    return Work(
        other_flops=8.0 * case.input.elements,
        saves_inputs=(0,),
        inner_bytes=3 * sum(s.bytes for s in weight_sizes(case.operation)[:1]),
        transient_bytes=case.input.bytes,
    )


def layer_norm(case: Case) -> Work:
    """As batch_norm, over features (Ba et al. 2016); keeps a scale for each element.

    Two gradients of that scale live at once: through its product with the input, and
    with the mean.
    """
    return Work(
        other_flops=10.0 * case.input.elements,
        saves_inputs=(0,),
        inner_bytes=case.input.bytes,
        transient_bytes=2 * case.input.bytes,
    )


def resize(case: Case) -> Work:
    """Nearest moves bytes, anything else blends four neighbours: 8 per output."""
    nearest = getattr(case.operation, "interpolation", "nearest") == "nearest"
    return Work(
        other_flops=0.0 if nearest else 8.0 * case.output.elements,
        saves_inputs=() if nearest else (0,),
    )


def lookup(case: Case) -> Work:
    """A table of strings or integers: no FLOPs, and a kernel on the CPU only."""
    return Work(cpu_only=True)


def _rnn(case: Case) -> Work | None:
    return recurrent.recurrent(case)


def _formula_of(layer: Any) -> Callable[[Case], Work | None] | None:
    return FORMULAS.get(keras_class(layer))


def _both_ways(case: Case) -> Work | None:
    formula = _formula_of(case.operation.forward_layer)
    return recurrent.bidirectional(case, formula) if formula else None


def _each_step(case: Case) -> Work | None:
    formula = _formula_of(case.operation.layer)
    return recurrent.time_distributed(case, formula) if formula else None


_GROUPS: list[tuple[Callable[[Case], Work | None], str]] = [
    (view, "InputLayer Identity Reshape Flatten ActivityRegularization"),
    (
        move,
        "Permute RepeatVector Cropping1D Cropping2D Cropping3D CenterCrop RandomCrop",
    ),
    (move, "ZeroPadding1D ZeroPadding2D ZeroPadding3D Concatenate RandomFlip"),
    (move, "CategoryEncoding Discretization"),
    (dense.dense, "Dense"),
    (dense.einsum_dense, "EinsumDense"),
    (dense.embedding, "Embedding"),
    (dense.dot, "Dot"),
    (conv.conv, "Conv1D Conv2D Conv3D"),
    (conv.conv_transpose, "Conv1DTranspose Conv2DTranspose Conv3DTranspose"),
    (conv.depthwise, "DepthwiseConv1D DepthwiseConv2D"),
    (conv.separable, "SeparableConv1D SeparableConv2D"),
    (conv.max_pool, "MaxPooling1D MaxPooling2D MaxPooling3D"),
    (conv.mean_pool, "AveragePooling1D AveragePooling2D AveragePooling3D"),
    (conv.global_pool, "GlobalAveragePooling1D GlobalAveragePooling2D"),
    (conv.global_pool, "GlobalAveragePooling3D GlobalMaxPooling1D"),
    (conv.global_pool, "GlobalMaxPooling2D GlobalMaxPooling3D"),
    (attention.multi_head, "MultiHeadAttention"),
    (attention.grouped_query, "GroupedQueryAttention GroupQueryAttention"),
    (attention.plain, "Attention"),
    (attention.additive, "AdditiveAttention"),
    (_rnn, "LSTM GRU SimpleRNN RNN"),
    (recurrent.conv_lstm, "ConvLSTM1D ConvLSTM2D ConvLSTM3D"),
    (_both_ways, "Bidirectional"),
    (_each_step, "TimeDistributed"),
    (batch_norm, "BatchNormalization GroupNormalization"),
    (layer_norm, "LayerNormalization RMSNormalization"),
    (_each(4, inputs=True), "UnitNormalization"),
    (_each(2), "Rescaling"),
    (_each(2, inner=0), "Normalization"),
    (activate, "Activation"),
    (relu, "ReLU"),
    (_by_name("leaky_relu"), "LeakyReLU"),
    (_by_name("elu"), "ELU"),
    (_by_name("softmax"), "Softmax"),
    (prelu, "PReLU"),
    (dropout, "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D"),
    (_each(1, inner=0), "StochasticDepth"),
    (_each(6), "GaussianNoise"),
    (_each(6, inner=1), "GaussianDropout AlphaDropout"),
    (_each(1), "Masking"),
    (_each(1, inputs=True), "LayerScale"),
    (_each(2), "CustomScaleLayer"),
    (merge(1), "Add Subtract Average"),
    (merge(1, "inputs"), "Multiply Maximum Minimum"),
    (resize, "UpSampling1D UpSampling2D UpSampling3D Resizing"),
    (lookup, "StringLookup IntegerLookup TextVectorization Hashing HashedCrossing"),
]

FORMULAS: dict[str, Callable[[Case], Work | None]] = {
    name: formula for formula, names in _GROUPS for name in names.split()
}
"""Keras layers by class name; None from a formula says: not this one, trace it."""
