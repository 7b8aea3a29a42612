"""A model's calls brought to few parts: what a person would have called its branches.

A model that nobody declared comes with a part per call. Placed one by one, calls would
bounce between devices for a microsecond's gain. So they are first grouped along the
model's own seams: where all data passes through one tensor the chain can be cut, and
what runs side by side between two such cuts are its parallel branches.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import networkx as nx

from splitnet.core.graph import Call, Graph, Part
from splitnet.planner.merging import Piece, Row
from splitnet.planner.wishes import Pins, asked_of

__all__ = ["group", "pinned"]

_LIGHT = 0.25  # of the grain: a piece below it joins a neighbour that it talks to


def group(graph: Graph, most: int, seconds: Callable[[Call], float]) -> Graph:
    """Group the calls of a graph with a part per call into at most about `most` parts.

    Every part is convex, and the graph of the parts has no cycle: parts are intervals
    of one order in which the calls may run. Calls with different wishes, and inputs,
    stay apart, so pins can make more parts than `most`. Parts that share weights are
    bound to one device by `near`. Linear in calls and tensors but for sorting.

    Args:
        graph: A part per call; wishes (`on`) of the parts are kept.
        most: About how many parts to make; at least 1.
        seconds: What a call costs, to make parts of like weight.
    """
    work = _Work(graph, seconds, most)
    pieces: list[list[int]] = []
    for run in _by_wish(work):
        pieces += list(_pieces(run, work)) if work.free(run[0]) else [run]
    pieces = _merged(pieces, work, most)
    return _regrouped(graph, pieces)


def pinned(graph: Graph, pins: Pins | None) -> Graph:
    """Write pins, and the CPU for calls without a GPU kernel, into the parts' wishes.

    Raises:
        DeclarationError: pins that match twice or nothing.
    """
    asked = asked_of(graph, pins)

    def wish(part: Part) -> tuple[str, ...]:
        on = asked[part.name][0]
        bound = any(call.cpu_only for call in graph.calls_of[part.name])
        return ("cpu",) if bound and on == ("auto",) else on

    return replace(
        graph, parts=tuple(replace(part, on=wish(part)) for part in graph.parts)
    )


class _Work:
    """The graph by numbers: neighbours, weights, and the weight a part should have."""

    def __init__(
        self, graph: Graph, seconds: Callable[[Call], float], most: int
    ) -> None:
        number = {call.name: i for i, call in enumerate(graph.calls)}
        self.part = [graph.part[call.part] for call in graph.calls]
        self.weight = [seconds(call) for call in graph.calls]
        self.successors: list[list[int]] = [[] for _ in graph.calls]
        self.predecessors: list[list[int]] = [[] for _ in graph.calls]
        for tensor in graph.tensors:
            source, target = number[tensor.source], number[tensor.target]
            if target not in self.successors[source][-1:]:
                self.successors[source].append(target)
                self.predecessors[target].append(source)
        self.grain = sum(self.weight) / max(most, 1)

    def free(self, call: int) -> bool:
        """Whether a call may be grouped with others: inputs stay as declared."""
        return self.part[call].kind != "input"

    def total(self, calls: Sequence[int]) -> float:
        """What the calls cost together."""
        return sum(self.weight[call] for call in calls)

    def order(self) -> list[int]:
        """A topological order that follows a branch to its end before the next.

        Kahn's algorithm with a stack for each wish; the calls a call makes ready come
        right after it. It stays with calls that wish for the same while any is ready,
        so that many which the CPU must run make one run and not one each.
        """
        waiting = [len(set(before)) for before in self.predecessors]
        ready: dict[tuple[object, ...], list[int]] = {}
        for call in reversed(range(len(waiting))):
            if not waiting[call]:
                ready.setdefault(self.wish(call), []).append(call)
        order: list[int] = []
        wish = self.wish(0) if waiting else ()
        while len(order) < len(waiting):
            if not ready.get(wish):
                wish = next(one for one, stack in ready.items() if stack)
            call = ready[wish].pop()
            order.append(call)
            for after in reversed(dict.fromkeys(self.successors[call])):
                waiting[after] -= 1
                if not waiting[after]:
                    ready.setdefault(self.wish(after), []).append(after)
        return order

    def wish(self, call: int) -> tuple[object, ...]:
        """What calls must agree on to be one part."""
        part = self.part[call]
        return (part.kind == "input", part.on, part.near, part.apart)


def _by_wish(work: _Work) -> Iterator[list[int]]:
    """Runs of the order in which all calls ask for the same; an input is its own."""
    order = work.order()
    start = 0
    for i in range(1, len(order) + 1):
        if (
            i == len(order)
            or not work.free(order[i])
            or work.wish(order[i]) != work.wish(order[start])
        ):
            yield order[start:i]
            start = i


def _pieces(calls: list[int], work: _Work) -> Iterator[list[int]]:
    """Cut calls, which stand in running order, at their seams until they are light."""
    todo = [calls]
    while todo:
        run = todo.pop()
        if len(run) == 1 or work.total(run) <= work.grain:
            yield run
            continue
        found = _chain(run, work) or _branches(run, work) or _slices(run, work)
        if len(found) == 1:
            yield run
        else:
            todo += reversed(found)


def _chain(run: list[int], work: _Work) -> list[list[int]]:
    """Cut where everything passes through the output of one call; [] if nowhere."""
    place = {call: i for i, call in enumerate(run)}
    last_reader = [
        max((place[s] for s in work.successors[call] if s in place), default=i)
        for i, call in enumerate(run)
    ]
    segments, start = [], 0
    live: list[int] = []  # places of calls whose outputs are still to be read
    for i in range(len(run) - 1):
        live = [j for j in live if last_reader[j] > i]
        if last_reader[i] > i:
            live.append(i)
        if len(live) <= 1:
            segments.append(run[start : i + 1])
            start = i + 1
    segments.append(run[start:])
    return segments if len(segments) > 1 else []


def _branches(run: list[int], work: _Work) -> list[list[int]]:
    """What runs side by side between first and last call; [] if nothing does."""
    for head, tail in ((0, 0), (0, 1), (1, 0), (1, 1)):
        middle = run[head : len(run) - tail]
        components = _components(middle, work)
        if len(components) > 1:
            ends = ([run[:head]], [run[len(run) - tail :]])
            return [p for p in [*ends[0], *components, *ends[1]] if p]
    return []


def _components(calls: list[int], work: _Work) -> list[list[int]]:
    """Connected components, each in running order, in order of their first call."""
    inside = set(calls)
    union = nx.utils.UnionFind(calls)
    for call in calls:
        for after in work.successors[call]:
            if after in inside:
                union.union(call, after)
    found: dict[int, list[int]] = {}
    for call in calls:
        found.setdefault(union[call], []).append(call)
    return list(found.values())


def _slices(run: list[int], work: _Work) -> list[list[int]]:
    """Slice the running order into pieces of about the grain."""
    slices: list[list[int]] = [[]]
    weight = 0.0
    for call in run:
        if slices[-1] and weight + work.weight[call] > work.grain:
            slices.append([])
            weight = 0.0
        slices[-1].append(call)
        weight += work.weight[call]
    return slices


def _merged(pieces: list[list[int]], work: _Work, most: int) -> list[list[int]]:
    """Merge neighbours in the order: the light ones first, then until few are left.

    Two that stand next to each other in a running order can always be one part. Those
    that run side by side are merged last, as they are what several devices are for.
    """
    row = Row(
        [
            Piece(calls, work.total(calls), work.wish(calls[0]), work.free(calls[0]))
            for calls in pieces
        ],
        work.predecessors,
    )
    limit = 2 * _LIGHT * work.grain
    row.sweep(limit, talking=True)
    while row.free > most and limit < most * work.grain:
        limit *= 2
        row.sweep(limit, talking=True)
        row.sweep(limit / 2, talking=False)
    row.shorten(most)
    return [piece.calls for piece in row.pieces]


def _regrouped(graph: Graph, pieces: list[list[int]]) -> Graph:
    names = {}
    parts = []
    order = []
    for piece in pieces:
        calls = [graph.calls[i] for i in piece]
        first, last = calls[0], calls[-1]
        name = first.name if len(calls) == 1 else f"{first.name} .. {last.name}"
        parts.append(replace(graph.part[first.part], name=name))
        names.update({call.name: name for call in calls})
        order += calls
    regrouped = replace(
        graph,
        calls=tuple(replace(call, part=names[call.name]) for call in order),
        parts=tuple(parts),
    )
    return _bound(regrouped)


def _bound(graph: Graph) -> Graph:
    """Bind parts that share weights to one device, unless they were pinned apart."""
    near: dict[str, dict[str, None]] = {}
    for users in graph.parts_of_weights.values():
        for other in users[1:]:
            if graph.part[other].on == graph.part[users[0]].on:
                near.setdefault(other, {})[users[0]] = None
    return replace(
        graph,
        parts=tuple(
            replace(part, near=(*part.near, *near.get(part.name, ())))
            for part in graph.parts
        ),
    )
