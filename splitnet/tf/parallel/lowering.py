"""What runs each part of a placed model: decided once, when it is emitted.

Parts that recompute, or that XLA compiles, are found here. What XLA can compile is
tried, where it is not known, before anything runs.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError, first_line, warn
from splitnet.core.plan import Plan
from splitnet.simulator.microbatch import pipeline_of
from splitnet.tf.internals import keras_api
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
from splitnet.tf.reading.flatten import is_sparse
from splitnet.tf.reading.variables import weights_of

_LOOPING = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed)
_SAMPLES, _EXTENT = 2, 8  # what an unknown batch and any other unknown extent become


def check_execution(plan: Plan, *, xla: bool) -> None:
    """Refuse options that cannot be, or that exclude each other."""
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
    """The placement with its pipeline and runners; warns of what it cannot do."""
    plan = placed.plan
    pipeline = pipeline_of(plan.graph, plan.device_of, plan.execution)
    check_pipeline(model, pipeline)
    if xla:
        how_of = _how_to_run(placed, "xla", set(placed.device_of.values()))
    else:
        how_of = _how_to_run(placed, "recompute", plan.execution.recompute)
    early, gone = _before_weights(placed), leaving(placed)
    units: dict[int, Any] = {}  # by the id of a node: what calls of a segment share
    for number, node in enumerate(placed.flow.nodes):
        mine, one = placed.replicas.get(id(node)), id(node)
        if mine is not None:
            units[one] = mine.join, number if is_synchronised(node, mine) else ""
        else:
            units[one] = placed.target(node), one in early, how_of.get(one, "")
    runners: list[Any] = []
    for segment in segments_of(placed.flow, placed.key_of, units):
        node = segment.nodes[0]
        mine = placed.replicas.get(id(node))
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
    """The ids of calls before all weights that lead to a tensor for another device.

    In one function with weights their tensors would seem to depend on these, and their
    gradients would be sent back for nothing.
    """
    calls = call_graph(placed.flow)
    home = {id(node): placed.target(node) for node in placed.flow.nodes}
    trained: set[int] = set()
    for one, node in calls.nodes(data="node"):
        if weights_of(node.operation) or trained & set(calls.predecessors(one)):
            trained.add(one)
    found: set[int] = set()
    for one in reversed(list(calls)):
        ahead = calls.successors(one)
        if one not in trained and any(
            x in found or home[x] != home[one] for x in ahead
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


def _how_to_run(placed: Placed, how: str, devices: Collection[str]) -> dict[int, str]:
    """How each call on some devices runs, by the id of its node; warns of others."""
    found: dict[int, str] = {}
    refused: dict[tuple[str, str], None] = {}
    for node in placed.flow.nodes:
        key = placed.key_of[id(node)]
        if key not in placed.computing or placed.device_of[key] not in devices:
            continue
        towers = id(node) in placed.replicas
        reason = "towers run plainly" if towers else _obstacle(node, how)
        if reason:
            refused[placed.part_of[key], reason] = None
        else:
            found[id(node)] = how
    for part, reason in refused:
        warn(f"{how}: {part!r} runs as it is: {reason}.")
    return found


def _obstacle(node: Any, how: str) -> str:
    """Why a call cannot run so; "" if it can."""
    layers = keras_api.sublayers(node.operation)
    tensors = [*node.input_tensors, *node.outputs]
    if any(keras.backend.standardize_dtype(t.dtype) == "string" for t in tensors):
        return "it works on text"
    if any(map(is_sparse, tensors)):
        return "it works on sparse tensors"
    if how != "xla" or all(map(_compiles, layers)):
        return ""
    if any(isinstance(one, _LOOPING) for one in layers):
        return "XLA compiles its loop for one length only"
    try:
        _lower(node)
    except Exception as error:  # a stranger's layer may raise anything when traced
        missing = re.search(r"_JIT: (\w+)", str(error))
        if missing:
            return f"XLA has no kernel for its {missing[1]}"
        return f"XLA cannot compile it: {first_line(error)[:120]}"
    return ""


def _compiles(layer: Any) -> bool:
    """Whether a layer is one of Keras' own, which are known to compile."""
    own = keras_api.from_keras(layer) and "preprocessing" not in layer.__module__
    return own and not isinstance(layer, (*_LOOPING, keras.layers.Lambda))


def _lower(node: Any) -> None:
    """Lower a call for XLA, on the shapes it reads; nothing of it runs."""
    read, variables = node.input_tensors, list(node.operation.variables)

    def run(*flat: Any) -> Any:
        args, kwargs = node.arguments.fill_in(dict(zip(map(id, read), flat)))
        call = keras_api.operation_fn(node.operation, training=True)
        with keras.StatelessScope(list(zip(variables, flat[len(read) :]))):
            return call(*args, **kwargs)

    def spec(tensor: Any) -> Any:
        sizes = (_EXTENT if axis else _SAMPLES for axis in range(len(tensor.shape)))
        known = [a if b is None else b for a, b in zip(sizes, tensor.shape)]
        return tf.TensorSpec(known, tensor.dtype)

    compiled = tf.function(run, jit_compile=True, autograph=False)
    specs = map(spec, (*read, *variables))
    compiled.experimental_get_compiler_ir(*specs)(stage="hlo")
