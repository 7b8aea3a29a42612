"""Devices of what Keras and TensorFlow add to a step around the parts.

The calls of parts say their device themselves; the loss, sums of gradients, clipping
and averages run where most of their data is.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

CALLS = ("PartitionedCall", "StatefulPartitionedCall")

_MARK = re.compile(r"(?:^|/)sn-(\w+)\.")
_BODY = re.compile(r"(?:^|_)sn_(k\d+)_")
_BACKWARD = "gradient_tape/"
_UNKNOWN_EXTENT = 32
_ANYWHERE = ("Placeholder", "Const", "NoOp", "IteratorGetNext")
_LOOK_THROUGH = ("ReadVariableOp", "Identity", "Cast")


def scope_of(key: str) -> str:
    """The name scope of the ops of a part."""
    return f"sn-{key}."


def key_in(name: str) -> str | None:
    """The key of the innermost part in an op's name; None if there is none."""
    return next(reversed(_MARK.findall(name)), None)


def body_name(key: str) -> str:
    """The name of a part's function; the names of its gradients contain it."""
    return f"sn_{key}_"


def key_of_function(name: str) -> str | None:
    """The key of the part whose function, or gradient function, has this name."""
    found = _BODY.search(name)
    return found[1] if found else None


def function_of(op: Any) -> str:
    """The name of the function that a traced op calls; "" for any other op."""
    return str(op.get_attr("f").name) if op.type in CALLS else ""


def ancestors(ops: Iterable[Any]) -> set[Any]:
    """Traced ops with all that they need."""
    found: set[Any] = set()
    ahead = list(ops)
    while ahead:
        op = ahead.pop()
        if op not in found:
            found.add(op)
            ahead += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return found


def update_scope(device: str, number: str = "all") -> str:
    """The name scope of updates: of the variable of a number, or of all on a device."""
    spec = tf.DeviceSpec.from_string(canonical(device))
    slug = f"{spec.job}_{spec.task}_{spec.device_type}_{spec.device_index}"
    return scope_of(f"update_{number}_{slug}")


def update_target(name: str) -> tuple[str, str]:
    """The variable's number and the canonical device of an update op; "" for others."""
    key = key_in(name) or ""
    if not key.startswith("update_"):
        return "", ""
    which, _, slug = key.removeprefix("update_").partition("_")
    job, task, kind, index = slug.rsplit("_", 3)
    return which, f"/job:{job}/replica:0/task:{task}/device:{kind}:{index}"


def canonical(device: str) -> str:
    """One spelling for each device, so that two of them can be compared.

    >>> canonical("/device:CPU:1")
    '/job:localhost/replica:0/task:0/device:CPU:1'
    """
    if not device:
        return ""
    spec = tf.DeviceSpec.from_string(device)
    job = spec.job
    if not job:  # "localhost" before a cluster is joined, afterwards this program's job
        first = tf.config.list_logical_devices()[0].name
        job = tf.DeviceSpec.from_string(first).job or "localhost"
    return (
        f"/job:{job}/replica:{spec.replica or 0}/task:{spec.task or 0}"
        f"/device:{spec.device_type or 'CPU'}:{spec.device_index or 0}"
    )


def spoken(device: str) -> str:
    """The short name of a device on this machine.

    >>> spoken("/job:localhost/replica:0/task:0/device:CPU:1")
    'cpu:1'
    """
    return canonical(device).rpartition("device:")[2].lower()


class DeviceFunction:
    """A device function for `tf.Graph.device`, of the graph of one step.

    1. A device that was asked for explicitly stays.
    2. What is in the scope of a part runs on the part's device.
    3. Gradient ops run where the ops of their forward scope were asked to.
    4. Any other op runs where most bytes of its known inputs are; a gradient op that
       knows none, where its forward scope ran, or on `default`, the device of the
       model's outputs. Else TensorFlow decides.
    """

    def __init__(self, device_of_key: Mapping[str, str], default: str = "") -> None:
        self._device_of_key = device_of_key
        self._default = default
        self._asked: dict[str, str] = {}  # scope -> the device of all its named ops
        self._followed: dict[str, str] = {}  # scope -> where its first op's data was

    def __call__(self, op: Any) -> str:
        """The device for an op that is being made, or "" for TensorFlow's choice."""
        scope = op.name.rpartition("/")[0]
        if op.device:
            device = canonical(op.device)
            if self._asked.setdefault(scope, device) != device:
                self._asked[scope] = ""
            return str(op.device)
        if op.type in _ANYWHERE:
            return ""
        if found := self._device_of_key.get(key_in(op.name) or ""):
            return found
        if not op.name.startswith(_BACKWARD):
            return self._of_data(op, scope)
        forward = near = op.name.removeprefix(_BACKWARD).rpartition("/")[0]
        while near and near not in self._asked:
            near = near.rpartition("/")[0]
        return (
            (near and self._asked[near])
            or self._of_data(op, scope)
            or (forward and self._followed.get(forward))
            or self._default
        )

    def _of_data(self, op: Any, scope: str) -> str:
        votes: Counter[str] = Counter()
        for tensor in op.inputs:
            device = "" if tensor.op.type == "Const" else where(tensor)
            if device:
                votes[device] += _elements(tensor)
        best = [device for device, n in votes.items() if n == max(votes.values())]
        if len(best) != 1:
            return ""
        self._followed.setdefault(scope, best[0])
        return best[0]


def _elements(tensor: Any) -> int:
    """How much a tensor counts as data; one element with axes more than a scalar."""
    if tensor.dtype == tf.resource or tensor.shape.rank is None:
        return 1
    count = 1
    for extent in tensor.shape:
        count *= _UNKNOWN_EXTENT if extent is None else int(extent)
    return count + (tensor.shape.rank > 0)


def where(tensor: Any) -> str:
    """The canonical device of a tensor, also of a capture or a variable's value."""
    while not hasattr(tensor, "numpy"):
        op = tensor.op
        if op.device:
            return canonical(op.device)
        if op.type == "Placeholder":
            captures = tensor.graph.captures
            tensor = next((out for out, inside in captures if inside is tensor), None)
            if tensor is None:
                return ""
        elif op.type in _LOOK_THROUGH and op.inputs:
            tensor = op.inputs[0]
        else:
            return ""
    return canonical(tensor.device)
