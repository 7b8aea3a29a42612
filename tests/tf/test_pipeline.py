"""Micro-batches, recomputation and compiled parts: the same training, another way."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context

import splitnet as sn
from splitnet.core.timeline import Execution
from splitnet.tf.internals.tf_api import watch_graphs
from splitnet.tf.placement.placed import placed_of
from tests.tf import check
from tests.tf.check import assert_near, classes, numbers, stack
from tests.tf.zoo.ways import chain

X, Y = numbers(8), classes(4)
LOSS = "sparse_categorical_crossentropy"


def emitted(cluster, **way):
    return check.emitted(chain().source, cluster, way, ("sgd", LOSS), batch=12)


def test_a_plan_says_how_it_runs(cluster):
    told = emitted(cluster, microbatches=3, schedule="1f1b", recompute=True)
    net = chain().source
    again = sn.emit(net, sn.plan_of(told))
    assert sn.plan_of(told).execution == sn.plan_of(again).execution
    assert "in 3 micro-batches (1f1b), recomputing on" in repr(sn.plan_of(again))
    assert placed_of(again).pipeline == placed_of(told).pipeline
    assert placed_of(again).pipeline.microbatches == 3
    assert sn.plan_of(sn.emit(net, sn.plan_of(told), microbatches=1)).execution == (
        Execution(recompute=sn.plan_of(told).execution.recompute)
    )


def test_micro_batches_train_eagerly_and_in_functions(cluster):
    """Eagerly they are NumPy's arrays; a `tf.function` does not convert the loop."""
    placed = emitted(cluster, microbatches=3)
    plain = sn.unplace(placed)
    tf.function(placed.train_step)((tf.constant(X[:10]), tf.constant(Y[:10])))
    plain.train_on_batch(X[:10], Y[:10])
    assert_near(placed.get_weights(), plain.get_weights())
    for model in (placed, plain):
        model.compile("sgd", LOSS, run_eagerly=True)
        model.train_on_batch(X[:10], Y[:10], sample_weight=np.arange(10.0))
    assert_near(placed.get_weights(), plain.get_weights())


def test_gradients_are_summed_as_they_come(cluster):
    """By one function for each backward call but the first; there is no AddN of all."""
    placed = emitted(cluster, microbatches=4)
    tf.summary.trace_on()  # as TensorBoard does: it ran before, and is not watched
    placed.test_on_batch(X[:12], Y[:12])
    with watch_graphs() as found:
        placed.train_on_batch(X[:12], Y[:12])
    tf.summary.trace_off()
    [nodes] = [nodes for nodes in found if any("sn_" in n.name for n in nodes)]
    widest = max(len(node.input) for node in nodes if node.op == "AddN")
    names = [node.attr["f"].func.name.partition("_specialized")[0] for node in nodes]
    sums = [name for name in names if "gradient_sums" in name]
    assert widest <= 4  # the losses of the micro-batches
    assert len(sums) == 3 * 3 + 4  # those of a regularizer come after each piece
    assert len(set(sums)) <= 4  # a function for all pieces


def test_recompute_runs_the_forward_pass_twice(cluster):
    """It is not folded away; "auto" computes nothing twice where there is room."""
    once, twice, auto = (
        sum(row.ops for row in sn.audit(model, None, (X[:12], Y[:12])).check().rows)
        for model in (emitted(cluster, recompute=r) for r in (False, True, "auto"))
    )
    assert twice > once + 5
    assert auto == once


def test_what_micro_batches_change_is_warned_of(cluster):
    """BatchNormalization of a piece, and a masked loss: a mean over what is left."""
    way = {"microbatches": 2}
    norm = layers.BatchNormalization(name="norm", trainable=False)
    body = [norm, layers.SpectralNormalization(layers.Dense(9), name="its")]
    model = check.emitted(chain(body).source, cluster, way, batch=12)
    for names in ("its", "norm, its"):
        with pytest.warns(UserWarning, match=f": {names} will .* frozen BatchN"):
            model.compile("sgd", "mse")
        model.get_layer("norm").trainable = True
    words = sn.Net("words")
    x = words.input("x", (5,), "int32")
    read = words.branch("read", x, layers.Embedding(9, 4, mask_zero=True), on="gpu:0")
    words.output(words.branch("tag", read, layers.Dense(3, name="tag"), on="gpu:1"))
    with pytest.warns(UserWarning, match="the mask of tag reaches the loss"):
        check.emitted(words, cluster, way, batch=12)
    x = keras.Input((4,))
    with pytest.warns(UserWarning, match=r"mean\w* combines samples, here"):
        check.emitted(keras.Model(x, x * keras.ops.mean(x)), cluster, way, batch=12)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"microbatches": 0}, "microbatches= must be int >= 1"),
        ({"microbatches": 13}, "must be from 1 to the batch, 12"),
        ({"microbatches": 2, "schedule": "1b1f"}, "'gpipe', '1f1b'"),
        ({"recompute": "maybe"}, "recompute= must be bool or one of 'auto' or None"),
        ({"xla": "yes"}, "xla= must be bool"),
        ({"xla": True, "recompute": True}, "exclude each other"),
    ],
)
def test_nonsense_is_refused_with_the_reason(way, words, cluster):
    with pytest.raises(sn.DeclarationError, match=words):
        emitted(cluster, **way)


@keras.saving.register_keras_serializable("test_pipeline")
class Own(keras.Model):
    def train_step(self, data):
        return super().train_step(data)

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@keras.saving.register_keras_serializable("test_pipeline")
class Drawing(layers.Layer):
    """Drops what it draws to, with TensorFlow's own numbers."""

    def build(self, shape):
        self.w = self.add_weight(shape=shape[1:], initializer="ones")

    def call(self, x):
        return x * tf.cast(tf.random.uniform(tf.shape(x)) > 0.5, x.dtype) * self.w


def test_recomputation_draws_nothing_anew(cluster, monkeypatch):
    """The loss is linear in weights of ones: their gradients add up to it."""
    monkeypatch.setattr(context.context(), "_seed", None)  # else all draw the same
    last = layers.Dense(1, kernel_initializer="ones", trainable=False, name="sum")
    plain = stack(Drawing(name="drop"), last, shape=(64,))
    pins = {"drop": "gpu:0", "sum": "gpu:1"}
    plan = sn.plan(plain, cluster, batch=8, pins=pins, effort=1)
    model = sn.emit(plain, plan, recompute=True)

    @tf.function
    def step():
        with sn.placement_scope(model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(tf.ones((8, 64)), training=True))
            found = tape.gradient(loss, model.get_layer("drop").w)
        return loss, tf.reduce_sum(found)

    for _ in range(3):
        loss, of_weights = step()
        assert float(loss) == float(of_weights)


def test_models_that_cannot_be_cut_are_refused(cluster):
    """A state of a whole batch, a sparse input, an own step, a loss that is no mean."""
    x, kept = keras.Input((4,)), layers.GRU(2, stateful=True, name="kept")
    few = {"shape": (4,), "sparse": True, "name": "few"}
    for words, model in (
        ("'kept' keeps a state", stack(kept, batch_shape=(8, 5, 3))),
        ("'few' is a sparse tensor", stack(layers.Dense(2), **few)),
        ("train_step of its own\n.* compute_loss of its", Own(x, layers.Dense(2)(x))),
        ("has no axis of samples", stack(layers.Lambda(tf.reduce_mean))),
    ):
        with pytest.raises(sn.DeclarationError, match=words):
            sn.emit(model, sn.plan(model, cluster, batch=8, effort=1), microbatches=2)

    def summed(true, made):
        return tf.reduce_sum((true - made) ** 2)

    def masked(true, made):
        """Of classes, without those that are 0."""
        each = keras.losses.sparse_categorical_crossentropy(true, made)
        counts = tf.cast(tf.reshape(true, [-1]) > 0, each.dtype)
        return tf.reduce_sum(each * counts) / tf.reduce_sum(counts)

    model = check.emitted(stack(layers.Dense(500)), cluster, {"microbatches": 2})
    total, pairs = keras.losses.MeanSquaredError(reduction="sum"), keras.losses.Circle()
    padded = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    for loss in (total, pairs, padded, keras.losses.Dice(), summed, masked):
        with pytest.raises(sn.DeclarationError, match="not the mean of its samples'"):
            model.compile("sgd", loss)
    for loss in (keras.losses.Dice(axis=(1,)), lambda *two: summed(*two) / len(two[0])):
        model.compile("sgd", loss)
