"""Segments: convex runs of calls that can run as one function."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from splitnet.simulator.units import cut_run
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.reading.variables import states_of


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A convex run of calls of one unit, each with the key of its part.

    `reads` and `gives` are the tensors that come from outside and that others need.
    """

    unit: Any
    nodes: tuple[Any, ...]
    keys: tuple[str, ...]
    reads: tuple[Any, ...]
    gives: tuple[Any, ...]

    @property
    def key(self) -> str:
        """The key of the part of the first call."""
        return self.keys[0]


def call_graph(flow: Flow) -> "nx.DiGraph[int]":
    """The calls of a model by the ids of their nodes, with their readers and `node`."""
    calls: nx.DiGraph[int] = nx.DiGraph()
    for node in flow.nodes:
        calls.add_node(id(node), node=node)
        sources = map(keras_api.producer, node.input_tensors)
        calls.add_edges_from((id(s), id(node)) for s in sources if id(s) in calls)
    return calls


def segments_of(
    flow: Flow, key_of: Mapping[int, str], unit_of: Mapping[int, Any]
) -> tuple[Segment, ...]:
    """The calls of a model as segments, in an order in which they can run.

    A segment starts where something arrives from another unit, and ends where something
    is needed in another: its calls have the same number of crossings before them and
    after them. A long one is cut by the simulator's rule. By the ids of nodes, `key_of`
    has the keys of parts, `unit_of` what the calls of a segment have in common.
    """
    calls = call_graph(flow)
    ways = _crossings(calls, unit_of), _crossings(calls.reverse(copy=False), unit_of)
    kind = {one: (unit_of[one], *(way[one] for way in ways)) for one in calls}
    together = nx.Graph((a, b) for a, b in calls.edges if kind[a] == kind[b])
    together.add_nodes_from(calls)
    place = {one: number for number, one in enumerate(calls)}
    sources = {
        one: [(id(keras_api.producer(t)), id(t)) for t in node.input_tensors]
        for one, node in calls.nodes(data="node")
    }
    group: dict[int, int] = {}  # of each call, the place of the first in its segment
    for members in nx.connected_components(together):
        for run in cut_run(sorted(members, key=place.__getitem__), sources):
            group |= dict.fromkeys(run, place[run[0]])

    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(sorted(set(group.values())))
    order.add_edges_from(
        (group[a], group[b]) for a, b in calls.edges if group[a] != group[b]
    )
    nodes: dict[int, list[Any]] = {}
    readers: dict[int, set[int]] = {id(tensor): {-1} for tensor in flow.outputs}
    changed: dict[int, int] = {}  # the group that changed a state variable last
    for one, node in calls.nodes(data="node"):
        mine = group[one]
        nodes.setdefault(mine, []).append(node)
        for tensor in node.input_tensors:
            readers.setdefault(id(tensor), set()).add(mine)
        for variable in states_of(node.operation):
            before = changed.get(id(variable), mine)
            if before != mine and not nx.has_path(order, mine, before):
                order.add_edge(before, mine)
            changed[id(variable)] = mine

    found = []
    for number in nx.lexicographical_topological_sort(order):
        run = nodes[number]
        outputs = [tensor for node in run for tensor in node.outputs]
        made = set(map(id, outputs))
        reads = {id(t): t for node in run for t in node.input_tensors}
        segment = Segment(
            unit=unit_of[id(run[0])],
            nodes=tuple(run),
            keys=tuple(key_of[id(node)] for node in run),
            reads=tuple(t for i, t in reads.items() if i not in made),
            gives=tuple(t for t in outputs if readers.get(id(t), set()) - {number}),
        )
        found.append(segment)
    return tuple(found)


def _crossings(calls: "nx.DiGraph[int]", unit_of: Mapping[int, Any]) -> dict[int, int]:
    """The most changes of unit on a way to each call."""
    found: dict[int, int] = {}
    for one in nx.topological_sort(calls):
        before = calls.predecessors(one)
        changes = (found[other] + (unit_of[other] != unit_of[one]) for other in before)
        found[one] = max(changes, default=0)
    return found
