"""Labels leave the lines that would strike them, and nothing else moves."""

import json
import re
from typing import Any

import pytest

from splitnet.core.plan import Plan
from splitnet.view import settle
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
}


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
        for point in settle._curve([tuple(p) for p in op["points"]])
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


def test_settled_is_not_misled_by_names() -> None:
    """A branch that is named like a piece of DOT moves no label of another."""
    plan = plans.towers(3, 2, names='id="link-0" lp="1,2" label=<x>,')
    placed, layout = laid_out(plan)
    text = settled(placed, layout)
    assert text.count("plate-link-0") <= 1
    assert 'lp="1,2"' not in text.replace(r"lp=\"1,2\"", "")


def test_render_diagram_draws_unsettled_what_another_graphviz_laid_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """JSON that is not as expected costs better places for labels, and no picture."""
    real = settle.render_dot

    def other(text: str, kind: str, *, program: str = "dot") -> bytes:
        return b"[" if kind == "json" else real(text, kind, program=program)

    monkeypatch.setattr(settle, "render_dot", other)
    assert b"<svg" in render_diagram(dot_of(plans.one()), "svg")
