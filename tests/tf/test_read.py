"""Reading: names, sizes and weights of every call, without memory on any device."""

import inspect
import math
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.reading.read import planned_sites
from splitnet.tf.reading.source import blueprint_of
from tests.tf.check import assert_near, in_policy, stack
from tests.tf.zoo import ZOO
from tests.zoo import between_parts


def test_read_makes_a_vertex_of_each_call_and_an_edge_of_each_tensor():
    """A shared layer is called twice, its weights count once; edges have bytes."""
    graph = sn.read(ZOO["shared_lstm"]().source, batch=8)
    parts = ["tweet_a", "tweet_b", "left", "right", "join", "verdict"]
    assert [call.part for call in graph.calls] == parts
    left, right = graph.calls_of["left"][0], graph.calls_of["right"][0]
    assert left.weights == right.weights
    held = sum(w.bytes for w in graph.weights if w.dtype == "float32")
    assert held == 4 * (4 * (4 * 6 + 6 * 6 + 6) + 13)
    assert (left.output_shapes, left.output_bytes) == (((8, 6),), 8 * 6 * 4)
    assert left.forward_flops > 0
    assert {(a, b): n for a, b, n in between_parts(graph).edges(data="bytes")} == {
        ("tweet_a", "left"): 8 * 3 * 4 * 4,
        ("tweet_b", "right"): 8 * 3 * 4 * 4,
        ("left", "join"): 8 * 6 * 4,
        ("right", "join"): 8 * 6 * 4,
        ("join", "verdict"): 8 * 12 * 4,
    }


def test_read_names_every_call_and_leaves_a_keras_model_alone():
    """A second call is counted; no node is added and no value is changed."""
    net = sn.Net("twice")
    twice = layers.Dense(4, name="d")
    net.output(net.branch("a", net.input("x", (4,)), [twice, twice]))
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    nodes = [len(layer._inbound_nodes) for layer in model.layers]
    before = model.get_weights()
    graph = sn.read(model)
    assert [call.name for call in sn.read(net).calls] == ["x", "a/d", "a/d@2"]
    assert [part.kind for part in graph.parts] == ["input", "branch"]
    assert [len(layer._inbound_nodes) for layer in model.layers] == nodes
    assert_near(model.get_weights(), before)
    assert sn.read(graph) is graph
    assert (graph.training, sn.read(model, training=False).training) == (True, False)


def test_bodies_take_inputs_spread_listed_or_by_name():
    """A body of two arguments gets two; of one, a list; of names, a dict's items."""
    net, flat = sn.Net("calls"), layers.Flatten
    x, y = net.input("x", (4,)), net.input("y", (5,))
    bodies = {
        "spread": ([x, y], lambda a, b: flat()(a)),
        "listed": ([x, y], lambda both: flat()(both[0])),
        "named": ({"a": x, "b": y}, lambda b, a: flat()(a)),
    }
    for name, (given, body) in bodies.items():
        net.output(net.branch(name, given, body))
    calls = sn.read(net, batch=8).calls_of
    assert [calls[name][0].output_shapes for name in bodies] == [((8, 4),)] * 3


def test_read_prices_open_sizes_and_says_so(caplog):
    """An image as 224 wide, through all calls; a plan of it is matched with it."""

    def build(side):
        x = entry = keras.Input((side, side, 3), name="photo")
        for strides in (2, 2):
            x = layers.Conv2D(4, 3, strides=strides)(x)
        return keras.Model(entry, layers.GlobalAveragePooling2D()(x), name="eye")

    with caplog.at_level("WARNING", logger="splitnet"):
        graph, known = sn.read(build(None), 4), sn.read(build(224), 4)
    plan = sn.plan(build(None), sn.Cluster.of("gpu", "cpu"), batch=4, time_limit=0.1)
    shapes = [call.output_shapes for call in graph.calls]
    assert shapes == [call.output_shapes for call in known.calls]
    kept = [[c.activation_bytes for c in one.calls] for one in (graph, known)]
    assert kept[0] == kept[1]
    assert "'photo' (None, None, None, 3) as (None, 224, 224, 3). For" in caplog.text
    sites = planned_sites(blueprint_of(build(None)), plan)
    assert sites[1].node.outputs[0].shape == (None, None, None, 4)


def test_read_knows_the_size_of_a_batch_that_is_folded():
    """Windows, two views in one batch, time as the first axis; or declared as open."""
    x = keras.Input((8, 16))
    dense, ops = layers.Dense(4, name="dense"), keras.ops
    einsum = layers.EinsumDense("abc,cd->abd", output_shape=(None, 16))
    for folded, shape in (
        (ops.reshape(x, (-1, 2, 16)), (24, 2, 4)),
        (ops.concatenate([x, x], axis=0), (12, 8, 4)),
        (ops.transpose(x, (1, 0, 2)), (8, 6, 4)),
        (einsum(x), (6, 8, 4)),
    ):
        call = sn.read(keras.Model(x, dense(folded)), batch=6).call["dense"]
        assert call.output_shapes == (shape,)
        assert call.forward_flops == math.prod(shape) * (2 * 16 + 1)


class Traced(layers.Layer):
    """Its call is a `tf.function`."""

    def build(self, shape):
        self.kernel = self.add_weight((shape[-1], 2))

    @tf.function
    def call(self, inputs):
        return inputs @ self.kernel


def test_read_keeps_the_types_of_a_policy():
    """Also of a model inside, behind a layer that Keras casts the inputs of."""
    with in_policy("mixed_float16"):
        inner = keras.Sequential([keras.Input((2,)), layers.Dense(2), layers.Dense(2)])
        calls = sn.read(stack(Traced(), inner, layers.Dense(1)), batch=8).calls
    assert [call.output_dtypes for call in calls] == [("float32",), *[("float16",)] * 3]


def test_a_model_that_was_read_is_trained():
    """For the batch that was read, so that a trace of that signature was kept."""
    model = stack(Traced())
    sn.read(model, batch=8)
    before = model.get_weights()
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 6)), np.ones((8, 2)), batch_size=8, verbose=0)
    assert (model.get_weights()[0] != before[0]).all()


def test_a_plan_of_a_function_is_one_of_what_it_builds_next():
    """Names that Keras counts are the same each time, and unique where it trains."""

    def build():
        x = keras.Input((8,))
        y = layers.Add()([layers.Dense(8)(x), layers.Dense(8)(x)])
        return keras.Model(x, layers.Dense(1)(y))

    cluster = sn.local_cluster(stand_in_gpus=2)
    plan = sn.plan(build, cluster, batch=4, pins={"dense": "gpu:0", "dense_1": "gpu:1"})
    models = {sn.emit(build, plan).name for _ in range(2)}
    assert sn.score(build, cluster, plan, batch=4).seconds == plan.seconds
    assert sn.plan(sn.read(build, 4), cluster, pins=plan).device_of == plan.device_of
    assert len(models) == 2


def test_a_model_with_inputs_by_name_has_a_largest_batch():
    box = sn.Cluster.of("gpu", "cpu", memory="64 MiB", cpu_memory="32 MiB")
    inputs = {n: keras.Input((32,), name=n) for n in ("a", "b")}
    joined = layers.Concatenate()(list(inputs.values()))
    assert sn.largest_batch(keras.Model(inputs, layers.Dense(64)(joined)), box) > 32


def test_a_chain_may_be_longer_than_pythons_recursion_limit(cluster):
    net = sn.Net("long")
    last, one = net.input("x", (4,)), layers.Identity()
    for number in range(400):
        last = net.branch(f"b{number}", last, one)
    net.output(last)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 300)
    try:
        assert len(sn.place(net, cluster.without("gpu:0"), batch=2).layers) == 2
    finally:
        sys.setrecursionlimit(before)
