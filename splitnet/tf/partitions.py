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
from splitnet.tf.internals import keras_api
from splitnet.tf.marks import canonical, key_in, spoken, update_target
from splitnet.tf.optimizer import all_optimizers

if TYPE_CHECKING:
    from splitnet.tf.placement import Placed

__all__ = ["Names", "count_of", "seen_copies", "seen_ops", "unneeded_parts"]

# What moves, names or sizes data, but computes nothing of it.
_IDLE_OPS = (
    "_Arg _Retval _DeviceArg _DeviceRetval _Send _Recv _HostSend _HostRecv NoOp Const "
    "Identity IdentityN ReadVariableOp VarHandleOp Placeholder ControlTrigger "
    "VariableShape Shape ShapeN Size Rank BroadcastGradientArgs Enter Exit Merge "
    "Switch NextIteration LoopCond Assert StopGradient PreventGradient"
)
_NOT_WORK = frozenset(_IDLE_OPS.split())
_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
_ACCUMULATED = "/tmp_var_"  # behind a sum's name: ops of one that TensorFlow spread out
_IN_LOOP = re.compile(r"/(?:while|while_grad)/(?:body|cond)(?:/|_)|_grad/body/")
_GIVEN = ("_Arg", "IteratorGetNext", "OptionalGetValue")
_INSIDE = re.compile(r"^.*/(?:then|else|body|cond)/_\d+/")
_ARGUMENT = re.compile(r"^input/_\d+$")  # of a call that was inlined
_PREFIX = re.compile(  # the calls that a step is inlined from, and the loop of steps
    r"^(?:Func/)?(?:(?!(?:^|/)sn-|gradient_tape/).)*?PartitionedCall(?:_\d+)?/"
    r"(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*"
)


class Names:
    """From TensorFlow's names to the plan's: devices, parts and weights."""

    def __init__(self, plan: Plan, marks: "Placed", optimizer: Any = None) -> None:
        inner = all_optimizers(optimizer)
        self._updates = tuple(f"/{one.name}/" for one in inner)
        self._updated = {
            keras_api.number_of(variable.value): variable
            for one in inner
            for variable in keras_api.trained_by(one)
        }
        self._users = plan.graph.parts_of_weights
        self._device = {canonical(d.target): d.name for d in plan.cluster}
        self._part_of = marks.part_of
        moved = {receipt.part: receipt.assigned for receipt in marks.receipts}
        self._device_of = dict(plan.device_of) | moved
        self._weight_of = marks.weight_of

    def device(self, name: str) -> str:
        """The plan's name of a device, or TensorFlow's short one for a stranger."""
        return self._device.get(canonical(name)) or spoken(name)

    def part(self, op_name: str) -> str:
        """The part that an op is marked with; "" if none."""
        return self._part_of.get(key_in(op_name) or "", "")

    def planned(self, op_name: str) -> str:
        """Where the part is that an op is marked with; "" if none."""
        return self._device_of.get(self.part(op_name), "")

    def updated_part(self, which: str) -> str:
        """The home of the variable that an update op is marked for; "" if shared."""
        if which not in self._updated:
            return ""
        weight = self.weight_of(self._updated[which])
        return next(iter(self._users.get(weight, ())), "")

    def of_update(self, op_name: str) -> bool:
        """Whether an op is an optimizer's."""
        return bool(update_target(op_name)[0]) or any(
            update in f"/{op_name}" for update in self._updates
        )

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


def unneeded_parts(graphs: Iterable[Any], names: Names) -> tuple[str, ...]:
    """Parts that work in traced graphs, but for nothing that these give or change."""
    working: dict[str, bool] = {}
    for graph in graphs:
        needed: set[Any] = set()
        todo = [*(t.op for t in graph.outputs), *graph.control_outputs]
        while todo:
            op = todo.pop()
            if op not in needed:
                needed.add(op)
                todo += [*(t.op for t in op.inputs), *op.control_inputs]
        for op in graph.get_operations():
            part = "" if op.type in _NOT_WORK else names.part(op.name)
            if part:
                working[part] = working.get(part, False) or op in needed
    return tuple(part for part, used in working.items() if not used)


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
        if elements is None and producer is not None:
            elements = _given_elements(producer, name, batch)
        if elements is None:
            held = name.startswith("unknown")  # TensorFlow's name of a captured input
            known = (_read_elements(each, graphs, batch, held) for each in consumers)
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
                sent = node.attr["tensor_name"].s.decode() if node.op in _SENDS else ""
                found[received.get(name, _PREFIX.sub("", name))].append(
                    sent or _PREFIX.sub("", node.name)
                )
    return found


def _each_time(producer: Any, name: str, consumers: Sequence[str]) -> bool:
    """Whether a loop makes or reads this value in every turn."""
    if producer is not None and producer.op in ("Exit", "Enter"):
        return False
    inside = [bool(_IN_LOOP.search(each)) for each in (name, *consumers)]
    return len(inside) > 1 and inside[0] and any(inside[1:])


def _elements(name: str, graphs: Sequence[Any], batch: int) -> int | None:
    """How many elements a tensor of a traced graph has; None if it is not known."""
    op_name, _, index = name.partition(":")
    op = _operation(op_name, graphs)
    outputs = op.outputs[int(index or 0) :] if op is not None else []
    return count_of(outputs[0], batch) if outputs else None


def _given_elements(producer: Any, name: str, batch: int) -> int | None:
    """The size of what a dataset gives, which says its shapes itself."""
    shapes = producer.attr["output_shapes"].list.shape
    index = int(name.partition(":")[2] or 0)
    if index >= len(shapes):
        return None
    extents = [extent.size for extent in shapes[index].dim]
    if shapes[index].unknown_rank or -1 in extents[1:]:
        return None
    return math.prod(batch if extent < 0 else extent for extent in extents)


def _read_elements(
    reader: str, graphs: Sequence[Any], batch: int, held: bool
) -> int | None:
    """The size of what an op reads from outside its part or its step, or of its sum.

    `held` says that it is a constant which the step holds, and not the step's data.
    """
    op = _operation(reader, graphs)
    if op is None:
        return None
    key = key_in(reader)
    read = [
        tensor
        for tensor in map(_behind, op.inputs)
        if tensor.op.type == "Placeholder" or key_in(tensor.op.name) not in (None, key)
    ]
    if held:
        captured = {id(inside) for _, inside in op.graph.captures}
        read = [tensor for tensor in read if id(tensor) in captured]
    if op.type == "AddN":
        read = list(op.outputs)
    return count_of(read[0], batch) if read else None


def _behind(tensor: Any) -> Any:
    """The tensor that this one hands on; TensorFlow prunes identities when it runs."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def _operation(name: str, graphs: Sequence[Any]) -> Any:
    """The traced op of this name, in a step's graph or that of a branch inside."""
    for known in dict.fromkeys((name, _INSIDE.sub("", name))):
        for graph in graphs:
            with contextlib.suppress(KeyError, ValueError):
                return graph.get_operation_by_name(known)
    return None


def count_of(tensor: Any, batch: int) -> int | None:
    """How many elements a traced tensor has at this batch; None if it is not known."""
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
    if _ARGUMENT.match(name) or (producer is not None and producer.op in _GIVEN):
        marked = not consumers or any(key_in(each) for each in consumers)
        return "input" if marked else "target"
    if names.of_update(name):
        return "update"
    if name.endswith("ReadVariableOp"):
        return "weights"
    if consumers and all("/AssignVariableOp" in f"/{each}" for each in consumers):
        return "state"
    if "gradient_tape/" in name or name.startswith("AddN"):
        found = list(dict.fromkeys(consumers))
        for each in found:  # grows: sums of sums, sent on to further devices
            if "AddN" in each and "gradient_tape/" not in each:
                total = each.partition(_ACCUMULATED)[0]
                found += [r for r in readers.get(total, ()) if r not in found]
        backward = any("gradient_tape/" in each for each in found)
        return "gradient" if backward else "weights gradient"
    if name.startswith("compile_loss/"):
        return "target"
    return "activation" if key_in(name) else "other"
