"""Bad input: an error that says what, where and what to do; nothing half-done."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn


class Broken(layers.Layer):
    """A layer that fails to build."""

    def build(self, shape: Any) -> None:
        """Fail."""
        raise RuntimeError("out of patience")

    def call(self, inputs: Any) -> Any:
        """Never reached."""
        return inputs


HIDDEN = layers.Dense(3, name="hidden")
ONE_OF = "it must be a layer (an instance, no class)"


def declared(body: Any, *, dtype: Any = "float32", then: Any = None) -> sn.Net:
    """A net of one branch, and of a second one that reads what `then` takes of it."""
    net = sn.Net("bad")
    last = net.branch("a", net.input("x", (6,), dtype=dtype), body)
    if then is not None:
        last = net.branch("b", then(last), layers.Dense(3, name="same"))
    net.output(last)
    return net


def nested(then: Any) -> sn.Net:
    """Two outputs of a body, by name and by number."""
    return declared(lambda t: {"p": (t, t)}, then=then)


BAD: dict[str, Callable[[], sn.Net]] = {
    "its body returned None; it must return a tensor, or": lambda: declared(
        lambda t: None
    ),
    "its body returned (); it must return": lambda: declared(lambda t: ()),
    f"its body is []; {ONE_OF}": lambda: declared([]),
    f"Dense'>; {ONE_OF}": lambda: declared(layers.Dense),
    f"its body is None; {ONE_OF}": lambda: declared(None),
    "applied to inputs of shape (None, 6): RuntimeError: out of patience": (
        lambda: declared(Broken(name="broken"))
    ),
    "applied to inputs of shape (None, 6): ValueError": lambda: declared(
        layers.Conv2D(3, 3)
    ),
    "AttributeError": lambda: declared(lambda t: t.no_such_thing),
    "layer 'sly' (Lambda) hides variables from Keras: hidden": lambda: declared(
        layers.Lambda(lambda t: HIDDEN(t), name="sly")
    ),
    "floaty": lambda: declared(layers.Dense(2), dtype="floaty"),
    "dtype 7": lambda: declared(layers.Dense(2), dtype=7),
    'The name "same" is used 2 times in the model': lambda: declared(
        layers.Dense(3, name="same"), then=lambda ref: ref
    ),
    "branch 'a' has no output 'no'; it returned": lambda: nested(lambda r: r["no"]),
    "branch 'a' has no output 5": lambda: nested(lambda ref: ref["p"][5]),
    "has one output": lambda: declared(layers.Dense(2), then=lambda ref: [*ref]),
}


@pytest.mark.parametrize("words", BAD)
def test_an_impossible_declaration_is_told(words: str) -> None:
    """The fault has the line it stands in, and the reason."""
    with pytest.raises(sn.DeclarationError) as caught:
        sn.read(BAD[words]())

    assert words in str(caught.value)
    if "output" not in words and "same" not in words:
        assert "test_bad_input.py:" in str(caught.value)


def test_faults_of_bodies_come_all_at_once() -> None:
    """What Keras refuses and what the declaration lacks are in one error."""
    net = sn.Net("bad")
    x = net.input("x", (6,))
    net.input("idle", (2,))
    a = net.branch("a", x, layers.Conv2D(3, 3))
    b = net.branch("b", x, lambda t: None, on="gpx")
    net.output(net.merge("both", [a, b], layers.Add()))
    with pytest.raises(sn.DeclarationError) as caught:
        sn.read(net)

    text = str(caught.value)
    assert text.startswith("net 'bad' has 4 faults.")
    for words in ("input 'idle'", "branch 'a'", "branch 'b'", "on='gpx'"):
        assert words in text


def test_another_batch_than_the_models_own_is_told() -> None:
    """A model of a fixed batch size is planned for that one alone; none larger fits."""
    x, cluster = keras.Input(batch_shape=(8, 6)), sn.Cluster.of("2*gpu", "cpu")
    model = keras.Model(x, layers.Dense(2)(x))

    assert sn.plan(model, cluster, batch=8, effort=1).batch == 8
    with pytest.raises(sn.DeclarationError, match=r"fixed batch size of 8.*batch=8"):
        sn.plan(model, cluster)
    for memory, batch in (("1 MiB", 8), ("100 B", 0)):
        one = sn.Cluster.of("cpu", cpu_memory=memory)
        assert sn.largest_batch(model, one) == batch


class Subclassed(keras.Model):
    """A model whose calls are Python."""

    def call(self, inputs: Any) -> Any:
        """Nothing of note."""
        return inputs


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: Subclassed(name="mine"), "model 'mine' .Subclassed. is subclassed"),
        (lambda: keras.Sequential([layers.Dense(2)], name="s"), "'s' is not built"),
        (lambda: 42, "a model is a splitnet.Net, a keras.Model, or .* Received: 42"),
        (lambda: sn.Net("void"), "net 'void' is empty"),
    ],
)
def test_a_source_without_calls_is_told(source: Callable[[], Any], words: str) -> None:
    """The message says what to do instead."""
    with pytest.raises(sn.DeclarationError, match=words):
        sn.read(source())


def test_a_failed_emission_leaves_the_model_as_it_was(cluster: sn.Cluster) -> None:
    """The source of a refused plan has the same layers, weights and calls."""
    x = keras.Input((6,))
    source = keras.Model(x, layers.Dense(2, name="d")(layers.Dense(4, name="h")(x)))
    other = keras.Model(x, layers.Dense(2, name="d")(layers.Dense(5, name="h")(x)))
    before = [len(layer._inbound_nodes) for layer in source.layers]
    weights = source.get_weights()
    plan = sn.plan(other, cluster, time_limit=0.1)
    with pytest.raises(sn.DeclarationError, match="in the plan only: 'h'"):
        sn.emit(source, plan)

    assert [len(layer._inbound_nodes) for layer in source.layers] == before
    for mine, its in zip(weights, source.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
