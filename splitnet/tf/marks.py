"""Marks: how an op in TensorFlow's graph says which part of the plan it belongs to.

Every call of part k runs under the name scope "sn-k3."; TensorFlow names the gradient
ops of a scope "gradient_tape/.../sn-k3./...", so one mark serves both passes. The
device function below reads it. What carries no mark (sums of gradients, clipping,
averages) follows its data.
"""

import re
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from splitnet.tf.internals.gradient_marks import SIGN

__all__ = [
    "PASSING",
    "DeviceFunction",
    "canonical",
    "key_in",
    "scope_of",
    "spoken",
    "update_scope",
    "update_target",
    "where",
]

# The gradient of what these read is, for one of it at least, that of what they make.
PASSING = ("Add", "AddN", "AddV2", "BiasAdd", "EnsureShape", "Identity", "Sub")


_MARK = re.compile(r"(?:^|/)sn-(\w+)\.")
_BODY = re.compile(r"(?:^|_)sn-(\w+?)\.")  # a function's name has "_" for "/"
_BACKWARD = "gradient_tape/"
_UNKNOWN_EXTENT = 32
_NEVER_MOVED = ("Placeholder", "Const", "NoOp", "IteratorGetNext")
_LOOPS = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
_LOOK_THROUGH = ("ReadVariableOp", "Identity", "Cast")


def scope_of(key: str) -> str:
    """The name scope that marks the calls of a part."""
    return f"sn-{key}."


def key_in(name: str) -> str | None:
    """The innermost mark in an op's name; None if it carries none."""
    found = _MARK.findall(name)
    return found[-1] if found else None


def update_scope(device: str, number: str = "all") -> str:
    """The name scope that marks update arithmetic: of a variable, on a device.

    `number` is the variable's; "all" stands for what the variables there share.
    """
    spec = tf.DeviceSpec.from_string(canonical(device))
    slug = f"{spec.job}_{spec.task}_{spec.device_type}_{spec.device_index}"
    return scope_of(f"update_{number}_{slug}")


def update_target(name: str) -> tuple[str, str]:
    """The variable's number ("all" if shared) and device an update op is marked for.

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
    """The short name of a device on this machine, as people say it.

    >>> spoken("/job:localhost/replica:0/task:0/device:CPU:1")
    'cpu:1'
    """
    return canonical(device).rpartition("device:")[2].lower()


def _local_job() -> str:
    """Before a cluster is joined this program is "localhost", afterwards its job."""
    devices = tf.config.list_logical_devices()
    return tf.DeviceSpec.from_string(devices[0].name).job or "localhost"


class DeviceFunction:
    """A device function for `tf.Graph.device`: mark first, else where the data is.

    1. A device that was asked for explicitly stays.
    2. An op under a mark goes to the device of its part: forward and backward.
    3. Any other op goes where most bytes of its known inputs are; a gradient op that
       knows none, where its forward scope went. Without either TensorFlow decides.

    `sums` are those of gradients from several devices, `signs` the ops that say where a
    gradient belongs: `tf/sums.py` moves the first by the second.
    """

    def __init__(
        self,
        target_of: Mapping[str, str],
        home_of: Mapping[str, str] | None = None,
    ) -> None:
        # A tower's key -> the key of the part where its weights live.
        self._home_of = dict(home_of or {})
        self.target_of = {key: canonical(d) for key, d in target_of.items()}
        self._rank = {key: rank for rank, key in enumerate(target_of)}
        self.sums: list[Any] = []
        self.signs: list[Any] = []
        self._where_scope: dict[str, str] = {}
        # Of branches and loops, by weak reference.
        self.inner_graphs: dict[int, Any] = {}

    def __call__(self, op: Any) -> str:
        """The device for an op that is being made, or "" for TensorFlow's choice."""
        self.inner_graphs.setdefault(id(op.graph), weakref.ref(op.graph))
        key = key_in(op.name)
        device = str(op.device) or self.target_of.get(key or "", "")
        if device:
            if op.type == "Identity" and op.name.rpartition("/")[2].startswith(SIGN):
                self.signs.append(op)
            if op.type in _LOOPS:
                _bring_along(op, device)
            return device
        if op.type in _NEVER_MOVED:
            return ""
        if op.type in ("AddN", "ConcatV2"):  # of dense gradients, of sparse ones
            return self._sum(op)
        votes: dict[str, int] = {}
        for tensor in op.inputs:
            device = "" if tensor.op.type == "Const" else where(tensor)
            if device:
                votes[device] = votes.get(device, 0) + _elements(tensor)
        best = [d for d, n in votes.items() if n == max(votes.values())]
        scope = op.name.rpartition("/")[0]
        if len(best) == 1:
            self._where_scope.setdefault(scope, best[0])
            return best[0]
        if scope.startswith(_BACKWARD):  # of a loss, whose forward ops saw predictions
            return self._where_scope.get(scope.removeprefix(_BACKWARD), "")
        return self.target_of.get(_key_of_body(op.graph) or "", "")

    def _sum(self, op: Any) -> str:
        """A sum of gradients from several devices goes to the earliest part's.

        That is a shared weight's home. The sum of an activation's gradients goes to
        where the activation was made, which `settle` sees once its reader is there.
        """
        devices = dict.fromkeys(where(tensor) for tensor in op.inputs)
        if len(devices) == 1:
            return next(iter(devices))
        self.sums.append(op)
        keys = [key_in(tensor.op.name) for tensor in op.inputs]
        known = [self._home_of.get(key, key) for key in keys if key in self._rank]
        if known:
            return self.target_of[min(known, key=self._rank.__getitem__)]
        return next((device for device in devices if device), "")


def _bring_along(loop: Any, device: str) -> None:
    """Put constants that enter a loop where the loop is, and states where they live.

    A loop's variable lives on the device of its first value. Zeros that start a sum of
    gradients carry no mark, and reads of a variable, as of the states that a recurrence
    keeps, no device; gradients come from where a later call is. Left alone, each would
    cross devices every iteration.
    """
    for number, tensor in enumerate(loop.inputs):
        op = tensor.op
        if op.type == "Placeholder":
            continue
        if op.device:
            if canonical(op.device) != canonical(device) and tensor.dtype.is_floating:
                with tf.name_scope(f"{loop.name}/"), tf.device(device):
                    loop._update_input(number, tf.identity(tensor))
        elif op.type == "ReadVariableOp":
            op._set_device(where(tensor))
        elif not _moving(op):
            op._set_device(device)


def _key_of_body(graph: Any) -> str | None:
    """The mark of the loop or branch that a graph is the body of; None for others.

    What its gradient adds there may carry no mark and read only what the loop carries.
    """
    found = _BODY.findall(getattr(graph, "name", ""))
    return found[-1] if found else None


def _moving(op: Any) -> bool:
    """Whether an op depends on data rather than on constants alone."""
    return any(tensor.op.type != "Const" for tensor in op.inputs)


def _elements(tensor: Any) -> int:
    if tensor.dtype == tf.resource or tensor.shape.rank is None:
        return 1
    count = 1
    for extent in tensor.shape:
        count *= _UNKNOWN_EXTENT if extent is None else int(extent)
    return count


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
