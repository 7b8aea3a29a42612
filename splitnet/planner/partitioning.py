r"""Calls brought to parts: convex sets of calls, named as a person would name them.

A Keras model that nobody declared comes with a part per call. After a search on calls,
the functions that run on the devices are the parts:

    gpu:0   a - b - c . . . f - g      parts: {a, b} {c} {f, g} on gpu:0
                 \         /                  {d, e} on gpu:1
    gpu:1         d - - - e

A function starts where something arrives from another device, and ends where another
device needs its output. Every part is convex: the graph of the parts has no cycle.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby

import networkx as nx

from splitnet.core.graph import Graph
from splitnet.simulator.memory import functions_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.units import Units


def bind_shared_weights(graph: Graph) -> Graph:
    """Bind parts that share weights by near=, unless they request unlike devices."""
    near: dict[str, dict[str, None]] = {}
    for users in graph.parts_of_weights.values():
        for other in users[1:]:
            if graph.part[other].on == graph.part[users[0]].on:
                near.setdefault(other, {})[users[0]] = None
    parts = (replace(p, near=(*p.near, *near.get(p.name, ()))) for p in graph.parts)
    return replace(graph, parts=tuple(parts))


def running_order(
    before: Sequence[Collection[int]], after: Sequence[Iterable[int]]
) -> list[int]:
    """A topological order that follows a branch to its end before the next.

    Kahn's algorithm with a stack: the calls that a call makes ready come next.
    """
    waiting = [len(sources) for sources in before]
    ready = [call for call in reversed(range(len(waiting))) if not waiting[call]]
    order: list[int] = []
    while ready:
        call = ready.pop()
        order.append(call)
        for reader in reversed(list(after[call])):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order


def functions(graph: Graph, step: StepGraph, device: Sequence[int]) -> Units:
    """Cut a placement of calls into the functions that run, in running order.

    The graph has a part per call, the step a unit; calls with different requests are
    different functions.
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
    return [pieces[i] for i in running]


def in_functions(
    graph: Graph, step: StepGraph, device_of: Mapping[str, str]
) -> tuple[Graph, dict[str, str]]:
    """The graph with a part per function, and the device of each part.

    It has a part per call before, the step a unit. Its calls keep their order, so the
    first call with a weight stays the same one: its part is the home of the weight.
    """
    number = {name: i for i, name in enumerate(dict.fromkeys(device_of.values()))}
    pieces = functions(graph, step, [number[device_of[u.name]] for u in step.units])
    names = _names(graph, pieces)
    part_of = {call: name for name, piece in zip(names, pieces) for call in piece}
    parts = tuple(
        replace(graph.part[graph.calls[piece[0]].part], name=name, near=())
        for name, piece in zip(names, pieces)
    )
    calls = tuple(replace(one, part=part_of[i]) for i, one in enumerate(graph.calls))
    parted = bind_shared_weights(replace(graph, calls=calls, parts=parts))
    return parted, {call.part: device_of[call.name] for call in calls}


def request_keys(graph: Graph) -> list[int]:
    """A number per call: calls may be one part if where they may be is the same."""
    parts = [graph.part[call.part] for call in graph.calls]
    keys = [
        (part.kind == "input", call.cpu_only, part.on)
        for call, part in zip(graph.calls, parts)
    ]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]


def _names(graph: Graph, pieces: Sequence[Sequence[int]]) -> list[str]:
    """What only the names of a piece begin with; or both ends: "conv2d_3 .. mixed0"."""
    prefixes = [_prefixes(call.name) for call in graph.calls]
    users = Counter(chain.from_iterable(prefixes))
    names = []
    for piece in pieces:
        first, last = graph.calls[piece[0]].name, graph.calls[piece[-1]].name
        found = [first if len(piece) == 1 else f"{first} .. {last}"]
        for prefix in prefixes[piece[0]] if len(piece) > 1 else ():
            own = users[prefix] == len(piece)
            if own and all(prefix in prefixes[call] for call in piece):
                found.append(prefix)
        names.append(found[-1])
    return names


def _prefixes(name: str) -> list[str]:
    """What a name begins with, step by step: "a", "a_b", "a_b/c" of "a_b/c"."""
    ends = [match.start() for match in re.finditer(r"[/_]", name) if match.start()]
    return [name[:end] for end in ends] + [name]
