"""The functional model of a net, over copies of its layers that have no values.

Bodies are called on symbolic tensors, branch by branch; nothing is given memory.
"""

import contextlib
import inspect
import weakref
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import Any

import keras

from splitnet.core.errors import SplitnetError, first_line
from splitnet.core.graph import Part
from splitnet.core.net import Branch, Net, Ref, raise_faults
from splitnet.core.replication import tower_part
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.rebuild import held_layers
from splitnet.tf.sharding.cut import cut_layer
from splitnet.tf.sharding.heads import ATTENTION

_TRACES: "weakref.WeakKeyDictionary[Net, NetTrace]" = weakref.WeakKeyDictionary()


def trace_of(net: Net, upto: int) -> "NetTrace":
    """The trace of a net with its branches up to number `upto`; each is called once."""

    def follow() -> NetTrace:
        trace = _TRACES.setdefault(net, NetTrace())
        try:
            trace.follow(net, upto)
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

    def follow(self, net: Net, upto: int) -> None:
        """Call the bodies of all branches up to number `upto` that were not called."""
        for branch in net.branches[len(self.results) : upto + 1]:
            self.results.append(self._result(branch))

    def look_up(self, value: Any) -> Any:
        """Replace references by their tensors; None where one of them failed."""
        if isinstance(value, dict):
            made = {key: self.look_up(item) for key, item in value.items()}
            return None if any(v is None for v in made.values()) else made
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

    def _result(self, branch: Branch) -> Any:
        """What a branch returns; None, and a fault, if it cannot be applied."""
        if branch.kind == "input":
            return self._input(branch)
        inputs = self.look_up(branch.inputs)
        if inputs is None or not branch.sources:
            return None
        who = f"{branch.where}: {branch.kind} {branch.name!r}"
        try:
            outputs = self._apply(branch, branch.body, inputs)
        except SplitnetError as error:
            self.faults.append(f"{who}: {error}")
            return None
        except Exception as error:  # whatever a layer or a user's function raises
            if keras_api.needs_memory(error):
                raise
            shapes = ", ".join(str(tuple(t.shape)) for t in keras.tree.flatten(inputs))
            hint = ""
            if type(branch.body).__name__ in ATTENTION:
                hint = ". It reads [query, value] or [query, value, key]"
            self.faults.append(
                f"{who}: its body cannot be applied to inputs of shape {shapes}: "
                f"{type(error).__name__}: {first_line(error)}{hint}"
            )
            return None
        flat = keras.tree.flatten(outputs)
        if not flat or not all(isinstance(t, keras.KerasTensor) for t in flat):
            self.faults.append(
                f"{who}: its body returned {outputs!r}; it must return a tensor, or a "
                "tuple, list or dict of tensors."
            )
            return None
        for node in _nodes_between(flat, self._known):
            self.part_of.setdefault(id(node), branch.name)
            self._known |= {id(tensor): tensor for tensor in node.outputs}
        return outputs

    def _input(self, branch: Branch) -> Any:
        try:
            tensor = keras.Input(branch.shape, dtype=branch.dtype, name=branch.name)
        except Exception as error:  # Keras names what is wrong with shape or dtype
            self.faults.append(
                f"{branch.where}: input {branch.name!r} with shape {branch.shape} and "
                f"dtype {branch.dtype!r} cannot be: {first_line(error)}"
            )
            return None
        self.part_of[id(keras_api.producer(tensor))] = branch.name
        self._known[id(tensor)] = tensor
        return tensor

    def _apply(self, branch: Branch, body: Any, inputs: Any) -> Any:
        if branch.slices:  # each a part of its own
            made, outputs = cut_layer(
                body,
                len(branch.slices),
                inputs,
                self.cloner,
                lambda layer, given: _call(layer, layer.call, given),
            )
            self._note_user(branch, body)
            for number, tensor in enumerate(made):
                node = keras_api.producer(tensor)
                self.part_of[id(node)] = tower_part(branch.name, number)
            return outputs
        if isinstance(body, list | tuple) and body:
            for one in body:
                inputs = self._apply(branch, one, inputs)
            return inputs
        if isinstance(body, keras.Operation):
            return _call(self._calls(branch, body), body.call, inputs)
        if inspect.isclass(body) or not callable(body):
            raise SplitnetError(
                f"its body is {body!r}; it must be a layer (an instance, no class), a "
                "list of layers, a keras.Model, or a function of symbolic tensors."
            )
        if id(body) in self._bodies:  # a second branch repeats what the first did
            _, taken, nodes, outputs = self._bodies[id(body)]
            return _repeat(nodes, taken, inputs, outputs)
        layers = held_layers(body)
        with _redirected(layers, [self._calls(branch, layer) for layer in layers]):
            outputs = _call(body, body, inputs)
        flat = keras.tree.flatten(outputs)
        if all(isinstance(t, keras.KerasTensor) for t in flat):
            nodes = _nodes_between(flat, self._known)
            self._bodies[id(body)] = (body, inputs, nodes, outputs)
        return outputs

    def _calls(self, branch: Branch, operation: Any) -> Callable[..., Any]:
        """A function that calls the copy of an operation in a branch."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._note_user(branch, operation)
            return self.cloner.call(operation, args, kwargs)

        return call

    def _note_user(self, branch: Branch, operation: Any) -> None:
        """Note which branch uses a layer.

        Raises:
            SplitnetError: one branch cuts it and another uses it: it would not be one.
        """
        for layer in keras_api.sublayers(operation):
            first = self._users.setdefault(id(layer), branch)
            if first is not branch and (first.slices or branch.slices):
                raise SplitnetError(
                    f"layer {layer.name!r} is in {first.kind} {first.name!r} as well, "
                    "and a layer that is cut has no weights to share. Use net.branch "
                    "for both, or a layer for each."
                )


@contextlib.contextmanager
def _redirected(layers: list[Any], calls: list[Callable[..., Any]]) -> Iterator[None]:
    """While a function runs, calls of the layers that it holds go to their copies.

    Python looks for `__call__` on a class, so each of these objects is of a subclass
    for the moment, and of its plain class again while it is copied; no class of Keras
    is changed.
    """

    def redirection(kind: type, call: Callable[..., Any]) -> type:
        def redirected(self: Any, *args: Any, **kwargs: Any) -> Any:
            own = type(self)
            object.__setattr__(self, "__class__", kind)
            try:
                return call(*args, **kwargs)
            finally:
                object.__setattr__(self, "__class__", own)

        plain = {"__call__": redirected, "__module__": kind.__module__}
        return type(kind.__name__, (kind,), plain)

    kinds = [type(layer) for layer in layers]
    for layer, kind, call in zip(layers, kinds, calls):
        object.__setattr__(layer, "__class__", redirection(kind, call))
    try:
        yield
    finally:
        for layer, kind in zip(layers, kinds):
            object.__setattr__(layer, "__class__", kind)


def _call(function: Any, signature: Any, inputs: Any) -> Any:
    """Call with the inputs as the body takes them: spread if it names that many."""
    try:
        parameters = list(inspect.signature(signature).parameters.values())
    except (TypeError, ValueError):
        return function(inputs)
    plain = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    needed = [p for p in parameters if p.kind in plain and p.default is p.empty]
    most = sum(p.kind in plain for p in parameters)
    spread = len(needed) > 1 and len(needed) <= len(inputs) <= most
    if isinstance(inputs, list) and (len(needed) == len(inputs) or spread):
        return function(*inputs)
    names = {p.name for p in parameters}
    if isinstance(inputs, dict) and len(inputs) > 0 and set(inputs) <= names:
        return function(**inputs)
    return function(inputs)


def _repeat(nodes: list[Any], taken: Any, inputs: Any, outputs: Any) -> Any:
    """Call the same operations again, on other inputs."""
    tensors = {
        id(old): new
        for old, new in zip(keras.tree.flatten(taken), keras.tree.flatten(inputs))
    }
    for node in nodes:
        for tensor in node.input_tensors:
            tensors.setdefault(id(tensor), tensor)
        args, kwargs = node.arguments.fill_in(tensors)
        results = keras.tree.flatten(node.operation(*args, **kwargs))
        tensors.update({id(old): new for old, new in zip(node.outputs, results)})
    return keras.tree.map_structure(lambda t: tensors.get(id(t), t), outputs)


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


def model_of(net: Net) -> tuple[Any, tuple[Part, ...], NetTrace]:
    """The functional model of a net, its parts, and the trace of its branches.

    Raises:
        DeclarationError: with every fault of the declaration.
    """
    trace = trace_of(net, len(net.branches) - 1)
    raise_faults(net.name, [*net.faults(), *trace.faults])
    with keras_api.without_values():
        outputs = _outputs(net, trace)
        raise_faults(net.name, trace.faults)
        inputs = [
            trace.results[i] for i, b in enumerate(net.branches) if b.kind == "input"
        ]
        struct = inputs[0] if len(inputs) == 1 else inputs
        try:
            model = keras.Model(struct, outputs, name=_model_name(net.name))
        except ValueError as error:  # two layers of one name
            raise_faults(net.name, [first_line(error)])
    parts: list[Part] = []
    for b in net.branches:
        own = Part(b.name, b.kind, b.on, b.near, b.apart, b.where)
        parts += [
            Part(tower_part(b.name, i), "slice", on, where=b.where)
            for i, on in enumerate(b.slices)
        ]
        parts.append(replace(own, kind="merge") if b.slices else own)
    return model, tuple(parts), trace


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
