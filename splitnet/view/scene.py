"""Rectangles and words at fixed places, written as SVG or as DOT for png and pdf.

A chart needs no layout, so it is drawn directly; Graphviz, which lays the diagrams out,
also turns the same rectangles into pixels, and no further library is needed.
"""

from dataclasses import dataclass

import graphviz

from splitnet.view.colors import INK, mixed
from splitnet.view.words import clean, escaped, label_text

__all__ = ["Mark", "Scene", "Words", "dot_of_scene", "svg_of_scene"]

_FONT = "Helvetica,Arial,sans-serif"
_POINTS_PER_INCH = 72
_STRIPE = 4.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle; lengths in points, from the top left.

    `hatched` tells it from a plain one of the same colour without the eye for colour.
    """

    x: float
    y: float
    width: float
    height: float
    fill: str
    hatched: bool = False
    tip: str = ""
    radius: float = 0.0


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text; `x` is its left end, its middle or its right end.

    `y` is the middle of its height, `room` the width that it may take.
    """

    x: float
    y: float
    text: str
    size: float = 10.0
    fill: str = INK
    bold: bool = False
    align: str = "left"
    room: float = 400.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawing: its size in points and what is on it, from back to front."""

    width: float
    height: float
    title: str
    items: tuple[Mark | Words, ...]


def svg_of_scene(scene: Scene, *, prefix: str = "s") -> str:
    """Write a scene as one SVG element; `prefix` keeps its ids apart on a page."""
    hatches: dict[str, str] = {}
    body = []
    for item in scene.items:
        if isinstance(item, Words):
            body.append(_svg_words(item))
        else:
            if item.hatched:
                hatches.setdefault(item.fill, f"{prefix}-hatch-{len(hatches)}")
            body.append(_svg_mark(item, hatches.get(item.fill, "")))
    size = f'width="{_n(scene.width)}" height="{_n(scene.height)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {_n(scene.width)} {_n(scene.height)}" '
            f'font-family="{_FONT}" shape-rendering="crispEdges" role="img">',
            f"<title>{escaped(scene.title)}</title>",
            "<defs>",
            *(_svg_hatch(color, name) for color, name in hatches.items()),
            "</defs>",
            f'<rect width="{_n(scene.width)}" height="{_n(scene.height)}" '
            'fill="#ffffff" class="paper"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _n(value: float) -> str:
    """A number with two decimals at most, the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _svg_hatch(color: str, name: str) -> str:
    pale = mixed(color, "#ffffff", 0.62)
    return (
        f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" fill="{pale}"/>'
        f'<rect width="2" height="5" fill="{color}"/></pattern>'
    )


def _svg_mark(mark: Mark, hatch: str) -> str:
    fill = f"url(#{hatch})" if mark.hatched else mark.fill
    rounded = f' rx="{_n(mark.radius)}"' if mark.radius else ""
    start = (
        f'<rect x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" '
        f'height="{_n(mark.height)}"{rounded} fill="{fill}"'
    )
    if not mark.tip:
        return f"{start}/>"
    lines = "\n".join(escaped(line) for line in mark.tip.split("\n"))
    return f'{start} class="tip"><title>{lines}</title></rect>'


def _svg_words(words: Words) -> str:
    anchor = {"left": "", "middle": "middle", "right": "end"}[words.align]
    return (
        f'<text x="{_n(words.x)}" y="{_n(words.y + words.size * 0.35)}" '
        f'font-size="{_n(words.size)}" fill="{words.fill}"'
        + (' font-weight="bold"' if words.bold else "")
        + (f' text-anchor="{anchor}"' if anchor else "")
        + f">{escaped(words.text)}</text>"
    )


def dot_of_scene(scene: Scene) -> str:
    """Write a scene as DOT text with pinned places, for Graphviz' `nop2`."""
    dot = graphviz.Graph(
        name="scene",
        graph_attr={"pad": "0", "margin": "0", "bgcolor": "white", "splines": "false"},
        node_attr={
            "fontname": _FONT,
            "shape": "box",
            "fixedsize": "true",
            "margin": "0",
            "penwidth": "0",
        },
    )
    frame = Mark(0, 0, scene.width, scene.height, "#ffffff")
    for number, item in enumerate((frame, *scene.items)):
        name = f"i{number}"
        if isinstance(item, Words):
            _dot_words(dot, name, item, scene.height)
        else:
            _dot_mark(dot, name, item, scene.height)
    return str(dot.source)


def _dot_mark(dot: graphviz.Graph, name: str, mark: Mark, height: float) -> None:
    fill, style = mark.fill, "filled"
    if mark.hatched:
        pale = mixed(mark.fill, "#ffffff", 0.62)
        pairs = min(max(round(mark.width / _STRIPE / 2), 1), 100)
        fill, style = ":".join([mark.fill, pale] * pairs), "striped"
    dot.node(
        name,
        label="",
        pos=_place(mark.x + mark.width / 2, mark.y + mark.height / 2, height),
        width=_inches(mark.width),
        height=_inches(mark.height),
        style=style,
        fillcolor=fill,
        color="#ffffff00",
        tooltip=graphviz.escape(clean(mark.tip)),
    )


def _dot_words(dot: graphviz.Graph, name: str, words: Words, height: float) -> None:
    shift = {"left": 0.5, "middle": 0.0, "right": -0.5}[words.align]
    text = label_text(words.text) or "&#160;"
    text = f"<B>{text}</B>" if words.bold else text
    align = {"left": "LEFT", "middle": "CENTER", "right": "RIGHT"}[words.align]
    tall = words.size * 1.4
    dot.node(
        name,
        label=(
            '<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0"><TR>'
            f'<TD FIXEDSIZE="TRUE" WIDTH="{words.room:.0f}" HEIGHT="{tall:.0f}" '
            f'ALIGN="{align}"><FONT POINT-SIZE="{words.size:g}" '
            f'COLOR="{words.fill}">{text}</FONT></TD></TR></TABLE>>'
        ),
        shape="none",
        pos=_place(words.x + shift * words.room, words.y, height),
        width=_inches(words.room),
        height=_inches(tall),
    )


def _place(x: float, y: float, height: float) -> str:
    """A position in points; Graphviz counts from the bottom."""
    return f"{_n(x)},{_n(height - y)}!"


def _inches(points: float) -> str:
    return f"{max(points / _POINTS_PER_INCH, 0.001):.4f}"
