"""What layers hold in common: a sublayer or a seed that two of them share stays one.

A configuration says what a layer holds and not whether another holds the same: a dense
layer that is called, and is wrapped by `TimeDistributed` as well, would become two.
"""

from typing import Any

import keras

from splitnet.tf.brisk import PLAIN
from splitnet.tf.internals import keras_api

__all__ = ["Shared"]

_SHARED = (keras.layers.Layer, keras.random.SeedGenerator)
_MODELS = (keras.Sequential, keras_api.Functional)


class Shared:
    """The twins of layers, of what layers hold, and of seeds, one each."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def twin_of(self, original: Any) -> Any:
        """The twin of a layer that was met, alone or in another; None if it was not."""
        return self._known.get(id(original), (None, None))[1]

    def meet(self, original: Any, twin: Any) -> None:
        """Remember a twin, and let it hold the twins of what its original holds."""
        self._known[id(original)] = (original, twin)
        held = vars(twin)
        for name, one in vars(original).items():
            if type(one) in PLAIN:
                continue
            other = held.get(name)
            if isinstance(one, list) and isinstance(other, list):
                for i, pair in enumerate(zip(one, other)):
                    list.__setitem__(other, i, self._joined(*pair))  # untracked
            elif isinstance(one, dict) and isinstance(other, dict):
                for key in one:
                    if key in other:
                        dict.__setitem__(other, key, self._joined(one[key], other[key]))
            elif name in held:
                held[name] = self._joined(one, other)

    def _joined(self, one: Any, other: Any) -> Any:
        """The twin of `one`: what was met, or `other`, which is met now."""
        if not _is_shareable(one) or type(one) is not type(other):
            return other
        known = self.twin_of(one)
        if known is None:
            self.meet(one, other)
        return other if known is None else known


def _is_shareable(value: Any) -> bool:
    """Models are not: they are copied call by call."""
    return isinstance(value, _SHARED) and not isinstance(value, _MODELS)
