"""Declared nets over two or three stand-ins and a CPU."""

from dataclasses import replace

import keras
import numpy as np
from keras import layers

import splitnet as sn
from tests.tf.check import SAMPLES, Case, classes, into, numbers, words

NETS = {}
case = into(NETS)


def two_branches(left=None, right=None, head=None, *, shape=(6,)):
    """One input, two bodies on two devices, a sum on the CPU, a head on the second."""
    left, right = left or layers.Dense(4), right or layers.Dense(4, name="right")
    net = sn.Net("two_branches")
    x = net.input("x", shape)
    a = net.branch("left", x, left, on="gpu:0")
    b = net.branch("right", x, right, on="gpu:1")
    both = net.merge("both", [a, b], layers.Add())
    net.output(net.branch("head", both, head or layers.Dense(2), on="gpu:1"))
    return Case(net, numbers(*shape), numbers(2, seed=1))


@case
def shared_lstm():
    """The Keras FAQ: one LSTM, in a function, reads two tweets on two devices."""
    net = sn.Net("siamese")
    tweet_a, tweet_b = net.input("tweet_a", (3, 4)), net.input("tweet_b", (3, 4))
    encoder = layers.LSTM(6)

    def encode(tweet):
        return encoder(tweet)

    left = net.branch("left", tweet_a, encode, on="gpu:0")
    right = net.branch("right", tweet_b, encode, on="gpu:1")
    joined = net.merge("join", [left, right], layers.Concatenate())
    head = layers.Dense(1, activation="sigmoid")
    net.output(net.branch("verdict", joined, head, on="cpu"))
    x = [numbers(3, 4), numbers(3, 4, seed=1)]
    return Case(net, x, classes(2).astype("float32")[:, None], "binary_crossentropy")


@case
def wide_and_deep():
    """An embedding on the CPU, whose gradient must stay sparse, beside dense layers."""
    net = sn.Net("wide_and_deep")
    ids, facts = net.input("ids", (6,), dtype="int32"), net.input("facts", (5,))
    rows = net.branch("rows", ids, layers.Embedding(50, 4), on="cpu")
    body = [layers.Flatten(), layers.Dense(7, activation="relu")]
    deep = net.branch("deep", rows, body, on="gpu:0")
    wide = net.branch("wide", facts, layers.Dense(7), on="gpu:1")
    both = net.merge("both", [deep, wide], layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(1), on="gpu:0"))
    return Case(net, [words(6, 50), numbers(5)], numbers(1, seed=2))


@case
def inception():
    """One tensor read on three devices, whose gradients meet; BatchNorm, Dropout."""
    net = sn.Net("inception")
    body = [layers.Conv2D(4, 3), layers.BatchNormalization()]
    stem = net.branch("stem", net.input("image", (6, 6, 3)), body, on="gpu:0")
    pool = [layers.AveragePooling2D(3, 1, padding="same"), layers.Dropout(0.3)]
    ways = [
        net.branch("one", stem, layers.Conv2D(3, 1), on="gpu:0"),
        net.branch("three", stem, layers.Conv2D(3, 3, padding="same"), on="gpu:1"),
        net.branch("pool", stem, pool, on="gpu:2"),
    ]
    both = net.merge("mixed", ways, layers.Concatenate(), on="gpu:1")
    head = [layers.GlobalAveragePooling2D(), layers.Dense(3)]
    net.output(net.branch("head", both, head, near=both))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Case(net, numbers(6, 6, 3), classes(3), loss)


@case
def many_inputs_and_outputs():
    """A loss and weight for each output; a tuple; saturated ends, read as logits."""
    net = sn.Net("many 入出")
    a, b = net.input("a", (4,)), net.input("b", (3,))
    mix = layers.Dense(5, activation="tanh", name="mix")

    def body(p, q):
        return mix(layers.Concatenate(name="glue")([p, q])), p[:, 1:] * 2.0

    mixed, raw = net.branch("stem of both", {"p": a, "q": b}, body, on="gpu:0")
    bias = keras.initializers.Constant([60.0, -60.0, 0.0])
    kind = layers.Dense(3, activation="softmax", bias_initializer=bias)
    net.output(net.branch("kind", mixed, kind, on="gpu:1"), "kind")
    sure = [layers.Dense(1, bias_initializer=keras.initializers.Constant(60.0))]
    sure.append(layers.Activation("sigmoid"))
    net.output(net.branch("größe", mixed, sure, on="gpu:2"), "sure")
    net.output(net.branch("echo", raw, layers.Dense(1), on="gpu:0"), "echo")
    losses = {"kind": "sparse_categorical_crossentropy", "echo": "mae"}
    losses["sure"] = "binary_crossentropy"
    y = {"kind": np.ones(SAMPLES, "int32"), "echo": numbers(1, seed=3)}
    y["sure"] = np.zeros((SAMPLES, 1), "float32")
    weights = {"kind": 1.0, "sure": 0.5, "echo": 0.25}
    more = {"loss_weights": weights, "metrics": {"kind": ["accuracy"]}}
    x = {"a": numbers(4), "b": numbers(3, seed=1)}
    return Case(net, x, y, losses, compilation=more)


@case
def attention():
    """Causal self-attention, and cross-attention over a masked memory."""
    net = sn.Net("attention")
    ids, query = net.input("ids", (6,), dtype="int32"), net.input("query", (5, 8))
    table = layers.Embedding(11, 8, mask_zero=True)
    memory = net.branch("memory", ids, table, on="gpu:0")
    own = layers.MultiHeadAttention(2, 4, dropout=0.1, name="own")
    cross = layers.MultiHeadAttention(2, 4, name="cross")

    def itself(q):
        return own(q, q, use_causal_mask=True) + q

    told = net.branch("itself", query, itself, on="gpu:1")
    seen = net.branch("seen", [told, memory], lambda q, m: cross(q, m) + q, on="gpu:2")
    net.output(net.branch("head", seen, layers.Dense(2), on="gpu:0"))
    return Case(net, [words(6), numbers(5, 8)], numbers(5, 2, seed=1))


class Pressed(layers.Layer):
    """A user's own layer that adds a loss."""

    def call(self, inputs):
        self.add_loss(0.3 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@case
def losses_inside():
    """add_loss, and penalties of activities and weights on every device, one shared."""
    shared = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")
    far = layers.Dense(4, kernel_regularizer=keras.regularizers.L1L2(0.1, 0.2))
    inner = keras.Input((4,))  # of a model that is kept as one call
    far = keras.Model(inner, Pressed()(far(inner)))
    left = [shared, Pressed(), layers.Dense(4, bias_regularizer="l2")]
    whole = keras.regularizers.OrthogonalRegularizer()
    return two_branches(left, [shared, far], layers.Dense(2, kernel_regularizer=whole))


@case
def mixed_float16():
    """Cuts in float16, weights in float32; the loss scale falls and rises."""
    sides = layers.Dense(5, activation="relu"), layers.Dense(5)
    branches = two_branches(*sides, layers.Dense(2, dtype="float32"))

    def scaled():
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=2.0**17, dynamic_growth_steps=1
        )

    # Graphs and eager steps round half precision at other places.
    more = {"run_eagerly": False}
    return replace(branches, optimizer=scaled, compilation=more, sizes=(5, 5, 5, 5))
