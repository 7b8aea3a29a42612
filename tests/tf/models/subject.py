"""What a model to be split comes with, and the list of all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

__all__ = ["BATCH", "MODELS", "Subject", "made_up", "model", "numbers"]

BATCH = 4

MODELS: dict[str, Callable[[], "Subject"]] = {}


@dataclass(frozen=True)
class Subject:
    """A model, one batch for it, targets of the shape of its outputs, and a loss."""

    model: Any
    x: Any
    y: Any
    loss: Any = "mse"


def model(build: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function that builds a model, or a subject, under its name."""

    def subject() -> Subject:
        built = build()
        return built if isinstance(built, Subject) else made_up(built)

    MODELS[build.__name__] = subject
    return build


def made_up(built: Any, batch: int = BATCH, *, below: int = 7) -> Subject:
    """A model with a batch for it: normal numbers, and whole ones below `below`.

    The last third of whole numbers is 0, as padding is.
    """
    plain = isinstance(built, keras.Sequential)
    x = keras.tree.map_structure(
        lambda tensor: _input(tensor, batch, below),
        built.inputs[0] if plain else built.input,
    )
    y = keras.tree.map_structure(
        lambda tensor: np.asarray(_input(tensor, batch, below), "float32"),
        built(x),
    )
    return Subject(built, x, y)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """A batch of normal numbers, the same for the same seed."""
    made = np.random.default_rng(seed).standard_normal((BATCH, *shape))
    return made.astype("float32")


def _input(tensor: Any, batch: int, below: int) -> np.ndarray:
    shape = (batch, *(6 if extent is None else extent for extent in tensor.shape[1:]))
    kind = keras.backend.standardize_dtype(tensor.dtype)
    draw = np.random.default_rng(len(shape) + sum(shape))
    if kind == "bool":
        return draw.random(shape) < 0.5
    if "int" in kind:
        whole = draw.integers(1, below, shape)
        if len(shape) > 1:
            whole[..., shape[-1] - shape[-1] // 3 :] = 0
        return whole.astype(kind)
    return draw.standard_normal(shape).astype(kind)
