"""Models that cannot be placed: the layer is named, and nothing is changed."""

import functools
import random
import re
from collections.abc import Callable
from dataclasses import replace
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


@pytest.mark.parametrize("way", WAYS)
def test_lambda_that_hides_variables_is_named(way: str, cluster: sn.Cluster) -> None:
    """However its function reaches them."""
    told = refused(around(layers.Lambda(hidden(way), name="sly")), cluster)

    assert "layer 'sly' (Lambda) hides variables: its function uses kept" in told
    assert "a Layer that owns them" in told


def test_lambda_without_variables_is_fine(cluster: sn.Cluster) -> None:
    """Constants, modules, activations and plain helpers hide nothing."""
    scale, relu = np.float32(2), layers.ReLU()
    relu.build((None, 3))
    model = around(layers.Lambda(lambda t: relu(keras.ops.abs(t)) * scale, name="open"))
    x = np.ones((2, 3), "float32")
    placed = sn.place(model, cluster, batch=4, time_limit=0.1)

    np.testing.assert_array_equal(placed(x), model(x))


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


def test_layer_that_makes_a_tensorflow_variable_in_call_is_named(
    cluster: sn.Cluster,
) -> None:
    """Keras lets it pass and loses it when it saves; a copy would lose it too."""
    told = refused(around(Secretive(name="late")), cluster)

    assert "layer 'late'" in told
    assert "keeps variables that Keras does not see (w)" in told
    assert "add_weight() in __init__ or build()" in told


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


def subclassed(kind: type) -> Any:
    """A model of the class, functional or sequential."""
    if issubclass(kind, keras.Sequential):
        return kind([keras.Input((3,)), layers.Dense(2)], name="mine")
    x = keras.Input((3,))
    return kind(x, layers.Dense(2)(x), name="mine")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Own, ["'mine' (Own) is subclassed: its Own.call", "body of a branch"]),
        (Steps, ["'mine' (Steps) has train_step of its own", "from keras.Model"]),
    ],
)
def test_code_beside_the_graph_is_refused(
    kind: type, words: list[str], cluster: sn.Cluster
) -> None:
    """Calls that the graph does not have would be lost without a word."""
    told = refused(subclassed(kind), cluster)

    for word in words:
        assert word in told


def test_a_graph_with_a_cycle_is_refused() -> None:
    """The cycle is shown, call by call."""
    graph = sn.read(around(layers.Dense(3, name="middle")))
    turned = replace(graph.tensors[1], source="last", target="first")
    with pytest.raises(
        sn.SplitnetError, match="cycle: first -> middle -> last -> first"
    ):
        replace(graph, tensors=(*graph.tensors, turned))


def test_an_input_that_nothing_reads_stays_an_input(cluster: sn.Cluster) -> None:
    """Keras allows it, and so the placed model takes the same inputs."""
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    model = keras.Model([a, b], layers.Dense(2)(a))
    placed = sn.place(model, cluster, batch=4, time_limit=0.1)
    x = [np.ones((2, 3), "float32"), np.ones((2, 2), "float32")]

    np.testing.assert_array_equal(placed(x), model(x))
