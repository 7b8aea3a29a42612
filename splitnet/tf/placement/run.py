"""One run of a placed model inside a step: values, their devices, and copies of them.

A tensor is copied once to each device that reads it. The gradient of the copy is summed
there and crosses back once, to the device where the tensor was made.

A call may change variables that are not trained: a dropout layer counts its seed on, a
BatchNormalization moves its averages. The body of a part returns the new values. Where
a new value is `scale * old + offset`, only the offset is returned, so that a second
call of the same layer waits for the small update and not for the whole first call.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.tf.internals import tf_api
from splitnet.tf.internals.keras_api import CARRIED
from splitnet.tf.placement.device_function import ancestors, canonical


class Shared:
    """What several runs in one step have in common.

    `weights` maps (id of a variable, device) to its value there, `states` the id of a
    variable to (first value, latest value). Micro-batches have `turns`: their order,
    gradient tapes and sums of gradients (`tf/parallel/pipeline.py`).
    """

    def __init__(self, turns: Any = None) -> None:
        self.turns = turns
        self.traces: dict[Any, Any] = {}
        self.weights: dict[tuple[int, str], Any] = {}
        self.states: dict[int, tuple[Any, Any]] = {}


class Run:
    """The values of one run by the ids of symbolic tensors.

    `made_on` holds their devices; `extra` what runners keep for the rest of the run.
    `trains` says that only the gradients of trainable weights are asked for;
    `on_gradient` is called when the gradient of a part is.
    """

    def __init__(
        self, tensors: dict[int, Any], context: Any, shared: Shared | None = None
    ) -> None:
        self.tensors = tensors
        self.context = context
        self.shared = shared or Shared()
        self.trains = False
        self.on_gradient: Callable[[], None] = lambda: None
        self.made_on: dict[int, str] = {}
        self.extra: dict[str, Any] = {}
        self._copies: dict[tuple[int, str], tuple[Any, Any]] = {}

    def arrive(self, tensor: Any, device: str) -> Any:
        """The value of a symbolic tensor on a device."""
        value = self.tensors[id(tensor)]
        return self.moved(value, self.made_on.get(id(tensor), ""), device)

    def moved(self, value: Any, source: str, target: str) -> Any:
        """A value of one device on another, with what Keras attached to it."""
        if source == target or not tf.is_tensor(value):
            return value
        key = (id(value), target)
        if key not in self._copies:  # which keeps the value, so that its id stays
            copy = transfer(value, source, target)
            for name in CARRIED:
                attached = getattr(value, name, None)
                if attached is not None:
                    setattr(copy, name, transfer(attached, "", target))
            self._copies[key] = value, copy
        return self._copies[key][1]

    def give(self, tensor: Any, value: Any, device: str) -> None:
        """Note the value of a symbolic tensor and the device where it was made."""
        self.tensors[id(tensor)] = value
        self.made_on[id(tensor)] = device

    def weight(self, variable: Any, device: str) -> Any:
        """The value of a variable on a device, read once a step."""
        key, known, turns = (
            (id(variable), device),
            self.shared.weights,
            self.shared.turns,
        )
        if key not in known:
            home = device_of(variable)
            with turns.tape.stop_recording() if turns else contextlib.nullcontext():
                with tf.device(home):
                    value = tf.convert_to_tensor(variable.value)
                known[key] = transfer(value, home, device)
            if turns:
                turns.tape.watch(known[key])
        return known[key]

    def state(self, variable: Any, *, first: bool = False) -> Any:
        """The value of a state variable at this point of the step, or at its start."""
        if id(variable) not in self.shared.states:
            with tf.device(device_of(variable)):
                value = tf.identity(tf.convert_to_tensor(variable.value))
            self.shared.states[id(variable)] = (value, value)
        return self.shared.states[id(variable)][0 if first else 1]

    def assign(self, variable: Any, value: Any) -> None:
        """Give a state variable a new value, at its home."""
        before = self.state(variable, first=True)
        with tf.device(device_of(variable)):
            variable.assign(value)
        self.shared.states[id(variable)] = (before, value)


def device_of(variable: Any) -> str:
    """The canonical device of a Keras or TensorFlow variable."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return canonical(value.device)


def transfer(value: Any, source: str, target: str) -> Any:
    """A value on a device, whose gradient goes back to where it was made."""
    if source == target or not tf.is_tensor(value):
        return value
    with tf.device(target):
        dense = isinstance(value, tf.Tensor) and value.dtype.is_floating
        if not source or not dense:
            return copied(value)

        def back(gradient: Any) -> Any:
            with tf.device(source):
                return copied(gradient)

        return tf_api.with_gradient(value, tf.identity, back)


def copied(value: Any) -> Any:
    """A copy of a tensor of any kind on the present device."""
    return tf.nest.map_structure(tf.identity, value, expand_composites=True)


@dataclass(frozen=True, slots=True)
class Update:
    """A state's new value: `scale * old + offset`, or the offset if `scale` is None.

    A `constant` offset is known at tracing, and then the body does not return it.
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

    Inside a `tf.function`, `tf.custom_gradient` or `tf.recompute_grad` of a layer's
    own, `weights` are the variables themselves: TensorFlow would give no gradient to a
    value that such a function captures. The ids of those are `captured`.
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
        # A variable that is assigned and read again has no gradient either.
        super().add_update((variable, tf.stop_gradient(value)))

    def updates(
        self, states: Iterable[tuple[Any, Any]]
    ) -> tuple[list[Update], list[Any]]:
        """The updates of assigned variables, and the offsets that are tensors.

        `states` are variables with the tensors that are their values before.
        """
        before = {id(variable): old for variable, old in states}
        updates, offsets = [], []
        for variable in self.assigned.values():
            old, new = before.get(id(variable)), self.get_current_value(variable)
            scale, offset = (old is not None and _affine(new, old)) or (None, new)
            constant = 0 if offset is None else tf.get_static_value(offset)
            updates.append(Update(variable, scale, constant))
            if constant is None:
                offsets.append(offset)
        return updates, offsets


def _affine(new: Any, old: Any) -> tuple[Any, Any] | None:
    """The scale and the offset of a traced sum or product of a tensor, or None."""
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
