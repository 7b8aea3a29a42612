"""Cuts: what a call on one device reads from another, and how it gets there once.

TensorFlow itself moves a tensor once to each device that reads it, so most cuts need
nothing. Two do. A loop lives where its variables come from: what a recurrent layer
reads from another device must arrive before the loop, or every iteration would wait for
it. And a weight away from home must be fetched once, not by every iteration.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from splitnet.tf import private
from splitnet.tf.marks import scope_of

if TYPE_CHECKING:
    from splitnet.tf.placement import Placed

__all__ = ["Cuts", "may_loop"]

_LOOPING_LAYERS = (
    keras.layers.RNN,
    keras.layers.Bidirectional,
    keras.layers.TimeDistributed,
)
_LOOPING_OPERATIONS = (
    "AssociativeScan",
    "Cond",
    "ForiLoop",
    "Map",
    "Scan",
    "Switch",
    "VectorizedMap",
    "WhileLoop",
)


def may_loop(operation: Any) -> bool:
    """Whether a call may run a loop or a condition: what is not Keras' own may."""
    if not isinstance(operation, keras.layers.Layer):
        return type(operation).__name__ in _LOOPING_OPERATIONS
    return any(
        isinstance(layer, _LOOPING_LAYERS)
        or not type(layer).__module__.startswith("keras.")
        for layer in operation._flatten_layers()
    )


class Cuts:
    """The hand-overs of one run of a placed model."""

    def __init__(self, placed: "Placed") -> None:
        self._placed = placed
        self._arrived: dict[tuple[int, str], Any] = {}

    def seen_from(self, key: str, node: Any, tensors: dict[int, Any]) -> dict[int, Any]:
        """The values of a node's inputs as its part sees them, by tensor id."""
        placed = self._placed
        if id(node) not in placed.fenced:
            return tensors
        seen = {}
        for tensor in node.input_tensors:
            value = tensors[id(tensor)]
            source = placed.key_of[id(private.producer(tensor))]
            away = placed.target_of[source] != placed.target_of[key]
            if away and isinstance(value, tf.Tensor):
                value = self._arrive(id(tensor), value, key)
            seen[id(tensor)] = value
        return seen

    def _arrive(self, number: int, value: Any, key: str) -> Any:
        """The value on the device of part `key`, one for all its readers there."""
        place = (number, self._placed.target_of[key])
        if place not in self._arrived:
            with tf.name_scope(scope_of(key)), tf.device(place[1]):
                local = tf.identity(value)
            mask = getattr(value, "_keras_mask", None)
            if mask is not None:
                local._keras_mask = mask
            self._arrived[place] = local
        return self._arrived[place]

    @contextlib.contextmanager
    def weights_at(self, key: str, operation: Any) -> Iterator[None]:
        """Let a call away from its weights' home see them as tensors on its device."""
        away = self._away(key, operation)
        if not away or private.in_stateless_scope():
            yield
            return
        local = {id(v): self._weight(v, key) for v in away}
        with keras.StatelessScope(
            [(v, local[id(v)]) for v in away],
            collect_losses=True,
            initialize_variables=False,
        ) as scope:
            yield
        for variable in operation.variables:
            value = scope.get_current_value(variable)
            if value is not None and value is not local.get(id(variable)):
                variable.assign(value)
        if scope.losses:
            operation.add_loss(scope.losses)

    def _away(self, key: str, operation: Any) -> list[Any]:
        """Weights of a call whose home is another device; lookups stay where they are.

        The rows that an embedding looks up are fewer bytes than its table.
        """
        targets, homes = self._placed.target_of, self._placed.home_of
        return [
            v
            for v in getattr(operation, "variables", ())
            if id(v) in homes
            and targets[homes[id(v)]] != targets[key]
            and v.name != "embeddings"
        ]

    def _weight(self, variable: Any, key: str) -> Any:
        """A weight on the device of part `key`; what calls change is read each time."""
        if not variable.trainable:
            with tf.device(self._placed.target_of[key]):
                return tf.identity(variable.value)
        place = (id(variable), self._placed.target_of[key])
        if place not in self._arrived:
            self._arrive(id(variable), variable.value, key)
        return self._arrived[place]
