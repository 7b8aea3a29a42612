"""What another machine waits for is computed and sent before the rest.

A worker's executor takes what is ready last in, first out, and a send is an operation
like any other: left alone, a worker follows a branch of its own to the end while others
wait for a tensor that it already has.

        p --+-- kept ...          p --+-- sent -- gate -> (to the other worker)
            +-- sent -> (there)       |    :
                                      +-- kept ...         : waits for

Two changes to the graph of a step. A tensor that crosses passes a gate, which costs
nothing: the executor runs it before anything that computes, and then the send at once.
And what would start beside the sent tensor, from an input that both read, waits for it.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from splitnet.tf.marks import canonical

__all__ = ["send_first"]

# They are there from a step's start, so nothing becomes ready because of them.
_STANDING = ("Const", "Placeholder", "ReadVariableOp", "VarHandleOp")


def send_first(graph: Any, targets: Iterable[str]) -> None:
    """Order a step's graph, if it uses workers; within one machine nothing changes.

    O(operations + edges). What waits is as deep in the graph as what it waits for and
    is not sent itself, so no circle can arise.
    """
    if not any(target.startswith("/job:") for target in targets):
        return
    operations = graph.get_operations()
    spelled = {name: canonical(name) for name in {op.device: None for op in operations}}
    where = {op: spelled[op.device] for op in operations}
    crossing = [
        (tensor, readers)
        for op in operations
        for tensor in op.outputs
        if (readers := _away(tensor, where))
    ]
    if not crossing:
        return
    depth = _depths(operations)
    sent = {tensor.op: None for tensor, _ in crossing}
    waiting = [(kept, op) for op in sent for kept in _beside(op, depth, where, sent)]
    for tensor, readers in crossing:
        _gate(tensor, readers)
    for kept, op in waiting:
        kept._add_control_input(op)


def _away(tensor: Any, where: dict[Any, str]) -> list[Any]:
    """The readers of a tensor that are on another device than its maker."""
    here = where[tensor.op]
    if not here or tensor.dtype in (tf.resource, tf.variant):
        return []
    return [op for op in tensor.consumers() if where[op] and where[op] != here]


def _beside(
    op: Any, depth: dict[Any, int], where: dict[Any, str], sent: dict[Any, None]
) -> list[Any]:
    """What starts beside an operation: as deep as it is, and from an input of its."""
    moving = [tensor for tensor in op.inputs if tensor.op.type not in _STANDING]
    found = {
        other: None
        for tensor in moving
        for other in tensor.consumers()
        if other not in sent and depth[other] == depth[op] and where[other] == where[op]
    }
    return list(found)


def _gate(tensor: Any, readers: list[Any]) -> None:
    """Let readers elsewhere have a tensor through a gate beside its maker.

    An identity would do, but TensorFlow's optimizer takes those out.
    """
    name, here = f"{tensor.op.name}/", tensor.op.device
    with tensor.graph.as_default(), tf.name_scope(name), tf.device(here):
        gate = tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=tensor.shape)
    for reader in readers:
        for number, one in enumerate(reader.inputs):
            if one is tensor:
                reader._update_input(number, gate)


def _depths(operations: list[Any]) -> dict[Any, int]:
    """The longest way to each operation from one that waits for nothing."""
    depth: dict[Any, int] = {}
    for last in operations:
        path = [last]
        while path:
            op = path[-1]
            before = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
            missing = [one for one in before if one not in depth]
            path += missing
            if not missing:
                depth[op] = 1 + max((depth[one] for one in before), default=0)
                path.pop()
    return depth
