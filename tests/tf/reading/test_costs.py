"""Costs of calls: traces against formulas; models: `benchmarks/flops.py`."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import splitnet as sn
from splitnet.tf.internals.keras_api import nodes_of, producer, without_values
from splitnet.tf.reading import call_cost
from splitnet.tf.reading.call_cost import cost_of, size_of
from splitnet.tf.reading.traced import bytes_of, trace
from tests.tf.check import stack

ROW, STEPS, IMAGE = (4, 10), (4, 12, 24), (4, 12, 12, 16)
VIDEO = (4, 3, 8, 8, 4)


def call_of(body, *shapes, dtype="float32"):
    """The node of the last call that a body makes of inputs of these shapes."""
    inputs = [keras.Input(shape[1:], shape[0], dtype) for shape in shapes]
    with without_values():
        return producer(keras.tree.flatten(body(*inputs))[0])


def scanned(x):
    """A product of each step with the one before, over the second axis."""
    steps = keras.ops.swapaxes(x, 0, 1)
    return keras.ops.scan(lambda *two: [two[0] @ two[1]] * 2, steps[0], steps)[1]


def cells():
    return layers.RNN([layers.LSTMCell(16), layers.GRUCell(8)])


@pytest.mark.parametrize(
    ("make", "shape", "flops", "steps"),
    [
        # 2 * positions * elements of the kernel, which has channels / groups
        (lambda: layers.Dense(8, "gelu"), STEPS, 2 * 48 * 24 * 8, 1),
        (lambda: layers.EinsumDense("abc,cde->abde", (None, 3, 8)), STEPS, 55296, 1),
        (lambda: layers.Conv2D(8, 3, 2, groups=4), IMAGE, 2 * 100 * 9 * 4 * 8, 1),
        (lambda: layers.Conv2DTranspose(8, 3, 2), IMAGE, 2 * 4 * 144 * 9 * 16 * 8, 1),
        # depthwise, then pointwise
        (lambda: layers.SeparableConv2D(8, 3), IMAGE, 8 * 100 * (9 * 16 + 16 * 8), 1),
        # 2 * steps * gates * units * (features + units) for each sample
        (lambda: layers.GRU(16), STEPS, 4 * 2 * 12 * 3 * 16 * (24 + 16), 12),
        (lambda: layers.Bidirectional(layers.LSTM(16)), STEPS, 64 * 12 * 16 * 40, 24),
        (cells, STEPS, 4 * 2 * 12 * (4 * 16 * 40 + 3 * 8 * 24), 24),
        (lambda: layers.ConvLSTM2D(5, 3), VIDEO, 24 * 36 * 4 * 5 * 9 * (4 + 5), 3),
        (lambda: scanned, (5, 7, 5), 7 * 2 * 5 * 5 * 5, 7),
        (lambda: layers.TimeDistributed(layers.Conv2D(8, 3)), VIDEO, 12 * 72 * 288, 1),
    ],
)
def test_traces_count_by_the_formulas_of_the_literature(make, shape, flops, steps):
    """Loops count by their length, and each of their steps waits for the one before."""
    work = cost_of(call_of(lambda x: make()(x), shape), shape[0])
    assert work.matrix_flops == flops
    assert work.sequential_steps == steps


class Doubled(layers.Dense):
    """Multiplies twice, which its parent's formula does not know; keeps a metric."""

    def __init__(self, units, **more):
        super().__init__(units, **more)
        self.mean = keras.metrics.Mean()

    def call(self, inputs, training=None):
        self.mean.update_state(inputs)
        return super().call(inputs) + super().call(inputs * 2.0)


class Pair(layers.Layer):
    """Takes a list, and another tensor by name; holds one that is no variable."""

    def __init__(self):
        super().__init__()
        self.two = tf.constant(2.0)

    def call(self, both, scale=None):
        return ops.matmul(both[0], both[1]) * scale * self.two


class Compiled(layers.Dense):
    """Was traced with an open batch when it was called."""

    call = tf.function(layers.Dense.call)


class Closed(layers.Dense):
    """Cannot be traced."""

    def call(self, inputs):
        raise TypeError("only by hand")


def test_a_layer_with_a_call_of_its_own_is_traced(caplog):
    """Whatever it takes and holds; it is not taken for its parent."""
    squares = [(4, 6, 6)] * 3
    adapted = layers.Normalization()
    adapted.adapt(np.eye(10, dtype="float32"))
    words = layers.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")
    with caplog.at_level(logging.WARNING, logger="splitnet"):
        twice = cost_of(call_of(Doubled(8), ROW), 4)
        pair = cost_of(call_of(lambda a, b, c: Pair()([a, b], scale=c), *squares), 4)
        normalized = cost_of(call_of(adapted, ROW), 4)
        cost_of(call_of(words, (4, 1), dtype="string"), 4)
    assert caplog.text == ""
    assert twice.matrix_flops == 2 * (2 * 4 * 10 * 8)
    assert pair.matrix_flops == 2 * 4 * 6 * 6 * 6
    assert pair.saves_inputs == (0, 1, 2)
    assert pair.efficiency == "product"
    assert normalized.other_flops >= 2 * 4 * 10


def test_functions_of_one_name_are_traced_each():
    """Activations have one name; the gradient of one stands beside what it is given."""
    eye = np.eye(8, dtype="float32")
    for acts in (False, True):
        dense = layers.Dense(8, lambda x, acts=acts: x @ eye if acts else x)
        cost = cost_of(call_of(dense, ROW), 4)
        assert cost.matrix_flops == 2 * 4 * 10 * 8 + acts * 2 * 4 * 8 * 8
        assert cost.given_bytes == acts * 4 * 8 * 4


def test_what_has_no_gradient_or_no_trace(caplog):
    """The first is counted and keeps nothing; the other is guessed from its weights."""
    given = [tf.TensorSpec((4, 4))], [], [True], True
    found = trace(lambda x: tf.raw_ops.Lu(input=x @ x)[0], *given)
    assert found.matrix_flops == 2 * 4 * 4 * 4
    assert (found.saves_inputs, found.inner_bytes) == ((), 0)
    with caplog.at_level(logging.WARNING, logger="splitnet"):
        cost = cost_of(call_of(Closed(5, use_bias=False), ROW), 4)
    assert cost.matrix_flops == 2 * 10 * 5 * 4
    assert "(Closed) is guessed from its weights: tracing raised" in caplog.text


def test_costs_are_proportional_to_the_batch():
    """An open dimension counts as 128, or as what a model is called with."""
    node = producer(Compiled(8)(keras.Input((10,))))
    one, many = (cost_of(node, batch) for batch in (1, 32))
    steps = cost_of(producer(layers.Dense(4)(keras.Input((None, 8)))), 2)
    entry = keras.Input((None, None, 3))
    inner = keras.Model(entry, layers.Conv2D(4, 3, padding="same")(entry))
    called = cost_of(producer(inner(keras.Input((16, 16, 3)))), 1)
    assert many.forward_flops == 32 * one.forward_flops == 32 * (2 * 10 * 8 + 8)
    assert many.backward_flops == pytest.approx(2 * many.forward_flops, rel=0.06)
    assert steps.matrix_flops == 2 * 2 * 128 * 8 * 4
    assert called.matrix_flops == 2 * 16 * 16 * 27 * 4


def test_inputs_without_trained_weights_behind_them_cost_no_gradient():
    """The first trained layer makes only that of its weights, the next 4 x 6 floats."""
    row = (layers.Dense(6, use_bias=False, trainable=t) for t in (False, True, True))
    calls = sn.read(stack(*row), 4).calls[1:]
    assert [c.backward_flops / c.forward_flops for c in calls] == [0, 1, 2]
    assert [c.workspace_bytes for c in calls] == [0, 0, 96]
    x = keras.Input((6,))
    y = layers.Dense(6)(ops.stop_gradient(layers.Dense(6)(x)))
    last = sn.read(keras.Model(x, y), 4).calls[-1]
    assert last.backward_flops < 1.1 * last.forward_flops


def test_what_may_read_a_tensor_at_the_same_time_does_not_write_over_it():
    """The gradients of a product's two factors stand beside the one that both read."""
    attends = call_of(lambda x: layers.AdditiveAttention()([x, x]), (4, 6, 8))
    assert cost_of(attends, 4).workspace_bytes == 3 * (4 * 6 * 6 * 8 * 4)


def test_calls_that_differ_in_sizes_alone_are_traced_a_few_times(monkeypatch):
    """Twelve growing blocks take few traces, and cost what each would be traced at."""
    traced = []

    def counted(*args):
        traced.append(args)
        return trace(*args)

    x = keras.Input((16, 16, 8))
    nodes = []
    with without_values():
        for _ in range(12):
            more = layers.BatchNormalization()(x)
            more = layers.Conv2D(7, 3, padding="same", activation="selu")(more)
            nodes += [producer(x), producer(more)] if nodes else [producer(more)]
            x = layers.Concatenate()([x, more])
    monkeypatch.setattr(call_cost, "trace", counted)
    quick = [cost_of(node, batch) for batch in (9, 3) for node in nodes]
    few = len(traced)
    monkeypatch.setattr(call_cost, "_key", lambda *_: None)
    assert quick == [cost_of(node, batch) for batch in (9, 3) for node in nodes]
    assert few < 20 < 40 < len(traced) - few


def test_strings_stay_on_the_cpu():
    """What touches strings, and tables of them, has no kernel elsewhere."""
    words = keras.Input((3,), dtype="string")
    numbers = layers.StringLookup(vocabulary=["a", "b"])(words)
    joined = layers.Concatenate()([words, words])
    assert [cost_of(producer(t), 2).cpu_only for t in (numbers, joined)] == [True, True]
    assert not cost_of(producer(layers.Flatten()(numbers)), 2).cpu_only


def convolutions(x):
    for filters in (4, 8):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return layers.Dense(5)(layers.Flatten()(x))


def attention(x):
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 16)(x, x))
    wide = layers.Dense(64, activation="gelu")(x)
    return layers.Dropout(0.1)(x + layers.Dense(24)(wide))


@pytest.mark.parametrize(("body", "shape"), [(convolutions, IMAGE), (attention, STEPS)])
def test_a_model_costs_the_sum_of_its_calls(body, shape):
    """FLOPs and what is kept, read one by one or as one."""
    entry = keras.Input(shape[1:])
    model = keras.Model(entry, body(entry))
    node = producer(model(keras.Input(shape[1:])))
    whole, calls = cost_of(node, 4), sn.read(model, batch=4).calls
    kept = [node.input_tensors[i] for i in whole.saves_inputs]
    kept += [node.outputs[i] for i in whole.saves_outputs]
    held = whole.inner_bytes + bytes_of(*(size_of(tensor, 4) for tensor in kept))
    assert sum(c.activation_bytes for c in calls) == pytest.approx(held, rel=0.03)
    works = [cost_of(node, 4) for node in nodes_of(model)]
    for what in ("forward_flops", "backward_flops", "moved_bytes"):
        sums = sum(getattr(work, what) for work in works)
        assert getattr(whole, what) == pytest.approx(sums, rel=0.03), what
    assert whole.efficiency in {call.efficiency for call in calls}
    assert whole.kernels == sum(call.kernels for call in calls)


def test_xla_fuses_operations_on_elements_with_what_reads_them():
    """A norm reads its input for a mean, a variance and its output; loops stay."""
    x, y = keras.Input((64, 16)), keras.Input((2,), dtype="int32")
    norm = layers.BatchNormalization(name="norm")(x)
    rows = layers.Embedding(9000, 16, name="rows")(y)
    call = sn.read(keras.Model([x, y], [norm, rows]), 32).call
    looped = sn.read(keras.Model(x, layers.LSTM(4)(norm)), 32)
    assert call["norm"].fused_kernels == 3
    assert call["norm"].fused_bytes == pytest.approx(4 * 32 * 64 * 16 * 4, rel=0.01)
    assert call["rows"].fused_bytes < 3 * call["rows"].output_bytes
    assert not any(one.fused_kernels for one in looped.calls)


def test_a_kept_tensor_counts_once():
    """To its maker if that reads it again; a view has the memory of its input."""

    def kept_in(body, shape, batch):
        x = keras.Input(shape)
        graph = sn.read(keras.Model(x, body(x)), batch)
        kept.append([tensor.kept for tensor in graph.tensors])
        return [call.activation_bytes for call in graph.calls[1:]]

    def heads(x):
        shared = layers.Dense(8, activation="relu")(x)
        return [layers.Dense(3)(shared) for _ in range(3)]

    def flat(x):
        return layers.Dense(2)(layers.Flatten()(layers.ReLU()(layers.Dense(4)(x))))

    kept = []
    assert kept_in(heads, (6,), 2) == [2 * 6 * 4 + 2 * 8 * 4, 0, 0, 0]
    assert kept_in(flat, (4, 4), 1) == [64, 64, 0, 0]
    assert kept == [[True, True, True, True], [True, False, False, True]]
