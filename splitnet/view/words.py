"""Names and numbers as people read them; names are text from strangers."""

import re
import unicodedata
from collections.abc import Iterable

from splitnet.core.units import format_bytes
from splitnet.view.colors import QUIET

__all__ = ["clean", "counted", "escaped", "padded", "ranged", "shape_text", "shortened"]

_ESCAPES = re.compile(r"\\(?=[GNEHTL])")

Shape = tuple[int | None, ...]


def clean(text: str) -> str:
    r"""Replace what XML cannot hold and what breaks lines or turns their direction.

    >>> ascii(clean("a" + chr(10) + "b" + chr(0) + "c"))
    "'a b\\ufffdc'"
    """
    return "".join(_cleaned(c) for c in text)


def _cleaned(character: str) -> str:
    if character in "\n\r\t\v\f\u2028\u2029\u0085":
        return " "
    category = unicodedata.category(character)
    if category in ("Cc", "Cf", "Cs", "Cn", "Co"):
        return "\N{REPLACEMENT CHARACTER}"
    return character


def shortened(text: str, most: int) -> str:
    """Keep the beginning and the end of a long text, at most `most` columns wide.

    >>> shortened("encoder_block_17_attention", 15)
    'encoder…tention'
    """
    text = clean(text)
    if width(text) <= most:
        return text
    tail = _fitting(text[::-1], (most - 1) // 2)[::-1]
    return _fitting(text, most - 1 - width(tail)) + "…" + tail


def _fitting(text: str, most: int) -> str:
    """The longest beginning that takes at most so many columns."""
    taken = 0
    for at, character in enumerate(text):
        taken += width(character)
        if taken > most:
            return text[:at]
    return text


def width(text: str) -> int:
    """The columns that a text takes in a terminal."""
    return sum(
        0
        if unicodedata.combining(c)
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


def padded(text: str, columns: int, right: bool = False) -> str:
    """Fill a text with spaces to a width in columns; a longer one stays as it is."""
    space = " " * max(columns - width(text), 0)
    return space + text if right else text + space


def escaped(text: str) -> str:
    """Write a text so that XML reads it literally.

    >>> escaped("a<b & 'c'")
    'a&lt;b &amp; &#39;c&#39;'
    """
    for raw, entity in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ('"', "&quot;"),
        ("'", "&#39;"),
    ):
        text = text.replace(raw, entity)
    return clean(text)


def label_text(text: str) -> str:
    r"""Write a text so that Graphviz' HTML-like labels read it literally.

    Graphviz replaces \G and its like there by names, and knows no way to quote them; a
    joiner of no width between the two keeps them apart.

    >>> label_text(chr(92) + "G") == chr(92) + "&#8204;G"
    True
    """
    return _ESCAPES.sub(r"\\&#8204;", escaped(text))


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


def bytes_or_dash(count: float) -> str:
    """Write an amount of memory; nothing is a dash, so that a column stays calm."""
    return format_bytes(count) if count else "-"


def quiet_label(text: str, size: float = 9) -> str:
    """Write a text for an HTML-like label, small and grey."""
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{QUIET}">{label_text(text)}</FONT>'
