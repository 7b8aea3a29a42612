"""Synthetic inputs and targets of the right shapes and dtypes."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["synthetic_batch", "synthetic_tensor"]

_OPEN_SIZE = 8  # for an extent that is None


def synthetic_batch(model: Any, batch: int) -> tuple[Any, Any]:
    """Inputs and targets for one training step of a model, as NumPy arrays.

    Whole numbers are 0 or 1, which any embedding takes; texts are "a".

    Returns:
        (inputs, targets), in the structure that the model takes.
    """
    draw = np.random.default_rng(0)
    inputs, targets = keras.tree.map_structure(
        lambda one: _made(one, (batch,), draw), (model.input, model.output)
    )
    return inputs, targets


def synthetic_tensor(tensor: Any, batch: int) -> Any:
    """A value for a symbolic tensor, made on the device of the current scope."""
    first = (tensor.shape[0] or batch,) if tensor.shape else ()
    return tf.constant(_made(tensor, first, np.random.default_rng(0)))


def _made(tensor: Any, first: tuple[int, ...], draw: np.random.Generator) -> Any:
    shape = (*first, *(extent or _OPEN_SIZE for extent in tensor.shape[1:]))
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype == "string":
        return np.full(shape, "a", dtype=object)
    if "int" in dtype or dtype == "bool":
        return draw.integers(0, 2, shape).astype(dtype)
    return draw.random(shape).astype(tf.as_dtype(dtype).as_numpy_dtype)
