"""A placement diagram as DOT text with positions.

The same plan gives the same bytes. `neato -n` draws it: Graphviz only finds the ways of
the lines around the boxes.
"""

import math
from collections.abc import Mapping, Sequence

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.plan import Plan
from splitnet.view.diagram import MOST_LANES, Box, Diagram, diagram_of
from splitnet.view.layout import Layout, Rect, arrange, below, columns_of
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

_PAGE = 1050.0, 1000.0  # points
# Lanes below one another or upright, and the most columns.
_CARDS = 6  # in a row
_SHAPES = ((False, 9), (True, 12), (False, 6), (False, 4), (True, 6), (True, 4))


def dot_of(
    plan: Plan,
    *,
    other: Plan | None = None,
    audit: Audit | None = None,
    headed: bool = True,
) -> str:
    """Write a plan's placement diagram as DOT text with positions.

    Args:
        plan: what to draw.
        other: an earlier plan of the same net; what moved since is marked.
        audit: what was seen when the plan ran; what ran elsewhere is marked.
        headed: with title, totals and verdict; an HTML page has its own.
    """
    shown = diagram_of(plan, other=other, audit=audit)
    colors = colors_of(device.name for device in plan.cluster)
    titles = {
        f"title-{number}": lane_rows(plan, devices, colors.get(lane, QUIET))
        for number, (lane, devices) in enumerate(shown.lanes.items())
    }
    labels = _labels(shown)
    placed = _placed(shown, titles, labels)
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
        edge_attr={"color": THIN, "arrowsize": "0.6"},
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
    _add_links(dot, shown, labels, placed, colors)
    header = header_rows(
        *(plan, shown, max(placed.whole.right, 620)),
        other=other,
        audit=audit,
        headed=headed,
    )
    top = min(rect.top for rect in (*placed.hosts.values(), placed.whole))
    text_node(dot, "header", header, 0, top - size_of(header)[1] - 14)
    return str(dot.source)


def _labels(shown: Diagram) -> dict[str, Row]:
    """What links between devices move, unless there are too many to label."""
    if any(any(box.moved) for box in shown.boxes):
        return {}
    return {
        f"label-{number}": (Line(link_text(link), 8.5, bold=True),)
        for number, link in enumerate(shown.links)
        if link.moved_bytes and not link.weights
    }


def _placed(
    shown: Diagram,
    titles: Mapping[str, Sequence[Row]],
    labels: Mapping[str, Row],
) -> Layout:
    """The first arrangement that fits a page, or else the one that comes nearest."""
    sizes = {name: size_of(rows) for name, rows in titles.items()}
    sizes |= {name: size_of([row]) for name, row in labels.items()}
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
    number = {name: int(name.partition("-")[2]) for name in labels}
    ends = {
        n: (shown.links[k].source, shown.links[k].target) for n, k in number.items()
    }
    pairs = [(link.source, link.target) for link in shown.links if not link.weights]
    pairs += [(link.target, link.source) for link in shown.links if link.both_ways]
    folded = {box.id: box.group.column for box in shown.boxes}
    found: list[tuple[float, Layout]] = []
    for upright, most in _SHAPES:
        columns = columns_of([box.id for box in shown.boxes], pairs, most)
        layout = arrange(
            sizes,
            dict.fromkeys(titles, -1) | (folded if any(folded.values()) else columns),
            lane_of,
            hosts,
            ends,
            upright=upright,
        )
        page = layout.whole.right / _PAGE[0], layout.whole.bottom / _PAGE[1]
        found.append((round(max(*page, 1.0), 1), layout))
    return min(found, key=lambda one: one[0])[1]


def _cards(
    sizes: Mapping[str, tuple[float, float]],
    lane_of: Mapping[str, str],
    hosts: Mapping[str, str],
) -> Layout:
    """Many devices as cards in rows, each host's in rows of its own."""
    rows: list[Layout] = []
    for host in dict.fromkeys(hosts.values()):
        its = [lane for lane, on in hosts.items() if on == host]
        for lanes in (its[at : at + _CARDS] for at in range(0, len(its), _CARDS)):
            columns: dict[str, int] = {}
            for lane in lanes:
                names = [name for name, on in lane_of.items() if on == lane]
                columns |= {name: at - 1 for at, name in enumerate(names)}
            within = {name: on for name, on in lane_of.items() if on in lanes}
            of = dict.fromkeys(lanes, host)
            rows.append(arrange(sizes, columns, within, of, {}, upright=True))
    return below(rows)


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


def _frame(name: str, rect: Rect, **look: str) -> graphviz.Digraph:
    corners = rect.left, -rect.bottom, rect.right, -rect.top
    box = ",".join(f"{at:.1f}" for at in corners)
    frame = graphviz.Digraph(name=f"cluster_{name}")
    frame.attr(bb=box, penwidth="1.4", **look)
    return frame


def _add_box(
    dot: graphviz.Digraph, box: Box, rect: Rect, color: str, *, compared: bool
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
    dot: graphviz.Digraph,
    shown: Diagram,
    labels: Mapping[str, Row],
    placed: Layout,
    colors: Mapping[str, str],
) -> None:
    """A line per link, through its label; wide between devices, thin within one."""
    device = {box.id: box.facts.device for box in shown.boxes}
    names = {box.id: box.name for box in shown.boxes}
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
            most = 3.0 if link.both_ways else 5.0
            look["penwidth"] = f"{_pen(link.moved_bytes, heaviest, most):.1f}"
        elif link.reuses:
            look["style"] = "dashed"
        way = "both" if link.both_ways or link.weights else "forward"
        label = f"label-{number}"
        if label not in labels:
            dot.edge(link.source, link.target, dir=way, **look)
            continue
        rect = placed.boxes[label]
        text_node(
            *(dot, label, [labels[label]], rect.left, rect.top),
            label=html_label([labels[label]]),
            style="filled",
            fillcolor="#ffffffc0",
        )
        first = "back" if way == "both" else "none"
        dot.edge(link.source, label, dir=first, **look)
        look["id"] += "-end"
        dot.edge(label, link.target, dir="forward", **look)


def _pen(count: int, largest: int, most: float) -> float:
    """A line's width in points, 1.4 to `most`: a quarter of the bytes is half of it."""
    return max(1.4, most * math.sqrt(count / largest))
