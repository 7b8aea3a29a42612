"""Contents of a placement diagram: boxes, the links between them, and lanes.

Of many branches a box is a block: what repeats, what is named alike, or neighbours.

    encoder ×6                      equal blocks in a row
    └─ encoder/layer_0              parts whose names begin alike
       ├─ attention
       └─ dense_0 … dense_11        ranges, where there are many children

Diagrams show a cut through this tree; the report opens and closes its blocks.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, groupby, pairwise

from splitnet.core.audit import Audit
from splitnet.core.errors import format_seconds
from splitnet.core.graph import Graph, grouped
from splitnet.core.plan import Plan
from splitnet.view import facts
from splitnet.view.facts import PartFacts
from splitnet.view.style import ranged

_WORD = re.compile(r"([/._])|(?<=\D)(?=\d)")
_LONGEST_PATTERN = 8
_MOST_CHILDREN, _RANGES = 12, 6
_NAME_WIDTH = 40
_MOST_LABELS = 6  # with more links between devices, boxes say their bytes instead
_MOST_LINKS = 60  # of more links only the largest are drawn


@dataclass(frozen=True, slots=True)
class Block:
    """Parts in running order; `times` is how often a pattern repeats, 0 if unlike."""

    members: tuple[str, ...]
    children: tuple["Block", ...] = ()
    times: int = 1


@dataclass(frozen=True, slots=True)
class Box:
    """A part, or folded parts with the sums of their facts.

    `moved_from` is another device of the compared plan, or ""; `shares` names layers
    whose weights other parts use too; `strayed` is what an audit saw elsewhere.
    """

    id: str
    name: str
    lane: str
    group: Block
    facts: PartFacts
    moved_from: str
    shares: Sequence[str]
    strayed: Sequence[str]


@dataclass(slots=True)
class DiagramEdge:
    """What passes from box to box in a step: tensors, or `weights` that are read.

    `bytes` is their size; `sent_bytes` and `returned_bytes` are copied between devices
    for them, forward and for gradients. Folded boxes may feed each other, `both_ways`.
    """

    source: str
    target: str
    crosses: bool
    bytes: int = 0
    sent_bytes: int = 0
    returned_bytes: int = 0
    both_ways: bool = False
    weights: bool = False

    @property
    def moved_bytes(self) -> int:
        """Bytes that cross between devices; 0 where a copy is there already."""
        return self.sent_bytes + self.returned_bytes


@dataclass(frozen=True)
class Diagram:
    """What a placement diagram shows; `lanes` are devices, by the first of each."""

    boxes: Sequence[Box]
    links: Sequence[DiagramEdge]
    lanes: Mapping[str, Sequence[str]]

    @cached_property
    def labelled(self) -> bool:
        """Whether the links say what they move; if they are too many, the boxes do."""
        crossing = [x for x in self.links if x.moved_bytes and not x.weights]
        return len(crossing) <= _MOST_LABELS

    @cached_property
    def drawn(self) -> list[DiagramEdge]:
        """The links that there is room for: those that move most."""
        largest = sorted(self.links, key=lambda link: -link.moved_bytes)[:_MOST_LINKS]
        return [link for link in self.links if link in largest]

    def moved(self, box: Box, *, weights: bool) -> tuple[int, int]:
        """Bytes that a box receives and sends: tensors, or weights that it reads."""
        links = [link for link in self.links if link.weights == weights]
        into = [link for link in links if link.target == box.id]
        out = [link for link in links if link.source == box.id and not weights]
        received = sum(x.sent_bytes for x in into) + sum(x.returned_bytes for x in out)
        sent = sum(x.returned_bytes for x in into) + sum(x.sent_bytes for x in out)
        return received, sent


def diagram_of(
    plan: Plan, *, other: Plan | None = None, audit: Audit | None = None, most: int = 24
) -> Diagram:
    """Work out the boxes and links of a plan's diagram; at most about `most` boxes.

    What is unusual, a fallback or a part that moved or strayed, has a box of its own.
    """
    known = {n: one for n, one in facts.part_facts(plan).items() if one.layers}
    old = {} if other is None else dict(other.device_of)
    where = {} if other is None else {c.name: old[c.part] for c in other.graph.calls}
    for name in known:  # a part that is none there is where its calls are
        there = (where[c.name] for c in plan.graph.calls_of[name] if c.name in where)
        old.setdefault(name, ", ".join(dict.fromkeys(there)))
    findings = audit.findings if audit is not None else ()
    strayed = {
        part: [f"{one.aspect} on {one.actual or 'no device'}" for one in its]
        for part, its in grouped(findings, lambda finding: finding.part).items()
    }
    lane_of = {name: name for name in plan.cluster.names}
    if other is None and not strayed:
        for devices in facts.equivalent_devices(plan.timeline):
            lane_of |= dict.fromkeys(devices, devices[0])
    place = {
        name: (
            *(lane_of[one.device], one.kind == "input", old[name], name in strayed),
            one.fallback and (one.fallback.requested, one.fallback.reason),
        )
        for name, one in known.items()
    }
    look = {name: look_of(one) for name, one in known.items()}
    groups = fold(running_order(plan, known), place, look, most=most)

    def every(texts: Mapping[str, Sequence[str]], group: Block) -> list[str]:
        return list(dict.fromkeys(t for n in group.members for t in texts.get(n, ())))

    shares = _shares(plan.graph)
    names = [ranged(group.members, _NAME_WIDTH) for group in groups]
    boxes = []
    for number, (group, name) in enumerate(zip(groups, names, strict=True)):
        its = facts.summed([known[member] for member in group.members], group.times)
        was = old[its.name] or its.device
        box = Box(
            id=f"box-{number}",
            name=name if names.count(name) == 1 else ranged(group.members, 90),
            lane=lane_of[its.device],
            group=group,
            facts=its,
            moved_from="" if was == its.device else was,
            shares=every(shares, group),
            strayed=every(strayed, group),
        )
        boxes.append(box)
    box_of = {name: box.id for box in boxes for name in box.group.members}
    used, shared = {box.lane for box in boxes}, grouped(lane_of, lane_of.__getitem__)
    hosts = grouped(shared, lambda name: name.rpartition("/")[0]).values()
    lanes = {lane: shared[lane] for its in hosts for lane in its if lane in used}
    return Diagram(boxes, links_of(plan, box_of), lanes)


def running_order(plan: Plan, names: Iterable[str]) -> list[str]:
    """Parts by their first call: a file may list them in any order."""
    running = dict.fromkeys(call.part for call in plan.graph.calls)
    number = {part: at for at, part in enumerate(running)}
    return sorted(names, key=lambda name: number.get(name, -1))


def look_of(one: PartFacts) -> Hashable:
    """What parts must have in common to be counted as equal."""
    # Parts without shapes are of workload files, which know times instead.
    costs = "" if one.shapes else format_seconds(one.total_seconds)
    return (one.kind, one.layers, one.shapes, one.weight_bytes > 0, costs)


def _shares(graph: Graph) -> dict[str, list[str]]:
    """The layers that each part shares with another; towers have links instead."""
    found: dict[str, list[str]] = {}
    for call in graph.calls:
        for weight in call.weights:
            users = graph.parts_of_weights[weight]
            if len(users) > 1 and graph.part[users[0]].kind != "weights":
                found.setdefault(call.part, []).append(call.layer or call.name)
    return found


def links_of(plan: Plan, box_of: Mapping[str, str]) -> list[DiagramEdge]:
    """Join the tensors and weights between boxes, and count the copies made of them."""
    graph, device = plan.graph, plan.device_of
    tensors: dict[tuple[str, str], DiagramEdge] = {}
    for calls, size in tensor_sizes(graph).items():
        source, target = (graph.call[name].part for name in calls)
        ends = box_of[source], box_of[target]
        if ends[0] == ends[1]:
            continue
        turned = ends[::-1] in tensors  # folded boxes may feed each other
        ends = ends[::-1] if turned else ends
        crosses = device[source] != device[target]
        link = tensors.setdefault(ends, DiagramEdge(*ends, crosses))
        link.both_ways |= turned
        link.bytes += size
    weights: dict[tuple[str, str], DiagramEdge] = {}
    for transfer in plan.transfers:
        ends = box_of.get(transfer.source, ""), box_of.get(transfer.target, "")
        back = transfer.kind.endswith("gradient")
        ends = ends[::-1] if back else ends
        found = tensors.get(ends) or tensors.get(ends[::-1])
        if transfer.kind.startswith("weights") and all(ends):
            new = DiagramEdge(*ends, True, weights=True)
            found = weights.setdefault(ends, new) if ends[0] != ends[1] else None
        if found is not None:
            found.sent_bytes += 0 if back else transfer.bytes
            found.returned_bytes += transfer.bytes if back else 0
    return [*tensors.values(), *weights.values()]


def tensor_sizes(graph: Graph) -> dict[tuple[str, str], int]:
    """Bytes from call to call; a tensor counts once for each part that reads it."""
    sizes = Counter[tuple[str, str]]()
    counted: set[tuple[str, int, str]] = set()
    for tensor in graph.tensors:
        key = tensor.source, tensor.index, graph.call[tensor.target].part
        sizes[tensor.source, tensor.target] += 0 if key in counted else tensor.bytes
        counted.add(key)
    return sizes


def block_of(names: Sequence[str], look: Mapping[str, Hashable]) -> Block:
    """The tree of parts of a device: neighbours of names that begin alike are a block.

    Parts of equal `look` may be counted ("×12") instead of listed.
    """
    if len(names) == 1:
        return Block((names[0],))
    first, *others = (_WORD.split(name) for name in names)
    depth = next(n for n in count(1) if any(one[:n] != first[:n] for one in others))
    begins = groupby(names, key=lambda name: _WORD.split(name)[:depth])
    blocks = [block_of([*its], look) for _, its in begins]
    return _joined([*_repeats(blocks, look)])


def fold(
    names: Sequence[str],
    place: Mapping[str, Hashable],
    look: Mapping[str, Hashable],
    *,
    most: int,
) -> list[Block]:
    """Show names as blocks, about `most` at most, in running order.

    A tree per place is opened from the top, large blocks first; repeats stay closed.
    """
    if len(names) <= most:
        return [Block((name,)) for name in names]
    shown = [block_of(its, look) for its in grouped(names, place.__getitem__).values()]
    closed: list[Block] = []
    while openable := [block for block in shown if block.children and not block.times]:
        first = max(openable, key=lambda block: len(block.members))
        shown.remove(first)
        fits = len(shown) + len(closed) + len(first.children) <= most
        (shown if fits else closed).extend(first.children if fits else [first])
    number = {name: at for at, name in enumerate(names)}
    return sorted((*shown, *closed), key=lambda block: number[block.members[0]])


def _repeats(children: list[Block], look: Mapping[str, Hashable]) -> Iterator[Block]:
    """Join what repeats, from each place the pattern that covers most."""
    looks = [(one.times, [look[name] for name in one.members]) for one in children]
    at = 0
    while at < len(children):
        period, times = 1, 1
        for length in range(1, min(_LONGEST_PATTERN, (len(looks) - at) // 2) + 1):
            pattern, count = looks[at : at + length], 1
            while looks[at + length * count : at + length * (count + 1)] == pattern:
                count += 1
            if count > 1 and length * count > period * times:
                period, times = length, count
        starts = range(at, at + period * times, period)
        patterns = [_joined(children[n : n + period]) for n in starts]
        yield _joined(patterns, times)
        at += period * times


def _joined(its: Sequence[Block], times: int = 0) -> Block:
    """A block of several, in ranges if there are many; one stays as it is."""
    if len(its) == 1:
        return its[0]
    members = tuple(name for child in its for name in child.members)
    if len(its) > _MOST_CHILDREN:
        ends = [len(its) * n // _RANGES for n in range(_RANGES + 1)]
        ranges = [its[a:b] for a, b in pairwise(ends)]
        its = [_joined(some, len(some) if times else 0) for some in ranges]
    return Block(members, tuple(its), times)
