import json
import os
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.cluster import Cluster, Link
from splitnet.core.cost import Measured, Roofline
from splitnet.core.costfile import load_costs, save_costs
from splitnet.core.errors import PlanFileError, SplitnetError
from splitnet.planner.planfile import load_plan, plan_from_dict, plan_to_dict
from splitnet.planner.planner import plan_graph
from tests.zoo import diamond, random_dag, two_towers

BOX = Cluster.of("2*gpu", "cpu")
WHOLE = plan_to_dict(plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX))


def copy_of(values):
    """A deep copy by way of JSON, which is what a file is."""
    return json.loads(json.dumps(values))


def test_plan_file_round_trips(tmp_path):
    """What is saved is loaded again, to the last figure."""
    plan = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX)
    plan.save(tmp_path / "plan.json")
    loaded = load_plan(tmp_path / "plan.json")

    assert loaded == plan


def test_plan_file_bytes_are_deterministic(tmp_path):
    """The same plan gives the same bytes, also after loading."""
    plan = plan_graph(random_dag(4, pinned=True), BOX)
    plan.save(tmp_path / "a.json")
    load_plan(tmp_path / "a.json").save(tmp_path / "b.json")

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_plan_file_may_be_edited_by_hand(tmp_path):
    """Another device for a part is taken, and all that follows is computed again."""
    values = copy_of(WHOLE)
    values["device_of"]["tell"] = "gpu:0"
    values["summary"]["seconds"] = 0.0
    plan = plan_from_dict(values)

    assert plan.device_of["tell"] == "gpu:0"
    assert plan.seconds > WHOLE["summary"]["seconds"]
    assert not plan.fallbacks


def test_plan_file_says_nothing_that_is_not_so():
    """A file's own figures count for nothing: they are computed again."""
    values = copy_of(WHOLE)
    values["bound"] = 1e9
    values["summary"]["value"] = 1e-9
    plan = plan_from_dict(values)

    assert plan.value == WHOLE["summary"]["value"]
    assert plan.bound <= plan.value


def test_plan_file_is_written_beside_and_renamed(tmp_path):
    """A failed write leaves the old file, and no half of the new one."""
    path = tmp_path / "plan.json"
    plan = plan_graph(diamond(), BOX)
    plan.save(path)
    old = path.read_bytes()
    broken = replace(plan, options={"nan": float("nan")})
    with pytest.raises(PlanFileError, match="cannot write the plan"):
        broken.save(path)

    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("splitnet_plan"), "no field 'splitnet_plan'"),
        (
            lambda v: v.update(splitnet_plan=2),
            "version 2; this splitnet reads version 1",
        ),
        (lambda v: v.pop("graph"), "the field 'graph' is missing"),
        (lambda v: v.update(colour=1), "the field 'colour' is unknown"),
        (lambda v: v.update(training="yes"), "training cannot be 'yes'"),
        (lambda v: v.update(objective="fun"), "objective must be one of"),
        (lambda v: v.update(optimizer="sophia"), "optimizer 'sophia' is unknown"),
        (lambda v: v["device_of"].pop("see"), "part 'see' has no device"),
        (lambda v: v["device_of"].update(sea="gpu:0"), "no part 'sea'"),
        (lambda v: v["device_of"].update(see="gpu:9"), "no device 'gpu:9' here"),
        (lambda v: v["device_of"].update(see="../etc"), "no device '../etc'"),
        (lambda v: v["device_of"].update(see=7), "named by a text"),
        (lambda v: v.update(placements=[1]), r"placements\[0\] must be a table"),
        (lambda v: v["graph"]["calls"][0].update(output_bytes=-1), "not negative"),
        (lambda v: v["graph"].update(batch=0), "graph.batch"),
        (lambda v: v["cluster"].update(devices=[]), "it has no device"),
        (lambda v: v["costs"].update(model="magic"), "costs.model must be"),
        (
            lambda v: v["fallbacks"][0].pop("assigned"),
            r"fallbacks\[0\] misses the field",
        ),
    ],
)
def test_plan_file_names_the_field_at_fault(change, message):
    """Each way to break a file is told apart, and the field is named."""
    values = copy_of(WHOLE)
    change(values)
    with pytest.raises(PlanFileError, match=message):
        plan_from_dict(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"splitnet_plan": 1, "obj', "cut off"),
        ('{"splitnet_plan": NaN}', "holds NaN"),
        ('{"a": 1, "a": 2}', "holds 'a' twice"),
        ("[" * 100_000, "nested too deeply"),
        ("[1, 2]", "a plan is a table"),
        ("\ud800".encode("utf-16", "surrogatepass"), "cannot be read"),
    ],
)
def test_plan_file_that_is_no_json_is_refused(tmp_path, text, message):
    """A truncated or foreign file is named, with what is wrong in it."""
    path = tmp_path / "plan.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanFileError, match=message):
        load_plan(path)


def test_plan_file_must_be_a_file(tmp_path):
    """A folder, a pipe, a broken link or nothing at all is refused at once."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, message in (
        ("folder", "Is a directory"),
        ("pipe", "it is not a file"),
        ("link", "No such file"),
        ("nothing", "No such file"),
        ("a\0b", "null (byte|character)"),  # Python 3.13 says the latter
    ):
        with pytest.raises(PlanFileError, match=message):
            load_plan(tmp_path / name)


def test_plan_file_cannot_replace_a_folder(tmp_path):
    """Saving onto a folder, or into one that is not there, is refused."""
    plan = plan_graph(diamond(), BOX)
    with pytest.raises(PlanFileError, match="it is a folder"):
        plan.save(tmp_path)
    with pytest.raises(PlanFileError, match="No such file"):
        plan.save(tmp_path / "not" / "there.json")


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 2**70),
    st.floats(),
    st.text(max_size=6),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), JUNK)
def test_plan_file_mangled_at_random_raises_nothing_else(seed, junk):
    """Any one value replaced by junk: either a plan, or a SplitnetError."""
    values = copy_of(WHOLE)
    draw = random.Random(seed)
    here = values
    while True:
        key = draw.choice(list(here) if isinstance(here, dict) else range(len(here)))
        child = here[key]
        if isinstance(child, dict | list) and child and draw.random() < 0.8:
            here = child
            continue
        here[key] = junk
        break
    try:
        plan = plan_from_dict(values)
    except SplitnetError:
        return
    assert set(plan.device_of) == {part.name for part in plan.graph.parts}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.floats(0, 1))
def test_plan_file_cut_off_anywhere_is_refused(tmp_path_factory, share):
    """No prefix of a plan file is a plan."""
    text = json.dumps(WHOLE)
    path = tmp_path_factory.mktemp("cut") / "plan.json"
    path.write_text(text[: int(share * (len(text) - 1))])
    with pytest.raises(PlanFileError):
        load_plan(path)


def test_cost_table_round_trips(tmp_path):
    """Measured costs are loaded as they were saved."""
    costs = Measured(
        forward={("see", "gpu"): 0.5, ("Dense|()|8", "cpu:0"): 0.25},
        backward={("see", "gpu"): 1.0},
        update_bytes_per_second={"gpu": 1e9},
        links=(
            Link("gpu:0", "gpu:1", 1e9, 1e-5),
            Link("gpu:1", "gpu:0", 1e9, 1e-5, 0.5),
            Link("cpu:0", "gpu:0", 1e9, 1e-5, gap_seconds=1e-6),
            Link("gpu:0", "cpu:0", 1e9, 1e-5, gap_seconds=0.0),
        ),
        start_seconds={"gpu": 1e-3},
        batch=32,
    )
    save_costs(costs, tmp_path / "costs.json")

    assert load_costs(tmp_path / "costs.json") == costs


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no field 'splitnet_costs'"),
        ({"splitnet_costs": 1, "model": "roofline"}, "holds no measurements"),
        (
            {"splitnet_costs": 1, "model": "measured", "forward": [["a", "gpu", -1]]},
            r"costs.forward\[0\] must be finite and not negative",
        ),
        (
            {"splitnet_costs": 1, "model": "measured", "forward": [["a", 1]]},
            r"must be \[call, device, seconds\]",
        ),
        ({"splitnet_costs": 1, "model": "measured", "batch": 0}, "costs.batch"),
        (
            {
                "splitnet_costs": 1,
                "model": "measured",
                "update_bytes_per_second": {"gpu": 0},
            },
            "must be more than zero",
        ),
        (
            {"splitnet_costs": 1, "model": "measured", "start_seconds": {"gpu": -1}},
            "costs.start_seconds.gpu must be finite and not negative",
        ),
        (
            {"splitnet_costs": 1, "model": "measured", "start_seconds": []},
            "costs.start_seconds must be tables",
        ),
        (
            {
                "splitnet_costs": 1,
                "model": "measured",
                "links": [
                    {
                        "source": "gpu:0",
                        "target": "gpu:1",
                        "bytes_per_second": 1e9,
                        "busy_share": 2.0,
                    }
                ],
            },
            "busy_share must be at most 1",
        ),
        (
            {
                "splitnet_costs": 1,
                "model": "measured",
                "links": [
                    {
                        "source": "gpu:0",
                        "target": "gpu:1",
                        "bytes_per_second": 1e9,
                        "crowding": 1.5,
                    }
                ],
            },
            "crowding must be at most 1",
        ),
        (
            {
                "splitnet_costs": 1,
                "model": "measured",
                "links": [
                    {
                        "source": "gpu:0",
                        "target": "gpu:1",
                        "bytes_per_second": 1e9,
                        "latency_seconds": 1e-5,
                        "gap_seconds": 1e-4,
                    }
                ],
            },
            "gap_seconds must be at most latency_seconds",
        ),
    ],
)
def test_cost_table_names_the_field_at_fault(tmp_path, values, message):
    """A broken cost table is refused with its field."""
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(values))
    with pytest.raises(PlanFileError, match=message):
        load_costs(path)


@dataclass(frozen=True)
class Doubled:
    """Somebody's own cost model: everything takes twice as long."""

    inner: Roofline

    def forward_seconds(self, call, device):
        """Twice the roofline."""
        return 2 * self.inner.forward_seconds(call, device)

    def backward_seconds(self, call, device):
        """Twice the roofline."""
        return 2 * self.inner.backward_seconds(call, device)

    def update_seconds(self, count, device, optimizer):
        """The roofline."""
        return self.inner.update_seconds(count, device, optimizer)

    def link(self, source, target, cluster):
        """The cluster's."""
        return self.inner.link(source, target, cluster)


def test_plan_file_writes_out_a_cost_model_of_ones_own(tmp_path):
    """A plan made with an unknown cost model plays the same when loaded."""
    plan = plan_graph(diamond(), BOX, costs=Doubled(Roofline()))
    plan.save(tmp_path / "plan.json")

    assert load_plan(tmp_path / "plan.json").seconds == pytest.approx(plan.seconds)
