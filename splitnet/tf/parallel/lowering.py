"""What runs each part of a placed model: decided once, when it is emitted."""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from splitnet.core.errors import DeclarationError
from splitnet.core.plan import Plan
from splitnet.simulator.microbatch import pipeline_of
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

__all__ = ["check_execution", "lay_out"]


def check_execution(plan: Plan, *, xla: bool) -> None:
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


def lay_out(model: Any, placed: Placed, *, xla: bool) -> Placed:
    """The placement with its pipeline and runners; warns of what it cannot do.

    Raises:
        DeclarationError: the model cannot be cut into micro-batches.
    """
    plan = placed.plan
    pipeline = pipeline_of(plan.graph, plan.device_of, plan.execution)
    check_pipeline(model, pipeline)
    if xla:
        how_of = how_to_run(placed, "xla", [device.name for device in plan.cluster])
    else:
        how_of = how_to_run(placed, "recompute", plan.execution.recompute)
    keys = {part: key for key, part in placed.part_of.items()}
    replicas = {
        node: one
        for name, one in replicas_of(plan, keys).items()
        for node, key in placed.key_of.items()
        if key == keys[name] and node in placed.keys_of
    }
    early = _before_weights(placed)
    units: dict[int, Any] = {}
    for number, node in enumerate(placed.flow.nodes):
        key = placed.key_of[id(node)]
        unit = (placed.target_of[key], id(node) in early, how_of.get(id(node), ""))
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
    return replace(placed, pipeline=pipeline, runners=tuple(map(runner, segments)))


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
