"""Copies of layers and models: same names, same values, own variables.

A user's layers are held and never called. What is read, placed and trained are copies:
what a `.keras` file would carry (configuration, variables, a layer's own assets), but
in memory and without a registry, so that two emissions of one net are two models, and a
failure leaves everything as it was.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from splitnet.core.errors import DeclarationError
from splitnet.tf.internals import keras_api
from splitnet.tf.layers import carry_assets, copy_layer
from splitnet.tf.reading.model_class import check_class, check_steps, functional
from splitnet.tf.reading.variables import variables_of
from splitnet.tf.sharing import Shared

__all__ = ["Copies", "functional_of", "replay"]


class Copies:
    """Twins of layers, one each however often a layer is met.

    `pairs` lists (variable of the original, variable of the twin) once all twins are
    built; `assets` the layers that carry more than variables.
    """

    def __init__(self) -> None:
        self._twins: dict[int, tuple[Any, Any]] = {}
        self._made: set[int] = set()
        self._shared = Shared()

    def of(self, operation: Any) -> Any:
        """The twin of a layer, a nested model or a raw operation."""
        if id(operation) in self._made:
            return operation
        if id(operation) not in self._twins:
            with keras_api.random_states_kept():
                twin = self._copy(operation)
            self._twins[id(operation)] = (operation, twin)
            self._made.add(id(twin))
        return self._twins[id(operation)][1]

    def _copy(self, operation: Any) -> Any:
        if not isinstance(operation, keras.layers.Layer):
            return _copy_operation(operation)
        if isinstance(operation, keras.Sequential):
            return self._copy_sequential(operation)
        if isinstance(operation, keras_api.Functional):
            return self._copy_functional(operation)
        twin = self._shared.twin_of(operation)
        if twin is None:
            twin = copy_layer(operation)
            self._shared.meet(operation, twin)
        return twin

    def _copy_sequential(self, model: Any) -> Any:
        layers = [self.of(layer) for layer in model.layers]
        if model.built and model.inputs:
            layers.insert(0, copy_input(model.inputs[0]))
        twin = keras.Sequential(layers, name=model.name)
        twin.trainable = model.trainable
        return twin

    def _copy_functional(self, model: Any) -> Any:
        inputs = keras.tree.map_structure(copy_input, keras_api.input_structure(model))
        outputs, nodes = replay(model, inputs, self.of)
        return functional(model, inputs, outputs, nodes=nodes, copy_of=self.beside)

    def beside(self, layer: Any) -> Any:
        """The twin of a layer that may be no part of the graph, built as it is."""
        with keras_api.without_values(), keras_api.random_states_kept():
            twin = self.of(layer)
            if layer.built and not twin.built:
                twin.build_from_config(layer.get_build_config() or {})
        return twin

    def leaves(self) -> Iterator[tuple[Any, Any]]:
        """Pairs of (original, twin) that are layers and not nested models.

        Nested models' own layers are pairs themselves.
        """
        for original, twin in self._twins.values():
            if isinstance(original, keras.layers.Layer) and not isinstance(
                original, keras.Sequential | keras_api.Functional
            ):
                yield original, twin

    def pairs(self) -> list[tuple[Any, Any]]:
        """Pairs of (variable of the original, variable of the twin), each once.

        Raises:
            DeclarationError: a twin built other variables than its original has.
        """
        found: dict[int, tuple[Any, Any]] = {}
        for original, twin in self.leaves():
            for mine, its in _matching(original, twin):
                found.setdefault(id(its), (mine, its))
        return list(found.values())

    def borrow(self) -> None:
        """Let twins stand for their originals' values or initializers until placed."""
        for original, twin in self.leaves():
            if not original.built:
                continue
            for mine, its in _matching(original, twin):
                if not keras_api.has_value(its):
                    keras_api.borrow_value(its, mine)

    def carry_assets(self) -> None:
        """Copy what a layer keeps besides variables: vocabularies, constants."""
        for original, twin in self.leaves():
            if original.built:
                carry_assets(original, twin)


def _copy_operation(operation: Any) -> Any:
    """A raw operation is its attributes; only its nodes must be its own."""
    return keras_api.without_nodes(operation)


def copy_input(tensor: Any) -> Any:
    """A new symbolic input like this one."""
    layer = keras_api.producer(tensor).operation
    return keras.Input(
        batch_shape=tensor.shape,
        dtype=tensor.dtype,
        sparse=tensor.sparse,
        name=layer.name,
        optional=getattr(layer, "optional", False),
    )


def functional_of(model: Any) -> Any:
    """The functional form of a Keras model, over its own layers and nodes.

    Raises:
        DeclarationError: the model has no graph of calls to read.
    """
    if isinstance(model, keras.Sequential):
        if not model.built or not model.inputs:
            raise DeclarationError(
                f"the Sequential model {model.name!r} is not built, so its shapes are "
                "not known. Start it with keras.Input(shape), or call model.build()."
            )
        check_steps(model)
        return keras.Model(model.inputs, model.outputs, name=model.name)
    if isinstance(model, keras_api.Functional):
        check_class(model)
        return model
    raise DeclarationError(
        f"model {getattr(model, 'name', model)!r} ({type(model).__qualname__}) is "
        "subclassed: its calls are hidden in Python code. Build it as a functional "
        "model, keras.Model(inputs, outputs), or declare a net with one branch for "
        "each of its sublayers, which may be subclassed."
    )


def replay(
    model: Any, inputs: Any, twin_of: Callable[[Any], Any]
) -> tuple[Any, dict[int, Any]]:
    """Call the twins of all operations of a functional model in its own order.

    Returns:
        The symbolic outputs in the model's structure, and the new node of each old one
        by its id.
    """
    tensors: dict[int, Any] = {
        id(old): new for old, new in zip(model.inputs, keras.tree.flatten(inputs))
    }
    nodes: dict[int, Any] = {}
    running = keras_api.nodes_of(model)
    for node in running:
        twin = twin_of(node.operation)
        outputs = _called(node, twin, tensors)
        for old, new in zip(node.outputs, outputs):
            tensors[id(old)] = new
        nodes[id(node)] = keras_api.producer(outputs[0]) if outputs else None
    keras_api.hang_masks(running, tensors)
    structure = keras_api.output_structure(model)
    flat = [tensors[id(tensor)] for tensor in keras.tree.flatten(structure)]
    return keras.tree.pack_sequence_as(structure, flat), nodes


def _called(node: Any, twin: Any, tensors: dict[int, Any]) -> list[Any]:
    """The outputs of a call of a twin, like those of its original.

    A call of Keras' own that is built as its original is noted and not worked out: the
    shapes are known, and working them out is most of what building a model takes.
    """
    args, kwargs = node.arguments.fill_in(tensors)
    if not _built_alike(node.operation, twin):
        return keras.tree.flatten(twin(*args, **kwargs))
    return keras_api.note_call(node, twin, args, kwargs)


def _built_alike(original: Any, twin: Any) -> bool:
    """Build a twin of Keras' own kind as its original was; whether that can be."""
    kind = type(original)
    if kind is not type(twin) or not kind.__module__.startswith("keras."):
        return False
    if not isinstance(twin, keras.layers.Layer):
        return True
    if not twin.built:
        shapes = original.get_build_config() if original.built else None
        lazily = kind.build is keras.layers.Layer.build and variables_of(original)
        if not shapes or lazily:
            return False
        twin.build_from_config(shapes)
    mine, its = variables_of(original), variables_of(twin)
    return [v.shape for v in mine] == [v.shape for v in its]


def _matching(original: Any, twin: Any) -> list[tuple[Any, Any]]:
    """Pairs of a layer's variables and its twin's, alike in shape and type.

    Raises:
        DeclarationError: they differ.
    """
    mine, its = variables_of(original), variables_of(twin)
    if [(v.shape, v.dtype) for v in mine] != [(v.shape, v.dtype) for v in its]:
        raise DeclarationError(
            f"layer {original.name!r} ({type(original).__qualname__}) has the "
            f"variables {_shapes(mine)}, but a copy of it builds {_shapes(its)}. A "
            "layer must create its variables in __init__ or build(), from its "
            "configuration alone."
        )
    pairs = list(zip(mine, its))
    for one, other in pairs:
        if one.trainable != other.trainable:
            other.trainable = one.trainable
    return pairs


def _shapes(variables: Iterable[Any]) -> str:
    return ", ".join(f"{v.name}{tuple(v.shape)}" for v in variables) or "none"
