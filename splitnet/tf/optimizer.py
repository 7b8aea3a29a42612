"""Optimizers: slots, clipping and updates where the variable lives.

Keras' TensorFlow optimizer sums gradients over replicas even where there is one, which
takes every gradient of every device through the default device, and makes its slots
there as well. Four methods of the instance are replaced; its class, configuration,
variables and arithmetic stay as they are.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.marks import canonical, update_scope

__all__ = ["copy_state", "device_of", "place_optimizer"]


def place_optimizer(optimizer: Any) -> None:
    """Make an optimizer keep and update each variable's state beside it, in place."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for part in getattr(inner, "optimizers", ()):  # a MultiOptimizer's own
        place_optimizer(part)
    if inner is None or getattr(inner, "_splitnet_placed", False):
        return
    add, update = inner.add_variable_from_reference, inner.update_step

    @functools.wraps(add)
    def add_beside(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        with tf.init_scope(), tf.device(device_of(reference_variable)):
            return add(reference_variable, *args, **kwargs)

    @functools.wraps(update)
    def update_there(gradient: Any, variable: Any, learning_rate: Any) -> Any:
        with tf.device(device_of(variable)):
            return update(gradient, variable, learning_rate)

    def backend_update_step(gradients: Any, variables: Any, learning_rate: Any) -> None:
        for device, pairs in _by_device(gradients, variables).items():
            with (
                tf.name_scope(update_scope(device)),
                tf.device(device),
                _iterations_on_device(inner),
            ):
                rate = tf.identity(learning_rate)
                for gradient, variable in pairs:
                    number = inner._get_variable_index(variable)
                    with tf.name_scope(update_scope(device, number)):
                        update_there(gradient, variable, rate)

    inner.add_variable_from_reference = add_beside
    inner.update_step = update_there
    inner._all_reduce_sum_gradients = list
    inner._backend_update_step = backend_update_step
    inner._splitnet_placed = True


def device_of(variable: Any) -> str:
    """The canonical device of a Keras or TensorFlow variable."""
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return canonical(value.device)


def _by_device(gradients: Any, variables: Any) -> dict[str, list[tuple[Any, Any]]]:
    """Pairs of gradient and TensorFlow variable; one without a gradient is left out."""
    groups: dict[str, list[tuple[Any, Any]]] = {}
    for gradient, variable in zip(gradients, variables):
        if gradient is None:
            continue
        value = variable.value if isinstance(variable, keras.Variable) else variable
        groups.setdefault(device_of(value), []).append((gradient, value))
    return groups


@contextmanager
def _iterations_on_device(optimizer: Any) -> Iterator[None]:
    """Read the step count once per device instead of once per variable."""
    counter = optimizer._iterations
    if tf.executing_eagerly():
        yield
        return
    vars(optimizer)["_iterations"] = tf.identity(counter.value)
    try:
        yield
    finally:
        vars(optimizer)["_iterations"] = counter


def copy_state(source: Any, target: Any) -> None:
    """Give a built optimizer the state of another of the same class and variables."""
    for theirs, mine in zip(source.variables, target.variables, strict=True):
        with tf.device(device_of(mine)):
            mine.assign(theirs.value)
