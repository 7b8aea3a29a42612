"""Devices of tensors and of ops, and the names by which ops of a part are known.

The calls of parts say their device themselves; what Keras and TensorFlow add to a step,
such as the loss, sums of gradients, clipping, averages, runs where most of its data is.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import tf_api

CALLS = ("PartitionedCall", "StatefulPartitionedCall")

_MARK = re.compile(r"(?:^|[/_])sn_(k\d+|update_[a-z0-9]+)_")
_BACKWARD = "gradient_tape/"
_UNKNOWN_EXTENT = 32
_ANYWHERE = ("Placeholder", "Const", "NoOp", "IteratorGetNext")
_LOOK_THROUGH = ("ReadVariableOp", "Identity", "Cast")


def scope_of(key: str) -> str:
    """The name scope of the ops of a part, and in the names of its functions."""
    return f"sn_{key}_"


def key_in(name: str) -> str | None:
    """The key of the innermost part in the name of an op or function, if any."""
    name = name.partition("_specialized_for_")[0]  # by TensorFlow's graph optimizer
    return next(reversed(_MARK.findall(name)), None)


def function_of(op: Any) -> str:
    """The name of the function that a traced op calls; "" for any other op."""
    return str(op.get_attr("f").name) if op.type in CALLS else ""


def is_update(name: str) -> bool:
    """Whether an op is in the name scope of updates, "update_" and more."""
    return (key_in(name) or "").startswith("update_")


def canonical(device: str, beside: str = "") -> str:
    """One spelling for each device, so that two of them can be compared.

    A name without a host is of that of the device `beside`, or else of this program.
    """
    if not device:
        return ""
    return _canonical(device, beside or tf.config.list_logical_devices()[0].name)


@functools.cache
def _canonical(device: str, beside: str) -> str:
    host = tf.DeviceSpec.from_string(beside)
    # "localhost" before a cluster is joined, afterwards this program's job
    usual = tf.DeviceSpec(host.job or "localhost", 0, host.task or 0, "CPU", 0)
    return str(usual.make_merged_spec(tf.DeviceSpec.from_string(device)).to_string())


def device_of(variable: Any) -> str:
    """The canonical device of a Keras or TensorFlow variable."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return canonical(value.device)


def transfer(value: Any, source: str, target: str) -> Any:
    """A value on a device, whose gradient goes back to where it was made."""
    if source == target or not tf.is_tensor(value):
        return value
    with tf.device(target):
        if not source or not (isinstance(value, tf.Tensor) and value.dtype.is_floating):
            return tf.identity(value)

        def back(gradient: Any) -> list[Any]:
            with tf.device(source):
                return [tf.identity(gradient)]

        with tf_api.stop_recording():
            made = tf.identity(value)
        tf_api.record_gradient([made], [value], back)
        return made


def device_function(device_of: Mapping[str, str], default: str) -> Callable[[Any], str]:
    """A device function for `tf.Graph.device`, of the graph of one step.

    1. A device that was asked for explicitly stays.
    2. What is in the scope of a part runs on the part's device.
    3. Gradient ops run where the ops of their forward scope were asked to.
    4. Any other op runs where most bytes of its known inputs are; a gradient op that
       knows none, where its forward scope ran, or on `default`, the device of the
       model's outputs.
    5. Else it runs on the CPU, where the batch is; TensorFlow would take the first GPU.
    """
    asked: dict[str, str] = {}  # scope -> the device of all its named ops
    followed: dict[str, str] = {}  # scope -> where its first op's data was
    of_batch: set[str] = set()  # ops of rule 5: those that read them may be elsewhere

    def device_for(op: Any) -> str:
        scope = op.name.rpartition("/")[0]
        if op.device:
            device = canonical(op.device)
            if asked.setdefault(scope, device) != device:
                asked[scope] = ""
        if op.device or op.type in _ANYWHERE:
            return str(op.device)
        if found := device_of.get(key_in(op.name) or ""):
            return found
        backward = op.name.startswith(_BACKWARD)
        near = forward = scope.removeprefix(_BACKWARD) if backward else ""
        while near and near not in asked:
            near = near.rpartition("/")[0]
        if near and asked[near]:
            return asked[near]
        votes: Counter[str] = Counter()
        for tensor in op.inputs:
            maker = tensor.op
            known = maker.type != "Const" and maker.name not in of_batch
            if device := where(tensor) if known else "":
                votes[device] += _elements(tensor)
        best = [device for device, n in votes.items() if n == max(votes.values())]
        if len(best) == 1:
            followed.setdefault(scope, best[0])
            return best[0]
        if backward:
            return followed.get(forward, default)
        of_batch.add(op.name)
        return canonical("CPU:0") if op.inputs else ""

    return device_for


def _elements(tensor: Any) -> int:
    """How much a tensor counts as data; one element with axes more than a scalar."""
    if tensor.dtype == tf.resource or tensor.shape.rank is None:
        return 1
    sizes = [_UNKNOWN_EXTENT if n is None else n for n in tensor.shape]
    return math.prod(sizes) + bool(sizes)


def where(tensor: Any) -> str:
    """The canonical device of a tensor, also of a capture or a variable's value."""
    if hasattr(tensor, "numpy"):
        return canonical(tensor.device)
    op = tensor.op
    captured = op.type == "Placeholder" and tensor.dtype == tf.resource
    if op.device and not captured:  # which has the device of its first reader
        return canonical(op.device)
    behind = op.inputs if op.type in _LOOK_THROUGH else ()
    if op.type == "Placeholder":
        behind = [out for out, inside in tensor.graph.captures if inside is tensor]
    return where(behind[0]) if behind else ""
