"""Forward and backward functions of a part: what they keep, and what they leave out."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.internals import tf_api
from splitnet.tf.placement.device_function import function_of
from splitnet.tf.placement.part_gradient import part_gradient


def gradient_of(body: Any, wanted: tuple[int, ...] = (0,)) -> Any:
    """The functions of a body of one matrix with an open number of rows."""
    function = tf.function(body, autograph=False)
    made = function.get_concrete_function(tf.TensorSpec([None, 2]))
    return part_gradient(made, made.graph.get_operations(), wanted, "sn_k0_")


@pytest.mark.parametrize(
    "body",
    [
        lambda x: 0.5 * tf.tanh(3.0 * x),  # the operands of products are not kept
        lambda x: tf.reduce_mean(tf.tanh(x), 0),  # nor are rows of a mean: their number
    ],
)
def test_what_no_gradient_needs_is_not_kept(body: Any) -> None:
    """The value of tanh is, and shapes, which the forward function takes."""
    gradient = gradient_of(body)
    kept = list(gradient.forward.outputs[1:])

    assert [one.shape.rank for one in kept if one.dtype.is_floating] == [2]
    assert all(one.shape.rank <= 1 for one in kept if not one.dtype.is_floating)
    kinds = {op.type for op in gradient.backward.graph.get_operations()}
    assert not kinds & {"Shape", "Tanh"}


@pytest.mark.parametrize(("wanted", "products"), [((0, 1), 2), ((1,), 1), ((0,), 1)])
def test_only_wanted_gradients_are_computed(
    wanted: tuple[int, ...], products: int
) -> None:
    """Of data, of a weight, or of both: a product of matrices each."""
    weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    gradient = gradient_of(lambda x: tf.matmul(x, weight), wanted)
    kinds = [op.type for op in gradient.backward.graph.get_operations()]

    assert gradient.reached == wanted
    assert kinds.count("MatMul") == products


def test_a_body_without_a_gradient_has_none() -> None:
    """Whole numbers have no gradient."""
    assert gradient_of(lambda x: tf.argmax(x, 1)) is None


@pytest.mark.parametrize("own", [False, True])
def test_frozen_weights_cost_no_gradient(own: bool, cluster: sn.Cluster) -> None:
    """In Keras' training step; a step of one's own may ask for it."""
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, trainable=False), layers.Dense(4)]
    )
    placed = sn.emit(model, sn.plan(model, cluster, batch=8))
    placed.compile("sgd", "mse")
    frozen = placed.layers[-2].kernel.value

    @tf.function
    def step(x: Any) -> Any:
        if not own:
            return placed.train_step((x, x))
        with sn.placement_scope(placed):
            with tf.GradientTape() as tape:
                tape.watch(frozen)
                loss = tf.reduce_sum(placed(x, training=True))
            return tape.gradient(loss, frozen)

    graph = step.get_concrete_function(tf.zeros((8, 4))).graph
    backward = {
        function_of(op)
        for op in graph.get_operations()
        if "__backward_" in function_of(op)
    }
    nodes = [node for name in backward for node in tf_api.function_nodes(name)]
    products = [node for node in nodes if node.op == "MatMul"]
    assert len(products) == (3 if own else 1)


def test_gradients_of_gradients_are_those_of_the_plain_model(
    cluster: sn.Cluster,
) -> None:
    """A penalty on the gradient of the input, as in a WGAN."""
    keras.utils.set_random_seed(0)
    body = [layers.Dense(8, activation="tanh"), layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *body])
    placed = sn.emit(model, sn.plan(model, cluster, batch=8))
    x = tf.constant(np.random.default_rng(0).normal(size=(8, 4)), tf.float32)

    def penalty(one: Any) -> Any:
        @tf.function
        def step(x: Any) -> Any:
            with sn.placement_scope(one):
                with tf.GradientTape() as outer:
                    with tf.GradientTape() as inner:
                        inner.watch(x)
                        made = one(x, training=True)
                    loss = tf.reduce_sum(tf.square(inner.gradient(made, x)))
                return outer.gradient(loss, one.trainable_variables[:1])

        return step(x)[0]

    np.testing.assert_allclose(penalty(placed), penalty(model), rtol=1e-5, atol=1e-7)
