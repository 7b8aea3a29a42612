"""Segments: convex runs of calls that can run as one function."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from splitnet.simulator.units import cut_run
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.reading.variables import states_of

__all__ = ["Segment", "segments_of"]


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
    before = _crossings(flow.nodes, unit_of)
    after = _crossings(flow.nodes[::-1], unit_of, _readers(flow.nodes))
    together = nx.Graph()
    for node in flow.nodes:
        together.add_node(id(node))
        for source in _sources(node):
            if id(source) in unit_of and all(
                rank[id(source)] == rank[id(node)] for rank in (unit_of, before, after)
            ):
                together.add_edge(id(source), id(node))
    runs = [
        run
        for members in nx.connected_components(together)
        for run in _cut([node for node in flow.nodes if id(node) in members])
    ]
    group = {id(node): number for number, run in enumerate(runs) for node in run}
    return tuple(
        _segment(flow, nodes, key_of, unit_of) for nodes in _in_order(flow.nodes, group)
    )


def _cut(nodes: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """A long run of calls as several functions; the simulator uses the same rule."""
    made = {
        id(tensor): (i, output)
        for i, node in enumerate(nodes)
        for output, tensor in enumerate(node.outputs)
    }
    reads = {
        i: [made[id(t)] for t in node.input_tensors if id(t) in made]
        for i, node in enumerate(nodes)
    }
    for run in cut_run(range(len(nodes)), reads):
        yield [nodes[i] for i in run]


def _in_order(nodes: Sequence[Any], group: Mapping[int, int]) -> Iterator[list[Any]]:
    """Groups of calls in an order in which they can run, near that of the model."""
    order = nx.DiGraph()
    members: dict[int, list[Any]] = {}
    for node in nodes:
        members.setdefault(group[id(node)], []).append(node)
        order.add_node(group[id(node)])
        for source in _sources(node):
            if group.get(id(source), group[id(node)]) != group[id(node)]:
                order.add_edge(group[id(source)], group[id(node)])
    for one, other in _state_order(nodes):
        mine, its = group[id(one)], group[id(other)]
        if mine != its and not nx.has_path(order, its, mine):
            order.add_edge(mine, its)
    first = {number: place for place, number in enumerate(members)}
    for number in nx.lexicographical_topological_sort(order, key=first.__getitem__):
        yield members[number]


def _state_order(nodes: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Calls that change a state variable, each with the next that does."""
    last: dict[int, Any] = {}
    for node in nodes:
        for variable in states_of(node.operation):
            if id(variable) in last:
                yield last[id(variable)], node
            last[id(variable)] = node


def _sources(node: Any) -> list[Any]:
    return [keras_api.producer(tensor) for tensor in node.input_tensors]


def _readers(nodes: Sequence[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for node in nodes:
        for source in _sources(node):
            found.setdefault(id(source), []).append(node)
    return found


def _crossings(
    nodes: Sequence[Any],
    unit_of: Mapping[int, Any],
    readers: Mapping[int, list[Any]] | None = None,
) -> dict[int, int]:
    """The most changes of unit on a way to each node, or from it with `readers`."""
    found: dict[int, int] = {}
    for node in nodes:
        others = _sources(node) if readers is None else readers.get(id(node), [])
        found[id(node)] = max(
            (
                found[id(one)] + (unit_of[id(one)] != unit_of[id(node)])
                for one in others
                if id(one) in found
            ),
            default=0,
        )
    return found


def _segment(
    flow: Flow,
    nodes: list[Any],
    key_of: Mapping[int, str],
    unit_of: Mapping[int, Any],
) -> Segment:
    mine = {id(node) for node in nodes}
    reads = {
        id(tensor): tensor
        for node in nodes
        for tensor in node.input_tensors
        if id(keras_api.producer(tensor)) not in mine
    }
    outside = {id(tensor) for tensor in flow.outputs} | {
        id(tensor)
        for node in flow.nodes
        if id(node) not in mine
        for tensor in node.input_tensors
    }
    return Segment(
        unit=unit_of[id(nodes[0])],
        nodes=tuple(nodes),
        keys=tuple(key_of[id(node)] for node in nodes),
        reads=tuple(reads.values()),
        gives=tuple(t for node in nodes for t in node.outputs if id(t) in outside),
    )
