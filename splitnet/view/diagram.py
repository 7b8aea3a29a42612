"""What a placement diagram shows: boxes, the links between them, and lanes.

Of many branches, what repeats is folded into one box. Three things fold: a run on one
device whose members repeat ("block_0 … block_11 ×12"), equal members of one device that
read from the same parts and feed the same ("tower_0 … tower_74 ×75"), and modules that
follow one another, each on several devices ("mixed0_join … mixed5_join ×6"). If the
picture is still too large, names that begin alike share a box on each device
("encoder/layer_3/…"), or else neighbours.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from splitnet.core.audit import Audit
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

__all__ = ["MOST_LANES", "Box", "Diagram", "DiagramEdge", "Fold", "diagram_of", "fold"]

_NAME_WIDTH = 40
_MOST_LABELS = 10  # with more links between devices, boxes say their bytes instead
_MOST_LINKS = 60  # of more links only the largest are drawn
MOST_LANES = 12
"""With more lanes, devices are cards with the largest links between them."""
_LONGEST_RUN = 8  # members of a pattern that repeats on one place
_LONGEST_MODULE = 24
_WORD = re.compile(r"[/._]|(?<=\D)(?=\d)")
_LEAST_BEGINNINGS = 4
_MOST_ROWS = 12  # with more places there is one box on each


@dataclass(frozen=True, slots=True)
class Fold:
    """Members drawn as one box; `times` is how often the pattern repeats, 0 if unequal.

    `column` counts from 1 where parts were folded by depth, and is 0 elsewhere.
    """

    members: tuple[str, ...]
    times: int = 1
    column: int = 0

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
    group: Fold
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
    facts = part_facts(plan)
    old = dict(other.device_of) if other is not None else {}
    strayed = findings_by_part(audit)
    part_of = {call.name: call.part for call in plan.graph.calls}
    look = {name: _look(one) for name, one in facts.items()}
    order = _running_order(plan, facts)
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
        [(part_of[t.source], part_of[t.target]) for t in plan.graph.tensors],
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
    links = _links(plan, box_of)
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


def _running_order(plan: Plan, names: Iterable[str]) -> list[str]:
    """Parts by their first call: a file may list them in any order."""
    first: dict[str, int] = {}
    for number, call in enumerate(plan.graph.calls):
        first.setdefault(call.part, number)
    return sorted(names, key=lambda name: first.get(name, -1))


def _look(one: PartFacts) -> Hashable:
    """What parts must have in common to be counted as equal."""
    return (one.kind, one.layers, one.shapes, one.weight_bytes > 0, one.is_output)


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
        is_output=any(one.is_output for one in members),
        where=first.where if len(members) == 1 else "",
    )


def _links(plan: Plan, box_of: Mapping[str, str]) -> list[DiagramEdge]:
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


def fold(
    names: Sequence[str],
    edges: Iterable[tuple[str, str]],
    place: Mapping[str, Hashable],
    look: Mapping[str, Hashable],
    *,
    most: int,
) -> list[Fold]:
    """Fold names until at most `most` groups are left, or nothing more folds.

    Args:
        names: in the order in which they run; groups keep it.
        edges: from name to name, without a cycle.
        place: what may be drawn in one box: members of a group have one place.
        look: equal looks may be counted ("×12") instead of listed.
        most: how many boxes a picture can show; fewer names are not folded.
    """
    state = _Folding(names, edges, place, look)
    changed = True
    while changed and len(state.groups) > most:
        changed = state.fold_runs() or state.fold_siblings() or state.fold_modules()
    if len(state.groups) > most and not state.fold_by_name(most):
        state.fold_by_depth()
    return [state.groups[vertex] for vertex in sorted(state.groups)]


class _Folding:
    """The graph while it shrinks: a vertex is the number of its first member."""

    def __init__(
        self,
        names: Sequence[str],
        edges: Iterable[tuple[str, str]],
        place: Mapping[str, Hashable],
        look: Mapping[str, Hashable],
    ) -> None:
        number = {name: i for i, name in enumerate(names)}
        self.groups = {i: Fold((name,)) for i, name in enumerate(names)}
        self.place = {i: place[name] for i, name in enumerate(names)}
        self.look: dict[int, Hashable] = {i: look[n] for i, n in enumerate(names)}
        self.after: dict[int, set[int]] = {i: set() for i in self.groups}
        self.before: dict[int, set[int]] = {i: set() for i in self.groups}
        for source, target in edges:
            if source in number and target in number and source != target:
                self.after[number[source]].add(number[target])
                self.before[number[target]].add(number[source])

    def join(self, members: Sequence[int], times: int, way: str) -> None:
        """Replace vertices by the first of them; the order of members is kept."""
        first, inside = members[0], set(members)
        names = tuple(n for m in members for n in self.groups[m].members)
        look = (way, times, tuple(self.look[m] for m in members[:_LONGEST_RUN]))
        for ends, back in ((self.after, self.before), (self.before, self.after)):
            outside = set().union(*(ends[m] for m in members)) - inside
            for other in outside:
                back[other] = (back[other] - inside) | {first}
            ends[first] = outside
        for member in members[1:]:
            for table in (self.groups, self.place, self.look, self.after, self.before):
                table.pop(member)
        self.groups[first] = Fold(names, times)
        self.look[first] = look

    def fold_siblings(self) -> bool:
        """Fold equal members of one place with the same neighbours."""
        classes: dict[Hashable, list[int]] = {}
        for vertex in sorted(self.groups):
            around = frozenset(self.before[vertex]), frozenset(self.after[vertex])
            key = self.place[vertex], self.look[vertex], *around
            classes.setdefault(key, []).append(vertex)
        found = [members for members in classes.values() if len(members) > 1]
        for members in found:
            self.join(members, len(members), "side by side")
        return bool(found)

    def fold_runs(self) -> bool:
        """Fold repeated patterns of chains in which each member feeds only the next."""
        changed = False
        for run in self._runs():
            looks, at = [self.look[vertex] for vertex in run], 0
            while at < len(run):
                period, times = _repetition(looks, at, _LONGEST_RUN)
                if times > 1:
                    self.join(run[at : at + period * times], times, "in a row")
                    changed = True
                at += period * times
        return changed

    def _runs(self) -> list[list[int]]:
        """Longest chains on one place in which each member feeds only the next."""
        follows: dict[int, int] = {}
        for vertex in sorted(self.groups):
            if len(self.after[vertex]) == 1:
                (target,) = self.after[vertex]
                alone = len(self.before[target]) == 1
                if alone and self.place[target] == self.place[vertex]:
                    follows[vertex] = target
        runs = []
        for vertex in sorted(set(follows) - set(follows.values())):
            run = [vertex]
            while run[-1] in follows:
                run.append(follows[run[-1]])
            runs.append(run)
        return runs

    def fold_modules(self) -> bool:
        """Fold equal modules that follow one another, each on several places.

        A module reads what the one before it gives, so members feed each other.
        """
        order = sorted(self.groups)
        number = {vertex: at for at, vertex in enumerate(order)}
        looks: list[Hashable] = []
        for vertex in order:
            reads = frozenset(number[vertex] - number[n] for n in self.before[vertex])
            looks.append((self.place[vertex], self.look[vertex], reads))
        for at in range(len(order)):
            period, times = _repetition(looks, at, _LONGEST_MODULE)
            if times > 1 and period > 1:
                for first in range(at, at + period):
                    members = order[first : at + period * times : period]
                    self.join(members, times, "in turn")
                return True
        return False

    def fold_by_name(self, most: int) -> bool:
        """Fold members of one place whose names begin with the same words.

        The most words that give at most `most` groups; refused if there are so few
        beginnings that the net's structure would be lost.
        """
        words = {v: _WORD.split(group.members[0]) for v, group in self.groups.items()}
        for count in range(max(map(len, words.values())) - 1, 0, -1):
            groups: dict[Hashable, list[int]] = {}
            for vertex in sorted(self.groups):
                key = self.place[vertex], tuple(words[vertex][:count])
                groups.setdefault(key, []).append(vertex)
            beginnings = {tuple(its[:count]) for its in words.values()}
            if len(groups) <= most and len(beginnings) >= _LEAST_BEGINNINGS:
                for members in groups.values():
                    if len(members) > 1:
                        same = len({self.look[m] for m in members}) == 1
                        self.join(members, len(members) if same else 0, "named")
                return True
        return False

    def fold_by_depth(self) -> None:
        """Fold into a grid: a row per place, a column per range of depths."""
        depth: dict[int, int] = {}
        for vertex in sorted(self.groups):
            above = (depth.get(other, 0) + 1 for other in self.before[vertex])
            depth[vertex] = max(above, default=0)
        deepest = max(depth.values(), default=0) + 1
        columns = 4 if len(set(self.place.values())) <= _MOST_ROWS else 1
        cells: dict[tuple[Hashable, int], list[int]] = {}
        for vertex in sorted(self.groups):
            column = depth[vertex] * columns // deepest
            cells.setdefault((self.place[vertex], column), []).append(vertex)
        for (_, column), members in cells.items():
            if len(members) > 1:
                same = len({self.look[m] for m in members}) == 1
                self.join(members, len(members) if same else 0, "mixed")
            first = members[0]
            self.groups[first] = replace(self.groups[first], column=column + 1)


def _repetition(looks: list[Hashable], at: int, longest: int) -> tuple[int, int]:
    """The pattern at a position that covers most: its length and how often it comes."""
    best = (1, 1)
    for period in range(1, min(longest, (len(looks) - at) // 2) + 1):
        pattern = looks[at : at + period]
        times = 1
        while looks[at + period * times : at + period * (times + 1)] == pattern:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
