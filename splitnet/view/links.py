"""What passes between the boxes of a diagram."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from splitnet.core.plan import Plan
from splitnet.view.facts import Flow, Sharing, known_shape, sharings_of

__all__ = ["Link", "SharedLink", "links_of", "shared_links"]

Shape = tuple[int | None, ...]
_MOST_SHARED = 4


@dataclass(slots=True)
class Link:
    """What passes from box to box in a step: see `Flow` for the bytes.

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


@dataclass(slots=True)
class SharedLink:
    """Two boxes that use the same weights, which live in the first of them.

    `held` says that the first does nothing else than hold them. The bytes are what a
    step moves: weights there, their gradients back.
    """

    home: str
    other: str
    sharing: Sharing
    held: bool
    sent_bytes: int = 0
    returned_bytes: int = 0


def links_of(
    plan: Plan, flows: Sequence[Flow], box_of: Mapping[str, str], opened: str | None
) -> list[Link]:
    """Join the tensors between boxes; bytes come from the flows between parts.

    An opened part's tensors count for themselves, as several of its calls may send.
    """
    graph = plan.graph
    device = plan.device_of
    flow_of = {(flow.source, flow.target): flow for flow in flows}
    links: dict[tuple[str, str], Link] = {}
    counted: set[tuple[str, str, str]] = set()
    for tensor in graph.tensors:
        source, target = box_of[tensor.source], box_of[tensor.target]
        if source == target:
            continue
        parts = tuple(graph.call[n].part for n in (tensor.source, tensor.target))
        crosses = device[parts[0]] != device[parts[1]]
        link = links.setdefault((source, target), Link(source, target, crosses))
        flow = flow_of.get((parts[0], parts[1]))
        if flow is None or opened in parts:
            link.shapes += known_shape(graph.call[tensor.source], tensor)
            link.bytes += tensor.bytes
            link.sent_bytes += tensor.bytes if crosses else 0
            if flow is not None and flow.returned_bytes and tensor.differentiable:
                link.returned_bytes += tensor.bytes
        elif (parts[0], parts[1], source + target) not in counted:
            counted.add((parts[0], parts[1], source + target))
            link.shapes += flow.shapes
            link.bytes += flow.bytes
            link.sent_bytes += flow.sent_bytes
            link.returned_bytes += flow.returned_bytes
            link.seconds += flow.seconds
    return _paired(links)


def _paired(links: Mapping[tuple[str, str], Link]) -> list[Link]:
    """One link for two boxes that feed each other, the earlier direction's."""
    paired: dict[tuple[str, str], Link] = {}
    for (source, target), link in links.items():
        there = paired.get((target, source))
        if there is None:
            paired[source, target] = link
            continue
        there.both_ways = True
        there.shapes += link.shapes
        there.bytes += link.bytes
        there.sent_bytes += link.sent_bytes
        there.returned_bytes += link.returned_bytes
        there.seconds += link.seconds
    return list(paired.values())


def shared_links(plan: Plan, box_of: Mapping[str, str]) -> tuple[SharedLink, ...]:
    """Pairs of boxes whose parts share weights, home first; inside a box, none.

    Where many branches share, the words in their boxes have to do; a part that only
    holds weights, for towers, is always linked to them.
    """
    graph = plan.graph
    found: dict[tuple[str, str], SharedLink] = {}
    for sharing in sharings_of(graph):
        home = box_of[graph.calls_of[sharing.home][0].name]
        held = graph.part[sharing.home].kind == "weights"
        for name in sharing.others:
            other = box_of[graph.calls_of[name][0].name]
            if other != home and (home, other) not in found:
                found[home, other] = SharedLink(home, other, sharing, held)
    part_of = {
        name: box_of[calls[0].name] for name, calls in graph.calls_of.items() if calls
    }
    for transfer in plan.transfers:
        ends = part_of.get(transfer.source, ""), part_of.get(transfer.target, "")
        if transfer.kind == "weights" and ends in found:
            found[ends].sent_bytes += transfer.bytes
        elif transfer.kind == "weights gradient" and ends[::-1] in found:
            found[ends[::-1]].returned_bytes += transfer.bytes
    plain = sum(not link.held for link in found.values())
    return tuple(link for link in found.values() if link.held or plain <= _MOST_SHARED)
