"""Plans are matched with sources by structure and shapes, not by counted names."""

import re

import keras
import pytest
from keras import layers

import splitnet as sn
from splitnet.tf.reading.read import planned_blueprint, planned_sites
from tests.tf.check import stack

CLUSTER = sn.Cluster.of("2*gpu", "cpu")


def planned(source, **options):
    return sn.plan(source, CLUSTER, batch=8, effort=1, **options)


def matched(source, plan):
    return planned_sites(planned_blueprint(source, plan), plan)


def devices(plan):
    return [plan.device_of[call.part] for call in plan.graph.calls]


def refused(source, plan):
    with pytest.raises(sn.DeclarationError, match="was not made from") as caught:
        matched(source, plan)
    return str(caught.value)


def masked():
    """Two unnamed inputs, hidden operations of a mask, unnamed layers and models."""
    words, numbers = keras.Input((5,), dtype="int32"), keras.Input((3,))
    each = layers.TimeDistributed(stack(layers.Dense(4), shape=(4,)))
    y = layers.LSTM(4)(each(layers.Embedding(10, 4, mask_zero=True)(words)))
    both = layers.Concatenate()([y, layers.Dense(4)(numbers)])
    inner = keras.Sequential([keras.Input((8,)), layers.Dense(3), layers.Dense(4)])
    return keras.Model([words, numbers], layers.Dense(2)(inner(both)), name="m")


def net(branch="a", *, on="gpu:0", units=4, activation="relu"):
    made = sn.Net("n")
    x = made.input("x", (6,))
    a = made.branch(branch, x, layers.Dense(units, activation, name="d"), on=on)
    b = made.branch("b", x, layers.Dense(4, name="e"), on="gpu:1")
    made.output(made.merge("join", [a, b], layers.Concatenate(name="c")))
    return made


def test_model_built_twice_is_the_same_model():
    """T7: names of layers, inputs and hidden operations are counted on."""
    plan = planned(masked())
    sites = matched(masked(), plan)
    assert [site.call for site in sites] == [call.name for call in plan.graph.calls]
    kinds = [type(site.node.operation).__name__ for site in sites]
    assert kinds == [call.kind for call in plan.graph.calls]
    pinned = planned(masked(), pins=plan)
    for again in (sn.score(masked(), CLUSTER, plan, batch=8), pinned):
        assert devices(again) == devices(plan)


def test_another_net_is_refused_with_what_differs():
    for other, words in (
        (net("other"), "in the model only: 'other/d': .*, branch other"),
        (net(on="gpu:1"), "plan only: 'a/d': .*, branch a, on gpu:0"),
        (net(units=2), r"in the plan only: .*, outputs float32\(4,\), weights"),
        (net(activation="tanh"), "in the model only: .*: Dense tanh #"),
    ):
        assert re.search(words, refused(other, planned(net())))


def test_pins_are_no_other_net(tmp_path):
    """They beat what is declared, also from a file; what else differs is refused."""
    planned(net(), pins={"a": "gpu:1", "join": "gpu:0"}).save(tmp_path / "plan.json")
    loaded = sn.load_plan(tmp_path / "plan.json")
    assert (loaded.device_of["a"], loaded.device_of["join"]) == ("gpu:1", "gpu:0")
    assert {site.part for site in matched(net(), loaded)} == loaded.device_of.keys()
    assert "'a/d': Dense tanh #" in refused(net(activation="tanh"), loaded)


def test_another_model_is_refused_with_its_calls():
    """The same layers, one of which skips another call."""

    def model(*, far=False):
        x = keras.Input((3,), name="x")
        a = layers.Dense(3, name="a")(x)
        b = layers.Dense(3, name="b")(a)
        return keras.Model(x, layers.Add(name="d")([b, x if far else a]))

    words = refused(model(far=True), planned(model()))
    assert "plan only: 'd': Add" in words
    assert "outputs float32(3,), reads a, b\n" in words
    assert words.endswith("outputs float32(3,), reads x, b")


class WithTable(layers.Layer):
    """Its configuration has keys that JSON has not, and that have no order."""

    def call(self, x):
        return 2 * x

    def get_config(self):
        return super().get_config() | {"table": {(0, 1): 2, "a": 3}}


def test_a_configuration_may_have_any_keys():
    """The layer has no settings to compare; everything else is read."""
    model = stack(WithTable(name="table"), layers.Dense(3))
    assert sn.read(model).call["table"].settings == ""
