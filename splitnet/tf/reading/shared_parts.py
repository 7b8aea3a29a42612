"""Sublayers and seeds that several layers hold stay one in the copies.

A configuration says what a layer holds and not whether another holds the same: a dense
layer that is called, and is wrapped by `TimeDistributed` as well, would become two.
"""

from typing import Any

import keras

from splitnet.tf.internals import keras_api

__all__ = ["SharedParts"]

_SHARED = (keras.layers.Layer, keras.random.SeedGenerator)
_MODELS = (keras.Sequential, keras_api.Functional)  # these are copied call by call


class SharedParts:
    """The copies of layers, of what layers hold, and of seeds, one each."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def copy_of(self, original: Any) -> Any:
        """The copy of a layer met alone or inside another; None if it was not met."""
        return self._known.get(id(original), (None, None))[1]

    def meet(self, original: Any, copy: Any) -> None:
        """Remember a copy, and let it hold the copies of what its original holds."""
        self._known[id(original)] = (original, copy)
        held = vars(copy)
        for name, one in vars(original).items():
            other = held.get(name)
            if isinstance(one, list) and isinstance(other, list):
                for i, pair in enumerate(zip(one, other)):
                    list.__setitem__(other, i, self._joined(*pair))  # untracked
            elif isinstance(one, dict) and isinstance(other, dict):
                for key in one:
                    if key in other:
                        dict.__setitem__(other, key, self._joined(one[key], other[key]))
            elif isinstance(one, _SHARED):
                held[name] = self._joined(one, other)

    def _joined(self, one: Any, other: Any) -> Any:
        """The copy of `one`: what was met, or `other`, which is met now."""
        if type(one) is not type(other) or not isinstance(one, _SHARED):
            return other
        if isinstance(one, _MODELS):
            return other
        known = self.copy_of(one)
        if known is None:
            self.meet(one, other)
        return other if known is None else known
