"""The placement diagram as DOT text."""

import dataclasses
import re

import pygraphviz
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.audit import Audit, Finding
from splitnet.core.cluster import Cluster
from splitnet.core.errors import SplitnetError
from splitnet.core.plan import Plan
from splitnet.planner.planner import plan_graph
from splitnet.view.diagram import dot_of
from tests.view import plans
from tests.view.golden import assert_golden
from tests.view.layouts import layout_faults, layout_of, random_plan


def boxes(text: str) -> list[str]:
    """The lines of the DOT text that make boxes."""
    return re.findall(r"^\s*\"box-\d+\" \[.*", text, re.MULTILINE)


def box_named(text: str, name: str) -> str:
    """The line of the box that bears a name."""
    (line,) = [line for line in boxes(text) if f"<B>{name}" in line]
    return line


def test_dot_of_siamese_is_the_golden_text() -> None:
    """A change of the diagram is seen in review."""
    assert_golden(dot_of(plans.siamese()), "siamese.dot")


def test_dot_of_gives_the_same_bytes_for_the_same_plan() -> None:
    """Two plans made alike are drawn alike."""
    assert dot_of(plans.towers(30)) == dot_of(plans.towers(30))


def test_dot_of_frames_each_used_device_once() -> None:
    """gpu:0, gpu:1 and cpu:0 have a frame each."""
    text = dot_of(plans.siamese())
    assert text.count('subgraph "cluster_title-') == 3


def test_dot_of_names_unused_devices_instead_of_framing_them() -> None:
    """The start of a tangle leaves gpu:3 unused; the header says so."""
    text = dot_of(plans.tangle(9))
    assert "not used: gpu:3" in text


def test_dot_of_writes_bytes_on_edges_between_devices_only() -> None:
    """Both branches send 64 KiB to the CPU and get as much back; the join is silent."""
    lines = dot_of(plans.siamese()).splitlines()
    crossing = [line for line in lines if "-> " in line and "KiB" in line]
    (inside,) = [line for line in lines if re.search(r"box-4\"? -> \"?box-5", line)]

    assert sum("64.0 KiB each way" in line for line in crossing) == 2
    assert "label" not in inside


def test_dot_of_writes_bytes_into_boxes_where_edges_are_many() -> None:
    """Sixteen edges between devices have no labels; each tower says what it moves."""
    text = dot_of(plans.towers(12))

    assert not [li for li in text.splitlines() if "-> " in li and "<B>" in li]
    assert "in 784 KiB · out 16.0 KiB" in box_named(text, "tower_0")
    assert "in, out: bytes per step" in text


def test_dot_of_draws_a_fallback_dashed_and_says_what_was_requested() -> None:
    """Right requested gpu:3 and did not get it."""
    line = box_named(dot_of(plans.siamese()), "right")
    assert "dashed" in line
    assert "requested gpu:3" in line
    assert "dashed" not in box_named(dot_of(plans.siamese()), "left")


def test_dot_of_gives_merges_a_shape_of_their_own() -> None:
    """A merge is a hexagon, a branch is not."""
    text = dot_of(plans.siamese())
    assert "hexagon" in box_named(text, "join")
    assert "hexagon" not in box_named(text, "verdict")


def test_dot_of_marks_outputs_with_a_double_edge() -> None:
    """Verdict leaves the model."""
    text = dot_of(plans.siamese())
    assert "peripheries=2" in box_named(text, "verdict")
    assert "peripheries=1" in box_named(text, "join")


def test_dot_of_names_shared_layers_in_the_boxes() -> None:
    """Both branches say that they share the encoder, and the legend explains it."""
    text = dot_of(plans.siamese())

    assert "shares encoder" in box_named(text, "left")
    assert "shares encoder" in box_named(text, "right")
    assert "weights stored once" in text


def test_dot_of_explains_only_what_it_shows() -> None:
    """A picture without merges, fallbacks and shared weights does not explain them."""
    text = dot_of(plans.chain(8))

    assert "within a device" in text
    assert not any(word in text for word in ("hexagon", "fallback", "weights stored"))


def test_dot_of_folds_300_towers_into_one_box_per_device() -> None:
    """Four devices, 75 towers each, and the three boxes around them."""
    text = dot_of(plans.towers(300))
    assert len(boxes(text)) == 7
    assert text.count("×75") == 4


def test_dot_of_shows_every_one_of_20_branches() -> None:
    """Nothing folds while there is room."""
    text = dot_of(plans.towers(20))
    assert all(f"<B>tower_{n}</B>" in text for n in range(20))


def test_dot_of_keeps_a_tangle_of_300_readable() -> None:
    """At most 24 boxes, whatever the graph."""
    assert len(boxes(dot_of(plans.tangle(300)))) <= 24


def test_dot_of_opens_a_part_into_its_calls() -> None:
    """The three calls of one tower stand in a frame; the other towers stay closed."""
    text = dot_of(plans.towers(3), calls="tower_1")
    assert "cluster_opened" in text
    assert all(f"<B>tower_1/{c}</B>" in text for c in ("conv2d_0", "pool_1", "dense_2"))
    assert "<B>tower_0</B>" in text


def test_dot_of_refuses_to_open_a_part_that_is_not_there() -> None:
    """The message names the parts that are."""
    with pytest.raises(SplitnetError, match="no such part.*tweet_a, tweet_b, left"):
        dot_of(plans.siamese(), calls="middle")


def test_dot_of_marks_what_moved_since_another_plan() -> None:
    """Three stages become two: some blocks were elsewhere, the others are pale."""
    text = dot_of(plans.chain(12, 2), other=plans.chain(12, 3))
    assert "was on gpu:2" in text
    assert re.search(r"\d+ parts moved, step", text)
    assert "fillcolor=white" in box_named(text, "block_0")


def test_dot_of_marks_what_an_audit_found_elsewhere() -> None:
    """A backward pass that ran elsewhere is in its box, the header and the legend."""
    plan = plans.siamese()
    finding = Finding("backward", "left", "gpu:0", "cpu:0", "left strayed")
    text = dot_of(plan, audit=Audit(plan, (), (finding,), {}))
    assert "backward on cpu:0" in box_named(text, "left")
    assert "1 finding not as planned" in text
    assert "ran elsewhere" in text


def test_dot_of_says_that_an_audit_was_clean() -> None:
    """Nothing strayed, and the picture says so."""
    plan = plans.siamese()
    assert "audit: all as planned" in dot_of(plan, audit=Audit(plan, (), (), {}))


def test_dot_of_frames_hosts_when_there_are_several() -> None:
    """Devices of two workers stand in two outer frames."""
    plan = plans.siamese()
    cluster = Cluster.of("worker:0/gpu:0", "worker:1/gpu:0", "worker:0/cpu:0")
    places = {
        "tweet_a": "worker:0/cpu:0",
        "tweet_b": "worker:0/cpu:0",
        "left": "worker:0/gpu:0",
        "right": "worker:1/gpu:0",
        "join": "worker:0/cpu:0",
        "verdict": "worker:0/cpu:0",
    }
    text = dot_of(plans.plan_by_hand(plan.graph, cluster, places))
    assert "label=<worker:0>" in text
    assert "label=<worker:1>" in text


def test_dot_of_says_which_devices_are_stand_ins() -> None:
    """A picture from a laptop does not look like one from a machine with GPUs."""
    plan = plans.siamese()
    devices = tuple(
        dataclasses.replace(d, stand_in=True, target="/device:CPU:1")
        if d.kind == "gpu"
        else d
        for d in plan.cluster
    )
    cluster = Cluster(devices, plan.cluster.links)
    text = dot_of(plans.plan_by_hand(plan.graph, cluster, plan.device_of))
    assert text.count("stand-in on CPU:1") == 2


def test_dot_of_says_step_time_and_verdict() -> None:
    """The numbers a person asks for first."""
    text = dot_of(plans.siamese())
    assert "training step 31.6 ms" in text
    assert "1.50 times faster" in text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True))
def test_dot_of_any_names_is_a_graph_with_a_box_each(names: list[str]) -> None:
    """Whatever the names, Graphviz reads the text, and no box is lost or made."""
    draft = plans.Draft(names[0], 4)
    draft.part("the input", kind="input", on="cpu:0")
    places = {"the input": "cpu:0"}
    for name in names:
        if name not in places:
            draft.part(name, ["the input"], [name])
            places[name] = "gpu:0"
    graph = draft.graph(*places)
    plan = plans.plan_by_hand(graph, Cluster.of("gpu", "cpu"), places)
    read = pygraphviz.AGraph(string=dot_of(plan))
    assert sum(node.startswith("box-") for node in read.nodes()) == len(places)


def test_dot_of_shows_the_layers_of_one_pattern_only() -> None:
    """Sixteen times Conv2D, BatchNorm, ReLU is written as one such row, times 16."""
    draft = plans.Draft("deep", 8)
    draft.part("x", kind="input", on="cpu:0")
    draft.part("net", ["x"], ["Conv2D", "BatchNorm", "ReLU"] * 16)
    cluster = Cluster.of("gpu", "cpu")
    plan = plans.plan_by_hand(
        draft.graph("net"), cluster, {"x": "cpu:0", "net": "gpu:0"}
    )
    text = dot_of(plan, calls="net")
    assert "Conv2D → BatchNorm → ReLU<" in text
    assert "×16" in text


def towers_with_weights(count: int) -> Plan:
    """Towers whose weights a part of its own holds on the CPU."""
    draft = plans.Draft("towers", 8)
    draft.part("x", kind="input", on="cpu:0")
    draft.part("enc/weights", (), ["Weights"], kind="weights", weight="enc", on="cpu:0")
    names = [
        draft.part(
            f"enc/{n}", ["x"], ["Dense"], kind="tower", weight="enc", on=f"gpu:{n}"
        )
        for n in range(count)
    ]
    draft.part("enc", names, ["Concatenate"], kind="merge", weight_bytes=0, on="cpu:0")
    cluster = Cluster.of(f"{count}*gpu", "cpu")
    return plan_graph(draft.graph("enc"), cluster)


def test_dot_of_links_towers_to_what_holds_their_weights() -> None:
    """A cylinder, a dotted line to each of eight towers, and what each reads."""
    text = dot_of(towers_with_weights(8))
    assert "shape=cylinder" in box_named(text, "enc/weights")
    assert text.count("style=dotted") == 8
    assert text.count("reads 64.0 KiB of remote weights") == 8
    assert "weights of towers" in text


def test_dot_of_marks_a_plan_that_does_not_fit() -> None:
    """The verdict and the device are red; nothing looks like a success."""
    plan = plans.siamese()
    cluster = Cluster.of("gpu:0", "gpu:1", "cpu", memory="1 MiB")
    small = plans.plan_by_hand(plan.graph, cluster, plan.device_of)
    verdict = dataclasses.replace(small.verdict, overfull=("gpu:0",))
    text = dot_of(dataclasses.replace(small, verdict=verdict))

    assert re.search(r'COLOR="#b3261e"><B>does not fit the memory of gpu:0', text)
    assert re.search(r'COLOR="#b3261e"><B>1.32 MiB of 1.00 MiB: too much', text)


def test_dot_of_has_no_folder_of_the_author() -> None:
    """A declaration's file is named without its path."""
    plan = plans.siamese()
    parts = tuple(
        dataclasses.replace(part, where="/home/someone/secret/net.py:12")
        for part in plan.graph.parts
    )
    graph = dataclasses.replace(plan.graph, parts=parts)
    text = dot_of(plans.plan_by_hand(graph, plan.cluster, plan.device_of))

    assert "declared at net.py:12" in text
    assert "secret" not in text


@pytest.mark.parametrize("seed", range(12))
def test_diagram_of_a_random_net_has_no_box_out_of_place(seed: int) -> None:
    """No two boxes overlap; each is in its lane and in no other (3 to 400 branches)."""
    assert layout_faults(layout_of(random_plan(seed))) == []


def test_layout_faults_sees_boxes_out_of_place() -> None:
    """The check above can fail: a box that is moved lies on another, off its lane."""
    layout = layout_of(plans.siamese())
    one, other = (o for o in layout["objects"] if o["name"] in ("box-2", "box-3"))
    one["pos"] = other["pos"]

    faults = layout_faults(layout)
    assert "box-2 lies on box-3" in faults or "box-3 lies on box-2" in faults
    assert any("outside" in fault for fault in faults)
