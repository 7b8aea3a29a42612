"""The functional model of a net, over copies of its layers that have no values.

Bodies are called on symbolic tensors, branch by branch; nothing is given memory.
"""

import contextlib
import inspect
import weakref
from collections.abc import Callable, Container, Iterator
from typing import Any

import keras

from splitnet.core.errors import SplitnetError, first_line
from splitnet.core.graph import Part
from splitnet.core.net import Branch, Net, Ref, raise_faults
from splitnet.core.replication import tower_part
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.flatten import Blueprint, flow_of, named, run_again
from splitnet.tf.reading.rebuild import held_layers
from splitnet.tf.sharding.cut import cut_layer
from splitnet.tf.sharding.heads import ATTENTION

_TRACES: "weakref.WeakKeyDictionary[Net, NetTrace]" = weakref.WeakKeyDictionary()


def trace_of(net: Net, upto: int) -> "NetTrace":
    """The trace of a net with its branches up to number `upto`; each is called once."""

    def follow() -> NetTrace:
        trace = _TRACES.setdefault(net, NetTrace())
        try:
            for branch in net.branches[len(trace.results) : upto + 1]:
                trace.results.append(trace.result(branch))
        except Exception:
            del _TRACES[net]
            raise
        return trace

    found: NetTrace = keras_api.without_memory(follow)
    return found


class NetTrace:
    """What the branches of one net returned, and which nodes each of them made.

    `results[number]` is a structure of symbolic tensors, or None where it failed;
    `part_of` maps a node's id to its branch's name.
    """

    def __init__(self) -> None:
        self.cloner = Cloner()
        self.results: list[Any] = []
        self.part_of: dict[int, str] = {}
        self.faults: list[str] = []
        self._known: dict[int, Any] = {}
        self._bodies: dict[int, tuple[Any, Any, list[Any], Any]] = {}
        self._users: dict[int, Branch] = {}  # the first of each layer

    def look_up(self, value: Any) -> Any:
        """Replace references by their tensors; None where one of them failed."""
        if isinstance(value, dict):
            made = {key: self.look_up(item) for key, item in value.items()}
            return None if any(item is None for item in made.values()) else made
        if isinstance(value, list | tuple):
            items = [self.look_up(item) for item in value]
            if any(item is None for item in items):
                return None
            return items[0] if len(items) == 1 else items
        if not isinstance(value, Ref):
            return value
        known = value.number < len(self.results)
        found = self.results[value.number] if known else None
        for key in value.path if found is not None else ():
            try:
                found = found[key]
            except (KeyError, IndexError, TypeError):
                self.faults.append(
                    f"branch {value.name!r} has no output {key!r}; it returned "
                    f"{keras.tree.map_structure(lambda t: tuple(t.shape), found)}."
                )
                return None
        return found

    def result(self, branch: Branch) -> Any:
        """What a branch returns; None, and a fault, if it cannot be applied."""
        entry = branch.kind == "input"
        inputs = self.look_up(branch.inputs)
        if not entry and (inputs is None or not branch.sources):
            return None
        try:
            if entry:
                made = keras.Input(branch.shape, dtype=branch.dtype, name=branch.name)
            else:
                made = self._apply(branch, branch.body, inputs)
            flat = keras.tree.flatten(made)
            if not flat or not all(isinstance(t, keras.KerasTensor) for t in flat):
                raise SplitnetError(
                    f"its body returned {made!r}; it must return a tensor, or a tuple, "
                    "list or dict of tensors."
                )
        except Exception as error:  # whatever a layer or a user's function raises
            if keras_api.needs_memory(error):
                raise
            shapes = [str(getattr(t, "shape", t)) for t in keras.tree.flatten(inputs)]
            why = f"its body cannot be applied to inputs of shape {', '.join(shapes)}"
            if entry:
                why = f"shape {branch.shape} and dtype {branch.dtype!r} cannot be"
            why += f": {type(error).__name__}: {first_line(error)}"
            if type(branch.body).__name__ in ATTENTION:
                why += ". It reads [query, value] or [query, value, key]"
            why = str(error) if isinstance(error, SplitnetError) else why
            self.faults.append(f"{branch.where}: {branch.kind} {branch.name!r}: {why}")
            return None
        for node in _nodes_between(flat, self._known):
            self.part_of.setdefault(id(node), branch.name)
            self._known |= {id(tensor): tensor for tensor in node.outputs}
        return made

    def _apply(self, branch: Branch, body: Any, inputs: Any) -> Any:
        if branch.slices:  # each a part of its own
            self._note_user(branch, body)
            count, copies = len(branch.slices), self.cloner
            made, outputs = cut_layer(body, count, inputs, copies, _call)
            for number, tensor in enumerate(made):
                node = keras_api.producer(tensor)
                self.part_of[id(node)] = tower_part(branch.name, number)
            return outputs
        if isinstance(body, list | tuple) and body:
            for one in body:
                inputs = self._apply(branch, one, inputs)
            return inputs
        if isinstance(body, keras.Operation):
            return _call(self._calling(branch, body), inputs, body.call)
        if inspect.isclass(body) or not callable(body):
            raise SplitnetError(
                f"its body is {body!r}; it must be a layer (an instance, no class), a "
                "list of layers, a keras.Model, or a function of symbolic tensors."
            )
        if id(body) not in self._bodies:
            with contextlib.ExitStack() as redirected:
                for layer in held_layers(body):
                    call = self._calling(branch, layer)
                    redirected.enter_context(_redirected(layer, call))
                outputs = _call(body, inputs)
            flat = keras.tree.flatten(outputs)
            if all(isinstance(t, keras.KerasTensor) for t in flat):
                nodes = _nodes_between(flat, self._known)
                self._bodies[id(body)] = (body, inputs, nodes, outputs)
            return outputs
        # A second branch repeats what the first did.
        _, taken, nodes, outputs = self._bodies[id(body)]
        old, new = map(keras.tree.flatten, (taken, inputs))
        tensors = {id(one): other for one, other in zip(old, new)}
        run_again(nodes, tensors, lambda one, args, kwargs: one(*args, **kwargs))
        return keras.tree.map_structure(lambda t: tensors.get(id(t), t), outputs)

    def _calling(self, branch: Branch, operation: Any) -> Callable[..., Any]:
        """A function that calls the copy of an operation."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._note_user(branch, operation)
            return self.cloner.call(operation, args, kwargs)

        return call

    def _note_user(self, branch: Branch, operation: Any) -> None:
        """Refuse a layer that one branch cuts and another uses: it would not be one."""
        for layer in keras_api.sublayers(operation):
            first = self._users.setdefault(id(layer), branch)
            if first is not branch and (first.slices or branch.slices):
                raise SplitnetError(
                    f"layer {layer.name!r} is in {first.kind} {first.name!r} as well, "
                    "and a layer that is cut has no weights to share. Use net.branch "
                    "for both, or a layer for each."
                )


@contextlib.contextmanager
def _redirected(layer: Any, call: Callable[..., Any]) -> Iterator[None]:
    """Let calls of a layer go to its copy, while a function that holds it runs.

    Python looks for `__call__` on a class, so the layer is of a subclass for the
    moment, and of its plain class again while it is copied; no class of Keras is
    changed.
    """
    kind = type(layer)

    def redirected(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = type(self)
        object.__setattr__(self, "__class__", kind)
        try:
            return call(*args, **kwargs)
        finally:
            object.__setattr__(self, "__class__", own)

    plain = {"__call__": redirected, "__module__": kind.__module__}
    object.__setattr__(layer, "__class__", type(kind.__name__, (kind,), plain))
    try:
        yield
    finally:
        object.__setattr__(layer, "__class__", kind)


def _call(function: Any, inputs: Any, signature: Any = None) -> Any:
    """Call with the inputs as the body takes them: spread if it names that many."""
    try:
        known = inspect.signature(signature or getattr(function, "call", function))
    except (TypeError, ValueError):
        return function(inputs)
    plain = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    taken = [p for p in known.parameters.values() if p.kind in plain]
    needed = sum(p.default is p.empty for p in taken)
    if isinstance(inputs, list) and 1 < needed <= len(inputs) <= len(taken):
        return function(*inputs)
    if isinstance(inputs, dict) and inputs and {*inputs} <= {*known.parameters}:
        return function(**inputs)
    return function(inputs)


def _nodes_between(outputs: list[Any], known: Container[int]) -> list[Any]:
    """The nodes that lead from known tensors to these outputs, in running order."""
    order: dict[int, Any] = {}
    stack = [(tensor, False) for tensor in reversed(outputs)]
    while stack:
        tensor, seen = stack.pop()
        node = keras_api.producer(tensor)
        if node is None or id(tensor) in known or id(node) in order:
            continue
        if seen:
            order[id(node)] = node
        else:
            stack.append((tensor, True))
            stack += [(t, False) for t in reversed(node.input_tensors)]
    return list(order.values())


# The model of all branches -------------------------------------------------------


def blueprint_of_net(net: Net) -> Blueprint:
    """The functional model of a net, whose branches are its parts.

    Raises:
        DeclarationError: with every fault of the declaration.
    """
    trace = trace_of(net, len(net.branches) - 1)
    raise_faults(net.name, [*net.faults(), *trace.faults])
    entries = [
        trace.results[i] for i, b in enumerate(net.branches) if b.kind == "input"
    ]
    with keras_api.without_values():
        outputs = _outputs(net, trace)
        raise_faults(net.name, trace.faults)
        one = len(entries) == 1
        try:
            model = keras.Model(
                entries[0] if one else entries, outputs, name=_model_name(net.name)
            )
        except ValueError as error:  # two layers of one name
            raise_faults(net.name, [first_line(error)])
    parts: list[Part] = []
    for b in net.branches:
        parts += [
            Part(tower_part(b.name, i), "slice", on, where=b.where)
            for i, on in enumerate(b.slices)
        ]
        kind = "merge" if b.slices else b.kind
        parts.append(Part(b.name, kind, b.on, b.near, b.apart, b.where))
    flow = flow_of(model)
    order = [part.name for part in parts]
    pairs = [(trace.part_of[id(node)], node) for node in flow.calls]
    pairs.sort(key=lambda pair: order.index(pair[0]))
    originals = {id(copy): old for old, copy in trace.cloner.layers()}
    towers = {b.name: b.towers for b in net.branches if b.towers is not None}
    return Blueprint(
        net.name,
        model,
        flow,
        tuple(parts),
        named(pairs),
        towers,
        originals,
        declared=True,
    )


def _model_name(name: str) -> str:
    """The nearest name that TensorFlow takes for a scope."""
    known = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return known if known.strip("_") else "net"


def _outputs(net: Net, trace: NetTrace) -> Any:
    """The model's outputs; where names matter, each is named by its branch."""
    made = []
    for output in net.outputs:
        name, ref = output.name, output.inputs
        if not name and len(net.outputs) > 1:
            name = _model_name("_".join([ref.name, *map(str, ref.path)]))
        for tensor in keras.tree.flatten(trace.look_up(ref)):
            if name not in ("", keras_api.producer(tensor).operation.name):
                tensor = keras.layers.Identity(name=name)(tensor)
                trace.part_of[id(keras_api.producer(tensor))] = ref.name
            made.append(tensor)
    return made[0] if len(made) == 1 else made
