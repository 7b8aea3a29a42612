"""One run of a placed model inside a step: values, their devices, and copies of them.

A tensor is copied once to each device that reads it. The gradient of the copy is summed
there and crosses back once, to the device where the tensor was made.
"""

from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import tf_api
from splitnet.tf.internals.keras_api import CARRIED
from splitnet.tf.placement.device_function import canonical


class Shared:
    """What several runs in one step have in common: traces, weights, states.

    `weights` maps (id of a variable, device) to its copy there, `states` the id of a
    variable to (first value, latest value) of the step. Where each run has a gradient
    tape of its own, `tape` is that of the present one, which watches the weights, and
    `turns` (`tf/parallel/pipeline.py`) the order of their calls on each device.
    """

    def __init__(self) -> None:
        self.traces: dict[Any, Any] = {}
        self.weights: dict[tuple[int, str], Any] = {}
        self.states: dict[int, tuple[Any, Any]] = {}
        self.tape: tf.GradientTape | None = None
        self.turns: Any = None

    def copied(self, value: Any, source: str, target: str) -> Any:
        """A copy of a weight that all runs of the step use."""
        if self.tape is None:
            return transfer(value, source, target)
        with self.tape.stop_recording():
            copy = transfer(value, source, target)
        self.tape.watch(copy)
        return copy


class Run:
    """The values of one run by the ids of symbolic tensors.

    `made_on` holds their devices; `extra` what runners keep for the rest of the run.
    `trains` says that only the gradients of trainable weights are asked for.
    """

    def __init__(
        self, tensors: dict[int, Any], context: Any, shared: Shared | None = None
    ) -> None:
        self.tensors = tensors
        self.context = context
        self.shared = shared or Shared()
        self.trains = False
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
        """The value of a variable that lives on another device."""
        key = (id(variable), device)
        if key not in self.shared.weights:
            home = device_of(variable)
            with tf.device(home):
                value = tf.convert_to_tensor(variable.value)
            self.shared.weights[key] = self.shared.copied(value, home, device)
        return self.shared.weights[key]

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
    """A copy of a value on a device, whose gradient goes back to where it was made."""
    if not tf.is_tensor(value):
        return value
    with tf.device(target):
        if not isinstance(value, tf.Tensor):
            return tf.nest.map_structure(tf.identity, value, expand_composites=True)
        if not source or not value.dtype.is_floating:
            return tf.identity(value)

        def back(gradient: Any) -> Any:
            with tf.device(source):
                return tf.nest.map_structure(
                    tf.identity, gradient, expand_composites=True
                )

        return tf_api.with_gradient(value, tf.identity, back)
