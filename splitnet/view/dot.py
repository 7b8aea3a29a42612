"""A plan as DOT text: one frame per device, boxes for its branches, bold lines across.

The same plan gives the same bytes. Names come from strangers and are only ever text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.plan import Plan
from splitnet.view.boxes import Box, Boxes, boxes_of
from splitnet.view.colors import INK, QUIET, colors_of, mixed
from splitnet.view.facts import strayed_of
from splitnet.view.labels import (
    ALARM,
    THIN,
    box_label,
    box_tooltip,
    device_label,
    header_label,
)
from splitnet.view.lines import add_lines
from splitnet.view.words import (
    clean,
    counted,
    label_text,
    shortened,
)

__all__ = ["dot_of"]

_T = TypeVar("_T")
_FONT = "Helvetica,Arial,sans-serif"
# what is no box with round corners
_SHAPE_OF = {"merge": "hexagon", "weights": "cylinder", "input": "box"}


def dot_of(
    plan: Plan,
    *,
    other: Plan | None = None,
    calls: str | None = None,
    audit: Audit | None = None,
    most: int = 24,
    headed: bool = True,
) -> str:
    """Write a plan's placement diagram as DOT text, without laying it out.

    Args:
        plan: what to draw.
        other: an earlier plan of the same net; what moved since is marked.
        calls: a part to open into its calls.
        audit: what was seen when the plan ran; what strayed is marked.
        most: about how many boxes to draw; more parts are folded where they repeat.
        headed: with title, totals and verdict above; a page has its own.

    Raises:
        SplitnetError: `calls` names no part.
    """
    shown = boxes_of(
        plan, other=other, calls=calls, strayed=strayed_of(audit), most=most
    )
    colors = colors_of(device.name for device in plan.cluster)
    dot = graphviz.Digraph(
        name="placement",
        graph_attr={
            "rankdir": _direction(shown),
            "label": header_label(plan, shown, other, audit, headed=headed),
            "labelloc": "t",
            "labeljust": "l",
            "fontname": _FONT,
            "fontsize": "11",
            "fontcolor": INK,
            "bgcolor": "white",
            "pad": "0.25",
            "nodesep": "0.22",
            "ranksep": "0.5",
            "newrank": "true",
            "outputorder": "edgesfirst",  # no line strikes through a box's words
            "tooltip": graphviz.escape(clean(plan.graph.name)),
        },
        node_attr={
            "fontname": _FONT,
            "fontsize": "10",
            "fontcolor": INK,
            "shape": "box",
            "style": "filled,rounded",
            "margin": "0.1,0.05",
            "penwidth": "1.2",
        },
        edge_attr={
            "fontname": _FONT,
            "fontsize": "8.5",
            "fontcolor": INK,
            "color": THIN,
            "arrowsize": "0.6",
        },
    )
    sheet = _Sheet(plan, colors, other is not None, _direction(shown) == "LR")
    _add_devices(dot, shown, sheet)
    _add_columns(dot, shown)
    add_lines(dot, shown, colors)
    return str(dot.source)


def _direction(shown: Boxes) -> str:
    """Left to right, where lines keep clear of titles, unless that is far too wide."""
    if any(box.group.column for box in shown.boxes):
        return "LR"
    depth: dict[str, int] = {box.id: 0 for box in shown.boxes}
    order = {box.id: number for number, box in enumerate(shown.boxes)}
    for link in sorted(shown.links, key=lambda link: order[link.source]):
        if order[link.source] < order[link.target]:
            depth[link.target] = max(depth[link.target], depth[link.source] + 1)
    ranks = max(depth.values(), default=0) + 1
    places = list(depth.values())
    widest = max((places.count(rank) for rank in range(ranks)), default=1)
    return "TB" if ranks * 270 > 8 * (widest * 75 + 150) else "LR"


def _add_columns(dot: graphviz.Digraph, shown: Boxes) -> None:
    """Set the boxes of a folded tangle below each other, stretch by stretch."""
    columns: dict[int, list[str]] = {}
    for box in shown.boxes:
        if box.group.column:
            columns.setdefault(box.group.column, []).append(box.id)
    for number, boxes in columns.items():
        with dot.subgraph(name=f"column_{number}", graph_attr={"rank": "same"}) as row:
            for name in boxes:
                row.node(name)
    firsts = [columns[number][0] for number in sorted(columns)]
    for one, other in zip(firsts, firsts[1:], strict=False):
        dot.edge(one, other, style="invis")


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What every part of one picture needs to know."""

    plan: Plan
    colors: Mapping[str, str]
    compared: bool
    leftward: bool

    def ordered(self, items: Sequence[_T]) -> Sequence[_T]:
        """Left to right, dot stacks from the bottom; the first shall be on top."""
        return items[::-1] if self.leftward else items


def _add_devices(dot: graphviz.Digraph, shown: Boxes, sheet: _Sheet) -> None:
    """A frame per host when there are several, and in it a frame per device."""
    here: dict[str, list[Box]] = {device.name: [] for device in sheet.plan.cluster}
    for box in shown.boxes:
        here.setdefault(box.device, []).append(box)
    hosts: dict[str, list[str]] = {}
    for device, boxes in here.items():
        if boxes:
            hosts.setdefault(device.rpartition("/")[0], []).append(device)
    for number, (host, devices) in enumerate(hosts.items()):
        with dot.subgraph(name=f"cluster_host_{number}") as frame:
            if len(hosts) > 1:
                frame.attr(
                    label=f"<{label_text(host or 'this machine')}>",
                    style="rounded,dashed",
                    color=QUIET,
                    fontsize="11",
                    margin="12",
                )
            else:
                frame.attr(peripheries="0", label="", margin="0")
            for device in sheet.ordered(devices):
                low = sheet.leftward and device == devices[-1] and len(devices) > 1
                _add_device(frame, device, here[device], sheet, low)


def _add_device(
    frame: graphviz.Digraph,
    device: str,
    boxes: Sequence[Box],
    sheet: _Sheet,
    low: bool,
) -> None:
    """A device's frame; the lowest bears its title below, clear of what leaves it."""
    color = sheet.colors.get(device, QUIET)
    title = device_label(sheet.plan, device, color, tall=not sheet.leftward)
    number = list(sheet.colors).index(device) if device in sheet.colors else 0
    with frame.subgraph(name=f"cluster_device_{number}") as inner:
        inner.attr(
            label=title if sheet.leftward else "",
            labelloc="b" if low else "t",
            peripheries="1",
            labeljust="l",
            style="filled,rounded",
            fillcolor=mixed(color, "#ffffff", 0.9),
            color=color,
            penwidth="1.4",
            margin="10",
            tooltip=graphviz.escape(clean(device)),
        )
        if not sheet.leftward:
            _add_title(inner, number, title, boxes[0].id)
        opened = [box for box in boxes if box.inside]
        for box in sheet.ordered(boxes):
            if not box.inside:
                _add_box(inner, box, color, sheet.compared)
        if opened:
            _add_opened(inner, opened, color, sheet)


def _add_title(frame: graphviz.Digraph, number: int, title: str, first: str) -> None:
    """Put a frame's title beside its first box: from above, lines would cross it."""
    with frame.subgraph(name=f"rank_{number}", graph_attr={"rank": "same"}) as row:
        row.node(
            f"title-{number}",
            label=title,
            shape="plain",
            style="",
            tooltip="",
        )
        row.edge(f"title-{number}", first, style="invis")


def _add_opened(
    frame: graphviz.Digraph, opened: Sequence[Box], color: str, sheet: _Sheet
) -> None:
    """A frame inside the device's for the calls of the part that is opened."""
    with frame.subgraph(name="cluster_opened") as part:
        calls = counted(sum(box.calls for box in opened), "call")
        part.attr(
            label=graphviz.escape(f"{shortened(opened[0].inside, 60)}: {calls}"),
            labelloc="t",
            style="rounded,filled",
            fillcolor="white",
            color=color,
            penwidth="1",
            fontsize="10",
        )
        for box in sheet.ordered(opened):
            _add_box(part, box, color, sheet.compared)


def _add_box(frame: graphviz.Digraph, box: Box, color: str, compared: bool) -> None:
    fallback, moved = bool(box.fallback_why), bool(box.moved_from or box.strayed)
    plain = compared and not moved
    style = ["filled", *([] if box.kind in _SHAPE_OF else ["rounded"])]
    frame.node(
        box.id,
        label=box_label(box),
        tooltip=graphviz.escape(box_tooltip(box)),
        id=box.id,
        shape=_SHAPE_OF.get(box.kind, "box"),
        style=",".join([*style, *(["dashed"] if fallback else [])]),
        fillcolor=(
            "white" if plain or box.kind == "input" else mixed(color, "#ffffff", 0.72)
        ),
        color=ALARM if fallback or moved else color,
        penwidth="2.6" if moved else "1.8" if fallback else "1.2",
        peripheries="2" if box.is_output else "1",
    )
