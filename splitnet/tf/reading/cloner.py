"""Copy layers and functional models, each layer made under the device of its weights.

Layers are rebuilt from their configuration and called as their originals were, so that
whatever a layer makes in `__init__` and `build` is its own. A layer that cannot be
rebuilt is used as it is.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.keras_api import from_keras, needs_memory
from splitnet.tf.reading.rebuild import (
    MODELS,
    NotRebuiltError,
    SharedParts,
    carry_assets,
    check_alike,
    held_functions,
    rebuild,
)
from splitnet.tf.reading.variables import variables_of

__all__ = ["STEPS", "Cloner", "functional", "input_like"]

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
STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
_KERAS = ("_compile", "_eval_epoch", "_saved_model", "_self_", "_splitnet", "_symbolic")


class Cloner:
    """Copies of layers, one each however often a layer is met.

    Args:
        device_of: the TensorFlow device of an original layer's weights; None or "" for
            that of what surrounds it. Without it no device is named at all.
        copy: whether layers with values are copied, or used as they are.
        originals: the user's layer that a layer of a template stands for, by its id.

    `reused` says why a layer is used as it is, by its name; `filled` has the variables
    that were made with the value of their original, by their ids.
    """

    def __init__(
        self,
        device_of: Callable[[Any], str | None] | None = None,
        *,
        copy: bool = True,
        originals: Mapping[int, Any] | None = None,
    ) -> None:
        self.reused: dict[str, str] = {}
        self.filled: set[int] = set()
        self._device_of, self._copying = device_of, copy
        self._originals = originals or {}
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._made: set[int] = set()
        self._used: dict[int, tuple[Any, str]] = {}
        self._checked: set[int] = set()
        self._early: dict[int, list[tuple[Any, Any]]] = {}
        self._shared = SharedParts()

    # Operations

    def of(self, operation: Any) -> Any:
        """The copy of a layer, a nested model or a raw operation."""
        if id(operation) in self._made:
            return operation
        if id(operation) not in self._copies:
            with self._on(operation):
                self._note(operation, self._copy(operation))
        return self._copies[id(operation)][1]

    def call(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """Call the copy of an operation on symbolic tensors, under its device.

        The copy of a built layer is compared with it after its first call; if they
        differ, the layer itself takes the copy's place.
        """
        with self._on(operation):
            made = self._try(operation, args, kwargs)
            if made is not None:
                return made
            with keras_api.with_values():
                return self.of(operation)(*args, **kwargs)

    def _try(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """What a copy returns; None if the original must be called."""
        copy, source = self.of(operation), self._source(operation)
        if id(copy) in self._used:
            return None
        rebuilt = _is_leaf(operation) and operation is not copy
        known = rebuilt and source.built
        try:
            with self._filled(operation, copy):
                made = copy(*args, **kwargs)
            if known and id(copy) not in self._checked:
                check_alike(source, copy)
                self._checked.add(id(copy))
        except NotRebuiltError as error:
            self._note(operation, self._use(operation, str(error)))
            return None
        except Exception as error:  # whatever a user's layer raises
            if not known or from_keras(source) or needs_memory(error):
                raise
            why = f"a copy cannot be called: {type(error).__name__}"
            self._note(operation, self._use(operation, why))
            return None
        return made

    @contextlib.contextmanager
    def _filled(self, operation: Any, copy: Any) -> Iterator[None]:
        """Build a copy of Keras' own layer with the values of its original at once.

        A class of a user may look at values while it is built.
        """
        plain = (
            self._device_of is not None
            and _is_leaf(operation)
            and operation.built
            and not copy.built
            and all(map(from_keras, keras_api.sublayers(operation)))
            and not hasattr(operation, "adapt")
            and not getattr(operation, "stateful", False)
        )
        with keras_api.without_values() if plain else contextlib.nullcontext():
            yield
        for old, new in zip(operation.variables, copy.variables) if plain else ():
            if not keras_api.has_value(new):
                keras_api.copy_value(new, old)
                self.filled.add(id(new))

    def replay(
        self, model: Any, inputs: Any, call: Callable[..., Any] | None = None
    ) -> tuple[Any, dict[int, Any]]:
        """Call the copies of all operations of a functional model in its own order.

        Returns:
            The symbolic outputs in the model's structure, and the new tensor of each
            old one by its id.
        """
        tensors = {
            id(old): new for old, new in zip(model.inputs, keras.tree.flatten(inputs))
        }
        running = keras_api.nodes_of(model)
        for node in running:
            args, kwargs = node.arguments.fill_in(tensors)
            outputs = (call or self.call)(node.operation, args, kwargs)
            flat = keras.tree.flatten(outputs)
            tensors.update({id(old): new for old, new in zip(node.outputs, flat)})
        _attach_masks(running, tensors)
        return keras.tree.map_structure(lambda t: tensors[id(t)], model.output), tensors

    def model(self, model: Any) -> tuple[Any, dict[int, Any]]:
        """A copy of a functional model, of the same class, and its node of each old."""
        inputs = keras.tree.map_structure(input_like, model.input)
        outputs, tensors = self.replay(model, inputs)
        made = functional(model, inputs, outputs, tensors, self.beside)
        copies = {number: copy for number, (_, copy) in self._copies.items()}
        keras_api.order_layers(made, model, copies)
        nodes = [*map(keras_api.producer, model.inputs), *keras_api.nodes_of(model)]
        return made, {
            id(node): keras_api.producer(tensors[id(node.outputs[0])])
            for node in nodes
            if node.outputs
        }

    def beside(self, layer: Any) -> Any:
        """The copy of a layer that may be no part of the graph, built as it is."""
        copy = self.of(layer)
        if layer.built and not copy.built:
            with self._on(layer):
                copy.build_from_config(layer.get_build_config() or {})
        return copy

    # What remains when all copies are built

    def layers(self) -> Iterator[tuple[Any, Any]]:
        """Pairs of (original, copy): layers, nested models and raw operations."""
        yield from self._copies.values()

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Pairs of (variable of an original, variable of its copy), each once."""
        seen: set[int] = set()
        for original, copy in list(self._copies.values()):
            if not _is_leaf(original) or original is copy or id(copy) in self._used:
                continue
            found = self._early.get(id(original), [])
            if original.built:
                found = list(zip(variables_of(original), variables_of(copy)))
            for mine, its in found:
                if id(its) not in seen:
                    seen.add(id(its))
                    yield mine, its

    def carry_assets(self) -> None:
        """Copy what layers keep besides variables: vocabularies, constants."""
        for original, copy in self._copies.values():
            source = self._source(original)
            if _is_leaf(source) and source.built and source is not copy:
                carry_assets(source, copy)

    def move_used(self) -> None:
        """Move the variables of layers that are used as they are to their devices.

        What their functions have traced are the variables at their old place.
        """
        if self._device_of is None:
            return
        for layer, device in list(self._used.values()):
            for variable in [*variables_of(layer), *layer.metrics_variables]:
                if device and not keras_api.lives_on(variable, device):
                    keras_api.move_value(variable, device)
            for one in keras_api.sublayers(layer):
                tf_api.forget_traces(one, held_functions(one))

    # How single copies are made

    def _copy(self, operation: Any) -> Any:
        if not isinstance(operation, keras.layers.Layer):
            return keras_api.without_nodes(operation)
        if not self._copying and self._has_values(operation):
            return self._use(operation)
        if isinstance(operation, keras.Sequential):
            return self._copy_sequential(operation)
        if isinstance(operation, keras_api.Functional):
            return self.model(operation)[0]
        known = self._shared.copy_of(operation)
        return self._rebuilt(operation) if known is None else known

    def _rebuilt(self, layer: Any) -> Any:
        source = self._source(layer)
        try:
            copy = rebuild(source)
            if not source.built:
                check_alike(source, copy)
                mine, its = variables_of(source), variables_of(copy)
                self._early[id(layer)] = list(zip(mine, its))
        except NotRebuiltError as error:
            return self._use(layer, str(error))
        self._shared.meet(layer, copy)
        return copy

    def _copy_sequential(self, model: Any) -> Any:
        first = []
        if model.built and model.inputs:
            first = [input_like(model.inputs[0])]
            self.replay(keras_api.functional_inside(model), first[0])
        layers = [self.of(layer) for layer in model.layers]
        copy = keras.Sequential([*first, *layers], name=model.name)
        copy.trainable = model.trainable
        return copy

    def _use(self, layer: Any, why: str = "") -> Any:
        """Use a layer as it is.

        Raises:
            DeclarationError: the layer was made inside a function, without values.
        """
        source, kind = self._source(layer), type(layer)
        if not self._has_values(layer):
            raise DeclarationError(
                f"layer {layer.name!r} ({kind.__module__}.{kind.__qualname__}) "
                f"cannot be copied from its configuration: {why}. Give the class a "
                "get_config() that returns every argument of __init__, or make the "
                "layer outside the function."
            )
        if why:
            self.reused[source.name] = why
        self._used[id(source)] = (source, self._device_at(layer))
        for one in source.layers if isinstance(source, MODELS) else ():
            if id(one) not in self._copies:
                with self._on(one):
                    self._note(one, self._use(one))
        return source

    def _source(self, operation: Any) -> Any:
        return self._originals.get(id(operation), operation)

    def _has_values(self, layer: Any) -> bool:
        """Whether the layer that an operation stands for has, or will have, memory."""
        variables = variables_of(self._source(layer))
        return all(keras_api.has_value(variable) for variable in variables)

    def _note(self, operation: Any, copy: Any) -> None:
        self._copies[id(operation)] = (operation, copy)
        self._made.add(id(copy))

    def _on(self, layer: Any) -> Any:
        device = self._device_of(layer) if self._device_of is not None else None
        return tf.device(device) if device else contextlib.nullcontext()

    def _device_at(self, layer: Any) -> str:
        """The device of a layer's weights, or of what surrounds it here."""
        if self._device_of is None:
            return ""
        with self._on(layer):
            return tf_api.current_device()


def _is_leaf(operation: Any) -> bool:
    layer = isinstance(operation, keras.layers.Layer)
    return layer and not isinstance(operation, MODELS)


def input_like(tensor: Any) -> Any:
    """A new symbolic input like this one."""
    layer = keras_api.producer(tensor).operation
    return keras.Input(
        batch_shape=tensor.shape,
        dtype=tensor.dtype,
        sparse=tensor.sparse,
        name=layer.name,
        optional=getattr(layer, "optional", False),
    )


def _attach_masks(nodes: list[Any], tensors: dict[int, Any]) -> None:
    """Attach the copies of masks to new outputs as they are to old ones."""
    for node in nodes:
        for old in node.outputs:
            mask = keras_api.mask_of(old)
            if id(mask) in tensors:
                keras_api.set_mask(tensors[id(old)], tensors[id(mask)])


# Models of a user's class


def functional(
    model: Any,
    inputs: Any,
    outputs: Any,
    tensors: Mapping[int, Any] | None = None,
    copy_of: Callable[[Any], Any] | None = None,
) -> Any:
    """A functional model of the same class and name, over other tensors.

    It has the attributes of the model that are not Keras' own: tensors as `tensors`
    replaces them, by their ids, and layers as `copy_of` does.
    """
    sequential = isinstance(model, keras.Sequential)
    kind = keras_api.Functional if sequential else type(model)
    made = kind.__new__(kind)
    keras_api.Functional.__init__(made, inputs, outputs, name=model.name)
    if not model.trainable:
        made.trainable = False
    if sequential:
        return made
    known = {id(old): new for old, new in zip(model.inputs, made.inputs)}
    known |= tensors or {}

    def copied(value: Any) -> Any:
        """A copy of what belongs to the model; anything else as it is."""
        if isinstance(value, keras.KerasTensor):
            return known.get(id(value), value)
        if isinstance(value, keras.Variable):
            return _copied(value)
        if isinstance(value, keras.metrics.Metric | keras.optimizers.Optimizer):
            with keras_api.with_values():
                return type(value).from_config(value.get_config())
        if isinstance(value, keras.layers.Layer) and copy_of is not None:
            return copy_of(value)
        if isinstance(value, MethodType) and value.__self__ is model:
            return MethodType(value.__func__, made)
        if isinstance(value, dict):
            return {key: copied(item) for key, item in value.items()}
        if type(value).__name__ in ("list", "TrackedList"):
            return [copied(item) for item in value]
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(copied(item) for item in value)  # TensorFlow wraps tuples
        return value

    own = vars(model)
    vars(made).update({name: own[name] for name in _OWN if name in own})
    for name, value in own.items():
        if name in vars(made) or name in _TRANSIENT or name.startswith(_KERAS):
            continue
        bound = isinstance(value, MethodType) and "_splitnet" not in own
        if not hasattr(type(model), name) or (name in STEPS and bound):
            setattr(made, name, copied(value))
    return made


def _copied(variable: Any) -> Any:
    with keras_api.with_values():
        return keras.Variable(
            tf.identity(variable.value),
            dtype=variable.dtype,
            trainable=variable.trainable,
            name=variable.name,
        )
