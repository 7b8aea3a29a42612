"""The calls that a model runs, in order; nested models are kept or expanded.

An expanded model stays one layer of the Keras model, with its weights, name and place
in a file; only its calls are run one by one, so that they can be on several devices.
They are the calls that Keras would make inside it, with the same arguments.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from splitnet.core.graph import Part, Towers
from splitnet.tf.internals import keras_api


@dataclass(frozen=True, eq=False)
class InnerNode:
    """A call inside an expanded model, or on tensors of other sizes, like a Keras node.

    `path` is that of the expanded model, with a slash at its end.
    """

    operation: Any
    arguments: Any
    path: str
    outputs: list[Any] = field(default_factory=list)
    is_input: bool = False

    @property
    def input_tensors(self) -> list[Any]:
        """The symbolic tensors among its arguments."""
        return list(self.arguments.keras_tensors)


@dataclass(frozen=True, eq=False)
class Flow:
    """What a model runs: `nodes` in running order, without those of its inputs.

    `outputs` are symbolic tensors, flat; `nested` says what it does with models inside.
    """

    nodes: list[Any]
    outputs: list[Any]
    nested: str


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
    layers without values that stand for them in `model`. `declared` says that the
    parts are a net's branches.
    """

    name: str
    model: Any
    flow: Flow
    parts: tuple[Part, ...]
    sites: tuple[Site, ...]
    towers: Mapping[str, Towers] = field(default_factory=dict)
    originals: Mapping[int, Any] = field(default_factory=dict)
    declared: bool = False


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
                name = path + node.operation.name
                times[name] += 1
                below = name if times[name] == 1 else f"{name}@{times[name]}"
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

    own = model.inputs
    tensors = {id(old): new for old, new in zip(own, own if inputs is None else inputs)}
    follow(model, tensors)
    return Flow(nodes, [tensors[id(tensor)] for tensor in model.outputs], nested)


def _inside(node: Any, tensors: Mapping[int, Any]) -> Any:
    """The functional model whose calls can be run in the place of a call.

    None for what runs code of its own, or changes its inputs first, by a cast, another
    rank or a mask.
    """
    operation, dtype = node.operation, None
    if isinstance(operation, keras.Sequential):
        base, dtype = keras.Sequential, operation.compute_dtype
        inner = keras_api.functional_inside(operation)
    elif isinstance(operation, keras_api.Functional):
        base, inner = keras_api.Functional, operation
    else:
        return None
    kind = type(operation)
    args, kwargs = node.arguments.args, node.arguments.kwargs
    given = keras.tree.flatten(args[:1])
    if (
        inner is None
        or kind.call is not base.call
        or kind.__call__ is not base.__call__
        or operation.activity_regularizer is not None
        or len(args) != 1
        or not {*kwargs} <= {"training", "mask"}
        or not all(isinstance(one, keras.KerasTensor) for one in given)
        or len(given) != len(inner.inputs)
    ):
        return None
    zeros = [keras.tree.map_structure(lambda _: 0, s) for s in (args[0], inner.input)]
    carried = {id(keras_api.mask_of(one)) for one in given}
    masks = {id(one) for one in keras.tree.flatten(kwargs.get("mask"))}
    if (len(given) > 1 and zeros[0] != zeros[1]) or masks - carried - {id(None)}:
        return None
    for old, wanted in zip(given, inner.inputs):
        actual = tensors[id(old)]
        floating = keras.backend.is_float_dtype(actual.dtype)
        if (
            len(actual.shape) != len(wanted.shape)
            or actual.sparse != wanted.sparse
            or actual.dtype != wanted.dtype
            or (floating and dtype not in (None, wanted.dtype))
        ):
            return None
    return inner


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
    return inner_node(operation, specs, arguments, path)


def inner_node(
    operation: Any, specs: Sequence[Any], arguments: Any = None, path: str = ""
) -> InnerNode:
    """A call that makes symbolic tensors like `specs`; without arguments an input."""
    made = InnerNode(
        operation,
        arguments or keras_api.SymbolicArguments(),
        path,
        is_input=arguments is None,
    )
    for spec in specs:
        tensor = keras.KerasTensor(
            spec.shape, spec.dtype, sparse=spec.sparse, name=spec.name
        )
        keras_api.set_producer(tensor, made)
        made.outputs.append(tensor)
    return made


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
