"""Copies of models of a user's own class, with their steps and attributes.

A class that derives from `keras.Model` and calls `super().__init__(inputs, outputs)` is
functional whatever its `__init__` takes. A copy of it is made without that `__init__`;
attributes that it or the user has set on the model are carried over.
"""

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError
from splitnet.tf.internals import keras_api

__all__ = ["check_class", "check_steps", "functional"]

# Attributes that Keras sets when a model is compiled, trained or called.
_TRANSIENT = (
    "history",
    "loss",
    "optimizer",
    "stop_evaluating",
    "stop_predicting",
    "stop_training",
)
_OWN = ("_auto_config",)  # what __init__ was given: saved in place of the graph
_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")


def check_class(model: Any) -> None:
    """Refuse a functional model whose class or instance has a `call` of its own.

    Raises:
        DeclarationError: names the model and its class, and the ways out.
    """
    kind = type(model)
    own = [
        where
        for where, has in (
            (f"{kind.__qualname__}.call", kind.call is not keras_api.Functional.call),
            (f"{kind.__qualname__}.__call__", kind.__call__ is not _layer_call()),
            ("model.call", "call" in vars(model) and not _emitted(model)),
        )
        if has
    ]
    if own:
        raise DeclarationError(
            f"model {model.name!r} ({kind.__qualname__}) is subclassed: its "
            f"{' and '.join(own)} hides calls in Python code that its graph does not "
            "have. Move that code into a layer of the graph, or declare a net with "
            "this model as the body of a branch."
        )


def check_steps(model: Any) -> None:
    """Refuse a Sequential model with steps of its own: its copy is functional.

    Raises:
        DeclarationError: names the model and its steps, and the way out.
    """
    kind = type(model)
    own = [
        name
        for name in _STEPS
        if getattr(kind, name) is not getattr(keras.Sequential, name)
        or name in vars(model)
    ]
    if own:
        raise DeclarationError(
            f"the Sequential model {model.name!r} ({kind.__qualname__}) has "
            f"{' and '.join(own)} of its own. Derive the class from keras.Model and "
            "make it from (inputs, outputs); such a model keeps its steps when placed."
        )


def _layer_call() -> Any:
    return keras.layers.Layer.__call__


def _emitted(model: Any) -> bool:
    return "_splitnet" in vars(model)


def functional(
    model: Any,
    inputs: Any,
    outputs: Any,
    *,
    nodes: Mapping[int, Any] | None = None,
    copy_of: Callable[[Any], Any] | None = None,
) -> Any:
    """A functional model of the same class and name, over other tensors.

    Args:
        model: the original.
        inputs: symbolic tensors, in the model's structure.
        outputs: symbolic tensors, in the model's structure.
        nodes: the new node of each old one by its id, for attributes that are tensors.
        copy_of: the copy of a layer, for attributes that are layers.
    """
    kind = keras_api.Functional if isinstance(model, keras.Sequential) else type(model)
    made = kind.__new__(kind)
    keras_api.Functional.__init__(made, inputs, outputs, name=model.name)
    made.trainable = model.trainable if not model.trainable else made.trainable
    if not isinstance(model, keras.Sequential):
        _carry(model, made, _Parts(model, made, nodes or {}, copy_of))
    return made


def _carry(model: Any, made: Any, parts: "_Parts") -> None:
    """Give the copy the attributes of the model that are not Keras' own."""
    for name in _OWN:
        if name in vars(model):
            vars(made)[name] = vars(model)[name]
    for name, value in vars(model).items():
        if name in vars(made) or name in _TRANSIENT or name.startswith(_KERAS):
            continue
        bound = isinstance(value, MethodType) and not _emitted(model)
        if not hasattr(type(model), name) or (name in _STEPS and bound):
            setattr(made, name, parts.of(value))


_KERAS = (
    "_compile",
    "_eval_epoch",
    "_saved_model",
    "_self_",
    "_splitnet",
    "_symbolic",
)


class _Parts:
    """What stands in a copy for an attribute of the original."""

    def __init__(
        self,
        model: Any,
        made: Any,
        nodes: Mapping[int, Any],
        copy_of: Callable[[Any], Any] | None,
    ) -> None:
        self._model, self._made, self._copy_of = model, made, copy_of
        pairs = [
            (node, nodes[id(node)])
            for node in keras_api.nodes_of(model)
            if nodes.get(id(node)) is not None
        ]
        self._tensors = {
            id(old): new
            for old, new in [
                *zip(model.inputs, made.inputs),
                *(pair for a, b in pairs for pair in zip(a.outputs, b.outputs)),
            ]
        }

    def of(self, value: Any) -> Any:
        """A copy of what belongs to the model; anything else as it is."""
        if isinstance(value, keras.KerasTensor):
            return self._tensors.get(id(value), value)
        if isinstance(value, keras.Variable):
            return _copied(value)
        if isinstance(value, keras.metrics.Metric | keras.optimizers.Optimizer):
            with keras_api.with_values():
                return type(value).from_config(value.get_config())
        if isinstance(value, keras.layers.Layer) and self._copy_of is not None:
            return self._copy_of(value)
        if isinstance(value, MethodType) and value.__self__ is self._model:
            return MethodType(value.__func__, self._made)
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        if type(value).__name__ in ("list", "TrackedList"):
            return [self.of(item) for item in value]
        if type(value) is tuple:
            return tuple(self.of(item) for item in value)
        return value


def _copied(variable: Any) -> Any:
    with keras_api.with_values():
        return keras.Variable(
            tf.identity(variable.value),
            dtype=variable.dtype,
            trainable=variable.trainable,
            name=variable.name,
        )
