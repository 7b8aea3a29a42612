"""The calls that a model runs, in order; nested models are kept or expanded.

An expanded model stays one layer of the Keras model, with its weights, name and place
in a file; only its calls are run one by one, so that they can be on several devices.
They are the calls that Keras would make inside it, with the same arguments.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import keras

from splitnet.core.graph import Part, Towers
from splitnet.tf.internals import keras_api


@dataclass(frozen=True, eq=False)
class InnerNode:
    """A call inside an expanded model, or on tensors of other sizes, like a Keras node.

    Its outputs are symbolic tensors like `specs`; `path` is that of the expanded model,
    with a slash at its end.
    """

    operation: Any
    arguments: Any
    specs: InitVar[Iterable[Any]]
    path: str = ""
    is_input: bool = False
    outputs: list[Any] = field(init=False, default_factory=list)

    def __post_init__(self, specs: Iterable[Any]) -> None:
        """Make the outputs."""
        for x in specs:
            tensor = keras.KerasTensor(x.shape, x.dtype, sparse=x.sparse, name=x.name)
            keras_api.set_producer(tensor, self)
            self.outputs.append(tensor)

    @property
    def input_tensors(self) -> list[Any]:
        """The symbolic tensors among its arguments."""
        return list(self.arguments.keras_tensors)


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


def named(pairs: Iterable[tuple[str | None, Any]]) -> tuple[Site, ...]:
    """Name each call for its layer; a second call of it is "name@2".

    A call inside an expanded model is "model/name", one of a net "branch/name"; pairs
    of a net have the branch, of other models None: each call is a part.
    """
    taken: Counter[str] = Counter()
    sites = []
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


def run_again(
    nodes: Iterable[Any], tensors: dict[int, Any], call: Callable[..., Any]
) -> None:
    """Call the operations of nodes again, on the tensors that `tensors` has by ids.

    It gets those that they make; what it lacks is what it was.
    """
    for node in nodes:
        for tensor in node.input_tensors:
            tensors.setdefault(id(tensor), tensor)
        args, kwargs = node.arguments.fill_in(tensors)
        made = keras.tree.flatten(call(node.operation, args, kwargs))
        tensors.update({id(old): new for old, new in zip(node.outputs, made)})


def flow_of(
    model: Any, nested: str = "keep", *, inputs: Sequence[Any] | None = None
) -> Flow:
    """The calls of a functional model; nothing is added to it or to its layers.

    Args:
        model: a functional model.
        nested: "expand" to have the calls of nested models, "keep" to have each as one.
        inputs: symbolic tensors in place of the model's own, flat.
    """
    nodes: list[Any] = []
    times: Counter[str] = Counter()

    def follow(
        one: Any, tensors: dict[int, Any], path: str = "", training: Any = None
    ) -> None:
        """Walk over a model that stands at `path`; `tensors` maps its to the flow's."""
        for node in keras_api.nodes_of(one):
            inner = _inside(node, tensors) if nested == "expand" else None
            if inner is not None:
                below = counted(path + node.operation.name, times)
                told = node.arguments.kwargs.get("training")
                given = keras.tree.flatten(node.arguments.args[0])
                local = {id(a): tensors[id(b)] for a, b in zip(inner.inputs, given)}
                follow(inner, local, f"{below}/", training if told is None else told)
                made = [local[id(tensor)] for tensor in inner.outputs]
            else:
                own = all(tensors[id(t)] is t for t in node.input_tensors) and not path
                call = node if own else _moved(node, tensors, path, training)
                nodes.append(call)
                made = call.outputs
            tensors.update({id(old): new for old, new in zip(node.outputs, made)})

    given = model.inputs if inputs is None else inputs
    tensors = {id(old): new for old, new in zip(model.inputs, given)}
    follow(model, tensors)
    outputs = [tensors[id(tensor)] for tensor in model.outputs]
    return Flow([*map(keras_api.producer, given)], nodes, outputs, nested)


def _inside(node: Any, tensors: Mapping[int, Any]) -> Any:
    """The functional model whose calls can be run in the place of a call.

    None for what runs code of its own, or changes its inputs first, by a cast, another
    rank or a mask.
    """
    operation, kind = node.operation, type(node.operation)
    if isinstance(operation, keras.Sequential):
        base, inner = keras.Sequential, keras_api.functional_inside(operation)
        dtype = operation.compute_dtype
    elif isinstance(operation, keras_api.Functional):
        base, inner, dtype = keras_api.Functional, operation, None
    else:
        return None
    args, kwargs = node.arguments.args, node.arguments.kwargs
    given = keras.tree.flatten(args)
    plain = (
        inner is not None
        and (kind.call, kind.__call__) == (base.call, base.__call__)
        and operation.activity_regularizer is None
        and len(args) == 1
        and {*kwargs} <= {"training", "mask"}
        and all(isinstance(one, keras.KerasTensor) for one in given)
        and len(given) == len(inner.inputs)
        and (len(given) == 1 or _structure(args[0]) == _structure(inner.input))
    )
    masks = {id(one) for one in keras.tree.flatten(kwargs.get("mask"))} - {id(None)}
    if not plain or masks - {id(keras_api.mask_of(one)) for one in given}:
        return None
    same = all(
        len(actual.shape) == len(wanted.shape)
        and (actual.sparse, actual.dtype) == (wanted.sparse, wanted.dtype)
        and (dtype in (None, wanted.dtype) or "float" not in actual.dtype)
        for actual, wanted in zip([tensors[id(t)] for t in given], inner.inputs)
    )
    return inner if same else None


def _structure(tensors: Any) -> Any:
    return keras.tree.map_structure(lambda _: 0, tensors)


def _moved(
    node: Any, tensors: Mapping[int, Any], path: str, training: bool | None
) -> InnerNode:
    """The same call on the flow's tensors; its shapes anew if they differ."""
    operation = node.operation
    args, kwargs = node.arguments.fill_in(tensors)
    specs = node.outputs
    if any(tensors[id(t)].shape != t.shape for t in node.input_tensors):
        specs = keras.tree.flatten(operation.compute_output_spec(*args, **kwargs))
    if training is not None and isinstance(operation, keras.layers.Layer):
        kwargs = kwargs | {"training": training}
    arguments = keras_api.SymbolicArguments(*args, **kwargs)
    return InnerNode(operation, arguments, specs, path)


def is_sparse(tensor: Any) -> bool:
    """Whether a symbolic tensor comes of something that makes sparse tensors.

    Keras marks products and quotients with plain numbers (`x / 255.0`) as sparse, and
    what is made of them. Sparse tensors begin at an input or a layer, or at an
    operation that was told to make them.
    """
    if not getattr(tensor, "sparse", False):
        return False
    node = keras_api.producer(tensor)
    if node is None or getattr(node.operation, "sparse", False):
        return True
    marked = [t for t in node.input_tensors if getattr(t, "sparse", False)]
    layer = isinstance(node.operation, keras.layers.Layer)
    return any(map(is_sparse, marked)) if marked else layer
