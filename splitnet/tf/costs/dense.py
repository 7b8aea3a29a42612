"""Formulas of layers that multiply by a matrix: Dense, EinsumDense, Embedding."""

import math

from splitnet.tf.costs.pointwise import after
from splitnet.tf.costs.traced import einsum_flops
from splitnet.tf.costs.value import Case, Work, kernel_shape, weight_sizes

__all__ = ["dense", "einsum", "einsum_dense", "embedding", "matmul"]


def dense(case: Case) -> Work:
    """2 * positions * inputs * units, plus the bias.

    A position is everything but the last axis. The gradient of the kernel reads the
    input again.
    """
    layer = case.operation
    positions = case.input.elements / max(case.input.shape[-1], 1)
    flops = 2.0 * positions * case.input.shape[-1] * layer.units
    return after(_with_weights(case, flops), case.output, layer.activation)


def einsum_dense(case: Case) -> Work:
    """Two per element of the space spanned by all letters of the equation."""
    layer = case.operation
    shapes = [case.input.shape, kernel_shape(layer)]
    flops = einsum_flops(layer.equation, shapes)
    return after(_with_weights(case, flops), case.output, layer.activation)


def _with_weights(case: Case, flops: float) -> Work:
    trainable = bool(weight_sizes(case.operation, trainable_only=True))
    biased = getattr(case.operation, "bias", None) is not None
    return Work(
        matrix_flops=flops,
        other_flops=float(case.output.elements) if biased else 0.0,
        saves_inputs=(0,) if trainable else (),
    )


def embedding(case: Case) -> Work:
    """No FLOPs: the rows that are asked for are read and written once.

    Its gradient is sparse (`tf.IndexedSlices`): the indices are kept, nothing else.
    """
    return Work(
        saves_inputs=(0,),
        weight_bytes=case.output.bytes,
        cpu_only=False,
    )


def matmul(case: Case) -> Work:
    """2 * outputs * common length; both sides are read again."""
    if len(case.inputs) < 2:
        return Work(note="matrix product with a constant: its length is not known")
    common = case.input.shape[-1] if case.input.shape else 1
    return Work(product_flops=2.0 * case.output.elements * common, saves_inputs=(0, 1))


def dot(case: Case) -> Work:
    """`layers.Dot`: contracts one axis of each input, batched."""
    left, right = case.inputs[:2]
    both = left.elements * right.elements / max(left.shape[0], 1)
    return Work(
        product_flops=2.0 * math.sqrt(both * case.output.elements),
        saves_inputs=(0, 1),
    )


def einsum(case: Case) -> Work:
    """Two per element of the space spanned by all letters, as if not factored."""
    equation = getattr(case.operation, "subscripts", "")
    kept = tuple(range(len(case.inputs)))
    try:
        flops = einsum_flops(equation, [size.shape for size in case.inputs])
    except (TypeError, ValueError):
        flops = 2.0 * case.output.elements
    return Work(product_flops=flops, saves_inputs=kept)
