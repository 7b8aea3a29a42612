"""Synthetic inputs and targets of the right shapes and dtypes."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.tf.internals import keras_api

__all__ = ["synthetic_batch", "synthetic_tensor"]

_OPEN_SIZE = 8  # for an extent that is None


def synthetic_batch(model: Any, batch: int, *, seed: int = 0) -> tuple[Any, Any]:
    """Inputs and targets for one training step of a model, as NumPy arrays.

    Whole numbers are 0 or 1, which any embedding takes; texts are "a".

    Returns:
        (inputs, targets), in the structure that the model takes.
    """
    draw = np.random.default_rng(seed)

    def made(tensor: Any) -> Any:
        shape = (batch, *(extent or _OPEN_SIZE for extent in tensor.shape[1:]))
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


def synthetic_tensor(tensor: Any, batch: int) -> Any:
    """A value for a symbolic tensor, made on the device of the current scope."""
    shape = [batch, *(extent or _OPEN_SIZE for extent in tensor.shape[1:])]
    if tensor.shape and tensor.shape[0]:
        shape[0] = tensor.shape[0]
    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
        return tf.fill(shape, "a")
    values = tf.random.stateless_normal(shape, seed=(0, 0))
    return tf.cast(values if dtype.is_floating else values > 0, dtype)
