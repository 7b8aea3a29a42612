"""Segments: convex runs of calls that can run as one function."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx

from splitnet.simulator.units import cut_run
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.reading.variables import states_of


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A convex run of calls of one unit.

    `keys` are those of each call's part, `reads` and `gives` the symbolic tensors that
    come from outside and that others need.
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


def segments_of(
    flow: Flow, key_of: Mapping[int, str], unit_of: Mapping[int, Any]
) -> tuple[Segment, ...]:
    """The calls of a model as segments, one per convex run of calls of one unit.

    A segment starts where something arrives from another unit, and ends where something
    is needed in another: its calls have the same number of crossings before them and
    after them.

    Args:
        flow: what the model runs.
        key_of: the key of the part of each call, by the id of its node.
        unit_of: what calls must have in common to run as one, such as their device.
    """
    calls = call_graph(flow)
    before = _crossings(calls, unit_of)
    after = _crossings(calls.reverse(copy=False), unit_of)
    kind = {one: (unit_of[one], before[one], after[one]) for one in calls}
    together = nx.Graph()
    together.add_nodes_from(calls)
    together.add_edges_from((a, b) for a, b in calls.edges if kind[a] == kind[b])
    position = {one: place for place, one in enumerate(calls)}
    numbers, group = itertools.count(), dict[int, int]()
    for members in nx.connected_components(together):
        run = sorted(members, key=position.__getitem__)
        nodes = [calls.nodes[one]["node"] for one in run]
        made = {
            id(tensor): (i, output)
            for i, node in enumerate(nodes)
            for output, tensor in enumerate(node.outputs)
        }
        reads = {
            i: [made[id(t)] for t in node.input_tensors if id(t) in made]
            for i, node in enumerate(nodes)
        }
        # A long run becomes several functions; the simulator uses the same rule.
        for cut in cut_run(range(len(run)), reads):
            group |= dict.fromkeys((run[i] for i in cut), next(numbers))
    readers: dict[int, set[int]] = {id(tensor): {-1} for tensor in flow.outputs}
    for one, node in calls.nodes(data="node"):
        for tensor in node.input_tensors:
            readers.setdefault(id(tensor), set()).add(group[one])
    found = []
    for number, nodes in _in_order(calls, group):
        outputs = [tensor for node in nodes for tensor in node.outputs]
        made = set(map(id, outputs))
        reads = {id(t): t for node in nodes for t in node.input_tensors}
        segment = Segment(
            unit=unit_of[id(nodes[0])],
            nodes=tuple(nodes),
            keys=tuple(key_of[id(node)] for node in nodes),
            reads=tuple(t for i, t in reads.items() if i not in made),
            gives=tuple(t for t in outputs if readers.get(id(t), set()) - {number}),
        )
        found.append(segment)
    return tuple(found)


def call_graph(flow: Flow) -> "nx.DiGraph[int]":
    """The calls of a model by their nodes' ids, in running order, with their readers.

    Each has its `node`.
    """
    calls: nx.DiGraph[int] = nx.DiGraph()
    for node in flow.nodes:
        calls.add_node(id(node), node=node)
        sources = map(keras_api.producer, node.input_tensors)
        calls.add_edges_from((id(s), id(node)) for s in sources if id(s) in calls)
    return calls


def _crossings(calls: "nx.DiGraph[int]", unit_of: Mapping[int, Any]) -> dict[int, int]:
    """The most changes of unit on a way to each call."""
    found: dict[int, int] = {}
    for one in nx.topological_sort(calls):
        ways = calls.predecessors(one)
        changes = (found[other] + (unit_of[other] != unit_of[one]) for other in ways)
        found[one] = max(changes, default=0)
    return found


def _in_order(
    calls: "nx.DiGraph[int]", group: Mapping[int, int]
) -> Iterator[tuple[int, list[Any]]]:
    """Groups of calls in an order in which they can run, near that of the model."""
    order = nx.DiGraph()
    members: dict[int, list[Any]] = {}
    for one, node in calls.nodes(data="node"):
        members.setdefault(group[one], []).append(node)
    order.add_nodes_from(members)
    order.add_edges_from(
        (group[a], group[b]) for a, b in calls.edges if group[a] != group[b]
    )
    last: dict[int, int] = {}  # the group that changed a state variable last
    for one, node in calls.nodes(data="node"):
        for variable in states_of(node.operation):
            before = last.get(id(variable), group[one])
            if before != group[one] and not nx.has_path(order, group[one], before):
                order.add_edge(before, group[one])
            last[id(variable)] = group[one]
    first = {number: place for place, number in enumerate(members)}
    for number in nx.lexicographical_topological_sort(order, key=first.__getitem__):
        yield number, members[number]
