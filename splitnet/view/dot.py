"""A placement diagram as DOT text with positions.

The same plan gives the same bytes. Each device is a lane, each depth of the net a
column. `neato -n` draws the text: Graphviz routes the lines around boxes
and places their labels.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Plan
from splitnet.view.diagram import Box, Diagram, DiagramEdge, diagram_of
from splitnet.view.facts import bottleneck_text, objective_text, verdict_lines
from splitnet.view.layout import Layout, Rect, place_boxes
from splitnet.view.style import (
    ALARM,
    FONT,
    INK,
    POINTS_PER_INCH,
    QUIET,
    THIN,
    Line,
    Row,
    clean,
    colors_of,
    counted,
    html_label,
    mixed,
    percent,
    position,
    ranged,
    shape_text,
    shortened,
    size_of,
    text_node,
)


def dot_of(plan: Plan, *, other: Plan | None = None, audit: Audit | None = None) -> str:
    """Write a plan's placement diagram as DOT text with positions.

    What moved since `other`, an earlier plan of the same net, is marked, and what ran
    elsewhere according to `audit`.
    """
    shown = diagram_of(plan, other=other, audit=audit)
    colors = colors_of(device.name for device in plan.cluster)
    titles = {f"title-{number}": lane for number, lane in enumerate(shown.lanes)}
    rows = {
        title: _lane_rows(plan, shown.lanes[lane], colors[lane])
        for title, lane in titles.items()
    }
    rows |= {box.id: _box_rows(box, shown) for box in shown.boxes}
    placed = _placed(shown, titles, rows)
    dot = graphviz.Digraph(
        name="placement",
        graph_attr={
            "splines": "true",
            "esep": "+4",
            "outputorder": "edgesfirst",  # boxes cover lines, not the reverse
            "forcelabels": "false",  # a label without room is left out
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
    hosts = placed.hosts
    for number, (host, rect) in enumerate(hosts.items()):
        name = f"host-{number}"
        frame = _frame(name, rect, style="rounded,dashed", color=QUIET)
        words = [(Line(clean(host) or "this machine", 11, INK),)]
        text_node(frame, name, words, rect.left + 14, rect.top + 4)
        dot.subgraph(frame)
    for title, lane in titles.items():
        frame = _frame(
            title.replace("title", "lane"),
            placed.lanes[lane],
            style="filled,rounded",
            fillcolor=mixed(colors[lane], "#ffffff", 0.9),
            color=colors[lane],
            tooltip=graphviz.escape(clean(lane)),
        )
        corner = placed.boxes[title]
        text_node(frame, title, rows[title], corner.left, corner.top)
        for box in (box for box in shown.boxes if box.lane == lane):
            look = _box_look(box, colors[box.facts.device], compared=other is not None)
            rect = placed.boxes[box.id]
            frame.node(
                box.id,
                label=html_label(rows[box.id]),
                tooltip=graphviz.escape(_box_tooltip(box)),
                id=box.id,
                width=f"{(rect.right - rect.left) / POINTS_PER_INCH:.3f}",
                height=f"{(rect.bottom - rect.top) / POINTS_PER_INCH:.3f}",
                pos=position(*rect.middle),
                **look,
            )
        dot.subgraph(frame)
    _add_links(dot, shown, colors)
    header = _header_rows(plan, shown, max(placed.whole.right, 620), other, audit)
    top = Rect.around([placed.whole, *hosts.values()]).top
    text_node(dot, "header", header, 0, top - size_of(header)[1] - 14)
    return str(dot.source)


def _placed(
    shown: Diagram, titles: Mapping[str, str], rows: Mapping[str, Sequence[Row]]
) -> Layout:
    """Boxes in their lanes; inputs by the lanes that read them: fewer lines cross."""
    sizes = {name: size_of(its) for name, its in rows.items()}
    for box in shown.boxes:
        wide, tall = sizes[box.id]
        wide += 26 if box.facts.kind == "merge" else 18
        sizes[box.id] = wide, tall + (22 if box.facts.kind == "weights" else 10)
    at = {lane: number for number, lane in enumerate(shown.lanes)}
    lane_of = {box.id: at[box.lane] for box in shown.boxes}
    reads: dict[str, list[int]] = {}
    for link in shown.drawn:
        reads.setdefault(link.source, []).append(lane_of[link.target])

    def reader(box: Box) -> float:
        its = reads.get(box.id, [0])
        return sum(its) / len(its) if box.facts.kind == "input" else len(at)

    lanes = {lane: [title] for title, lane in titles.items()}
    for box in sorted(shown.boxes, key=reader):
        lanes[box.lane].append(box.id)
    times = {box.id: box.group.times for box in shown.boxes}
    links = [
        (link.source, link.target)
        for link in shown.drawn
        if not link.weights
        and (not link.both_ways or times[link.source] == times[link.target] > 1)
    ]
    return place_boxes(sizes, lanes, links)


def _frame(name: str, rect: Rect, **look: str) -> graphviz.Digraph:
    corners = rect.left, -rect.bottom, rect.right, -rect.top
    box = ",".join(f"{at:.1f}" for at in corners)
    frame = graphviz.Digraph(name=f"cluster_{name}")
    frame.attr(bb=box, penwidth="1.4", **look)
    return frame


def _box_look(box: Box, color: str, *, compared: bool) -> dict[str, str]:
    """Shape, colour and edge: of what kind it is, and whether it is unusual."""
    facts = box.facts
    marked = bool(box.moved_from or box.strayed)
    blank = compared and not marked or facts.kind == "input"
    corners = {"merge": "diagonals", "input": "filled", "weights": "filled"}
    style = ["filled", corners.get(facts.kind, "rounded")]
    return {
        "shape": "cylinder" if facts.kind == "weights" else "box",
        "style": ",".join([*style, "dashed"] if facts.fallback else style),
        "fillcolor": "white" if blank else mixed(color, "#ffffff", 0.72),
        "color": ALARM if facts.fallback or marked else color,
        "penwidth": "2.6" if marked else "1.8" if facts.fallback else "1.2",
        "peripheries": "2" if facts.is_output else "1",
    }


def _add_links(
    dot: graphviz.Digraph, shown: Diagram, colors: Mapping[str, str]
) -> None:
    """A line per link, wide between devices, thin within one.

    Those between devices say what they move, unless there are too many to label.
    """
    box = {box.id: box for box in shown.boxes}
    heaviest = max((link.moved_bytes for link in shown.drawn), default=0)
    for number, link in enumerate(shown.drawn):
        names = box[link.source].name, box[link.target].name
        look = {
            "id": f"link-{number}",
            "tooltip": graphviz.escape(_link_tooltip(link, *names)),
            "dir": "both" if link.both_ways or link.weights else "forward",
        }
        if link.moved_bytes:
            color = mixed(colors[box[link.source].facts.device], "#000000", 0.1)
            look["color"] = QUIET if link.both_ways else color
        if link.weights:
            look |= {"style": "dotted", "penwidth": "1.6"}
        elif link.moved_bytes:
            # A quarter of the bytes is half of the width.
            most = 3.0 if link.both_ways else 5.0
            pen = max(1.4, most * math.sqrt(link.moved_bytes / heaviest))
            look["penwidth"] = f"{pen:.1f}"
            if shown.labelled:
                text = _there_and_back(link.sent_bytes, link.returned_bytes)
                if link.both_ways:
                    text = f"{format_bytes(link.moved_bytes)} both ways"
                label = html_label([(Line(text, 8.5, bold=True),)], back="#ffffffd0")
                look["xlabel"] = label
        elif link.reuses:
            look["style"] = "dashed"
        dot.edge(link.source, link.target, **look)


def _there_and_back(sent: int, returned: int) -> str:
    if sent == returned:
        return f"{format_bytes(sent)} each way"
    words = [format_bytes(sent)] if sent else []
    return " + ".join(words + [f"{format_bytes(returned)} back"] * (returned > 0))


def _header_rows(
    plan: Plan, shown: Diagram, width: float, other: Plan | None, audit: Audit | None
) -> list[Row]:
    """The title, the totals and the verdict, then the legend."""
    moved = format_bytes(plan.transfer_bytes)
    transfers = counted(len(plan.transfers), "transfer")
    facts = [
        f"batch {plan.batch}",
        " ".join(objective_text(plan)),
        f"{moved} between devices in {transfers}" if plan.transfers else "no transfers",
    ]
    if plan.fallbacks:
        facts.append(counted(len(plan.fallbacks), "fallback"))
    fits = plan.verdict is None or not plan.verdict.overfull
    verdict = shortened(verdict_lines(plan)[0], int(width / 5))
    lines = [
        Line(shortened(plan.graph.name, int(width / 9)), 15, bold=True),
        Line(" · ".join(facts), 11),
        Line(verdict, 11, INK if fits else ALARM, bold=not fits),
        Line(bottleneck_text(plan), 11),
    ]
    if audit is not None:
        found = counted(len(audit.findings), "finding")
        said = "all as planned" if audit.ok else f"{found} not as planned"
        lines.append(Line(f"audit: {said}", 11, INK if audit.ok else ALARM, bold=True))
    if other is not None:
        moved, step, *_ = str(other.compare(plan)).splitlines()
        words = f"{moved.rstrip('.')}, {' '.join(step.split())}"
        lines.append(Line(words, 11, bold=True))
    used = {device for devices in shown.lanes.values() for device in devices}
    unused = ", ".join(d.name for d in plan.cluster if d.name not in used)
    if unused:
        lines.append(Line(f"not used: {shortened(unused, 90)}", 9, QUIET))
    if len(shown.drawn) < len(shown.links):
        drawn = f"the {len(shown.drawn)} largest of {len(shown.links)} lines are drawn"
        lines.append(Line(drawn, 9, QUIET))
    rows = [(line,) for line in lines]
    return rows + _legend(shown, width, compared=other is not None)


def _legend(shown: Diagram, width: float, *, compared: bool) -> list[Row]:
    """Explain the signs that this picture holds, and no others."""
    boxes, links = shown.boxes, shown.drawn
    where = "bytes per step" if shown.labelled else "in, out: bytes per step"
    kinds = {box.facts.kind for box in boxes}
    signs = [
        (any(x.moved_bytes for x in links), "▬▬", INK, f"between devices ({where})"),
        (any(x.both_ways for x in links), "◄►", INK, "both ways"),
        (any(not x.crosses for x in links), "──", THIN, "within a device"),
        (any(x.reuses for x in links), "- - -", THIN, "reuses a copy"),
        (any(x.weights for x in links), "····", INK, "weights, and gradients back"),
        (any(b.shares for b in boxes), "shares", INK, "weights stored once"),
        ("weights" in kinds, "cylinder", INK, "weights of towers"),
        ("merge" in kinds, "cut corners", INK, "merge"),
        ("input" in kinds, "square corners", INK, "input"),
        (any(b.facts.is_output for b in boxes), "double edge", INK, "output"),
        (any(b.facts.fallback for b in boxes), "dashed edge", ALARM, "fallback"),
        (any(b.group.times > 1 for b in boxes), "×n", INK, "n equal branches"),
        (any(b.strayed for b in boxes), "thick edge", ALARM, "ran elsewhere"),
        (compared, "thick edge", ALARM, "moved"),
    ]
    rows: list[Row] = [(Line(" ", 4),), ()]
    for holds, sign, color, text in signs:
        entry = Line(sign, 9, color, bold=True), Line(f"  {text}      ", 9, QUIET)
        if holds and size_of([(*rows[-1], *entry)])[0] > width:
            rows.append(())
        rows[-1] += entry if holds else ()
    return [row for row in rows if row]


def _lane_rows(plan: Plan, devices: Sequence[str], color: str) -> list[Row]:
    """A lane's device, its memory peak against its limit, its utilization.

    Of several devices the highest figures.
    """
    names = [device.rpartition("/")[2] for device in devices]
    strong = mixed(color, "#000000", 0.25)
    rows: list[Row] = [(Line(clean(ranged(names, 30)), 13, strong, bold=True),)]
    many = len(devices) > 1
    if many:
        rows.append((Line(f"{len(devices)} devices, each at most", 9, QUIET),))
    fullest = plan.cluster[max(devices, key=lambda d: plan.memory[d].total)]
    held = plan.memory[fullest.name].total
    words = f"{format_bytes(held)} of {format_bytes(fullest.memory_bytes)}"
    over = held > fullest.memory_bytes
    words += ": too much" if over else ""
    rows.append((Line(words, 9, ALARM if over else QUIET, bold=over),))
    if fullest.stand_in:
        target = "CPUs" if many else fullest.target.removeprefix("/device:")
        rows.append((Line(f"stand-in on {target}", 9, QUIET),))
    used = max(plan.timeline.utilization[device] for device in devices)
    rows.append((Line(f"utilization {percent(used)}", 9, QUIET),))
    return rows


def _box_rows(box: Box, shown: Diagram) -> list[Row]:
    """Name, layers, shape, memory and time; what is unusual in red."""
    members, facts = box.group.members, box.facts
    many = len(members) > 1
    times = f" ×{box.group.times}" if many and box.group.times else ""
    lines = [Line(box.name + times, 10, bold=True)]
    small: list[str] = []
    if many and not box.group.times:
        small.append(counted(len(members), "branch"))
    if not box.group.times and len(members) <= 6 and max(map(len, members)) <= 13:
        rows_of_three = range(0, len(members), 3)
        small += [", ".join(map(clean, members[at : at + 3])) for at in rows_of_three]
    if facts.layers and facts.kind != "input":
        small.append(layers_text(facts.layers))
    lines += [Line(text, 8.5, QUIET) for text in small]
    if shapes := list(dict.fromkeys(map(shape_text, facts.shapes))):
        more = f" + {len(shapes) - 2} more" if len(shapes) > 2 else ""
        lines.append(Line(shortened(", ".join(shapes[:2]), 40) + more))
    costs = []
    if facts.total_bytes and facts.kind != "input":
        costs.append(format_bytes(facts.total_bytes))
    if facts.total_seconds:
        costs.append(format_seconds(facts.total_seconds))
    if costs:
        lines.append(Line(" · ".join(costs) + (" in total" if many else "")))
    ways = zip(("in", "out"), shown.moved(box, weights=False), strict=True)
    moved = [f"{way} {format_bytes(count)}" for way, count in ways if count]
    if moved and not shown.labelled:
        lines.append(Line(" · ".join(moved)))
    if box.shares:
        shared = f"shares {shortened(', '.join(box.shares), 30)}"
        lines.append(Line(shared, 8.5, QUIET))
    read = shown.moved(box, weights=True)
    if any(read):
        lines.append(Line(f"weights {_there_and_back(*read)}", 8.5, QUIET))
    alarms = [f"requested {facts.fallback.requested}"] if facts.fallback else []
    alarms += [f"was on {box.moved_from}"] if box.moved_from else []
    alarms += box.strayed[:3]
    if len(box.strayed) > 3:
        alarms.append(f"and {len(box.strayed) - 3} more")
    lines += [Line(shortened(text, 34), 9, ALARM, bold=True) for text in alarms]
    return [(line,) for line in lines]


def _box_tooltip(box: Box) -> str:
    """Names in full, the reason, and what a fallback or an audit says."""
    lines = [
        ranged(box.group.members, 120),
        f"{box.facts.kind} on {box.facts.device}, reason: {', '.join(box.reasons)}",
    ]
    lines += [box.facts.fallback.reason] if box.facts.fallback else []
    return "\n".join(map(clean, [*lines, *box.strayed]))


def _link_tooltip(link: DiagramEdge, source: str, target: str) -> str:
    """The ends, and what is copied: many lines have no room for a label."""
    said = f"{format_bytes(link.bytes)} on one device"
    if link.moved_bytes:
        said = _there_and_back(link.sent_bytes, link.returned_bytes)
        said = f"weights, {said}" if link.weights else said
    elif link.reuses:
        said = "reads a copy that is already on this device"
    return f"{source} → {target}\n{said}"


def layers_text(layers: Sequence[str]) -> str:
    """The kinds of layers in a row, equal neighbours counted."""
    runs = [(name, len(list(its))) for name, its in groupby(layers)]
    texts = [f"{count} {name}" if count > 1 else name for name, count in runs]
    if len(texts) > 4:
        texts = [*texts[:2], "…", texts[-1]]
    return shortened(" → ".join(texts), 44)
