"""Public verbs: options are checked by name and all at once, before any work."""

import inspect
from dataclasses import fields
from math import inf, nan
from typing import Any

import pytest

import splitnet as sn
from splitnet.core.plan import PlanOptions
from tests.zoo import chain

BOX = sn.Cluster.of("2*gpu", "cpu")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch", 0, "batch= must be a whole number, 1 or more. Received: 0"),
        ("batch", True, "batch= must be a whole number, 1 or more. Received: True"),
        ("seed", 1.5, "seed= must be a whole number. Received: 1.5"),
        ("time_limit", inf, "time_limit= must be a finite number"),
        ("time_limit", nan, "time_limit= must be a finite number"),
        ("time_limit", -1.0, "time_limit= must be a finite number"),
        (
            "cut_penalty",
            1.0,
            "cut_penalty= must be a finite number, at least 0",
        ),
        ("objective", "call_latency", "must be one of 'latency', 'throughput', 'mem"),
        ("missing", "ask", "missing= must be one of 'fallback', 'error'"),
        (
            "contiguity",
            "",
            "contiguity= must be one of 'free', 'convex', ",
        ),
        ("training", 1, "training= must be True or False"),
        ("nested", 3, "nested= must be one of 'expand', 'keep'"),
    ],
)
def test_an_option_out_of_range_is_named(name: str, value: Any, message: str) -> None:
    """The option, what it may be, and what was received."""
    with pytest.raises(sn.DeclarationError) as caught:
        sn.plan(chain(), BOX, **{name: value})

    assert message in str(caught.value)


def test_all_wrong_options_are_told_at_once() -> None:
    """One error with a line for each."""
    with pytest.raises(sn.DeclarationError, match="3 arguments are wrong") as caught:
        PlanOptions(batch=0, missing="ask", time_limit=inf)

    assert str(caught.value).count("\n  - ") == 3


@pytest.mark.parametrize("cluster", ["2*gpu,cpu", ["gpu:0"], 2, BOX["gpu:0"]])
def test_a_cluster_that_is_none_is_named(cluster: Any) -> None:
    """A text is not parsed silently, and no attribute error reaches the user."""
    with pytest.raises(sn.DeclarationError) as caught:
        sn.plan(chain(), cluster)

    assert "plan: cluster= must be a Cluster, such as splitnet." in str(caught.value)
    assert repr(cluster)[:57] in str(caught.value)


def test_place_names_an_unknown_option() -> None:
    """With the option that was probably meant."""
    misspelt: Any = {"pin": {"c0": "gpu:0"}, "slack": 0.1}
    with pytest.raises(sn.DeclarationError) as caught:
        sn.place(chain(), BOX, **misspelt)  # type: ignore[arg-type]  # no model is needed

    assert (
        "place: got an unexpected keyword argument 'pin'. Did you mean pins=?"
        in str(caught.value)
    )


def test_verbs_that_pass_options_on_take_those_of_plan() -> None:
    """`help(sn.place)` lists every option, and a new one cannot be forgotten."""
    options = {field.name for field in fields(PlanOptions)}

    for verb in (sn.plan, sn.place, sn.compare_strategies):
        names = [*inspect.signature(verb).parameters]
        assert set(names[2:]) == options


@pytest.mark.parametrize("source", [None, 3, "model", [], BOX])
def test_a_source_that_is_none_is_refused(source: Any) -> None:
    """What can be read is named."""
    with pytest.raises(sn.SplitnetError, match="model"):
        sn.plan(source, BOX)
