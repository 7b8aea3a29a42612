"""Layers of an emitted model: made under their device, or the user's very own."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from tests.tf.test_part_functions import compiled, numbers
from tests.tf.test_transparency import assert_near

pytestmark = pytest.mark.tf


class HoldsFunction(layers.Layer):
    """Computes by a `tf.function` that it made in `build`."""

    def build(self, shape: Any) -> None:
        """Make the weight and the function."""
        self.w = self.add_weight(shape=(shape[-1], 4), name="w")
        self.f = tf.function(lambda x: tf.tanh(x @ self.w.value))

    def call(self, inputs: Any) -> Any:
        """Call it."""
        return self.f(inputs)


class HoldsMetric(layers.Layer):
    """Keeps a metric of its input."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, inputs: Any) -> Any:
        """Hand the input on."""
        self.seen.update_state(inputs)
        return inputs


class ForgetsWidth(layers.Layer):
    """Cannot be rebuilt: its configuration lacks an argument."""

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.inner = layers.Dense(width, name="inner")

    def get_config(self) -> dict[str, Any]:
        """Without the width."""
        return {"name": self.name}

    def build(self, shape: Any) -> None:
        """Build the sublayer."""
        self.inner.build(shape)

    def call(self, inputs: Any) -> Any:
        """Call it."""
        return self.inner(inputs)


def model_of(layer: Any) -> Any:
    """A layer between two others."""
    x = keras.Input((6,), name="x")
    y = layer(layers.Dense(5, "tanh", name="first")(x))
    return keras.Model(x, layers.Dense(1, name="last")(y))


PINS = {"first": "gpu:0", "middle": "gpu:1", "last": "cpu:0"}


@pytest.mark.parametrize("kind", [HoldsFunction, HoldsMetric])
def test_what_a_layer_makes_is_its_own(kind: Any, cluster: sn.Cluster) -> None:
    """A function traced over its weights, a metric: as in the source."""
    model = model_of(kind(name="middle"))
    placed = sn.emit(model, sn.plan(model, cluster, batch=4, pins=PINS, time_limit=0.1))
    compiled(placed, model)
    x, y = numbers(8, 6), numbers(8, 1, seed=1)
    found = [
        one.fit(x, y, batch_size=4, shuffle=False, verbose=0).history
        for one in (placed, model)
    ]

    assert found[0].keys() == found[1].keys()
    assert_near(list(found[0].values()), list(found[1].values()))
    assert_near(placed.predict(x, verbose=0), model.predict(x, verbose=0))
    sn.audit(placed, None, (x[:4], y[:4])).check()


def test_a_layer_that_cannot_be_rebuilt_is_used_itself(cluster: sn.Cluster) -> None:
    """It is moved to its device, and a warning names it."""
    layer = ForgetsWidth(4, name="middle")
    model = model_of(layer)
    plan = sn.plan(model, cluster, batch=4, pins=PINS, time_limit=0.1)
    with pytest.warns(UserWarning, match="middle"):
        placed = sn.emit(model, plan)

    assert placed.get_layer("middle") is layer
    assert layer.inner.kernel.value.device.endswith("CPU:2")
    compiled(placed)
    placed.fit(numbers(8, 6), numbers(8, 1), batch_size=4, verbose=0)
    sn.audit(placed, None, (numbers(4, 6), numbers(4, 1))).check()


def test_copy_false_places_the_layers_of_the_source(cluster: sn.Cluster) -> None:
    """No weight exists twice, and what is trained is the source."""
    keras.utils.set_random_seed(1)
    model = model_of(layers.Dense(4, name="middle"))
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    plan = sn.plan(model, cluster, batch=4, pins=PINS, time_limit=0.1)
    placed = sn.emit(model, plan, copy=False)
    compiled(placed, clone)
    for one in (placed, clone):
        one.fit(numbers(8, 6), numbers(8, 1), batch_size=4, shuffle=False, verbose=0)

    assert placed.layers[1:] == model.layers[1:]
    assert_near(model.get_weights(), clone.get_weights())
    assert np.isfinite(model.predict(numbers(8, 6), verbose=0)).all()
    sn.audit(placed, None, (numbers(4, 6), numbers(4, 1))).check()
