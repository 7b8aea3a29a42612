"""One training step as a task graph of units, in plain numbers.

A unit is what runs as one function on one device: a part of a plan. It starts when all
its inputs are there, and all its outputs are there when it ends. It has up to three
tasks: its forward pass, its backward pass, and the update of the weights at home there.

Tasks are numbered in the order in which ties are broken: of n units, the forward task
of unit u is u, its backward task 2n - 1 - u, its update 2n + u.

An output is copied once to each device that reads it, and the gradients of its readers
there are summed before they cross back. A weight that is used away from its home goes
there once in a step, and its summed gradient comes back once. Micro-batches repeat the
units; the weights, and their updates, are those of the first.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal

import networkx as nx

from splitnet.core.cluster import Cluster, Link
from splitnet.core.costs import CostModel, Costs, slots_of
from splitnet.core.graph import Graph, grouped
from splitnet.core.replication import batch_shares
from splitnet.simulator import units as timing
from splitnet.simulator.tensors import Item, UnitMemory, edges_and_memory
from splitnet.simulator.units import Row, Units, group_parts, scaled_graph, unit_of_call

Table = tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """What runs as one function.

    `name` and `part` are those of its first call, of so many `calls`. In a graph that
    holds backward calls it may be an `explicit_backward`. `saved_floor` has, of the
    saved activations that all devices together surely hold at one moment, its own;
    `weight_bytes` and `trained` are of weights at home there, and those that it learns.
    """

    name: str
    part: str
    calls: int
    has_backward: bool
    explicit_backward: bool
    memory: UnitMemory
    saved_floor: int
    weight_bytes: int
    trained: tuple[Item, ...]

    @property
    def trained_bytes(self) -> int:
        """Weights at home there that are updated."""
        return sum(weight.bytes for weight in self.trained)


@dataclass(frozen=True)
class StepGraph:
    """Units, the tensors between them and the weights beside them.

    Units are numbered in an order in which they may run, those of one micro-batch after
    those of another. `weights` are those that several units use. `task_seconds` has a
    row per device, 0 for units without the task; equal devices share one. A copy takes
    `latency` before its first byte arrives, for `gap` of these seconds (LogGP) it
    occupies its link, then `seconds_per_byte`, and then `overhead` per byte, for which
    its ends are occupied; tables of links have a row per source. There are
    `slot_copies` of every trained weight. In each pair of `waits` the first task starts
    after the other; pairs in `assumed` hold, but nothing forces them. A gradient is
    added to those of other micro-batches when `sums_behind` more of them are there.
    """

    units: tuple[Unit, ...]
    edges: tuple[Item, ...]
    weights: tuple[Item, ...]
    task_seconds: Table
    latency: Table
    gap: Table
    seconds_per_byte: Table
    overhead: Table
    slot_copies: int
    microbatches: int
    waits: tuple[tuple[int, int], ...] = ()
    assumed: tuple[tuple[int, int], ...] = ()
    sums_behind: int = 0

    @property
    def count(self) -> int:
        """How many units there are."""
        return len(self.units)

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return len(self.task_seconds)

    @cached_property
    def parts(self) -> list[str]:
        """The part of each unit."""
        return [unit.part for unit in self.units]

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """What is copied: the edges, then the weights."""
        return (*self.edges, *self.weights)

    def sum_task(self, item: Item) -> int:
        """The task that waits for the sum of an item's gradients."""
        last = 2 * self.count - 1
        return last + 1 + item.source if item.is_weight else last - item.source

    @cached_property
    def successors(self) -> list[list[int]]:
        """Per task, those that depend on it directly, on the same device."""
        last = 2 * self.count - 1
        found: list[list[int]] = [[] for _ in range(3 * self.count)]
        for task, other in self.waits:
            found[other].append(task)
        for u, unit in enumerate(self.units):
            if unit.has_backward:
                found[u].append(last - u)
                if unit.trained:
                    found[last - u].append(last + 1 + u)
        return found

    def arcs(self) -> Iterator[tuple[int, int, Item | None]]:
        """Each task, one that depends on it, and what passes from one to the other."""
        for task, after in enumerate(self.successors):
            yield from ((task, other, None) for other in after)
        for edge in self.edges:
            yield from ((edge.source, reader, edge) for reader in edge.readers)
        for item in self.items:
            makers = (2 * self.count - 1 - unit for unit in item.gradients_from)
            yield from ((maker, self.sum_task(item), item) for maker in makers)

    @cached_property
    def outputs(self) -> list[list[int]]:
        """Per unit, the edges that its forward task makes."""
        return self._numbers_of([edge.source] for edge in self.edges)

    @cached_property
    def reads(self) -> list[list[int]]:
        """Per unit, the edges from other functions; an input of the model is none."""
        called = {reader for edge in self.edges for reader in edge.readers}
        called |= {unit for unit in range(self.count) if self.task_seconds[0][unit]}
        readers = (e.readers if e.source in called else () for e in self.edges)
        return self._numbers_of(readers)

    @cached_property
    def contributes(self) -> list[list[int]]:
        """Per unit, the items to whose gradient its backward task contributes."""
        return self._numbers_of(item.gradients_from for item in self.items)

    def _numbers_of(self, units: Iterable[Iterable[int]]) -> list[list[int]]:
        """Per unit, the numbers of the lists that name it."""
        found: list[list[int]] = [[] for _ in self.units]
        for number, own in enumerate(units):
            for unit in own:
                found[unit].append(number)
        return found

    @cached_property
    def unit_seconds(self) -> Table:
        """Seconds of all tasks of every unit per device."""
        n, made = self.count, dict[Row, Row]()
        for row in {*self.task_seconds}:
            three = zip(row[:n], reversed(row[n : 2 * n]), row[2 * n :])
            made[row] = tuple(map(sum, three))
        return tuple(made[row] for row in self.task_seconds)

    @cached_property
    def tails(self) -> list[float]:
        """Least seconds from the end of each task to the step's: copies are free."""
        fastest = [min(each) for each in zip(*self.task_seconds)]
        tails = [0.0] * len(fastest)
        for task, other, _ in sorted(self.arcs(), key=itemgetter(0), reverse=True):
            if other > task:
                tails[task] = max(tails[task], fastest[other] + tails[other])
        return tails


def step_graph(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel | None = None,
    *,
    training: bool = True,
    optimizer: str = "adam",
    units: Literal["parts", "calls"] | Units = "parts",
    recompute: Collection[str] = (),
    microbatches: int = 1,
    of_calls: StepGraph | None = None,
) -> StepGraph:
    """Lay out one step of a graph as tasks. O(calls x kinds of device + tensors).

    A graph that holds backward calls itself (a workload file) gets no backward tasks.
    `units` are "parts", "calls", or say which calls run as one. Parts in `recompute`
    run forward again in their backward tasks, so that only their inputs are saved.
    With the step of single calls, functions take the seconds of their calls from there.
    """
    costs = costs or Costs()
    if units == "parts":
        units = group_parts(graph)
    elif isinstance(units, str):
        units = [(i,) for i in range(len(graph.calls))]
    first = [graph.calls[own[0]] for own in units]
    again = [call.part in recompute for call in first]
    flows = [False] * len(graph.calls)
    if of_calls is not None:
        flows = [unit.has_backward for unit in of_calls.units]
    elif training and not any(call.backward for call in graph.calls):
        flows = _gradient_flow(graph)
    shares = batch_shares(graph.batch, microbatches)
    sizes = {size: scaled_graph(graph, size) for size in shares}
    pieces = [sizes[size] for size in shares]
    inside = {n: edges_and_memory(g, units, flows, again) for n, g in sizes.items()}
    weights = [*_weights(pieces, unit_of_call(units), flows)]
    home = grouped(weights, lambda weight: weight.source)
    backward = [any(flows[i] for i in own) for own in units]
    floor = _saved_floor(*inside[shares[0]], backward)
    made, edges = list[Unit](), list[Item]()
    for m, size in enumerate(shares):
        outputs, memory = inside[size]
        edges += [edge.shifted(len(made)) if m else edge for edge in outputs]
        for u, (call, own) in enumerate(zip(first, units)):
            own_weights = home.get(len(made), [])
            fixed = sum(graph.calls[i].size_bytes for i in own) * (m == 0)
            unit = Unit(
                name=call.name,
                part=call.part,
                calls=len(own),
                has_backward=backward[u],
                explicit_backward=call.backward,
                memory=memory[u],
                saved_floor=floor[u] * (m == 0),
                weight_bytes=sum(w.bytes for w in own_weights) + fixed,
                trained=tuple(w for w in own_weights if w.gradients_from),
            )
            made.append(unit)
    # What scales the seconds of other costs tells apart what those do; of a foreign
    # cost model any two devices may differ. Else speeds decide, not name and memory.
    known, rows = getattr(costs, "costs", costs), dict[object, Row]()
    keys: list[object] = [
        (device.kind, *astuple(device)[3:])
        if isinstance(known, Costs) and device.name not in known.devices
        else device.name
        for device in cluster
    ]
    for d, (key, device) in enumerate(zip(keys, cluster)):
        if key not in rows:
            how = pieces, device, costs, optimizer, flows, recompute
            row = of_calls.task_seconds[d] if of_calls else timing.call_seconds(*how)
            rows[key] = timing.function_seconds(row, units, device.part_seconds)
    links = [[costs.link(a.name, b.name, cluster) for b in cluster] for a in cluster]

    def table(figure: Callable[[Link], float]) -> Table:
        return tuple(tuple(map(figure, row)) for row in links)

    return StepGraph(
        units=tuple(made),
        edges=tuple(edges),
        weights=tuple(one for one in weights if len(one.readers) > 1),
        task_seconds=tuple(rows[key] for key in keys),
        latency=table(lambda link: link.latency_seconds),
        gap=table(lambda link: link.gap),
        seconds_per_byte=table(lambda link: 1.0 / link.bytes_per_second),
        overhead=table(lambda link: link.overhead_per_byte),
        slot_copies=slots_of(optimizer) if training else 0,
        microbatches=microbatches,
    )


def _gradient_flow(graph: Graph) -> list[bool]:
    """Which calls have a backward pass: between a trained weight and an output."""
    flow: nx.DiGraph[Any] = nx.DiGraph()
    flow.add_nodes_from(graph.call)
    passing = (t for t in graph.tensors if t.differentiable)
    stops = {call.name for call in graph.calls if call.kind == "StopGradient"}
    flow.add_edges_from((t.source, t.target) for t in passing if t.target not in stops)
    ends = graph.outputs or [name for name in flow if not flow.out_degree(name)]
    learned = {w.name for w in graph.weights if w.trainable}
    begin, end = 0, 1  # before the first calls, and behind the last
    flow.add_nodes_from([begin, end])
    flow.add_edges_from((begin, c.name) for c in graph.calls if learned & {*c.weights})
    flow.add_edges_from((name, end) for name in ends)
    both = nx.descendants(flow, begin) & nx.ancestors(flow, end)
    return [name in both for name in graph.call]


def _weights(
    pieces: Sequence[Graph], unit_of: Sequence[int], flows: Sequence[bool]
) -> Iterator[Item]:
    """Every weight that is used, with the units of all micro-batches that use it."""
    graph, count = pieces[0], max(unit_of, default=-1) + 1
    # Per weight and unit, the bytes of rows of each gradient; 0 for a whole one.
    uses: dict[str, dict[int, list[int]]] = {w.name: {} for w in graph.weights}
    for m, piece in enumerate(pieces):
        read = {call.name: 0 for call in piece.calls if call.lookups}
        for tensor in piece.tensors:
            if tensor.target in read:
                read[tensor.target] += tensor.bytes
        for call, unit, flow in zip(piece.calls, unit_of, flows):
            for name in call.weights:
                made = uses[name].setdefault(m * count + unit, [])
                if flow and graph.weight[name].trainable:
                    rows = call.output_bytes + read.get(call.name, 0)
                    made.append(rows if name in call.lookups else 0)
    for w in graph.weights:
        if own := uses[w.name]:
            givers = {unit: rows for unit, rows in own.items() if rows}
            # A whole gradient beside rows makes the sum of the unit a whole one.
            sent = tuple(sum(rows) if all(rows) else 0 for rows in givers.values())
            yield Item(
                source=next(iter(own)),
                readers=tuple(own),
                bytes=w.bytes,
                gradients_from=tuple(givers),
                row_bytes=sent if any(sent) else (),
                is_weight=True,
            )


def _saved_floor(
    edges: Sequence[Item], memory: Sequence[UnitMemory], has_backward: Sequence[bool]
) -> list[int]:
    """Saved bytes of each unit that are surely held at one moment.

    As a backward pass begins, all units that lead there hold what they saved. Several
    ends may begin one after the other: only what leads to the largest is certain.
    """
    own = [inside.saved for inside in memory]
    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_nodes_from(unit for unit, back in enumerate(has_backward) if back)
    for edge in edges:
        flow.add_edges_from((edge.source, reader) for reader in edge.gradients_from)
        if edge.saved_by:
            own[edge.saved_by[0]] += edge.bytes
    ends = (unit for unit in reversed(list(flow)) if not flow.out_degree(unit))
    held = [nx.ancestors(flow, end) | {end} for end in ends]
    most = max(held or [set[int]()], key=lambda units: sum(own[u] for u in units))
    return [size if unit in most else 0 for unit, size in enumerate(own)]
