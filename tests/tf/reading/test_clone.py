"""Clones have layers of their own on their devices, and the values of the source."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.reading.cloner import clone
from splitnet.tf.reading.source import blueprint_of
from tests.tf.check import assert_near, numbers, stack


def cloned(source, *, copy=True):
    return clone(blueprint_of(source), lambda layer: "/device:CPU:1", copy=copy)


class OwnState(layers.Layer):
    """Has functions over its weight, one in a list's closure, and a metric."""

    def __init__(self, **options):
        super().__init__(**options)
        self.mean = keras.metrics.Mean(name="seen")

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 3), name="w")
        self.f = tf.function(lambda x: tf.tanh(x @ self.w))
        doubled = tf.function(lambda x: x @ self.w * 2.0)
        self.more = [lambda x: doubled(x)]

    @tf.function
    def half(self, x):
        return x @ self.w / 2.0

    def call(self, x):
        self.mean.update_state(x)
        return self.f(x) + self.half(x) + self.more[0](x)


X = numbers(6, count=5)


@pytest.mark.parametrize("copy", [True, False])
def test_functions_of_a_layer_compute_with_its_weights(copy):
    """What they traced and metrics are the clone's, or move with a moved layer."""
    source = stack(OwnState(), layers.Dense(2))
    plain = source.predict(X, verbose=0)
    made = cloned(source, copy=copy).model
    np.testing.assert_allclose(made.predict(X, verbose=0), plain, rtol=1e-6)
    made.layers[1].w.assign(tf.zeros((6, 3)))
    assert np.ptp(made.predict(X, verbose=0), axis=0).max() == 0.0
    assert {v.value.device[-5:] for v in made.layers[1].mean.variables} == {"CPU:1"}
    if copy:
        np.testing.assert_array_equal(source.predict(X, verbose=0), plain)
        before = float(source.layers[1].mean.result())
        made.compile("sgd", "mse")
        made.train_on_batch(X, X[:, :2])
        assert float(source.layers[1].mean.result()) == before


@keras.saving.register_keras_serializable("tests")
class Counted(keras.initializers.Ones):
    """Counts how often a value is asked for."""

    calls = 0

    def __call__(self, shape, dtype=None):
        Counted.calls += 1
        return super().__call__(shape, dtype)


def test_no_value_is_drawn_that_the_source_has():
    """Weights are made with the source's values; random states are left as found."""
    source = stack(layers.Dense(3, kernel_initializer=Counted()), layers.Dropout(0.5))
    before = Counted.calls
    keras.utils.clear_session()  # Keras 3.12 would draw on
    keras.utils.set_random_seed(7)
    plain = random.random(), np.random.random(), float(keras.random.uniform(()))
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    made = cloned(source).model
    found = random.random(), np.random.random(), float(keras.random.uniform(()))
    assert Counted.calls == before
    assert plain == found
    assert_near(made(X), source(X))
    assert {v.value.device[-5:] for v in made.variables} == {"CPU:1"}


def test_clones_of_a_net_are_alike_and_have_the_layers_values(cluster):
    """Built layers give their values; others, some held and called, those of theirs."""
    built, inner, own = layers.Dense(3), layers.Dense(5), layers.Dense(2)
    built.build((None, 4))
    inner.build((None, 3))
    net = sn.Net("n")
    x, step = net.input("x", (4,)), keras.Input((4,))
    twice = keras.Model(step, layers.Dense(4)(layers.Dense(7)(step)))
    a = net.branch("a", x, twice, on="gpu:0")
    steps = [layers.RepeatVector(1), layers.TimeDistributed(twice), layers.Flatten()]
    body = [*steps, built, keras.Sequential([inner], name="s"), own]
    b = net.branch("b", x, body, on="gpu:1")
    net.output(net.merge("m", [a, b], layers.Concatenate()))
    one, two = cloned(net).model, cloned(net).model
    np.testing.assert_array_equal(one.get_layer(built.name).kernel, built.kernel)
    np.testing.assert_array_equal(one.get_layer("s").layers[0].kernel, inner.kernel)
    assert not own.built
    np.testing.assert_equal(one.get_weights(), two.get_weights())
    at_home = sn.place(net, cluster, batch=4).get_layer(twice.name).variables
    assert {v.value.device[-5:] for v in at_home} == {"CPU:1"}


def relu(x):
    return keras.ops.relu(x) + 0.1 * x


def l2(weight):
    return 0.3 * keras.ops.sum(keras.ops.square(weight))


class Scaled(layers.Dense):
    def build(self, shape):
        super().build(shape)
        self.scale = self.add_weight(shape=(3,), name="scale")

    def call(self, x):
        return super().call(x) * self.scale


class Doubled(keras.Sequential):
    def call(self, x, **more):
        return 2.0 * super().call(x, **more)


def test_functions_are_the_sources_though_keras_has_others_of_their_names():
    """Keras' configurations have names only; no layer is used itself for that."""
    for layer in (
        layers.Dense(3, relu, kernel_regularizer=l2),
        layers.TimeDistributed(layers.Dense(3, relu)),
        layers.GRU(3, relu, return_sequences=True),
        layers.Activation(keras.ops.gelu),
        layers.Dense(3, lambda x, a=2.0: a * x),
        layers.Dense(3, autocast=False, dtype="mixed_float16"),
        Scaled(3),
        Doubled([layers.Dense(3)]),
    ):
        source = stack(layers.Reshape((2, 3)), layer, layers.Flatten())
        made = cloned(source)
        assert not made.reused
        np.testing.assert_array_equal(made.model(X), source(X))
        np.testing.assert_array_equal(made.model.losses, source.losses)


def test_rules_of_variables_are_the_sources_whatever_its_layers_say():
    """A rule that a layer is given once it is built has no effect in Keras."""
    source = stack(layers.Dense(3), layers.Dense(2))
    first, second = source.layers[1:]
    first.kernel_regularizer = first.kernel_constraint = second.kernel.constraint = l2
    second.kernel.regularizer = l2
    one, two = cloned(source).model.layers[1:]
    assert one.kernel.regularizer is one.kernel.constraint is None
    assert two.kernel.regularizer is two.kernel.constraint is l2


TIED = {"call": lambda self, x: x @ keras.ops.transpose(self.kernel)}


@pytest.mark.parametrize("holder", ["a layer", "a rule", "the loss", "the model"])
def test_a_layer_whose_weights_something_else_holds_is_used_itself(holder):
    """Functions cannot be copied; an attribute that is a weight is the copy's."""
    first = layers.Dense(3, name="first")
    first.build((None, 6))

    def near(one, *_):
        return keras.ops.mean((one - first.kernel[0, 0]) ** 2)

    dense = layers.Dense(6, kernel_regularizer=near if holder == "a rule" else None)
    tied = type("Tied", (layers.Layer,), TIED)()
    tied.kernel = first.kernel
    source = stack(first, tied if holder == "a layer" else dense)
    source.compile("sgd", near if holder == "the loss" else "mse")
    source.kernel = first.kernel
    assert holder != "the model" or sn.unplace(source).kernel is not first.kernel
    source.near = near if holder == "the model" else None
    with pytest.warns(UserWarning, match="first: .* holds it, or its weights"):
        copy = sn.unplace(source)
    assert copy.get_layer("first") is first
    assert copy.kernel is first.kernel


class FromValue(layers.Layer):
    """Makes its variable from a value instead of an initializer."""

    def build(self, shape):
        self.scale = keras.Variable(np.float32(3.0), name="scale")

    def call(self, x):
        return x * self.scale


def test_variables_made_from_values_have_them():
    """They cannot be made without memory, so the source is traced in a graph."""
    net = sn.Net("n")
    net.output(net.branch("b", net.input("x", (6,)), [layers.Dense(3), FromValue()]))
    for source in (net, lambda: stack(layers.Dense(3), FromValue())):
        made = cloned(source).model
        kernel = made.layers[1].kernel
        assert np.ptp(kernel) > 0
        np.testing.assert_allclose(made(X), 3.0 * X @ kernel, rtol=1e-5)
