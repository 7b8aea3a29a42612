"""The lines of a placement diagram, as DOT."""

import math
from collections.abc import Mapping

import graphviz

from splitnet.view.boxes import Boxes
from splitnet.view.colors import INK, QUIET, mixed
from splitnet.view.link_labels import (
    is_fetched,
    labelled_links,
    link_label,
    link_tooltip,
    shared_tooltip,
)
from splitnet.view.links import SharedLink

__all__ = ["add_lines"]


def add_lines(dot: graphviz.Digraph, shown: Boxes, colors: Mapping[str, str]) -> None:
    """Add what passes between boxes, and dotted lines between sharers of weights."""
    device = {box.id: box.device for box in shown.boxes}
    labelled = labelled_links(shown)
    heaviest = max((link.bytes for link in shown.links if link.crosses), default=0)
    for number, link in enumerate(shown.links):
        tooltip = graphviz.escape(link_tooltip(link, shown))
        ways = "both" if link.both_ways else "forward"
        fetched = is_fetched(link)
        if not link.crosses or fetched:
            style = "dashed" if fetched else "solid"
            dot.edge(
                link.source,
                link.target,
                id=f"link-{number}",
                tooltip=tooltip,
                style=style,
                dir=ways,
            )
            continue
        color = colors.get(device[link.source], QUIET)
        dot.edge(
            link.source,
            link.target,
            id=f"link-{number}",
            label=link_label(link) if number in labelled else "",
            dir=ways,
            color=INK if link.both_ways else mixed(color, "#000000", 0.1),
            penwidth=f"{_pen(link.bytes, heaviest):.1f}",
            tooltip=tooltip,
            labeltooltip=tooltip,
        )
    for number, shared in enumerate(shown.sharings):
        _add_shared(dot, number, shared, colors.get(device[shared.home], QUIET))


def _add_shared(
    dot: graphviz.Digraph, number: int, shared: SharedLink, color: str
) -> None:
    """A dotted line; what holds the weights of towers comes before them."""
    dot.edge(
        shared.home,
        shared.other,
        id=f"sharing-{number}",
        style="dotted",
        penwidth="2.2" if shared.held else "1.6",
        color=mixed(color, "#000000", 0.1) if shared.held else INK,
        dir="both" if shared.held else "none",
        constraint="true" if shared.held else "false",
        tooltip=graphviz.escape(shared_tooltip(shared)),
    )


def _pen(count: int, most: int) -> float:
    """A line's width in points: wider for more bytes, 1.8 to 3.8, on a log scale."""
    if count <= 0 or most <= 1:
        return 1.8
    return 1.8 + 2.0 * max(0.0, 1 - math.log(most / count) / math.log(1e4))
