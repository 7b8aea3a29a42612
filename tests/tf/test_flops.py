"""Costs of calls: against published figures and TensorFlow's own gradient graphs."""

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from splitnet.tf.costs.pointwise import ACTIVATIONS
from splitnet.tf.costs.traced import Traced, trace
from splitnet.tf.costs.value import Size, size_of
from splitnet.tf.flops import (
    CallCost,
    calls_inside,
    cost_of,
    costs_of,
    peak_bytes,
    settle,
)
from splitnet.tf.private import has_value, nodes_of, producer, without_values

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("cluster")]

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "flops.py"
PUBLISHED = runpy.run_path(str(BENCHMARK))["PUBLISHED"]
SLOW = {"NASNetLarge", "ConvNeXtSmall", "ConvNeXtBase", "EfficientNetB7", "ResNet152"}

ROW, SEQUENCE, TWO = [(4, 10)], [(4, 12, 24)], [(4, 12, 24)] * 2
IMAGE, VIDEO, VOLUME = [(4, 12, 12, 16)], [(4, 3, 8, 8, 4)], [(2, 6, 6, 6, 4)]

LAYERS: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]]]] = {
    "dense": (lambda: layers.Dense(8, activation="relu"), ROW),
    "dense of a sequence": (lambda: layers.Dense(8, activation="gelu"), SEQUENCE),
    "dense softmax": (lambda: layers.Dense(8, activation="softmax"), ROW),
    "dense silu": (lambda: layers.Dense(8, activation="silu", use_bias=False), ROW),
    "einsum dense": (
        lambda: layers.EinsumDense("abc,cde->abde", (None, 3, 8), bias_axes="e"),
        SEQUENCE,
    ),
    "conv1d": (lambda: layers.Conv1D(8, 3), SEQUENCE),
    "conv1d causal": (lambda: layers.Conv1D(8, 3, padding="causal"), SEQUENCE),
    "conv2d": (lambda: layers.Conv2D(8, 3, activation="relu", padding="same"), IMAGE),
    "conv2d strided": (lambda: layers.Conv2D(8, 3, strides=2), IMAGE),
    "conv2d dilated": (lambda: layers.Conv2D(8, 3, dilation_rate=2), IMAGE),
    "conv2d grouped": (lambda: layers.Conv2D(8, 3, groups=4), IMAGE),
    "conv3d": (lambda: layers.Conv3D(8, 3), VOLUME),
    "conv1d transpose": (lambda: layers.Conv1DTranspose(8, 3, strides=2), SEQUENCE),
    "conv2d transpose": (lambda: layers.Conv2DTranspose(8, 3, strides=2), IMAGE),
    "conv3d transpose": (lambda: layers.Conv3DTranspose(8, 3, strides=2), VOLUME),
    "depthwise 1d": (lambda: layers.DepthwiseConv1D(3), SEQUENCE),
    "depthwise": (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), IMAGE),
    "separable 1d": (lambda: layers.SeparableConv1D(8, 3), SEQUENCE),
    "separable": (lambda: layers.SeparableConv2D(8, 3), IMAGE),
    "max pooling": (lambda: layers.MaxPooling2D(), IMAGE),
    "average pooling": (lambda: layers.AveragePooling2D(2), IMAGE),
    "global average": (lambda: layers.GlobalAveragePooling2D(), IMAGE),
    "global maximum": (lambda: layers.GlobalMaxPooling2D(), IMAGE),
    "attention heads": (lambda: layers.MultiHeadAttention(4, 6), TWO),
    "attention heads dropped": (
        lambda: layers.MultiHeadAttention(4, 6, dropout=0.1, value_dim=5),
        TWO,
    ),
    "grouped query": (lambda: layers.GroupQueryAttention(6, 4, 2), TWO),
    "attention": (lambda: layers.Attention(), TWO),
    "attention scaled": (lambda: layers.Attention(use_scale=True, dropout=0.1), TWO),
    "additive attention": (lambda: layers.AdditiveAttention(), TWO),
    "lstm": (lambda: layers.LSTM(16), SEQUENCE),
    "lstm sequences": (
        lambda: layers.LSTM(16, return_sequences=True, use_bias=False),
        SEQUENCE,
    ),
    "lstm dropped": (lambda: layers.LSTM(16, dropout=0.1), SEQUENCE),
    "lstm all dropped": (
        lambda: layers.LSTM(16, dropout=0.1, recurrent_dropout=0.2),
        SEQUENCE,
    ),
    "gru": (lambda: layers.GRU(16), SEQUENCE),
    "gru reset before": (lambda: layers.GRU(16, reset_after=False), SEQUENCE),
    "simple rnn": (lambda: layers.SimpleRNN(16), SEQUENCE),
    "stacked cells": (
        lambda: layers.RNN([layers.LSTMCell(16), layers.GRUCell(8)]),
        SEQUENCE,
    ),
    "conv lstm": (lambda: layers.ConvLSTM2D(5, 3), VIDEO),
    "both directions": (lambda: layers.Bidirectional(layers.LSTM(16)), SEQUENCE),
    "each step": (lambda: layers.TimeDistributed(layers.Conv2D(8, 3)), VIDEO),
    "batch norm": (lambda: layers.BatchNormalization(), IMAGE),
    "group norm": (lambda: layers.GroupNormalization(4), IMAGE),
    "layer norm": (lambda: layers.LayerNormalization(), SEQUENCE),
    "rms norm": (lambda: layers.RMSNormalization(), SEQUENCE),
    "unit norm": (lambda: layers.UnitNormalization(), SEQUENCE),
    "spectral norm": (
        lambda: layers.SpectralNormalization(layers.Dense(8)),
        ROW,
    ),
    "rescaling": (lambda: layers.Rescaling(2.0), IMAGE),
    "relu": (lambda: layers.ReLU(), IMAGE),
    "relu capped at 6": (lambda: layers.ReLU(6), IMAGE),
    "relu capped at 3": (lambda: layers.ReLU(3.0), IMAGE),
    "relu with a slope": (lambda: layers.ReLU(negative_slope=0.1), IMAGE),
    "relu with a threshold": (lambda: layers.ReLU(threshold=0.1), IMAGE),
    "leaky relu": (lambda: layers.LeakyReLU(), IMAGE),
    "elu": (lambda: layers.ELU(), IMAGE),
    "prelu": (lambda: layers.PReLU(), SEQUENCE),
    "softmax": (lambda: layers.Softmax(), ROW),
    "dropout": (lambda: layers.Dropout(0.1), IMAGE),
    "spatial dropout": (lambda: layers.SpatialDropout2D(0.1), IMAGE),
    "gaussian noise": (lambda: layers.GaussianNoise(0.1), IMAGE),
    "gaussian dropout": (lambda: layers.GaussianDropout(0.1), IMAGE),
    "alpha dropout": (lambda: layers.AlphaDropout(0.1), IMAGE),
    "add": (lambda: layers.Add(), TWO),
    "average": (lambda: layers.Average(), TWO),
    "multiply": (lambda: layers.Multiply(), TWO),
    "maximum": (lambda: layers.Maximum(), TWO),
    "concatenate": (lambda: layers.Concatenate(), TWO),
    "dot": (lambda: layers.Dot(axes=(2, 2)), TWO),
    "up sampling": (lambda: layers.UpSampling2D(), IMAGE),
    "bilinear": (lambda: layers.UpSampling2D(interpolation="bilinear"), IMAGE),
    "flatten": (lambda: layers.Flatten(), IMAGE),
    "permute": (lambda: layers.Permute((2, 1)), SEQUENCE),
    "padding": (lambda: layers.ZeroPadding2D(), IMAGE),
}
AS_LIST = (
    layers.Add,
    layers.Average,
    layers.Multiply,
    layers.Maximum,
    layers.Concatenate,
    layers.Dot,
    layers.Attention,
    layers.AdditiveAttention,
)


def built(
    layer: Any, shapes: list[tuple[int, ...]]
) -> tuple[Any, list[Any], list[Any]]:
    """How to call a layer with single tensors, its inputs and its outputs."""

    def call(*tensors: Any, **kwargs: Any) -> Any:
        if isinstance(layer, AS_LIST):
            return layer(list(tensors), **kwargs)
        return layer(*tensors, **kwargs)

    inputs = [keras.KerasTensor(shape) for shape in shapes]
    with without_values():
        outputs = keras.tree.flatten(call(*inputs))
    return call, inputs, outputs


def in_training(call: Callable[..., Any], layer: Any) -> Callable[..., Any]:
    """The call with `training=True` if the layer has such a mode."""
    if "training" not in layer.call.__code__.co_varnames:
        return call
    return lambda *tensors: call(*tensors, training=True)


def kept_bytes(found: Traced, inputs: list[Any], outputs: list[Any]) -> int:
    """All bytes that a gradient graph reads of its forward pass."""
    return (
        found.inner_bytes
        + sum(size_of(inputs[i], 4).bytes for i in found.saves_inputs)
        + sum(size_of(outputs[i], 4).bytes for i in found.saves_outputs)
    )


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
        "from splitnet.tf.flops import cost_of\n"
        "from splitnet.tf.context import started\n"
        "from splitnet.tf.private import without_values\n"
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


def small_model() -> keras.Model:
    """Two convolutions, normalised, pooled, flattened."""
    x = entry = keras.Input((12, 12, 3))
    for filters in (4, 8):
        x = layers.Conv2D(filters, 3, padding="same", name=f"conv_{filters}")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(x)
    return keras.Model(entry, layers.Dense(5)(layers.Flatten()(x)))


def transformer_block() -> keras.Model:
    """Attention and a feed-forward pair, both added to their inputs."""
    x = entry = keras.Input((16, 32))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 16)(x, x))
    wide = layers.Dense(64, activation="gelu")(x)
    return keras.Model(entry, layers.Dropout(0.1)(x + layers.Dense(32)(wide)))


def gated_recurrence() -> keras.Model:
    """An embedding, a recurrence and a gate."""
    x = entry = keras.Input((12,), dtype="int32")
    x = layers.GRU(24, return_sequences=True)(layers.Embedding(50, 16)(x))
    gate = layers.Dense(24, activation="sigmoid")(x)
    return keras.Model(entry, layers.Multiply()([x, gate]))


@pytest.mark.parametrize("make", [small_model, transformer_block, gated_recurrence])
def test_settle_keeps_what_a_whole_gradient_graph_reads(
    make: Callable[[], keras.Model],
) -> None:
    """Summed over a model, kept bytes are those of the model's own gradient graph."""
    model = make()
    [entry], [result] = model.inputs, model.outputs
    found = trace(
        lambda x: model(x, training=True), [size_of(entry, 4)], model.variables
    )

    calls, _, _ = calls_inside(model, 4)
    kept = sum(cost.activation_bytes for cost in settle(calls, 4))

    assert kept == pytest.approx(kept_bytes(found, [entry], [result]), rel=0.03)


def test_settle_counts_a_tensor_once() -> None:
    """A tensor that three layers keep is charged to the call that made it."""
    x = keras.Input((6,))
    shared = layers.Dense(8, activation="relu")(x)
    model = keras.Model(x, [layers.Dense(3)(shared) for _ in range(3)])
    calls, _, _ = calls_inside(model, 2)

    first, *heads = settle(calls, 2)

    assert first.activation_bytes == 2 * 6 * 4 + 2 * 8 * 4
    assert [head.activation_bytes for head in heads] == [0, 0, 0]


def test_settle_looks_through_views() -> None:
    """A flattened tensor is the memory of the tensor before it."""
    x = keras.Input((4, 4))
    made = layers.ReLU()(layers.Dense(4)(x))
    model = keras.Model(x, layers.Dense(2)(layers.Flatten()(made)))
    calls, _, _ = calls_inside(model, 1)

    dense, relu, flatten, head = settle(calls, 1)

    assert (relu.activation_bytes, flatten.activation_bytes) == (64, 0)
    assert (dense.activation_bytes, head.activation_bytes) == (64, 0)


def test_settle_spares_what_nothing_trains() -> None:
    """Below the first trained layer there is no backward pass and nothing is kept."""
    model = small_model()
    for layer in model.layers:
        layer.trainable = layer is model.layers[-1]
    calls, _, _ = calls_inside(model, 2)

    *frozen, head = settle(calls, 2)

    assert not any(cost.backward_flops for cost in frozen)
    assert head.backward_flops == pytest.approx(head.forward_flops)
    assert head.activation_bytes == 2 * 72 * 4
    assert not any(cost.activation_bytes for cost in frozen)


def test_settle_spares_the_gradient_of_the_data() -> None:
    """The first convolution has a gradient for its kernel only."""
    calls, _, _ = calls_inside(small_model(), 2)
    alone = calls[0][0]

    first = settle(calls, 2)[0]

    assert first.backward_flops == alone.backward_flops - alone.matrix_flops


def test_costs_of_nodes_are_settled() -> None:
    """All nodes of a model at once, its inputs among them, which cost nothing."""
    model = small_model()
    entry = producer(model.inputs[0])
    calls, _, _ = calls_inside(model, 2)

    first, *costs = costs_of([entry, *nodes_of(model)], 2)

    assert first == CallCost()
    assert costs == settle(calls, 2)


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


def test_peak_bytes_is_at_least_what_is_kept() -> None:
    """The fullest moment holds all that is kept, and not all that ever was."""
    calls, given, _ = calls_inside(small_model(), 8)
    kept = sum(cost.activation_bytes for cost in settle(calls, 8))
    every = sum(size_of(t, 8).bytes for _, _, outputs in calls for t in outputs)

    peak = peak_bytes(calls, 8)

    assert kept <= peak <= kept + 2 * every
    assert peak_bytes(calls, 8, outside=given) < peak


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
