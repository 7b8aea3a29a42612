"""Audits of tensors and weights that several devices read: all bytes are as planned."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn

SENT = ("activation", "gradient", "weights", "weights gradient")


def audited(
    source: Any,
    cluster: sn.Cluster,
    *,
    batch: int = 8,
    pins: Any = None,
    optimizer: Any = "adam",
    **options: Any,
) -> sn.Audit:
    """The audit, which is clean, of a step of ones."""
    plan = sn.plan(source, cluster, batch=batch, pins=pins, time_limit=0.1)
    model = sn.emit(source, plan, **options)
    model.compile(optimizer, "mse")
    x = keras.tree.map_structure(
        lambda t: np.ones((batch, *t.shape[1:]), t.dtype), model.input
    )
    return sn.audit(model, plan, (x, np.ones((batch, 1), "float32"))).check()


def unequal(audit: sn.Audit) -> dict[Any, tuple[int, int]]:
    """Links whose bytes are not as planned."""
    return {
        link: sizes
        for link, sizes in audit.moved.items()
        if link[2] in SENT and sizes[0] != sizes[1]
    }


def recurrent_layer_on_three_devices() -> Any:
    """One layer called by four branches: its weights are sent to each device once."""
    net, shared = sn.Net("shared"), layers.GRU(4)
    homes = ("gpu:1", "gpu:1", "gpu:0", "gpu:2")
    sides = [
        net.branch(f"b{i}", net.input(f"x{i}", (5, 3)), shared, on=home)
        for i, home in enumerate(homes)
    ]
    joined = net.merge("joined", sides, layers.Concatenate(), on="cpu:0")
    net.output(net.branch("head", joined, layers.Dense(1), on="gpu:0"))
    return net


def tensor_with_three_readers() -> Any:
    """A convolution read by a norm, a sum and a concatenation on two devices."""
    x = keras.Input((8, 8, 3))
    made = layers.Conv2D(4, 3, padding="same", name="made")(x)
    norm = layers.BatchNormalization(name="norm")(made)
    added = layers.Add(name="added")([made, norm])
    both = layers.Concatenate(name="both")([made, added])
    return keras.Model(x, layers.Dense(1, name="out")(layers.Flatten()(both)))


def shards_of_what_a_part_made() -> Any:
    """Shards are activations, and the gradients of shards are gradients."""
    net = sn.Net("shards")
    made = net.branch("made", net.input("x", (8,)), layers.Dense(16), on="gpu:2")
    towers = net.towers("towers", made, layers.Dense(16), on=["gpu:0", "gpu:1"])
    net.output(net.branch("head", towers, layers.Dense(1)))
    return net


def constant() -> Any:
    """A tensor among the arguments of a call is not sent in every step."""
    x = keras.Input((64,))
    made = keras.ops.matmul(x, keras.ops.ones((64, 64)))
    return keras.Model(x, layers.Dense(1, name="out")(made))


def towers_that_meet() -> Any:
    """Moments of a synchronised norm go home and come back; shares are read once."""
    net = sn.Net("meeting")
    narrow, wide = layers.Dense(5), layers.Dense(5)

    def body(x: Any) -> Any:
        norm = layers.BatchNormalization()(narrow(x))
        return layers.Add()([wide(x), norm])  # the share is read again, behind the norm

    made = net.branch("made", net.input("x", (6,)), layers.Dense(40), on="gpu:2")
    on = ["gpu:0", "gpu:1"]
    towers = net.towers("body", made, body, on=on, batch_norm="synchronised")
    net.output(net.branch("head", towers, layers.Dense(1), on="gpu:2"))
    return net


READERS = {"made": "gpu:0", "norm": "gpu:1", "added": "gpu:0", "*": "gpu:1"}


@pytest.mark.parametrize(
    ("make", "pins"),
    [
        (recurrent_layer_on_three_devices, None),
        (tensor_with_three_readers, READERS),
        (shards_of_what_a_part_made, None),
        (constant, {"*": "gpu:1"}),
        (towers_that_meet, None),
    ],
)
def test_bytes_are_as_planned(make: Any, pins: Any, cluster: sn.Cluster) -> None:
    """What several devices read, or several towers, crosses as often as planned."""
    assert not unequal(audited(make(), cluster, pins=pins))


def test_a_gradient_that_is_clipped_before_it_crosses(cluster: sn.Cluster) -> None:
    """Towers on one device, their weights elsewhere: still a gradient, and planned."""
    net = sn.Net("clipped")
    body = [layers.Dense(4, activation="tanh")]
    made = net.towers("body", net.input("x", (8,)), body, on=["gpu:0", "gpu:1"])
    net.output(net.branch("head", made, layers.Dense(1), on="gpu:0"))
    clipping = keras.optimizers.Adam(global_clipnorm=1.0)

    audited(net, cluster, pins={"body/0": "gpu:1"}, optimizer=clipping, microbatches=2)


def beside() -> Any:
    """Two towers, to be on one device, which read a Flatten of another with weights."""
    net = sn.Net("beside")
    flat = net.branch("flat", net.input("x", (4, 2)), layers.Flatten(), on="gpu:1")
    body = [layers.Dense(20, activation="tanh")]
    made = net.towers("body", flat, body, on=["cpu", "gpu:0"], weights_on="gpu:1")
    net.output(net.branch("head", made, layers.Dense(1), on="gpu:1"))
    return net


ON_ONE: dict[str, Any] = {"batch": 6, "pins": {"body/1": "cpu"}}


def test_towers_on_one_device_read_a_share_each(cluster: sn.Cluster) -> None:
    """Two shares of a tensor are copied to the device, and two gradients come back."""
    audit = audited(beside(), cluster, **ON_ONE)

    assert not unequal(audit)
    assert audit.moved["gpu:1", "cpu:0", "activation"] == (192, 192)


@pytest.mark.parametrize(
    ("optimizer", "microbatches"),
    [
        (lambda: keras.optimizers.AdamW(gradient_accumulation_steps=2), 2),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), 2),
        (lambda: keras.optimizers.Lion(gradient_accumulation_steps=3, use_ema=True), 1),
    ],
)
def test_gradients_are_accumulated_where_the_weight_is(
    optimizer: Any, microbatches: int, cluster: sn.Cluster
) -> None:
    """All of a weight's gradient is made on one device and kept on another.

    The branches of `tf.cond` hand on what they are given, so the device of a gradient
    was that of its towers: accumulators went there and sums came back.
    """
    audit = audited(
        beside(), cluster, **ON_ONE, optimizer=optimizer(), microbatches=microbatches
    )

    assert not [key for key in audit.moved if key[2] in ("update", "other")]
    assert audit.moved["cpu:0", "gpu:1", "weights gradient"][0] == 720


@pytest.mark.parametrize("rows", [8, 600])
def test_gradients_of_a_shared_table_are_the_rows_looked_up(
    rows: int, cluster: sn.Cluster
) -> None:
    """They go to the table's home as rows, also where those are more than the table."""
    net = sn.Net("shared_table")
    table = [layers.Embedding(rows, 4), layers.GlobalAveragePooling1D()]
    sides = [
        net.branch(name, net.input(f"{name}_words", (5,), "int32"), table, on=on)
        for name, on in (("left", "gpu:0"), ("right", "gpu:1"))
    ]
    both = net.merge("both", sides, layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(1), on="cpu"))

    moved = audited(net, cluster, batch=32).moved

    sent = {ends: size for ends, size in moved.items() if "weights g" in ends[2]}
    size = 32 * 5 * (4 + 1) * 4
    assert sent == {("gpu:1", "gpu:0", "weights gradient"): (size, size)}
