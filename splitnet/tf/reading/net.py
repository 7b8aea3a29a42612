"""The functional model of a net, over copies of its layers that have no values.

Bodies are called on symbolic tensors, branch by branch; nothing is given memory.
"""

import contextlib
import functools
import inspect
import re
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import SplitnetError, first_line
from splitnet.core.graph import Part
from splitnet.core.net import Branch, Net, Ref, raise_faults
from splitnet.core.replication import tower_part
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.rebuild import held_layers
from splitnet.tf.sharding.cut import cut_layer
from splitnet.tf.sharding.heads import ATTENTION

_SCOPE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")  # what tf.name_scope takes
_TRACES: "weakref.WeakKeyDictionary[Net, NetTrace]" = weakref.WeakKeyDictionary()


def trace_of(net: Net, upto: int) -> "NetTrace":
    """The trace of a net with its branches up to number `upto`; each is called once.

    Variables that are made from a value instead of an initializer need memory; then the
    net is traced once more, with its values in the host's memory.
    """
    trace = _TRACES.setdefault(net, NetTrace())
    try:
        trace.follow(net, upto)
    except ValueError as error:
        if not keras_api.needs_memory(error):
            raise
        trace = _TRACES[net] = NetTrace(with_values=True)
        trace.follow(net, upto)
    return trace


class NetTrace:
    """What the branches of one net returned, and which nodes each of them made.

    `results[number]` is a structure of symbolic tensors, or None where it failed;
    `part_of` maps a node's id to its branch's name.
    """

    def __init__(self, *, with_values: bool = False) -> None:
        self.cloner = Cloner()
        self.results: list[Any] = []
        self.part_of: dict[int, str] = {}
        self.faults: list[str] = []
        self._with_values = with_values
        self._known: dict[int, Any] = {}
        self._bodies: dict[int, tuple[Any, Any, list[Any], Any]] = {}

    def follow(self, net: Net, upto: int) -> None:
        """Call the bodies of all branches up to number `upto` that were not called."""
        with self.building():
            for branch in net.branches[len(self.results) : upto + 1]:
                self.results.append(self._result(branch))

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Make layers whose variables have no memory, and no seeds of their own."""
        scope = keras_api.without_values
        if self._with_values:
            scope = functools.partial(tf.device, "/device:CPU:0")
        with keras_api.random_states_kept(), scope():
            yield
        for old, new in self.cloner.pairs():
            if keras_api.has_value(old):
                keras_api.borrow_value(new, old)

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
            if branch.slices:  # each a part of its own
                made, outputs = cut_layer(
                    branch.body,
                    len(branch.slices),
                    inputs,
                    self.cloner,
                    lambda layer, given: _call(layer, layer.call, given),
                )
                for number, tensor in enumerate(made):
                    node = keras_api.producer(tensor)
                    self.part_of[id(node)] = tower_part(branch.name, number)
            else:
                outputs = self._apply(branch.body, inputs)
        except SplitnetError as error:
            self.faults.append(f"{who}: {error}")
            return None
        except Exception as error:  # whatever a layer or a user's function raises
            if not self._with_values and keras_api.needs_memory(error):
                raise
            shapes = ", ".join(str(tuple(t.shape)) for t in keras.tree.flatten(inputs))
            reads = ""
            if type(branch.body).__name__ in ATTENTION:
                reads = (
                    ". It reads [query, value], [query, value, key], or both by name"
                )
            self.faults.append(
                f"{who}: its body cannot be applied to inputs of shape {shapes}: "
                f"{type(error).__name__}: {first_line(error)}{reads}"
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

    def _apply(self, body: Any, inputs: Any) -> Any:
        if isinstance(body, list | tuple):
            if not body:
                raise SplitnetError("its body is an empty list; name a layer.")
            for one in body:
                inputs = self._apply(one, inputs)
            return inputs
        if isinstance(body, keras.Operation):
            return _call(self._calls(body), body.call, inputs)
        if inspect.isclass(body):
            raise SplitnetError(
                f"its body is the class {body.__name__}; give an instance, such as "
                f"{body.__name__}(...)."
            )
        if not callable(body):
            raise SplitnetError(
                f"its body is {body!r}; it must be a layer, a list of layers, a "
                "keras.Model, or a function of symbolic tensors."
            )
        if id(body) in self._bodies:  # a second branch repeats what the first did
            _, taken, nodes, outputs = self._bodies[id(body)]
            return _repeat(nodes, taken, inputs, outputs)
        with _redirected(held_layers(body), self._calls):
            outputs = _call(body, body, inputs)
        flat = keras.tree.flatten(outputs)
        if all(isinstance(t, keras.KerasTensor) for t in flat):
            nodes = _nodes_between(flat, self._known)
            self._bodies[id(body)] = (body, inputs, nodes, outputs)
        return outputs

    def _calls(self, operation: Any) -> Callable[..., Any]:
        """A function that calls the copy of an operation."""
        return lambda *args, **kwargs: self.cloner.call(operation, args, kwargs)


@contextlib.contextmanager
def _redirected(
    layers: list[Any], calls: Callable[[Any], Callable[..., Any]]
) -> Iterator[None]:
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
    for layer, kind in zip(layers, kinds):
        object.__setattr__(layer, "__class__", redirection(kind, calls(layer)))
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
    faults = net.faults()
    trace = trace_of(net, len(net.branches) - 1)
    faults += trace.faults
    if faults:
        raise_faults(net.name, faults)
    with trace.building():
        outputs = _outputs(net, trace)
        raise_faults(net.name, trace.faults)
        inputs = [
            trace.results[i] for i, b in enumerate(net.branches) if b.kind == "input"
        ]
        reached = _nodes_between(keras.tree.flatten([outputs, inputs]), ())
        raise_faults(net.name, _cut_and_whole(net, trace, reached))
        raise_faults(net.name, _name_clashes(reached))
        struct = inputs[0] if len(inputs) == 1 else inputs
        model = keras.Model(struct, outputs, name=_model_name(net.name))
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
        name = output.name
        if name is None and len(net.outputs) > 1:
            name = _model_name("_".join([output.ref.name, *map(str, output.ref.path)]))
        for tensor in keras.tree.flatten(trace.look_up(output.ref)):
            if name not in (None, keras_api.producer(tensor).operation.name):
                tensor = keras.layers.Identity(name=name)(tensor)
                trace.part_of[id(keras_api.producer(tensor))] = output.ref.name
            made.append(tensor)
    return made[0] if len(made) == 1 else made


def _cut_and_whole(net: Net, trace: NetTrace, nodes: list[Any]) -> list[str]:
    """Layers that a split cuts and another branch calls: they would not be one."""
    splits = [branch for branch in net.branches if branch.slices]
    users: dict[int, list[str]] = {}
    for node in nodes if splits else ():
        for layer in keras_api.sublayers(node.operation):
            users.setdefault(id(layer), []).append(trace.part_of.get(id(node), ""))
    faults = []
    for branch in splits:
        others = [other.name for other in splits if other.body is branch.body]
        others += users.get(id(trace.cloner.of(branch.body)), [])
        if others := [name for name in dict.fromkeys(others) if name != branch.name]:
            faults.append(
                f"{branch.where}: split {branch.name!r} cuts layer "
                f"{branch.body.name!r}, which {', '.join(map(repr, others))} uses as "
                "well; its weights would no longer be shared. Use net.branch for "
                "both, or a layer for each."
            )
    return faults


def _name_clashes(nodes: list[Any]) -> list[str]:
    """Two different layers of one name, which no model can save."""
    operations = {id(node.operation): node.operation for node in nodes}
    names = Counter(operation.name for operation in operations.values())
    faults = [
        f"{n} different layers, inputs or outputs are named {name!r}; names are unique "
        "in a model."
        for name, n in sorted(names.items())
        if n > 1
    ]
    return faults + [
        f"TensorFlow takes no layer or output named {operation.name!r}: use letters "
        "from a to z, digits and any of _ . -, beginning with a letter or digit."
        for operation in operations.values()
        if not isinstance(operation, keras.layers.InputLayer)
        and not _SCOPE.fullmatch(operation.name)
    ]
