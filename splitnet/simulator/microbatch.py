"""Micro-batches: shares of the batch that pass through the parts one after another.

    gpu:0  |F0|F1|      |B0|F2|B1|F3|B2|  |B3|          F forward, B backward
    gpu:1     |F0|B0|F1|B1|F2|B2|F3|B3|                 of micro-batch 0, 1, ...

A stage is what a device computes before the data go to the next. It runs forward for
one micro-batch after the other, and backward for what is ready. With "gpipe" nothing
else holds it (Huang et al., 2019), so where the loss is it alternates. With "1f1b",
shown above, the stage that is the k-th from the end starts micro-batch m when it is
done with the backward pass of m - k, so that it holds k at most (Narayanan et al.,
"PipeDream", 2019). Gradients are added to the sum of the earlier micro-batches as they
are made, where they are made.
"""

from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from math import ceil
from typing import Any, TypeVar

import networkx as nx

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.costs import CostModel
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Shape
from splitnet.core.plan import Plan
from splitnet.core.replication import MOMENTS, batch_shares, broadcast_inputs
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.simulator.step_graph import StepGraph, Table, step_graph
from splitnet.simulator.task_graph import Edge, SharedWeight

Unit = TypeVar("Unit", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a step is divided; `stage_of` maps a part to its stage, from 1, and device.

    `bounded` says that each stage bounds the micro-batches in flight ("1f1b").
    """

    microbatches: int = 1
    bounded: bool = False
    stage_of: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """How many stages the longest way has."""
        return max(number for number, _ in self.stage_of.values())

    def window(self, stage: int) -> int:
        """How many micro-batches may be in flight in a stage."""
        if not self.bounded:
            return self.microbatches
        return 1 + self.depth - stage


def execution_of(
    plan: Plan,
    microbatches: int | None,
    schedule: str | None,
    recompute: bool | str | None,
) -> Execution:
    """How a plan runs, or shall run where something is not None.

    `recompute="auto"` does so on devices whose memory the plan overfills.

    Raises:
        DeclarationError: with every fault.
    """
    known = plan.execution
    if microbatches is None:
        microbatches = known.microbatches
    if schedule is None:
        schedule = known.schedule if microbatches != 1 else SCHEDULES[0]
    if not (recompute is None or isinstance(recompute, bool) or recompute == "auto"):
        raise DeclarationError(
            f"recompute= must be True, False or 'auto'. Received: {recompute!r}."
        )
    again = known.recompute
    if recompute is not None:
        again = tuple(
            device.name
            for device in plan.cluster
            if recompute is True
            or recompute
            and plan.memory[device.name].total > device.memory_bytes
        )
    made = Execution(microbatches, schedule, again)
    if microbatches > plan.batch:
        raise DeclarationError(
            f"microbatches={microbatches} must be from 1 to the batch, {plan.batch}."
        )
    return made


def pipeline_of(
    graph: Graph, device_of: Mapping[str, str], execution: Execution
) -> Pipeline:
    """The stages of a placement, and how micro-batches pass through them."""
    bounded = execution.schedule == "1f1b" and execution.microbatches > 1
    return Pipeline(execution.microbatches, bounded, stages_of(graph, device_of))


def recomputed_parts(
    graph: Graph, device_of: Mapping[str, str], execution: Execution
) -> frozenset[str]:
    """The parts that run forward again in their backward pass; towers never do."""
    never = ("tower", "weights", "input")
    return frozenset(
        part
        for part, device in device_of.items()
        if device in execution.recompute and graph.part[part].kind not in never
    )


def scaled_graph(graph: Graph, batch: int) -> Graph:
    """The graph for another batch: bytes of outputs and FLOPs grow in proportion.

    Weights, inputs that towers read whole and what a call charges by itself stay. Known
    seconds scale too, which
    flatters small batches; reading the model again is more exact.

    >>> from splitnet.core.graph import Part
    >>> call = Call("a", "a", "Dense", output_bytes=32)
    >>> graph = Graph("g", 4, (call,), parts=(Part("a"),))
    >>> scaled_graph(graph, 6).calls[0].output_bytes
    48
    """
    share = batch / graph.batch
    whole = {c.name for name in broadcast_inputs(graph) for c in graph.calls_of[name]}
    whole |= {call.name for call in graph.calls if call.kind == MOMENTS}

    def size(count: int) -> int:
        return ceil(count * share)

    def shape(sizes: Shape) -> Shape:
        return (batch, *sizes[1:]) if sizes and sizes[0] == graph.batch else sizes

    def scaled(call: Call) -> Call:
        if call.name in whole:
            return call
        known = call.transfer_seconds
        return replace(
            call,
            output_shapes=tuple(shape(one) for one in call.output_shapes),
            output_bytes=size(call.output_bytes),
            forward_flops=call.forward_flops * share,
            backward_flops=call.backward_flops * share,
            moved_bytes=call.moved_bytes * share,
            activation_bytes=size(call.activation_bytes),
            workspace_bytes=size(call.workspace_bytes),
            early_bytes=size(call.early_bytes),
            inner_bytes=None if call.inner_bytes is None else size(call.inner_bytes),
            seconds_on=tuple((kind, s * share) for kind, s in call.seconds_on),
            transfer_seconds=None if known is None else known * share,
        )

    return replace(
        graph,
        batch=batch,
        calls=tuple(scaled(call) for call in graph.calls),
        tensors=tuple(
            t
            if t.source in whole
            else replace(t, shape=shape(t.shape), bytes=size(t.bytes))
            for t in graph.tensors
        ),
    )


@dataclass(frozen=True)
class Accumulating:
    """Costs of a micro-batch that adds its gradients to those of an earlier one.

    `added` has the bytes of the gradients of a call.
    """

    costs: CostModel
    added: Mapping[str, int]

    def forward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of the forward pass."""
        return self.costs.forward_seconds(call, device)

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of the backward pass, and of the sum of gradients."""
        seconds = self.costs.backward_seconds(call, device)
        added = self.added.get(call.name)
        return seconds + (self.update_seconds(added, device, "sgd") if added else 0.0)

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """Seconds of an update, which does not depend on the batch."""
        return self.costs.update_seconds(count, device, optimizer)

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The link between two devices."""
        return self.costs.link(source, target, cluster)


def stages_of(graph: Graph, device_of: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """The stage of each part but the inputs: its number, from 1, and its device.

    The number counts the devices that compute one after another on the longest way to
    the part. Parts of one number on one device are one stage.
    """
    computes = {call.part for call in graph.calls if call.forward_flops}
    readers: dict[str, list[str]] = {}
    for tensor in graph.tensors:
        readers.setdefault(tensor.source, []).append(tensor.target)
    reached: dict[str, tuple[int, str]] = {}  # stages before a call, and the last
    stages: dict[str, tuple[int, str]] = {}
    for call in graph.calls:
        count, before = reached.get(call.name, (0, ""))
        device = device_of[call.part]
        if call.part in computes and device != before:
            count, before = count + 1, device
        if graph.part[call.part].kind != "input":
            stages[call.part] = max(stages.get(call.part, (1, device)), (count, device))
        for reader in readers.get(call.name, ()):
            reached[reader] = max(reached.get(reader, (-1, "")), (count, before))
    return stages


def stage_count(graph: Graph, device_of: Mapping[str, str]) -> int:
    """How many stages the longest way to an output has."""
    stages = stages_of(graph, device_of).values()
    return max((number for number, _ in stages), default=1)


def microbatch_step(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    pipeline: Pipeline,
    *,
    recompute: bool | Collection[str] = False,
    training: bool = True,
    optimizer: str = "adam",
) -> StepGraph:
    """One step of several micro-batches: its parts, once for each of them.

    Graph and costs are those of the whole batch; the rest is as in `step_graph`.
    """
    sizes = batch_shares(graph.batch, pipeline.microbatches)
    trained = {w.name: w.bytes for w in graph.weights if w.trainable}
    added = {
        call.name: sum(trained.get(name, 0) for name in call.weights)
        for call in graph.calls
    }

    @cache
    def piece(size: int, adds: bool) -> StepGraph:
        return step_graph(
            scaled_graph(graph, size),
            cluster,
            Accumulating(costs, added) if adds else costs,
            training=training,
            optimizer=optimizer,
            recompute=recompute,
        )

    return in_schedule(
        _repeated([piece(size, m > 0) for m, size in enumerate(sizes)]), pipeline
    )


_EACH = (
    *("names", "parts", "calls", "has_backward", "explicit_backward", "saved_bytes"),
    *("forward_workspace", "backward_workspace", "learned_bytes"),
    *("waiting_workspace", "early_workspace"),
)
_ONCE = ("weight_bytes", "saved_floor")
"""Columns of a step that each micro-batch has, and those that only the first has."""


def _repeated(pieces: Sequence[StepGraph]) -> StepGraph:
    """One step of several micro-batches, from the step of each.

    The pieces have the same units and use the same weights, which are at home, and are
    updated, in the first piece.
    """
    first, n = pieces[0], pieces[0].count
    nothing = (0,) * (n * (len(pieces) - 1))
    columns: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(one, name) for one in pieces))
        for name in _EACH
    }
    columns |= {name: (*getattr(first, name), *nothing) for name in _ONCE}
    return replace(
        first,
        **columns,
        forward=_side_by_side([one.forward for one in pieces]),
        backward=_side_by_side([one.backward for one in pieces]),
        update=_side_by_side([first.update, [nothing] * first.device_count]),
        edges=tuple(
            _later(edge, m * n) for m, one in enumerate(pieces) for edge in one.edges
        ),
        all_weights=tuple(
            _used_by_all(same, n) for same in zip(*(one.all_weights for one in pieces))
        ),
        microbatches=len(pieces),
    )


def _side_by_side(tables: Sequence[Sequence[tuple[float, ...]]]) -> Table:
    """Tables beside each other; equal rows are one object."""
    known: dict[tuple[float, ...], tuple[float, ...]] = {}
    rows = (tuple(chain.from_iterable(row)) for row in zip(*tables))
    return tuple(known.setdefault(row, row) for row in rows)


def _later(edge: Edge, by: int) -> Edge:
    """The same tensor between units whose numbers are higher by so many."""
    return replace(
        edge,
        source=edge.source + by,
        readers=tuple(unit + by for unit in edge.readers),
        gradients_from=tuple(unit + by for unit in edge.gradients_from),
        saved_by=tuple(unit + by for unit in edge.saved_by),
    )


def _used_by_all(same: Sequence[SharedWeight], n: int) -> SharedWeight:
    """A weight of all pieces, each of `n` units."""
    rows = [one.row_bytes or (0,) * len(one.gradients_from) for one in same]
    return replace(
        same[0],
        users=tuple(m * n + u for m, one in enumerate(same) for u in one.users),
        gradients_from=tuple(
            m * n + u for m, one in enumerate(same) for u in one.gradients_from
        ),
        row_bytes=tuple(chain.from_iterable(rows)) if any(map(any, rows)) else (),
    )


def runs_of(
    units: "nx.DiGraph[Unit]", stage_of: Mapping[Unit, tuple[int, str]]
) -> "Iterator[tuple[int, nx.DiGraph[Unit]]]":
    """The number of each stage with what hangs together there, as a graph of units."""
    members: dict[tuple[int, str], list[Unit]] = {}
    for unit, stage in stage_of.items():
        members.setdefault(stage, []).append(unit)
    for (number, _), inside in members.items():
        graph = units.subgraph(inside)
        for run in nx.weakly_connected_components(graph):
            yield number, graph.subgraph(run)


def in_schedule(step: StepGraph, pipeline: Pipeline) -> StepGraph:
    """The step of micro-batches, its tasks in the order of a pipeline.

    Where a stage begins it waits for its end of the micro-batch before, and for its
    backward tasks of the last micro-batch that must have left it. The last of several
    stages, and with "gpipe" each that makes an output, is assumed to alternate, because
    TensorFlow runs first what became ready last; nothing forces that.
    """
    count = pipeline.microbatches
    n = step.count // count
    units: nx.DiGraph[int] = nx.DiGraph()
    units.add_nodes_from(range(n))
    units.add_edges_from(
        (edge.source, reader)
        for edge in step.edges
        if edge.source < n
        for reader in edge.readers
    )
    stages = {
        unit: pipeline.stage_of[part]
        for unit, part in enumerate(step.parts[:n])
        if part in pipeline.stage_of
    }
    waits: list[tuple[int, int]] = []
    assumed: list[tuple[int, int]] = []
    for number, run in runs_of(units, stages):
        begin = sorted(u for u in run if not run.in_degree(u))
        end = sorted(u for u in run if not run.out_degree(u))
        flows = run.subgraph(u for u in run if step.has_backward[u])
        last = sorted(u for u in flows if not flows.in_degree(u))
        window = pipeline.window(number)
        if not pipeline.bounded and not all(units.out_degree(unit) for unit in run):
            window = 1
        forced = pipeline.bounded and (window > 1 or pipeline.depth == 1)
        for m in range(1, count):
            for unit in begin:
                waits += [(m * n + unit, (m - 1) * n + other) for other in end]
                if m >= window:
                    done = 2 * n * count - 1 - (m - window) * n
                    left = [(m * n + unit, done - other) for other in last]
                    (waits if forced else assumed).extend(left)
    return replace(step, waits=tuple(waits), assumed=tuple(assumed))


def largest_true(holds: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` for which a falling property holds, or 0.

    Doubles, then halves: O(log most) tries.

    >>> largest_true(lambda n: n * n <= 1000, 4096)
    31
    """
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
