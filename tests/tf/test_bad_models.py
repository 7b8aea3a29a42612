"""Models that cannot be placed: the layer is named, and nothing is changed."""

import functools
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn


class Silent(layers.Layer):
    """A layer that tells nothing of its arguments."""

    def __init__(self, function: Any, **more: Any) -> None:
        super().__init__(**more)
        self.function = function

    def call(self, inputs: Any) -> Any:
        """Apply it."""
        return self.function(inputs)


class Forgetful(layers.Layer):
    """A layer whose configuration lacks what its weights depend on."""

    def __init__(self, units: int = 2, **more: Any) -> None:
        super().__init__(**more)
        self.units = units

    def build(self, shape: Any) -> None:
        """One weight."""
        self.w = self.add_weight(shape=(shape[-1], self.units), name="w")

    def call(self, inputs: Any) -> Any:
        """A product."""
        return inputs @ self.w

    def get_config(self) -> dict[str, Any]:
        """Without the units."""
        return super().get_config()


class Halved(layers.Dense):
    """A layer whose configuration forgets an argument that has a default."""

    def __init__(self, *args: Any, factor: float = 1.0, **more: Any) -> None:
        super().__init__(*args, **more)
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        """A product, times the factor."""
        return self.factor * super().call(inputs)


class Attached(layers.Layer):
    """A layer that needs what somebody sets on it."""

    def call(self, inputs: Any) -> Any:
        """Apply what was set."""
        return self.function(inputs)


def attached() -> Any:
    """The layer, with what it needs."""
    layer = Attached(name="odd")
    layer.function = keras.ops.abs
    return layer


def hidden(way: str) -> Callable[[Any], Any]:
    """A function for a Lambda that hides a variable in one of many ways."""
    dense = layers.Dense(3, name="kept")
    dense.build((None, 3))
    variable, held = tf.Variable(np.ones(3, "float32"), name="kept"), {"a": [dense]}

    def helper(t: Any) -> Any:
        return held["a"][0](t)

    return {
        "tf.Variable": lambda t: t * variable,
        "helper": lambda t: helper(t) + 1,
        "partial": functools.partial(lambda layer, t: layer(t), dense),
        "default": lambda t, layer=dense: layer(t),
        "bound": dense.call,
    }[way]


WAYS = ("tf.Variable", "helper", "partial", "default", "bound")


def around(layer: Any) -> Any:
    """A model of three layers, the middle one strange."""
    x = keras.Input((3,), name="x")
    seen = layers.Dense(3, name="first")(x)
    return keras.Model(x, layers.Dense(2, name="last")(layer(seen)), name="odd")


def fingerprint(model: Any) -> list[Any]:
    """Everything that an attempt must leave alone."""
    return [
        sorted(vars(model)),
        [(layer.name, sorted(vars(layer))) for layer in model._flatten_layers()],
        [len(layer._inbound_nodes) for layer in model._flatten_layers()],
        [len(layer._outbound_nodes) for layer in model._flatten_layers()],
        [(v.path, v.numpy().tolist()) for v in model.variables],
        model.compiled,
        random.getstate(),
    ]


def refused(model: Any, cluster: sn.Cluster) -> str:
    """The message, of a model that is as it was afterwards."""
    before = fingerprint(model)
    with pytest.raises(sn.DeclarationError) as caught:
        sn.place(model, cluster, batch=4, time_limit=0.1)
    assert fingerprint(model) == before
    return str(caught.value)


class Secretive(layers.Layer):
    """A layer that makes a variable of TensorFlow's when it is called."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.w: Any = None

    def call(self, inputs: Any) -> Any:
        """Make the weight, if it is the first call."""
        if self.w is None:
            with tf.init_scope():
                self.w = tf.Variable(np.ones(3, "float32"), name="secret")
        return inputs * self.w


@pytest.mark.parametrize("way", [*WAYS, "in call"])
def test_layer_that_hides_variables_is_named(way: str, cluster: sn.Cluster) -> None:
    """However a Lambda's function reaches them; or made when a layer is called.

    Keras lets them pass and loses them when it saves; a copy would lose them too.
    """
    if way == "in call":
        layer, words = (
            Secretive(name="sly"),
            "(Secretive) hides variables from Keras: w",
        )
    else:
        layer = layers.Lambda(hidden(way), name="sly")
        words = "(Lambda) hides variables from Keras: kept"
    told = refused(around(layer), cluster)

    assert f"layer 'sly' {words}" in told
    assert "Make them with add_weight()" in told


def test_lambda_without_variables_is_fine(cluster: sn.Cluster) -> None:
    """Constants, modules, activations and plain helpers hide nothing.

    An input that nothing reads stays an input of the placed model.
    """
    scale, relu = np.float32(2), layers.ReLU()
    relu.build((None, 3))
    x, idle = keras.Input((3,), name="x"), keras.Input((2,), name="idle")
    body = layers.Lambda(lambda t: relu(keras.ops.abs(t)) * scale, name="open")
    model = keras.Model([x, idle], layers.Dense(2)(body(x)))
    given = [np.ones((2, 3), "float32"), np.ones((2, 2), "float32")]
    placed = sn.place(model, cluster, batch=4, time_limit=0.1)

    np.testing.assert_array_equal(placed(given), model(given))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Silent(lambda t: t + 1, name="odd"), "odd: NotImplementedError"),
        (lambda: Forgetful(5, name="odd"), r"odd: its variables are w\(3, 5\), the"),
        (attached, "odd: a copy cannot be called: AttributeError"),
        (lambda: Halved(5, factor=2.0, name="odd"), "odd: factor is 2.0, in the copy"),
    ],
)
def test_layer_that_its_configuration_forgets_is_used_itself(
    make: Any, why: str, cluster: sn.Cluster, tmp_path: Path
) -> None:
    """The very layer runs in the placed model; one warning and the plan say so."""
    model = around(make())
    x = np.ones((2, 3), "float32")
    plain = model.predict(x, verbose=0)
    pins = {"odd": "gpu:1"}
    with pytest.warns(UserWarning, match=f"(?s)cannot be rebuilt.*{why}"):
        placed = sn.place(model, cluster, batch=4, pins=pins, time_limit=0.1)

    plan = sn.plan_of(placed)
    plan.save(tmp_path / "plan.json")
    assert re.match(why, f"odd: {plan.reused['odd']}")
    assert sn.load_plan(tmp_path / "plan.json").reused == plan.reused
    assert "the source's own layer" in sn.table(plan)
    assert placed.get_layer("odd") is model.get_layer("odd")
    assert placed.get_layer("first") is not model.get_layer("first")
    with pytest.warns(UserWarning, match="layers of its source\\.\n"):
        sn.unplace(placed)  # takes the layer as well, and leaves it where it is
    weights = placed.get_layer("odd").weights
    assert all(w.value.device.endswith("CPU:2") for w in weights)
    np.testing.assert_array_equal(placed.predict(x, verbose=0), plain)


class Own(keras.Model):
    """Functional inside, with a call of its own."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Twice what the graph gives."""
        return 2 * super().call(inputs, training=training)


class Steps(keras.Sequential):
    """Sequential, with a step of its own."""

    def train_step(self, data: Any) -> Any:
        """Do nothing."""
        return {}


def test_code_beside_the_graph_is_refused(cluster: sn.Cluster) -> None:
    """Calls that the graph does not have would be lost without a word."""
    x = keras.Input((3,))
    own = refused(Own(x, layers.Dense(2)(x), name="mine"), cluster)
    steps = refused(Steps([keras.Input((3,)), layers.Dense(2)], name="mine"), cluster)

    assert "'mine' (Own) is subclassed: its call is code" in own
    assert "body of a branch" in own
    assert "'mine' (Steps) is subclassed: its train_step is code" in steps
    assert "from keras.Model(inputs, outputs)" in steps
