"""Models inside models: opened, so that their calls can be split, or kept whole."""

import keras
import pytest
from keras import layers

import splitnet as sn
from tests.tf.check import Case, assert_alike, assert_near, numbers, sgd, words
from tests.tf.test_bad_input import Own

pytestmark = pytest.mark.filterwarnings("ignore:(?s).*destroy the mask:UserWarning")


def stem():
    """A functional model with state, chance, and another model inside."""
    x = keras.Input((5, 4), name="steps")
    body = [keras.Input((5, 4)), layers.Dense(4, "relu", name="d"), layers.Dropout(0.3)]
    inner = keras.Sequential(body, name="inner")
    y = layers.BatchNormalization(name="norm")(inner(x))
    return keras.Model(x, layers.Add(name="sum")([x, y]), name="stem")


def nested():
    """A model called twice, once frozen in its mode, with masks; a name used twice."""
    entry = keras.Input((5,), dtype="int32", name="words")
    known = layers.Embedding(9, 4, mask_zero=True, name="embed")(entry)
    body = stem()
    read = layers.GlobalAveragePooling1D(name="read")(body(body(known), training=False))
    head = keras.Sequential([layers.Dense(4, "tanh", name="d"), layers.Dense(2)])
    head.name = "head"
    return keras.Model(entry, head(read), name="nested")


def names(graph):
    """The calls that are no inputs, without those that make masks or drop."""
    inputs = {part.name for part in graph.parts if part.kind == "input"}
    found = [call.name for call in graph.calls if call.name not in inputs]
    hidden = ("not_equal", "dropout", "dense")
    return [n for n in found if not n.rpartition("/")[2].startswith(hidden)]


OPEN = {"stem/inner/d": "gpu:0", "stem/norm": "gpu:1", "head/d": "gpu:2"}
OPEN |= {"stem@2/inner/d": "gpu:1", "stem@2/norm": "gpu:0"}


def test_calls_of_opened_models_have_their_path():
    """Each call of the model has calls of its own, or is one; weights count once."""
    graph = sn.read(nested(), batch=4)
    first = ["embed", "stem/inner/d", "stem/norm", "stem/sum"]
    second = ["stem@2/inner/d", "stem@2/norm", "stem@2/sum", "read", "head/d"]
    assert names(graph) == first + second
    assert graph.call["stem/norm"].weights == graph.call["stem@2/norm"].weights
    assert graph.call["stem/norm"].output_shapes == ((4, 5, 4),)
    whole = ["embed", "stem", "stem@2", "read", "head"]
    assert names(sn.read(nested(), nested="keep")) == whole


@pytest.mark.parametrize("choice", ["expand", "keep"])
def test_placed_equals_plain_opened_or_whole(choice, cluster, tmp_path):
    """Also recomputed; a file of weights; and all is where planned."""
    keras.utils.set_random_seed(0)
    model = nested()
    nodes = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    pins = OPEN if choice == "expand" else {"stem*": "gpu:0", "head": "gpu:1"}
    how = {"nested": choice, "objective": "memory", "time_limit": 0.1}
    sn.plan(model, cluster, batch=4, pins=pins, **how).save(tmp_path / "plan.json")
    again = choice == "expand"
    placed = sn.emit(model, sn.load_plan(tmp_path / "plan.json"), recompute=again)
    assert [len(layer._inbound_nodes) for layer in model._flatten_layers()] == nodes
    assert [layer.name for layer in placed.layers] == [la.name for la in model.layers]
    row = next(r for r in sn.summary(placed).split("\n") if "stem" in r)
    assert ("gpu:0" in row and "gpu:1" in row) is again
    for one in (placed, model):
        one.compile(sgd(), "mse", run_eagerly=one is model)
    assert_alike(placed, model, Case(model, words(5, 9), numbers(2), sizes=(4, 4)))
    placed.save_weights(tmp_path / "placed.weights.h5")
    model.load_weights(tmp_path / "placed.weights.h5")
    assert_near(placed.get_weights(), sn.unplace(placed).get_weights())


def test_opening_waits_where_inputs_are_changed():
    """A model that casts its input, or has a call of its own, stays one call."""
    whole = keras.Input((4,), dtype="float64", name="whole")
    casts = keras.Model(whole, layers.Dense(2, dtype="float64")(whole), name="casts")
    x = keras.Input((4,), name="x")
    own = Own(x, layers.Dense(2)(x), name="own")
    top = keras.Input((4,), name="top")
    model = keras.Model(top, [casts(top), own(top)])
    assert sorted(names(sn.read(model))) == ["casts", "own"]
