"""A placement diagram as DOT text with positions; the same plan gives the same bytes.

Each device is a lane, each depth of the net a column.
`neato -n` draws the text: Graphviz routes the lines around boxes and places labels.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds, percent
from splitnet.core.graph import grouped
from splitnet.core.plan import Plan
from splitnet.view import facts, style
from splitnet.view.diagram import Box, Diagram, DiagramEdge, diagram_of
from splitnet.view.style import ALARM, INK, QUIET, Line, clean, counted, shortened

Rect = tuple[float, float, float, float]
"""Left, top, right and bottom, in points; counted from the top."""

_PADDING = 12.0  # from a frame to what is in it
_STACK = 18.0  # between boxes of one lane and column
_COLUMN = 46.0  # between columns
_LANE = 12.0  # between lanes
_HOST = 22.0  # above the lanes of a host, for its name
_COLUMNS = 6  # at most


def dot_of(plan: Plan, *, other: Plan | None = None, audit: Audit | None = None) -> str:
    """The placement diagram; marks what moved since `other` and ran elsewhere."""
    shown = diagram_of(plan, other=other, audit=audit)
    colors = style.colors_of(plan.cluster.names)
    title = {lane: f"title-{number}" for number, lane in enumerate(shown.lanes)}
    rows = {
        title[lane]: [*_lane_rows(plan, devices, colors[lane])]
        for lane, devices in shown.lanes.items()
    }
    sizes = {name: style.size_of(its) for name, its in rows.items()}
    lanes = {lane: [name] for lane, name in title.items()}
    for box in shown.boxes:
        rows[box.id] = [*_box_rows(box, shown)]
        wide, tall = style.size_of(rows[box.id])
        wide += 32 if box.facts.kind == "merge" else 24  # browsers may have wider fonts
        sizes[box.id] = wide, 1.6 * tall if box.facts.kind == "weights" else tall + 10
        lanes[box.lane].append(box.id)
    ends = [(x.source, x.target) for x in shown.links if not x.weights]
    placed, frames, hosts = _place_boxes(sizes, lanes, ends)
    how: Any = {"splines": "true", "esep": "+4", "pad": "0.25"}
    how["outputorder"] = "edgesfirst"  # boxes cover lines, not the reverse
    how["forcelabels"] = "false"  # a label without room is left out
    how["tooltip"] = style.tip(plan.graph.name)
    dot = style.page(graphviz.Digraph("placement"), **how)
    for number, (host, rect) in enumerate(hosts.items()):
        name, words = f"host-{number}", [Line(clean(host) or "this machine", 11)]
        with dot.subgraph(name=f"cluster_{name}") as frame:
            frame.attr(style="rounded,dashed", color=QUIET, **_bounds(rect))
            style.text_node(frame, name, words, rect[0] + 14, rect[1] + 4)
    for number, (lane, rect) in enumerate(frames.items()):
        color, look = colors[lane], _bounds(rect) | {"tooltip": style.tip(lane)}
        look |= {"fillcolor": style.mixed(color, "#ffffff", 0.9), "color": color}
        with dot.subgraph(name=f"cluster_lane-{number}") as frame:
            frame.attr(style="filled,rounded", **look)
            name = title[lane]
            style.text_node(frame, name, rows[name], *placed[name][:2])
            for box in (box for box in shown.boxes if box.lane == lane):
                look = _box_look(box, colors[box.lane], other is not None)
                look |= style.place_of(*placed[box.id])
                frame.node(box.id, style.html_label(rows[box.id]), id=box.id, **look)
    box_of = {box.id: box for box in shown.boxes}
    for number, link in enumerate(shown.drawn):
        its = box_of[link.source], box_of[link.target]
        look = _link_look(link, shown, *its, colors[its[0].lane])
        dot.edge(link.source, link.target, id=f"link-{number}", **look)
    right = max(rect[2] for rect in (hosts or frames).values())
    header = [*_header_rows(plan, shown, max(right, 620), other, audit)]
    above = style.size_of(header)[1] + 14 + (_HOST if hosts else 0)
    style.text_node(dot, "header", header, 0, -above)
    return str(dot.source)


def _bounds(rect: Rect) -> dict[str, str]:
    left, top, right, bottom = rect
    corners = ",".join(f"{at:.1f}" for at in (left, -bottom, right, -top))
    return {"bb": corners, "penwidth": "1.4"}


def _lane_rows(plan: Plan, devices: Sequence[str], color: str) -> Iterator[Line]:
    """A lane's device, memory and utilization; of several devices the highest."""
    names = [device.rpartition("/")[2] for device in devices]
    fullest = plan.cluster[max(devices, key=lambda d: plan.memory[d].total)]
    held, limit = plan.memory[fullest.name].total, fullest.memory_bytes
    used = max(plan.timeline.utilization[device] for device in devices)
    yield Line(style.ranged(names, 30), 13, style.mixed(color, "#000000", 0.25), True)
    if names[1:]:
        yield Line(f"{len(devices)} devices, each at most", 9, QUIET)
    words, over = f"{format_bytes(held)} of {format_bytes(limit)}", held > limit
    yield Line(words + ": too much" * over, 9, ALARM if over else QUIET, over)
    if fullest.stand_in:
        target = "CPUs" if names[1:] else fullest.target.removeprefix("/device:")
        yield Line(f"stand-in on {target}", 9, QUIET)
    yield Line(f"utilization {percent(used)}", 9, QUIET)


def _box_rows(box: Box, shown: Diagram) -> Iterator[Line]:
    members, its, times = box.group.members, box.facts, box.group.times
    many, is_input = len(members) > 1, its.kind == "input"
    yield Line(f"{box.name} ×{times}" if many and times else box.name, 10, bold=True)
    if not times:
        yield Line(counted(len(members), "branch"), 8.5, QUIET)
    if its.layers and not is_input:
        yield Line(layers_text(its.layers), 8.5, QUIET)
    if its.shapes:
        shapes = dict.fromkeys(map(style.shape_text, its.shapes))
        yield Line(shortened(", ".join(shapes), 40))
    costs = [format_bytes(its.total_bytes)] if its.total_bytes and not is_input else []
    costs += [format_seconds(its.total_seconds)] if its.total_seconds else []
    if costs:
        yield Line(" · ".join(costs) + (" in total" if many else ""))
    ways = zip(("in", "out"), shown.moved(box, weights=False), strict=True)
    moved = [f"{way} {format_bytes(count)}" for way, count in ways if count]
    if moved and not shown.labelled:
        yield Line(" · ".join(moved))
    if box.shares:
        yield Line(f"shares {shortened(', '.join(box.shares), 30)}", 8.5, QUIET)
    if any(read := shown.moved(box, weights=True)):
        yield Line(f"weights {_there_and_back(*read)}", 8.5, QUIET)
    alarms = [f"requested {its.fallback.requested}"] if its.fallback else []
    alarms += [f"was on {box.moved_from}"] if box.moved_from else []
    for text in (*alarms, *box.strayed):
        yield Line(shortened(text, 34), 9, ALARM, bold=True)


def layers_text(layers: Sequence[str]) -> str:
    """The kinds of layers in a row, equal neighbours counted."""
    runs = [(name, len(list(its))) for name, its in groupby(layers)]
    texts = [f"{count} {name}" if count > 1 else name for name, count in runs]
    if len(texts) > 4:
        texts = [*texts[:2], "…", texts[-1]]
    return shortened(" → ".join(texts), 44)


def _box_look(box: Box, color: str, compared: bool) -> dict[str, str]:
    """Shape, colour and edge: of what kind it is, and whether it is unusual."""
    its, fell = box.facts, box.facts.fallback
    marked = bool(box.moved_from or box.strayed)
    blank = compared and not marked or its.kind == "input"
    corners = {"merge": "diagonals", "input": "filled", "weights": "filled"}
    looks = ["filled", corners.get(its.kind, "rounded"), *(["dashed"] if fell else [])]
    tip = [style.ranged(box.group.members, 120)]
    tip += [f"{its.kind} on {its.device}, reason: {its.reason}"]
    tip += [*([fell.reason] if fell else []), *box.strayed]
    return {
        "shape": "cylinder" if its.kind == "weights" else "box",
        "style": ",".join(looks),
        "fillcolor": "white" if blank else style.mixed(color, "#ffffff", 0.72),
        "color": ALARM if fell or marked else color,
        "penwidth": "2.6" if marked else "1.8" if fell else "1.2",
        "peripheries": "2" if its.is_output else "1",
        "tooltip": style.tip(*tip),
    }


def _link_look(
    link: DiagramEdge, shown: Diagram, source: Box, target: Box, color: str
) -> dict[str, str]:
    """Wide between devices, thin within one, with what it moves if there is room."""
    look = {"dir": "both" if link.both_ways or link.weights else "forward"}
    said = f"{format_bytes(link.bytes)} on one device"
    if link.moved_bytes:
        said = _there_and_back(link.sent_bytes, link.returned_bytes)
        look["color"] = QUIET if link.both_ways else style.mixed(color, "#000000", 0.1)
    elif link.crosses:
        said = "reads a copy that is already on this device"
        look["style"] = "dashed"
    if link.weights:
        said = f"weights, {said}"
        look |= {"style": "dotted", "penwidth": "1.6"}
    elif link.moved_bytes:
        # A quarter of the bytes is half of the width.
        heaviest = max(one.moved_bytes for one in shown.drawn)
        most = 3.0 if link.both_ways else 5.0
        pen = max(1.4, most * math.sqrt(link.moved_bytes / heaviest))
        look["penwidth"] = f"{pen:.1f}"
        if shown.labelled:
            both = f"{format_bytes(link.moved_bytes)} both ways"
            line = Line(both if link.both_ways else said, 8.5, bold=True)
            look["xlabel"] = style.html_label([line], back="#ffffffd0")
    return look | {"tooltip": style.tip(f"{source.name} → {target.name}", said)}


def _there_and_back(sent: int, returned: int) -> str:
    if sent == returned:
        return f"{format_bytes(sent)} each way"
    words = [format_bytes(sent)] if sent else []
    return " + ".join(words + [f"{format_bytes(returned)} back"] * (returned > 0))


def _header_rows(
    plan: Plan, shown: Diagram, width: float, other: Plan | None, audit: Audit | None
) -> Iterator[Line]:
    moved, count = format_bytes(plan.transfer_bytes), len(plan.transfers)
    words = f"{moved} between devices in {counted(count, 'transfer')}"
    runs = textwrap.shorten(str(plan.execution), 60, placeholder=" ...")
    totals = [f"batch {plan.batch}", " ".join(facts.objective_text(plan)), runs]
    totals.append(words if count else "no transfers")
    totals += [counted(len(plan.fallbacks), "fallback")] * bool(plan.fallbacks)
    fits, verdict = not plan.verdict.overfull, plan.verdict.headline
    yield Line(shortened(plan.graph.name, int(width / 9)), 15, bold=True)
    yield Line(" · ".join(filter(None, totals)), 11)
    yield Line(shortened(verdict, int(width / 5)), 11, INK if fits else ALARM, not fits)
    yield Line(facts.bottleneck_text(plan), 11)
    if audit is not None:
        color = INK if audit.ok else ALARM
        yield Line(f"audit: {facts.audit_text(audit)}", 11, color, bold=True)
    if other is not None:
        parts, step, *_ = str(other.compare(plan)).splitlines()
        yield Line(f"{parts.rstrip('.')}, {' '.join(step.split())}", 11, bold=True)
    used = {device for devices in shown.lanes.values() for device in devices}
    if unused := [name for name in plan.cluster.names if name not in used]:
        yield Line(f"not used: {shortened(', '.join(unused), 90)}", 9, QUIET)
    if (drawn := len(shown.drawn)) < (links := len(shown.links)):
        yield Line(f"the {drawn} largest of {links} lines are drawn", 9, QUIET)
    for text in (" ", *_legend(shown, width / 4.6, compared=other is not None)):
        yield Line(text, 9, QUIET)


def _legend(shown: Diagram, columns: float, *, compared: bool) -> list[str]:
    """Explain the signs that this picture holds, and no others."""
    boxes, links = shown.boxes, shown.drawn
    where = "bytes per step" if shown.labelled else "in, out: bytes per step"
    kinds = {box.facts.kind for box in boxes}
    signs = {
        f"▬▬ between devices ({where})": any(x.moved_bytes for x in links),
        "◄► both ways": any(x.both_ways for x in links),
        "── within a device": any(not x.crosses for x in links),
        "- - - reuses a copy": any(x.crosses and not x.moved_bytes for x in links),
        "···· weights, and gradients back": any(x.weights for x in links),
        "shares: weights stored once": any(box.shares for box in boxes),
        "cylinder: weights of towers": "weights" in kinds,
        "cut corners: merge": "merge" in kinds,
        "square corners: input": "input" in kinds,
        "double edge: output": any(box.facts.is_output for box in boxes),
        "red dashed edge: fallback": any(box.facts.fallback for box in boxes),
        "×n: n equal branches, or runs": any(box.group.times > 1 for box in boxes),
        "thick red edge: ran elsewhere": any(box.strayed for box in boxes),
        "thick red edge: moved": compared,
    }
    held = (sign.replace(" ", "\u00a0") for sign, holds in signs.items() if holds)
    rows = textwrap.wrap("\u00a0\u00a0\u00a0 ".join(held), int(columns))
    return [row.replace("\u00a0", " ") for row in rows]


def _place_boxes(
    sizes: Mapping[str, tuple[float, float]],
    lanes: Mapping[str, Sequence[str]],
    links: Sequence[tuple[str, str]],
) -> tuple[dict[str, Rect], dict[str, Rect], dict[str, Rect]]:
    """Lanes of equal columns below one another; nothing overlaps.

    `sizes` has width and height of boxes, in running order, and of titles; lanes hold
    their title first, and are neighbours if of one host. Returned are rectangles of
    boxes and titles, of lanes, and of hosts if there are any.
    """
    titles = dict.fromkeys((names[0] for names in lanes.values()), -1)
    column_of = titles | _columns([name for name in sizes if name not in titles], links)
    members = grouped(column_of, column_of.__getitem__)
    widths = {column: max(sizes[n][0] for n in its) for column, its in members.items()}
    begin, right = {}, _PADDING
    for column, width in sorted(widths.items()):
        begin[column] = right
        right += width + (2 * _PADDING if column < 0 else _COLUMN)
    right += _PADDING - _COLUMN

    def height(stack: Sequence[str]) -> float:
        return sum(sizes[name][1] + _STACK for name in stack) - _STACK

    placed, frames, hosts = dict[str, Rect](), dict[str, Rect](), dict[str, Rect]()
    y = 0.0
    for host, group in groupby(lanes, key=lambda lane: lane.rpartition("/")[0]):
        y += _HOST + _PADDING if y else 0.0
        begun = y
        for lane in group:
            stacks = grouped(lanes[lane], column_of.__getitem__)
            tall = max(map(height, stacks.values())) + 2 * _PADDING
            frames[lane] = 0.0, y, right, y + tall
            for column, stack in stacks.items():
                top = y + (tall - height(stack)) / 2
                for name in stack:
                    wide, high = sizes[name]
                    room = widths[column] - wide if column >= 0 else 0.0
                    x = begin[column] + room / 2
                    placed[name] = x, top, x + wide, top + high
                    top += high + _STACK
            y += tall + _LANE
        if any("/" in lane for lane in lanes):
            bottom = y - _LANE + _PADDING
            hosts[host] = -_PADDING, begun - _HOST, right + _PADDING, bottom
    return placed, frames, hosts


def _columns(boxes: Sequence[str], links: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The depth of each box along links in running order; several share a column."""
    number = {box: at for at, box in enumerate(boxes)}
    depth = dict.fromkeys(boxes, 0)
    for source, target in sorted(links, key=lambda ends: number[ends[0]]):
        if number[source] < number[target]:
            depth[target] = max(depth[target], depth[source] + 1)
    deepest = max(depth.values(), default=0) + 1
    return {box: at * min(_COLUMNS, deepest) // deepest for box, at in depth.items()}
