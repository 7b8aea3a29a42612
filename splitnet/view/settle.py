"""Move the words of a diagram that is laid out off the lines that would strike them.

Graphviz keeps room for a label beside its own line and lets the others run through it.
So the picture is laid out first; what is drawn is noted on a grid as ink; each label
then goes where it covers least ink, beside its own line, or into another corner of its
device's frame. Where some line has to pass, the label is drawn above it on a plate of
its own. Lines and boxes stay where they are.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from splitnet.core.errors import SplitnetError
from splitnet.view.curves import CELL, Point, between, curve
from splitnet.view.render import render_dot

__all__ = ["render_diagram", "settled"]

Rect = tuple[float, float, float, float]
"""Left, bottom, right, top, in points; Graphviz counts from the bottom."""

_LINE, _BOX, _WORDS, _FRAME = 1.0, 6.0, 6.0, 0.2
_CLEAR = 0.9  # less ink than of one line in one cell
_GAPS = (4.0, 10.0)
_INSET = 7.0
_PLATE = "#ffffffcc"
_OWNER = re.compile(
    r'^\s*subgraph (\w+) \{$|\bid="(link-\d+)"'
    r'|^\s*label=(?:<(.*)>|""),$|\blp="([\d.,e+-]+)"',
    re.M,
)
_PLACE = re.compile(r'\bid="(box-\d+)"[^;]*?\bpos="([^"]*)"')


def render_diagram(text: str, kind: str) -> bytes:
    """Lay a placement diagram out, settle its labels, and return the picture.

    Raises:
        SplitnetError: no Graphviz was found, or none could lay the graph out.
    """
    placed = render_dot(text, "dot").decode()
    try:
        layout = json.loads(render_dot(placed, "json", program="nop2"))
        return render_dot(settled(placed, layout), kind, program="nop2")
    except (SplitnetError, ValueError, KeyError):  # of another Graphviz than ours
        return render_dot(text, kind)


def settled(placed: str, layout: Mapping[str, Any]) -> str:
    """Write other places for labels into DOT text that is laid out.

    Args:
        placed: DOT text with positions, as Graphviz' format "dot".
        layout: the same drawing as its format "json" tells it.
    """
    labels = {label.owner: label for label in _settle(layout)}
    right, up = _shift(placed, layout)
    owner, worded, plates = "", True, []

    def there(match: re.Match[str]) -> str:
        nonlocal owner, worded
        if match[1] or match[2]:
            owner, worded = match[1] or match[2], False
            return match[0]
        label = labels.get(owner)
        if match[4] is None:
            worded, before = True, worded
            if before or label is None or not label.plate or not match[3]:
                return match[0]
            plates.append(_plate(label, match[3], right, up))
            return match[0].replace(f"<{match[3]}>", '""')
        if label is None:
            return match[0]
        x, y = label.anchor
        return f'lp="{x + right:.2f},{y + up:.2f}"'

    text = _OWNER.sub(there, placed).rstrip()
    return "".join([text.removesuffix("}"), *plates, "}\n"])


@dataclass(slots=True)
class _Label:
    """Words that may move: where they are, and where else they might be.

    `plate` is the colour of the plate that they need, "" where no line runs.
    """

    owner: str
    anchor: Point
    rect: Rect
    others: list[Point]
    ground: str
    plate: str = ""


def _shift(placed: str, layout: Mapping[str, Any]) -> Point:
    """How far the text's places are from the layout's, which counts from its edge."""
    match = _PLACE.search(placed)
    there = {thing.get("id"): thing for thing in layout.get("objects", ())}
    if match is None or match[1] not in there:
        return 0.0, 0.0
    (x, y), (u, v) = _point(match[2]), _point(there[match[1]]["pos"])
    return x - u, y - v


def _plate(label: _Label, words: str, right: float, up: float) -> str:
    """A node in a label's place; nodes are drawn above lines."""
    x = (label.rect[0] + label.rect[2]) / 2 + right
    y = (label.rect[1] + label.rect[3]) / 2 + up
    table = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0"'
    return (
        f'\t"plate-{label.owner}" [label=<{table} BGCOLOR="{label.plate}"><TR><TD>'
        f'{words}</TD></TR></TABLE>>, shape=plain, style="", tooltip="", '
        f'fontsize="8.5", pos="{x:.2f},{y:.2f}"];\n'
    )


class _Ink:
    """How much is drawn in each cell of a grid."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], float] = {}

    def add_line(self, points: Iterable[Point], weight: float) -> None:
        """A line counts once in each cell that it runs through."""
        for cell in {(int(x // CELL), int(y // CELL)) for x, y in points}:
            self.cells[cell] = self.cells.get(cell, 0.0) + weight

    def add(self, rect: Rect, weight: float) -> None:
        """Fill a rectangle; a negative weight empties it again."""
        for cell in _cells(rect):
            self.cells[cell] = self.cells.get(cell, 0.0) + weight

    def under(self, rect: Rect) -> float:
        """All the ink that a rectangle would cover."""
        return sum(self.cells.get(cell, 0.0) for cell in _cells(rect))


def _cells(rect: Rect) -> Iterator[tuple[int, int]]:
    left, bottom, right, top = (int(edge // CELL) for edge in rect)
    for column in range(left, right + 1):
        for row in range(bottom, top + 1):
            yield column, row


def _settle(layout: Mapping[str, Any]) -> list[_Label]:
    """Every label that may move, in its place."""
    ink = _Ink()
    labels: list[_Label] = []
    for thing in layout.get("objects", ()):
        if thing["name"].startswith("cluster_"):
            labels += _frame(thing, ink)
        elif "pos" in thing:
            ink.add(_box(thing), _BOX)
    for edge in layout.get("edges", ()):
        labels += _line(edge, ink)
    page = _rect(layout["bb"])
    for label in labels:
        ink.add(label.rect, _WORDS)
    for _ in range(2):
        for label in labels:
            ink.add(label.rect, -_WORDS)
            _move(label, _best(label, ink, page))
            label.plate = label.ground if ink.under(label.rect) > _CLEAR else ""
            ink.add(label.rect, _WORDS)
    return labels


def _best(label: _Label, ink: _Ink, page: Rect) -> Point:
    """The place with least ink, the present one and then the earlier on a tie."""
    best, least = label.anchor, ink.under(label.rect)
    for place in label.others:
        if least <= _CLEAR:
            break
        rect = _shifted(label, place)
        inside = page[0] <= rect[0] and page[1] <= rect[1]
        if not inside or rect[2] > page[2] or rect[3] > page[3]:
            continue
        covered = ink.under(rect)
        if covered < least - 0.5:
            best, least = place, covered
    return best


def _move(label: _Label, place: Point) -> None:
    label.rect, label.anchor = _shifted(label, place), place


def _shifted(label: _Label, place: Point) -> Rect:
    dx, dy = place[0] - label.anchor[0], place[1] - label.anchor[1]
    left, bottom, right, top = label.rect
    return left + dx, bottom + dy, right + dx, top + dy


def _rect(text: str) -> Rect:
    left, bottom, right, top = (float(number) for number in text.split(","))
    return left, bottom, right, top


def _point(text: str) -> Point:
    x, y = (float(number) for number in text.split(","))
    return x, y


def _box(node: Mapping[str, Any]) -> Rect:
    x, y = _point(node["pos"])
    wide, tall = float(node["width"]) * 36, float(node["height"]) * 36
    return x - wide, y - tall, x + wide, y + tall


def _frame(cluster: Mapping[str, Any], ink: _Ink) -> Iterator[_Label]:
    """Note a frame's edges; its title may stand in another of its corners."""
    left, bottom, right, top = _rect(cluster["bb"])
    if cluster.get("peripheries") == "0":
        return
    corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
    for one, other in zip(corners, corners[1:] + corners[:1], strict=True):
        ink.add_line(between(one, other), _FRAME)
    rect = _words(cluster)
    if rect is None or "lp" not in cluster:
        return
    if cluster["name"] == "cluster_opened":
        ink.add(rect, _WORDS)
        return
    anchor = _point(cluster["lp"])
    rests = [left + _INSET - rect[0], 0.0, right - _INSET - rect[2]]
    rises = [0.0, bottom + _INSET - rect[1], top - _INSET - rect[3]]
    places = [(anchor[0] + dx, anchor[1] + dy) for dy in rises for dx in rests]
    yield _Label(
        cluster["name"], anchor, rect, places, cluster.get("fillcolor", "#ffffff")
    )


def _line(edge: Mapping[str, Any], ink: _Ink) -> Iterator[_Label]:
    """Note a line; its label may stand anywhere along it, on either side."""
    points = [
        point
        for op in edge.get("_draw_", ())
        if op["op"] in "bB"
        for point in curve([(x, y) for x, y in op["points"]])
    ]
    ink.add_line(points, _LINE)
    rect = _words(edge)
    if rect is None or "lp" not in edge or not points:
        return
    anchor = _point(edge["lp"])
    centre = (rect[0] + rect[2]) / 2, (rect[1] + rect[3]) / 2
    wide, tall = (rect[2] - rect[0]) / 2, (rect[3] - rect[1]) / 2
    places = []
    for gap in _GAPS:
        for share in (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.12, 0.88):
            x, y = points[int(share * (len(points) - 1))]
            for right, up in _SIDES:
                dx = x + right * (wide + gap) - centre[0]
                dy = y + up * (tall + gap) - centre[1]
                places.append((anchor[0] + dx, anchor[1] + dy))
    yield _Label(edge["id"], anchor, rect, places, _PLATE)


_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 0.6), (1, -0.6), (-1, 0.6), (-1, -0.6))


def _words(thing: Mapping[str, Any]) -> Rect | None:
    """The rectangle that a thing's words take; None without words."""
    rects = []
    size = 10.0
    for op in thing.get("_ldraw_", ()):
        if op["op"] == "F":
            size = op["size"]
        if op["op"] == "T" and op["text"].strip():
            x, y = op["pt"]
            left = x - {"l": 0.0, "c": 0.5, "r": 1.0}[op["align"]] * op["width"]
            rects.append((left, y - size / 4, left + op["width"], y + size * 0.75))
    if not rects:
        return None
    lefts, bottoms, rights, tops = zip(*rects, strict=True)
    return min(lefts) - 2, min(bottoms), max(rights) + 2, max(tops)
