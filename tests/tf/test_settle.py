"""What a graph of calls keeps for its backward pass, each tensor once."""

from collections.abc import Callable

import keras
import pytest
from keras import layers

from splitnet.tf.costs.call_cost import (
    CallCost,
    calls_inside,
    costs_of,
    peak_bytes,
    settle,
)
from splitnet.tf.costs.traced import trace
from splitnet.tf.costs.value import size_of
from splitnet.tf.internals.keras_api import nodes_of, producer
from tests.tf.costed import kept_bytes, small_model

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("cluster")]


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


def test_peak_bytes_is_at_least_what_is_kept() -> None:
    """The fullest moment holds all that is kept, and not all that ever was."""
    calls, given, _ = calls_inside(small_model(), 8)
    kept = sum(cost.activation_bytes for cost in settle(calls, 8))
    every = sum(size_of(t, 8).bytes for _, _, outputs in calls for t in outputs)

    peak = peak_bytes(calls, 8)

    assert kept <= peak <= kept + 2 * every
    assert peak_bytes(calls, 8, outside=given) < peak
