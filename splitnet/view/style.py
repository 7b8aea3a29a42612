"""Colours, text and shapes that all pictures share.

Names come from users: they are cleaned and escaped here, and are only ever text.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import graphviz
from rich.cells import cell_len

from splitnet.core.errors import format_bytes, format_seconds

__all__ = [
    "ALARM",
    "FONT",
    "INK",
    "QUIET",
    "Mark",
    "Scene",
    "Words",
    "bytes_or_dash",
    "clean",
    "colors_of",
    "counted",
    "dot_of_scene",
    "escaped",
    "label_text",
    "mixed",
    "percent",
    "quiet_label",
    "ranged",
    "readable_on",
    "seconds_or_dash",
    "shape_text",
    "shortened",
    "svg_of_scene",
]

Shape = tuple[int | None, ...]

FONT = "Helvetica,Arial,sans-serif"
INK, QUIET, ALARM = "#1b1f24", "#6a737d", "#b3261e"

# Okabe and Ito, "Color Universal Design" (2008), from the most to the least distinct;
# black is left to the text and yellow, too pale for a line, comes last.
_GPU = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#c8b900")
_CPU = ("#6b7480", "#9a8c7a", "#4c5866", "#857f96")
_DARKER = 0.28
_STRIPE = 4.0
_POINTS_PER_INCH = 72
# Graphviz replaces \G and its like in labels by names, and has no way to quote them.
_ESCAPES = re.compile(r"\\(?=[GNEHTL])")


def colors_of(devices: Iterable[str]) -> Mapping[str, str]:
    """Give each device, in order, its colour "#rrggbb"; CPUs are grey.

    After the seventh GPU the colours repeat, darker; every picture also writes the
    device's name beside its colour.

    >>> dict(colors_of(["gpu:0", "gpu:1", "cpu:0"]))
    {'gpu:0': '#0072b2', 'gpu:1': '#d55e00', 'cpu:0': '#6b7480'}
    """
    found: dict[str, str] = {}
    seen = {"gpu": 0, "cpu": 0}
    for device in devices:
        kind = "cpu" if device.rpartition("/")[2].startswith("cpu") else "gpu"
        palette = _CPU if kind == "cpu" else _GPU
        turn, place = divmod(seen[kind], len(palette))
        color = palette[place]
        for _ in range(min(turn, 3)):
            color = mixed(color, "#000000", _DARKER)
        found[device] = color
        seen[kind] += 1
    return found


def mixed(color: str, other: str, share: float) -> str:
    """Mix `share` (0 to 1) of `other` into `color`; both "#rrggbb".

    >>> mixed("#000000", "#ffffff", 0.5)
    '#808080'
    """
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def readable_on(color: str) -> str:
    """Choose black or white text, whichever has more contrast on `color`.

    >>> readable_on("#ffffff"), readable_on("#0072b2")
    ('#000000', '#ffffff')
    """
    light = _luminance(color)
    return "#000000" if (light + 0.05) ** 2 >= 1.05 * 0.05 else "#ffffff"


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _luminance(color: str) -> float:
    """The relative luminance of WCAG 2, 0 to 1."""
    linear = [
        value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def clean(text: str) -> str:
    r"""Replace what XML cannot hold, line ends, and marks that reverse the text.

    >>> ascii(clean("a" + chr(10) + "b" + chr(0) + "c"))
    "'a b\\ufffdc'"
    """
    return "".join(_cleaned(character) for character in text)


def _cleaned(character: str) -> str:
    if character in "\n\r\t\v\f\u2028\u2029\u0085":
        return " "
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Cn", "Co"):
        return "\N{REPLACEMENT CHARACTER}"
    return character


def escaped(text: str) -> str:
    """Clean a text and write it so that XML reads it literally.

    >>> escaped("a<b & 'c'")
    'a&lt;b &amp; &#x27;c&#x27;'
    """
    return clean(html.escape(text))


def label_text(text: str) -> str:
    r"""Write a text so that Graphviz' HTML-like labels read it literally.

    >>> label_text(chr(92) + "G") == chr(92) + "&#8204;G"
    True
    """
    return _ESCAPES.sub(r"\\&#8204;", escaped(text))


def quiet_label(text: str, size: float = 9) -> str:
    """Write a text for an HTML-like label, small and grey."""
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{QUIET}">{label_text(text)}</FONT>'


def shortened(text: str, most: int) -> str:
    """Keep the beginning and the end of a long text, at most `most` columns wide.

    >>> shortened("encoder_block_17_attention", 15)
    'encoder…tention'
    """
    text = clean(text)
    if cell_len(text) <= most:
        return text
    tail = _fitting(text[::-1], (most - 1) // 2)[::-1]
    return _fitting(text, most - 1 - cell_len(tail)) + "…" + tail


def _fitting(text: str, most: int) -> str:
    """The longest beginning that takes at most so many columns."""
    taken = 0
    for at, character in enumerate(text):
        taken += cell_len(character)
        if taken > most:
            return text[:at]
    return text


def ranged(names: Iterable[str], most: int) -> str:
    """Name a group by its first and last member.

    >>> ranged(["tower_0", "tower_1", "tower_2"], 30)
    'tower_0 … tower_2'
    """
    listed = list(names)
    if len(listed) == 1:
        return shortened(listed[0], most)
    half = max((most - 3) // 2, 4)
    return f"{shortened(listed[0], half)} … {shortened(listed[-1], half)}"


def shape_text(shape: Shape) -> str:
    """Write a shape; a size that varies is a question mark.

    >>> shape_text((None, 28, 28)), shape_text(())
    ('? × 28 × 28', 'scalar')
    """
    sizes = ["?" if size is None else str(size) for size in shape]
    return " × ".join(sizes) if sizes else "scalar"


def counted(count: int, noun: str) -> str:
    """Write a number with its noun; takes nouns that add an s, es after ch.

    >>> counted(1, "branch"), counted(3, "device")
    ('1 branch', '3 devices')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def percent(share: float) -> str:
    """Write a share of 1 in per cent.

    >>> percent(0.914), percent(0.002)
    ('91 %', '0.2 %')
    """
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 0.95 else f"{value:.0f} %"


def bytes_or_dash(count: float) -> str:
    """Write an amount of memory; zero is a dash, so that columns stay readable."""
    return format_bytes(count) if count else "-"


def seconds_or_dash(seconds: float) -> str:
    """Write a time; zero is a dash, so that columns stay readable."""
    return format_seconds(seconds) if seconds else "-"


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle; lengths in points, from the top left.

    `hatched` tells it from a plain one of the same colour without colour vision.
    """

    x: float
    y: float
    width: float
    height: float
    fill: str
    hatched: bool = False
    tip: str = ""


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
    marks = [item for item in scene.items if isinstance(item, Mark)]
    fills = dict.fromkeys(mark.fill for mark in marks if mark.hatched)
    hatches = {fill: f"{prefix}-hatch-{n}" for n, fill in enumerate(fills)}
    wide, tall = _n(scene.width), _n(scene.height)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" '
            f'viewBox="0 0 {wide} {tall}" font-family="{FONT}" '
            'shape-rendering="crispEdges" role="img">',
            f"<title>{escaped(scene.title)}</title>",
            "<defs>",
            *(_svg_hatch(color, name) for color, name in hatches.items()),
            "</defs>",
            f'<rect width="{wide}" height="{tall}" fill="#ffffff" class="paper"/>',
            *(
                _svg_words(item)
                if isinstance(item, Words)
                else _svg_mark(item, hatches)
                for item in scene.items
            ),
            "</svg>",
            "",
        ]
    )


def _n(value: float) -> str:
    """A number with two decimals at most, the same on every machine."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _pale(color: str) -> str:
    return mixed(color, "#ffffff", 0.62)


def _svg_hatch(color: str, name: str) -> str:
    return (
        f'<pattern id="{name}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" '
        f'fill="{_pale(color)}"/><rect width="2" height="5" fill="{color}"/></pattern>'
    )


def _svg_mark(mark: Mark, hatches: Mapping[str, str]) -> str:
    fill = f"url(#{hatches[mark.fill]})" if mark.hatched else mark.fill
    start = (
        f'<rect x="{_n(mark.x)}" y="{_n(mark.y)}" width="{_n(mark.width)}" '
        f'height="{_n(mark.height)}" fill="{fill}"'
    )
    if not mark.tip:
        return f"{start}/>"
    lines = "\n".join(escaped(line) for line in mark.tip.split("\n"))
    return f'{start} class="tip"><title>{lines}</title></rect>'


def _svg_words(words: Words) -> str:
    anchor = {"left": "start", "middle": "middle", "right": "end"}[words.align]
    bold = ' font-weight="bold"' if words.bold else ""
    return (
        f'<text x="{_n(words.x)}" y="{_n(words.y + words.size * 0.35)}" '
        f'font-size="{_n(words.size)}" fill="{words.fill}"{bold} '
        f'text-anchor="{anchor}">{escaped(words.text)}</text>'
    )


def dot_of_scene(scene: Scene) -> str:
    """Write a scene as DOT text with fixed positions, for Graphviz' `nop2`."""
    dot = graphviz.Graph(
        name="scene",
        graph_attr={"pad": "0", "margin": "0", "bgcolor": "white", "splines": "false"},
        node_attr={
            "fontname": FONT,
            "shape": "box",
            "fixedsize": "true",
            "margin": "0",
            "penwidth": "0",
        },
    )
    frame = Mark(0, 0, scene.width, scene.height, "#ffffff")
    for number, item in enumerate((frame, *scene.items)):
        if isinstance(item, Words):
            _dot_words(dot, f"i{number}", item, scene.height)
        else:
            _dot_mark(dot, f"i{number}", item, scene.height)
    return str(dot.source)


def _dot_mark(dot: graphviz.Graph, name: str, mark: Mark, height: float) -> None:
    fill, style = mark.fill, "filled"
    if mark.hatched:
        pairs = min(max(round(mark.width / _STRIPE / 2), 1), 100)
        fill, style = ":".join([mark.fill, _pale(mark.fill)] * pairs), "striped"
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
