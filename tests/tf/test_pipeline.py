"""Micro-batches, recomputation and compiled parts: the same training, another way."""

import functools
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.core.timeline import Execution
from splitnet.tf.internals.tf_api import graph_optimizer, watch_graphs
from splitnet.tf.placement.placed import placed_of
from tests.tf.check import Case, assert_near, assert_same, classes, numbers
from tests.tf.zoo.ways import chain

X, Y = numbers(8), classes(4)


@functools.cache
def planned() -> tuple[sn.Net, sn.Plan]:
    """The chain of three stages and its plan."""
    net = chain().source
    box = sn.local_cluster(stand_in_gpus=3)
    return net, sn.plan(net, box, batch=12, time_limit=0.1)


def emitted(**way: Any) -> Any:
    """The chain, placed and compiled."""
    placed = sn.emit(*planned(), **way)
    placed.compile("sgd", "sparse_categorical_crossentropy")
    return placed


def test_a_plan_says_how_it_runs() -> None:
    """What `emit` is told is in the model's plan, and needs not be told again."""
    net, plan = planned()
    told = sn.emit(net, plan, microbatches=3, schedule="1f1b", recompute=True)
    again = sn.emit(net, sn.plan_of(told))

    assert sn.plan_of(told).execution == sn.plan_of(again).execution
    assert "in 3 micro-batches (1f1b), recomputing on" in repr(sn.plan_of(again))
    assert placed_of(again).pipeline == placed_of(told).pipeline
    assert placed_of(again).pipeline.microbatches == 3
    assert sn.plan_of(sn.emit(net, sn.plan_of(told), microbatches=1)).execution == (
        Execution(recompute=sn.plan_of(told).execution.recompute)
    )


def test_microbatches_of_arrays_train_eagerly_too() -> None:
    """`train_on_batch` hands a step that runs eagerly NumPy's own arrays."""
    placed = emitted(microbatches=3)
    plain = sn.unplace(placed)
    for model in (placed, plain):
        model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
        model.train_on_batch(X[:10], Y[:10], sample_weight=np.arange(10.0))
    assert_near(placed.get_weights(), plain.get_weights())


def test_micro_batches_run_in_a_function_of_ones_own() -> None:
    """A `tf.function` around `train_step` does not convert the loop over pieces."""
    placed = emitted(microbatches=3)
    plain = sn.unplace(placed)
    tf.function(placed.train_step)((tf.constant(X[:10]), tf.constant(Y[:10])))
    plain.train_on_batch(X[:10], Y[:10])
    assert_near(placed.get_weights(), plain.get_weights())


def test_gradients_are_summed_as_they_come() -> None:
    """No AddN, to which TensorFlow turns chains of sums, waits for all of them."""
    placed = emitted(microbatches=6)
    with watch_graphs() as found:
        placed.fit(X[:12], Y[:12], batch_size=12, verbose=0)

    nodes = [node for graph in found for node in graph]
    widest = max(len(node.input) for node in nodes if node.op == "AddN")
    sums = [node for node in nodes if "gradient_sums" in node.attr["f"].func.name]
    assert len(sums) >= 5 * 3  # a function for what each stage made
    assert widest <= 6  # the losses of the micro-batches


@pytest.mark.parametrize(("on", "additions"), [(True, 1), (False, 2)])
def test_the_graph_optimizer_is_off_where_it_is_told(on: bool, additions: int) -> None:
    """It would fold a sum of constants; afterwards it is as it was."""

    @tf.function
    def three_more(x: Any) -> Any:
        return x + (tf.constant([1.0]) + tf.constant([2.0]))

    with watch_graphs() as found, graph_optimizer(on=False), graph_optimizer(on=on):
        three_more(tf.ones([1]))
    with watch_graphs() as after:
        tf.function(lambda x: three_more(x))(tf.ones([1]))

    kinds = [[node.op for graph in one for node in graph] for one in (found, after)]
    assert [each.count("AddV2") for each in kinds] == [additions, 1]


def test_recompute_runs_the_forward_pass_again_where_it_must() -> None:
    """It is not folded away; "auto" computes nothing twice where there is room."""
    once, twice, auto = (
        sum(row.ops for row in sn.audit(model, None, (X[:12], Y[:12])).check().rows)
        for model in (emitted(recompute=r) for r in (False, True, "auto"))
    )

    assert twice > once + 5
    assert auto == once


def test_frozen_weights_of_towers_cross_once_as_well(cluster: sn.Cluster) -> None:
    """No gradient comes back; what a call changes is no weight and read each time."""
    frozen = layers.Dense(200)
    frozen.trainable = False
    net = sn.Net("wide")
    x = net.input("x", (8,))
    on = ["gpu:0", "gpu:1"]
    a = net.towers("a", x, [frozen, layers.Dense(4, activation="softmax")], on=on)
    net.output(a)

    case = Case(net, X, Y, "sparse_categorical_crossentropy", sizes=(5, 5))
    _, audit = assert_same(replace(case, way={"microbatches": 4}), cluster)

    sent = 4 * (8 * 200 + 200 + 200 * 4 + 4)
    assert audit.moved["cpu:0", "gpu:0", "weights"] == (sent, sent)


def test_parts_that_cannot_be_compiled_say_why(cluster: sn.Cluster) -> None:
    """A loop runs without XLA, with a fallback; the rest is compiled."""
    net = sn.Net("mixed")
    x = net.input("x", (6, 3))
    a = net.branch("a", x, layers.LSTM(6), on="gpu:0")
    net.output(net.branch("b", a, layers.Dense(4, activation="softmax"), on="gpu:1"))

    loss = "sparse_categorical_crossentropy"
    case = Case(net, numbers(6, 3), Y, loss, way={"xla": True})

    with pytest.warns(UserWarning, match="xla: 'a' runs as it is: XLA compiles its"):
        assert_same(case, cluster)


@keras.saving.register_keras_serializable("test_pipeline")
class Outside(layers.Layer):
    """Doubles in Python, which no compiler sees."""

    def call(self, x: Any) -> Any:
        """Twice x."""
        made = tf.numpy_function(lambda one: 2 * one, [x], x.dtype)
        return keras.ops.reshape(made, keras.ops.shape(x)) + x

    def compute_output_shape(self, input_shape: Any) -> Any:
        """As the input's."""
        return input_shape


def test_layers_that_xla_refuses_are_found_before_they_run(cluster: sn.Cluster) -> None:
    """A layer of somebody's own is tried; the fallback says what XLA lacks."""
    body = [layers.Dense(12), Outside(), layers.LayerNormalization()]

    case = replace(chain(body, xla=True), audited=False)

    with pytest.warns(UserWarning, match="xla: 'b' runs as it is: XLA has no kernel"):
        assert_same(case, cluster)


def test_batch_norm_in_microbatches_is_warned_of(cluster: sn.Cluster) -> None:
    """It cannot be that of the whole batch, and says so."""
    net = chain([layers.BatchNormalization(name="norm")]).source

    with pytest.warns(UserWarning, match="by itself and moves the averages of norm,"):
        sn.emit(net, sn.plan(net, cluster, batch=12), microbatches=2)


def test_a_mask_that_reaches_a_loss_is_warned_of(cluster: sn.Cluster) -> None:
    """Such a loss is a mean over what is left, which differs from piece to piece."""
    words = sn.Net("words")
    x = words.input("x", (5,), "int32")
    read = words.branch("read", x, layers.Embedding(9, 4, mask_zero=True), on="gpu:0")
    words.output(words.branch("tag", read, layers.Dense(3, name="tag"), on="gpu:1"))

    model = sn.emit(words, sn.plan(words, cluster, batch=12), microbatches=2)
    model.compile("sgd", "mse")

    with pytest.warns(UserWarning, match="the mask of tag reaches the loss"):
        model.train_on_batch(np.ones((4, 5), "int32"), np.ones((4, 5, 3)))


def test_losses_that_are_no_means_are_refused() -> None:
    """A sum over the batch would be weighted wrongly."""
    model = emitted(microbatches=2)

    with pytest.raises(sn.DeclarationError, match="reduction='sum'"):
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"microbatches": 0}, "microbatches= must be a whole number, 1 or more"),
        ({"microbatches": 13}, "must be from 1 to the batch, 12"),
        ({"microbatches": 2.5}, "must be a whole number"),
        ({"microbatches": 2, "schedule": "1b1f"}, "'gpipe', '1f1b'"),
        ({"schedule": "1f1b"}, "there is one"),
        ({"recompute": "maybe"}, "True, False or 'auto'"),
        ({"recompute": 1}, "recompute= must be True or False, a text"),
        ({"xla": "yes"}, "xla= must be True or False"),
        ({"xla": True, "recompute": True}, "exclude each other"),
    ],
    ids=str,
)
def test_nonsense_is_refused_with_the_reason(way: dict[str, Any], words: str) -> None:
    """Each option names what it may be."""
    with pytest.raises(sn.DeclarationError, match=words):
        emitted(**way)


def test_a_state_of_a_whole_batch_is_not_cut(cluster: sn.Cluster) -> None:
    """A recurrent layer keeps a state for each sample; refused before training."""
    x = keras.Input(batch_shape=(8, 5, 3))
    model = keras.Model(x, layers.GRU(2, stateful=True, name="kept")(x))

    with pytest.raises(sn.DeclarationError, match="'kept' keeps a state"):
        sn.emit(model, sn.plan(model, cluster, batch=8, effort=1), microbatches=2)


def test_a_model_with_its_own_train_step_is_not_cut(cluster: sn.Cluster) -> None:
    """Its step is the user's; micro-batches would not run it."""

    @keras.saving.register_keras_serializable("test_pipeline")
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    x = keras.Input((4,))
    model = Own(x, layers.Dense(2)(x))

    with pytest.raises(sn.DeclarationError, match="has a train_step of its own"):
        sn.emit(model, sn.plan(model, cluster, batch=12), microbatches=2)
