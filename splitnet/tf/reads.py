"""What a call away from its weights' home sees of them, and whose gradients those are.

Plain Keras sums the gradients of a shared weight read by read, from the last to the
first. So each read away from home hands its gradient on by itself, as if it had read
the variable at home.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals.gradient_marks import handle_of, read_as

__all__ = ["ReadScope", "StateScope", "one_by_one"]


class StateScope(keras.StatelessScope):
    """A stateless scope in which no gradient flows through what a call assigns.

    A variable that is read again after an assignment passes none on, either.
    """

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note what a variable is assigned."""
        variable, value = update
        super().add_update((variable, tf.stop_gradient(value)))


class ReadScope(StateScope):
    """Variables seen as tensors; `handles` maps the ids of tensors to what they read.

    In a loop or branch, which has gradients of its own, all reads are one.
    """

    def __init__(
        self, seen: Iterable[tuple[Any, Any]], handles: Mapping[int, Any]
    ) -> None:
        super().__init__(seen, collect_losses=True, initialize_variables=False)
        self._handles = handles

    def get_current_value(self, variable: Any) -> Any:
        """What a call reads."""
        value = self.state_mapping.get(id(variable))
        handle = self._handles.get(id(value))
        if handle is None or tf.compat.v1.get_default_graph() is not value.graph:
            return value
        return read_as(handle, value)

    def assigned(self, variable: Any) -> Any:
        """What a variable was assigned, or given at first."""
        return self.state_mapping.get(id(variable))


def one_by_one(
    variables: Iterable[Any], local: dict[int, Any], handles: dict[int, Any]
) -> None:
    """Let trained variables be read one by one; fills `local` anew, and `handles`."""
    for variable in variables:
        handle = handle_of(variable.value) if variable.trainable else None
        if handle is not None:
            value = read_as(handle, local[id(variable)])
            local[id(variable)], handles[id(value)] = value, handle
