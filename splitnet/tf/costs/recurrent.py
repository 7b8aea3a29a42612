"""Formulas of layers that repeat a cell along time.

What TensorFlow keeps is per step: each tensor that the cell's gradient reads is pushed
on a list (counted in TensorFlow 2.21's gradient graph, see `traced`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras

from splitnet.tf.costs.value import (
    Case,
    Size,
    Work,
    keras_class,
    size_of,
    weight_sizes,
)
from splitnet.tf.internals import keras_api

__all__ = [
    "bidirectional",
    "conv_lstm",
    "recurrent",
    "sequential_steps",
    "time_distributed",
]

_CELLS = {
    # gates, FLOPs per unit besides products, units kept per step
    "LSTMCell": (4, 26.0, 7),
    "GRUCell": (3, 22.0, 6),
    "SimpleRNNCell": (1, 6.0, 2),
}


def recurrent(case: Case) -> Work | None:
    """Sum over the cells of 2 * steps * gates * units * (features + units).

    LSTM: Hochreiter and Schmidhuber 1997 with forget gate; GRU: Cho et al. 2014. A
    layer over stacked cells is the sum of its cells. None for a cell without formula.
    """
    layer = case.operation
    cells = list(getattr(layer.cell, "cells", [layer.cell]))
    steps, features = case.input.shape[1], case.input.shape[-1]
    found = Work()
    for cell in cells:
        if keras_class(cell) not in _CELLS:
            return None
        found = _plus(found, _cell(case, cell, steps, features))
        features = cell.units
    turned = case.input.bytes  # the time axis comes first inside, and last goes back
    if cell_sequences(case):
        turned += case.output.bytes
    moved = _moved(case, found, steps)
    return replace(found, moved_bytes=moved, transient_bytes=turned)


def sequential_steps(operation: Any, inputs: Sequence[Any], batch: int) -> int:
    """How many steps of a call wait for each other: time steps times stacked cells.

    The directions of a `Bidirectional` run one after the other; a nested model's
    recurrences are added up.
    """
    if isinstance(operation, keras.Model):
        return max(
            1,
            sum(
                sequential_steps(node.operation, node.input_tensors, batch)
                for node in _inner_nodes(operation)
                if _repeats(node.operation)
            ),
        )
    if not _repeats(operation) or not inputs:
        return 1
    if isinstance(operation, keras.layers.Bidirectional):
        sides = (operation.forward_layer, operation.backward_layer)
        return sum(sequential_steps(side, inputs, batch) for side in sides)
    cells = getattr(operation.cell, "cells", [operation.cell])
    return size_of(inputs[0], batch).shape[1] * len(cells)


def _repeats(operation: Any) -> bool:
    kinds = (keras.layers.RNN, keras.layers.Bidirectional, keras.Model)
    return isinstance(operation, kinds)


def _inner_nodes(model: Any) -> list[Any]:
    inner = model
    if isinstance(model, keras.Sequential):
        inner = keras_api.functional_inside(model)
    if not isinstance(inner, keras_api.Functional):
        return []
    return keras_api.nodes_of(inner)


def _cell(case: Case, cell: Any, steps: int, features: int) -> Work:
    gates, other, kept = _CELLS[keras_class(cell)]
    rows, item = case.input.shape[0] * steps, case.output.item_bytes
    width, split = cell.units, getattr(cell, "implementation", 2) == 1
    kept = rows * (kept * width + features)
    if split or not getattr(cell, "reset_after", True):
        kept += steps * gates * width * (width + (features if split else 0))
    for rate, dropped in (("dropout", features), ("recurrent_dropout", width)):
        if getattr(cell, rate, 0):
            kept += (rows + case.input.shape[0]) * dropped * (gates if split else 1)
    return Work(
        matrix_flops=2.0 * rows * gates * cell.units * (features + cell.units),
        other_flops=other * rows * cell.units,
        inner_bytes=kept * item,
    )


def _plus(one: Work, other: Work) -> Work:
    return Work(
        matrix_flops=one.matrix_flops + other.matrix_flops,
        product_flops=one.product_flops + other.product_flops,
        other_flops=one.other_flops + other.other_flops,
        inner_bytes=one.inner_bytes + other.inner_bytes,
        transient_bytes=max(one.transient_bytes, other.transient_bytes),
        note="; ".join(n for n in (one.note, other.note) if n),
    )


def _moved(case: Case, work: Work, steps: int) -> float:
    """Weights are read again at every step."""
    weights = sum(size.bytes for size in weight_sizes(case.operation))
    return float(
        case.input.bytes + case.output.bytes + steps * weights + 2 * work.inner_bytes
    )


def conv_lstm(case: Case) -> Work:
    """Four gates by convolution of input and state (Shi et al. 2015, equation 3).

    Per step and output position 2 * (elements of both kernels); kept per step as an
    LSTM keeps, with the input's slice and the kernels, which are split anew each time.
    """
    cell = case.operation.cell
    kernels = [
        math.prod(int(n) for n in w.shape) for w in (cell.kernel, cell.recurrent_kernel)
    ]
    batch, steps = case.input.shape[:2]
    last = case.output.shape[2:] if cell_sequences(case) else case.output.shape[1:]
    places = batch * steps * math.prod(last) // cell.filters
    item = case.output.item_bytes
    found = Work(
        matrix_flops=2.0 * places * sum(kernels),
        other_flops=26.0 * places * cell.filters,
        inner_bytes=(places * cell.filters * 7 + steps * sum(kernels)) * item
        + case.input.bytes,
        transient_bytes=case.input.bytes + 4 * places // steps * cell.filters * item,
    )
    return replace(found, moved_bytes=_moved(case, found, steps))


def cell_sequences(case: Case) -> bool:
    """Whether a recurrent layer returns every step."""
    return bool(getattr(case.operation, "return_sequences", False))


def bidirectional(case: Case, formula: Callable[[Case], Work | None]) -> Work | None:
    """Both directions, and the merge of their outputs."""
    layer = case.operation
    sides = [
        formula(replace(case, operation=side))
        for side in (layer.forward_layer, layer.backward_layer)
    ]
    if sides[0] is None or sides[1] is None:
        return None
    both = _plus(sides[0], sides[1])
    moved = sum(side.moved_bytes or 0.0 for side in sides if side is not None)
    kept = layer.merge_mode == "mul"
    return replace(
        both,
        inner_bytes=both.inner_bytes + (2 * case.output.bytes if kept else 0),
        moved_bytes=moved + 2 * case.output.bytes,
        transient_bytes=case.input.bytes + case.output.bytes,
    )


def time_distributed(case: Case, formula: Callable[[Case], Work | None]) -> Work | None:
    """The wrapped layer once, on steps * batch samples, which are copies."""

    def merged(sizes: Sequence[Size]) -> tuple[Size, ...]:
        return tuple(
            replace(s, shape=(s.shape[0] * s.shape[1], *s.shape[2:])) for s in sizes
        )

    found = formula(
        replace(
            case,
            operation=case.operation.layer,
            inputs=merged(case.inputs[:1]),
            outputs=merged(case.outputs),
        )
    )
    if found is None:
        return None
    copied = case.input.bytes if found.saves_inputs else 0
    copied += case.output.bytes if found.saves_outputs else 0
    return replace(
        found,
        saves_inputs=(),
        saves_outputs=(),
        inner_bytes=found.inner_bytes + copied,
    )
