"""Devices of what Keras and TensorFlow add to a step around the parts.

The calls of parts say their device themselves. Their gradients, which TensorFlow makes
without one, run where the forward call ran; the loss, sums of gradients, clipping and
averages run where most of their data is.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

__all__ = [
    "CALLS",
    "DeviceFunction",
    "ancestors",
    "body_name",
    "canonical",
    "function_of",
    "key_in",
    "key_of_function",
    "scope_of",
    "spoken",
    "update_scope",
    "update_target",
    "where",
]

CALLS = ("PartitionedCall", "StatefulPartitionedCall")

_MARK = re.compile(r"(?:^|/)sn-(\w+)\.")
_BODY = re.compile(r"(?:^|_)sn_(k\d+)_")
_BACKWARD = "gradient_tape/"
_UNKNOWN_EXTENT = 32
_ANYWHERE = ("Placeholder", "Const", "NoOp", "IteratorGetNext")
_JOINING = ("AddN", "ConcatV2")
_LOOK_THROUGH = ("ReadVariableOp", "Identity", "Cast")


def scope_of(key: str) -> str:
    """The name scope of the ops of a part."""
    return f"sn-{key}."


def key_in(name: str) -> str | None:
    """The key of the innermost part in an op's name; None if there is none."""
    found = _MARK.findall(name)
    return found[-1] if found else None


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
    """The name scope of update arithmetic: of a variable, on a device.

    `number` is the variable's; "all" stands for what the variables there share.
    """
    spec = tf.DeviceSpec.from_string(canonical(device))
    slug = f"{spec.job}_{spec.task}_{spec.device_type}_{spec.device_index}"
    return scope_of(f"update_{number}_{slug}")


def update_target(name: str) -> tuple[str, str]:
    """The variable's number ("all" if shared) and device of an update op.

    The device is canonical; both are empty for any other op.
    """
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
    return (
        f"/job:{spec.job or _local_job()}/replica:{spec.replica or 0}"
        f"/task:{spec.task or 0}"
        f"/device:{spec.device_type or 'CPU'}:{spec.device_index or 0}"
    )


def spoken(device: str) -> str:
    """The short name of a device on this machine.

    >>> spoken("/job:localhost/replica:0/task:0/device:CPU:1")
    'cpu:1'
    """
    return canonical(device).rpartition("device:")[2].lower()


def _local_job() -> str:
    """Before a cluster is joined this program is "localhost", afterwards its job."""
    devices = tf.config.list_logical_devices()
    return tf.DeviceSpec.from_string(devices[0].name).job or "localhost"


class DeviceFunction:
    """A device function for `tf.Graph.device`, of the graph of one step.

    1. A device that was asked for explicitly stays.
    2. The gradient of a part runs where its forward call ran; what runs in the scope
       of a part without a function, on the part's device.
    3. Gradient ops run where the ops of their forward scope were asked to.
    4. Any other op runs where most bytes of its known inputs are; a gradient op that
       knows none, where its forward scope ran, or on `default`, the device of the
       model's outputs. Else TensorFlow decides.
    """

    def __init__(self, device_of_key: Mapping[str, str], default: str = "") -> None:
        self._device_of_key = dict(device_of_key)
        self._default = default
        self._device_of_scope: dict[str, str] = {}
        self._named: dict[str, str] = {}

    def __call__(self, op: Any) -> str:
        """The device for an op that is being made, or "" for TensorFlow's choice."""
        if op.device:
            self._note(op)
            return str(op.device)
        if op.type in _ANYWHERE:
            return ""
        key = key_of_function(function_of(op))
        if key is not None and (device := self._of_call(op, key)):
            return device
        return (
            self._device_of_key.get(key_in(op.name) or "")
            or self._of_scope(op.name)
            or self._of_data(op)
        )

    def _note(self, op: Any) -> None:
        """Remember the scope of an op that names its device."""
        scope, device = op.name.rpartition("/")[0], canonical(op.device)
        if self._named.setdefault(scope, device) != device:
            self._named[scope] = ""

    def _of_scope(self, name: str) -> str:
        """The device that all named ops of a gradient op's forward scope have."""
        scope = name.rpartition("/")[0]
        if not scope.startswith(_BACKWARD):
            return ""
        scope = scope.removeprefix(_BACKWARD)
        while scope and scope not in self._named:
            scope = scope.rpartition("/")[0]
        return self._named.get(scope, "") if scope else ""

    def _of_call(self, op: Any, key: str) -> str:
        """The device of the forward call whose gradient this op is."""
        for tensor in op.inputs:
            if tensor.op.device and key_of_function(function_of(tensor.op)) == key:
                return canonical(tensor.op.device)
        return self._device_of_key.get(key, "")

    def _of_weight(self, op: Any) -> str:
        """The device of a weight whose gradients from several devices an op joins.

        It lives where the first part that reads it runs.
        """
        keys = [key_of_function(function_of(tensor.op)) for tensor in op.inputs]
        if op.type == "AddN" and None in keys:
            return ""
        found = [key for key in self._device_of_key if key in keys]
        return self._device_of_key[found[0]] if found else ""

    def _of_data(self, op: Any) -> str:
        votes: dict[str, int] = {}
        for tensor in op.inputs:
            device = "" if tensor.op.type == "Const" else where(tensor)
            if device:
                votes[device] = votes.get(device, 0) + _elements(tensor)
        if op.type in _JOINING and len(votes) > 1 and (home := self._of_weight(op)):
            return home
        best = [d for d, n in votes.items() if n == max(votes.values())]
        scope = op.name.rpartition("/")[0]
        if len(best) == 1:
            self._device_of_scope.setdefault(scope, best[0])
            return best[0]
        if scope.startswith(_BACKWARD):  # of a loss, whose forward ops saw predictions
            forward = scope.removeprefix(_BACKWARD)
            known = self._device_of_scope.get(forward) if forward else None
            return known or self._default
        return self._default if op.name.startswith(_BACKWARD) else ""


def _elements(tensor: Any) -> int:
    """How much a tensor counts as data; one element with axes more than a scalar."""
    if tensor.dtype == tf.resource or tensor.shape.rank is None:
        return 1
    count = 1
    for extent in tensor.shape:
        count *= _UNKNOWN_EXTENT if extent is None else int(extent)
    return count + (tensor.shape.rank > 0)


def where(tensor: Any) -> str:
    """The canonical device of a tensor, through captures and reads of variables.

    Reads of a variable are made with the device stack cleared, and a function's
    captured inputs are placeholders: both say nothing of where the data is.
    """
    while True:
        if hasattr(tensor, "numpy"):
            return canonical(tensor.device)
        op = tensor.op
        if op.device:
            return canonical(op.device)
        if op.type == "Placeholder":
            outside = _captured(tensor)
            if outside is None:
                return ""
            tensor = outside
        elif op.type in _LOOK_THROUGH and op.inputs:
            tensor = op.inputs[0]
        else:
            return ""


def _captured(tensor: Any) -> Any:
    for outside, inside in tensor.graph.captures:
        if inside is tensor:
            return outside
    return None
