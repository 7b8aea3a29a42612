"""Formulas of convolutions and pooling.

Multiply-adds are counted at every output position, padding included: the convention
of He et al. 2015 (ResNet, table 1) and Howard et al. 2017 (MobileNet, section 3.1).
"""

import math
from dataclasses import replace

from splitnet.tf.costs.pointwise import after
from splitnet.tf.costs.value import Case, Size, Work, kernel_shape, weight_sizes

__all__ = ["conv", "depthwise", "global_pool", "max_pool", "mean_pool", "separable"]


def _positions(case: Case, size: Size) -> int:
    """Output positions of the batch: all axes but the channels'."""
    channels = size.shape[1 if _first(case) else -1]
    return size.elements // max(channels, 1)


def _first(case: Case) -> bool:
    return getattr(case.operation, "data_format", None) == "channels_first"


def _work(case: Case, flops: float, inner_bytes: int = 0) -> Work:
    layer = case.operation
    trainable = bool(weight_sizes(layer, trainable_only=True))
    biased = getattr(layer, "bias", None) is not None
    return Work(
        matrix_flops=flops,
        other_flops=float(case.output.elements) if biased else 0.0,
        saves_inputs=(0,) if trainable else (),
        inner_bytes=inner_bytes if trainable else 0,
    )


def conv(case: Case) -> Work:
    """2 * output positions * kernel elements; groups are in the kernel's shape.

    Kernel (k..., channels / groups, filters). The gradient reads the input, or what
    causal padding makes of it.
    """
    layer = case.operation
    kernel = math.prod(kernel_shape(layer))
    flops = 2.0 * _positions(case, case.output) * kernel
    work = _work(case, flops)
    if getattr(layer, "padding", "") == "causal":
        reach = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        length = case.input.shape[2 if _first(case) else 1]
        padded = case.input.bytes * (length + reach) // max(length, 1)
        kept = padded if work.saves_inputs else 0
        work = replace(work, saves_inputs=(), inner_bytes=kept)
    return after(work, case.output, layer.activation)


def conv_transpose(case: Case) -> Work:
    """2 * input positions * kernel elements: the gradient of a convolution."""
    layer = case.operation
    kernel = math.prod(kernel_shape(layer))
    flops = 2.0 * _positions(case, case.input) * kernel
    return after(_work(case, flops), case.output, layer.activation)


def depthwise(case: Case) -> Work:
    """2 * output elements * window: each output reads one channel.

    Howard et al. 2017, equation 4.
    """
    layer = case.operation
    window = math.prod(layer.kernel_size)
    flops = 2.0 * case.output.elements * window
    return after(_work(case, flops), case.output, layer.activation)


def separable(case: Case) -> Work:
    """Depthwise, then pointwise (Chollet 2016); what lies between is kept."""
    layer = case.operation
    positions = _positions(case, case.output)
    channels = case.input.shape[1 if _first(case) else -1] * layer.depth_multiplier
    between = positions * channels
    flops = 2.0 * between * (math.prod(layer.kernel_size) + layer.filters)
    work = _work(case, flops, between * case.output.item_bytes)
    return after(work, case.output, layer.activation)


def max_pool(case: Case) -> Work:
    """One comparison per element of a window; MaxPoolGrad reads input and output."""
    window = math.prod(_window(case))
    return Work(
        other_flops=float(case.output.elements * window),
        saves_inputs=(0,),
        saves_outputs=(0,),
    )


def mean_pool(case: Case) -> Work:
    """One addition per element of a window; the gradient needs only shapes."""
    window = math.prod(_window(case))
    return Work(other_flops=float(case.output.elements * window))


def global_pool(case: Case) -> Work:
    """One FLOP per element read; a maximum reads both sides again, a mean neither."""
    keeps = "Max" in type(case.operation).__name__
    return Work(
        other_flops=float(case.input.elements),
        saves_inputs=(0,) if keeps else (),
        saves_outputs=(0,) if keeps else (),
    )


def _window(case: Case) -> tuple[int, ...]:
    window = getattr(case.operation, "pool_size", 2)
    if isinstance(window, int):
        return (window,) * max(len(case.input.shape) - 2, 1)
    return tuple(window)
