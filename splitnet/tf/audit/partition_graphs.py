"""Executed partition graphs in the plan's words: ops and copies between devices.

TensorFlow exports the graphs that it partitioned and ran. A part of an emitted model
stands there as one call per pass with its device; its ops stand in the function that is
called, and an op without a device of its own runs on that of the call. Ops that no
function holds, such as updates, stand in the graphs themselves.
"""

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from splitnet.core.audit import SeenCopy, SeenOp
from splitnet.core.plan import Plan
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.placement.device_function import (
    canonical,
    key_in,
    spoken,
    update_target,
)
from splitnet.tf.placement.optimizer import all_optimizers
from splitnet.tf.placement.placed import Placed

__all__ = [
    "ExecutedStep",
    "Names",
    "count_of",
    "seen_copies",
    "seen_ops",
    "unneeded_parts",
    "works",
]

# What moves, names or sizes data, but computes nothing of it.
_IDLE_OPS = (
    "_Arg _Retval _DeviceArg _DeviceRetval _Send _Recv _HostSend _HostRecv NoOp Const "
    "Identity IdentityN ReadVariableOp VarHandleOp Placeholder ControlTrigger "
    "VariableShape Shape ShapeN Size Rank BroadcastGradientArgs Enter Exit Merge "
    "Switch NextIteration LoopCond Assert StopGradient PreventGradient"
)
_NOT_WORK = frozenset(_IDLE_OPS.split())
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_PART_FUNCTION = re.compile(r"(?:^|_)sn_(k\d+)_")
_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
_GIVEN = ("_Arg", "IteratorGetNext", "OptionalGetValue")
_PASSING = ("Identity", "IdentityN")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile")
_SUMMING = (*_PASSING, "AddN", "AddV2")
_UPDATING = (*_PASSING, "AddV2", "Mul", "Sub", "Cast")
_ACCUMULATED = "/tmp_var_"  # in the names of ops that TensorFlow makes of one AddN
_IN_LOOP = re.compile(r"/(?:while|while_grad)/(?:body|cond)(?:/|_)|_grad/body/")
_INSIDE = re.compile(r"^.*/(?:then|else|body|cond)/_\d+/")
_ARGUMENT = re.compile(r"^input/_\d+$")  # of a call that was inlined
_PREFIX = re.compile(  # the calls that a step is inlined from, and the loop of steps
    r"^(?:Func/)?(?:(?!(?:^|/)sn-|gradient_tape/).)*?PartitionedCall(?:_\d+)?/"
    r"(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*"
)


class Names:
    """From TensorFlow's names to the plan's: devices, parts and weights.

    Devices go by the names that the model's own plan has for them.
    """

    def __init__(self, plan: Plan, placed: Placed, optimizer: Any = None) -> None:
        inner = all_optimizers(optimizer)
        self._updates = tuple(f"/{one.name}/" for one in inner)
        self._updated = {
            keras_api.number_of(variable.value): variable
            for one in inner
            for variable in keras_api.trained_by(one)
        }
        self._users = plan.graph.parts_of_weights
        self._device = {canonical(d.target): d.name for d in placed.plan.cluster}
        self._known: dict[str, str] = {}
        self._part_of = placed.part_of
        self._weight_of = placed.weight_of

    def device(self, name: str) -> str:
        """The plan's name of a device, or TensorFlow's short one for any other."""
        if name not in self._known:
            self._known[name] = self._device.get(canonical(name)) or spoken(name)
        return self._known[name]

    def part(self, op_name: str) -> str:
        """The part in whose scope an op is; "" if none."""
        return self._part_of.get(key_in(op_name) or "", "")

    def part_called(self, key: str) -> str:
        """The part of a function's key."""
        return self._part_of.get(key, "")

    def updated_part(self, which: str) -> str:
        """The part with the variable that an update op is for; "" if several."""
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


@dataclass(frozen=True)
class ExecutedStep:
    """One function that ran: its nodes on all devices, and the graphs traced for it."""

    nodes: Sequence[Any]
    graphs: Sequence[Any]
    names: Names
    batch: int

    @cached_property
    def by_name(self) -> dict[str, Any]:
        """Node by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def sent_as(self) -> dict[str, str]:
        """The tensor ("op:index") that each receiving node receives, by its name."""
        sent = {
            node.attr["tensor_name"].s: node.input[0]
            for node in self.nodes
            if node.op in _SENDS and node.input
        }
        return {
            node.name: sent.get(node.attr["tensor_name"].s, "")
            for node in self.nodes
            if node.op in _RECEIVES
        }

    @cached_property
    def received_as(self) -> dict[bytes, set[str]]:
        """The receiving nodes of each tensor that was sent."""
        found: dict[bytes, set[str]] = defaultdict(set)
        for node in self.nodes:
            if node.op in _RECEIVES:
                found[node.attr["tensor_name"].s].add(node.name)
        return found

    @cached_property
    def readers(self) -> dict[str, list[Any]]:
        """Nodes that read an op's outputs, here or on another device, by its name."""
        found: dict[str, list[Any]] = defaultdict(list)
        for node in self.nodes:
            for source in _inputs(node) if node.op not in _SENDS else ():
                origin = self.sent_as.get(_op_of(source)) or source
                found[_op_of(origin)].append(node)
        return found

    @cached_property
    def all_graphs(self) -> list[Any]:
        """The traced graphs, and those of branches and loops inside."""
        found = list(self.graphs)
        for graph in found:  # grows
            for op in graph.get_operations():
                if op.type in _BRANCHES:
                    names = _functions(op.node_def)
                    found += [tf_api.function_body(graph, name) for name in names]
        return found

    def receivers(self, send: Any) -> list[Any]:
        """Nodes that read what a node sends."""
        here = self.received_as[send.attr["tensor_name"].s]
        return [
            node
            for node in self.readers.get(_op_of(send.input[0]), ())
            if any(_op_of(source) in here for source in _inputs(node))
        ]

    def traced(self, name: str) -> Any:
        """The traced op of an executed one, in a step's graph or a branch inside."""
        name = _PREFIX.sub("", name)
        for known in dict.fromkeys((name, _INSIDE.sub("", name))):
            for graph in self.all_graphs:
                with contextlib.suppress(KeyError, ValueError):
                    return graph.get_operation_by_name(known)
        return None


def seen_ops(step: ExecutedStep) -> Iterator[SeenOp]:
    """The working ops of parts and of the optimizer, with their devices."""
    names = step.names
    for node in step.nodes:
        if _part_key(node) is not None:
            yield from _body(step, node)
        elif node.op not in _NOT_WORK and node.device:
            name = _PREFIX.sub("", node.name)
            device = names.device(node.device)
            part, (which, target) = names.part(name), update_target(name)
            if part:
                phase = "backward" if "gradient_tape/" in name else "forward"
                yield SeenOp(name, node.op, part, phase, device)
            elif target:
                home, expected = names.updated_part(which), names.device(target)
                yield SeenOp(name, node.op, home, "update", device, expected)


def _body(step: ExecutedStep, call: Any) -> Iterator[SeenOp]:
    """The working ops of a part's function, and of functions that it calls.

    Towers share a function, which has the key of one of them.
    """
    names, function = step.names, _function(call)
    traced_as = key_of_function(function)
    key = next(filter(None, _keys(step, call)), traced_as) or ""
    phase = "backward" if "__backward_" in function else "forward"
    ahead, done = [(function, call.device)], set()
    while ahead:
        name, here = ahead.pop()
        done.add(name)
        for node in tf_api.function_nodes(name):
            where = node.device or here
            inner = [(one, where) for one in _functions(node) if one not in done]
            ahead += inner
            if not inner and node.op not in _NOT_WORK:
                own = key_in(node.name)
                part = names.part_called(key if own in (None, traced_as) else own)
                yield SeenOp(node.name, node.op, part, phase, names.device(where))


def _keys(step: ExecutedStep, call: Any) -> Iterator[str | None]:
    """Keys in the scope of a call, and of the forward calls that it reads."""
    yield key_in(call.name)
    for source in _inputs(call):
        producer = step.by_name.get(_op_of(source))
        if producer is not None and _part_key(producer) is not None:
            yield key_in(producer.name)


def function_of(op: Any) -> str:
    """The name of the function that a traced op calls; "" for any other op."""
    return str(op.get_attr("f").name) if op.type in CALLS else ""


def key_of_function(name: str) -> str | None:
    """The key of the part whose function, or gradient function, has this name."""
    found = _PART_FUNCTION.search(name)
    return found[1] if found else None


def works(kind: str) -> bool:
    """Whether ops of a type compute something, rather than move or name data."""
    return kind not in _NOT_WORK


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
            for part in _parts_in(op, names) if op.type not in _NOT_WORK else ():
                working[part] = working.get(part, False) or op in needed
    return tuple(part for part, used in working.items() if not used)


def _parts_in(op: Any, names: Names) -> set[str]:
    """The part of a traced op; those of the calls in a part's function."""
    key, function = key_in(op.name), function_of(op)
    found = {key} if key else set()
    if key and (traced_as := key_of_function(function)):
        inside = {key_in(node.name) for node in tf_api.function_nodes(function)}
        found |= {one for one in inside if one and one != traced_as}
    return {names.part_called(one) for one in found}


def seen_copies(step: ExecutedStep) -> Iterator[SeenCopy]:
    """Tensors of more than one element that crossed devices, with kind and bytes."""
    for node in step.nodes:
        if node.op not in _SENDS or not node.input or node.input[0].startswith("^"):
            continue
        source, target = (
            step.names.device(node.attr[key].s.decode())
            for key in ("send_device", "recv_device")
        )
        name = _PREFIX.sub("", node.input[0])
        dtype = tf.as_dtype(node.attr["T"].type)
        if source == target or "/ctrl/" in name:
            continue
        readers = step.receivers(node)
        if dtype == tf.resource:
            if any(_part_key(reader) for reader in readers):
                yield SeenCopy(name, "weights", source, target, None)
            continue
        elements = _elements(step, node.input[0], readers)
        each_time = _each_time(step, name, readers)
        if each_time or elements is None or elements > 1:
            size = None if elements is None else elements * dtype.size
            kind = _kind(step, name, node, readers, dtype)
            yield SeenCopy(name, kind, source, target, size, each_time)


def _kind(
    step: ExecutedStep, name: str, send: Any, readers: Sequence[Any], dtype: Any
) -> str:
    """The kind of a copy, in the words of `SeenCopy`."""
    producer = step.by_name.get(_op_of(send.input[0]))
    function = "" if producer is None else _function(producer)
    if dtype == tf.bool:
        return "mask"
    if _ARGUMENT.match(name) or (producer is not None and producer.op in _GIVEN):
        marked = not readers or _leads_to(step, readers, _of_part, _PASSING)
        return "input" if marked else "target"
    if producer is not None and producer.op == "Const":
        return "other"  # computed before the step ran
    if step.names.of_update(name):
        return "update"
    if producer is not None and _reads_variable(step, producer):
        return "weights"
    if _leads_to(step, readers, _assigns, _UPDATING):
        return "state"
    if name.startswith(("compile_loss/", "gradient_tape/compile_loss/")):
        return "target"
    if "gradient_tape/" in name or _sums_gradients(step, producer):
        backward = _leads_to(step, readers, _of_backward, _SUMMING)
        return "gradient" if backward else "weights gradient"
    if key_of_function(function) or key_in(name):
        return "activation"
    if not any(map(_part_key, readers)):
        return "other"
    return "input" if _of_data(step, producer) else "state"


def _reads_variable(step: ExecutedStep, node: Any) -> bool:
    """Whether an op hands on the value of a variable."""
    while node is not None and node.op in _PASSING and node.input:
        node = step.by_name.get(_op_of(node.input[0]))
    return node is not None and (
        node.op == "ReadVariableOp" or node.name.endswith("ReadVariableOp")
    )


def _of_data(step: ExecutedStep, node: Any) -> bool:
    """Whether an op outside of parts computes from the step's data, as slices do."""
    ahead, done = [node], set()
    while ahead:
        node = ahead.pop()
        if node is None or node.name in done or node.op in CALLS:
            continue
        done.add(node.name)
        if node.op in _GIVEN and not _PREFIX.sub("", node.name).startswith("unknown"):
            return True
        for source in _inputs(node):
            origin = step.sent_as.get(_op_of(source)) or source
            ahead.append(step.by_name.get(_op_of(origin)))
    return False


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


def _sums_gradients(step: ExecutedStep, node: Any) -> bool:
    """Whether an op is a backward call, or a sum of what such calls give."""
    ahead, done = [node], set()
    while ahead:
        node = ahead.pop()
        if node is None or node.name in done:
            continue
        done.add(node.name)
        if _of_backward(node) or node.name.startswith("AddN"):
            return True
        if node.op in _SUMMING:
            sources = [step.sent_as.get(_op_of(s)) or s for s in _inputs(node)]
            ahead += [step.by_name.get(_op_of(source)) for source in sources]
    return False


def _assigns(node: Any) -> bool:
    return node.op == "AssignVariableOp" and not key_in(node.name)


def _of_backward(node: Any) -> bool:
    """Whether a node is a part's backward call, or an op of a backward pass."""
    return _of_part(node) and (
        "__backward_" in _function(node) or "gradient_tape/" in node.name
    )


def _of_part(node: Any) -> bool:
    return _part_key(node) is not None or bool(key_in(node.name))


def _each_time(step: ExecutedStep, name: str, readers: Sequence[Any]) -> bool:
    """Whether a loop makes or reads this value in every iteration."""
    producer = step.by_name.get(_op_of(name))
    if producer is not None and producer.op in ("Exit", "Enter"):
        return False
    names = [_PREFIX.sub("", reader.name) for reader in readers]
    return bool(_IN_LOOP.search(name)) and any(map(_IN_LOOP.search, names))


def _elements(step: ExecutedStep, tensor: str, readers: Sequence[Any]) -> int | None:
    """How many elements a tensor has that was sent; None if it is not known.

    TensorFlow drops outputs of a function that nothing reads, so an output of a call
    may have another number than when it was traced. Then a reader tells.
    """
    producer = step.by_name.get(_op_of(tensor))
    if producer is None or producer.op not in CALLS:
        elements = _traced_elements(step, tensor)
        if elements is None and producer is not None:
            elements = _given_elements(producer, tensor, step.batch)
        if elements is not None:
            return elements
    for reader in readers:
        found = _as_read(step, tensor, reader)
        if found is not None and (count := count_of(found, step.batch)) is not None:
            return count
    return _traced_elements(step, tensor)


def _traced_elements(step: ExecutedStep, tensor: str) -> int | None:
    op = step.traced(_op_of(tensor))
    index = int(tensor.partition(":")[2] or 0)
    if op is None or index >= len(op.outputs):
        return None
    return count_of(op.outputs[index], step.batch)


def _as_read(step: ExecutedStep, tensor: str, reader: Any) -> Any:
    """The traced tensor that a reader has in place of an executed one; None if none.

    Inputs from one op keep their order when TensorFlow rewrites what is around them.
    """
    origins = [step.sent_as.get(_op_of(source)) or source for source in _inputs(reader)]
    same = [one for one in origins if _op_of(one) == _op_of(tensor)]
    op = step.traced(reader.name)
    if op is None or tensor not in same:
        return None
    name = _PREFIX.sub("", _op_of(tensor))
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
    while tensor.op.type in _PASSING:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _given_elements(producer: Any, tensor: str, batch: int) -> int | None:
    """The elements of what a dataset or a caller gives, with the shapes it states."""
    stated = (producer.attr[key] for key in ("output_shapes", "_output_shapes"))
    shapes = next((one.list.shape for one in stated if one.list.shape), ())
    index = int(tensor.partition(":")[2] or 0)
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


def _inputs(node: Any) -> list[str]:
    return [source for source in node.input if not source.startswith("^")]


def _op_of(tensor: str) -> str:
    return tensor.partition(":")[0]


def _function(node: Any) -> str:
    """The name of the function that a node calls; "" for any other op."""
    return str(node.attr["f"].func.name) if node.op in CALLS else ""


def _part_key(node: Any) -> str | None:
    """The key of the part whose function a node calls; None for any other."""
    return key_of_function(_function(node))


def _functions(node: Any) -> list[str]:
    """The functions that a node of a body calls: calls, branches, loops."""
    found = []
    for value in node.attr.values():
        found += [value.func.name] if value.func.name else []
        found += [one.name for one in value.list.func]
    return found
