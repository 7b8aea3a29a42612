"""Executed partition graphs in the plan's words: ops and copies, and where they were.

TensorFlow exports the graphs that it partitioned and ran. A part of an emitted model
stands there as one call per pass with its device; its ops stand in the function that is
called, and an op without a device of its own runs on that of the call. Ops that no
function holds, such as updates, stand in the graphs themselves.
"""

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from splitnet.core.audit import SeenCopy, SeenOp
from splitnet.core.plan import Plan
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.placement.device_function import (
    CALLS,
    ancestors,
    canonical,
    function_of,
    key_in,
    key_of_function,
    spoken,
    update_target,
)
from splitnet.tf.placement.optimizer import all_optimizers
from splitnet.tf.placement.placed import Placed
from splitnet.tf.reading.variables import variables_of

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
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile")
_INSIDE = re.compile(r"^.*/(?:then|else|body|cond)/_\d+/")
_PREFIX = re.compile(  # the calls that a step is inlined from, and the loop of steps
    r"^(?:Func/)?(?:(?!(?:^|/)sn-|gradient_tape/).)*?PartitionedCall(?:_\d+)?/"
    r"(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*"
)
_PASSING = ("Identity", "IdentityN")
_GIVEN = ("_Arg", "IteratorGetNext", "OptionalGetValue")
_SUMMING = (*_PASSING, "AddN", "AddV2")
_CLIPPING = (*_SUMMING, "Mul", "RealDiv", "Minimum", "Maximum", "ClipByValue")
_UPDATING = (*_SUMMING, "Mul", "Sub", "Cast")
_ARGUMENT = re.compile(r"^input/_\d+$")  # of a call that was inlined
_ACCUMULATED = "/tmp_var_"  # in the names of ops that TensorFlow makes of one AddN


class Names:
    """From TensorFlow's names to the plan's: devices, parts and weights.

    Devices go by the names that the model's own plan has for them. A variable that a
    layer got since it was placed, as by `quantize`, goes by the layer's first weight.
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
        self.part_of, self.target_of = placed.part_of, placed.target_of
        self.variables: dict[int, tuple[Any, str]] = {}  # id -> variable, plan's name
        for node in placed.flow.nodes:
            first = placed.first_weight.get(id(node), "")
            for variable in variables_of(node.operation) if first else ():
                name = placed.weight_of.get(id(variable), first)
                self.variables.setdefault(id(variable), (variable, name))

    def device(self, name: str) -> str:
        """The plan's name of a device, or TensorFlow's short one for any other."""
        if name not in self._known:
            self._known[name] = self._device.get(canonical(name)) or spoken(name)
        return self._known[name]

    def part(self, key: str | None) -> str:
        """The part of a key; "" if it is of none."""
        return self.part_of.get(key or "", "")

    def updated_part(self, which: str) -> str:
        """The part with the variable that an update op is for; "" if several."""
        weight = self.weight_of(self._updated.get(which))
        return next(iter(self._users.get(weight, ())), "")

    def of_update(self, op_name: str) -> bool:
        """Whether an op is an optimizer's."""
        return bool(update_target(op_name)[0]) or any(
            update in f"/{op_name}" for update in self._updates
        )

    def weight_of(self, variable: Any) -> str:
        """The plan's name of a variable; "" for one that the plan does not know."""
        return self.variables.get(id(variable), (None, ""))[1]


class ExecutedStep:
    """One function that ran: its nodes on all devices, and the graphs traced for it.

    A tensor ("op:index") that was sent counts as read from the op that made it:
    `origins` are the tensors that a node reads, `readers` the nodes that read an op,
    `sent` each node that sends, with the nodes that read what it sent.
    """

    def __init__(
        self, nodes: Sequence[Any], graphs: Sequence[Any], names: Names, batch: int
    ) -> None:
        self.nodes, self.names, self.batch = nodes, names, batch
        self.by_name = {node.name: node for node in nodes}
        self.origins: dict[str, list[str]] = defaultdict(list)
        self.readers: dict[str, list[Any]] = defaultdict(list)
        self._graphs = list(graphs)
        for graph in self._graphs:  # grows by those of branches and loops inside
            for op in graph.get_operations():
                if op.type in _BRANCHES:
                    found = _functions(op.node_def)
                    self._graphs += [tf_api.function_body(graph, one) for one in found]
        sends = [node for node in nodes if node.op in _SENDS and node.input]
        source = {node.attr["tensor_name"].s: node.input[0] for node in sends}
        key_of = {n.name: n.attr["tensor_name"].s for n in nodes if n.op in _RECEIVES}
        users: dict[bytes, list[Any]] = defaultdict(list)
        for node in nodes:
            for tensor in _inputs(node) if node.op not in _SENDS else ():
                key = key_of.get(_op(tensor), b"")
                origin = source.get(key, tensor)
                self.origins[node.name].append(origin)
                self.readers[_op(origin)].append(node)
                users[key].append(node)
        self.sent = [(one, users[one.attr["tensor_name"].s]) for one in sends]

    def back(self, node: Any, passes: Callable[[Any], bool]) -> Iterator[Any]:
        """A node, and what it has its data from behind nodes that pass it on."""

        def ahead(one: Any) -> list[Any]:
            tensors = self.origins[one.name] if passes(one) else ()
            return [self.by_name.get(_op(tensor)) for tensor in tensors]

        return _walk([node], ahead)

    def forward(self, readers: Sequence[Any], through: Sequence[str]) -> Iterator[Any]:
        """Nodes, and what reads of them behind ops of some types."""

        def ahead(one: Any) -> list[Any]:
            total = one.name.partition(_ACCUMULATED)[0]
            summed = total != one.name and "AddN" in through
            return self.readers[total] if summed or one.op in through else []

        return _walk(readers, ahead)

    def assigns(self, node: Any) -> bool:
        """Whether an op sets a state, outside of parts and of the optimizer."""
        name = _plain(node.name)
        mine = key_in(name) or self.names.of_update(name)
        return node.op == "AssignVariableOp" and not mine

    def traced(self, name: str) -> Any:
        """The traced op of an executed one, in a step's graph or a branch inside."""
        for known in dict.fromkeys((_plain(name), _INSIDE.sub("", _plain(name)))):
            for graph in self._graphs:
                with contextlib.suppress(KeyError, ValueError):
                    return graph.get_operation_by_name(known)
        return None


def _walk(nodes: Iterable[Any], ahead: Callable[[Any], list[Any]]) -> Iterator[Any]:
    """Nodes, and those that are ahead of them, each once."""
    left, done = list(nodes), set()
    while left:
        node = left.pop()
        if node is not None and node.name not in done:
            done.add(node.name)
            yield node
            left += ahead(node)


def seen_ops(step: ExecutedStep) -> Iterator[SeenOp]:
    """The working ops of parts and of the optimizer, with their devices."""
    names = step.names
    for node in step.nodes:
        if _key_called(node) is not None:
            yield from _body(step, node)
        elif node.op not in _NOT_WORK and node.device:
            name = _plain(node.name)
            device = names.device(node.device)
            part, (which, target) = names.part(key_in(name)), update_target(name)
            if part:
                phase = "backward" if "gradient_tape/" in name else "forward"
                yield SeenOp(name, node.op, part, phase, device)
            elif target:
                home, expected = names.updated_part(which), names.device(target)
                yield SeenOp(name, node.op, home, "update", device, expected)


def _body(step: ExecutedStep, call: Any) -> Iterator[SeenOp]:
    """The working ops of a part's function, and of functions that it calls."""
    names, function = step.names, _called(call)
    read = (step.by_name.get(_op(source)) for source in _inputs(call))
    calls = [call.name, *(n.name for n in read if n is not None and _key_called(n))]
    traced_as, key, phase = call_of(function, calls)
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
                part = names.part(key if own in (None, traced_as) else own)
                yield SeenOp(node.name, node.op, part, phase, names.device(where))


def call_of(function: str, names: Iterable[str]) -> tuple[str | None, str, str]:
    """The key that a function was traced with, that of its call, and the phase.

    Towers share a function, which has the key of one of them. Whose call it is stands
    in its name, or in those of the forward calls that it reads.
    """
    traced_as = key_of_function(function)
    key = next(filter(None, map(key_in, names)), traced_as) or ""
    return traced_as, key, "backward" if "__backward_" in function else "forward"


def works(kind: str) -> bool:
    """Whether ops of a type compute something, rather than move or name data."""
    return kind not in _NOT_WORK


def unneeded_parts(graphs: Iterable[Any], names: Names) -> tuple[str, ...]:
    """Parts that work in traced graphs, but for nothing that these give or change."""
    working: dict[str, bool] = {}
    for graph in graphs:
        needed = ancestors([*(t.op for t in graph.outputs), *graph.control_outputs])
        for op in graph.get_operations():
            key = key_in(op.name)
            if key is None or op.type in _NOT_WORK:
                continue
            keys, function = {key}, function_of(op)
            if traced_as := key_of_function(function):  # with those of calls inside
                inside = {key_in(node.name) for node in tf_api.function_nodes(function)}
                keys |= inside - {None, traced_as}
            for part in map(names.part, keys):
                working[part] = working.get(part, False) or op in needed
    return tuple(part for part, used in working.items() if not used)


def _plain(name: str) -> str:
    """The name of an executed op without the calls that it was inlined from."""
    return _PREFIX.sub("", name)


def _op(tensor: str) -> str:
    """The name of the op that makes a tensor."""
    return tensor.partition(":")[0]


def _called(node: Any) -> str:
    """The name of the function that a node calls; "" for any other op."""
    return str(node.attr["f"].func.name) if node.op in CALLS else ""


def _key_called(node: Any) -> str | None:
    """The key of the part whose function a node calls; None for any other."""
    return key_of_function(_called(node))


def _inputs(node: Any) -> list[str]:
    return [source for source in node.input if not source.startswith("^")]


def _functions(node: Any) -> list[str]:
    """The functions that a node of a body calls: calls, branches, loops."""
    found = []
    for value in node.attr.values():
        found += [value.func.name] if value.func.name else []
        found += [one.name for one in value.list.func]
    return found


def seen_copies(step: ExecutedStep) -> Iterator[SeenCopy]:
    """Tensors of more than one element that crossed devices, with kind and bytes."""
    for node, readers in step.sent:
        source, target = (
            step.names.device(node.attr[key].s.decode())
            for key in ("send_device", "recv_device")
        )
        tensor, name = node.input[0], _plain(node.input[0])
        dtype = tf.as_dtype(node.attr["T"].type)
        if source == target or tensor.startswith("^") or "/ctrl/" in name:
            continue
        if dtype == tf.resource:
            if any(_key_called(reader) for reader in readers):
                yield SeenCopy(name, "weights", source, target, None)
            continue
        elements = _elements(step, tensor, readers)
        if elements is None or elements > 1:
            producer = step.by_name.get(_op(tensor))
            kind = "mask" if dtype == tf.bool else _kind(step, name, producer, readers)
            size = None if elements is None else elements * dtype.size
            yield SeenCopy(name, kind, source, target, size)


def _kind(step: ExecutedStep, name: str, producer: Any, readers: Sequence[Any]) -> str:
    """The kind of a copy, in the words of `SeenCopy`."""

    def comes_from(found: Any, through: Sequence[str]) -> bool:
        return any(map(found, step.back(producer, lambda one: one.op in through)))

    def leads_to(wanted: Any, through: Sequence[str]) -> bool:
        return any(map(wanted, step.forward(readers, through)))

    if _ARGUMENT.match(name) or (producer is not None and producer.op in _GIVEN):
        marked = not readers or leads_to(_of_part, _PASSING)
        return "input" if marked else "target"
    if name.startswith(("compile_loss/", "gradient_tape/compile_loss/")):
        return "target"
    if producer is not None and producer.op == "Const":
        return "other"  # computed before the step ran
    if step.names.of_update(name):
        return "weights gradient" if comes_from(_sums, _CLIPPING) else "update"
    if comes_from(_reads_variable, _PASSING):
        return "weights"
    in_parts = bool(key_in(name)) and any(map(_of_part, readers))
    if not in_parts and leads_to(step.assigns, _UPDATING):
        return "state"
    if "gradient_tape/" in name or comes_from(_sums, _SUMMING):
        return "gradient" if leads_to(_of_backward, _SUMMING) else "weights gradient"
    if producer is not None and _of_part(producer) or key_in(name):
        return "activation"
    into_part = any(map(_key_called, readers))
    # What is computed of the step's data outside of parts, such as slices.
    sources = step.back(producer, lambda one: one.op not in CALLS)
    if any(
        o.op in _GIVEN and not _plain(o.name).startswith("unknown") for o in sources
    ):
        return "input" if into_part else "target"
    return "state" if into_part else "other"


def _sums(node: Any) -> bool:
    """Whether an op is a backward call, or a sum of what such calls give."""
    summed = "gradient_sums" in _called(node) or _plain(node.name).startswith("AddN")
    return summed or _of_backward(node)


def _reads_variable(node: Any) -> bool:
    return node.op == "ReadVariableOp" or node.name.endswith("ReadVariableOp")


def _of_backward(node: Any) -> bool:
    """Whether a node is a part's backward call, or an op of a backward pass."""
    backward = "__backward_" in _called(node) or "gradient_tape/" in node.name
    return backward and _of_part(node)


def _of_part(node: Any) -> bool:
    return _key_called(node) is not None or bool(key_in(node.name))


def _elements(step: ExecutedStep, tensor: str, readers: Sequence[Any]) -> int | None:
    """How many elements a tensor has that was sent; None if it is not known.

    TensorFlow drops outputs of a function that nothing reads, so an output of a call
    may have another number than when it was traced. Then a reader tells.
    """
    producer, op = step.by_name.get(_op(tensor)), step.traced(_op(tensor))
    index = int(tensor.partition(":")[2] or 0)
    known = op is not None and index < len(op.outputs)
    traced = _count(op.outputs[index].shape, step.batch) if known else None
    if producer is None or producer.op not in CALLS:
        if traced is None and producer is not None:
            traced = _given_elements(producer, index, step.batch)
        if traced is not None:
            return traced
    read = (_as_read(step, tensor, reader) for reader in readers)
    return next((count for count in read if count is not None), traced)


def _as_read(step: ExecutedStep, tensor: str, reader: Any) -> int | None:
    """The elements of the traced tensor that a reader has in place of an executed one.

    Inputs from one op keep their order when TensorFlow rewrites what is around them.
    """
    same = [one for one in step.origins[reader.name] if _op(one) == _op(tensor)]
    op = step.traced(reader.name)
    if op is None or tensor not in same:
        return None
    name, inputs = _plain(_op(tensor)), list(map(_behind, op.inputs))
    found = [one for one in inputs if one.op.name == name]
    if len(found) == len(same):
        return _count(found[same.index(tensor)].shape, step.batch)
    if op.type == "AddN":
        return _count(op.outputs[0].shape, step.batch)
    held = {inside.name for _, inside in op.graph.captures}
    counts = [
        _count(one.shape, step.batch)
        for one in inputs
        if one.op.type == "Placeholder"
        and one.dtype != tf.resource
        and (one.name in held) == name.startswith("unknown")
    ]
    return max((count for count in counts if count is not None), default=None)


def _behind(tensor: Any) -> Any:
    """The tensor that identities hand on; TensorFlow prunes them when it runs."""
    while tensor.op.type in _PASSING:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _given_elements(producer: Any, index: int, batch: int) -> int | None:
    """The elements of what a dataset or a caller gives, with the shapes it states."""
    stated = (producer.attr[key] for key in ("output_shapes", "_output_shapes"))
    shapes = next((one.list.shape for one in stated if one.list.shape), ())
    known = index < len(shapes)
    return _count(tf.TensorShape(shapes[index]), batch) if known else None


def _count(shape: tf.TensorShape, batch: int) -> int | None:
    """How many elements a shape has at this batch; None if it is not known."""
    if shape.rank is None or None in shape[1:]:
        return None
    return math.prod(batch if extent is None else extent for extent in shape)
