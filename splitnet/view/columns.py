"""Rows of text set in columns."""

from collections.abc import Iterable, Mapping, Sequence

from splitnet.view.words import padded, shortened, width

__all__ = ["WIDTH", "columns"]

WIDTH = 100
"""The columns that every table fits."""


def columns(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    total: Sequence[str] = (),
    widest: Mapping[int, int] | None = None,
) -> str:
    """Set rows in columns under a head with a rule; no line ends in a space.

    Args:
        head: a word per column.
        rows: a text per column.
        right: columns to set flush right, by number.
        total: a last row under a rule of its own.
        widest: the most that a column may take; longer texts lose their middle.
    """
    limits = widest or {}
    body = [
        [shortened(text, limits.get(n, WIDTH)) for n, text in enumerate(row)]
        for row in rows
    ]
    lines = [list(head), *body, *([list(total)] if total else [])]
    sizes = [max(width(line[n]) for line in lines) for n in range(len(head))]

    def set_line(line: Sequence[str]) -> str:
        return "  ".join(
            padded(text, sizes[n], n in right) for n, text in enumerate(line)
        ).rstrip()

    rule = "─" * (sum(sizes) + 2 * (len(sizes) - 1))
    text = [set_line(lines[0]), rule, *(set_line(line) for line in body)]
    if total:
        text += [rule, set_line(lines[-1])]
    return "\n".join(text)
