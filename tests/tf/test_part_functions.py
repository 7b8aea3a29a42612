"""A part is a function on a device: what could go wrong with that, case by case."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.internals import tf_api
from splitnet.tf.internals.tf_api import ancestors
from splitnet.tf.placement.device_function import function_of, key_in
from splitnet.tf.placement.placed import placed_of
from tests.tf.check import assert_near, emitted, numbers, with_plain

X, Y = numbers(6, count=8), numbers(1, count=8, seed=1)


def pair(model, cluster, **pins):
    return with_plain(emitted(model, cluster, batch=8, pins=pins))


def train(models, x=X):
    """A step of both: with the same weights, states and seeds they end alike."""
    for one in models:
        keras.utils.set_random_seed(1)
        one.train_on_batch(x, Y)
    ours, theirs = ([v.value for v in one.variables] for one in models)
    assert_near(ours, theirs)


def gradients(one, loss, watched=None):
    """Of `loss(model, x)`, by weights or what is watched, in a step of one's own."""
    by = [v.value for v in one.trainable_variables] if watched is None else watched

    @tf.function
    def step(x):
        with sn.placement_scope(one):
            with tf.GradientTape() as tape:
                tape.watch(by)
                made = loss(one, x)
            return tape.gradient(made, by, unconnected_gradients="zero")

    return step(tf.constant(X))


def chain(*body):
    return keras.Sequential([keras.Input((6,)), *body, layers.Dense(1, name="head")])


def calls(model, device=""):
    """The calls of part functions in the step that was traced last, and backward."""
    graph = list(placed_of(model).graphs)[-1]
    found = [op for op in graph.get_operations() if key_in(function_of(op))]
    found = [op for op in found if op.device.endswith(device)]
    back = ["backward" in function_of(op) for op in found]
    return tuple([op for op, b in zip(found, back) if b == wanted] for wanted in (0, 1))


def test_two_calls_of_one_layer_with_state_do_not_wait(cluster):
    """A shared seed or moving average orders small updates only, and is exact."""
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    drop, norm = layers.Dropout(0.5, seed=3), layers.BatchNormalization()
    shared = [layers.Dense(5, "tanh"), drop, norm]
    one, two = (functools.reduce(lambda x, layer: layer(x), shared, x) for x in (a, b))
    model = keras.Model([a, b], layers.Dense(1, name="head")(one - two))
    pins = {layer.name: "gpu:0" for layer in shared}
    pins |= {f"{layer.name}@2": "gpu:1" for layer in shared}
    models = pair(model, cluster, **pins, head="cpu:0")
    train(models, [X, numbers(6, count=8, seed=2)])
    first, second = (calls(models[0], at)[0][0] for at in ("CPU:1", "CPU:2"))
    assert first not in ancestors([second])
    assert second not in ancestors([first])


def test_gradients_run_where_the_forward_call_ran(cluster):
    """Also of parts without weights, with an unknown batch and integer inputs."""
    ids = keras.Input((3,), dtype="int32", name="ids")
    flat = layers.Flatten(name="flat")(layers.Embedding(7, 4, name="rows")(ids))
    twice = layers.Add(name="twice")([flat, flat])
    model = keras.Model(ids, layers.Dense(1, name="head")(twice))
    pins = {"rows": "gpu:0", "flat": "gpu:1", "twice": "gpu:2", "head": "cpu:0"}
    models = pair(model, cluster, **pins)
    train(models, np.random.default_rng(0).integers(0, 7, (8, 3)))
    for device in ("CPU:0", "CPU:1", "CPU:2", "CPU:3"):
        assert [len(found) for found in calls(models[0], device)] == [1, 1]
    [*_, graph] = placed_of(models[0]).graphs
    assert "Snapshot" not in {op.type for op in graph.get_operations()}


def change(model, how):
    dense = model.get_layer("dense")
    dense.trainable = how != "trainable"
    if how == "rate":
        model.get_layer("drop").rate = 0.0
    elif how == "lora":
        dense.enable_lora(2)
    elif how == "dtype":
        dense.dtype_policy = keras.DTypePolicy("mixed_bfloat16")


def test_no_trace_is_stale_after_a_change(cluster):
    """What plain Keras sees after compile() is seen by parts as well."""
    body = [layers.Dense(5, "relu", name="dense")]
    body.append(layers.Dropout(0.5, seed=2, name="drop"))
    pins = {"dense": "gpu:0", "drop": "gpu:0", "head": "gpu:1"}
    placed, plain = pair(chain(*body), cluster, **pins)
    for how in ("trainable", "rate", "lora", "dtype"):
        for one in (placed, plain):
            keras.utils.set_random_seed(1)
            change(one, how)
            # Half precision is rounded at other places eagerly.
            eager = one is plain and how != "dtype"
            one.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=eager)
        train((placed, plain))


class Counts(layers.Layer):
    """Assigns states in a loop, in a function of its own and in a layer inside."""

    def build(self, shape):
        self.steps = self.add_weight(initializer="zeros", trainable=False)
        self.mean = self.add_weight(shape[1:], initializer="zeros", trainable=False)
        self.drop = layers.Dropout(0.5, seed=3)

    @tf.function
    def follow(self, inputs):
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(inputs, 0))
        return inputs - self.mean

    def call(self, inputs, training=False):
        def once(number, x):
            self.steps.assign_add(1.0)
            return number + 1, self.drop(x, training=training) + 0.01 * self.steps

        loop = keras.ops.while_loop(lambda number, x: number < 3, once, (0, inputs))
        return self.follow(loop[1])


@pytest.mark.parametrize("recompute", [False, True])
def test_states_are_assigned_in_loops_and_functions(recompute, cluster):
    """Once a step: such a part is not run again in its backward pass."""
    model = chain(layers.Dense(4, name="dense"), Counts(name="counts"))
    pins = {"dense": "gpu:0", "counts": "gpu:0", "head": "gpu:1"}
    way = {"recompute": recompute}
    models = with_plain(emitted(model, cluster, way, batch=8, pins=pins))
    for _ in range(2):
        train(models)


class KeepsScores(layers.Layer):
    """Keeps a tensor of its call as an attribute, as attention layers do."""

    def call(self, inputs):
        self.scores = keras.ops.tanh(inputs)
        return inputs + self.scores


def test_a_tensor_that_a_layer_keeps_is_read_in_a_step(cluster):
    """A step of one's own adds what a layer keeps to the loss: as in plain Keras."""
    body = layers.Dense(4, name="dense"), KeepsScores(name="keeps")
    pins = {"dense": "gpu:0", "keeps": "gpu:0", "head": "gpu:1"}

    def loss(one, x):
        made = one(x, training=True)
        return tf.reduce_mean(made**2) + tf.reduce_mean(one.get_layer("keeps").scores)

    assert_near(*(gradients(one, loss) for one in pair(chain(*body), cluster, **pins)))


def test_a_part_does_not_wait_for_the_next_one_on_its_device(cluster):
    """Each is a function, copies last; in micro-batches a stage, until data return."""
    net = sn.Net("early")
    stem = net.branch("stem", net.input("x", (6,)), layers.Dense(5), on="gpu:0")
    a = net.branch("a", stem, layers.Dense(5, name="a"), on="gpu:0")
    b = net.branch("b", stem, layers.Dense(5, name="b"), on="gpu:1")
    end = net.merge("end", [a, b], layers.Add(name="end"), on="gpu:1")
    net.output(net.merge("back", [end, a], layers.Add(), on="gpu:0"))

    def ran(**how):
        one = emitted(net, cluster, how, ("sgd", "mse"), batch=8)
        one.train_on_batch(X, Y)
        part, every = placed_of(one).part_of, calls(one)
        called = ({part[key_in(function_of(op))]: op for op in ops} for ops in every)
        return placed_of(one).runners[-1].segment.reads, *called

    reads, forward, backward = ran()
    _, stages, _ = ran(microbatches=2)
    assert forward.keys() == backward.keys() == {"stem", "a", "b", "end", "back"}
    assert forward["a"] not in ancestors([forward["b"]])
    assert backward["b"] not in ancestors([backward["a"]])
    assert stages.keys() == {"stem", "b", "back"}
    assert [t._keras_history[0].name for t in reads] == ["a", "end"]
    assert backward["b"].outputs[-1].shape == (8, 5)  # behind those of weights


def test_weights_of_another_device_are_read_once_a_step(cluster):
    """They cross once for all micro-batches; frozen ones of towers get no gradient."""
    net = sn.Net("shared")
    x = net.input("x", (6,))
    dense = layers.Dense(6, "tanh", name="dense")
    here = net.branch("here", x, dense, on="gpu:0")
    there = net.branch("there", here, dense, on="gpu:1")
    head = [layers.Dense(20, trainable=False), layers.Dense(1, use_bias=False)]
    net.output(net.towers("head", there, head, on=["gpu:1", "gpu:2"]))
    models = with_plain(emitted(net, cluster, {"microbatches": 4}, batch=8))
    train(models)
    moved = sn.audit(models[0], None, (X, Y)).check().moved
    assert moved["gpu:0", "gpu:1", "weights"][1] == 4 * (6 * 6 + 6)
    assert moved["cpu:0", "gpu:2", "weights"] == (4 * 8 * 20,) * 2


@pytest.mark.parametrize("way", ["gpipe gpu:1 3", "1f1b gpu:1 2", "gpipe gpu:0 1"])
def test_micro_batches_run_in_order(way, cluster):
    """Each function is traced once; in 1f1b the third waits for the first's return."""
    schedule, last, window = way.split()
    net = sn.Net("stages")
    body = [layers.Dense(5, "tanh") for _ in range(20)]
    a = net.branch("a", net.input("x", (6,)), body, on="gpu:0")
    net.output(net.branch("b", a, layers.Dense(1), on=last))
    way = {"microbatches": 3, "schedule": schedule}
    placed = emitted(net, cluster, way, ("sgd", "mse"), batch=6)
    placed.train_on_batch(X[:6], Y[:6])
    forward, backward = calls(placed, "CPU:1")
    assert len(forward) == len(backward) == 2 * 3
    assert len(set(map(function_of, forward + backward))) == 4
    firsts, lasts = forward[::2], forward[1::2]
    ends = [op for op in backward if function_of(op) == function_of(backward[1])]
    for m, first in enumerate(firsts):
        before = ancestors([first])
        assert [last in before for last in lasts] == [i < m for i in range(3)]
        assert [e in before for e in ends] == [m - i >= int(window) for i in range(3)]
    forward, _ = calls(placed, "CPU:2")
    assert not any(a in ancestors([b]) for a, b in zip(forward, forward[1:]))


def test_a_placed_model_runs_inside_a_dataset(cluster):
    dense = layers.Dense(5, "relu", name="dense")
    models = pair(chain(dense), cluster, dense="gpu:0", head="gpu:1")
    rows = tf.data.Dataset.from_tensor_slices(X).batch(4)
    assert_near(*(list(rows.map(one)) for one in models))


def test_uneven_batches_are_traced_less_often_than_by_keras(cluster):
    """Only Keras traces the first step twice, in which it makes slots and metrics."""
    traced = []

    @keras.saving.register_keras_serializable("traces")
    class Counted(layers.Dense):
        def call(self, inputs, training=None):
            traced.append(not tf.executing_eagerly())
            return super().call(inputs)

    model = chain(Counted(1))
    x, y = numbers(6, count=100), numbers(1, count=100)
    counts = []
    for one in (model, emitted(model, cluster, batch=32)):
        one.compile("adam", "mse", metrics=["mae"])
        traced.clear()
        one.fit(x, y, batch_size=32, epochs=2, verbose=0)
        one.predict(x[:50], batch_size=25, verbose=0)
        counts.append(sum(traced))
    assert 0 < counts[1] < counts[0]


def test_frozen_weights_cost_no_gradient(cluster):
    """In Keras' training step, until they are thawed; a step of one's own may ask."""
    frozen = layers.Dense(4, trainable=False, name="frozen")
    models = pair(chain(frozen), cluster, frozen="gpu:0", head="gpu:0")
    train(models)
    _, backward = calls(models[0])
    nodes = [n for op in backward for n in tf_api.function_nodes(function_of(op))]
    assert len([node for node in nodes if node.op == "MatMul"]) == 1
    kernels = [model.get_layer("frozen").kernel for model in models]
    asked = [gradients(m, type(m).__call__, w.value) for m, w in zip(models, kernels)]
    assert np.any(asked[0])
    assert_near(*asked)
    before = kernels[0].numpy()
    for model in models:
        model.get_layer("frozen").trainable = True
        model.compile("sgd", "mse")
    train(models)
    assert np.any(before != kernels[0])
    models[1].trainable, models[1].layers[-1].trainable = False, True
    assert not any(weight.trainable for weight in sn.read(models[1]).weights)
    stack = keras.Sequential(models[0].layers, trainable=False)
    stack.layers[-1].trainable = True
    assert not sn.emit(stack, sn.plan(stack, cluster, batch=8)).trainable_variables


def test_gradients_of_gradients_are_as_in_plain_keras(cluster):
    """A penalty on the gradient of the input, as in a WGAN."""

    def penalty(one, x):
        with tf.GradientTape() as inner:
            inner.watch(x)
            made = one(x, training=True)
        return tf.reduce_sum(inner.gradient(made, x) ** 2)

    body = layers.Dense(8, "tanh", name="body")
    models = pair(chain(body), cluster, body="gpu:0", head="gpu:1")
    assert_near(*(gradients(one, penalty) for one in models))
