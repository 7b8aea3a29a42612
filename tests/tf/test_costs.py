"""Costs of calls that no formula knows, and what costing leaves alone."""

import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from splitnet.tf.costs.call_cost import (
    calls_inside,
    cost_of,
    settle,
)
from splitnet.tf.costs.traced import trace
from splitnet.tf.costs.value import Size
from splitnet.tf.internals.keras_api import has_value
from tests.tf.costed import ROW, built, small_model

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("cluster")]


class Doubled(layers.Dense):
    """Multiplies twice, which its parent's formula does not know."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Multiply, and multiply the same input again."""
        return super().call(inputs) + super().call(inputs * 2.0)


class Pair(layers.Layer):
    """Takes a list, and another tensor by name."""

    def call(self, both: list[Any], scale: Any = None) -> Any:
        """Multiply the two, batched, and scale."""
        return ops.matmul(both[0], both[1]) * scale


class Closed(layers.Layer):
    """Cannot be traced."""

    def build(self, shape: Any) -> None:
        """Make one matrix."""
        self.matrix = self.add_weight(shape=(shape[-1], 5))

    def call(self, inputs: Any) -> Any:
        """Refuse what is not a number."""
        raise TypeError("only by hand")

    def compute_output_shape(self, shape: Any) -> Any:
        """Five columns."""
        return (*shape[:-1], 5)


def test_cost_of_traces_a_layer_that_overrides_call() -> None:
    """A subclass with a call of its own is not taken for its parent."""
    layer = Doubled(8)
    _, inputs, outputs = built(layer, ROW)

    cost = cost_of(layer, inputs, outputs, 4)

    assert cost.matrix_flops == 2 * (2 * 4 * 10 * 8)
    assert cost.note == "Doubled: counted by tracing it"


def test_cost_of_traces_lists_and_keyword_tensors() -> None:
    """Tensors reach a traced call as they reached it in the model."""
    left, right, scale = (keras.Input((6, 6), batch_size=4) for _ in range(3))
    layer = Pair()
    result = layer([left, right], scale=scale)

    cost = cost_of(layer, [left, right, scale], [result], 4, {"scale": scale})

    assert cost.matrix_flops == 2 * 4 * 6 * 6 * 6
    assert cost.saves_inputs == (0, 1, 2)


def test_trace_counts_what_has_no_gradient() -> None:
    """A call that TensorFlow cannot differentiate is counted, and keeps nothing."""
    found = trace(lambda x: tf.raw_ops.Lu(input=x @ x)[0], [Size((4, 4))])

    assert found.matrix_flops == 2 * 4 * 4 * 4
    assert (found.saves_inputs, found.inner_bytes) == ((), 0)


def test_cost_of_guesses_what_cannot_be_traced() -> None:
    """If a call fails on abstract tensors, the note says that its cost is a guess."""
    layer = Closed()
    layer.build((4, 10))

    cost = cost_of(layer, [keras.KerasTensor((4, 10))], [keras.KerasTensor((4, 5))], 4)

    assert cost.matrix_flops == 2 * 10 * 5 * 4
    assert (
        "Closed: guessed from its weights, since tracing raised TypeError" in cost.note
    )


def test_cost_of_needs_and_gives_no_values() -> None:
    """Variables without values stay so, whether a formula or a trace looks at them."""
    for layer in (layers.Dense(8), Doubled(8), layers.BatchNormalization()):
        _, inputs, outputs = built(layer, ROW)
        cost_of(layer, inputs, outputs, 4)

        assert not any(has_value(variable) for variable in layer.variables)


def test_cost_of_does_not_start_the_runtime() -> None:
    """A trace leaves TensorFlow's settings open: it makes no device."""
    code = (
        "import keras\n"
        "from splitnet.tf.costs.call_cost import cost_of\n"
        "from splitnet.tf.runtime.configure import started\n"
        "from splitnet.tf.internals.keras_api import without_values\n"
        "class Own(keras.layers.Dense):\n"
        "    def call(self, x):\n"
        "        return super().call(x) * 2.0\n"
        "with without_values():\n"
        "    x = keras.Input((8,))\n"
        "    layer = Own(4)\n"
        "    y = layer(x)\n"
        "print(cost_of(layer, [x], [y], 4).note, started())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "Own: counted by tracing it False"


def test_cost_of_fills_in_the_batch() -> None:
    """FLOPs and bytes of activations are proportional to the batch."""
    x = keras.Input((10,))
    layer = layers.Dense(8)
    y = layer(x)

    one, many = (cost_of(layer, [x], [y], batch) for batch in (1, 32))

    assert many.forward_flops == 32 * one.forward_flops == 32 * (2 * 10 * 8 + 8)
    assert many.activation_bytes == 32 * one.activation_bytes == 32 * 40
    assert many.backward_flops == pytest.approx(2 * many.forward_flops, rel=0.06)


def test_cost_of_says_which_dimensions_it_guessed() -> None:
    """An open dimension that is not the batch is counted as 128, and noted."""
    x = keras.Input((None, 8))
    layer = layers.Dense(4)
    y = layer(x)

    cost = cost_of(layer, [x], [y], 2)

    assert cost.matrix_flops == 2 * 2 * 128 * 8 * 4
    assert cost.note == "open dimensions counted as 128"


def test_cost_of_keeps_strings_on_the_cpu() -> None:
    """What touches strings, and tables of them, has no kernel elsewhere."""
    words = keras.Input((3,), dtype="string")
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    numbers = lookup(words)
    joined = layers.Concatenate()([words, words])

    assert cost_of(lookup, [words], [numbers], 2).cpu_only
    assert cost_of(layers.Concatenate(), [words, words], [joined], 2).cpu_only
    assert not cost_of(layers.Flatten(), [numbers], [numbers], 2).cpu_only


def test_cost_of_counts_bytes_of_the_compute_dtype() -> None:
    """Half precision keeps half as much."""
    whole, half = (
        layers.Conv2D(8, 3, activation="relu", dtype=policy)
        for policy in ("float32", "mixed_float16")
    )
    kept = []
    for layer, dtype in ((whole, "float32"), (half, "float16")):
        x = keras.KerasTensor((4, 12, 12, 16), dtype)
        layer.build(x.shape)
        y = keras.KerasTensor((4, 10, 10, 8), dtype)
        kept.append(cost_of(layer, [x], [y], 4).activation_bytes)

    assert kept[0] == 2 * kept[1]


def test_cost_of_a_nested_model_is_the_sum_of_its_calls() -> None:
    """Kept whole, a model costs what its calls cost, settled."""
    inner = small_model()
    x = keras.Input((12, 12, 3))
    y = inner(x)

    cost = cost_of(inner, [x], [y], 2)

    calls, given, _ = calls_inside(inner, 2)
    settled = settle(calls, 2, differentiable=given)
    assert cost.forward_flops == sum(one.forward_flops for one in settled)
    assert cost.activation_bytes == sum(one.activation_bytes for one in settled)
    assert cost.saves_inputs == (0,)
    assert cost.trainable


def test_cost_of_a_nested_model_follows_the_sizes_of_its_call() -> None:
    """A model with open sizes costs more when it is called with more."""
    entry = keras.Input((None, None, 3))
    inner = keras.Model(entry, layers.Conv2D(4, 3, padding="same")(entry))
    costs = []
    for extent in (8, 16):
        x = keras.Input((extent, extent, 3))
        costs.append(cost_of(inner, [x], [inner(x)], 1))

    assert costs[1].matrix_flops == 4 * costs[0].matrix_flops
    assert costs[0].matrix_flops == 2 * 8 * 8 * 27 * 4
    assert not costs[0].note


def test_cost_of_a_sequential_is_that_of_its_layers() -> None:
    """A Sequential is a model like any other."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4), layers.Dense(2)])

    cost = cost_of(model, model.inputs, model.outputs, 3)

    assert cost.matrix_flops == 2 * 3 * (6 * 4 + 4 * 2)


def test_cost_of_leaves_a_layer_as_it_was() -> None:
    """Tracing a layer changes neither its weights nor its losses nor its metrics."""
    layer = Doubled(8, activity_regularizer="l2")
    x = keras.Input((10,), batch_size=4)
    y = layer(x)
    before = [np.array(w) for w in layer.get_weights()]
    nodes = len(layer._inbound_nodes)
    losses = len(layer.losses)

    cost_of(layer, [x], [y], 4)

    assert all(np.array_equal(a, b) for a, b in zip(before, layer.get_weights()))
    assert (len(layer._inbound_nodes), len(layer.losses)) == (nodes, losses)
