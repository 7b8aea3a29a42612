"""The calls that a model runs, in order; nested models are kept or expanded.

An expanded model stays one layer of the Keras model, with its weights, name and place
in a file; only its calls are run one by one, so that several devices can run them.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from splitnet.core.graph import Part, Towers
from splitnet.tf.internals import keras_api

MODELS = (keras.Sequential, keras_api.Functional)
_form = functools.partial(keras.tree.map_structure, type)


class InnerNode:
    """As a Keras node: a call in an expanded model, at "path/", or of other sizes."""

    def __init__(
        self, operation: Any, arguments: Any, specs: Iterable[Any], path: str = ""
    ) -> None:
        self.operation, self.arguments, self.path = operation, arguments, path
        self.input_tensors: list[Any] = list(arguments.keras_tensors)
        self.is_input = not self.input_tensors
        self.outputs = [
            keras.KerasTensor(x.shape, x.dtype, x.sparse, name=x.name) for x in specs
        ]
        for tensor in self.outputs:
            tensor.splitnet_node = self


@dataclass(frozen=True, eq=False)
class Flow:
    """What a model runs: `nodes` in running order, and those of its `inputs` before.

    `outputs` are symbolic tensors, flat; `nested` says what it does with models inside.
    """

    inputs: list[Any]
    nodes: list[Any]
    outputs: list[Any]
    nested: str

    @property
    def calls(self) -> list[Any]:
        """All nodes in running order."""
        return [*self.inputs, *self.nodes]


@dataclass(frozen=True, slots=True)
class Site:
    """One call: its name, its part, and the node of the model that it is."""

    call: str
    part: str
    node: Any


@dataclass(frozen=True, slots=True, eq=False)
class Blueprint:
    """A functional model with the parts of its calls, in running order.

    `flow` is what it runs, `sites` holds a site per call, inputs first; `towers` the
    parts that are replicated. `originals` are the user's layers, by the ids of the
    layers without values that stand for them in `model`; `reused` says why the user's
    own layers are in it, by their names. `declared`: the parts are a net's branches.
    """

    name: str
    model: Any
    flow: Flow
    parts: tuple[Part, ...]
    sites: tuple[Site, ...]
    towers: Mapping[str, Towers] = field(default_factory=dict)
    originals: Mapping[int, Any] = field(default_factory=dict)
    reused: Mapping[str, str] = field(default_factory=dict)
    declared: bool = False

    def along(self, flow: Flow, **changed: Any) -> "Blueprint":
        """The same parts for another flow of the same calls."""
        pairs = zip(self.flow.calls, flow.calls, strict=True)
        node_of = {id(old): new for old, new in pairs}
        sites = tuple(replace(s, node=node_of[id(s.node)]) for s in self.sites)
        return replace(self, flow=flow, sites=sites, **changed)


def named(pairs: Iterable[tuple[str | None, Any]]) -> tuple[Site, ...]:
    """Name each call for its layer: "model/name" inside an expanded model.

    Pairs of a net have the branch, "branch/name"; of others None: each call is a part.
    """
    taken, sites = Counter[str](), list[Site]()
    for part, node in pairs:
        name = getattr(node, "path", "") + node.operation.name
        if part is not None and not node.is_input:
            name = f"{part}/{name}"
        call = counted(name, taken)
        sites.append(Site(call, call if part is None else part, node))
    return tuple(sites)


def counted(name: str, taken: Counter[str]) -> str:
    """A unique name: the second "dense" is "dense@2"."""
    taken[name] += 1
    return name if taken[name] == 1 else f"{name}@{taken[name]}"


def run_again(nodes: list[Any], seen: dict[int, Any], call: Callable[..., Any]) -> None:
    """Call operations of nodes again, with what `seen` has by ids, and add to it."""
    for node in nodes:
        for tensor in node.input_tensors:
            seen.setdefault(id(tensor), tensor)
        args, kwargs = node.arguments.fill_in(seen)
        made = keras.tree.flatten(call(node.operation, args, kwargs))
        seen.update({id(old): new for old, new in zip(node.outputs, made)})


def flow_of(model: Any, nested: str = "keep", *, inputs: Any = None) -> Flow:
    """The calls of a functional model; nothing is added to it or to its layers.

    `nested` as in `read`; `inputs` are symbolic tensors in place of its own, flat.
    """
    nodes, times = list[Any](), Counter[str]()

    def follow(
        one: Any, tensors: dict[int, Any], path: str = "", training: Any = None
    ) -> list[Any]:
        """The outputs in the flow of a model at `path`; `tensors` has its inputs."""
        for node in keras_api.nodes_of(one):
            inner = _inside(node, tensors) if nested == "expand" else None
            if inner is not None:
                below = counted(path + node.operation.name, times)
                told = node.arguments.kwargs.get("training")
                given = keras.tree.flatten(node.arguments.args[0])
                local = {id(a): tensors[id(b)] for a, b in zip(inner.inputs, given)}
                told = training if told is None else told
                made = follow(inner, local, f"{below}/", told)
            else:
                moved = path or any(tensors[id(t)] is not t for t in node.input_tensors)
                nodes.append(_moved(node, tensors, path, training) if moved else node)
                made = nodes[-1].outputs
            tensors.update({id(old): new for old, new in zip(node.outputs, made)})
        return [tensors[id(tensor)] for tensor in one.outputs]

    given = model.inputs if inputs is None else inputs
    outputs = follow(model, {id(old): new for old, new in zip(model.inputs, given)})
    return Flow([*map(keras_api.producer, given)], nodes, outputs, nested)


def _inside(node: Any, tensors: Mapping[int, Any]) -> Any:
    """The model whose calls can be run in place of a call; None if it does more."""
    operation, kind = node.operation, type(node.operation)
    base = next((base for base in MODELS if isinstance(operation, base)), None)
    inner, dtype = operation, None
    if base is keras.Sequential:
        inner, dtype = keras_api.functional_inside(operation), operation.compute_dtype
    if base is None or inner is None:
        return None
    args, kwargs = node.arguments.args, node.arguments.kwargs
    given = keras.tree.flatten(args)
    masks = {id(one) for one in keras.tree.flatten(kwargs.get("mask"))} - {id(None)}
    plain = (
        (kind.call, kind.__call__) == (base.call, base.__call__)
        and operation.activity_regularizer is None
        and len(args) == 1
        and {*kwargs} <= {"training", "mask"}
        and all(isinstance(one, keras.KerasTensor) for one in given)
        and masks <= {id(keras_api.mask_of(one)) for one in given}
        and len(given) == len(inner.inputs)
        and (len(given) == 1 or _form(args[0]) == _form(inner.input))
    )
    same = plain and all(
        len(actual.shape) == len(wanted.shape)
        and (actual.sparse, actual.dtype) == (wanted.sparse, wanted.dtype)
        and (dtype in (None, wanted.dtype) or "float" not in actual.dtype)
        for actual, wanted in zip([tensors[id(t)] for t in given], inner.inputs)
    )
    return inner if same else None


def _moved(
    node: Any, tensors: Mapping[int, Any], path: str, training: bool | None
) -> InnerNode:
    """The same call on the flow's tensors; its shapes anew if they differ."""
    operation, specs = node.operation, node.outputs
    args, kwargs = node.arguments.fill_in(tensors)
    if any(tensors[id(t)].shape != t.shape for t in node.input_tensors):
        made = keras.tree.flatten(operation.compute_output_spec(*args, **kwargs))
        # What a layer declares may be less than what its call makes.
        known = not any(None in tensors[id(t)].shape for t in node.input_tensors)
        if known and any(None in one.shape for one in made):
            with contextlib.suppress(Exception):  # whatever a layer raises
                traced = keras.Operation.compute_output_spec(operation, *args, **kwargs)
                made = keras.tree.flatten(traced)
        specs = [  # of the types that a policy gave
            keras.KerasTensor(new.shape, old.dtype, sparse=old.sparse, name=new.name)
            for new, old in zip(made, specs, strict=True)
        ]
    if training is not None and isinstance(operation, keras.layers.Layer):
        kwargs = kwargs | {"training": training}
    arguments = keras_api.SymbolicArguments(*args, **kwargs)
    return InnerNode(operation, arguments, specs, path)


def is_sparse(tensor: Any) -> bool:
    """Whether an input, a layer, or an operation that was told to makes it sparse.

    Keras also marks products and quotients with plain numbers (`x / 255.0`) as sparse.
    """
    node = keras_api.producer(tensor)
    if not tensor.sparse or node is None or getattr(node.operation, "sparse", False):
        return bool(tensor.sparse)
    marked = [t for t in node.input_tensors if t.sparse]
    layer = isinstance(node.operation, keras.layers.Layer)
    return any(map(is_sparse, marked)) if marked else layer
