"""Public verbs: options are checked by name and all at once, before any work."""

import inspect
import re
from dataclasses import fields
from math import inf, nan

import pytest

import splitnet as sn
from splitnet.core.plan import PlanOptions
from tests.zoo import chain

BOX = sn.Cluster.of("2*gpu", "cpu")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("batch", 0, "int >= 1 or None. Received: 0"),
        ("seed", 1.5, "int. Received: 1.5"),
        ("seed", "\ud800", "int. Received: '\\ud800'"),
        ("time_limit", inf, "float >= 0"),
        ("time_limit", nan, "float >= 0"),
        ("cut_penalty", 1.0, "float >= 0 and < 1"),
        ("objective", "call_latency", "one of 'latency', 'throughput', 'memory'"),
        ("missing", "ask", "one of 'fallback', 'error'"),
        ("contiguity", "", "one of 'free', 'convex', 'pipeline' or None"),
        ("training", 1, "bool"),
        ("nested", 3, "one of 'expand', 'keep'"),
    ],
)
def test_wrong_options_are_named_all_at_once(name, value, allowed):
    with pytest.raises(sn.DeclarationError) as caught:
        sn.plan(chain(), BOX, **{name: value})
    with pytest.raises(sn.DeclarationError, match="^options: 2 arguments are") as both:
        PlanOptions(**{name: value, "effort": 0})
    for error in (caught, both):
        assert f"{name}= must be {allowed}" in str(error.value)
    assert str(both.value).count("\n  - ") == 2


@pytest.mark.parametrize("cluster", ["2*gpu,cpu", ["gpu:0"], 2, BOX["gpu:0"]])
def test_a_cluster_that_is_none_is_named(cluster):
    """A text is not parsed silently, and no attribute error reaches the user."""
    said = f"plan: cluster= must be Cluster or None. Received: {repr(cluster)[:57]}"
    with pytest.raises(sn.DeclarationError, match=re.escape(said)):
        sn.plan(chain(), cluster)


def test_place_names_an_unknown_option():
    said = "place: there is no pin= (did you mean pins=?)."
    with pytest.raises(sn.DeclarationError, match=re.escape(said)):
        sn.place(chain(), BOX, pin={"c0": "gpu:0"}, slack=0.1)


def test_verbs_that_pass_options_on_take_those_of_plan():
    """`help(sn.place)` lists every option, and a new one cannot be forgotten."""
    options = {field.name for field in fields(PlanOptions)}
    for verb in (sn.plan, sn.place, sn.compare_strategies):
        assert set([*inspect.signature(verb).parameters][2:]) == options
        assert "Meta(" not in str(inspect.signature(verb))
