"""What a placement diagram shows: boxes, the links between them, and lanes.

Of many branches a box is a block: what repeats, what is named alike, or neighbours.

    encoder ×6                      equal blocks in a row
    └─ encoder/layer_0              parts whose names begin alike
       ├─ attention
       └─ dense_0 … dense_11        ranges, where there are many children

Diagrams show a cut through this tree; the report opens and closes its blocks.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from splitnet.core.audit import Audit
from splitnet.core.errors import format_seconds
from splitnet.core.graph import Graph
from splitnet.core.plan import Plan
from splitnet.view.facts import (
    PartFacts,
    alike_devices,
    findings_by_part,
    known_shape,
    part_facts,
)
from splitnet.view.style import Shape, ranged

__all__ = [
    "MOST_LANES",
    "Block",
    "Box",
    "Diagram",
    "DiagramEdge",
    "block_of",
    "diagram_of",
    "fold",
    "links_of",
    "look_of",
    "running_order",
]

_WORD = re.compile(r"[/._]|(?<=\D)(?=\d)")
_LONGEST_PATTERN = 8
_MOST_CHILDREN, _RANGES = 12, 6
_NAME_WIDTH = 40
_MOST_LABELS = 10  # with more links between devices, boxes say their bytes instead
_MOST_LINKS = 60  # of more links only the largest are drawn
MOST_LANES = 12
"""With more lanes, devices are cards with the largest links between them."""


@dataclass(frozen=True, slots=True)
class Block:
    """Parts in running order; `times` is how often a pattern repeats, 0 if unlike."""

    members: tuple[str, ...]
    children: tuple["Block", ...] = ()
    times: int = 1

    @property
    def period(self) -> int:
        """How many members make one pattern; 0 if they are unequal."""
        return len(self.members) // self.times if self.times else 0


@dataclass(frozen=True, slots=True)
class Box:
    """One box of the diagram: a part, or folded parts.

    `name` is short, but long enough that no other box has the same. `facts` are sums
    over all members. `moved_from` is the device of the compared plan, "" where it is
    the same; `shares` names the layers whose weights other parts use too; `strayed`
    says what an audit saw on another device. `moved` are the bytes of tensors received
    from and sent to other devices, where the box says them because there are too many
    links to label; `weights` the bytes of weights read from another device, and of
    their gradients.
    """

    id: str
    name: str
    lane: str
    group: Block
    facts: PartFacts
    reasons: tuple[str, ...]
    moved_from: str = ""
    shares: tuple[str, ...] = ()
    strayed: tuple[str, ...] = ()
    moved: tuple[int, int] = (0, 0)
    weights: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class DiagramEdge:
    """What passes from box to box in a step.

    `bytes` is the size of the tensors; `sent_bytes` and `returned_bytes` are what the
    plan copies between devices for them: activations forward, gradients back. A tensor
    that is already on the target's device is not copied again. Folded boxes may feed
    each other: `both_ways` links count both directions. A link of `weights` goes from
    where they are stored to where they are read.
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
    weights: bool = False

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross between devices; 0 where a copy is there already."""
        return self.sent_bytes + self.returned_bytes

    @property
    def reuses(self) -> bool:
        """Whether the target reads only copies that are already on its device."""
        return self.crosses and not self.moved_bytes


@dataclass(frozen=True, slots=True)
class Diagram:
    """Everything that a placement diagram shows, without its layout.

    `lanes` are the devices of each lane, by the first of them; `left_out` counts links
    that are too small to be drawn.
    """

    boxes: tuple[Box, ...]
    links: tuple[DiagramEdge, ...]
    lanes: Mapping[str, tuple[str, ...]]
    left_out: int = 0


def diagram_of(
    plan: Plan,
    *,
    other: Plan | None = None,
    audit: Audit | None = None,
    most: int = 24,
) -> Diagram:
    """Work out the boxes and links of a plan's diagram; at most about `most` boxes."""
    old = dict(other.device_of) if other is not None else {}
    strayed = findings_by_part(audit)
    running = plan.graph.calls_of  # towers that feed towers join nothing
    facts = {n: f for n, f in part_facts(plan).items() if running.get(n)}
    look = {name: look_of(one) for name, one in facts.items()}
    order = running_order(plan, facts)
    special = {
        name: (
            (one.fallback.requested, one.fallback.reason) if one.fallback else None,
            old.get(name),
            name in strayed,
        )
        for name, one in facts.items()
    }
    alone = any(n in strayed or n in old for n in facts)
    lane_of = {device.name: device.name for device in plan.cluster}
    if not alone:
        for devices in alike_devices(plan.timeline):
            lane_of |= dict.fromkeys(devices, devices[0])
    groups = fold(
        order,
        {
            n: (lane_of[o.device], o.kind == "input", special[n])
            for n, o in facts.items()
        },
        look,
        most=most,
    )
    shares = _shares(plan.graph)
    names = [ranged(group.members, _NAME_WIDTH) for group in groups]
    boxes: list[Box] = []
    box_of: dict[str, str] = {}
    for group, name in zip(groups, names, strict=True):
        members = [facts[name] for name in group.members]
        first = members[0]
        was = old.get(first.name, first.device)
        box = Box(
            id=f"box-{len(boxes)}",
            name=name if names.count(name) == 1 else ranged(group.members, 90),
            lane=lane_of[first.device],
            group=group,
            facts=_summed(group, members),
            reasons=_unique(one.reason for one in members),
            moved_from="" if was == first.device else was,
            shares=_unique(n for name in group.members for n in shares.get(name, ())),
            strayed=_unique(s for name in group.members for s in strayed.get(name, ())),
        )
        boxes.append(box)
        box_of.update(dict.fromkeys(group.members, box.id))
    links = links_of(plan, box_of)
    used = {box.lane for box in boxes}
    most_links = _MOST_LINKS if len(used) <= MOST_LANES else _MOST_LINKS // 3
    drawn = sorted(links, key=lambda link: -link.moved_bytes)[:most_links]
    crossing = [link for link in links if link.moved_bytes and not link.weights]
    for number, box in enumerate(boxes):
        read = [link for link in links if link.weights and link.target == box.id]
        moved = _moved(box.id, crossing) if len(crossing) > _MOST_LABELS else (0, 0)
        boxes[number] = replace(box, moved=moved, weights=_moved(box.id, read))
    hosts = list(dict.fromkeys(device.host for device in plan.cluster))
    lanes = {
        one.name: tuple(d for d, its in lane_of.items() if its == one.name)
        for one in sorted(plan.cluster, key=lambda one: hosts.index(one.host))
        if one.name in used
    }
    return Diagram(
        tuple(boxes),
        tuple(link for link in links if link in drawn),
        lanes,
        len(links) - len(drawn),
    )


def _moved(box: str, links: Iterable[DiagramEdge]) -> tuple[int, int]:
    """Bytes that a box receives from and sends to other devices."""
    received = sent = 0
    for link in links:
        if box == link.target:
            received, sent = received + link.sent_bytes, sent + link.returned_bytes
        elif box == link.source:
            received, sent = received + link.returned_bytes, sent + link.sent_bytes
    return received, sent


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def running_order(plan: Plan, names: Iterable[str]) -> list[str]:
    """Parts by their first call: a file may list them in any order."""
    first: dict[str, int] = {}
    for number, call in enumerate(plan.graph.calls):
        first.setdefault(call.part, number)
    return sorted(names, key=lambda name: first.get(name, -1))


def look_of(one: PartFacts) -> Hashable:
    """What parts must have in common to be counted as equal.

    Parts without shapes are of workload files, which know times instead.
    """
    costs = "" if one.shapes else format_seconds(one.total_seconds)
    return (one.kind, one.layers, one.shapes, one.weight_bytes > 0, costs)


def _shares(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """The layers that each part shares with another; towers have links instead."""
    found: dict[str, dict[str, None]] = {}
    for call in graph.calls:
        for weight in call.weights:
            users = graph.parts_of_weights[weight]
            if len(users) > 1 and graph.part[users[0]].kind != "weights":
                for part in users:
                    found.setdefault(part, {})[call.layer or call.name] = None
    return {part: tuple(layers) for part, layers in found.items()}


def _summed(group: Block, members: Sequence[PartFacts]) -> PartFacts:
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
        is_output=any(one.is_output for one in members),
        where=first.where if len(members) == 1 else "",
    )


def links_of(plan: Plan, box_of: Mapping[str, str]) -> list[DiagramEdge]:
    """Join the tensors and weights between boxes, and count the copies made of them."""
    tensors = _tensor_links(plan, box_of)
    weights: dict[tuple[str, str], DiagramEdge] = {}
    for transfer in plan.transfers:
        ends = box_of.get(transfer.source, ""), box_of.get(transfer.target, "")
        back = transfer.kind.endswith("gradient")
        there, other = (ends[::-1], ends) if back else (ends, ends[::-1])
        link = tensors.get(there) or tensors.get(other)
        if transfer.kind.startswith("weights") and all(ends):
            new = DiagramEdge(*there, True, weights=True)
            link = weights.setdefault(there, new) if there[0] != there[1] else None
        if link is not None:
            link.seconds += transfer.seconds
            link.sent_bytes += 0 if back else transfer.bytes
            link.returned_bytes += transfer.bytes if back else 0
    return [*tensors.values(), *weights.values()]


def _tensor_links(
    plan: Plan, box_of: Mapping[str, str]
) -> dict[tuple[str, str], DiagramEdge]:
    """The links of tensors by source and target; each tensor counts once for a part."""
    graph, device = plan.graph, plan.device_of
    links: dict[tuple[str, str], DiagramEdge] = {}
    counted: set[tuple[str, int, str]] = set()
    for tensor in graph.tensors:
        source, target = graph.call[tensor.source].part, graph.call[tensor.target].part
        ends = box_of[source], box_of[target]
        key = (tensor.source, tensor.index, target)
        if ends[0] == ends[1] or key in counted:
            continue
        counted.add(key)
        turned = ends[::-1] in links  # folded boxes may feed each other
        ends = ends[::-1] if turned else ends
        crosses = device[source] != device[target]
        link = links.setdefault(ends, DiagramEdge(*ends, crosses))
        link.both_ways |= turned
        link.shapes += known_shape(graph.call[tensor.source], tensor)
        link.bytes += tensor.bytes
    return links


def block_of(names: Sequence[str], look: Mapping[str, Hashable]) -> Block:
    """The tree of some parts of one device, in running order.

    Parts of equal `look` may be counted ("×12") instead of listed.
    """
    return _named([(name, _WORD.split(name)) for name in names], look)


def fold(
    names: Sequence[str],
    place: Mapping[str, Hashable],
    look: Mapping[str, Hashable],
    *,
    most: int,
) -> list[Block]:
    """Show names as blocks, about `most` at most, in running order.

    A tree per place is opened from the top: large blocks of unlike parts first, then
    repeats, together if they are equally long.
    """
    places: dict[Hashable, list[str]] = {}
    for name in names:
        places.setdefault(place[name], []).append(name)
    shown = [block_of(its, look) for its in places.values()]
    if len(names) <= most:
        shown = [Block((name,)) for name in names]
    closed: list[Block] = []
    while openable := [block for block in shown if _worth_opening(block)]:
        first = min(openable, key=lambda block: (block.times > 1, -len(block.members)))
        # Equal patterns of one device open together, and equal counts of several.
        alike = [
            block
            for block in openable
            if block is first
            or block.times == first.times > 1
            and (
                block.period == first.period
                or place[block.members[0]] != place[first.members[0]]
            )
        ]
        shown = [block for block in shown if block not in alike]
        opened = [child for block in alike for child in block.children]
        fits = len(shown) + len(closed) + len(opened) <= most
        (shown if fits else closed).extend(opened if fits else alike)
    number = {name: at for at, name in enumerate(names)}
    return sorted((*shown, *closed), key=lambda block: number[block.members[0]])


def _worth_opening(block: Block) -> bool:
    """Whether it has children that say more than their number."""
    ranges = block.times > 1 and block.times != len(block.children)
    return bool(block.children) and not ranges


def _named(parts: list[tuple[str, list[str]]], look: Mapping[str, Hashable]) -> Block:
    """Neighbours whose names begin with the same words are a block."""
    if len(parts) == 1:
        return Block((parts[0][0],))
    for count in range(1, max(len(words) for _, words in parts) + 1):
        groups = [
            list(group) for _, group in groupby(parts, key=lambda one: one[1][:count])
        ]
        if len(groups) > 1:
            break
    if len(groups) == len(parts):
        children = [Block((name,)) for name, _ in parts]
    else:
        children = [_named(group, look) for group in groups]
    return _joined(_repeats(children, look), look)


def _repeats(children: list[Block], look: Mapping[str, Hashable]) -> list[Block]:
    """Join what repeats, pattern by pattern."""
    looks = [(child.times, tuple(map(look.get, child.members))) for child in children]
    found: list[Block] = []
    at = 0
    while at < len(children):
        period, times = _repetition(looks, at)
        stop = at + period * times
        if times == 1:
            found.append(children[at])
        elif period == 1:
            found.append(_joined(children[at:stop], look, times))
        else:
            starts = range(at, stop, period)
            patterns = [_joined(children[n : n + period], look) for n in starts]
            found.append(_joined(patterns, look, times))
        at = stop
    return found


def _joined(
    children: Iterable[Block], look: Mapping[str, Hashable], times: int = 0
) -> Block:
    """A block of several, in ranges if there are many; one stays as it is."""
    its = list(children)
    if len(its) == 1:
        return its[0]
    members = tuple(name for child in its for name in child.members)
    if len(its) > _MOST_CHILDREN:
        ends = [len(its) * n // _RANGES for n in range(_RANGES + 1)]
        ranges = [its[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        its = [_joined(some, look, len(some) if times else 0) for some in ranges]
    return Block(members, tuple(its), times)


def _repetition(looks: Sequence[Hashable], at: int) -> tuple[int, int]:
    """The pattern at a position that covers most: its length and how often it comes."""
    best = (1, 1)
    for period in range(1, min(_LONGEST_PATTERN, (len(looks) - at) // 2) + 1):
        pattern = looks[at : at + period]
        times = 1
        while looks[at + period * times : at + period * (times + 1)] == pattern:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
