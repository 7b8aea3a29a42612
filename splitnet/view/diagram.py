"""The placement diagram of a plan: boxes, a frame per device, and DOT text.

The same plan gives the same bytes. Graphviz places everything, labels included.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.errors import SplitnetError
from splitnet.core.graph import Call
from splitnet.core.plan import Plan
from splitnet.view.edges import (
    MOST_LABELS,
    THIN,
    BoxLink,
    SharedLink,
    add_links,
    add_shared,
    links_of,
    shared_links,
)
from splitnet.view.facts import (
    PartFacts,
    findings_by_part,
    flows_of,
    part_facts,
    sharings_of,
)
from splitnet.view.folding import Fold, fold
from splitnet.view.legend import (
    Box,
    box_label,
    box_tooltip,
    device_label,
    header_label,
)
from splitnet.view.style import (
    ALARM,
    FONT,
    INK,
    QUIET,
    clean,
    colors_of,
    counted,
    label_text,
    mixed,
    shortened,
)

__all__ = ["Diagram", "diagram_of", "dot_of"]

# All other kinds of parts are boxes with round corners.
_SHAPE_OF = {"merge": "hexagon", "weights": "cylinder", "input": "box"}


@dataclass(frozen=True, slots=True)
class Diagram:
    """Everything that a placement diagram shows, without its layout."""

    boxes: tuple[Box, ...]
    links: tuple[BoxLink, ...]
    shared: tuple[SharedLink, ...]


def diagram_of(
    plan: Plan,
    *,
    other: Plan | None = None,
    calls: str | None = None,
    audit: Audit | None = None,
    most: int = 24,
) -> Diagram:
    """Work out the boxes and links of a plan's diagram; at most about `most` boxes.

    Raises:
        SplitnetError: `calls` names no part of the plan.
    """
    facts = part_facts(plan)
    if calls is not None and calls not in facts:
        raise SplitnetError(
            f"cannot open {calls!r}: the plan of {plan.graph.name!r} has no such part. "
            f"It has: {', '.join(list(facts)[:12])}."
        )
    old = dict(other.device_of) if other is not None else {}
    strayed = findings_by_part(audit)
    flows = flows_of(plan)
    groups = fold(
        _running_order(plan, facts),
        [(flow.source, flow.target) for flow in flows],
        {
            name: (*_place(one, old), name == calls, name in strayed)
            for name, one in facts.items()
        },
        {name: _look(one) for name, one in facts.items()},
        most=most,
    )
    shares = _shares(plan)
    boxes: list[Box] = []
    box_of: dict[str, str] = {}
    for group in groups:
        members = [facts[name] for name in group.members]
        if group.members == (calls,):
            boxes += _opened(plan, members[0], len(boxes), most, box_of)
            continue
        was = old.get(members[0].name, members[0].device)
        box = Box(
            id=f"box-{len(boxes)}",
            group=group,
            facts=_summed(group, members),
            reasons=_unique(one.reason for one in members),
            moved_from="" if was == members[0].device else was,
            shares=_unique(n for name in group.members for n in shares.get(name, ())),
            strayed=_unique(s for name in group.members for s in strayed.get(name, ())),
        )
        boxes.append(box)
        for name in group.members:
            box_of.update((call.name, box.id) for call in plan.graph.calls_of[name])
    links = links_of(plan, flows, box_of, calls)
    crossing = [link for link in links if link.crosses and not link.is_reuse]
    if len(crossing) > MOST_LABELS or any(box.group.column for box in boxes):
        boxes = [replace(box, moved=_moved(box.id, crossing)) for box in boxes]
    return Diagram(tuple(boxes), tuple(links), tuple(shared_links(plan, box_of)))


def _moved(box: str, crossing: Sequence[BoxLink]) -> tuple[int, int]:
    """Bytes that a box receives from and sends to other devices in a step."""
    received = sent = 0
    for link in crossing:
        if box == link.target:
            received, sent = received + link.sent_bytes, sent + link.returned_bytes
        elif box == link.source:
            received, sent = received + link.returned_bytes, sent + link.sent_bytes
    return received, sent


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _running_order(plan: Plan, names: Iterable[str]) -> list[str]:
    """Parts by their first call: a file may list them in any order."""
    first: dict[str, int] = {}
    for number, call in enumerate(plan.graph.calls):
        first.setdefault(call.part, number)
    return sorted(names, key=lambda name: first.get(name, -1))


def _place(one: PartFacts, old: Mapping[str, str]) -> tuple[Hashable, ...]:
    """What parts must have in common to be drawn in one box."""
    return (
        one.device,
        one.kind == "input",
        (one.fallback.requested, one.fallback.reason) if one.fallback else None,
        old.get(one.name, one.device),
    )


def _look(one: PartFacts) -> Hashable:
    """What parts must have in common to be counted as equal."""
    return (one.kind, one.layers, one.shapes, one.weight_bytes > 0, one.is_output)


def _shares(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """The layers that each part shares with another; towers have edges instead."""
    found: dict[str, dict[str, None]] = {}
    for sharing in sharings_of(plan.graph):
        if plan.graph.part[sharing.home].kind != "weights":
            for part in (sharing.home, *sharing.others):
                found.setdefault(part, {}).update(dict.fromkeys(sharing.layers))
    return {part: tuple(layers) for part, layers in found.items()}


def _summed(group: Fold, members: Sequence[PartFacts]) -> PartFacts:
    """The facts of a group: sums, and the layers of one repetition."""
    first, last = members[0], members[-1]
    seconds: dict[str, float] = {}
    for one in members:
        for phase, spent in one.seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    return replace(
        first,
        kind=first.kind if len({one.kind for one in members}) == 1 else "branch",
        layers=tuple(n for one in members[: group.period] for n in one.layers),
        shapes=last.shapes if group.times else (),
        weight_bytes=sum(one.weight_bytes for one in members),
        activation_bytes=sum(one.activation_bytes for one in members),
        seconds=seconds,
        calls=sum(one.calls for one in members),
        is_output=any(one.is_output for one in members),
        fetched_bytes=sum(one.fetched_bytes for one in members),
        where=first.where if len(members) == 1 else "",
    )


def _opened(
    plan: Plan, part: PartFacts, first: int, most: int, box_of: dict[str, str]
) -> list[Box]:
    """A box per call, or per folded calls, of one part; calls have no times."""
    graph = plan.graph
    calls = {call.name: call for call in graph.calls_of[part.name]}
    groups = fold(
        list(calls),
        [(t.source, t.target) for t in graph.tensors if t.source in calls],
        dict.fromkeys(calls, 0),
        {name: (call.kind, call.output_shapes) for name, call in calls.items()},
        most=most,
    )
    boxes: list[Box] = []
    for group in groups:
        members = [_call_facts(plan, part, calls[name]) for name in group.members]
        box_id = f"box-{first + len(boxes)}"
        facts = _summed(group, members)
        boxes.append(Box(box_id, group, facts, (part.reason,), inside=part.name))
        box_of.update(dict.fromkeys(group.members, box_id))
    return boxes


def _call_facts(plan: Plan, part: PartFacts, call: Call) -> PartFacts:
    graph = plan.graph
    owner = {w: c.name for c in reversed(graph.calls_of[part.name]) for w in c.weights}
    own = [w for w in call.weights if w not in part.borrowed and owner[w] == call.name]
    return replace(
        part,
        name=call.name,
        kind="call",
        layers=(call.kind,),
        shapes=call.output_shapes,
        weight_bytes=sum(graph.weight[w].bytes for w in own),
        activation_bytes=call.activation_bytes,
        seconds={},
        calls=1,
        fallback=None,
        fetched_bytes=0,
        is_output=call.name in graph.outputs,
    )


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
        audit: what was seen when the plan ran; what ran elsewhere is marked.
        most: about how many boxes to draw; more parts are folded where they repeat.
        headed: with title, totals and verdict; an HTML page has its own.

    Raises:
        SplitnetError: `calls` names no part.
    """
    shown = diagram_of(plan, other=other, calls=calls, audit=audit, most=most)
    header = header_label(
        plan, shown.boxes, shown.links, other=other, audit=audit, headed=headed
    )
    dot = graphviz.Digraph(
        name="placement",
        graph_attr=_graph_attributes(plan, shown, header),
        node_attr={
            "fontname": FONT,
            "fontsize": "10",
            "fontcolor": INK,
            "shape": "box",
            "style": "filled,rounded",
            "margin": "0.1,0.05",
        },
        edge_attr={
            "fontname": FONT,
            "fontsize": "8.5",
            "fontcolor": INK,
            "color": THIN,
            "arrowsize": "0.6",
        },
    )
    colors = colors_of(device.name for device in plan.cluster)
    _add_devices(dot, plan, shown, colors, compared=other is not None)
    _add_columns(dot, shown)
    shade = {
        box.id: mixed(colors.get(box.facts.device, QUIET), "#000000", 0.1)
        for box in shown.boxes
    }
    names = {box.id: box.name for box in shown.boxes}
    labelled = not any(any(box.moved) for box in shown.boxes)
    add_links(dot, shown.links, shade, names, labelled=labelled)
    add_shared(dot, shown.shared, shade)
    return str(dot.source)


def _graph_attributes(plan: Plan, shown: Diagram, header: str) -> dict[str, str]:
    return {
        "rankdir": _direction(shown),
        "label": header,
        "labelloc": "t",
        "labeljust": "l",
        "fontname": FONT,
        "fontsize": "11",
        "fontcolor": INK,
        "bgcolor": "white",
        "pad": "0.25",
        "nodesep": "0.22",
        "ranksep": "0.5",
        "newrank": "true",
        "outputorder": "edgesfirst",  # boxes cover lines, not the reverse
        "tooltip": graphviz.escape(clean(plan.graph.name)),
    }


def _direction(shown: Diagram) -> str:
    """Left to right, unless that would be far too wide."""
    if any(box.group.column for box in shown.boxes):
        return "LR"
    depth = {box.id: 0 for box in shown.boxes}
    order = {box.id: number for number, box in enumerate(shown.boxes)}
    for link in sorted(shown.links, key=lambda link: order[link.source]):
        if order[link.source] < order[link.target]:
            depth[link.target] = max(depth[link.target], depth[link.source] + 1)
    places = list(depth.values())
    ranks = max(places, default=0) + 1
    widest = max((places.count(rank) for rank in range(ranks)), default=1)
    return "TB" if ranks * 270 > 8 * (widest * 75 + 150) else "LR"


def _add_columns(dot: graphviz.Digraph, shown: Diagram) -> None:
    """Put boxes that were folded by depth below one another, column by column."""
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


def _add_devices(
    dot: graphviz.Digraph,
    plan: Plan,
    shown: Diagram,
    colors: Mapping[str, str],
    *,
    compared: bool,
) -> None:
    """A lane per device, begun by its title; with several hosts, a frame per host.

    Titles are nodes, as edges keep clear of nodes, and stand before all boxes.
    """
    boxes_on: dict[str, list[Box]] = {device.name: [] for device in plan.cluster}
    for box in shown.boxes:
        boxes_on.setdefault(box.facts.device, []).append(box)
    titles = {device: f"title-{n}" for n, device in enumerate(boxes_on)}
    used = [device for device, boxes in boxes_on.items() if boxes]
    # From left to right Graphviz stacks from the bottom; the first belongs on top.
    order = -1 if _direction(shown) == "LR" else 1
    used = used[::order]
    hosts = dict.fromkeys(device.rpartition("/")[0] for device in used)
    for number, host in enumerate(hosts):
        with dot.subgraph(name=f"cluster_host_{number}") as frame:
            _frame_host(frame, host if len(hosts) > 1 else None)
            for device in used:
                if device.rpartition("/")[0] != host:
                    continue
                color = colors.get(device, QUIET)
                title = titles[device]
                with frame.subgraph(name=f"cluster_{title}") as lane:
                    _frame_device(lane, device, color)
                    lane.node(
                        title,
                        label=device_label(plan, device, color),
                        shape="plain",
                        style="",
                        tooltip="",
                    )
                    _add_boxes(
                        lane, boxes_on[device][::order], color, compared=compared
                    )
    with dot.subgraph(name="titles", graph_attr={"rank": "same"}) as row:
        for one, other in zip(used, used[1:], strict=False):
            row.edge(titles[one], titles[other], style="invis")
    fed = {link.target for link in shown.links} | {x.other for x in shown.shared}
    for device in used:
        starts = [box for box in boxes_on[device] if box.id not in fed]
        for box in starts or boxes_on[device][:1]:
            dot.edge(titles[device], box.id, style="invis")


def _frame_host(frame: graphviz.Digraph, host: str | None) -> None:
    if host is None:
        frame.attr(peripheries="0", label="", margin="0")
        return
    frame.attr(
        label=f"<{label_text(host or 'this machine')}>",
        style="rounded,dashed",
        color=QUIET,
        margin="12",
    )


def _frame_device(frame: graphviz.Digraph, device: str, color: str) -> None:
    frame.attr(
        label="",
        peripheries="1",
        style="filled,rounded",
        fillcolor=mixed(color, "#ffffff", 0.9),
        color=color,
        penwidth="1.4",
        margin="10",
        tooltip=graphviz.escape(clean(device)),
    )


def _add_boxes(
    frame: graphviz.Digraph, boxes: Sequence[Box], color: str, *, compared: bool
) -> None:
    """The boxes of a device; calls of an opened part have a frame of their own."""
    opened = [box for box in boxes if box.inside]
    for box in boxes:
        if not box.inside:
            _add_box(frame, box, color, compared=compared)
    if not opened:
        return
    with frame.subgraph(name="cluster_opened") as part:
        calls = counted(sum(box.facts.calls for box in opened), "call")
        part.attr(
            label=graphviz.escape(f"{shortened(opened[0].inside, 60)}: {calls}"),
            labelloc="t",
            style="rounded,filled",
            fillcolor="white",
            color=color,
            penwidth="1",
            fontsize="10",
        )
        for box in opened:
            _add_box(part, box, color, compared=compared)


def _add_box(frame: graphviz.Digraph, box: Box, color: str, *, compared: bool) -> None:
    facts = box.facts
    marked = bool(box.moved_from or box.strayed)
    blank = compared and not marked or facts.kind == "input"
    style = ["filled"] if facts.kind in _SHAPE_OF else ["filled", "rounded"]
    frame.node(
        box.id,
        label=box_label(box),
        tooltip=graphviz.escape(box_tooltip(box)),
        id=box.id,
        shape=_SHAPE_OF.get(facts.kind, "box"),
        style=",".join([*style, "dashed"] if facts.fallback else style),
        fillcolor="white" if blank else mixed(color, "#ffffff", 0.72),
        color=ALARM if facts.fallback or marked else color,
        penwidth="2.6" if marked else "1.8" if facts.fallback else "1.2",
        peripheries="2" if facts.is_output else "1",
    )
