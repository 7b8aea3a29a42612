"""Towers, pipelines, recomputation, compiled parts and split layers, and all in one."""

from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import splitnet as sn
from tests.tf.check import SAMPLES, Case, classes, into, numbers, words

FOUR = ["gpu:0", "gpu:1", "gpu:2", "cpu"]
THREE, TWO = FOUR[:3], FOUR[:2]
WAYS = {}
case = into(WAYS)


def towered(body, shape, **options):
    """A net of one input, towers of a body, and a head on the CPU."""
    net = sn.Net("towered")
    made = net.towers("body", net.input("x", shape), body, **{"on": FOUR} | options)
    net.output(net.branch("head", made, layers.Dense(3), on="cpu"))
    return net


class Pressed(layers.Layer):
    """Adds a loss for each sample, which Keras sums."""

    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.sum(keras.ops.square(inputs), axis=-1))
        return inputs


def conv_body():
    """What would crash if a tower had no sample, or its weights were elsewhere."""
    conv, two = layers.Conv2D(4, 3, activation="relu"), layers.Conv2D(4, 2, groups=2)
    flat = [layers.Flatten(), layers.Dense(6, "tanh"), Pressed()]
    return [conv, layers.MaxPool2D(), two, *flat]


@case
def towers():
    """Small batches leave some towers without a sample; weights are elsewhere."""
    net = towered(conv_body(), (8, 8, 2), weights_on="gpu:1")
    return Case(net, numbers(8, 8, 2), numbers(3, seed=1), sizes=(5, 3, 2, 1))


@keras.saving.register_keras_serializable("ways")
class Renamed(layers.BatchNormalization):
    """A BatchNormalization under another name."""


@case
def towers_synchronised():
    """Statistics, averages and gradients are the whole batch's; a layer adds losses."""
    penal = layers.Dense(5, activity_regularizer="l2", kernel_regularizer="l2")
    inner = keras.Input((6,))
    penal = keras.Model(inner, penal(inner))
    still = keras.Sequential([layers.BatchNormalization(trainable=False)])
    body = [layers.Dense(6), Renamed(activity_regularizer="l2"), still, penal]
    net = towered(body, (4,), batch_norm="synchronised")
    return Case(net, 3 + numbers(4), numbers(3), sizes=(8, 5, 3, 2))


@case
def towers_of_a_dict():
    """Embeddings with masks, and two outputs, joined with their masks."""
    net = sn.Net("rich")
    ids, size = net.input("words", (6,), "int32"), net.input("size", (2,))
    embed, narrow = layers.Embedding(11, 5, mask_zero=True), layers.Dense(5)

    def body(words, size):
        twice = keras.ops.multiply(size, 2.0)  # which Keras takes for sparse
        return {"words": embed(words), "size": narrow(twice)}

    made = net.towers("both", {"words": ids, "size": size}, body, on=TWO)
    mean = layers.GlobalAveragePooling1D()
    read = net.branch("read", made["words"], mean, on="gpu:1")
    joined = net.merge("join", [read, made["size"]], layers.Add())
    net.output(net.branch("head", joined, layers.Dense(3), on="cpu"))
    return Case(net, {"words": words(6), "size": numbers(2)}, numbers(3))


@case
def towers_in_a_chain():
    """Towers that read towers and share a layer; a saturated softmax as logits."""
    net = sn.Net("chain")
    x, b = net.input("x", (4,)), net.input("b", (6,))
    shared = layers.Dense(5)
    one = net.towers("first", x, layers.Dense(6, activation="relu"), on=TWO)
    two = net.towers("second", one, shared, on=["gpu:1", "gpu:2"])
    side = net.branch("side", b, shared, on="gpu:0")
    joined = net.merge("join", [two, side], layers.Add())
    net.output(net.towers("soft", joined, layers.Dense(3, "softmax"), on=FOUR))
    x = [30 * numbers(4), 30 * numbers(6)]
    return Case(net, x, classes(3), "sparse_categorical_crossentropy")


def chain(body=None, **way):
    """Three stages on three devices, penalties, and weights of samples."""
    net = sn.Net("chain")
    x = net.input("x", (8,))
    a = net.branch("a", x, [layers.Dense(12, activation="relu")], on="gpu:0")
    dense = layers.Dense(12, activation="tanh", activity_regularizer="l2")
    b = net.branch("b", a, body or [dense, layers.LayerNormalization()], on="gpu:1")
    last = layers.Dense(4, activation="softmax", kernel_regularizer="l2")
    net.output(net.branch("c", b, last, on="gpu:2"))
    loss = "sparse_categorical_crossentropy"
    weights = np.random.default_rng(2).random(SAMPLES).astype("float32")
    more = {"way": way, "weights": weights, "sizes": (6, 6)}
    return Case(net, numbers(8), classes(4), loss, **more)


@case
def one_f_one_b():
    """Four pieces, some of them empty at times, whose stages are recomputed."""
    body = [layers.Dense(12, "tanh", activity_regularizer="l2"), Pressed()]
    made = chain(body, microbatches=4, schedule="1f1b", recompute=True)
    return replace(made, sizes=(6, 6, 1), compilation={"metrics": ["accuracy"]})


@case
def recomputed_states():
    """Dropout drops the same twice, BatchNormalization moves its averages once."""
    body = [layers.Dense(12, activation="tanh"), layers.Dropout(0.5, seed=4)]
    return chain([*body, layers.BatchNormalization()], recompute=True)


@case
def compiled_states():
    """States leave a compiled function; XLA draws other numbers, so none is dropped."""
    drop = layers.Dropout(1e-9, seed=1)
    return chain([layers.Dense(12), layers.BatchNormalization(), drop], xla=True)


@case
def recomputed_masks():
    """A mask leaves a recomputed loop; a table's gradient stays sparse."""
    net = sn.Net("masks")
    x = net.input("x", (6,), "int32")
    loop = layers.SimpleRNN(6, return_sequences=True)
    a = net.branch("a", x, [layers.Embedding(11, 5, mask_zero=True), loop], on="gpu:0")
    mean = [layers.GlobalAveragePooling1D(), layers.Dense(4)]
    net.output(net.branch("b", a, mean, on="gpu:1"))
    return Case(net, words(6), numbers(4), way={"recompute": True, "microbatches": 2})


@case
def outputs_of_pieces():
    """Losses of outputs are the whole batch's, and no mean of pieces of 3 and 2."""
    net = sn.Net("two")
    x = net.input("x", (8,))
    a = net.branch("a", x, layers.Dense(12, activation="relu"), on="gpu:0")
    net.output(net.branch("u", a, layers.Dense(3, name="u"), on="gpu:1"), "u")
    net.output(net.branch("v", a, layers.Dense(1, name="v"), on="gpu:2"), "v")
    y, losses = {"u": numbers(3), "v": numbers(1, seed=3)}, {"u": "mse", "v": "mae"}
    how = {"way": {"microbatches": 2}}
    more = {"loss_weights": {"u": 2, "v": 1}}
    return Case(net, numbers(8), y, losses, compilation=more, **how)


class Recomputed(layers.Dense):
    """Keeps nothing for its backward pass, in which it is computed again."""

    def call(self, inputs):
        return tf.recompute_grad(lambda x: tf.tanh(tf.matmul(x, self.kernel)))(inputs)


class Doubled(layers.Dense):
    """Has a gradient of its own: twice the true one, for its input and its weights."""

    def call(self, inputs):
        @tf.custom_gradient
        def doubled(x):
            def back(dy, variables=None):
                over_x = 2.0 * tf.matmul(dy, self.kernel, transpose_b=True)
                return over_x, [2.0 * tf.matmul(x, dy, transpose_a=True)]

            return tf.matmul(x, self.kernel), back

        return doubled(inputs)


class Compiled(layers.Dense):
    """XLA, by which it is compiled, reads weights of its own device only."""

    call = tf.function(layers.Dense.call, jit_compile=True)


def own_gradients(*, towers=False, **more):
    """Layers with gradients of their own, whose weights are on another device."""
    net = sn.Net("own")
    x = net.input("x", (6,))
    body = [kind(6, use_bias=False) for kind in (Recomputed, Doubled, Compiled)]
    if towers:
        last = net.towers("here", x, body, on=TWO)
    else:
        here = net.branch("here", x, body, on="gpu:0")
        last = net.branch("there", here, body, on="gpu:1")
    net.output(net.branch("head", last, layers.Dense(1), on="gpu:1"))
    return Case(net, numbers(6), numbers(1), **more)


@case
def own_gradients_in_towers():
    return own_gradients(towers=True)


@case
def own_gradients_in_pieces():
    """Recomputed as well; each micro-batch reads such weights itself."""
    return own_gradients(way={"recompute": True, "microbatches": 2}, audited=False)


@case
def split_images():
    """Convolutions and a dense layer, each cut in three, with a penalty."""
    net = sn.Net("split_images")
    last = net.input("x", (6, 6, 2))
    conv, again = layers.Conv2D(5, 3, activation="relu"), layers.Conv2DTranspose(4, 3)
    last = net.split("conv", last, conv, on=THREE)
    last = net.split("again", last, again, on=THREE)
    last = net.branch("flat", last, layers.Flatten(), on="cpu")
    wide = layers.Dense(10, "softmax", kernel_regularizer="l2")
    last = net.split("wide", last, wide, on=THREE)
    net.output(net.branch("head", last, layers.Dense(2), on="cpu"))
    return Case(net, numbers(6, 6, 2), numbers(2))


@case
def split_words():
    """A table whose mask passes a join to attention, heads and groups; a product."""
    net = sn.Net("split_words")
    ids, key = net.input("words", (6,), "int32"), net.input("key", (6, 8))
    seen = net.split("table", ids, layers.Embedding(11, 8, mask_zero=True), on=TWO)
    heads = layers.MultiHeadAttention(5, 3, value_dim=4, kernel_regularizer="l2")
    given = {"query": seen, "value": seen, "key": key, "use_causal_mask": True}
    made = net.split("attend", given, heads, on=TWO)
    both = net.merge("both", [seen, made], layers.Add())
    made = net.split("groups", [key, both], layers.GroupQueryAttention(4, 8, 4), on=TWO)
    product = layers.EinsumDense("abc,bd->adc", (7, 8), bias_axes="d")
    made = net.split("product", made, product, on=TWO)
    read = [layers.Flatten(), layers.Dense(2)]
    net.output(net.branch("read", made, read, on="gpu:1"))
    return Case(net, [words(6), numbers(6, 8)], numbers(2))


@case
def everything_at_once():
    """Two branches, one of towers; a split layer; a head; all in a pipeline."""
    net = sn.Net("together")
    image, ids = net.input("image", (8, 8, 1)), net.input("words", (6,), "int32")
    see = [layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(6, "tanh"), Pressed()]
    see = net.towers("see", image, see, on=TWO)
    read = [layers.Embedding(11, 6), layers.Flatten()]
    tell = net.branch("tell", ids, read, on="gpu:2")
    both = net.merge("both", [see, tell], layers.Concatenate())
    wide = net.split("wide", both, layers.Dense(20, "relu"), on=TWO)
    net.output(net.branch("head", wide, layers.Dense(4, "softmax"), on="gpu:0"))
    x, loss = [numbers(8, 8, 1), words(6)], "sparse_categorical_crossentropy"
    way = {"microbatches": 2, "schedule": "1f1b"}
    return Case(net, x, classes(4), loss, way=way, optimizer=keras.optimizers.Adam)
