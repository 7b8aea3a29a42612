"""Executed partition graphs in the plan's words: the ops, and where they ran.

TensorFlow exports the graphs that it partitioned and ran. A part of an emitted model
stands there as one call per pass with its device; its ops stand in the function that is
called, and an op without a device of its own runs on that of the call. Ops that no
function holds, such as updates, stand in the graphs themselves.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from splitnet.core.audit import SeenOp
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
SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
PASSING = ("Identity", "IdentityN")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile")
_INSIDE = re.compile(r"^.*/(?:then|else|body|cond)/_\d+/")
PREFIX = re.compile(  # the calls that a step is inlined from, and the loop of steps
    r"^(?:Func/)?(?:(?!(?:^|/)sn-|gradient_tape/).)*?PartitionedCall(?:_\d+)?/"
    r"(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)*"
)


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
        self._part_of = placed.part_of
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

    def part(self, op_name: str) -> str:
        """The part in whose scope an op is; "" if none."""
        return self._part_of.get(key_in(op_name) or "", "")

    def part_called(self, key: str) -> str:
        """The part of a function's key."""
        return self._part_of.get(key, "")

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
    def _sent(self) -> dict[bytes, str]:
        """The tensor ("op:index") that was sent under a key."""
        sends = (node for node in self.nodes if node.op in SENDS and node.input)
        return {node.attr["tensor_name"].s: node.input[0] for node in sends}

    @cached_property
    def _received(self) -> dict[str, bytes]:
        """The key of what each receiving node receives, by its name."""
        receivers = (node for node in self.nodes if node.op in _RECEIVES)
        return {node.name: node.attr["tensor_name"].s for node in receivers}

    @cached_property
    def readers(self) -> dict[str, list[Any]]:
        """Nodes that read an op's outputs, here or on another device, by its name."""
        found: dict[str, list[Any]] = defaultdict(list)
        for node in self.nodes:
            for origin in self.origins(node) if node.op not in SENDS else ():
                found[op_of(origin)].append(node)
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

    def origins(self, node: Any) -> list[str]:
        """The tensors that a node reads, by the names of the ops that made them."""
        keys = ((one, self._received.get(op_of(one), b"")) for one in inputs_of(node))
        return [self._sent.get(key) or one for one, key in keys]

    def receivers(self, send: Any) -> list[Any]:
        """Nodes that read what a node sends."""
        key = send.attr["tensor_name"].s
        return [
            node
            for node in self.readers.get(op_of(send.input[0]), ())
            if any(self._received.get(op_of(one)) == key for one in inputs_of(node))
        ]

    def assigns(self, node: Any) -> bool:
        """Whether an op sets a state, outside of parts and of the optimizer."""
        name = PREFIX.sub("", node.name)
        mine = key_in(name) or self.names.of_update(name)
        return node.op == "AssignVariableOp" and not mine

    def traced(self, name: str) -> Any:
        """The traced op of an executed one, in a step's graph or a branch inside."""
        name = PREFIX.sub("", name)
        for known in dict.fromkeys((name, _INSIDE.sub("", name))):
            for graph in self.all_graphs:
                with contextlib.suppress(KeyError, ValueError):
                    return graph.get_operation_by_name(known)
        return None


def seen_ops(step: ExecutedStep) -> Iterator[SeenOp]:
    """The working ops of parts and of the optimizer, with their devices."""
    names = step.names
    for node in step.nodes:
        if key_called(node) is not None:
            yield from _body(step, node)
        elif node.op not in _NOT_WORK and node.device:
            name = PREFIX.sub("", node.name)
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

    Towers share a function, which has the key of one of them; whose call it is stands
    in its scope, or in that of the forward calls that it reads.
    """
    names, function = step.names, called(call)
    traced_as = key_of_function(function)
    read = (step.by_name.get(op_of(source)) for source in inputs_of(call))
    calls = [call, *(one for one in read if one is not None and key_called(one))]
    keys = (key_in(one.name) for one in calls)
    key = next(filter(None, keys), traced_as) or ""
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
            for part in map(names.part_called, keys):
                working[part] = working.get(part, False) or op in needed
    return tuple(part for part, used in working.items() if not used)


def inputs_of(node: Any) -> list[str]:
    """The tensors ("op:index") that a node reads."""
    return [source for source in node.input if not source.startswith("^")]


def op_of(tensor: str) -> str:
    """The name of the op that makes a tensor."""
    return tensor.partition(":")[0]


def called(node: Any) -> str:
    """The name of the function that a node calls; "" for any other op."""
    return str(node.attr["f"].func.name) if node.op in CALLS else ""


def key_called(node: Any) -> str | None:
    """The key of the part whose function a node calls; None for any other."""
    return key_of_function(called(node))


def _functions(node: Any) -> list[str]:
    """The functions that a node of a body calls: calls, branches, loops."""
    found = []
    for value in node.attr.values():
        found += [value.func.name] if value.func.name else []
        found += [one.name for one in value.list.func]
    return found
