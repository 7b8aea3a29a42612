"""Data that a model accepts, made up: for a step whose values do not matter."""

from typing import Any

import keras
import numpy as np

from splitnet.tf.internals import keras_api

__all__ = ["made_up_batch"]

# What a size that is left open (None) becomes.
_OPEN_SIZE = 8


def made_up_batch(model: Any, batch: int, *, seed: int = 0) -> tuple[Any, Any]:
    """Inputs and targets of the right shapes and dtypes for one training step.

    Whole numbers are 0 or 1, so that they are good for any embedding, texts are "a".

    Returns:
        (inputs, targets), in the structure that the model takes.
    """
    draw = np.random.default_rng(seed)

    def made(tensor: Any) -> Any:
        shape = (batch, *(s or _OPEN_SIZE for s in tensor.shape[1:]))
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        if dtype == "string":
            return np.full(shape, "a", dtype=object)
        if "int" in dtype or dtype == "bool":
            return draw.integers(0, 2, shape).astype(dtype)
        return draw.random(shape).astype("float32" if "float" in dtype else dtype)

    return (
        keras.tree.map_structure(made, keras_api.input_structure(model)),
        keras.tree.map_structure(made, keras_api.output_structure(model)),
    )
