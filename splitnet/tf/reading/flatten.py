"""The calls that a model runs, in order; nested models are kept or expanded.

An expanded model stays one layer of the Keras model, with its weights, name and place
in a file; only its calls are run one by one, so that they can be on several devices.
They are the calls that Keras would make inside it, with the same arguments.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from splitnet.tf.internals import keras_api

__all__ = ["Flow", "InnerNode", "flow_of", "inner_node", "is_sparse"]


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


def flow_of(
    model: Any, nested: str = "keep", *, inputs: Sequence[Any] | None = None
) -> Flow:
    """The calls of a functional model; nothing is added to it or to its layers.

    Args:
        model: a functional model.
        nested: "expand" to have the calls of nested models, "keep" to have each as one.
        inputs: symbolic tensors in place of the model's own, flat.
    """
    walk = _Walk(expands=nested == "expand")
    own = model.inputs
    tensors = {id(old): new for old, new in zip(own, own if inputs is None else inputs)}
    walk.follow(model, tensors)
    return Flow(walk.nodes, [tensors[id(tensor)] for tensor in model.outputs], nested)


class _Walk:
    """One walk over a model and those inside it that are expanded."""

    def __init__(self, *, expands: bool) -> None:
        self.nodes: list[Any] = []
        self._expands = expands
        self._calls: Counter[str] = Counter()

    def follow(
        self,
        model: Any,
        tensors: dict[int, Any],
        path: str = "",
        training: bool | None = None,
    ) -> None:
        """Walk over the calls of a model that stands in an expanded one at `path`.

        `tensors` maps its tensors to the flow's.
        """
        for node in keras_api.nodes_of(model):
            inner = _inside(node.operation) if self._expands else None
            same = all(tensors[id(t)] is t for t in node.input_tensors)
            if inner is not None and _can_expand(node, inner, tensors):
                made = self._expand(node, inner, tensors, path, training)
            else:
                kept = same and not path
                one = node if kept else _inner_node(node, tensors, path, training)
                self.nodes.append(one)
                made = one.outputs
            tensors.update({id(old): new for old, new in zip(node.outputs, made)})

    def _expand(
        self,
        node: Any,
        inner: Any,
        tensors: dict[int, Any],
        path: str,
        training: bool | None,
    ) -> list[Any]:
        name = path + node.operation.name
        self._calls[name] += 1
        if self._calls[name] > 1:
            name = f"{name}@{self._calls[name]}"
        told = node.arguments.kwargs.get("training")
        given = keras.tree.flatten(node.arguments.args[0])
        local = {id(old): tensors[id(new)] for old, new in zip(inner.inputs, given)}
        self.follow(inner, local, f"{name}/", training if told is None else told)
        return [local[id(tensor)] for tensor in inner.outputs]


def _inside(operation: Any) -> Any:
    """The functional model inside a nested one; None for what runs code of its own."""
    kind = type(operation)
    if isinstance(operation, keras.Sequential):
        base, inner = keras.Sequential, keras_api.functional_inside(operation)
    elif isinstance(operation, keras_api.Functional):
        base, inner = keras_api.Functional, operation
    else:
        return None
    own = kind.call is not base.call or kind.__call__ is not base.__call__
    return None if own else inner


def _can_expand(node: Any, inner: Any, tensors: dict[int, Any]) -> bool:
    """Whether the calls inside see just what the model is given: nothing is cast.

    Else the model would change its inputs first, in ways that are its own.
    """
    args, kwargs = node.arguments.args, node.arguments.kwargs
    if len(args) != 1 or any(name not in ("training", "mask") for name in kwargs):
        return False
    if not _own_mask(args[0], kwargs.get("mask")):
        return False
    given, wanted = keras.tree.flatten(args[0]), inner.inputs
    if len(given) != len(wanted) or not _same_structure(args[0], inner.input):
        return False
    dtype = None
    if isinstance(node.operation, keras.Sequential):
        dtype = node.operation.compute_dtype
    for old, new in zip(given, wanted):
        if not isinstance(old, keras.KerasTensor):
            return False
        actual = tensors[id(old)]
        if len(actual.shape) != len(new.shape) or actual.sparse != new.sparse:
            return False
        floating = keras.backend.is_float_dtype(actual.dtype)
        if actual.dtype != new.dtype or (floating and dtype not in (None, new.dtype)):
            return False
    return node.operation.activity_regularizer is None


def _own_mask(given: Any, mask: Any) -> bool:
    """Whether a mask is what the inputs carry anyway, as Keras fills it in."""
    masks = keras.tree.flatten(mask)
    carried = [keras_api.mask_of(t) for t in keras.tree.flatten(given)]
    return all(one is None or any(one is other for other in carried) for one in masks)


def _same_structure(given: Any, wanted: Any) -> bool:
    if isinstance(given, keras.KerasTensor):
        return len(keras.tree.flatten(wanted)) == 1
    one, other = (keras.tree.map_structure(lambda _: 0, s) for s in (given, wanted))
    return bool(one == other)


def _inner_node(
    node: Any, tensors: dict[int, Any], path: str, training: bool | None
) -> InnerNode:
    """The same call on the flow's tensors; its shapes anew if they differ."""
    operation = node.operation
    args, kwargs = node.arguments.fill_in(tensors)
    told = {}
    if training is not None and isinstance(operation, keras.layers.Layer):
        told = {"training": training}
    specs = node.outputs
    if any(tensors[id(t)].shape != t.shape for t in node.input_tensors):
        specs = keras.tree.flatten(operation.compute_output_spec(*args, **kwargs))
    arguments = keras_api.SymbolicArguments(*args, **kwargs | told)
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
    seen: dict[int, None] = {}
    ahead = [tensor]
    while ahead:
        one = ahead.pop()
        if not getattr(one, "sparse", False) or id(one) in seen:
            continue
        seen[id(one)] = None
        node = keras_api.producer(one)
        if node is None or getattr(node.operation, "sparse", False):
            return True
        marked = [t for t in node.input_tensors if getattr(t, "sparse", False)]
        if not marked and isinstance(node.operation, keras.layers.Layer):
            return True
        ahead += marked
    return False
