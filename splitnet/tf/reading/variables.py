"""The variables of an operation, also those that Keras does not list."""

from typing import Any

import keras

from splitnet.tf.internals import keras_api


def variables_of(operation: Any) -> list[Any]:
    """All variables of a layer or model, each once; none for a raw operation.

    Those that Keras lists, then those that a layer only holds: states of a recurrence.
    """
    found = [*getattr(operation, "variables", ())]
    for layer in keras_api.sublayers(operation):
        states = keras.tree.flatten(getattr(layer, "states", None))
        found += [state for state in states if isinstance(state, keras.Variable)]
    return list({id(v): v for v in found}.values())


def weights_of(operation: Any) -> list[Any]:
    """The variables made to be trained, frozen or not; no call changes them."""
    layers = keras_api.sublayers(operation)
    return [v for layer in layers for v in keras_api.own_trainable_variables(layer)]


def states_of(operation: Any) -> list[Any]:
    """The variables that calls may change: seeds, moving averages, metrics."""
    trained = {id(v) for v in weights_of(operation)}
    return [v for v in variables_of(operation) if id(v) not in trained]


def tables_of(operation: Any) -> list[Any]:
    """The variables of which a layer reads rows alone, so that gradients are sparse."""
    if not isinstance(operation, keras.layers.Embedding):
        return []
    return [v for v in operation.variables if v.name == "embeddings"]
