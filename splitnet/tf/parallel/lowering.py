"""What runs each part of a placed model: decided once, when it is emitted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from splitnet.core.errors import DeclarationError, warn
from splitnet.core.plan import Plan
from splitnet.simulator.microbatch import Pipeline, pipeline_of
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.compilation import how_to_run
from splitnet.tf.parallel.pipeline_checks import check_pipeline
from splitnet.tf.parallel.towers import (
    SynchronisedNorm,
    TowerRunner,
    is_synchronised,
    leaving,
    replicas_of,
)
from splitnet.tf.placement.part_function import PartFunction
from splitnet.tf.placement.placed import Placed, Runner
from splitnet.tf.placement.segments import Segment, segments_of
from splitnet.tf.reading.variables import weights_of

__all__ = ["Way", "lay_out", "way_of"]


@dataclass(frozen=True, slots=True)
class Way:
    """How a placed model runs; `how` is "", "recompute" or "xla", for these devices."""

    pipeline: Pipeline
    how: str
    devices: tuple[str, ...]


def way_of(plan: Plan, *, xla: bool) -> Way:
    """Check how a plan runs, and whether XLA may compile it.

    Raises:
        DeclarationError: an option that cannot be, or two that exclude each other.
    """
    execution = plan.execution
    if not isinstance(xla, bool):
        raise DeclarationError(f"xla= must be True or False. Received: {xla!r}.")
    if execution.schedule == "1f1b" and execution.microbatches == 1:
        raise DeclarationError(
            "schedule='1f1b' bounds the micro-batches in flight, and there is one; "
            "give microbatches=2 or more, or leave schedule out."
        )
    if xla and execution.recompute:
        raise DeclarationError(
            "xla=True and recompute= exclude each other: XLA decides by itself what it "
            "computes again. Leave one of them out."
        )
    pipeline = pipeline_of(plan.graph, plan.device_of, execution)
    if xla:
        return Way(pipeline, "xla", tuple(device.name for device in plan.cluster))
    how = "recompute" if execution.recompute else ""
    return Way(pipeline, how, execution.recompute)


def lay_out(model: Any, placed: Placed, way: Way) -> Placed:
    """The placement with its segments and its pipeline; warns of what it cannot do."""
    check_pipeline(model, way.pipeline)
    placed = replace(placed, pipeline=way.pipeline)
    if not way.how:
        return _lowered(placed)
    plan = placed.plan

    def wanted(key: str) -> bool:
        part = placed.part_of[key]
        return plan.device_of[part] in way.devices and any(
            call.forward_flops for call in plan.graph.calls_of[part]
        )

    how_of, fallbacks = how_to_run(placed, way.how, wanted)
    for one in fallbacks:
        warn(f"{one.requested}: {one.part!r} runs {one.assigned}: {one.reason}.")
    return _lowered(placed, how_of)


def _lowered(placed: Placed, how_of: Mapping[int, str] | None = None) -> Placed:
    """The placement with its runners.

    Args:
        placed: the placement of a model.
        how_of: `PartFunction.how` of the calls that shall not run plainly, by the id of
            their node.
    """
    keys = {part: key for key, part in placed.part_of.items()}
    replicas = {
        node: one
        for name, one in replicas_of(placed.plan, keys).items()
        for node, key in placed.key_of.items()
        if key == keys[name] and node in placed.keys_of
    }
    early = _before_weights(placed)
    units: dict[int, Any] = {}
    for number, node in enumerate(placed.flow.nodes):
        key = placed.key_of[id(node)]
        unit = (
            placed.target_of[key],
            id(node) in early,
            (how_of or {}).get(id(node), ""),
        )
        if id(node) in replicas:
            alone = number if is_synchronised(node, replicas[id(node)]) else ""
            unit = (key, alone, "")
        units[id(node)] = unit
    gone = leaving(placed.flow, replicas)

    def runner(segment: Segment) -> Runner:
        node = segment.nodes[0]
        mine = replicas.get(id(node))
        if mine is not None:
            kind = SynchronisedNorm if is_synchronised(node, mine) else TowerRunner
            return kind(segment, mine, placed, replicas, gone)
        device, _, how = segment.unit
        for one in segment.nodes:
            _bring_constants(one, device)
        return PartFunction(segment, device, how)

    segments = segments_of(placed.flow, placed.key_of, units)
    return replace(placed, runners=tuple(map(runner, segments)))


def _before_weights(placed: Placed) -> set[int]:
    """Calls before all trained weights that lead to a tensor for another device.

    In one function with weights their tensors would seem to depend on these, and their
    gradients would be sent back for nothing. Ids of nodes.
    """
    target = {id(n): placed.target_of[placed.key_of[id(n)]] for n in placed.flow.nodes}
    trained: set[int] = set()
    readers: dict[int, list[int]] = {}
    for node in placed.flow.nodes:
        sources = {id(keras_api.producer(tensor)) for tensor in node.input_tensors}
        if weights_of(node.operation) or sources & trained:
            trained.add(id(node))
        for source in sources:
            readers.setdefault(source, []).append(id(node))
    found: set[int] = set()
    for node in reversed(placed.flow.nodes):
        after = readers.get(id(node), [])
        leaves = any(one in found or target[one] != target[id(node)] for one in after)
        if id(node) not in trained and leaves:
            found.add(id(node))
    return found


def _bring_constants(node: Any, device: str) -> None:
    """Copy constants among a call's arguments to its device, once for all steps."""

    def brought(value: Any) -> Any:
        if not isinstance(value, tf.Tensor):
            return value
        with tf.device(device):
            return tf.identity(value)

    arguments = node.arguments
    arguments.args, arguments.kwargs = arguments.convert(brought)
