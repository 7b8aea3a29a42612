"""Placed models in use: how they run, what they share, what they show."""

import copy
import pickle
import warnings
from contextlib import ExitStack

import keras
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from tests.tf.check import BATCH, assert_near, devices, emitted, numbers, stack
from tests.tf.zoo import two_branches


def placed_pair(cluster):
    return emitted(two_branches().source, cluster)


@pytest.fixture(scope="module")
def dense(cluster):
    """Compiled, for tests that leave it as it is."""
    made = placed_pair(cluster)
    made.compile("adam", "mse", metrics=["mae"])
    made.train_on_batch(numbers(6), numbers(2))
    return made


def test_placed_model_trains_in_a_loop_of_ones_own(cluster):
    """Slots lie beside weights; around a plain model placement_scope does nothing."""
    placed = placed_pair(cluster)
    plain = sn.unplace(placed)
    x, y = tf.constant(numbers(6)[:BATCH]), tf.constant(numbers(2)[:BATCH])
    losses = []
    for model in (placed, plain):
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(model=model, optimizer=optimizer):
            with sn.placement_scope(model, *[optimizer] * (model is placed)):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        losses.append([float(step()) for _ in range(3)])
        held = devices(model.trainable_variables)
        assert devices(optimizer._momentums) == held
        assert (len(set(held)) > 1) is (model is placed)
    assert_near(*losses)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no scope", "records its gradients"),
        ("no optimizer", "an optimizer that is not placed updates"),
        ("gradients after it", "records its gradients"),
        ("inside a model", "records its gradients"),
        ("over its layers", "called outside of it"),
    ],
)
def test_a_step_that_is_not_placed_warns_once_with_the_remedy(how, words, cluster):
    """Nobody places the updates of a step of one's own unless it is asked for."""
    model = placed_pair(cluster)
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with ExitStack() as scope, tf.GradientTape() as tape:
            if how != "no scope":
                scope.enter_context(sn.placement_scope(model))
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            if how == "gradients after it":
                scope.close()
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    x, y = tf.constant(numbers(6)), tf.constant(numbers(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if how == "inside a model":
            outer = stack(model)
            outer.compile("sgd", "mse")
            outer.train_on_batch(x, y)
        elif how == "over its layers":
            inner = keras.Model(model.inputs, model.get_layer("right").output)
            assert inner(x).shape == (13, 4)
        else:
            step(x, y)
            step(x[:5], y[:5])
    said = [one for one in caught if "place" in str(one.message)]
    assert [words in str(one.message) for one in said] == [True]
    remedy = "pins='as_built'" if how == "over its layers" else "placement_scope"
    assert all(remedy in str(one.message) for one in said)
    assert all(one.filename == __file__ for one in said)


class Clipped(layers.Dense):
    def call(self, x):
        self.kernel.assign(keras.ops.clip(self.kernel, -0.1, 0.1))
        return super().call(x)


def test_a_teacher_and_a_layer_that_assigns_its_kernel_are_no_stray_step(cluster):
    """No gradient of the frozen teacher is needed, though the tape sees its weights."""
    teacher = emitted(stack(layers.Dense(4), Clipped(2)), cluster)
    teacher.trainable, student = False, stack(layers.Dense(2))

    class Distilled(keras.Model):
        def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
            return tf.reduce_mean(tf.square(teacher(x, training=False) - y_pred))

    model = Distilled(student.inputs, student.outputs)
    model.compile("sgd")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(numbers(6), numbers(2), verbose=0)
        teacher.predict(numbers(6), verbose=0)


def test_two_placed_models_in_one_step_keep_their_devices(cluster):
    """A GAN whose two optimizers are named: no warning, slots beside their weights."""
    make, judge = (
        emitted(keras.Sequential([keras.Input((6,)), layer]), cluster, pins={"*": on})
        for layer, on in ((layers.Dense(6), "gpu:0"), (layers.Dense(1), "gpu:1"))
    )
    optimizers = [keras.optimizers.Adam() for _ in range(2)]
    for one, optimizer in zip((make, judge), optimizers, strict=True):
        optimizer.build(one.trainable_variables)

    @tf.function
    def step(x):
        for model, optimizer, aim in zip((make, judge), optimizers, (1.0, 0.0)):
            with sn.placement_scope(model, optimizer):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((judge(make(x)) - aim) ** 2)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    step(tf.constant(numbers(6)))
    for optimizer, device in zip(optimizers, ("CPU:1", "CPU:2"), strict=True):
        assert set(devices(optimizer._momentums)) == {device}


def test_compile_moves_slots_and_refuses_jit_aloud(cluster, dense):
    """Of an optimizer built before. Keras may not turn XLA on itself either."""
    assert not dense.supports_jit
    assert not dense.jit_compile
    model, optimizer = placed_pair(cluster), keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    with pytest.warns(UserWarning, match="jit_compile"):
        model.compile(optimizer, "mse", jit_compile=True)
    model.train_on_batch(numbers(6), numbers(2))
    assert not model.jit_compile
    assert devices(optimizer._momentums) == devices(model.trainable_variables)


def test_gradients_without_their_variables_are_refused_by_keras(cluster):
    optimizer = keras.optimizers.SGD()
    placed_pair(cluster).compile(optimizer, "mse")
    with pytest.raises(ValueError, match="optimizer must already be built"):
        optimizer.apply([tf.ones((6, 4))])
    optimizer.build([keras.Variable(tf.ones(2)), keras.Variable(tf.ones(3))])
    with pytest.raises(ValueError, match="must match"):
        optimizer.apply([tf.ones(2)])


@pytest.mark.parametrize(
    "duplicate",
    [keras.models.clone_model, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
)
def test_duplicates_of_a_placed_model_are_plain(dense, duplicate):
    clone = duplicate(dense)
    assert clone(numbers(6)).shape == (13, 2)
    with pytest.raises(sn.PlanFileError, match="has no plan"):
        sn.plan_of(clone)
