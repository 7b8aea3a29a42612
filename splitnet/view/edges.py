"""Edges of a placement diagram: what passes between boxes, as values and as DOT."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import graphviz

from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Plan
from splitnet.view.facts import PartFlow, Sharing, known_shape, sharings_of
from splitnet.view.style import (
    INK,
    clean,
    label_text,
    mixed,
    quiet_label,
    shape_text,
)

__all__ = [
    "MOST_LABELS",
    "THIN",
    "BoxLink",
    "SharedLink",
    "add_links",
    "add_shared",
    "links_of",
    "shared_links",
]

Shape = tuple[int | None, ...]
THIN = "#8b949e"
MOST_LABELS = 8
"""With more edges between devices, boxes say their bytes instead."""


@dataclass(slots=True)
class BoxLink:
    """What passes from box to box in a step; see `PartFlow` for the bytes.

    Folded boxes may feed each other; `both_ways` links count both directions.
    """

    source: str
    target: str
    crosses: bool
    shapes: list[Shape] = field(default_factory=list)
    bytes: int = 0
    sent_bytes: int = 0
    returned_bytes: int = 0
    seconds: float = 0.0
    both_ways: bool = False

    @property
    def is_reuse(self) -> bool:
        """Whether the target reads only copies that are already on its device."""
        moved = self.sent_bytes or self.returned_bytes or self.seconds
        return self.crosses and not moved

    def add(self, other: "BoxLink | PartFlow") -> None:
        """Count what another link or flow moves."""
        self.shapes += other.shapes
        self.bytes += other.bytes
        self.sent_bytes += other.sent_bytes
        self.returned_bytes += other.returned_bytes
        self.seconds += other.seconds


@dataclass(slots=True)
class SharedLink:
    """A box that holds the weights of towers, and one that reads them.

    The bytes are what a step moves: weights to the tower, their gradients back.
    """

    home: str
    other: str
    sharing: Sharing
    sent_bytes: int = 0
    returned_bytes: int = 0


def links_of(
    plan: Plan, flows: Sequence[PartFlow], box_of: Mapping[str, str], opened: str | None
) -> list[BoxLink]:
    """Join the tensors between boxes; bytes come from the flows between parts.

    Tensors of an opened part are counted one by one, as several of its calls may send.
    """
    graph = plan.graph
    device = plan.device_of
    flow_of = {(flow.source, flow.target): flow for flow in flows}
    links: dict[tuple[str, str], BoxLink] = {}
    counted: set[tuple[str, str, str, str]] = set()
    for tensor in graph.tensors:
        source, target = box_of[tensor.source], box_of[tensor.target]
        if source == target:
            continue
        one, other = (graph.call[n].part for n in (tensor.source, tensor.target))
        crosses = device[one] != device[other]
        link = links.setdefault((source, target), BoxLink(source, target, crosses))
        flow = flow_of.get((one, other))
        if flow is not None and opened not in (one, other):
            if (one, other, source, target) not in counted:
                counted.add((one, other, source, target))
                link.add(flow)
            continue
        link.shapes += known_shape(graph.call[tensor.source], tensor)
        link.bytes += tensor.bytes
        link.sent_bytes += tensor.bytes if crosses else 0
        if flow is not None and flow.returned_bytes and tensor.differentiable:
            link.returned_bytes += tensor.bytes
    return _paired(links)


def _paired(links: Mapping[tuple[str, str], BoxLink]) -> list[BoxLink]:
    """One link for two boxes that feed each other, in the earlier direction."""
    paired: dict[tuple[str, str], BoxLink] = {}
    for (source, target), link in links.items():
        there = paired.get((target, source))
        if there is None:
            paired[source, target] = link
        else:
            there.both_ways = True
            there.add(link)
    return list(paired.values())


def shared_links(plan: Plan, box_of: Mapping[str, str]) -> list[SharedLink]:
    """Pairs of a box that only holds weights, for towers, and a box that reads them.

    Branches that share a layer say so in their boxes instead.
    """
    graph = plan.graph
    part_box = {
        name: box_of[calls[0].name] for name, calls in graph.calls_of.items() if calls
    }
    found: dict[tuple[str, str], SharedLink] = {}
    for sharing in sharings_of(graph):
        if graph.part[sharing.home].kind != "weights":
            continue
        home = part_box[sharing.home]
        for name in sharing.others:
            if part_box[name] != home:
                ends = home, part_box[name]
                found.setdefault(ends, SharedLink(*ends, sharing))
    for transfer in plan.transfers:
        ends = part_box.get(transfer.source, ""), part_box.get(transfer.target, "")
        if transfer.kind == "weights" and ends in found:
            found[ends].sent_bytes += transfer.bytes
        elif transfer.kind == "weights gradient" and ends[::-1] in found:
            found[ends[::-1]].returned_bytes += transfer.bytes
    return list(found.values())


def add_links(
    dot: graphviz.Digraph,
    links: Sequence[BoxLink],
    colors: Mapping[str, str],
    name_of: Mapping[str, str],
    *,
    labelled: bool,
) -> None:
    """Add an edge per link: bold between devices, with its bytes; thin within one.

    Graphviz reserves room for labels between two ranks. Where boxes share a rank, do
    not ask for labels: those of edges within a rank break its layout.

    Args:
        dot: where to add them.
        links: what passes between boxes.
        colors: the colour of each box's device, by box.
        name_of: the words for a box, in tooltips.
        labelled: whether edges between devices show their bytes.
    """
    crossing = [link for link in links if link.crosses and not link.is_reuse]
    heaviest = max((link.bytes for link in crossing), default=0)
    for number, link in enumerate(links):
        ends = link.source, link.target
        tooltip = graphviz.escape(_link_tooltip(link, name_of))
        if link.crosses and not link.is_reuse:
            look = {
                "label": _link_label(link) if labelled else "",
                "color": INK if link.both_ways else colors[link.source],
                "penwidth": f"{_pen(link.bytes, heaviest):.1f}",
                "labeltooltip": tooltip,
            }
        else:
            look = {"style": "dashed" if link.is_reuse else "solid"}
        way = "both" if link.both_ways else "forward"
        dot.edge(*ends, id=f"link-{number}", tooltip=tooltip, dir=way, **look)


def add_shared(
    dot: graphviz.Digraph, links: Sequence[SharedLink], colors: Mapping[str, str]
) -> None:
    """Add a dotted edge from the weights of towers to each tower."""
    for number, link in enumerate(links):
        words = _moved_words(link.sent_bytes, link.returned_bytes)
        dot.edge(
            link.home,
            link.other,
            id=f"sharing-{number}",
            label=f"<{quiet_label(words, 8.5)}>" if words else "",
            style="dotted",
            penwidth="2.2",
            color=mixed(colors[link.home], "#000000", 0.1),
            dir="both",
            tooltip=graphviz.escape(_shared_tooltip(link)),
        )


def _pen(count: int, most: int) -> float:
    """A line's width in points: wider for more bytes, 1.8 to 3.8, on a log scale."""
    if count <= 0 or most <= 1:
        return 1.8
    return 1.8 + 2.0 * max(0.0, 1 - math.log(most / count) / math.log(1e4))


def _moved_words(sent: int, returned: int) -> str:
    if sent and sent == returned:
        return f"{format_bytes(sent)} each way"
    words = [format_bytes(sent)] if sent else []
    words += [f"{format_bytes(returned)} back"] if returned else []
    return " + ".join(words)


def _link_label(link: BoxLink) -> str:
    """What a link moves in a step, in bytes there and back, and its shape."""
    if link.both_ways:
        words = f"{format_bytes(link.sent_bytes + link.returned_bytes)} both ways"
    else:
        words = _moved_words(link.sent_bytes, link.returned_bytes)
        words = words or format_seconds(link.seconds)
    return (
        '<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="2" BGCOLOR="#ffffffd8">'
        f"<TR><TD><B>{label_text(words)}</B></TD></TR></TABLE>>"
    )


def _link_tooltip(link: BoxLink, name_of: Mapping[str, str]) -> str:
    lines = [
        f"{name_of[link.source]} → {name_of[link.target]}",
        "; ".join(dict.fromkeys(shape_text(shape) for shape in link.shapes[:6])),
        f"{format_bytes(link.bytes)} of tensors",
    ]
    if link.is_reuse:
        lines.append("reads a copy that is already on this device")
    elif link.crosses:
        lines.append(
            f"copied per step: {format_bytes(link.sent_bytes)} there, "
            f"{format_bytes(link.returned_bytes)} back"
        )
        if link.seconds:
            lines.append(f"copying takes {format_seconds(link.seconds)}")
    return "\n".join(line for line in lines if line)


def _shared_tooltip(link: SharedLink) -> str:
    layers = link.sharing.layers
    names = ", ".join(layers[:3])
    if len(layers) > 3:
        names += f" and {len(layers) - 3} more"
    return (
        f"shared weights of {clean(names)}: {format_bytes(link.sharing.bytes)}, "
        f"stored by {clean(link.sharing.home)}\n"
        f"copied per step: {format_bytes(link.sent_bytes)} there, "
        f"{format_bytes(link.returned_bytes)} back"
    )
