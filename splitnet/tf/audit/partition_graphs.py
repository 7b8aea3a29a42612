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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from splitnet.core.audit import SeenCopy, SeenOp
from splitnet.core.plan import Plan
from splitnet.core.replication import batch_shares, tower_part
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.keras_api import CARRIED_SCOPE, variables_of
from splitnet.tf.internals.tf_api import walk
from splitnet.tf.placement import device_function
from splitnet.tf.placement.device_function import CALLS, canonical, function_of, key_in
from splitnet.tf.placement.optimizer import all_optimizers
from splitnet.tf.placement.placed import Placed
from splitnet.tf.reading.traced import OPS

IDLE = OPS["idle"]
_SENDS = ("_Send", "_HostSend")
_RECEIVES = ("_Recv", "_HostRecv")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile")
_INSIDE = re.compile(r"^.*/(?:then|else|body|cond)/_\d+/")
# What TensorFlow makes of a `tf.cond`, for one of its results, and of a sum.
_MADE_OF = re.compile(r"/output/_\d+$|ArithmeticOptimizer/AddOpsRewrite_(?!Leaf)")
_PREFIX = re.compile(  # the calls that a step is inlined from, and the loop of steps
    r"^(?:Func/)?(?:(?!(?:^|/)sn_|gradient_tape/).)*?PartitionedCall(?:_\d+)?/"
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
        self._optimizers = tuple(f"/{one.name}/" for one in all_optimizers(optimizer))
        self._device = {canonical(d.target): d.name for d in placed.plan.cluster}
        self.part_of: Mapping[str | None, str] = placed.part_of
        counts = ((name, one.count) for name, one in plan.graph.towers.items())
        each = ((name, count, i) for name, count in counts for i in range(count))
        self._tower = {tower_part(name, i): (count, i) for name, count, i in each}
        self.target_of = placed.target_of
        self.variables: dict[int, tuple[Any, str]] = {}  # id -> variable, plan's name
        planned = {id(variable): name for name, variable in placed.variables.items()}
        for node in placed.flow.nodes:
            first = placed.first_weight.get(id(node), "")
            for variable in variables_of(node.operation) if first else ():
                name = planned.get(id(variable), first)
                self.variables.setdefault(id(variable), (variable, name))
        users = plan.graph.parts_of_weights
        self._updated = {
            f"update_{keras_api.number_of(variable.value)}": (
                next(iter(users.get(name, ())), ""),
                self.device(variable.value.device),
            )
            for variable, name in self.variables.values()
        }

    def device(self, name: str) -> str:
        """The plan's name of a device, or TensorFlow's short one for any other."""
        known = canonical(name)
        return self._device.get(known, known.rpartition("device:")[2].lower())

    def tower(self, node: "Node") -> tuple[int, int] | None:
        """How many towers there are and which one an op is of, if it is of any."""
        return self._tower.get(self.part_of.get(key_in(node.plain) or node.key, ""))

    def update(self, op_name: str) -> tuple[str, str] | None:
        """The first part and the device of a variable that an op updates, if known."""
        return self._updated.get(key_in(op_name) or "")

    def of_optimizer(self, op_name: str) -> bool:
        """Whether an op is an optimizer's."""
        update = device_function.is_update(op_name)
        return update or any(o in f"/{op_name}" for o in self._optimizers)


class Node:
    """An op that ran, and what its name and the function that it calls say.

    `plain` is its name without the calls that it was inlined from, `inputs` are the
    tensors ("op:index") that it reads, `called` is the function that it calls and `key`
    that function's part; `in_part` and `backward` say what it is of. A tensor that was
    sent counts as read from the op that made it: `sources` are the nodes that made what
    is read, `readers` the nodes that read of this one.
    """

    def __init__(self, node: Any) -> None:
        self.name, self.op = str(node.name), str(node.op)
        self.device, self.attr = str(node.device), node.attr
        self.plain = _PREFIX.sub("", node.name)
        self.inputs = [source for source in node.input if not source.startswith("^")]
        self.called = str(node.attr["f"].func.name) if node.op in CALLS else ""
        self.key = key_in(self.called)
        self.in_part = bool(self.key or key_in(node.name))
        self.backward = self.in_part and (
            "__backward_" in self.called or "gradient_tape/" in node.name
        )
        self.sources: list[Node] = []
        self.readers: list[Node] = []


class ExecutedStep:
    """One function that ran: its nodes on all devices, and the graphs traced for it.

    `sent` has each node that sends, with the nodes that read what it sent. The batch
    passes in shares, one per micro-batch.
    """

    def __init__(
        self, nodes: list[Any], graphs: Iterable[Any], names: Names, shares: list[int]
    ) -> None:
        self.nodes, self.names, self.shares = list(map(Node, nodes)), names, shares
        self._by_name = {node.name: node for node in self.nodes}
        self._graphs = list(graphs)
        for graph in self._graphs:  # grows by those of branches and loops inside
            for op in graph.get_operations():
                if op.type in _BRANCHES:
                    found = tf_api.functions_called(op.node_def)
                    self._graphs += [tf_api.function_body(graph, one) for one in found]
        sends = [node for node in self.nodes if node.op in _SENDS and node.inputs]
        source = {node.attr["tensor_name"].s: node.inputs[0] for node in sends}
        users: dict[bytes, list[Node]] = defaultdict(list)
        for node in self.nodes:
            for tensor in node.inputs if node.op not in _SENDS else ():
                maker = self.maker(tensor)
                if maker is not None and maker.op in _RECEIVES:
                    key = maker.attr["tensor_name"].s
                    users[key].append(node)
                    maker = self.maker(source.get(key, tensor))
                if maker is not None:
                    node.sources.append(maker)
                    maker.readers.append(node)
        for node in self.nodes:  # ops that TensorFlow made of one AddN
            total = self._by_name.get(node.name.partition(_ACCUMULATED)[0], node)
            if total is not node:
                node.op, node.readers = "AddN", total.readers
        self.sent = [(one, users[one.attr["tensor_name"].s]) for one in sends]

    def samples(self, nodes: Sequence[Node]) -> float:
        """Samples of an open batch between ops: of a tower, or a mean micro-batch."""
        if not any(node.in_part for node in nodes):
            return sum(self.shares)
        count, number = next(filter(None, map(self.names.tower, nodes)), (1, 0))
        each = [batch_shares(share, count)[number] for share in self.shares]
        return sum(each) / len(each)

    def maker(self, tensor: str) -> Node | None:
        """The node that makes a tensor, if it ran in this function."""
        return self._by_name.get(tensor.partition(":")[0])

    def traced(self, plain: str) -> Any:
        """The traced op of an executed one, in a step's graph or a branch inside."""
        for known in (plain, _INSIDE.sub("", plain), _MADE_OF.sub("", plain)):
            for graph in self._graphs:
                with contextlib.suppress(KeyError, ValueError):
                    return graph.get_operation_by_name(known)
        return None


def call_of(function: str, names: Iterable[str]) -> tuple[str | None, str, str]:
    """The key that a function was traced with, that of its call, and the phase."""
    traced_as = key_in(function)
    key = next(filter(None, map(key_in, names)), traced_as) or ""
    return traced_as, key, "backward" if "__backward_" in function else "forward"


def seen_ops(step: ExecutedStep) -> Iterator[SeenOp]:
    """The working ops of parts and the optimizer, named alike in each model call."""
    names = step.names
    for node in step.nodes:
        if node.key is not None:
            yield from _body(step, node)
        elif node.op not in IDLE and node.device:
            name, device = node.plain, names.device(node.device)
            if part := names.part_of.get(key_in(name)):
                phase = "backward" if "gradient_tape/" in name else "forward"
                yield SeenOp(name[name.index("sn_") :], node.op, part, phase, device)
            elif (updated := names.update(name)) is not None:
                yield SeenOp(name, node.op, updated[0], "update", device, updated[1])


def _body(step: ExecutedStep, call: Node) -> Iterator[SeenOp]:
    """The working ops of a part's function, and of functions that it calls."""
    names, read = step.names, map(step.maker, call.inputs)
    calls = [call.name, *(n.name for n in read if n is not None and n.key)]
    traced_as, key, phase = call_of(call.called, calls)
    ahead, done = [(call.called, call.device)], set()
    while ahead:
        name, here = ahead.pop()
        done.add(name)
        for node in tf_api.function_nodes(name):
            where = canonical(node.device, here) or here
            inner = [one for one in tf_api.functions_called(node) if one not in done]
            ahead += [(one, where) for one in inner]
            if not inner and node.op not in IDLE:
                own = key_in(node.name)
                part = names.part_of.get(key if own in (None, traced_as) else own, "")
                yield SeenOp(node.name, node.op, part, phase, names.device(where))


def unneeded_parts(graphs: Iterable[Any], names: Names) -> tuple[str, ...]:
    """Parts that work in traced graphs, but for nothing that these give or change."""
    working: dict[str, bool] = {}
    for graph in graphs:
        ends = [*(t.op for t in graph.outputs), *graph.control_outputs]
        needed = tf_api.ancestors(ends)
        for op in graph.get_operations():
            key = key_in(op.name)
            if key is None or op.type in IDLE:
                continue
            keys, function = {key}, function_of(op)
            if traced_as := key_in(function):  # with those of calls inside
                inside = {key_in(node.name) for node in tf_api.function_nodes(function)}
                keys |= inside - {None, traced_as}
            for part in (names.part_of.get(key, "") for key in keys):
                working[part] = working.get(part, False) or op in needed
    return tuple(part for part, used in working.items() if not used)


def seen_copies(step: ExecutedStep) -> Iterator[SeenCopy]:
    """Tensors of more than one element that crossed devices, with kind and bytes."""
    for node, readers in step.sent:
        ends = (node.attr[key].s.decode() for key in ("send_device", "recv_device"))
        source, target = map(step.names.device, ends)
        [tensor], dtype = node.inputs, tf.as_dtype(node.attr["T"].type)
        producer, name = step.maker(tensor), _PREFIX.sub("", tensor)
        ahead = [*walk(readers, lambda one: one.readers if one.op in _PASSING else [])]
        ends = {one.op for one in ahead}.difference(_PASSING)
        if source == target or "/ctrl/" in name or ends == {"_Retval"}:
            continue  # or what the function hands to its caller
        if dtype == tf.resource:
            if any(reader.key for reader in readers):
                yield SeenCopy(name, "weights", source, target, None)
            continue
        users = ahead if producer is None else [producer, *ahead]
        elements = _elements(step, tensor, step.samples(users))
        if elements is None or elements > 1:
            kind = "mask" if dtype == tf.bool else _kind(step, name, producer, readers)
            if kind == "activation" and all(CARRIED_SCOPE in r.name for r in readers):
                kind = "logits"
            size = None if elements is None else int(elements * dtype.size)
            yield SeenCopy(name, kind, source, target, size)


def _kind(step: ExecutedStep, name: str, maker: Node | None, users: list[Node]) -> str:
    """The kind of a copy, in the words of `SeenCopy`."""
    makers, names = [] if maker is None else [maker], step.names
    made_by = "".join(one.op for one in makers)

    def comes_from(found: Callable[[Node], bool], through: Sequence[str]) -> bool:
        back = walk(makers, lambda one: one.sources if one.op in through else [])
        return any(map(found, back))

    def leads_to(found: Callable[[Node], bool], through: Sequence[str]) -> bool:
        ahead = walk(users, lambda one: one.readers if one.op in through else [])
        return any(map(found, ahead))

    def sums(node: Node) -> bool:  # backward calls, or what they give
        summed = "gradient_sums" in node.called or node.plain.startswith("AddN")
        return summed or node.backward

    def assigns(node: Node) -> bool:  # a state, outside of parts and of the optimizer
        own = key_in(node.plain) or names.of_optimizer(node.plain)
        return node.op == "AssignVariableOp" and not own

    if _ARGUMENT.match(name) or made_by in _GIVEN and not name.startswith("unknown"):
        marked = not users or leads_to(lambda one: one.in_part, _PASSING)
        return "input" if marked else "target"
    if re.match(r"(gradient_tape/)?compile_loss(_\d+)?/", name):
        return "target"
    if made_by == "Const":  # computed before the step ran, as thresholds of metrics
        own = leads_to(lambda o: o.in_part or names.of_optimizer(o.plain), _PASSING)
        return "other" if own else "target"
    if names.of_optimizer(name):
        return "weights gradient" if comes_from(sums, _CLIPPING) else "update"
    if comes_from(lambda one: "ReadVariableOp" in (one.op, one.name[-14:]), _PASSING):
        return "weights"
    in_parts = bool(key_in(name)) and any(user.in_part for user in users)
    if not in_parts and leads_to(assigns, _UPDATING):
        return "state"
    if "gradient_tape/" in name or comes_from(sums, _SUMMING):
        backward = leads_to(lambda one: one.backward, _SUMMING)
        return "gradient" if backward else "weights gradient"
    if any(one.in_part for one in makers) or key_in(name):
        return "activation"
    into_part = leads_to(lambda one: bool(one.key), _PASSING)
    # What is computed of the step's data outside of parts, such as slices.
    sources = walk(makers, lambda one: one.sources if one.op not in CALLS else [])
    if any(o.op in _GIVEN and not o.plain.startswith("unknown") for o in sources):
        return "input" if into_part else "target"
    return "state" if into_part else "other"


def _elements(step: ExecutedStep, tensor: str, samples: float) -> float | None:
    """How many elements a tensor has that was sent; None if it is not known."""
    maker, _, index = tensor.partition(":")
    producer, op = step.maker(tensor), step.traced(_PREFIX.sub("", maker))
    while producer is not None and producer.op == "Reciprocal":  # made for a division
        producer = step.maker(producer.inputs[0])
    shapes = [] if op is None else [one.shape for one in op.outputs]
    if producer is not None and producer.op == "Const":
        shapes = [tf.TensorShape(producer.attr["value"].tensor.tensor_shape)]
    elif producer is not None and op is None:  # a dataset, or a caller
        stated = (producer.attr[k] for k in ("output_shapes", "_output_shapes"))
        known = next((one.list.shape for one in stated if one.list.shape), ())
        shapes = list(map(tf.TensorShape, known))
    elif producer is not None and producer.op in CALLS:
        count = len(producer.attr["Tout"].list.type)
        if count < len(shapes):  # TensorFlow drops outputs that nothing reads
            shapes = [one.shape for one in op.outputs if one.consumers()]
    if producer is not None and producer.op == "Merge" and len({*map(str, shapes)}) > 1:
        return None  # one of several results of a `tf.cond`
    shapes = shapes[int(index or 0) :]
    if not shapes or shapes[0].rank is None or None in shapes[0][1:]:
        return None
    return math.prod(samples if n is None else n for n in shapes[0])
