"""The placement diagram: its DOT text and its layout."""

import re
from dataclasses import replace

import pytest

import splitnet as sn
from splitnet.core.audit import Audit, Finding
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.plan import Fallback
from splitnet.planner.evaluate import score
from splitnet.view.diagram import diagram_of
from splitnet.view.dot import dot_of
from splitnet.view.facts import equivalent_devices
from tests.view import plans
from tests.view.layouts import layout_faults, layout_of, random_plan


def box_named(text, name):
    lines = re.findall(r"^\s*\"box-\d+\" \[.*", text, re.MULTILINE)
    (line,) = [line for line in lines if f"<B>{name}" in line]
    return line


def test_dot_of_siamese_is_the_golden_text():
    """Lanes, merges, outputs, fallbacks, shared weights; twice the same bytes."""
    text = dot_of(plans.siamese())
    plans.assert_golden(text, "siamese.dot")
    assert text == dot_of(plans.siamese())
    other = dot_of(plans.chain(8))  # explains only what it shows
    assert "within a device" in other
    words = ("cut corners", "fallback", "weights stored")
    assert not any(word in other for word in words)


def test_dot_of_labels_few_links_and_writes_many_into_boxes():
    """A small diagram has labels; with 24 links each box says what it moves."""
    many = dot_of(plans.towers(12))
    assert dot_of(plans.siamese()).count("xlabel=<<") == 4
    assert "xlabel=<<" not in many
    assert "in 784 KiB · out 16.0 KiB" in box_named(many, "tower_0")
    assert "in, out: bytes per step" in many


def test_dot_of_puts_boxes_into_columns_by_all_lines_also_those_not_drawn():
    draft, n = plans.Draft("unlike", 64), 35
    draft.source("x")
    its = [draft.part(f"p{i}", ["x"], at=f"gpu:{i}", shape=(8 + i,)) for i in range(n)]
    draft.merge("join", its, "Concatenate")
    text = dot_of(draft.plan(f"{n}*gpu"))
    boxes = [box_named(text, f"p{i}<") for i in range(n)]
    assert "the 60 largest of 70 lines" in text
    assert len({re.search(r'pos="([\d.]+)', box)[1] for box in boxes}) == 1


def test_dot_of_draws_weights_that_are_read_from_another_device():
    """A cylinder, and a thin dotted line to each of three towers, which say bytes."""
    draft, enc = plans.Draft("towers", 8), {"weight": "enc"}
    draft.source("x")
    draft.part("enc/weights", (), ["Weights"], kind="weights", on="cpu:9", **enc)
    for n in range(3):
        draft.part(f"enc/{n}", ["x"], kind="tower", on=f"gpu:{n}", **enc)
    draft.merge("enc", [f"enc/{n}" for n in range(3)], "Concatenate", on="cpu:0")
    text = dot_of(sn.plan(draft.graph(), sn.Cluster.of("3*gpu", "cpu")))
    assert "shape=cylinder" in (box := box_named(text, "enc/weights"))
    assert float(re.search(r'height="?([\d.]+)', box)[1]) > 1
    assert text.count("penwidth=1.6 style=dotted") == 3
    for number in range(3):
        assert "weights 64.0 KiB each way" in box_named(text, f"enc/{number}")
    assert "weights, and gradients back" in text


@pytest.mark.parametrize(
    ("plan", "count", "times"),
    [
        (plans.towers(20), 23, 0),
        (plans.towers(300), 7, 4),
        (plans.towers(64, 32), 5, 1),
        (plans.chain(300), 6, 4),
    ],
)
def test_dot_of_folds_what_repeats(plan, count, times):
    """Branches, blocks and whole devices; nothing while there is room."""
    shown = [box.group.times for box in diagram_of(plan).boxes]
    assert len(shown) == count
    assert shown.count(max(shown)) == (times or count)
    assert (max(shown) > 1) == bool(times)


def test_dot_of_counts_nodes_of_a_workload_as_equal_by_their_times():
    """They have no shapes: equal ones are counted, and the slow one is alone."""
    names = [f"n{n}" for n in range(31)]
    took = {name: (("gpu", 2.0 if name == "n9" else 1.0),) for name in names}
    calls = tuple(Call(name, name, "Node", seconds_on=took[name]) for name in names)
    edges = tuple(map(Tensor, names, names[1:]))
    graph = Graph("work", 1, calls, edges, (), tuple(map(Part, names)), (names[-1],))
    plan = score(graph, sn.Cluster.of("gpu", "cpu"), {"*": "gpu:0"})
    assert [box.group.times for box in diagram_of(plan).boxes] == [9, 1, 21]


@pytest.mark.parametrize("make", [plans.towers, plans.chain, plans.tangle])
def test_diagram_of_keeps_all_bytes_and_seconds_when_it_folds(make):
    """300 branches in 24 boxes hold what 300 boxes hold."""
    plan = make(300)
    few, many = (diagram_of(plan, most=most).boxes for most in (24, 10_000))
    assert len(few) < len(many)
    for field in ("weight_bytes", "activation_bytes", "total_seconds"):
        sums = [sum(getattr(b.facts, field) for b in boxes) for boxes in (few, many)]
        assert sums[0] == pytest.approx(sums[1])
    moved = sum(link.moved_bytes for link in diagram_of(plan, most=10_000).links)
    assert moved == sum(one.bytes for one in plan.transfers)
    odd = plan.graph.parts[7].name  # what is unusual stays in sight
    fallbacks = (Fallback(odd, "gpu:9", plan.device_of[odd], "not here"),)
    shown = diagram_of(replace(plan, fallbacks=fallbacks)).boxes
    assert [b.group.members for b in shown if b.facts.fallback] == [(odd,)]


def test_diagram_of_stands_in_running_order_whatever_the_parts_order():
    """A workload file lists its nodes by id; the diagram folds and ranks by calls."""
    plan = plans.chain(60)
    graph = replace(plan.graph, parts=plan.graph.parts[::-1])
    turned = plans.moved_to(replace(plan, graph=graph), plan.cluster)
    shown = [box.group.members for box in diagram_of(turned).boxes]
    assert shown == [box.group.members for box in diagram_of(plan).boxes]
    assert len(shown) == 6


def test_dot_of_tells_long_names_apart():
    draft = plans.Draft("deep", 8)
    draft.source("x")
    for n in range(6):
        draft.part(f"resnet/stage_3/block_{n}/residual/normalize_it", ["x"], on="gpu:0")
    titles = {box.name for box in diagram_of(draft.plan("gpu")).boxes}
    assert len(titles) == 7
    assert all(f"block_{n}/" in "".join(titles) for n in range(6))


def test_dot_of_keeps_a_tangle_of_300_readable():
    """At most 24 boxes and 60 lines; unused devices are named, not drawn."""
    text = dot_of(plans.tangle(300, 11))
    assert len(set(re.findall(r'id="(box-\d+)"', text))) <= 24
    assert re.search(r"the 60 largest of \d+ lines are drawn", text)
    assert "not used: gpu:3" in dot_of(plans.tangle(9))


def test_dot_of_marks_what_moved_since_another_plan():
    """Three stages become two: some blocks were elsewhere, the others are pale."""
    new = plans.chain(12, 2)
    text = dot_of(new, other=plans.chain(12, 3))
    assert re.search(r"\d+ parts moved, step", text)
    calls = tuple(replace(call, part="all") for call in new.graph.calls)
    graph = replace(new.graph, calls=calls, parts=(Part("all"),))
    other = sn.score(graph, sn.Cluster.of("gpu:7", "cpu"), {"all": "gpu:7"})
    assert {box.moved_from for box in diagram_of(new, other=other).boxes} == {"gpu:7"}
    assert "was on gpu:2" in text
    assert "fillcolor=white" in box_named(text, "block_0")


def test_dot_of_marks_what_an_audit_found_elsewhere():
    plan = plans.siamese()
    finding = Finding("backward", "left", "gpu:0", "cpu:0", "left strayed")
    text = dot_of(plan, audit=Audit(plan, (), (finding,), {}))
    assert "backward on cpu:0" in box_named(text, "left")
    assert "1 finding not as planned" in text
    assert "ran elsewhere" in text
    assert "audit: all as planned" in dot_of(plan, audit=Audit(plan, (), (), {}))


def test_dot_of_frames_hosts_when_there_are_several():
    plan = plans.siamese()
    names = ("worker:0/gpu:0", "worker:1/gpu:0", "worker:0/cpu:0")
    new = dict(zip(("gpu:0", "gpu:1", "cpu:0"), names))
    places = {part: new[device] for part, device in plan.device_of.items()}
    plan = plans.plan_by_hand(plan.graph, sn.Cluster.of(*names), places)
    text = dot_of(plan)
    assert text.count('subgraph "cluster_host-') == 2
    assert text.index(">worker:0<") < text.index(">worker:1<")
    assert equivalent_devices(plan.timeline) == [[names[n]] for n in (0, 2, 1)]


def test_dot_of_marks_stand_ins_and_a_plan_that_does_not_fit():
    small = sn.Cluster.of("gpu:0", "gpu:1", "cpu", memory="1 MiB")
    ends = ({"target": f"/device:CPU:{i}", "stand_in": True} for i in range(3))
    devices = tuple(replace(d, **its) for d, its in zip(small, ends))
    plan = plans.moved_to(plans.siamese(), sn.Cluster(devices, small.links))
    text = dot_of(replace(plan, verdict=replace(plan.verdict, plan=plan)))
    for words in ("does not fit the memory of gpu:0", "36.4 MiB of 1.00 MiB: too much"):
        assert re.search(f'COLOR="#b3261e"><B>{words}', text)
    assert all(text.count(f"stand-in on CPU:{i}") == 1 for i in (0, 1))


def test_boxes_have_the_color_of_their_lane():
    """Also where a lane stands for several devices, of which one has the box."""
    names = [f"gpu:{n}" for n in range(8)]
    net = plans.Draft("wide", 32)
    x = net.source("x")
    parts = [net.part(f"b{n}", [x], ["Dense"], name) for n, name in enumerate(names)]
    net.part("join", parts, ["Concatenate"], "cpu:0", kind="merge")
    things = layout_of(net.plan(*names))["objects"]
    lane, *_ = (thing for thing in things if thing["name"] == "cluster_lane-0")
    its = [things[n] for n in lane["nodes"]]
    assert {box["color"] for box in its if box["name"][:4] == "box-"} == {lane["color"]}


@pytest.mark.parametrize("seed", [0, 1, 5, 6, 14, 18])
def test_layout_of_a_random_net_has_nothing_out_of_place(seed):
    """No boxes or texts overlap; each box is in its lane only (3 to 400 branches)."""
    assert layout_faults(layout_of(random_plan(seed))) == []


def test_layout_faults_sees_boxes_out_of_place():
    """The check above can fail: a box that is moved lies on another, off its lane."""
    layout = layout_of(plans.siamese())
    one, other = (o for o in layout["objects"] if o["name"] in ("box-2", "box-3"))
    one["pos"] = other["pos"]
    faults = layout_faults(layout)
    assert {"box-2 lies on box-3", "box-3 lies on box-2"} & set(faults)
    assert any("outside" in fault for fault in faults)
