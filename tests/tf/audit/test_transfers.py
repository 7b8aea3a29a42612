"""Audits of tensors and weights that several devices read: all bytes are as planned."""

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn
from splitnet.core.costs import slots_of
from tests.tf.check import emitted
from tests.tf.zoo.ways import TWO, towered

SENT = ("activation", "gradient", "weights", "weights gradient")
RATES = [
    keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.2, 0.3]),
    keras.optimizers.schedules.CosineDecay(0.1, 6, warmup_target=0.2, warmup_steps=3),
]


def audited(source, cluster, batch=8, *, of=0, pins=None, optimizer="adam", **way):
    """The clean audit of a step of ones, planned for a batch of `of`."""
    compiled = optimizer, "mse", None, [keras.metrics.Precision([0.1, 0.4, 0.9])]
    model = emitted(source, cluster, way, compiled, batch=of or batch, pins=pins)
    data = keras.tree.map_structure(
        lambda t: np.ones((batch, *t.shape[1:]), t.dtype), (model.input, model.output)
    )
    return sn.audit(model, None, data).check()


def assert_equal(audit):
    sent = {link: sizes for link, sizes in audit.moved.items() if link[2] in SENT}
    assert {link: n for link, n in sent.items() if n[0] != n[1]} == {}


def recurrent_layer_on_two_devices():
    """One layer called by three branches: its weights are sent to each device once."""
    net, shared = sn.Net("shared"), layers.SimpleRNN(4)
    sides = [
        net.branch(f"b{i}", net.input(f"x{i}", (5, 3)), shared, on=home)
        for i, home in enumerate(("gpu:1", "gpu:1", "gpu:0"))
    ]
    joined = net.merge("joined", sides, layers.Concatenate(), on="cpu:0")
    net.output(net.branch("head", joined, layers.Dense(1), on="gpu:0"))
    return net


def tensor_with_three_readers():
    """One that two devices read, and a view; a constant is not sent in every step."""
    x = keras.Input((8, 8, 3))
    made = layers.Conv2D(4, 3, padding="same", name="made")(x)
    norm = layers.BatchNormalization(name="norm")(made)
    added = layers.Add(name="added")([made, norm])
    view = layers.Reshape((8, 8, 4), name="view")(made)
    both = layers.Concatenate(name="both")([made, added, view])
    flat = keras.ops.matmul(layers.Flatten()(both), keras.ops.ones((768, 64)))
    return keras.Model(x, layers.Dense(1, name="out")(flat))


def places_for_any_batch():
    """A tensor of one size for any batch: each micro-batch sends all of it."""
    x = keras.Input((5, 16))
    order = layers.Lambda(lambda x: keras.ops.eye(5)[None], name="order")(x)
    both = layers.Dense(16, name="made")(x) + layers.Dense(16, name="places")(order)
    return keras.Model(x, layers.Dense(1, name="head")(both))


def between(body, **options):
    """A net whose towers stand between two layers of one device."""
    net = sn.Net("between")
    made = net.branch("made", net.input("x", (6,)), layers.Dense(40), on="gpu:2")
    towers = net.towers("body", made, body, on=TWO, **options)
    net.output(net.branch("head", towers, layers.Dense(1), on="gpu:2"))
    return net


def towers_that_meet():
    """Moments of a synchronised norm go home and back; shares are activations."""
    narrow, wide = layers.Dense(5), layers.Dense(5)

    def body(x):
        norm = layers.BatchNormalization()(narrow(x))
        return layers.Add()([wide(x), norm])  # the share is read again, behind the norm

    return between(body, batch_norm="synchronised")


def sums_in_a_chain():
    """An addition hands its gradient on without an op that would say where it is."""
    first = keras.Input((5, 16))
    found = layers.Dense(16, name="enter")(first)
    for i in range(3):
        mixed = layers.LayerNormalization(name=f"norm_{i}")(found)
        mixed = layers.Dense(16, name=f"mix_{i}")(mixed)
        found = layers.Add(name=f"sum_{i}")([found, mixed])
    return keras.Model(first, layers.Dense(1, name="head")(found))


CHAIN = {"enter": 0, "norm_0": 2, "mix_0": 0, "sum_0": 1, "norm_1": 2, "mix_1": 0}
CHAIN |= {"sum_1": 0, "norm_2": 1, "mix_2": 0, "sum_2": 1, "head": 2}
PLACES = {"made": "gpu:1", "order": "gpu:0", "places": "gpu:0", "*": "gpu:2"}
READERS = dict.fromkeys(("made", "added", "view"), "gpu:0") | {"*": "gpu:1"}


@pytest.mark.parametrize(
    ("make", "pins", "how"),
    [
        (recurrent_layer_on_two_devices, None, {}),
        (tensor_with_three_readers, READERS, {}),
        (towers_that_meet, None, {"of": 32}),
        (sums_in_a_chain, {name: f"gpu:{at}" for name, at in CHAIN.items()}, {}),
        (places_for_any_batch, PLACES, {"of": 32, "microbatches": 4}),
    ],
)
def test_bytes_are_as_planned(make, pins, how, cluster):
    assert_equal(audited(make(), cluster, pins=pins, **how))


def test_a_gradient_that_is_clipped_before_it_crosses(cluster):
    """Towers on one device, their weights elsewhere: still a gradient, and planned."""
    net = towered([layers.Dense(4, activation="tanh")], (8,), on=TWO)
    clipping = keras.optimizers.Adam(global_clipnorm=1.0)
    audited(net, cluster, pins={"body/0": "gpu:1"}, optimizer=clipping, microbatches=2)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_gradients_are_accumulated_where_the_weight_is(microbatches, cluster):
    """They are made elsewhere, by two towers that read shares of a Flatten."""
    net = sn.Net("beside")
    flat = net.branch("flat", net.input("x", (4, 2)), layers.Flatten(), on="gpu:1")
    body = [layers.Dense(20, activation="tanh")]
    made = net.towers("body", flat, body, on=["cpu", "gpu:0"], weights_on="gpu:1")
    net.output(net.branch("head", made, layers.Dense(1), on="gpu:1"))
    optimizer = keras.optimizers.Adafactor(gradient_accumulation_steps=3, use_ema=True)
    if microbatches == 2:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    how = {"pins": {"body/1": "cpu"}, "microbatches": microbatches}
    audit = audited(net, cluster, batch=6, optimizer=optimizer, **how)
    assert not [key for key in audit.moved if key[2] in ("update", "other")]
    assert audit.moved["cpu:0", "gpu:1", "weights gradient"][0] == 720
    held = sum(keras.ops.size(one.value) for one in optimizer.variables)
    assert slots_of(optimizer) == held // (180 + 21)
    if microbatches == 1:
        assert_equal(audit)
        assert audit.moved["gpu:1", "cpu:0", "activation"] == (192, 192)


@pytest.mark.parametrize(("batch", "of", "count"), [(32, 0, 1), (32, 8, 1), (2, 5, 3)])
def test_gradients_of_a_shared_table_are_rows_looked_up(batch, of, count, cluster):
    """They go to the table's home as rows, also where those are more than the table."""
    net = sn.Net("shared_table")
    table = [layers.Embedding(8, 38), layers.GlobalAveragePooling1D()]
    sides = [
        net.branch(name, net.input(f"{name}_words", (5,), "int32"), table, on=on)
        for name, on in zip(("left", "right"), TWO)
    ]
    both = net.merge("both", sides, layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(1), on="cpu"))
    moved = audited(net, cluster, batch, of=of, microbatches=count).moved
    sent = {ends: size for ends, size in moved.items() if "weights g" in ends[2]}
    size = max(batch, count) * 5 * (38 + 1) * 4
    assert sent == {("gpu:1", "gpu:0", "weights gradient"): (size, size)}


@pytest.mark.parametrize("rate", RATES)
def test_what_a_step_does_around_its_parts(rate, cluster):
    """A table decays where it is; rates and constants are allowed; no logits cross."""
    net, places = sn.Net("around"), keras.ops.ones((150,))
    table, last = layers.Embedding(20, 30), layers.Dense(40, "softmax")

    def body(words):
        return last(layers.Flatten()(table(words)) + places)

    words = net.input("words", (5,), "int32")
    net.output(net.towers("all", words, body, on=TWO, weights_on="gpu:2"))
    compiled = keras.optimizers.AdamW(rate), "sparse_categorical_crossentropy"
    model = emitted(net, cluster, compiled=(*compiled, None, ["accuracy"]), batch=8)
    sn.audit(model, None, (np.ones((8, 5), "int32"), np.ones(8))).check()


@pytest.mark.parametrize("microbatches", [1, 3])
def test_a_step_for_batches_of_any_size(microbatches, cluster, tmp_path):
    """`fit` traces one if the last batch is smaller: its tensors have open sizes."""
    way, net = {"microbatches": microbatches}, between([layers.Dense(30)])
    model = emitted(net, cluster, way, ("adam", "mse"), batch=12)
    callback, x = sn.PlacementCallback(tmp_path), np.ones((20, 6), "float32")
    model.fit(x, x[:, :1], batch_size=12, verbose=0, callbacks=[callback])
    assert_equal(callback.audit.check())
