"""Every kind of call that a Keras model may hold, read, split and run as it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import splitnet as sn
from tests.tf.test_transparency import assert_near

pytestmark = pytest.mark.tf


@dataclass(frozen=True)
class Case:
    """A model, where its calls go, a batch, targets, and what must be on the CPU."""

    model: Any
    pins: dict[str, str]
    x: Any
    y: Any
    on_cpu: tuple[str, ...] = ()


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register a case under its function's name."""
    CASES[build.__name__] = build
    return build


def numbers(*shape: int) -> np.ndarray:
    """The same numbers every time."""
    return np.random.default_rng(0).normal(size=(6, *shape)).astype("float32")


@case
def shared_layers_and_raw_operations() -> Case:
    """One layer at two nodes on two devices; lists, constants, Python arguments."""
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    dense = layers.Dense(3, name="dense")
    both = ops.concatenate([dense(a), dense(b) * 2.0 + np.arange(3, dtype="f4")], 1)
    turned = ops.transpose(ops.reshape(both, (-1, 2, 3)), axes=(0, 2, 1))
    kept = ops.where(turned > 0.1, turned, 0.5)
    one, two = ops.split(kept, 2, axis=-1)
    out = ops.einsum("bij,bij->b", one, two) + ops.max(kept, axis=(1, 2))
    model = keras.Model([a, b], out)
    pins = {"dense": "gpu:0", "dense@2": "gpu:1", "split*": "gpu:2"}
    return Case(model, pins, [numbers(4), numbers(4) + 1], numbers())


@case
def nests_in_and_out() -> Case:
    """Inputs as a dict of a list, outputs as a dict with a list and a tuple."""
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((3,), name="b")}
    one = layers.Dense(2, name="one")(inputs["a"])
    two = layers.Dense(2, name="two")(inputs["b"])
    sums = layers.Add(name="sums")([one, two])
    model = keras.Model(inputs, {"list": [one, two], "sum": (sums,)})
    pins = {"one": "gpu:0", "two": "gpu:1", "sums": "gpu:2"}
    y = {"list": [numbers(2), numbers(2) + 1], "sum": (numbers(2) - 1,)}
    return Case(model, pins, {"a": numbers(3), "b": numbers(3) - 1}, y)


@case
def masks_made_and_given() -> Case:
    """Masks of embeddings cross devices; another is an input of booleans."""
    words = keras.Input((5,), dtype="int64", name="words")
    steps, mask = keras.Input((5, 4), name="steps"), keras.Input((5,), dtype="bool")
    known = layers.Embedding(7, 4, mask_zero=True, name="known")(words)
    heard = layers.Embedding(7, 4, mask_zero=True, name="heard")(words)
    read = layers.LSTM(3, name="read")(known)
    told = layers.SimpleRNN(3, name="told")(steps, mask=mask)
    seen = layers.MultiHeadAttention(2, 3, name="seen")(known, heard)
    mean = layers.GlobalAveragePooling1D(name="mean")(seen)
    out = layers.Concatenate(name="out")([read, told, mean])
    model = keras.Model([words, steps, mask], out)
    ids = np.arange(30).reshape(6, 5) % 7
    where = {"known": "gpu:0", "heard": "gpu:1", "read": "gpu:1", "told": "gpu:2"}
    pins = where | {"seen": "gpu:2"}
    return Case(model, pins, [ids, numbers(5, 4), ids % 3 > 0], numbers(10))


@case
def training_said_in_the_call() -> Case:
    """A Dropout that is always on, a BatchNormalization that never learns."""
    x = keras.Input((4,), name="x")
    always = layers.Dropout(0.5, seed=3, name="always")(x, training=True)
    norm = layers.BatchNormalization(name="norm")(always, training=False)
    model = keras.Model(x, layers.Dense(2, name="head")(norm))
    pins = {"always": "gpu:0", "norm": "gpu:1", "head": "gpu:2"}
    return Case(model, pins, numbers(4), numbers(2))


@case
def states_of_recurrent_layers() -> Case:
    """States handed on to another layer, and kept from batch to batch."""
    x, y = keras.Input((5, 3), batch_size=6), keras.Input((5, 3), batch_size=6)
    _, *states = layers.LSTM(4, return_state=True, name="encoder")(x)
    decoded = layers.LSTM(4, name="decoder")(y, initial_state=states)
    kept = layers.SimpleRNN(4, stateful=True, name="kept")(x)
    model = keras.Model([x, y], layers.Add(name="add")([decoded, kept]))
    pins = {"encoder": "gpu:0", "decoder": "gpu:1", "kept": "gpu:2"}
    return Case(model, pins, [numbers(5, 3), numbers(5, 3) + 1], numbers(4))


@case
def text_and_lookups_stay_on_the_cpu() -> Case:
    """Preprocessing without a GPU kernel goes where it can run, by itself."""
    text, kind = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="string")
    number = keras.Input((1,), dtype="int32", name="number")
    words = layers.TextVectorization(
        max_tokens=9, output_sequence_length=4, name="words"
    )
    words.adapt(["the cat sat", "the dog ran"])
    lookup = layers.StringLookup(
        vocabulary=["red", "blue"], output_mode="one_hot", name="lookup"
    )
    ids = layers.IntegerLookup(vocabulary=[1, 5], output_mode="multi_hot", name="ids")
    read = layers.Flatten(name="flat")(
        layers.Embedding(9, 2, name="embed")(words(text))
    )
    joined = layers.Concatenate(name="joined")(
        [read, ops.cast(lookup(kind), "float32"), ops.cast(ids(number), "float32")]
    )
    model = keras.Model([text, kind, number], layers.Dense(2, name="head")(joined))
    x = [
        np.array([["the cat"], ["a dog"], ["ran"]] * 2, dtype=object),
        np.array([["red"], ["blue"], ["green"]] * 2, dtype=object),
        np.array([[1], [5], [7]] * 2, "int32"),
    ]
    pins = {"embed": "gpu:0", "flat": "gpu:0", "head": "gpu:1"}
    return Case(model, pins, x, numbers(2), ("words", "lookup", "ids"))


@case
def numbers_prepared() -> Case:
    """Adapted, augmented, crossed and encoded: what they learned goes along."""
    image = keras.Input((6, 6, 1), name="image")
    group = keras.Input((1,), dtype="int32", name="group")
    scale = layers.Normalization(axis=-1, name="scale")
    scale.adapt(np.arange(6 * 36, dtype="float32").reshape(6, 6, 6, 1))
    flipped = layers.RandomFlip("horizontal", seed=4, name="flip")(scale(image))
    seen = layers.Conv2D(2, 3, name="conv")(layers.GaussianNoise(0.1, seed=5)(flipped))
    coded = layers.CategoryEncoding(4, "one_hot", name="coded")(group)
    flat = layers.Flatten(name="flat")(seen)
    out = layers.Dense(2, name="head")(layers.Concatenate(name="join")([flat, coded]))
    model = keras.Model([image, group], out)
    pins = {"conv": "gpu:0", "flat": "gpu:0", "head": "gpu:1"}
    x = [numbers(6, 6, 1), np.arange(6, dtype="int32")[:, None] % 4]
    return Case(model, pins, x, numbers(2))


def fed(x: Any) -> Any:
    """As tensors: TensorFlow takes texts in no other way, and no mixture."""
    return keras.tree.map_structure(
        lambda a: tf.constant(a.tolist() if a.dtype == object else a), x
    )


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_call_is_placed_as_it_is(name: str, cluster: sn.Cluster) -> None:
    """Outputs in the model's structure, three steps, and a clean audit."""
    keras.utils.set_random_seed(0)
    one = CASES[name]()
    plan = sn.plan(one.model, cluster, batch=6, pins=one.pins, time_limit=0.1)
    placed = sn.emit(one.model, plan)
    where = {call.name: plan.device_of[call.part] for call in plan.graph.calls}
    x = fed(one.x)

    assert {name: where[name] for name in one.on_cpu} == dict.fromkeys(
        one.on_cpu, "cpu:0"
    )
    assert_near(placed(x), one.model(x))
    assert_near(*(m.predict(x, batch_size=6, verbose=0) for m in (placed, one.model)))
    steps = []
    for model in (placed, one.model):
        model.compile(keras.optimizers.Adam(0.01), "mse")
        steps.append([model.train_on_batch(x, one.y) for _ in range(3)])
    assert_near(*steps)
    assert_near(placed.get_weights(), one.model.get_weights())
    sn.audit(placed, plan, (x, one.y)).check()
