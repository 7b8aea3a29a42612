"""Plan files: they travel, may be edited by hand, and name the field at fault."""

import json
import random
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import splitnet as sn
from splitnet.core.timeline import Execution
from splitnet.planner.analysis import with_verdict
from splitnet.planner.evaluate import executed, score
from splitnet.planner.plan_file import load_plan, plan_from_dict, plan_to_dict
from tests.planner.quick import plan_graph
from tests.planner.test_strategies import towered
from tests.simulator.small import Seconds
from tests.zoo import chain, random_dag, two_towers, wide

BOX = sn.Cluster.of("2*gpu", "cpu")
FALLEN = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX)
PIPED = executed(plan_graph(two_towers(), BOX), Execution(4, "1f1b", ("gpu:1",)))
WHOLE = json.loads(json.dumps(plan_to_dict(FALLEN)))


@pytest.mark.parametrize(
    "plan",
    [
        FALLEN,
        plan_graph(random_dag(4), BOX, regroup=True),
        with_verdict(PIPED),
        plan_graph(towered(chain(2), "c0", 2), BOX),
        sn.plan(chain(2), BOX, strategy="auto", training=False),
    ],
)
def test_plan_file_round_trips(tmp_path, plan):
    """What is saved is loaded again, to the last figure, and gives equal bytes."""
    plan.save(tmp_path / "a.json")
    loaded = load_plan(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert loaded == plan
    assert score(plan.graph, BOX, plan, training=plan.training).seconds == plan.seconds
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_plan_file_may_be_edited_by_hand(tmp_path):
    """The device that a person wrote is that of the plan, and of one with its pins."""
    values, path = deepcopy(WHOLE), tmp_path / "plan.json"
    values["device_of"]["tell"] = "gpu:0"
    values["placements"][2]["reason"] = "{0}"
    path.write_text(json.dumps(values))
    plan = load_plan(path)
    assert plan.device_of["tell"] == "gpu:0"
    assert plan.value > WHOLE["value"]
    assert not plan.fallbacks
    assert plan.explain("tell").reason == "it was placed there by hand"
    assert (plan.strategy, plan.explain("see").reason) == ("given", "{0}")
    for pins in (path, plan):
        again = sn.plan(plan.graph, BOX, pins=pins, time_limit=0.3)
        assert again.device_of == plan.device_of


def test_plan_file_keeps_the_bound_of_its_search():
    """Loading proves no such bound; a plan of another value has one proven anew."""
    plan = plan_graph(wide(2), BOX)
    values = plan_to_dict(replace(plan, bound=0.97 * plan.value))
    assert plan_from_dict(values).bound == 0.97 * plan.value
    assert plan_from_dict(values | {"bound": 1e9}).bound == plan.value
    edited = plan_from_dict(values | {"value": 1e-9})
    assert edited.bound < edited.value == plan.value == plan.bound


def graph(**changes):
    return lambda values: values["graph"].update(changes)


WORTH = {"kind": "towers", "seconds": -1.0, "how": "plan(source)"}


def first_device(**changes):
    return lambda values: values["cluster"]["devices"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("splitnet_plan"), "no field 'splitnet_plan'"),
        (lambda v: v.update(splitnet_plan=2), "of version 1, .* it has version 2"),
        (lambda v: v.update(colour=1), "unknown field 'colour'"),
        (lambda v: v.update(objective="fun"), "one of 'latency', .* Received: 'fun'"),
        (lambda v: v.update(optimizer="adam+momentum"), "no known opt.*[+]centered"),
        (lambda v: v.update(execution={"microbatches": 33}), "batch, 32"),
        (lambda v: v.update(execution={"schedule": "zb"}), "one of 'gpipe', '1f1b'"),
        (lambda v: v.update(execution={"recompute": ["a"]}), "device 'a'"),
        (lambda v: v.update(compared={"all": []}), "compared: all= has no strategy"),
        (lambda v: v["device_of"].pop("see"), "left out: see"),
        (lambda v: v["device_of"].update(sea="gpu:0"), "sea"),
        (lambda v: v["device_of"].update(see="gpu:9"), "no device 'gpu:9' here"),
        (lambda v: v["device_of"].update(words="gpu:1"), "host .* leave out: words"),
        (lambda v: v.update(compared={"all": [WORTH]}), "seconds: expected .* >= 0.0"),
        (graph(training=False), "training=True contradicts"),
        (graph(batch=True), "graph.batch: expected `int`, got `bool`"),
        (graph(batch=64), "graph.batch=64 contradicts the shapes of its inputs"),
        (lambda v: v.update(contiguity="on"), "contiguity: .* 'free', 'convex', 'pipe"),
        (graph(calls=[{}]), r"graph.calls\[0\]: missing required field `name`"),
        (graph(parts=[{"name": "a", "on": [3]}]), r"\[0\].on\[0\]: expected `str`"),
        (graph(weights=[{"name": "w", "byte": 1}]), r"weights\[0\]: unknown field"),
        (graph(weights=[{"name": "w", "bytes": 2**59}]), r"more than 2\*\*58 bytes"),
        (first_device(target="/device:GPU:0; rm -rf /"), "there is no device"),
        (first_device(name="GPU:0"), "its name must be 'gpu:0'"),
        (first_device(flops_per_second=0.0), "flops_per_second: expected .* >= 1.0"),
    ],
)
def test_plan_file_names_the_field_at_fault(tmp_path, change, message):
    values = deepcopy(WHOLE)
    change(values)
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises(sn.PlanFileError, match=message):
        load_plan(tmp_path / "plan.json")


NUMBERS, TEXT = st.integers(-3, 2**70), st.text(max_size=6)
JUNK = st.none() | st.booleans() | st.floats() | NUMBERS | TEXT | st.lists(NUMBERS)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), JUNK)
def test_plan_file_mangled_at_random_raises_nothing_else(seed, junk):
    """Any one value replaced by junk: either a plan, or a SplitnetError."""
    draw, key = random.Random(seed), "plan"
    here = file = {key: deepcopy(WHOLE | {"training": False})}
    while isinstance(inside := here[key], dict | list) and inside:
        if draw.random() < 0.1:
            break
        here = inside
        key = draw.choice(list(here) if isinstance(here, dict) else range(len(here)))
    here[key] = junk
    try:
        plan = plan_from_dict(file["plan"])
    except sn.SplitnetError:
        return
    assert set(plan.device_of) == {part.name for part in plan.graph.parts}


def test_plan_file_refuses_a_cost_model_of_ones_own(tmp_path):
    plan = plan_graph(wide(2, flops=100.0), BOX, costs=Seconds())
    with pytest.raises(sn.PlanFileError, match="cannot hold costs of class 'Seconds'"):
        plan.save(tmp_path / "plan.json")
