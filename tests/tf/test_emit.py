"""Emitted models: whose layers they have, when memory is used, how they run."""

import warnings
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import splitnet as sn
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.placed import placed_of
from tests.tf import check
from tests.tf.check import BATCH, assert_near, emitted, numbers, stack
from tests.tf.zoo import two_branches
from tests.tf.zoo.models import Loops


def test_emit_starts_as_the_same_layers_in_plain_keras(cluster):
    """And trains bit for bit alike; emission neither builds nor calls users' layers."""
    see, tell = layers.Conv1D(3, 3, name="see"), layers.Dense(4, name="tell")
    drop, head = layers.Dropout(0.4, seed=7), layers.Dense(2, name="head")
    net = sn.Net("by_hand")
    x, y = net.input("steps", (6, 2)), net.input("words", (5,))
    a = net.branch("a", x, [see, layers.Flatten(), drop], on="gpu:0")
    b = net.branch("b", y, tell, on="gpu:1")
    joined = net.merge("j", [a, b], layers.Concatenate())
    net.output(net.branch("head", joined, head, on="cpu"))
    placed = emitted(net, cluster)
    assert not any(layer.built or layer._inbound_nodes for layer in (see, tell, head))
    inputs = [keras.Input((6, 2)), keras.Input((5,))]
    seen = drop(layers.Flatten()(see(inputs[0])))
    plain = keras.Model(inputs, head(layers.Concatenate()([seen, tell(inputs[1])])))
    data = [numbers(6, 2), numbers(5)], numbers(2)
    losses = []
    for model in (placed, plain):
        model.compile("adam", "mse")
        losses.append([model.train_on_batch(*data) for _ in range(2)])
    assert losses[0] == losses[1]
    np.testing.assert_equal(placed.get_weights(), plain.get_weights())


def test_emit_names_outputs_for_branches_or_as_told(cluster):
    net = sn.Net("übersicht")
    x = net.input("x", (4,))
    net.output(net.branch("größe: a", x, layers.Dense(1)))
    net.output(net.branch("b", x, layers.Dense(1)), "price")
    two = net.branch("日本", x, lambda x: [layers.ReLU()(x), {"p": x}])
    net.output(two)
    net.output(two, "told")
    net.output(net.branch("中文", x, layers.Dense(1)))
    model = emitted(net, cluster)
    others = ["net_0", "net_1_p", "told_0", "told_1_p", "net"]
    assert model.output_names == ["gr__e__a", "price", *others]
    model.compile("sgd", "mse")
    model.fit(numbers(4), model.predict(numbers(4), verbose=0), verbose=0)


def test_emit_spares_cudnn_on_the_cpu(cluster):
    """Keras picks cuDNN where any GPU is; a recurrent branch on the CPU must not."""
    home = layers.Bidirectional(layers.LSTM(2), name="home")
    net = two_branches(home, layers.GRU(4, name="away"), shape=(4, 3)).source
    model = emitted(net, cluster, pins={"left": "cpu"})
    assert model.get_layer("home").forward_layer.use_cudnn is False
    assert model.get_layer("home").backward_layer.use_cudnn is False
    assert model.get_layer("away").use_cudnn == "auto"


def test_copy_false_places_the_layers_of_the_source(cluster):
    """No weight exists twice, and what is trained is the source."""
    keras.utils.set_random_seed(1)
    pins = {"first": "gpu:0", "middle": "gpu:1"}
    body = [layers.Dense(5, "tanh", name="first"), layers.Dense(4, name="middle")]
    model = stack(*body, layers.Dense(1, name="last"))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    plan = sn.plan(model, cluster, batch=4, pins=pins, time_limit=0.1)
    placed = sn.emit(model, plan, copy=False)
    for one in (placed, clone):
        one.compile(check.sgd(), "mse", run_eagerly=one is clone)
    case = check.Case(model, numbers(6), numbers(1), sizes=(4, 4))
    check.assert_alike(placed, clone, case)
    assert placed.layers[1:] == model.layers[1:]
    assert_near(model.get_weights(), clone.get_weights())


def test_copy_false_lets_all_models_read_weights_where_they_are_then(cluster):
    """Steps that were traced before, of source and placed models, are traced again."""
    table, rows = layers.Embedding(5, 3, name="table"), np.eye(5)[:, :2]
    model = stack(table, layers.Flatten(), layers.Dense(1, name="last"), shape=(2,))
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    models, foreign = [model], tf.function(lambda: table(rows))
    for one in (model, plain):
        one.compile("sgd", "mse")
    foreign()
    for home in ("gpu:1", "gpu:2"):
        plan = sn.plan(model, cluster, batch=5, pins={"table": home}, time_limit=0.1)
        models.append(sn.emit(model, plan, copy=False))
        for one in models:
            with warnings.catch_warnings():  # that the source's layers are placed
                warnings.simplefilter("ignore")
                one.fit(rows, rows[:, :1], shuffle=False, verbose=0)
            plain.fit(rows, rows[:, :1], shuffle=False, verbose=0)
        for one in models:
            assert_near(one.predict(rows, verbose=0), plain.predict(rows, verbose=0))
    with pytest.raises(tf.errors.InvalidArgumentError):
        foreign()


def test_what_is_excluded_from_weight_decay_is_so_in_a_copy():
    last = layers.Dense(2, name="last")  # its weights, all biases, and a kernel
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), last])
    adam = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    adam.exclude_from_weight_decay(model.weights[:1], ["bias", "last/"])
    model.compile(keras.optimizers.LossScaleOptimizer(adam, 2.0), "mse")
    for one in (models := (model, sn.unplace(model))):
        one.fit(numbers(4), numbers(2), epochs=4, shuffle=False, verbose=0)
    assert_near(*(one.get_weights() for one in models))


class Boosted(keras.optimizers.SGD):
    def __init__(self, learning_rate, boost=1.0, **options):
        super().__init__(learning_rate, **options)
        self._boost = boost

    def update_step(self, gradient, variable, rate):
        super().update_step(gradient * self._boost, variable, rate)


def test_optimizers_and_metrics_of_ones_own_keep_what_no_configuration_has():
    """Unregistered classes, settings that get_config lacks, functions, also inside."""
    model = stack(layers.Dense(2))
    spread = keras.metrics.MeanMetricWrapper(lambda y, p: ops.max(p, -1), name="spread")
    rate = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 1.0)
    optimizer = keras.optimizers.LossScaleOptimizer(Boosted(rate, 3.0), 2.0)
    model.compile(optimizer, "mse", metrics=[spread])
    plain, copy = (
        one.fit(numbers(6), numbers(2), epochs=3, shuffle=False, verbose=0).history
        for one in (model, sn.unplace(model))
    )
    assert_near(plain, copy)


@keras.saving.register_keras_serializable("test_emit")
def chosen_for(variable):
    return keras.optimizers.SGD()


def test_a_compilation_that_cannot_be_copied_is_told(cluster):
    """The model is placed all the same, to be compiled; a plan is asked for by name."""

    class Odd(keras.optimizers.SGD):
        def get_config(self):
            raise NotImplementedError("no words")

    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)], name="odd")
    if hasattr(keras.optimizers, "MultiOptimizer"):  # not in every Keras
        model.compile(keras.optimizers.MultiOptimizer(chosen_for), "mse")
        with pytest.warns(UserWarning, match="a function chooses its optimizers"):
            sn.unplace(model)
    model.compile(Odd(), "mse")
    model.dtype_policy = "mixed_float16"  # losses are to be scaled
    with pytest.warns(UserWarning, match="of model 'odd' is not compiled: no word"):
        placed = sn.emit(model, sn.plan(model, cluster, batch=4, time_limit=0.1))
    assert not placed.compiled
    assert placed.dtype_policy == model.dtype_policy
    with pytest.raises(sn.DeclarationError, match="plan= must be Plan"):
        sn.emit(model, cluster)


def test_shares_of_gpus_are_compiled_where_keras_would_compile(cluster, monkeypatch):
    """Unless told otherwise; what XLA refuses, CPUs and stand-ins run plainly."""
    monkeypatch.setattr(keras_api, "compiles_by_itself", lambda model: True)
    gpus = [replace(device, stand_in=False) for device in cluster.of_kind("gpu")]
    wide = [layers.Dense(4), layers.Flatten()]
    net = two_branches(wide, layers.LSTM(20), shape=(5, 3)).source
    how = {"batch": BATCH, "pins": {"head": "cpu"}, "time_limit": 0.1}
    plan = sn.plan(net, sn.Cluster((*gpus, *cluster.of_kind("cpu"))), **how)

    def run(**options):
        made = placed_of(sn.emit(net, plan, **options))
        return {runner.device[-5:]: runner.how for runner in made.runners}

    assert run() == {"CPU:1": "xla", "CPU:2": "", "CPU:0": ""}
    assert set(run(xla=False).values()) == {""}
    assert set(run(recompute=True).values()) == {"recompute"}
    stand_ins = sn.plan(net, cluster, **how)
    assert {r.how for r in placed_of(sn.emit(net, stand_ins)).runners} == {""}


class Outside(layers.Layer):
    """Doubles in Python, which no compiler sees."""

    def call(self, x):
        made = tf.numpy_function(lambda one: 2 * one, [x], x.dtype)
        return keras.ops.reshape(made, keras.ops.shape(x)) + x

    def compute_output_shape(self, input_shape):
        return input_shape


def test_xla_leaves_out_what_it_cannot_compile(cluster):
    """Rows of a table elsewhere, loops, own layers: a warning says why; all train."""
    net, mean = sn.Net("left_out"), layers.GlobalAveragePooling1D()
    rows = [layers.Embedding(9, 4), mean]
    sides = [
        net.branch(name, net.input(f"{name}_ids", (5,), "int32"), rows, on=on)
        for name, on in (("here", "gpu:0"), ("there", "gpu:1"))
    ]
    joined = net.merge("joined", sides, layers.Concatenate(), on="gpu:1")
    last = net.branch("looped", joined, [layers.Dense(4), Loops()], on="gpu:1")
    last = net.branch("outside", last, [Outside(), layers.Reshape((2, 2))], on="gpu:0")
    last = net.branch("recurrent", last, layers.SimpleRNN(2), on="gpu:1")
    net.output(net.branch("head", last, layers.Dense(1), on="gpu:1"))
    how = {"time_limit": 0.1, "regroup": True}  # the branches of a net stay
    with pytest.warns(UserWarning, match="runs as it is") as warned:
        model = sn.emit(net, sn.plan(net, cluster, batch=BATCH, **how), xla=True)
    told = " ".join(str(one.message) for one in warned)
    assert "'there' runs as it is: it reads rows of a table on another device" in told
    assert "'looped' runs as it is: XLA" in told
    assert "'outside' runs as it is: XLA has no kernel for its" in told
    assert "'recurrent' runs as it is: XLA compiles its loop for one length" in told
    assert not any(name in told for name in ("'here'", "'head'"))
    x = np.ones((BATCH, 5), "int32")
    model.compile("sgd", "mse")
    assert np.isfinite(model.train_on_batch([x, x], np.ones((BATCH, 1))))
