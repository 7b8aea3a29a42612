"""A placement diagram as DOT text with positions.

The same plan gives the same bytes. Each device is a lane, each depth of the net a
column. `neato -n` draws the text: Graphviz finds the ways of the lines around boxes,
and the places of their labels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.plan import Plan
from splitnet.view.diagram import MOST_LANES, Box, Diagram, diagram_of
from splitnet.view.legend import (
    box_rows,
    box_tooltip,
    header_rows,
    lane_rows,
    link_text,
    link_tooltip,
)
from splitnet.view.style import (
    ALARM,
    FONT,
    INK,
    QUIET,
    THIN,
    Line,
    Row,
    clean,
    colors_of,
    html_label,
    mixed,
    position,
    size_of,
    text_node,
)

__all__ = ["dot_of"]

Size = tuple[float, float]
"""Width and height."""

_PADDING = 12.0  # from a frame to its boxes
_STACK = 18.0  # between boxes of one lane and column
_COLUMN = 46.0  # between columns
_LANE = 12.0  # between lanes
_HOST = 22.0  # above the lanes of a host, for its name

_PAGE = 1050.0, 1000.0  # points
# Lanes below one another or upright, and the most columns.
_CARDS = 6  # in a row
_SHAPES = ((False, 9), (True, 12), (False, 6), (False, 4), (True, 6), (True, 4))


@dataclass(frozen=True, slots=True)
class _Rect:
    """A rectangle by its edges, in points."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[float, float]:
        """Its middle."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def moved(self, down: float) -> "_Rect":
        """The same, further down."""
        return _Rect(self.left, self.top + down, self.right, self.bottom + down)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Rectangles by name: of boxes and titles, of lanes, and of hosts."""

    boxes: Mapping[str, _Rect]
    lanes: Mapping[str, _Rect]
    hosts: Mapping[str, _Rect]
    whole: _Rect


def dot_of(plan: Plan, *, other: Plan | None = None, audit: Audit | None = None) -> str:
    """Write a plan's placement diagram as DOT text with positions.

    What moved since `other`, an earlier plan of the same net, is marked, and what ran
    elsewhere according to `audit`.
    """
    shown = diagram_of(plan, other=other, audit=audit)
    colors = colors_of(device.name for device in plan.cluster)
    titles = {
        f"title-{number}": lane_rows(plan, devices, colors.get(lane, QUIET))
        for number, (lane, devices) in enumerate(shown.lanes.items())
    }
    placed = _placed(shown, titles)
    dot = graphviz.Digraph(
        name="placement",
        graph_attr={
            "splines": "true",
            "esep": "+4",
            "outputorder": "edgesfirst",  # boxes cover lines, not the reverse
            "bgcolor": "white",
            "pad": "0.25",
            "fontname": FONT,
            "tooltip": graphviz.escape(clean(plan.graph.name)),
        },
        node_attr={
            "fontname": FONT,
            "shape": "box",
            "fixedsize": "true",
            "margin": "0",
        },
        edge_attr={"fontname": FONT, "color": THIN, "arrowsize": "0.6"},
    )
    for number, (host, rect) in enumerate(placed.hosts.items()):
        name = f"host-{number}"
        frame = _frame(name, rect, style="rounded,dashed", color=QUIET)
        words = [(Line(clean(host) or "this machine", 11, INK),)]
        text_node(frame, name, words, rect.left + 14, rect.top + 4)
        dot.subgraph(frame)
    for title, lane in zip(titles, shown.lanes, strict=True):
        color = colors.get(lane, QUIET)
        look = {
            "style": "filled,rounded",
            "fillcolor": mixed(color, "#ffffff", 0.9),
            "color": color,
            "tooltip": graphviz.escape(clean(lane)),
        }
        frame = _frame(title.replace("title", "lane"), placed.lanes[lane], **look)
        corner = placed.boxes[title]
        text_node(frame, title, titles[title], corner.left, corner.top)
        for box in shown.boxes:
            if box.lane == lane:
                own = colors.get(box.facts.device, QUIET)
                rect = placed.boxes[box.id]
                _add_box(frame, box, rect, own, compared=other is not None)
        dot.subgraph(frame)
    _add_links(dot, shown, colors)
    width = max(placed.whole.right, 620)
    header = header_rows(plan, shown, width, other=other, audit=audit)
    top = min(rect.top for rect in (*placed.hosts.values(), placed.whole))
    text_node(dot, "header", header, 0, top - size_of(header)[1] - 14)
    return str(dot.source)


def _placed(shown: Diagram, titles: Mapping[str, Sequence[Row]]) -> _Layout:
    """The first arrangement that fits a page, or else the one that comes nearest."""
    sizes = {name: size_of(rows) for name, rows in titles.items()}
    for box in shown.boxes:
        wide, tall = size_of(box_rows(box))
        sizes[box.id] = (
            wide + (26 if box.facts.kind == "merge" else 18),
            tall + (22 if box.facts.kind == "weights" else 10),
        )
    lane_of = dict(zip(titles, shown.lanes, strict=True))
    lane_of |= {box.id: box.lane for box in _crossing_less(shown)}
    hosts = {lane: lane.rpartition("/")[0] for lane in shown.lanes}
    if len(hosts) > MOST_LANES:
        return _cards(sizes, lane_of, hosts)
    times = {box.id: box.group.times for box in shown.boxes}
    pairs = [
        (link.source, link.target)
        for link in shown.links
        if not link.weights
        and (not link.both_ways or times[link.source] == times[link.target] > 1)
    ]
    found: list[tuple[float, _Layout]] = []
    for upright, most in _SHAPES:
        columns = _columns_of([box.id for box in shown.boxes], pairs, most)
        layout = _arrange(
            sizes,
            dict.fromkeys(titles, -1) | columns,
            lane_of,
            hosts,
            upright=upright,
        )
        page = layout.whole.right / _PAGE[0], layout.whole.bottom / _PAGE[1]
        found.append((round(max(*page, 1.0), 1), layout))
    return min(found, key=lambda one: one[0])[1]


def _cards(
    sizes: Mapping[str, tuple[float, float]],
    lane_of: Mapping[str, str],
    hosts: Mapping[str, str],
) -> _Layout:
    """Many devices as cards in rows, each host's in rows of its own."""
    rows: list[_Layout] = []
    for host in dict.fromkeys(hosts.values()):
        its = [lane for lane, on in hosts.items() if on == host]
        for lanes in (its[at : at + _CARDS] for at in range(0, len(its), _CARDS)):
            columns: dict[str, int] = {}
            for lane in lanes:
                names = [name for name, on in lane_of.items() if on == lane]
                columns |= {name: at - 1 for at, name in enumerate(names)}
            within = {name: on for name, on in lane_of.items() if on in lanes}
            of = dict.fromkeys(lanes, host)
            rows.append(_arrange(sizes, columns, within, of, upright=True))
    return _below(rows)


def _crossing_less(shown: Diagram) -> list[Box]:
    """The boxes, inputs by the lanes that read them, so that fewer lines cross."""
    lanes = list(shown.lanes)
    lane_of = {box.id: lanes.index(box.lane) for box in shown.boxes}
    reads: dict[str, list[int]] = {}
    for link in shown.links:
        reads.setdefault(link.source, []).append(lane_of[link.target])

    def key(box: Box) -> float:
        its = reads.get(box.id, [0])
        return sum(its) / len(its) if box.facts.kind == "input" else len(lanes)

    return sorted(shown.boxes, key=key)


def _frame(name: str, rect: _Rect, **look: str) -> graphviz.Digraph:
    corners = rect.left, -rect.bottom, rect.right, -rect.top
    box = ",".join(f"{at:.1f}" for at in corners)
    frame = graphviz.Digraph(name=f"cluster_{name}")
    frame.attr(bb=box, penwidth="1.4", **look)
    return frame


def _add_box(
    dot: graphviz.Digraph, box: Box, rect: _Rect, color: str, *, compared: bool
) -> None:
    facts = box.facts
    marked = bool(box.moved_from or box.strayed)
    blank = compared and not marked or facts.kind == "input"
    corners = {"merge": "diagonals", "input": "filled", "weights": "filled"}
    style = ["filled", corners.get(facts.kind, "rounded")]
    dot.node(
        box.id,
        label=html_label(box_rows(box)),
        tooltip=graphviz.escape(box_tooltip(box)),
        id=box.id,
        shape="cylinder" if facts.kind == "weights" else "box",
        style=",".join([*style, "dashed"] if facts.fallback else style),
        fillcolor="white" if blank else mixed(color, "#ffffff", 0.72),
        color=ALARM if facts.fallback or marked else color,
        penwidth="2.6" if marked else "1.8" if facts.fallback else "1.2",
        peripheries="2" if facts.is_output else "1",
        width=f"{(rect.right - rect.left) / 72:.3f}",
        height=f"{(rect.bottom - rect.top) / 72:.3f}",
        pos=position(*rect.middle),
    )


def _add_links(
    dot: graphviz.Digraph, shown: Diagram, colors: Mapping[str, str]
) -> None:
    """A line per link, wide between devices, thin within one.

    Those between devices say what they move, unless there are too many to label.
    """
    device = {box.id: box.facts.device for box in shown.boxes}
    names = {box.id: box.name for box in shown.boxes}
    labelled = not any(any(box.moved) for box in shown.boxes)
    heaviest = max((link.moved_bytes for link in shown.links), default=0)
    for number, link in enumerate(shown.links):
        tooltip = graphviz.escape(link_tooltip(link, names))
        look = {"id": f"link-{number}", "tooltip": tooltip}
        if link.moved_bytes:
            color = mixed(colors.get(device[link.source], QUIET), "#000000", 0.1)
            look["color"] = QUIET if link.both_ways else color
        if link.weights:
            look |= {"style": "dotted", "penwidth": "1.6"}
        elif link.moved_bytes:
            # A quarter of the bytes is half of the width.
            most = 3.0 if link.both_ways else 5.0
            pen = max(1.4, most * math.sqrt(link.moved_bytes / heaviest))
            look["penwidth"] = f"{pen:.1f}"
            if labelled:
                words = (Line(link_text(link), 8.5, bold=True),)
                look["xlabel"] = html_label([words], back="#ffffffd0")
                wide, tall = size_of([words])
                look["comment"] = f"{wide + 4:.1f},{tall + 4:.1f}"
        elif link.reuses:
            look["style"] = "dashed"
        way = "both" if link.both_ways or link.weights else "forward"
        dot.edge(link.source, link.target, dir=way, **look)


def _columns_of(
    boxes: Sequence[str], links: Iterable[tuple[str, str]], most: int
) -> dict[str, int]:
    """The column of each box: its depth in the graph, from 0.

    Links against the running order of the boxes do not count. In a graph deeper than
    `most`, several depths share a column.
    """
    number = {box: at for at, box in enumerate(boxes)}
    depth = dict.fromkeys(boxes, 0)
    for source, target in sorted(links, key=lambda ends: number[ends[0]]):
        if number[source] < number[target]:
            depth[target] = max(depth[target], depth[source] + 1)
    deepest = max(depth.values(), default=0) + 1
    return {box: at * min(most, deepest) // deepest for box, at in depth.items()}


def _arrange(
    sizes: Mapping[str, Size],
    columns: Mapping[str, int],
    lane_of: Mapping[str, str],
    host_of: Mapping[str, str],
    *,
    upright: bool,
) -> _Layout:
    """Place boxes and titles, whose column is -1, in lanes and columns.

    Nothing overlaps. Boxes of one lane and column are stacked in their order. Lanes are
    below one another and columns follow to the right; if `upright`, lanes are side by
    side and columns follow downwards.
    """
    # Lengths lie along the columns' direction, widths across it.
    length = {name: size[upright] for name, size in sizes.items()}
    width = {name: size[not upright] for name, size in sizes.items()}
    cells: dict[tuple[str, int], list[str]] = {}
    longest: dict[int, float] = {}
    for name, lane in lane_of.items():
        column = columns[name]
        cells.setdefault((lane, column), []).append(name)
        longest[column] = max(longest.get(column, 0.0), length[name])
    stacks = {
        cell: sum(width[name] + _STACK for name in names) - _STACK
        for cell, names in cells.items()
    }
    begin, at, gap = {}, _PADDING, 0.0
    for column in sorted(longest):
        begin[column] = at
        gap = 2 * _PADDING if column < 0 else _COLUMN
        at += longest[column] + gap
    end = at - gap + _PADDING
    lead = (_PADDING if upright else _HOST) if any(host_of.values()) else 0.0
    lanes, hosts, whole = _lane_spans(stacks, host_of, lead)

    def rect(left: float, top: float, right: float, bottom: float) -> _Rect:
        edges = (top, left, bottom, right) if upright else (left, top, right, bottom)
        return _Rect(*edges)

    boxes: dict[str, _Rect] = {}
    for (lane, column), names in cells.items():
        down = (sum(lanes[lane]) - stacks[lane, column]) / 2
        for name in names:
            room = 0.0 if column < 0 else longest[column] - length[name]
            left = begin[column] + room / 2
            boxes[name] = rect(left, down, left + length[name], down + width[name])
            down += width[name] + _STACK
    return _Layout(
        boxes,
        {lane: rect(0, start, end, stop) for lane, (start, stop) in lanes.items()},
        {
            host: rect(-_PADDING - _HOST * upright, start, end + _PADDING, stop)
            for host, (start, stop) in hosts.items()
        },
        rect(0, 0, end, whole),
    )


def _lane_spans(
    stacks: Mapping[tuple[str, int], float], host_of: Mapping[str, str], lead: float
) -> tuple[dict[str, Size], dict[str, Size], float]:
    """Where each lane and each framed host begins and ends, and the end of all.

    `lead` is the room between a host's frame and its first lane; 0 without frames.
    """
    lanes: dict[str, Size] = {}
    hosts: dict[str, Size] = {}
    at = 0.0
    for host in dict.fromkeys(host_of.values()):
        first = at
        at += lead
        for lane in (lane for lane, its in host_of.items() if its == host):
            widest = max(wide for (its, _), wide in stacks.items() if its == lane)
            lanes[lane] = at, at + widest + 2 * _PADDING
            at = lanes[lane][1] + _LANE
        if lead:
            hosts[host] = first, at
            at += _LANE
    return lanes, hosts, at


def _below(layouts: Sequence[_Layout]) -> _Layout:
    """Set layouts below one another; a host's frame goes around all its lanes."""
    boxes: dict[str, _Rect] = {}
    lanes: dict[str, _Rect] = {}
    hosts: dict[str, _Rect] = {}
    right = down = 0.0
    for layout in layouts:
        boxes |= {name: rect.moved(down) for name, rect in layout.boxes.items()}
        lanes |= {name: rect.moved(down) for name, rect in layout.lanes.items()}
        for host, rect in layout.hosts.items():
            last = hosts.get(host, rect.moved(down))
            edges = max(last.right, rect.right), rect.bottom + down
            hosts[host] = _Rect(last.left, last.top, *edges)
        right = max(right, layout.whole.right)
        frame = _HOST + 2 * _PADDING if layout.hosts else 0.0
        down += layout.whole.bottom + _LANE + frame
    return _Layout(boxes, lanes, hosts, _Rect(0, 0, right, down))
