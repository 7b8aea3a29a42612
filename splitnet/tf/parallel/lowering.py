"""What runs each part of a placed model: decided once, when it is emitted."""

from dataclasses import replace
from typing import Any

import tensorflow as tf

from splitnet.core.errors import DeclarationError
from splitnet.core.plan import Plan
from splitnet.simulator.microbatch import pipeline_of
from splitnet.tf.parallel.compilation import how_to_run
from splitnet.tf.parallel.pipeline_checks import check_pipeline
from splitnet.tf.parallel.towers import (
    SynchronisedNorm,
    TowerRunner,
    is_synchronised,
    leaving,
)
from splitnet.tf.placement.part_function import PartFunction
from splitnet.tf.placement.placed import Placed
from splitnet.tf.placement.segments import call_graph, segments_of
from splitnet.tf.reading.variables import weights_of


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
    replicas = placed.replicas
    early = _before_weights(placed)
    units: dict[int, Any] = {}
    for number, node in enumerate(placed.flow.nodes):
        mine = replicas.get(id(node))
        units[id(node)] = (
            (placed.target(node), id(node) in early, how_of.get(id(node), ""))
            if mine is None
            else (mine.join, number if is_synchronised(node, mine) else "", "")
        )
    gone = leaving(placed)
    runners: list[Any] = []
    for segment in segments_of(placed.flow, placed.key_of, units):
        node = segment.nodes[0]
        mine = replicas.get(id(node))
        if mine is not None:
            kind = SynchronisedNorm if is_synchronised(node, mine) else TowerRunner
            runners.append(kind(segment, mine, placed, gone))
            continue
        device, _, how = segment.unit
        for one in segment.nodes:
            _bring_constants(one, device)
        runners.append(PartFunction(segment, device, how))
    return replace(placed, pipeline=pipeline, runners=tuple(runners))


def _before_weights(placed: Placed) -> set[int]:
    """Calls before all trained weights that lead to a tensor for another device.

    In one function with weights their tensors would seem to depend on these, and their
    gradients would be sent back for nothing. Ids of nodes.
    """
    calls = call_graph(placed.flow)
    trained: set[int] = set()
    for one, node in calls.nodes(data="node"):
        if weights_of(node.operation) or trained & set(calls.predecessors(one)):
            trained.add(one)
    found: set[int] = set()
    for one, node in reversed(list(calls.nodes(data="node"))):
        home = placed.target(node)
        if one not in trained and any(
            reader in found or placed.target(calls.nodes[reader]["node"]) != home
            for reader in calls.successors(one)
        ):
            found.add(one)
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
