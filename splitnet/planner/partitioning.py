r"""Calls brought to parts: convex sets of calls, named as a person would name them.

A Keras model that nobody declared comes with a part per call. Before a search its calls
are clustered along the model's own seams: where all data passes through one tensor a
chain can be cut, and what runs side by side between two cuts are parallel branches.
After a search on calls, the functions that run on the devices are the parts:

    gpu:0   a - b - c . . . f - g      parts: {a, b} {c} {f, g} on gpu:0
                 \         /                  {d, e} on gpu:1
    gpu:1         d - - - e

A function starts where something arrives from another device, and ends where another
device needs its output. Every part is convex: the graph of the parts has no cycle.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeVar

import networkx as nx

from splitnet.core.graph import Call, Graph
from splitnet.planner.constraints import Pins, requests_of
from splitnet.simulator.memory import functions_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.units import Grouping

__all__ = [
    "bind_shared_weights",
    "clusters",
    "functions",
    "in_functions",
    "is_convex",
    "is_pipeline",
    "request_keys",
    "with_requests",
]

T = TypeVar("T", bound=Hashable)
D = TypeVar("D", bound=Hashable)

_LIGHT = 0.25
"""Of the mean weight of a part: a lighter one is merged with a neighbour it reads."""


def with_requests(graph: Graph, pins: Pins | None) -> Graph:
    """Write pins into the parts.

    Raises:
        DeclarationError: as `requests_of`.
    """
    on = requests_of(graph, pins)
    return replace(
        graph, parts=tuple(replace(p, on=on[p.name][0]) for p in graph.parts)
    )


def bind_shared_weights(graph: Graph) -> Graph:
    """Bind parts that share weights by near=, unless they request unlike devices."""
    near: dict[str, dict[str, None]] = {}
    for users in graph.parts_of_weights.values():
        for other in users[1:]:
            if graph.part[other].on == graph.part[users[0]].on:
                near.setdefault(other, {})[users[0]] = None
    parts = (replace(p, near=(*p.near, *near.get(p.name, ()))) for p in graph.parts)
    return replace(graph, parts=tuple(parts))


def clusters(graph: Graph, most: int, seconds: Callable[[Call], float]) -> Graph:
    """Merge the calls of a graph with a part per call into at most about `most` parts.

    Calls with different requests, and inputs, stay apart, so pins can make more parts
    than `most`. Parts that share weights are bound by near=. Linear but for sorting.

    Args:
        graph: A part per call; the requests (`on`) of the parts are kept.
        most: About how many parts to make; at least 1.
        seconds: The weight of a call, to make parts of like weight.
    """
    calls = _Calls(graph, most, seconds)
    level = calls.levels()
    keys = {key: i for i, key in enumerate(dict.fromkeys(calls.key))}
    mark = [(level[i], keys[key]) for i, key in enumerate(calls.key)]
    # Every edge stays in its run or leads to a higher level, so this order may run.
    order = sorted(calls.order(), key=mark.__getitem__)
    pieces: list[_Piece] = []
    for one, run in groupby(order, key=mark.__getitem__):
        for piece in _pieces(list(run), calls):
            free = not calls.is_input[piece[0]]
            pieces.append(_Piece(piece, calls.total(piece), one, free))
    return _regrouped(graph, [piece.calls for piece in _merged(pieces, calls)])


def functions(graph: Graph, step: StepGraph, device: Sequence[int]) -> Grouping:
    """Cut a placement of calls into the functions that run, in running order.

    Calls with different requests are different functions.

    Args:
        graph: A part per call.
        step: Its step, with a unit per call.
        device: The device of each call.
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    key = request_keys(graph)
    pieces = [
        tuple(piece)
        for function in functions_of(step, device)
        for _, piece in groupby(function, key=key.__getitem__)
    ]
    piece_of = {call: i for i, piece in enumerate(pieces) for call in piece}
    order = nx.DiGraph()
    order.add_nodes_from(range(len(pieces)))
    order.add_edges_from(
        (piece_of[index[tensor.source]], piece_of[index[tensor.target]])
        for tensor in graph.tensors
    )
    order.remove_edges_from(list(nx.selfloop_edges(order)))
    running = nx.lexicographical_topological_sort(order, key=lambda i: pieces[i][0])
    calls = tuple(pieces[i] for i in running)
    number = {call: i for i, piece in enumerate(calls) for call in piece}
    return Grouping(tuple(number[i] for i in range(len(number))), calls)


def in_functions(
    graph: Graph, step: StepGraph, device_of: Mapping[str, str]
) -> tuple[Graph, dict[str, str]]:
    """The graph with a part per function, and the device of each part.

    Args:
        graph: A part per call.
        step: Its step, with a unit per call.
        device_of: The device of each call.
    """
    device = [device_of[call] for call in step.names]
    names = {name: i for i, name in enumerate(dict.fromkeys(device))}
    units = functions(graph, step, [names[d] for d in device])
    parted = _regrouped(graph, units.calls)
    return parted, {call.part: device_of[call.name] for call in parted.calls}


def request_keys(graph: Graph) -> list[int]:
    """A number per call: calls may be one part if where they may be is the same."""
    parts = [graph.part[call.part] for call in graph.calls]
    keys = [
        (part.kind == "input", call.cpu_only, part.on)
        for call, part in zip(graph.calls, parts)
    ]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]


class _Calls:
    """The calls by number: neighbours, weights, and what calls of one part share."""

    def __init__(
        self, graph: Graph, most: int, seconds: Callable[[Call], float]
    ) -> None:
        number = {call.name: i for i, call in enumerate(graph.calls)}
        parts = [graph.part[call.part] for call in graph.calls]
        self.most = max(most, 1)
        self.weight = [seconds(call) for call in graph.calls]
        self.grain = sum(self.weight) / self.most
        self.is_input = [part.kind == "input" for part in parts]
        self.key = request_keys(graph)
        self.after: list[list[int]] = [[] for _ in graph.calls]
        self.before: list[list[int]] = [[] for _ in graph.calls]
        for tensor in graph.tensors:
            source, target = number[tensor.source], number[tensor.target]
            if target not in self.after[source][-1:]:
                self.after[source].append(target)
                self.before[target].append(source)

    def total(self, calls: Sequence[int]) -> float:
        """The weight of some calls."""
        return sum(self.weight[call] for call in calls)

    def levels(self) -> list[int]:
        """How many changes of key lie before each call, at most, on any path to it."""
        level = [0] * len(self.weight)
        for call, sources in enumerate(self.before):
            for source in sources:
                level[call] = max(
                    level[call], level[source] + (self.key[source] != self.key[call])
                )
        return level

    def order(self) -> list[int]:
        """A topological order that follows a branch to its end before the next.

        Kahn's algorithm with a stack: the calls that a call makes ready come next.
        """
        waiting = [len(set(before)) for before in self.before]
        ready = [call for call in reversed(range(len(waiting))) if not waiting[call]]
        order: list[int] = []
        while ready:
            call = ready.pop()
            order.append(call)
            for after in reversed(dict.fromkeys(self.after[call])):
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        return order


def _pieces(run: list[int], calls: _Calls) -> Iterator[list[int]]:
    """Cut calls, which stand in running order, at their seams until they are light."""
    if calls.is_input[run[0]]:
        yield from ([call] for call in run)
        return
    todo = [run]
    while todo:
        run = todo.pop()
        if len(run) == 1 or calls.total(run) <= calls.grain:
            yield run
            continue
        found = _chain(run, calls) or _branches(run, calls) or _slices(run, calls)
        if len(found) == 1:
            yield run
        else:
            todo += reversed(found)


def _chain(run: list[int], calls: _Calls) -> list[list[int]]:
    """Cut where everything passes through the output of one call; [] if nowhere."""
    place = {call: i for i, call in enumerate(run)}
    last_reader = [
        max((place[s] for s in calls.after[call] if s in place), default=i)
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


def _branches(run: list[int], calls: _Calls) -> list[list[int]]:
    """What runs side by side between first and last call; [] if nothing does."""
    for head, tail in ((0, 0), (0, 1), (1, 0), (1, 1)):
        end = len(run) - tail
        components = _components(run[head:end], calls)
        if len(components) > 1:
            return [p for p in [run[:head], *components, run[end:]] if p]
    return []


def _components(run: list[int], calls: _Calls) -> list[list[int]]:
    """Connected components, each in running order, in order of their first call."""
    inside = set(run)
    union = nx.utils.UnionFind(run)
    for call in run:
        for after in calls.after[call]:
            if after in inside:
                union.union(call, after)
    found: dict[int, list[int]] = {}
    for call in run:
        found.setdefault(union[call], []).append(call)
    return list(found.values())


def _slices(run: list[int], calls: _Calls) -> list[list[int]]:
    """Slice the running order into pieces of about the mean weight."""
    slices: list[list[int]] = [[]]
    weight = 0.0
    for call in run:
        if slices[-1] and weight + calls.weight[call] > calls.grain:
            slices.append([])
            weight = 0.0
        slices[-1].append(call)
        weight += calls.weight[call]
    return slices


@dataclass(slots=True)
class _Piece:
    """Calls that will be one part; only `free` pieces of one mark are merged."""

    calls: list[int]
    weight: float
    mark: Hashable
    free: bool

    def joins(self, right: "_Piece") -> bool:
        """Whether the next piece in the order may be merged into this one."""
        return self.free and right.free and self.mark == right.mark

    def merge(self, right: "_Piece") -> None:
        """Take the calls of the next piece."""
        self.calls += right.calls
        self.weight += right.weight


def _merged(pieces: list[_Piece], calls: _Calls) -> list[_Piece]:
    """Merge neighbours in the order: the light ones first, then until few are left.

    Two that stand next to each other in a running order can always be one part. Those
    that run side by side are merged last: several devices are for them.
    """
    limit = 2 * _LIGHT * calls.grain or calls.grain  # not 0 by underflow
    pieces = _swept(pieces, calls, limit, connected=True)
    while _free(pieces) > calls.most and limit < calls.most * calls.grain:
        limit *= 2
        pieces = _swept(pieces, calls, limit, connected=True)
        pieces = _swept(pieces, calls, limit / 2, connected=False)
    while _free(pieces) > calls.most:
        pairs = [
            (left.weight + right.weight, i)
            for i, (left, right) in enumerate(pairwise(pieces))
            if left.joins(right)
        ]
        if not pairs:
            break
        _, i = min(pairs)
        pieces[i].merge(pieces.pop(i + 1))
    return pieces


def _free(pieces: Sequence[_Piece]) -> int:
    return sum(piece.free for piece in pieces)


def _swept(
    pieces: Sequence[_Piece], calls: _Calls, limit: float, *, connected: bool
) -> list[_Piece]:
    """Merge each piece into its left neighbour while the two weigh at most `limit`.

    With `connected`, only a piece that reads from its neighbour.
    """
    kept: list[_Piece] = []
    inside: set[int] = set()
    for piece in pieces:
        reads = (before for call in piece.calls for before in calls.before[call])
        if (
            kept
            and kept[-1].joins(piece)
            and kept[-1].weight + piece.weight <= limit
            and (not connected or any(before in inside for before in reads))
        ):
            kept[-1].merge(piece)
            inside.update(piece.calls)
        else:
            kept.append(piece)
            inside = set(piece.calls)
    return kept


def _regrouped(graph: Graph, pieces: Sequence[Sequence[int]]) -> Graph:
    """The graph with a part per piece.

    Its calls keep their order, so the first call with a weight stays the same one: its
    part is the home of the weight.
    """
    names = _names(graph, pieces)
    part_of = {call: name for name, piece in zip(names, pieces) for call in piece}
    parts = [
        replace(graph.part[graph.calls[piece[0]].part], name=name, near=())
        for name, piece in zip(names, pieces)
    ]
    calls = [replace(call, part=part_of[i]) for i, call in enumerate(graph.calls)]
    return bind_shared_weights(replace(graph, calls=tuple(calls), parts=tuple(parts)))


def _names(graph: Graph, pieces: Sequence[Sequence[int]]) -> list[str]:
    """A name per piece: what its calls' names begin with, where no other call's does.

    Else the first and the last call: "conv2d_3 .. mixed0".
    """
    prefixes = [_prefixes(call.name) for call in graph.calls]
    users = Counter(prefix for each in prefixes for prefix in each)
    names = []
    for piece in pieces:
        first, last = graph.calls[piece[0]].name, graph.calls[piece[-1]].name
        own = [p for p in prefixes[piece[0]] if users[p] == len(piece) > 1]
        shared = [p for p in own if all(p in prefixes[i] for i in piece)]
        if len(piece) == 1:
            names.append(first)
        else:
            names.append(shared[-1] if shared else f"{first} .. {last}")
    return names


def _prefixes(name: str) -> list[str]:
    """What a name begins with, step by step: "a", "a_b", "a_b/c" of "a_b/c"."""
    ends = [match.start() for match in re.finditer(r"[/_]", name) if match.start()]
    return [name[:end] for end in ends] + [name]


def is_convex(edges: Iterable[tuple[T, T]], device: Mapping[T, D]) -> bool:
    """Whether no path of edges leaves a device and comes back to it."""
    graph = nx.DiGraph(edges)
    order = list(nx.topological_sort(graph))
    for place in {device[node] for node in order}:
        left: set[T] = set()
        for node in order:
            if device[node] != place and node not in left:
                continue
            for target in graph.successors(node):
                if device[target] != place:
                    left.add(target)
                elif node in left:
                    return False
    return True


def is_pipeline(edges: Iterable[tuple[T, T]], device: Mapping[T, D]) -> bool:
    """Whether the devices can stand in a line on which no edge goes back."""
    pairs = ((device[a], device[b]) for a, b in edges)
    graph = nx.DiGraph([(a, b) for a, b in pairs if a != b])
    return bool(nx.is_directed_acyclic_graph(graph))
