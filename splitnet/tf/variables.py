"""The variables of an operation, also those that Keras does not list."""

from collections.abc import Iterator
from typing import Any

import keras

__all__ = ["tables_of", "variables_of"]


def variables_of(operation: Any) -> list[Any]:
    """All variables of a layer or model, each once; none for a raw operation.

    First those that Keras lists, seeds among them, then those that a layer only holds:
    the states of a stateful recurrence are no one's weights, but they have a device.
    """
    found = {id(v): v for v in getattr(operation, "variables", ())}
    if isinstance(operation, keras.layers.Layer):
        for layer in operation._flatten_layers():
            for value in vars(layer).values():
                for variable in _inside(value):
                    found.setdefault(id(variable), variable)
    return list(found.values())


def tables_of(operation: Any) -> list[Any]:
    """The variables of which a layer reads rows alone, so that gradients are sparse."""
    if not isinstance(operation, keras.layers.Embedding):
        return []
    return [v for v in operation.variables if v.name == "embeddings"]


def _inside(value: Any) -> Iterator[Any]:
    """The variables in what an attribute holds, lists in lists included."""
    if isinstance(value, keras.Variable):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _inside(one)
    elif isinstance(value, dict):
        yield from _inside(list(value.values()))
