"""The words on the lines of a placement diagram."""

from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.boxes import Boxes
from splitnet.view.links import Link, SharedLink
from splitnet.view.words import clean, label_text, quiet_label, ranged, shape_text

__all__ = [
    "MOST_LABELS",
    "is_fetched",
    "labelled_links",
    "link_label",
    "link_tooltip",
    "shared_tooltip",
]

MOST_LABELS = 24
"""More lines between devices than this bear no words but for the heaviest."""


def link_label(link: Link) -> str:
    """Write what a link moves in a step, in bytes there and back, and its shape."""
    rows = []
    if link.both_ways:
        total = format_bytes(link.sent_bytes + link.returned_bytes)
        rows.append(f"<B>{total} both ways</B>")
    elif link.sent_bytes or link.returned_bytes:
        words = [format_bytes(link.sent_bytes)] if link.sent_bytes else []
        if link.returned_bytes:
            words.append(f"{format_bytes(link.returned_bytes)} back")
        rows.append(f"<B>{label_text(' + '.join(words))}</B>")
    elif link.seconds:
        rows.append(f"<B>{format_seconds(link.seconds)}</B>")
    shapes = list(dict.fromkeys(shape_text(shape) for shape in link.shapes))
    if len(shapes) == 1:
        many = f"{len(link.shapes)} of " if len(link.shapes) > 1 else ""
        rows.append(quiet_label(many + shapes[0], 8.5))
    # A blank in front keeps the words off a line that comes down on their left.
    cells = "".join(f"<TR><TD>&#160;{row}</TD></TR>" for row in rows)
    if not cells:
        return ""
    return f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="1">{cells}</TABLE>>'


def link_tooltip(link: Link, shown: Boxes) -> str:
    """Say everything about a link, for a pointer that rests on it."""
    names = {box.id: box.group.members for box in shown.boxes}
    lines = [
        f"{ranged(names[link.source], 60)} → {ranged(names[link.target], 60)}",
        "; ".join(dict.fromkeys(shape_text(shape) for shape in link.shapes[:6])),
        f"{format_bytes(link.bytes)} of tensors",
    ]
    if link.crosses:
        lines.append(
            f"moved per step: {format_bytes(link.sent_bytes)} there, "
            f"{format_bytes(link.returned_bytes)} back"
        )
        if link.seconds:
            lines.append(f"{format_seconds(link.seconds)} on the way")
    return "\n".join(line for line in lines if line)


def is_fetched(link: Link) -> bool:
    """Whether a neighbour on the target's device has fetched all of it already."""
    moved = link.sent_bytes or link.returned_bytes or link.seconds
    return link.crosses and not moved


def labelled_links(shown: Boxes) -> set[int]:
    """The numbers of the links that bear their bytes: all, or the heaviest of many."""
    crossing = [n for n, link in enumerate(shown.links) if link.crosses]
    crossing.sort(key=lambda n: -shown.links[n].bytes)
    return set(crossing[:MOST_LABELS])


def shared_tooltip(shared: SharedLink) -> str:
    """Say which weights two boxes share, where they live, and what a step moves."""
    layers = shared.sharing.layers
    names = ", ".join(layers[:3])
    if len(layers) > 3:
        names += f" and {len(layers) - 3} more"
    return (
        f"shares {clean(names)}: {format_bytes(shared.sharing.bytes)}, "
        f"at home with {clean(shared.sharing.home)}\n"
        f"moved per step: {format_bytes(shared.sent_bytes)} there, "
        f"{format_bytes(shared.returned_bytes)} back"
    )
