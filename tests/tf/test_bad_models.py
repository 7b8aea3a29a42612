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


class Attached(layers.Layer):
    """A layer that needs what somebody sets on it."""

    def call(self, inputs: Any) -> Any:
        """Apply what was set."""
        return self.function(inputs)


class Forgetful(layers.Dense):
    """Its configuration lacks what its weights depend on, and a factor."""

    def __init__(self, units: int = 2, factor: float = 1.0, **more: Any) -> None:
        super().__init__(units, use_bias=False, **more)
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        """A product, times the factor."""
        return self.factor * super().call(inputs)

    def get_config(self) -> dict[str, Any]:
        """Without the units."""
        return layers.Layer.get_config(self)


def odd(kind: Any, *args: Any, **attached: Any) -> Any:
    """A layer of that name, with what is attached to it."""
    layer = kind(*args, name="odd")
    for name, value in attached.items():
        setattr(layer, name, value)
    return layer


def hidden(way: str) -> Any:
    """A layer that hides a variable in one of many ways."""
    dense = layers.Dense(3, name="kept")
    dense.build((None, 3))
    variable, held = tf.Variable(np.ones(3, "float32"), name="kept"), {"a": [dense]}

    def helper(t: Any) -> Any:
        return held["a"][0](t)

    if way == "attribute":
        return odd(Attached, function=tf.abs, kept=variable)
    function: Callable[[Any], Any] = {
        "tf.Variable": lambda t: t * variable,
        "helper": lambda t: helper(t) + 1,
        "partial": functools.partial(lambda layer, t: layer(t), dense),
        "default": lambda t, layer=dense: layer(t),
        "bound": dense.call,
    }[way]
    return layers.Lambda(function, name="odd")


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


@pytest.mark.parametrize(
    "way", ["tf.Variable", "helper", "partial", "default", "bound", "attribute"]
)
def test_layer_that_hides_variables_is_named(way: str, cluster: sn.Cluster) -> None:
    """However a Lambda's function reaches them, or a layer keeps them.

    Keras lets them pass and loses them when it saves; a copy would lose them too.
    """
    layer = hidden(way)
    told = refused(around(layer), cluster)

    kind = type(layer).__name__
    assert f"layer 'odd' ({kind}) hides variables from Keras: kept" in told
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
        (lambda: odd(Silent, lambda t: t + 1), "odd: NotImplementedError"),
        (lambda: odd(Forgetful, 5), r"odd: its variables are kernel\(3, 5\), the"),
        (
            lambda: odd(Attached, function=keras.ops.abs),
            "odd: a copy cannot be called: AttributeError",
        ),
        (lambda: odd(Forgetful, 2, 2.0), "odd: factor is 2.0, in the copy"),
    ],
)
def test_layer_that_its_configuration_forgets_is_used_itself(
    make: Any, why: str, cluster: sn.Cluster, tmp_path: Path
) -> None:
    """The very layer runs in the placed model; one warning and the plan say so."""
    model = around(make())
    x = np.ones((2, 3), "float32")
    plain = model(x)
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
    np.testing.assert_array_equal(placed(x), plain)


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
