"""State updates of a part that need not wait for the part.

A call may change variables that are not trained: a dropout layer counts its seed on, a
BatchNormalization moves its averages. The body of a part returns the new values. Where
a new value is `scale * old + offset`, only the offset is returned, so that a second
call of the same layer waits for the small update and not for the whole first call.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.tf.internals import tf_api
from splitnet.tf.placement.device_function import ancestors


@dataclass(frozen=True, slots=True)
class Update:
    """The new value of a state variable: `scale * old + offset`, or `offset` alone.

    `scale` is None for an offset alone. `constant` is the offset if it is known at
    tracing, and then the body does not return it.
    """

    variable: Any
    scale: Any
    constant: Any

    def value(self, old: Any, offset: Any) -> Any:
        """The new value outside of the body, from the old one."""
        if self.scale is None:
            return offset
        scaled = old if np.all(self.scale == 1) else old * self.scale
        return scaled + tf.cast(offset, old.dtype)


class StateScope(keras.StatelessScope):
    """A stateless scope that lists the variables that calls assign.

    No gradient flows through an assigned value, as none does through a variable that
    is assigned and read again. Inside a `tf.function`, `tf.custom_gradient` or
    `tf.recompute_grad` of a layer's own, `weights` are the variables themselves:
    TensorFlow would give no gradient to a value that such a function captures. The ids
    of those are `captured`.
    """

    def __init__(self, states: Any, weights: Any = ()) -> None:
        mapping = [*states, *weights]
        super().__init__(mapping, collect_losses=True, initialize_variables=False)
        self.assigned: dict[int, Any] = {}
        self.captured: set[int] = set()
        self._weights = {id(variable) for variable, _ in weights}
        self._entered = tf_api.functions_entered()

    def get_current_value(self, variable: Any) -> Any:
        """The value of a variable in this scope; None for that of the variable."""
        own = id(variable) in self._weights
        if own and tf_api.functions_entered() > self._entered:
            self.captured.add(id(variable))
            return None
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note what a variable is assigned."""
        variable, value = update
        self.assigned[id(variable)] = variable
        value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
        super().add_update((variable, tf.stop_gradient(value)))

    def updates(
        self, states: Iterable[tuple[Any, Any]]
    ) -> tuple[list[Update], list[Any]]:
        """The updates of assigned variables, and the offsets that are tensors.

        Args:
            states: variables with the tensors that are their values before.
        """
        before = {id(variable): old for variable, old in states}
        updates, offsets = [], []
        for variable in self.assigned.values():
            old, new = before.get(id(variable)), self.get_current_value(variable)
            form = None if old is None else _affine(new, old)
            scale, offset = form or (None, new)
            constant = 0 if offset is None else tf.get_static_value(offset)
            updates.append(Update(variable, scale, constant))
            if constant is None:
                offsets.append(offset)
        return updates, offsets


def _affine(new: Any, old: Any) -> tuple[Any, Any] | None:
    """The scale and the offset of a traced tensor over another; None if there is none.

    Recognised are sums and products of the old value with what does not depend on it.
    """
    if new is old:
        return np.ones((), old.dtype.as_numpy_dtype), None
    op = new.op
    if op.type in ("Identity", "StopGradient"):
        return _affine(op.inputs[0], old)
    if op.type not in ("Add", "AddV2", "Mul"):
        return None
    for mine, other in (tuple(op.inputs), tuple(op.inputs)[::-1]):
        inner = _affine(mine, old)
        if inner is None:
            continue
        scale, offset = inner
        if op.type == "Mul":
            factor = tf.get_static_value(other)
            if factor is None:
                return None
            return scale * factor, None if offset is None else offset * other
        if old.op in ancestors([other.op]):
            return None
        return scale, other if offset is None else offset + other
    return None
