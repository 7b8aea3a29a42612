"""What runs each part of a placed model: decided once, when it is emitted."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.replicas import leaving, replicas_of
from splitnet.tf.parallel.towers import SynchronisedNorm, Towers, is_synchronised
from splitnet.tf.placement.part_function import PartFunction
from splitnet.tf.placement.placed import Placed, Runner
from splitnet.tf.placement.segments import Segment, segments_of
from splitnet.tf.reading.variables import weights_of

__all__ = ["lowered"]


def lowered(placed: Placed, how_of: Mapping[int, str] | None = None) -> Placed:
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
            kind = SynchronisedNorm if is_synchronised(node, mine) else Towers
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
