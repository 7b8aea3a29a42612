"""Labels leave the lines that would strike them, and nothing else moves."""

import json
import re
from typing import Any

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.plan import Plan
from splitnet.view import curves, settle
from splitnet.view.dot import dot_of
from splitnet.view.render import render_dot
from splitnet.view.settle import render_diagram, settled
from tests.view import plans

Rect = tuple[float, float, float, float]

PICTURES = {
    "siamese": plans.siamese,
    "towers": lambda: plans.towers(3, 2),
    "chain": lambda: plans.chain(30),
    "tangle": lambda: plans.tangle(30),
    "folded tangle": lambda: plans.tangle(300),
    "hosts": lambda: hosts(),
}


def hosts() -> Plan:
    """Branches on the devices of two workers, joined on this machine."""
    draft = plans.Draft("hosts")
    places = {"join": "cpu:0"}
    for number in range(4):
        name = f"from_{number}"
        draft.part(name, kind="input", on="cpu:0")
        draft.part(f"to_{number}", [name], shape=(512,))
        places |= {name: "cpu:0", f"to_{number}": f"worker:{number % 2}/gpu:0"}
    draft.part("join", [f"to_{n}" for n in range(4)], ["Concatenate"], kind="merge")
    cluster = Cluster.of("cpu:0", "worker:0/gpu:0", "worker:1/gpu:0")
    return plans.plan_by_hand(draft.graph("join"), cluster, places)


def laid_out(plan: Plan) -> tuple[str, dict[str, Any]]:
    """A plan's diagram with Graphviz' own places for labels: as text, as values."""
    placed = render_dot(dot_of(plan), "dot").decode()
    return placed, json.loads(render_dot(placed, "json", program="nop2"))


def lines_of(layout: dict[str, Any]) -> list[tuple[float, float]]:
    """Points on all lines between boxes, closer than a letter is wide."""
    return [
        point
        for edge in layout["edges"]
        for op in edge.get("_draw_", ())
        if op["op"] == "b"
        for point in curves.curve([tuple(p) for p in op["points"]])
    ]


def struck(layout: dict[str, Any]) -> list[str]:
    """The labels that a line runs through and that have no plate."""
    points = lines_of(layout)
    things = [*layout["edges"], *layout["objects"]]
    found = []
    for thing in things:
        if thing.get("name", "").startswith(("box-", "plate-", "title-")):
            continue  # boxes and plates are drawn above lines
        rect = settle._words(thing)
        if rect and any(
            rect[0] < x < rect[2] and rect[1] < y < rect[3] for x, y in points
        ):
            found.append(thing.get("id") or thing["name"])
    return found


@pytest.mark.parametrize("name", list(PICTURES))
def test_settled_leaves_no_words_under_a_line(name: str) -> None:
    """A label is off every line, its own included, or lies on a plate above them."""
    placed, layout = laid_out(PICTURES[name]())
    after = render_dot(settled(placed, layout), "json", program="nop2")
    assert struck(json.loads(after)) == []


def test_struck_sees_what_graphviz_alone_leaves() -> None:
    """The check above can fail: unsettled, the same pictures have words under lines."""
    assert struck(laid_out(plans.siamese())[1])
    assert struck(laid_out(plans.towers(3, 2))[1])


@pytest.mark.parametrize("name", ["siamese", "tangle"])
def test_settled_moves_no_box_and_no_line(name: str) -> None:
    """Only places of labels change, and all words are still there, once."""
    placed, layout = laid_out(PICTURES[name]())
    text = settled(placed, layout)
    for pattern in (r'\bpos="[^"]*"', r'\bbb="[^"]*"'):
        before, after = (re.findall(pattern, t) for t in (placed, text))
        assert after[: len(before)] == before
    for words in re.findall(r"<B>([^<]*)</B>", placed):
        assert text.count(f"<B>{words}</B>") == placed.count(f"<B>{words}</B>")


@pytest.mark.parametrize("name", ["hosts", "siamese", "chain"])
def test_settled_leaves_titles_in_their_frames(name: str) -> None:
    """A device's title may change its corner, a host's does not; none gets lost."""
    placed, layout = laid_out(PICTURES[name]())
    after = json.loads(
        render_dot(settled(placed, layout), "json", program="nop2").decode()
    )
    plates = {thing["name"]: thing for thing in after["objects"]}
    titled = 0
    for frame in layout["objects"]:
        if settle._words(frame) is None or not frame["name"].startswith("cluster"):
            continue
        left, bottom, right, top = settle._rect(plates[frame["name"]]["bb"])
        words = settle._words(
            plates.get("plate-" + frame["name"], plates[frame["name"]])
        )
        assert words is not None
        assert left <= words[0] < words[2] <= right
        assert bottom <= words[1] < words[3] <= top
        titled += 1
    assert titled >= 3


def test_settled_is_not_misled_by_names() -> None:
    """A branch that is named like a piece of DOT moves no label of another."""
    plan = plans.towers(3, 2, names='id="link-0" lp="1,2" label=<x>,')
    placed, layout = laid_out(plan)
    text = settled(placed, layout)
    assert text.count("plate-link-0") <= 1
    assert 'lp="1,2"' not in text.replace(r"lp=\"1,2\"", "")


@pytest.mark.parametrize("name", list(PICTURES))
def test_render_diagram_settles_every_kind_of_picture(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing unsettled is for another Graphviz, never for ours."""
    asked: list[str] = []
    real = settle.render_dot

    def noted(text: str, kind: str, *, program: str = "dot") -> bytes:
        asked.append(program)
        return real(text, kind, program=program)

    monkeypatch.setattr(settle, "render_dot", noted)
    render_diagram(dot_of(PICTURES[name]()), "svg")
    assert asked == ["dot", "nop2", "nop2"]


def test_settled_knows_opened_parts_and_comparisons() -> None:
    """Frames inside frames, and red edges, are laid out as all else."""
    plan = plans.towers(3, 2)
    for text in (dot_of(plan, calls="tower_1"), dot_of(plan, other=plans.towers(3))):
        placed = render_dot(text, "dot").decode()
        layout = json.loads(render_dot(placed, "json", program="nop2"))
        after = render_dot(settled(placed, layout), "json", program="nop2")
        assert struck(json.loads(after)) == []


def test_render_diagram_draws_unsettled_what_another_graphviz_laid_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JSON that is not as expected costs better places for labels, and no picture."""
    real = settle.render_dot

    def other(text: str, kind: str, *, program: str = "dot") -> bytes:
        return b"[" if kind == "json" else real(text, kind, program=program)

    monkeypatch.setattr(settle, "render_dot", other)
    assert b"<svg" in render_diagram(dot_of(plans.one()), "svg")
