"""Reading partitioned graphs: ops and copies with the words of the plan."""

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from splitnet.core.audit import SeenCopy, SeenOp
from splitnet.core.plan import Plan
from splitnet.tf.marks import canonical, key_in, update_target

if TYPE_CHECKING:
    from splitnet.tf.placement import Placed

__all__ = ["Names", "seen_copies", "seen_ops"]

_NOT_WORK = frozenset(  # what moves, names or sizes data, but computes nothing of it
    "_Arg _Retval _DeviceArg _DeviceRetval _Send _Recv _HostSend _HostRecv NoOp Const "
    "Identity IdentityN ReadVariableOp VarHandleOp Placeholder ControlTrigger "
    "VariableShape Shape ShapeN Size Rank BroadcastGradientArgs Enter Exit Merge Switch "
    "NextIteration LoopCond Assert StopGradient PreventGradient".split()  # noqa: SIM905  # a list of words reads better as a text
)
_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
_IN_LOOP = re.compile(r"/(?:while|while_grad)/(?:body|cond)(?:/|_)|_grad/body/")
_PREFIX = re.compile(r"^(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)+")


class Names:
    """From TensorFlow's names to the plan's: devices, parts and weights."""

    def __init__(self, plan: Plan, marks: "Placed", optimizer: Any = None) -> None:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        self.optimizer = getattr(inner, "name", None) or "no optimizer"
        self._updated = list(getattr(inner, "_trainable_variables", None) or ())
        self._users = plan.graph.parts_of_weights
        self._device = {canonical(d.target): d.name for d in plan.cluster}
        self._part_of = marks.part_of
        self._weight_of = marks.weight_of

    def device(self, name: str) -> str:
        """The plan's name of a device, or TensorFlow's short one for a stranger."""
        full = canonical(name)
        return self._device.get(full) or full.rpartition("device:")[2].lower()

    def part(self, op_name: str) -> str:
        """The part that an op is marked with; "" if none."""
        return self._part_of.get(key_in(op_name) or "", "")

    def updated_part(self, which: str) -> str:
        """The home of the variable that an update op is marked for; "" if shared."""
        if not which.isdigit() or int(which) >= len(self._updated):
            return ""
        weight = self.weight_of(self._updated[int(which)])
        return next(iter(self._users.get(weight, ())), "")

    def weight_of(self, variable: Any) -> str:
        """The plan's name of a variable; "" for one that the plan does not know."""
        return self._weight_of.get(id(variable), "")


def seen_ops(nodes: Iterable[Any], names: Names) -> Iterator[SeenOp]:
    """The working ops of one partitioned function: parts' and the optimizer's."""
    for node in nodes:
        if node.op in _NOT_WORK or not node.device:
            continue
        name = _PREFIX.sub("", node.name)
        part = names.part(name)
        which, target = update_target(name)
        if part:
            phase = "backward" if "gradient_tape/" in name else "forward"
            yield SeenOp(name, node.op, part, phase, names.device(node.device))
        elif target:
            yield SeenOp(
                name,
                node.op,
                names.updated_part(which),
                "update",
                names.device(node.device),
                names.device(target),
            )


def seen_copies(
    nodes: Sequence[Any], names: Names, graphs: Sequence[Any], batch: int
) -> Iterator[SeenCopy]:
    """The tensors of more than one element that crossed devices in one function."""
    readers = _readers(nodes)
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        if node.op not in _SENDS or not node.input or node.input[0].startswith("^"):
            continue
        source, target = (
            names.device(node.attr[key].s.decode())
            for key in ("send_device", "recv_device")
        )
        producer = by_name.get(node.input[0].partition(":")[0])
        name = _PREFIX.sub("", node.input[0])
        dtype = tf.as_dtype(node.attr["T"].type)
        if source == target or "/ctrl/" in name or dtype == tf.resource:
            continue
        consumers = readers.get(node.attr["tensor_name"].s.decode(), [])
        elements = _elements(name, graphs, batch)
        if elements is None:
            known = (_read_elements(each, graphs, batch) for each in consumers)
            elements = next((count for count in known if count is not None), None)
        each_time = _each_time(producer, name, consumers)
        if not each_time and elements is not None and elements <= 1:
            continue
        yield SeenCopy(
            name,
            _kind(name, producer, consumers, readers, dtype, names),
            source,
            target,
            None if elements is None else elements * dtype.size,
            each_time,
        )


def _readers(nodes: Iterable[Any]) -> dict[str, list[str]]:
    """Who reads what: by the name of a sent tensor, and by the name of an op."""
    received = {
        node.name: node.attr["tensor_name"].s.decode()
        for node in nodes
        if node.op in _RECEIVES
    }
    found: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for source in node.input:
            if not source.startswith("^"):
                name = source.partition(":")[0]
                found[received.get(name, _PREFIX.sub("", name))].append(
                    _PREFIX.sub("", node.name)
                )
    return found


def _each_time(producer: Any, name: str, consumers: Sequence[str]) -> bool:
    """Whether a loop makes or reads this value in every turn."""
    if producer is not None and producer.op in ("Exit", "Enter"):
        return False
    inside = [bool(_IN_LOOP.search(each)) for each in (name, *consumers)]
    return len(inside) > 1 and inside[0] and any(inside[1:])


def _elements(name: str, graphs: Sequence[Any], batch: int) -> int | None:
    """The number of elements of a tensor that a traced graph knows; None if none does."""
    op_name, _, index = name.partition(":")
    op = _operation(op_name, graphs)
    outputs = op.outputs[int(index or 0) :] if op is not None else []
    return _count(outputs[0], batch) if outputs else None


def _read_elements(reader: str, graphs: Sequence[Any], batch: int) -> int | None:
    """The size of what an op reads from outside its step: an argument, or a sum's."""
    op = _operation(reader, graphs)
    if op is None:
        return None
    read = [t for t in map(_behind, op.inputs) if t.op.type == "Placeholder"]
    if op.type == "AddN":
        read = list(op.outputs)
    return _count(read[0], batch) if read else None


def _behind(tensor: Any) -> Any:
    """The tensor that this one hands on; TensorFlow prunes identities when it runs."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _operation(name: str, graphs: Sequence[Any]) -> Any:
    for graph in graphs:
        with contextlib.suppress(KeyError, ValueError):
            return graph.get_operation_by_name(name)
    return None


def _count(tensor: Any, batch: int) -> int | None:
    if tensor.shape.rank is None or None in tensor.shape[1:]:
        return None
    return math.prod(
        batch if extent is None else int(extent) for extent in tensor.shape
    )


def _kind(
    name: str,
    producer: Any,
    consumers: Sequence[str],
    readers: dict[str, list[str]],
    dtype: Any,
    names: Names,
) -> str:
    if dtype == tf.bool:
        return "mask"
    if producer is not None and producer.op in ("_Arg", "IteratorGetNext"):
        return "input"
    if name.endswith("ReadVariableOp"):
        return "weights"
    if "gradient_tape/" in name or name.startswith("AddN"):
        sums = [
            r for c in consumers if c.startswith("AddN") for r in readers.get(c, ())
        ]
        backward = any("gradient_tape/" in each for each in (*consumers, *sums))
        return "gradient" if backward else "weights gradient"
    if update_target(name)[0] or name.startswith(f"{names.optimizer}/"):
        return "update"
    return "activation" if key_in(name) else "other"
