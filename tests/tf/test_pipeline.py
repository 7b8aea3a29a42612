"""Micro-batches, recomputation and compiled parts: the same training, another way."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn
from splitnet.core.timeline import Execution
from splitnet.tf.internals.tf_api import partition_graphs, watch_graphs
from splitnet.tf.placement.placed import placed_of

pytestmark = pytest.mark.tf


def numbers(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, the same for the same seed."""
    made = np.random.default_rng(seed).standard_normal((count, *shape))
    return made.astype("float32")


def chain(body: Any = None) -> sn.Net:
    """Three stages on three devices, with regularizers of weights and activities."""
    net = sn.Net("chain")
    x = net.input("x", (8,))
    a = net.branch("a", x, [layers.Dense(12, activation="relu")], on="gpu:0")
    middle = body or [
        layers.Dense(12, activation="tanh", activity_regularizer="l2"),
        layers.LayerNormalization(),
    ]
    b = net.branch("b", a, middle, on="gpu:1")
    last = layers.Dense(4, activation="softmax", kernel_regularizer="l2")
    net.output(net.branch("c", b, last, on="gpu:2"))
    return net


def trained(
    net: sn.Net, cluster: sn.Cluster, x: Any, y: Any, weights: Any = None, **way: Any
) -> tuple[Any, Any, Any, Any]:
    """An emitted model and its plain copy after three epochs, with their histories."""
    keras.utils.set_random_seed(3)
    placed = sn.emit(net, sn.plan(net, cluster, batch=12), **way)
    plain = sn.unplace(placed)
    histories = []
    for model in (placed, plain):
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        made = model.fit(
            x,
            y,
            sample_weight=weights,
            batch_size=12,
            epochs=3,
            shuffle=False,
            verbose=0,
        )
        histories.append(made.history)
    return placed, plain, *histories


def difference(one: Any, other: Any) -> float:
    """The largest difference between the weights of two models."""
    return max(
        float(np.abs(a - b).max())
        for a, b in zip(one.get_weights(), other.get_weights())
    )


X, Y = numbers(37, 8), np.random.default_rng(1).integers(0, 4, 37)


@pytest.mark.parametrize(
    "way",
    [
        {"microbatches": 4},
        {"microbatches": 5, "schedule": "1f1b"},
        {"recompute": True},
        {"microbatches": 3, "schedule": "1f1b", "recompute": True},
        {"xla": True},
        {"microbatches": 3, "xla": True},
    ],
    ids=str,
)
def test_every_way_trains_as_the_unsplit_batch(
    cluster: sn.Cluster, way: dict[str, Any]
) -> None:
    """Loss, metric and weights with sample weights and a last batch of one sample."""
    weights = np.random.default_rng(2).random(37).astype("float32")

    placed, plain, mine, theirs = trained(chain(), cluster, X, Y, weights, **way)

    assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert mine["accuracy"] == pytest.approx(theirs["accuracy"], rel=1e-6)
    assert difference(placed, plain) < 1e-6
    sn.audit(placed, None, (X[:12], Y[:12])).check()


def test_a_plan_says_how_it_runs(cluster: sn.Cluster) -> None:
    """What `emit` is told is in the model's plan, and needs not be told again."""
    net = chain()
    plan = sn.plan(net, cluster, batch=12)
    told = sn.emit(net, plan, microbatches=3, schedule="1f1b", recompute=True)
    again = sn.emit(net, sn.plan_of(told))

    assert sn.plan_of(told).execution == sn.plan_of(again).execution
    assert "in 3 micro-batches (1f1b), recomputing on" in repr(sn.plan_of(again))
    assert placed_of(again).pipeline == placed_of(told).pipeline
    assert placed_of(again).pipeline.microbatches == 3
    assert sn.plan_of(sn.emit(net, sn.plan_of(told), microbatches=1)).execution == (
        Execution(recompute=sn.plan_of(told).execution.recompute)
    )


def test_microbatches_of_arrays_train_eagerly_too(cluster: sn.Cluster) -> None:
    """`train_on_batch` hands a step that runs eagerly NumPy's own arrays."""
    keras.utils.set_random_seed(3)
    net = chain()
    placed = sn.emit(net, sn.plan(net, cluster, batch=12), microbatches=3)
    plain = sn.unplace(placed)
    for model in (placed, plain):
        model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
        model.train_on_batch(X[:10], Y[:10], sample_weight=np.arange(10.0))
    assert difference(placed, plain) < 1e-6


def test_losses_of_outputs_are_reported_for_the_whole_batch(
    cluster: sn.Cluster,
) -> None:
    """Not as the mean of pieces of two and three samples."""
    net = sn.Net("two")
    x = net.input("x", (8,))
    a = net.branch("a", x, layers.Dense(12, activation="relu"), on="gpu:0")
    net.output(net.branch("u", a, layers.Dense(3, name="u"), on="gpu:1"), "u")
    net.output(net.branch("v", a, layers.Dense(1, name="v"), on="gpu:2"), "v")
    placed = sn.emit(net, sn.plan(net, cluster, batch=12), microbatches=5)
    histories = []
    for model in (sn.unplace(placed), placed):
        model.compile("sgd", {"u": "mse", "v": "mae"}, loss_weights={"u": 2, "v": 1})
        y = {"u": X[:, :3], "v": X[:, :1]}
        made = model.fit(X, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
        histories.append(made.history)

    assert set(histories[0]) == {"loss", "u_loss", "v_loss"}
    for name, losses in histories[0].items():
        assert histories[1][name] == pytest.approx(losses, rel=1e-5)


def test_gradients_are_summed_as_they_come(cluster: sn.Cluster) -> None:
    """No AddN, to which TensorFlow turns chains of sums, waits for all of them."""
    placed = sn.emit(chain(), sn.plan(chain(), cluster, batch=12), microbatches=6)
    placed.compile("sgd", "sparse_categorical_crossentropy")
    with watch_graphs() as found:
        placed.fit(X[:12], Y[:12], batch_size=12, verbose=0)

    nodes = [node for graph in partition_graphs(found) for node in graph]
    widest = max(len(node.input) for node in nodes if node.op == "AddN")
    sums = [node for node in nodes if "_grappler_do_not_remove" in node.attr]
    assert len(sums) >= 5 * len(placed.trainable_weights)
    assert all(node.op == "AddV2" for node in sums)
    assert widest <= 6  # the losses of the micro-batches


def test_sparse_gradients_are_summed_over_microbatches(cluster: sn.Cluster) -> None:
    """An Embedding's gradient stays one of its rows."""
    net = sn.Net("words")
    x = net.input("x", (6,), "int32")
    a = net.branch("a", x, [layers.Embedding(11, 5), layers.Flatten()], on="gpu:0")
    net.output(net.branch("b", a, layers.Dense(4, activation="softmax"), on="gpu:1"))
    ids = np.random.default_rng(0).integers(0, 11, (37, 6)).astype("int32")

    placed, plain, *_ = trained(net, cluster, ids, Y, microbatches=4, recompute=True)

    assert difference(placed, plain) < 1e-6


def test_recomputed_dropout_drops_the_same_twice(cluster: sn.Cluster) -> None:
    """The backward pass sees the forward pass' mask: training equals the plain."""
    body = [layers.Dense(12, activation="tanh"), layers.Dropout(0.5, seed=4)]

    placed, plain, *_ = trained(chain(body), cluster, X, Y, recompute=True)

    assert difference(placed, plain) < 1e-6


def test_recomputed_batch_norm_moves_its_averages_once(cluster: sn.Cluster) -> None:
    """A second forward pass changes no state."""
    body = [layers.Dense(12), layers.BatchNormalization()]

    placed, plain, *_ = trained(chain(body), cluster, X, Y, recompute=True)

    assert difference(placed, plain) < 1e-6


def test_recompute_runs_the_forward_pass_again(cluster: sn.Cluster) -> None:
    """It is not folded away: there are more forward ops than without it."""
    counts = []
    for recompute in (False, True):
        net = chain()
        model = sn.emit(net, sn.plan(net, cluster, batch=12), recompute=recompute)
        model.compile("sgd", "sparse_categorical_crossentropy")
        audit = sn.audit(model, None, (X[:12], Y[:12])).check()
        counts.append(sum(row.ops for row in audit.rows))

    assert counts[1] > counts[0] + 5


def test_masks_and_loops_go_through_a_recomputed_part(cluster: sn.Cluster) -> None:
    """An LSTM's mask from another device, and its loop computed again."""
    net = sn.Net("loop")
    x = net.input("x", (6,), "int32")
    a = net.branch("a", x, layers.Embedding(11, 5, mask_zero=True), on="gpu:0")
    b = net.branch("b", a, layers.LSTM(6), on="gpu:1")
    net.output(net.branch("c", b, layers.Dense(4, activation="softmax"), on="gpu:2"))
    ids = np.random.default_rng(0).integers(1, 11, (37, 6)).astype("int32")
    ids[::2, 3:] = 0

    placed, plain, *_ = trained(net, cluster, ids, Y, recompute=True)

    assert difference(placed, plain) < 1e-6


def test_a_mask_goes_from_a_recomputed_part_to_another_device(
    cluster: sn.Cluster,
) -> None:
    """TensorFlow's recomputation fails on a function that gives truth values first."""
    net = sn.Net("masks")
    x = net.input("x", (6,), "int32")
    table = layers.Embedding(9, 5, mask_zero=True)
    a = net.branch("a", x, [table, layers.LSTM(6, return_sequences=True)], on="gpu:0")
    b = net.branch("b", a, layers.GRU(5), on="gpu:1")
    net.output(net.branch("c", b, layers.Dense(4, activation="softmax"), on="gpu:1"))
    ids = np.random.default_rng(0).integers(0, 9, (37, 6)).astype("int32")

    placed, plain, *_ = trained(net, cluster, ids, Y, recompute=True, microbatches=2)

    assert difference(placed, plain) < 1e-6


def test_towers_in_a_pipeline_train_as_the_unsplit_batch(cluster: sn.Cluster) -> None:
    """Two stages, the first of two towers, in micro-batches."""
    net = sn.Net("both")
    x = net.input("x", (8,))
    on = ["gpu:0", "gpu:1"]
    a = net.towers("a", x, layers.Dense(12, activation="relu"), on=on)
    net.output(net.branch("b", a, layers.Dense(4, activation="softmax"), on="gpu:2"))

    placed, plain, *_ = trained(net, cluster, X, Y, microbatches=3, schedule="1f1b")

    assert difference(placed, plain) < 1e-6
    sn.audit(placed, None, (X[:12], Y[:12])).check()


def test_weights_of_towers_cross_once_for_all_microbatches(
    cluster: sn.Cluster,
) -> None:
    """The audit allows what the plan counts: there once, and one gradient back."""
    net = sn.Net("wide")
    x = net.input("x", (8,))
    on = ["gpu:0", "gpu:1"]
    a = net.towers("a", x, [layers.Dense(200), layers.Dense(12)], on=on)
    net.output(net.branch("b", a, layers.Dense(4, activation="softmax"), on="gpu:2"))

    placed, plain, *_ = trained(net, cluster, X, Y, microbatches=4)

    assert difference(placed, plain) < 1e-6
    sn.audit(placed, None, (X[:12], Y[:12])).check()


def test_frozen_weights_of_towers_cross_once_as_well(cluster: sn.Cluster) -> None:
    """No gradient comes back; what a call changes is no weight and read each time."""
    frozen = layers.Dense(200)
    frozen.trainable = False
    net = sn.Net("wide")
    x = net.input("x", (8,))
    on = ["gpu:0", "gpu:1"]
    a = net.towers("a", x, [frozen, layers.Dense(4, activation="softmax")], on=on)
    net.output(a)

    placed, plain, *_ = trained(net, cluster, X, Y, microbatches=4)
    audit = sn.audit(placed, None, (X[:12], Y[:12])).check()

    assert difference(placed, plain) < 1e-6
    sent = sum(4 * weight.size for weight in plain.get_weights())
    assert audit.moved["cpu:0", "gpu:0", "weights"] == (sent, sent)


def test_parts_that_cannot_be_compiled_say_why(cluster: sn.Cluster) -> None:
    """A loop runs without XLA, with a fallback; the rest is compiled."""
    net = sn.Net("mixed")
    x = net.input("x", (6, 3))
    a = net.branch("a", x, layers.LSTM(6), on="gpu:0")
    net.output(net.branch("b", a, layers.Dense(4, activation="softmax"), on="gpu:1"))

    with pytest.warns(UserWarning, match="xla: 'a' runs as it is: XLA compiles its"):
        placed, plain, *_ = trained(net, cluster, numbers(37, 6, 3), Y, xla=True)

    assert difference(placed, plain) < 1e-6


@keras.saving.register_keras_serializable("test_pipeline")
class Outside(layers.Layer):
    """Doubles in Python, which no compiler sees."""

    def call(self, x: Any) -> Any:
        """Twice x."""
        import tensorflow as tf

        made = tf.numpy_function(lambda one: 2 * one, [x], x.dtype)
        return keras.ops.reshape(made, keras.ops.shape(x)) + x

    def compute_output_shape(self, input_shape: Any) -> Any:
        """As the input's."""
        return input_shape


def test_layers_that_xla_refuses_are_found_before_they_run(cluster: sn.Cluster) -> None:
    """A layer of somebody's own is tried; the fallback says what XLA lacks."""
    body = [layers.Dense(12), Outside(), layers.LayerNormalization()]

    with pytest.warns(UserWarning, match="xla: 'b' runs as it is: XLA has no kernel"):
        placed, plain, *_ = trained(chain(body), cluster, X, Y, xla=True)

    assert difference(placed, plain) < 1e-5


def test_compiled_batch_norm_and_dropout_keep_their_states(cluster: sn.Cluster) -> None:
    """States leave the compiled function: averages move, seeds go on."""
    body = [
        layers.Dense(12),
        layers.BatchNormalization(),
        layers.Dropout(1e-9, seed=1, name="drop"),  # XLA draws other numbers
    ]

    placed, plain, *_ = trained(chain(body), cluster, X, Y, xla=True)

    assert difference(placed, plain) < 1e-5
    states = [m.get_layer("drop").seed_generator.state for m in (placed, plain)]
    assert (states[0].numpy() == states[1].numpy()).all()


def test_batch_norm_in_microbatches_is_warned_of(cluster: sn.Cluster) -> None:
    """It cannot be that of the whole batch, and says so."""
    net = chain([layers.BatchNormalization(name="norm")])

    with pytest.warns(UserWarning, match="norm normalises each micro-batch by itself"):
        sn.emit(net, sn.plan(net, cluster, batch=12), microbatches=2)


def test_a_mask_that_reaches_a_loss_is_warned_of(cluster: sn.Cluster) -> None:
    """Such a loss is a mean over what is left, which differs from piece to piece."""
    words = sn.Net("words")
    x = words.input("x", (5,), "int32")
    read = words.branch("read", x, layers.Embedding(9, 4, mask_zero=True), on="gpu:0")
    words.output(words.branch("tag", read, layers.Dense(3, name="tag"), on="gpu:1"))

    model = sn.emit(words, sn.plan(words, cluster, batch=12), microbatches=2)
    model.compile("sgd", "mse")

    with pytest.warns(UserWarning, match="tag hands a mask to the loss"):
        model.train_on_batch(np.ones((4, 5), "int32"), np.ones((4, 5, 3)))


def test_losses_that_are_no_means_are_refused(cluster: sn.Cluster) -> None:
    """A sum over the batch would be weighted wrongly."""
    net = chain()
    model = sn.emit(net, sn.plan(net, cluster, batch=12), microbatches=2)

    with pytest.raises(sn.DeclarationError, match="reduction='sum'"):
        model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ({"microbatches": 0}, "must be from 1 to the batch, 12"),
        ({"microbatches": 13}, "must be from 1 to the batch, 12"),
        ({"microbatches": 2.5}, "must be a whole number"),
        ({"microbatches": 2, "schedule": "1b1f"}, "'gpipe', '1f1b'"),
        ({"schedule": "1f1b"}, "there is one"),
        ({"recompute": "maybe"}, "True, False or 'auto'"),
        ({"recompute": 1}, "True, False or 'auto'"),
        ({"xla": "yes"}, "xla= must be True or False"),
        ({"xla": True, "recompute": True}, "exclude each other"),
    ],
    ids=str,
)
def test_nonsense_is_refused_with_the_reason(
    cluster: sn.Cluster, way: dict[str, Any], words: str
) -> None:
    """Each option names what it may be."""
    net = chain()

    with pytest.raises(sn.DeclarationError, match=words):
        sn.emit(net, sn.plan(net, cluster, batch=12), **way)


def test_recompute_auto_leaves_a_plan_that_fits_alone(cluster: sn.Cluster) -> None:
    """Nothing is computed twice where there is room."""
    net = chain()
    plan = sn.plan(net, cluster, batch=12)
    plain, auto = sn.emit(net, plan), sn.emit(net, plan, recompute="auto")
    counts = []
    for model in (plain, auto):
        model.compile("sgd", "sparse_categorical_crossentropy")
        rows = sn.audit(model, None, (X[:12], Y[:12])).check().rows
        counts.append(sum(row.ops for row in rows))

    assert counts[0] == counts[1]


def test_a_model_with_its_own_train_step_is_not_cut(cluster: sn.Cluster) -> None:
    """Its step is the user's; micro-batches would not run it."""

    @keras.saving.register_keras_serializable("test_pipeline")
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    x = keras.Input((4,))
    model = Own(x, layers.Dense(2)(x))

    with (
        warnings.catch_warnings(),
        pytest.raises(sn.DeclarationError, match="has a train_step of its own"),
    ):
        sn.emit(model, sn.plan(model, cluster, batch=12), microbatches=2)
