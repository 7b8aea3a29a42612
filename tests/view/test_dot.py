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
from splitnet.view.dot import dot_of
from tests.view import plans
from tests.view.golden import assert_golden


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
    assert text.count("subgraph cluster_device_") == 3


def test_dot_of_names_unused_devices_instead_of_framing_them() -> None:
    """The start of a tangle leaves gpu:3 unused; the header says so."""
    text = dot_of(plans.tangle(9))
    assert "not used: gpu:3" in text


def test_dot_of_writes_bytes_on_lines_between_devices_only() -> None:
    """Both towers send 64 KiB to the CPU and get as much back; the join is silent."""
    text = dot_of(plans.siamese())
    crossing = [line for line in text.splitlines() if "-> " in line and "KiB" in line]
    assert sum("64.0 KiB + 64.0 KiB back" in line for line in crossing) == 2
    (inside,) = [
        line for line in text.splitlines() if re.search(r"box-4\"? -> \"?box-5", line)
    ]
    assert "label" not in inside.replace("labeltooltip", "")


def test_dot_of_draws_a_fallback_dashed_and_says_what_was_asked() -> None:
    """Right asked for gpu:3 and did not get it."""
    line = box_named(dot_of(plans.siamese()), "right")
    assert "dashed" in line
    assert "asked gpu:3" in line
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


def test_dot_of_joins_branches_that_share_weights() -> None:
    """A dotted line without an arrow, and the layer's name in both boxes."""
    text = dot_of(plans.siamese())
    assert sum("style=dotted" in line for line in text.splitlines()) == 1
    assert "shares encoder" in box_named(text, "left")
    assert "shares encoder" in box_named(text, "right")


def test_dot_of_explains_only_what_it_shows() -> None:
    """A picture without merges, fallbacks and shared weights does not speak of them."""
    text = dot_of(plans.chain(8))
    assert "stays on its device" in text
    assert not any(
        word in text for word in ("merge</FONT>", "not where it was asked", "shares w")
    )


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
    """At most 24 boxes and 24 labelled lines, whatever the graph."""
    text = dot_of(plans.tangle(300))
    assert len(boxes(text)) <= 24
    assert 12 <= len(re.findall(r"<B>[^<]*KiB[^<]*</B>", text)) <= 24


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
    """A strayed backward pass is on the box, in the header and in the legend."""
    plan = plans.siamese()
    finding = Finding("backward", "left", "gpu:0", "cpu:0", "left strayed")
    text = dot_of(plan, audit=Audit(plan, (), (finding,), {}))
    assert "backward on cpu:0" in box_named(text, "left")
    assert "1 thing did not run as planned" in text
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
    assert text.count("stand-in on /device:CPU:1") == 2


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


def test_dot_of_says_sharing_in_words_where_many_share() -> None:
    """Ten branches of one encoder: no web of dotted lines, a word in each box."""
    draft = plans.Draft("ten", 8)
    draft.part("x", kind="input", on="cpu:0")
    places = {"x": "cpu:0"}
    for number in range(10):
        draft.part(f"read_{number}", ["x"], ["LSTM"], weight="encoder")
        places[f"read_{number}"] = f"gpu:{number % 2}"
    cluster = Cluster.of("2*gpu", "cpu")
    text = dot_of(plans.plan_by_hand(draft.graph(*places), cluster, places))
    assert "style=dotted" not in text
    assert text.count("shares encoder") == 10
    assert "the same weights, held once" in text


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
    """A cylinder, a dotted line to each of eight towers, and what each fetches."""
    text = dot_of(towers_with_weights(8))
    assert "shape=cylinder" in box_named(text, "enc/weights")
    assert text.count("style=dotted") == 8
    assert text.count("fetches 64.0 KiB of weights") == 8
    assert "weights of towers" in text
