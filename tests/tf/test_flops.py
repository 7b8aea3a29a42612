"""Costs of calls: against published figures and TensorFlow's own gradient graphs."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
from keras import layers, ops

from splitnet.tf.costs.call_cost import (
    cost_of,
)
from splitnet.tf.costs.pointwise import ACTIVATIONS
from splitnet.tf.costs.traced import trace
from splitnet.tf.costs.value import Size
from splitnet.tf.internals.keras_api import without_values
from tests.tf.costed import (
    LAYERS,
    built,
    in_training,
    kept_bytes,
)

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("cluster")]
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "flops.py"
PUBLISHED = runpy.run_path(str(BENCHMARK))["PUBLISHED"]
SLOW = {"NASNetLarge", "ConvNeXtSmall", "ConvNeXtBase", "EfficientNetB7", "ResNet152"}


@pytest.mark.parametrize("name", LAYERS)
def test_cost_of_agrees_with_the_gradient_graph(name: str) -> None:
    """FLOPs of a formula, and what it says is kept, are those of the traced graph."""
    make, shapes = LAYERS[name]
    layer = make()
    call, inputs, outputs = built(layer, shapes)
    found = trace(
        in_training(call, layer), [Size(shape) for shape in shapes], layer.variables
    )

    cost = cost_of(layer, inputs, outputs, 4)

    assert cost.matrix_flops == pytest.approx(found.matrix_flops, rel=1e-3)
    kept = kept_bytes(found, inputs, outputs)
    assert cost.activation_bytes == pytest.approx(kept, rel=0.1, abs=64)


@pytest.mark.parametrize(
    ("name", "options", "millions"),
    [
        pytest.param(*row[:3], id=row[0] + "".join(f"-{v}" for v in row[1].values()))
        for row in PUBLISHED
        if row[0] not in SLOW and "input_shape" not in row[1]
    ],
)
def test_cost_of_agrees_with_published_figures(
    name: str, options: dict[str, Any], millions: float
) -> None:
    """Multiply-adds of models that others counted are within 2 % of their figure."""
    with without_values():
        model = getattr(keras.applications, name)(weights=None, **options)

    cost = cost_of(model, model.inputs, model.outputs, 1)

    assert cost.matrix_flops / 2e6 == pytest.approx(millions, rel=0.02)
    assert not cost.note


@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if n != "threshold"])
def test_activation_keeps_what_tensorflow_keeps(name: str) -> None:
    """Each line of the table of activations holds in TensorFlow's gradient graph."""
    size = Size((8, 16, 24))
    found = trace(getattr(keras.activations, name), [size])
    layer = layers.Activation(name)
    _, inputs, outputs = built(layer, [size.shape])

    cost = cost_of(layer, inputs, outputs, 4)

    assert cost.activation_bytes == pytest.approx(
        kept_bytes(found, inputs, outputs), rel=0.05
    )


RAW: dict[str, tuple[Callable[..., Any], int]] = {
    "exp": (ops.exp, 1),
    "log": (ops.log, 1),
    "log2": (ops.log2, 1),
    "sqrt": (ops.sqrt, 1),
    "square": (ops.square, 1),
    "abs": (ops.abs, 1),
    "sin": (ops.sin, 1),
    "negative": (ops.negative, 1),
    "twice": (lambda x: x * 2.0, 1),
    "half": (lambda x: x / 2.0, 1),
    "sum": (lambda x: ops.sum(x, axis=-1), 1),
    "mean": (lambda x: ops.mean(x, axis=-1), 1),
    "max": (lambda x: ops.max(x, axis=-1), 1),
    "var": (lambda x: ops.var(x, axis=-1), 1),
    "logsumexp": (lambda x: ops.logsumexp(x, axis=-1), 1),
    "softmax": (ops.softmax, 1),
    "reshape": (lambda x: ops.reshape(x, (4, -1)), 1),
    "transpose": (ops.transpose, 1),
    "add": (ops.add, 2),
    "multiply": (ops.multiply, 2),
    "divide": (ops.divide, 2),
    "maximum": (ops.maximum, 2),
    "power": (ops.power, 2),
    "einsum": (lambda a, b: ops.einsum("bij,bkj->bik", a, b), 2),
    "matmul": (lambda a, b: ops.matmul(a, b), 2),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_operation_agrees_with_the_gradient_graph(name: str) -> None:
    """A raw operation costs what its traced graph costs."""
    call, count = RAW[name]
    shapes = [(4, 12, 12)] * count
    entries = [keras.Input(shape[1:], batch_size=4) for shape in shapes]
    result = call(*entries)
    node = result._keras_history.operation._inbound_nodes[0]
    found = trace(call, [Size(shape) for shape in shapes])

    cost = cost_of(node.operation, node.input_tensors, node.outputs, 4)

    kept = kept_bytes(found, node.input_tensors, node.outputs)
    assert cost.matrix_flops == found.matrix_flops
    assert cost.activation_bytes == pytest.approx(kept, rel=0.1)
