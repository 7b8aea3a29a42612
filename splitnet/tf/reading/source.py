"""One form for every source: a functional model, and the part of each of its calls.

A net's model is made by calling its bodies on symbolic tensors, branch by branch, over
copies of its layers that have no values; a Keras model's is the model itself. Both are
read, matched with plans and cloned by the same code.
"""

import contextlib
import functools
import inspect
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from typing import Any

import keras

from splitnet.core.errors import DeclarationError, SplitnetError, first_line
from splitnet.core.graph import Part
from splitnet.core.net import Branch, Net, Ref, raise_faults
from splitnet.core.replication import tower_part
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.call_cost import UNKNOWN_EXTENT, warn_once
from splitnet.tf.reading.cloner import STEPS, Cloner
from splitnet.tf.reading.flatten import Blueprint, InnerNode, flow_of, named, run_again
from splitnet.tf.reading.rebuild import held_layers
from splitnet.tf.reading.slices import HEAD_SLICES, cut_layer

_IMAGE_EXTENT = 224
_TRACES: "weakref.WeakKeyDictionary[Net, NetTrace]" = weakref.WeakKeyDictionary()


def blueprint_of(source: Any, nested: str = "keep") -> Blueprint:
    """Bring a net, a Keras model or what builds one to one form; see `read`."""
    if isinstance(source, Net):
        return _blueprint_of_net(source)
    model = _functional_of(resolved(source, anew=False))
    flow = flow_of(model, nested)
    sites = named((None, node) for node in flow.calls)
    parts = tuple(
        Part(site.part, "input", ("cpu",)) if site.node.is_input else Part(site.part)
        for site in sites
    )
    return Blueprint(model.name, model, flow, parts, sites)


def resolved(source: Any, *, anew: bool = True) -> Any:
    """What a function builds, without memory; another source as it is.

    With `anew`, automatic names such as `dense_3` are the same each time.
    """
    if not callable(source) or isinstance(source, keras.Operation | type):
        return keras_api.with_activations(source)
    counting_anew = keras_api.without("object_name_uids", defaultdict(int))
    with counting_anew if anew else contextlib.nullcontext():
        return keras_api.without_memory(lambda: keras_api.with_activations(source()))


def _functional_of(model: Any) -> Any:
    """The functional form of a Keras model, over its own layers and nodes."""
    if not isinstance(model, keras.Model):
        raise DeclarationError(
            "a model is a splitnet.Net, a keras.Model, or a function without arguments "
            f"that builds one. Received: {model!r} ({type(model).__name__})."
        )
    kind, own = type(model), {} if "_splitnet" in vars(model) else vars(model)
    base, codes = keras_api.Functional, ("call",)
    if isinstance(model, keras.Sequential):
        base, codes = keras.Sequential, ("call", "__call__", *STEPS)  # is not kept
        if not model.built or not model.inputs:
            raise DeclarationError(
                f"the Sequential model {model.name!r} is not built, so its shapes are "
                "not known. Start it with keras.Input(shape), or call model.build()."
            )
    hidden = [n for n in codes if n in own or getattr(kind, n) is not getattr(base, n)]
    if hidden:
        raise DeclarationError(
            f"model {model.name!r} ({kind.__qualname__}) is subclassed: its "
            f"{' and '.join(hidden)} is code that its graph of calls does not have. "
            "Make it from keras.Model(inputs, outputs), or declare a net with it as "
            "the body of a branch."
        )
    if base is keras.Sequential:
        made = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
        keras_api.take_settings(made, model)
        return made
    return model


def sized(blueprint: Blueprint, batch: int) -> Blueprint:
    """The same calls, with a size for each open dimension of inputs.

    Sizes other than the batch are logged once: of an image its other side, or 224.
    """
    open_sizes, given = list[str](), list[Any]()
    for node in blueprint.flow.inputs:
        tensor, extent = node.outputs[0], UNKNOWN_EXTENT
        if len(tensor.shape) == 4:
            sides = [n for n in tensor.shape[1:] if n is not None and n > 4]
            extent = max(sides, default=_IMAGE_EXTENT)
        sizes = (batch, *[extent] * len(tensor.shape))
        shape = tuple(n if own is None else own for n, own in zip(sizes, tensor.shape))
        spec = keras.KerasTensor(shape, tensor.dtype, sparse=tensor.sparse)
        given += InnerNode(node.operation, node.arguments, [spec]).outputs
        taken = (*tensor.shape[:1], *shape[1:])
        if taken != tensor.shape:
            open_sizes.append(f"{node.operation.name!r} {tensor.shape} as {taken}")
    try:
        flow = flow_of(blueprint.model, blueprint.flow.nested, inputs=given)
        found = blueprint.along(flow)
    except Exception:  # whatever a layer raises that takes no such size
        return blueprint
    if open_sizes:
        warn_once(
            f"model {blueprint.name!r} leaves sizes open, so costs and memory are of "
            f"inputs of an assumed size: {'; '.join(open_sizes)}. For another, plan "
            "keras.Model(x, model(x)), with inputs x of that size."
        )
    return found


def _blueprint_of_net(net: Net) -> Blueprint:
    """The functional model of a net, whose branches are its parts."""
    trace = trace_of(net, len(net.branches) - 1)
    faults, outputs, parts = [*net.faults(), *trace.faults], [], list[Part]()
    for output in net.outputs:
        try:
            outputs.append((output.name, output.inputs, trace.look_up(output.inputs)))
        except LookupError as error:
            faults += (f"{output.where}: {one}" for one in error.args)
    raise_faults(net.name, faults)
    inputs = [made for b, made in zip(net.branches, trace.results) if b.kind == "input"]
    ends = []
    with keras_api.without_values():
        taken = {name for name, *_ in outputs}
        for told, ref, made in outputs:
            for path, tensor in keras.tree.flatten_with_path(made):
                name = told
                if path if told else outputs[1:]:
                    words = [told, *path] if told else [ref.name, *ref.path, *path]
                    name = "_".join(_model_name(str(word)) for word in words)
                    while name in taken:
                        name += "_"
                    taken.add(name)
                if name not in ("", keras_api.producer(tensor).operation.name):
                    tensor = keras.layers.Identity(name=name)(tensor)
                    trace.part_of[id(keras_api.producer(tensor))] = ref.name
                ends.append(tensor)
        keras_api.read_all(inputs)
        given = (some[0] if len(some) == 1 else some for some in (inputs, ends))
        # Keras follows a chain of layers by recursion, here and in copies.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), len(trace.part_of) + 500))
        try:
            model = keras.Model(*given, name=_model_name(net.name))
        except ValueError as error:  # two layers of one name
            raise_faults(net.name, [first_line(error)])
    for b in net.branches:
        parts += [
            Part(tower_part(b.name, i), "slice", on, where=b.where)
            for i, on in enumerate(b.slices)
        ]
        kind = "merge" if b.slices else b.kind
        parts.append(Part(b.name, kind, b.on, b.near, b.apart, b.where))
    flow = flow_of(model)
    order = {part.name: i for i, part in enumerate(parts)}
    pairs = [(trace.part_of[id(node)], node) for node in flow.calls]
    pairs.sort(key=lambda pair: order[pair[0]])
    return Blueprint(
        net.name,
        model,
        flow,
        tuple(parts),
        named(pairs),
        {b.name: b.towers for b in net.branches if b.towers is not None},
        trace.cloner.sources(),
        declared=True,
    )


def _model_name(name: str) -> str:
    """The nearest name that TensorFlow takes for a scope."""
    known = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return known.lstrip("_") or "net"


def output_keys(net: Net, ref: Ref) -> list[int | str] | None:
    """The keys of what a reference stands for; None for a single tensor."""
    trace = trace_of(net, upto=ref.number)
    try:
        found = trace.look_up(ref)
    except LookupError as error:
        raise_faults(net.name, [*net.faults(), *trace.faults, *error.args])
    if isinstance(found, dict):
        return list(found)
    return list(range(len(found))) if isinstance(found, list | tuple) else None


def trace_of(net: Net, upto: int) -> "NetTrace":
    """The trace of a net with its branches up to number `upto`; each is called once."""

    def follow() -> NetTrace:
        trace = _TRACES.setdefault(net, NetTrace())
        try:
            for branch in net.branches[len(trace.results) : upto + 1]:
                trace.results.append(trace.result(branch))
        except Exception:  # is raised again; half a trace is not kept
            del _TRACES[net]
            raise
        return trace

    return keras_api.without_memory(follow)


class NetTrace:
    """What the branches of one net returned, and which nodes each of them made.

    `results` are structures of symbolic tensors, None where one failed; `part_of` maps
    a node's id to its branch's name.
    """

    def __init__(self) -> None:
        self.cloner = Cloner()
        self.results: list[Any] = []
        self.part_of: dict[int, str] = {}
        self.faults: list[str] = []
        self._known: dict[int, Any] = {}
        self._bodies: dict[int, tuple[Any, Any, list[Any], Any]] = {}
        self._branch: Any = None  # that is being called
        self._users: dict[int, Branch] = {}  # the first of each layer

    def look_up(self, value: Any) -> Any:
        """Replace references by their tensors; a LookupError if one of them failed."""
        if isinstance(value, dict):
            return {key: self.look_up(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self.look_up(item) for item in value]
            return items[0] if len(items) == 1 else items
        if not isinstance(value, Ref):
            return value
        found = self.results[value.number] if value.number < len(self.results) else None
        if found is None:
            raise LookupError
        for key in value.path:
            try:
                found = (found if isinstance(found, dict | list | tuple) else {})[key]
            except (KeyError, IndexError, TypeError):
                made = keras.tree.map_structure(lambda t: tuple(t.shape), found)
                fault = f"branch {value.name!r} has no output {key!r}"
                raise LookupError(f"{fault}; it returned {made}.") from None
        return found

    def result(self, branch: Branch) -> Any:
        """What a branch returns; None, and a fault, if it cannot be applied."""
        try:
            inputs = self.look_up(branch.inputs)
        except LookupError as error:
            self.faults += (f"{branch.where}: {one}" for one in error.args)
            return None
        if branch.kind != "input" and not branch.sources:
            return None
        shapes = [str(getattr(t, "shape", t)) for t in keras.tree.flatten(inputs)]
        asked = f"its body cannot be applied to inputs of shape {', '.join(shapes)}"
        try:
            if branch.kind == "input":
                asked = f"shape {branch.shape} and dtype {branch.dtype!r} cannot be"
                made = keras.Input(branch.shape, dtype=branch.dtype, name=branch.name)
            else:
                self._branch = branch
                made = self._apply(branch.body, inputs)
            flat = keras.tree.flatten(made)
            if not flat or not all(isinstance(t, keras.KerasTensor) for t in flat):
                rule = "it must return a tensor, or a tuple, list or dict of tensors"
                raise SplitnetError(f"its body returned {made!r}; {rule}.")
        except Exception as error:  # whatever a layer or a user's function raises
            if keras_api.needs_memory(error):
                raise
            why = f"{asked}: {type(error).__name__}: {first_line(error)}"
            if isinstance(error, SplitnetError):
                why = str(error)
            elif type(branch.body).__name__ in HEAD_SLICES:
                why += ". It reads [query, value] or [query, value, key]"
            self.faults.append(f"{branch.where}: {branch.kind} {branch.name!r}: {why}")
            return None
        for node in _nodes_between(flat, self._known):
            self.part_of.setdefault(id(node), branch.name)
            self._known |= {id(tensor): tensor for tensor in node.outputs}
        return made

    def _apply(self, body: Any, inputs: Any) -> Any:
        if slices := self._branch.slices:  # each a part of its own
            self._note_user(body)
            call = functools.partial(_call, inputs=inputs)
            made, joined = cut_layer(body, len(slices), self.cloner, call)
            for number, tensor in enumerate(made):
                node = keras_api.producer(tensor)
                self.part_of[id(node)] = tower_part(self._branch.name, number)
            return joined
        if isinstance(body, list | tuple) and body:
            return functools.reduce(lambda x, one: self._apply(one, x), body, inputs)
        if isinstance(body, keras.Operation):
            return _call(functools.partial(self._run, body), inputs, body.call)
        if inspect.isclass(body) or not callable(body):
            raise SplitnetError(
                f"its body is {body!r}; it must be a layer (an instance, no class), a "
                "list of layers, a keras.Model, or a function of symbolic tensors."
            )
        if id(body) not in self._bodies:
            with contextlib.ExitStack() as redirected:
                for layer in held_layers(body):
                    call = functools.partial(self._run, layer)
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
        run_again(nodes, tensors, lambda one, args, more: one(*args, **more))
        return keras.tree.map_structure(lambda t: tensors.get(id(t), t), outputs)

    def _run(self, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._note_user(operation)
        return self.cloner.call(operation, args, kwargs)

    def _note_user(self, operation: Any) -> None:
        """Refuse a layer that one branch cuts and another uses: it would not be one."""
        for layer in keras_api.sublayers(operation):
            first = self._users.setdefault(id(layer), self._branch)
            if first is not self._branch and (first.slices or self._branch.slices):
                raise SplitnetError(
                    f"layer {layer.name!r} is in {first.kind} {first.name!r} as well, "
                    "and a layer that is cut has no weights to share. Use a layer each."
                )


@contextlib.contextmanager
def _redirected(layer: Any, call: Callable[..., Any]) -> Iterator[None]:
    """Let calls of a layer go to its copy, while a function that holds it runs.

    Python looks for `__call__` on a class, so the layer is of a subclass meanwhile, and
    of its plain class while it is copied; no class of Keras is changed.
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
    taken = [p for p in known.parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
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
