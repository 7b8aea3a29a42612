"""Colours, text widths and labels of all pictures.

Names come from users: they are cleaned and escaped here, so that they are text only.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from os.path import commonprefix
from typing import NamedTuple, TypeAlias

import graphviz
from rich.cells import cell_len, set_cell_size
from rich.color import blend_rgb, parse_rgb_hex

from splitnet.core.graph import Shape

Graph: TypeAlias = graphviz.Graph | graphviz.Digraph

FONT = "Helvetica,Arial,sans-serif"
INK, QUIET, ALARM, THIN = "#1b1f24", "#6a737d", "#b3261e", "#8b949e"

# Found by search for the largest differences in CIELAB, with full colour vision and
# with deuteranopia and protanopia (Machado et al., 2009); lightness differs too.
_GPU = ("#034793", "#de5c00", "#018050", "#d87bb3", "#54b8fc", "#320250", "#f3bf3b")
_PALETTES = {"gpu": _GPU, "cpu": ("#60596b", "#9a8c7a", "#4c5866", "#857f96")}
# Widths of the letters from space to tilde, in hundredths of the font's size.
_WIDTHS = bytes.fromhex(
    "1c1c2338385943132121273a1c211c1c383838383838383838381c1c3a3a3a38664343484843"
    "3d4e481c32433853484e434e48433d48435e43433d1c1c1c2f382138383238381c3838161632"
    "16533838383821321c383248323232211a213a"
)
_JOINERS = "\u200c\u200d"  # between letters of Persian and Indic words, and emoji
# Graphviz replaces \G and its like in labels by names, and has no way to quote them.
_ESCAPES = re.compile(r"\\(?=[GNEHTL])")


def colors_of(devices: Iterable[str]) -> Mapping[str, str]:
    """Give each device, in order, its colour "#rrggbb"; CPUs are grey.

    After the seventh GPU the colours repeat, darker; every picture also writes the
    device's name beside its colour.
    """
    found: dict[str, str] = {}
    seen = {"gpu": count(), "cpu": count()}
    for device in devices:
        kind = "cpu" if device.rpartition("/")[2].startswith("cpu") else "gpu"
        turn, place = divmod(next(seen[kind]), len(_PALETTES[kind]))
        dark = 1 - 0.72 ** min(turn, 3)
        found[device] = mixed(_PALETTES[kind][place], "#000000", dark)
    return found


def mixed(color: str, other: str, share: float) -> str:
    """Mix `share` (0 to 1) of `other` into `color`; both "#rrggbb"."""
    ends = parse_rgb_hex(color[1:]), parse_rgb_hex(other[1:])
    return blend_rgb(*ends, cross_fade=share).hex


def readable_on(color: str) -> str:
    """Choose black or white text, whichever has more contrast on `color`."""
    shares = zip(parse_rgb_hex(color[1:]).normalized, (0.2126, 0.7152, 0.0722))
    light = sum(share * value**2.2 for value, share in shares)  # relative luminance
    return "#000000" if light > 0.18 else "#ffffff"


def clean(text: str) -> str:
    """Replace what XML cannot hold, line ends, and marks that reverse the text."""
    return "".join(
        c if c.isprintable() or c in _JOINERS else " " if c.isspace() else "\ufffd"
        for c in text
    )


def escaped(text: str) -> str:
    """Clean a text and write it so that XML reads it literally."""
    return clean(html.escape(text))


def tip(*lines: str) -> str:
    """A tooltip for Graphviz."""
    return str(graphviz.escape("\n".join(map(clean, lines))))


class Line(NamedTuple):
    """A line of a label."""

    text: str
    size: float = 9.0
    color: str = INK
    bold: bool = False
    centered: bool = False


def html_label(lines: Iterable[Line], *, width: float = 0.0, back: str = "") -> str:
    """Write lines as a Graphviz label: centered, or flush left in `width` points."""
    align = "LEFT" if width else "CENTER"
    cells = []
    for text, size, color, bold, _ in lines:
        shown = _ESCAPES.sub(r"\\&#8204;", escaped(text))
        shown = f"<B>{shown}</B>" if bold else shown
        shown = f'<FONT POINT-SIZE="{size:g}" COLOR="{color}">{shown}</FONT>'
        cells.append(f'<TR><TD ALIGN="{align}">{shown}</TD></TR>')
    look = f'BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="{2 * bool(back)}"'
    look += f' BGCOLOR="{back}"' if back else ""  # of a line's label, clear of others
    look += f' WIDTH="{width:.0f}"' if width else ""
    return f"<<TABLE {look}>{''.join(cells)}</TABLE>>" if cells else ""


def size_of(lines: Sequence[Line]) -> tuple[float, float]:
    """The width and height that lines take, in points."""
    widths = (text_width(x.text, x.size) * (1 + 0.08 * x.bold) for x in lines)
    return max(widths, default=0.0), sum(1.25 * line.size for line in lines)


def text_width(text: str, size: float) -> float:
    """The width of a text in the bundled font, in points; wide for other scripts."""
    shares = (
        _WIDTHS[ord(c) - 32] if " " <= c <= "~" else min(90 * cell_len(c), 125)
        for c in clean(text)
    )
    return size * sum(shares) / 100


def page(dot: Graph, *, fixed: bool = True, **look: str) -> Graph:
    """A white page for boxes and lines; sizes of boxes are given, or `fixed` is off."""
    box = {"fixedsize": "true", "margin": "0", "style": "filled"}
    box = box if fixed else {"style": "filled,rounded"}
    dot.attr(bgcolor="white", fontname=FONT, **look)
    dot.attr("node", fontname=FONT, shape="box", tooltip=" ", **box)
    dot.attr("edge", fontname=FONT, color=THIN, arrowsize="0.6", tooltip=" ")
    return dot


def text_node(dot: Graph, name: str, lines: Sequence[Line], x: float, y: float) -> None:
    """Add text below y, right of x or around it, as a node: lines keep clear of it."""
    wide, tall = size_of(lines)
    wide *= 1.04  # a label that is wider than its node would begin left of it
    middle = lines[0].centered
    left = x - middle * wide / 2
    look = {"shape": "plain", "fixedsize": "false", "tooltip": " ", "style": ""}
    place = place_of(left, y, left + wide, y + tall)
    dot.node(name, html_label(lines, width=wide * (not middle)), **look | place)


def place_of(left: float, top: float, right: float, bottom: float) -> dict[str, str]:
    """A rectangle in points as Graphviz's position, from the bottom, and inches."""
    x, y = (left + right) / 2, -(top + bottom) / 2
    return {
        "pos": f"{round(x, 2):g},{round(y, 2) + 0:g}",
        "width": f"{max((right - left) / 72, 0.001):.4f}",
        "height": f"{max((bottom - top) / 72, 0.001):.4f}",
    }


def shortened(text: str, most: int) -> str:
    """Keep the beginning and the end of a long text, at most `most` columns wide.

    >>> shortened("encoder_block_17_attention", 15)
    'encoder…tention'
    """
    text = clean(text)
    if cell_len(text) <= most:
        return text
    tail = set_cell_size(text[::-1], (most - 1) // 2).rstrip()[::-1]
    return set_cell_size(text, most - 1 - cell_len(tail)).rstrip() + "…" + tail


def ranged(names: Sequence[str], most: int) -> str:
    """Name a group by its first and last member; common folders only once, if at all.

    >>> ranged(["encoder/layer_0/query", "encoder/layer_0/value"], 25)
    'layer_0/query … value'
    """
    first, last = names[0], names[-1]
    if len(names) == 1:
        return shortened(first, most)
    folders = commonprefix([first, last]).split("/")[:-1]
    last = "/".join(last.split("/")[len(folders) :])
    while folders and cell_len(f"{first} … {last}") > most:
        first = first.partition("/")[2]
        folders.pop()
    last = shortened(last, max((most - 3) // 2, most - 3 - cell_len(first), 4))
    return f"{shortened(first, max(most - 3 - cell_len(last), 4))} … {last}"


def shape_text(shape: Shape) -> str:
    """Write a shape; a size that varies is a question mark."""
    return " × ".join("?" if size is None else str(size) for size in shape) or "scalar"


def counted(count: int, noun: str) -> str:
    """Write a number with its noun; takes nouns that add an s, es after ch."""
    return f"{count} {noun}{('es' if noun.endswith('ch') else 's') * (count != 1)}"
