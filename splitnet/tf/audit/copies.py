"""Copies between devices in executed partition graphs: their kinds and bytes."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from splitnet.core.audit import SeenCopy
from splitnet.tf.audit.partition_graphs import (
    PASSING,
    PREFIX,
    SENDS,
    ExecutedStep,
    called,
    key_called,
    op_of,
)
from splitnet.tf.placement.device_function import CALLS, key_in

_GIVEN = ("_Arg", "IteratorGetNext", "OptionalGetValue")
_SUMMING = (*PASSING, "AddN", "AddV2")
_CLIPPING = ("Mul", "RealDiv", "Minimum", "Maximum", "ClipByValue")
_UPDATING = (*PASSING, "AddN", "AddV2", "Mul", "Sub", "Cast")
_ACCUMULATED = "/tmp_var_"  # in the names of ops that TensorFlow makes of one AddN
_IN_LOOP = re.compile(r"/(?:while|while_grad)/(?:body|cond)(?:/|_)|_grad/body/")
_ARGUMENT = re.compile(r"^input/_\d+$")  # of a call that was inlined


def seen_copies(step: ExecutedStep) -> Iterator[SeenCopy]:
    """Tensors of more than one element that crossed devices, with kind and bytes."""
    for node in step.nodes:
        if node.op not in SENDS or not node.input or node.input[0].startswith("^"):
            continue
        source, target = (
            step.names.device(node.attr[key].s.decode())
            for key in ("send_device", "recv_device")
        )
        name = PREFIX.sub("", node.input[0])
        dtype = tf.as_dtype(node.attr["T"].type)
        if source == target or "/ctrl/" in name:
            continue
        readers = step.receivers(node)
        if dtype == tf.resource:
            if any(key_called(reader) for reader in readers):
                yield SeenCopy(name, "weights", source, target, None)
            continue
        elements = _elements(step, node.input[0], readers)
        # Whether a loop makes or reads this value in every iteration.
        producer = step.by_name.get(op_of(name))
        inside = [_IN_LOOP.search(PREFIX.sub("", one.name)) for one in readers]
        enters = producer is not None and producer.op in ("Exit", "Enter")
        each_time = bool(not enters and _IN_LOOP.search(name) and any(inside))
        if each_time or elements is None or elements > 1:
            size = None if elements is None else elements * dtype.size
            kind = _kind(step, name, node, readers, dtype)
            yield SeenCopy(name, kind, source, target, size, each_time)


def _kind(
    step: ExecutedStep, name: str, send: Any, readers: Sequence[Any], dtype: Any
) -> str:
    """The kind of a copy, in the words of `SeenCopy`."""
    producer = step.by_name.get(op_of(send.input[0]))
    if dtype == tf.bool:
        return "mask"
    if _ARGUMENT.match(name) or (producer is not None and producer.op in _GIVEN):
        marked = not readers or _leads_to(step, readers, _of_part, PASSING)
        return "input" if marked else "target"
    if name.startswith(("compile_loss/", "gradient_tape/compile_loss/")):
        return "target"
    if producer is not None and producer.op == "Const":
        return "other"  # computed before the step ran
    if step.names.of_update(name):
        clipped = _sums_gradients(step, producer, (*_SUMMING, *_CLIPPING))
        return "weights gradient" if clipped else "update"
    if any(
        one.op == "ReadVariableOp" or one.name.endswith("ReadVariableOp")
        for one in _back(step, producer, lambda one: one.op in PASSING)
    ):
        return "weights"
    in_parts = bool(key_in(name)) and any(map(_of_part, readers))
    if not in_parts and _leads_to(step, readers, step.assigns, _UPDATING):
        return "state"
    if "gradient_tape/" in name or _sums_gradients(step, producer):
        backward = _leads_to(step, readers, _of_backward, _SUMMING)
        return "gradient" if backward else "weights gradient"
    if producer is not None and _of_part(producer) or key_in(name):
        return "activation"
    into_part = any(map(key_called, readers))
    if any(  # what is computed of the step's data outside of parts, such as slices
        one.op in _GIVEN and not PREFIX.sub("", one.name).startswith("unknown")
        for one in _back(step, producer, lambda one: one.op not in CALLS)
    ):
        return "input" if into_part else "target"
    return "state" if into_part else "other"


def _back(
    step: ExecutedStep, node: Any, passes: Callable[[Any], bool]
) -> Iterator[Any]:
    """A node, and what it has its data from behind nodes that pass it on."""
    ahead, done = [node], set()
    while ahead:
        node = ahead.pop()
        if node is None or node.name in done:
            continue
        done.add(node.name)
        yield node
        if passes(node):
            ahead += [step.by_name.get(op_of(one)) for one in step.origins(node)]


def _leads_to(
    step: ExecutedStep,
    readers: Sequence[Any],
    wanted: Callable[[Any], bool],
    through: Collection[str],
) -> bool:
    """Whether a wanted node is among the readers, or behind ops of some types."""
    ahead, done = list(readers), set()
    while ahead:
        node = ahead.pop()
        if wanted(node):
            return True
        total = node.name.partition(_ACCUMULATED)[0]
        summed = total != node.name and "AddN" in through
        if (summed or node.op in through) and node.name not in done:
            done.add(node.name)
            ahead += step.readers.get(total, [])
    return False


def _sums_gradients(
    step: ExecutedStep, node: Any, through: Collection[str] = _SUMMING
) -> bool:
    """Whether an op is a backward call, or a sum of what such calls give."""
    return any(
        _of_backward(one) or PREFIX.sub("", one.name).startswith("AddN")
        for one in _back(step, node, lambda one: one.op in through)
    )


def _of_backward(node: Any) -> bool:
    """Whether a node is a part's backward call, or an op of a backward pass."""
    backward = "__backward_" in called(node) or "gradient_tape/" in node.name
    return backward and _of_part(node)


def _of_part(node: Any) -> bool:
    return key_called(node) is not None or bool(key_in(node.name))


def _elements(step: ExecutedStep, tensor: str, readers: Sequence[Any]) -> int | None:
    """How many elements a tensor has that was sent; None if it is not known.

    TensorFlow drops outputs of a function that nothing reads, so an output of a call
    may have another number than when it was traced. Then a reader tells.
    """
    producer, op = step.by_name.get(op_of(tensor)), step.traced(op_of(tensor))
    index = int(tensor.partition(":")[2] or 0)
    known = op is not None and index < len(op.outputs)
    traced = count_of(op.outputs[index], step.batch) if known else None
    if producer is None or producer.op not in CALLS:
        if traced is None and producer is not None:
            traced = _given_elements(producer, index, step.batch)
        if traced is not None:
            return traced
    read = (_as_read(step, tensor, reader) for reader in readers)
    counts = (count_of(one, step.batch) for one in read if one is not None)
    return next((count for count in counts if count is not None), traced)


def _as_read(step: ExecutedStep, tensor: str, reader: Any) -> Any:
    """The traced tensor that a reader has in place of an executed one; None if none.

    Inputs from one op keep their order when TensorFlow rewrites what is around them.
    """
    same = [one for one in step.origins(reader) if op_of(one) == op_of(tensor)]
    op = step.traced(reader.name)
    if op is None or tensor not in same:
        return None
    name = PREFIX.sub("", op_of(tensor))
    found = [one for one in map(_behind, op.inputs) if one.op.name == name]
    if len(found) == len(same):
        return found[same.index(tensor)]
    if op.type == "AddN":
        return op.outputs[0]
    held = {inside.name for _, inside in op.graph.captures}
    outside = [
        one
        for one in map(_behind, op.inputs)
        if one.op.type == "Placeholder"
        and one.dtype != tf.resource
        and (one.name in held) == name.startswith("unknown")
    ]
    known = [one for one in outside if count_of(one, step.batch) is not None]
    return max(known, key=lambda one: count_of(one, step.batch) or 0, default=None)


def _behind(tensor: Any) -> Any:
    """The tensor that identities hand on; TensorFlow prunes them when it runs."""
    while tensor.op.type in PASSING:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _given_elements(producer: Any, index: int, batch: int) -> int | None:
    """The elements of what a dataset or a caller gives, with the shapes it states."""
    stated = (producer.attr[key] for key in ("output_shapes", "_output_shapes"))
    shapes = next((one.list.shape for one in stated if one.list.shape), ())
    if index >= len(shapes):
        return None
    extents = [extent.size for extent in shapes[index].dim]
    if shapes[index].unknown_rank or -1 in extents[1:]:
        return None
    return math.prod(batch if extent < 0 else extent for extent in extents)


def count_of(tensor: Any, batch: int) -> int | None:
    """How many elements a traced tensor has at this batch; None if it is not known."""
    if tensor.shape.rank is None or None in tensor.shape[1:]:
        return None
    return math.prod(
        batch if extent is None else int(extent) for extent in tensor.shape
    )
