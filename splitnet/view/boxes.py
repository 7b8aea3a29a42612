"""What a placement diagram shows: boxes and links, and nothing of layout."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from splitnet.core.errors import SplitnetError
from splitnet.core.graph import Call
from splitnet.core.plan import Plan
from splitnet.view.facts import (
    PartFacts,
    flows_of,
    part_facts,
    sharings_of,
)
from splitnet.view.fold import Group, fold
from splitnet.view.links import Link, SharedLink, links_of, shared_links

__all__ = ["Box", "Boxes", "Link", "boxes_of"]

Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """One box of the diagram: a part, several folded parts, or calls of an opened part.

    Bytes and seconds are sums over all members. `moved_from` is the device that the
    other plan gives them, "" where it gives the same or none is compared; `inside` the
    opened part that its calls belong to; `shares` names the layers whose weights other
    parts use too, `fetched_bytes` what a step fetches of them from another device;
    `strayed` says what an audit saw elsewhere.
    """

    id: str
    group: Group
    kind: str
    device: str
    layers: tuple[str, ...]
    shapes: tuple[Shape, ...]
    why: tuple[str, ...]
    weight_bytes: int = 0
    activation_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    calls: int = 0
    is_output: bool = False
    asked: str = ""
    fallback_why: str = ""
    moved_from: str = ""
    shares: tuple[str, ...] = ()
    fetched_bytes: int = 0
    inside: str = ""
    where: str = ""
    strayed: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Weights at home here and the activations kept for the backward pass."""
        return self.weight_bytes + self.activation_bytes

    @property
    def total_seconds(self) -> float:
        """Forward, backward and update together."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Boxes:
    """The whole diagram as values."""

    boxes: tuple[Box, ...]
    links: tuple[Link, ...]
    sharings: tuple[SharedLink, ...]


def boxes_of(
    plan: Plan,
    *,
    other: Plan | None = None,
    calls: str | None = None,
    strayed: Mapping[str, Sequence[str]] | None = None,
    most: int = 24,
) -> Boxes:
    """Work out the boxes of a plan's diagram; at most about `most` of them.

    `strayed` says, for each part that did not run as planned, what was elsewhere.

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
    away = strayed or {}
    flows = flows_of(plan)
    groups = fold(
        _running_order(plan, facts),
        [(flow.source, flow.target) for flow in flows],
        {
            name: (*_place(one, old, name == calls), name in away)
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
        box = replace(
            _box(f"box-{len(boxes)}", group, members, old, shares),
            strayed=tuple(
                dict.fromkeys(s for name in group.members for s in away.get(name, ()))
            ),
        )
        boxes.append(box)
        for name in group.members:
            for call in plan.graph.calls_of[name]:
                box_of[call.name] = box.id
    return Boxes(
        tuple(boxes),
        tuple(links_of(plan, flows, box_of, calls)),
        shared_links(plan, box_of),
    )


def _running_order(plan: Plan, names: Iterable[str]) -> list[str]:
    """Parts by their first call: a file may list them in any order."""
    first: dict[str, int] = {}
    for number, call in enumerate(plan.graph.calls):
        first.setdefault(call.part, number)
    return sorted(names, key=lambda name: first.get(name, -1))


def _place(one: PartFacts, old: Mapping[str, str], alone: bool) -> tuple[Hashable, ...]:
    """What parts must have in common to be drawn in one box."""
    return (
        one.name if alone else "",
        one.device,
        one.kind == "input",
        (one.fallback.requested, one.fallback.reason) if one.fallback else None,
        old.get(one.name, one.device),
    )


def _look(one: PartFacts) -> Hashable:
    return (one.kind, one.layers, one.shapes, one.weight_bytes > 0, one.is_output)


def _shares(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """The layers that each part shares with another; towers are linked instead."""
    found: dict[str, dict[str, None]] = {}
    for sharing in sharings_of(plan.graph):
        if plan.graph.part[sharing.home].kind == "weights":
            continue
        for part in (sharing.home, *sharing.others):
            found.setdefault(part, {}).update(dict.fromkeys(sharing.layers))
    return {part: tuple(layers) for part, layers in found.items()}


def _box(
    number: str,
    group: Group,
    members: Sequence[PartFacts],
    old: Mapping[str, str],
    shares: Mapping[str, tuple[str, ...]],
) -> Box:
    first = members[0]
    kinds = {one.kind for one in members}
    was = old.get(first.name, first.device)
    return Box(
        id=number,
        group=group,
        kind=first.kind if len(kinds) == 1 else "branch",
        device=first.device,
        layers=tuple(n for one in members[: group.period] for n in one.layers),
        shapes=members[-1].shapes if group.times else (),
        why=tuple(dict.fromkeys(one.reason for one in members)),
        weight_bytes=sum(one.weight_bytes for one in members),
        activation_bytes=sum(one.activation_bytes for one in members),
        seconds=_summed(members),
        calls=sum(one.calls for one in members),
        is_output=any(one.is_output for one in members),
        asked=first.requested,
        fallback_why=first.fallback.reason if first.fallback else "",
        moved_from="" if was == first.device else was,
        shares=tuple(
            dict.fromkeys(n for one in members for n in shares.get(one.name, ()))
        ),
        fetched_bytes=sum(one.fetched_bytes for one in members),
        where=first.where if len(members) == 1 else "",
    )


def _summed(members: Sequence[PartFacts]) -> Mapping[str, float]:
    total: dict[str, float] = {}
    for one in members:
        for phase, seconds in one.seconds.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total


def _opened(
    plan: Plan, part: PartFacts, first: int, most: int, box_of: dict[str, str]
) -> list[Box]:
    """A box per call, or per folded calls, of one part."""
    graph = plan.graph
    calls = {call.name: call for call in graph.calls_of[part.name]}
    groups = fold(
        list(calls),
        [(t.source, t.target) for t in graph.tensors if t.source in calls],
        dict.fromkeys(calls, 0),
        {name: (call.kind, call.output_shapes) for name, call in calls.items()},
        most=most,
    )
    times: dict[str, dict[str, float]] = {name: {} for name in calls}
    for task in plan.timeline.tasks:
        if task.call in times:
            phases = times[task.call]
            phases[task.phase] = phases.get(task.phase, 0.0) + task.stop - task.start
    boxes: list[Box] = []
    for group in groups:
        number = f"box-{first + len(boxes)}"
        boxes.append(_call_box(plan, part, number, group, calls, times))
        box_of.update(dict.fromkeys(group.members, number))
    return boxes


def _call_box(
    plan: Plan,
    part: PartFacts,
    number: str,
    group: Group,
    calls: Mapping[str, Call],
    times: Mapping[str, Mapping[str, float]],
) -> Box:
    members = [calls[name] for name in group.members]
    outputs = set(plan.graph.outputs)
    weights = dict.fromkeys(w for call in members for w in call.weights)
    seconds: dict[str, float] = {}
    for call in members:
        for phase, spent in times[call.name].items():
            seconds[phase] = seconds.get(phase, 0.0) + spent
    return Box(
        id=number,
        group=group,
        kind="call",
        device=part.device,
        layers=tuple(call.kind for call in members[: group.period]),
        shapes=members[-1].output_shapes if group.times else (),
        why=(part.reason,),
        weight_bytes=sum(
            plan.graph.weight[w].bytes for w in weights if w not in part.borrowed
        ),
        activation_bytes=sum(call.activation_bytes for call in members),
        seconds=seconds,
        calls=len(members),
        is_output=any(call.name in outputs for call in members),
        inside=part.name,
    )
