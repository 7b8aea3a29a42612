"""Audits of tensors and weights that several devices read."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn

pytestmark = pytest.mark.tf

SENT = ("activation", "gradient", "weights", "weights gradient")


def unequal(audit: sn.Audit) -> dict[Any, tuple[int, int]]:
    """Links whose bytes are not as planned."""
    return {
        link: sizes
        for link, sizes in audit.moved.items()
        if link[2] in SENT and sizes[0] != sizes[1]
    }


def test_a_recurrent_layer_on_three_devices(cluster: sn.Cluster) -> None:
    """One layer called by four branches: its weights are sent to each device once."""
    net, shared = sn.Net("shared"), layers.GRU(4)
    homes = ("gpu:1", "gpu:1", "gpu:0", "gpu:2")
    sides = [
        net.branch(f"b{i}", net.input(f"x{i}", (5, 3)), shared, on=home)
        for i, home in enumerate(homes)
    ]
    joined = net.merge("joined", sides, layers.Concatenate(), on="cpu:0")
    net.output(net.branch("head", joined, layers.Dense(1), on="gpu:0"))
    model = sn.emit(net, sn.plan(net, cluster, batch=8, time_limit=0.1))
    model.compile("adam", "mse")
    x = [np.ones((8, 5, 3), "float32")] * 4

    audit = sn.audit(model, None, (x, np.ones((8, 1), "float32"))).check()

    assert not unequal(audit)


def test_a_tensor_with_three_readers(cluster: sn.Cluster) -> None:
    """A convolution read by a norm, a sum and a concatenation on two devices."""
    x = keras.Input((8, 8, 3))
    made = layers.Conv2D(4, 3, padding="same", name="made")(x)
    norm = layers.BatchNormalization(name="norm")(made)
    added = layers.Add(name="added")([made, norm])
    both = layers.Concatenate(name="both")([made, added])
    model = keras.Model(x, layers.Dense(1, name="out")(layers.Flatten()(both)))
    pins = {"made": "gpu:0", "norm": "gpu:1", "added": "gpu:0"}
    pins |= {"both": "gpu:1", "flatten*": "gpu:1", "out": "gpu:1"}
    plan = sn.plan(model, cluster, batch=8, pins=pins, time_limit=0.1)
    placed = sn.emit(model, plan)
    placed.compile("adam", "mse")
    batch = np.ones((8, 8, 8, 3), "float32"), np.ones((8, 1), "float32")

    audit = sn.audit(placed, None, batch).check()

    assert not unequal(audit)


def test_towers_that_read_what_a_part_made(cluster: sn.Cluster) -> None:
    """Shards are activations, and the gradients of shards are gradients."""
    net = sn.Net("shards")
    made = net.branch("made", net.input("x", (8,)), layers.Dense(16), on="gpu:2")
    towers = net.towers("towers", made, layers.Dense(16), on=["gpu:0", "gpu:1"])
    net.output(net.branch("head", towers, layers.Dense(1)))
    model = sn.place(net, cluster, batch=8, time_limit=0.1)
    model.compile("adam", "mse")

    batch = np.ones((8, 8), "float32"), np.ones((8, 1), "float32")
    audit = sn.audit(model, None, batch).check()

    assert not unequal(audit)


def test_a_constant_is_on_the_device_that_reads_it(cluster: sn.Cluster) -> None:
    """A tensor among the arguments of a call is not sent in every step."""
    x = keras.Input((64,))
    table = keras.ops.ones((64, 64))
    model = keras.Model(x, layers.Dense(1, name="out")(keras.ops.matmul(x, table)))
    plan = sn.plan(model, cluster, batch=8, pins={"*": "gpu:1"}, time_limit=0.1)
    placed = sn.emit(model, plan)
    placed.compile("adam", "mse")
    batch = np.ones((8, 64), "float32"), np.ones((8, 1), "float32")

    audit = sn.audit(placed, None, batch).check()

    assert not unequal(audit)


def test_a_gradient_that_is_clipped_before_it_crosses(cluster: sn.Cluster) -> None:
    """Towers on one device, their weights elsewhere: still a gradient, and planned."""
    net = sn.Net("clipped")
    body = [layers.Dense(4, activation="tanh")]
    made = net.towers("body", net.input("x", (8,)), body, on=["gpu:0", "gpu:1"])
    net.output(net.branch("head", made, layers.Dense(1), on="gpu:0"))
    plan = sn.plan(net, cluster, batch=8, pins={"body/0": "gpu:1"}, time_limit=0.1)
    model = sn.emit(net, plan, microbatches=2)
    model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse")

    sn.audit(model, None, (np.ones((8, 8), "f4"), np.ones((8, 1), "f4"))).check()


def beside(cluster: sn.Cluster, **options: Any) -> Any:
    """Two towers on one device, which read a Flatten of another with their weights."""
    net = sn.Net("beside")
    flat = net.branch("flat", net.input("x", (4, 2)), layers.Flatten(), on="gpu:1")
    body = [layers.Dense(20, activation="tanh")]
    made = net.towers("body", flat, body, on=["cpu", "gpu:0"], weights_on="gpu:1")
    net.output(net.branch("head", made, layers.Dense(1), on="gpu:1"))
    plan = sn.plan(net, cluster, batch=6, pins={"body/1": "cpu"}, time_limit=0.1)
    return sn.emit(net, plan, **options)


SIX = np.ones((6, 4, 2), "float32"), np.ones((6, 1), "float32")


def test_towers_on_one_device_read_a_share_each(cluster: sn.Cluster) -> None:
    """Two shares of a tensor are copied to the device, and two gradients come back."""
    model = beside(cluster)
    model.compile("adam", "mse")

    audit = sn.audit(model, None, SIX).check()

    assert not unequal(audit)
    assert audit.moved["gpu:1", "cpu:0", "activation"] == (192, 192)


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.AdamW(gradient_accumulation_steps=2),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
        lambda: keras.optimizers.Lion(gradient_accumulation_steps=3, use_ema=True),
    ],
)
def test_gradients_are_accumulated_where_the_weight_is(
    optimizer: Any, microbatches: int, cluster: sn.Cluster
) -> None:
    """All of a weight's gradient is made on one device and kept on another.

    The branches of `tf.cond` hand on what they are given, so the device of a gradient
    was that of its towers: accumulators went there and sums came back.
    """
    model = beside(cluster, microbatches=microbatches)
    model.compile(optimizer(), "mse")

    audit = sn.audit(model, None, SIX).check()

    assert not [key for key in audit.moved if key[2] in ("update", "other")]
    assert audit.moved["cpu:0", "gpu:1", "weights gradient"][0] == 720


def test_towers_meet_in_a_synchronised_normalization(cluster: sn.Cluster) -> None:
    """Moments go home from each tower and come back; all read their share once."""
    net = sn.Net("meeting")
    narrow, wide = layers.Dense(5), layers.Dense(5)

    def body(x: Any) -> Any:
        norm = layers.BatchNormalization()(narrow(x))
        return layers.Add()([wide(x), norm])  # the share is read again, behind the norm

    made = net.branch("made", net.input("x", (6,)), layers.Dense(40), on="gpu:2")
    on = ["gpu:0", "gpu:1"]
    towers = net.towers("body", made, body, on=on, batch_norm="synchronised")
    net.output(net.branch("head", towers, layers.Dense(1), on="gpu:2"))
    model = sn.place(net, cluster, batch=8, time_limit=0.1)
    model.compile("adam", "mse")
    batch = np.ones((8, 6), "float32"), np.ones((8, 1), "float32")

    audit = sn.audit(model, None, batch).check()

    assert not unequal(audit)
