"""Optimizers: slots, clipping and updates where the variable lives.

Keras' TensorFlow optimizer takes every gradient through the default device, to sum
over replicas even where there is one, and makes its slots there as well. Methods of the
instance are replaced; its class, configuration and arithmetic stay as they are.
"""

import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.graph import grouped
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.device_function import device_of, scope_of, where

_NO_SLOTS = ("_trainable_variables", "_variables")


def place_optimizer(optimizer: Any) -> None:
    """Make an optimizer keep and update each variable's state beside it, in place."""
    for one in all_optimizers(optimizer):
        if not getattr(one, "splitnet_placed", False):
            _place(one)
    if optimizer is None or "apply" in vars(optimizer):
        return
    plainly = optimizer.apply

    @functools.wraps(plainly)
    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        variables = list(trainable_variables or keras_api.trained_by(optimizer))
        if len(grads) != len(variables):
            return plainly(grads, trainable_variables)  # Keras says what is wrong
        return plainly(list(map(_home, grads, variables)), variables)

    optimizer.apply = apply


def _home(gradient: Any, variable: Any) -> Any:
    """A gradient on the device of its variable, by an op that is not pruned.

    Each branch of a `tf.cond`, as of accumulation and scaling, would copy it otherwise.
    """
    if gradient is None or tf.executing_eagerly():
        return gradient
    device = device_of(variable)

    def moved(one: Any) -> Any:
        behind = one.op.inputs if one.op.type == "Identity" else ()
        made_here = all(where(each) == device for each in (one, *behind))
        return one if made_here else tf.raw_ops.Snapshot(input=one)

    with tf.device(device):
        return tf.nest.map_structure(moved, gradient, expand_composites=True)


def all_optimizers(optimizer: Any) -> list[Any]:
    """What really updates: an optimizer, what it wraps, and what it is made of."""
    if (inner := getattr(optimizer, "inner_optimizer", optimizer)) is None:
        return []
    parts = getattr(inner, "optimizers", ())
    return [*(one for part in parts for one in all_optimizers(part)), inner]


def _place(inner: Any) -> None:
    add, build = inner.add_variable_from_reference, inner.build

    @functools.wraps(add)
    def add_beside(reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        with tf.init_scope(), tf.device(device_of(reference_variable)):
            return add(reference_variable, *args, **kwargs)

    @functools.wraps(build)
    def build_beside(*args: Any, **kwargs: Any) -> None:
        with tf.init_scope():  # a slot has its value at once, wherever build is called
            build(*args, **kwargs)
        _move_slots(inner)
        place_optimizer(inner)  # a MultiOptimizer may have met new ones

    def update_all(_: Any, gradients_and_variables: Any, learning_rate: Any) -> None:
        given = (pair for pair in gradients_and_variables if pair[0] is not None)
        for device, pairs in grouped(given, lambda pair: device_of(pair[1])).items():
            with tf.name_scope(scope_of("update_all")), tf.device(device):
                # Both are read once per device instead of once per variable.
                rate = tf.identity(learning_rate)
                with keras_api.step_count_read(inner):
                    for gradient, variable in pairs:
                        number = keras_api.number_of(variable)
                        with tf.name_scope(scope_of(f"update_{number}")):
                            inner.update_step(gradient, variable, rate)

    def reset_there(accumulators: Any) -> None:
        for one in accumulators:
            with tf.device(device_of(one)):  # zeros are not shared over devices
                one.assign(tf.zeros(one.shape, one.dtype))

    inner.add_variable_from_reference, inner.build = add_beside, build_beside
    keras_api.update_by(inner, update_all, reset_there)
    inner.splitnet_placed = True
    _move_slots(inner)


def _move_slots(optimizer: Any) -> None:
    """Move slots that were made elsewhere: before, or without a reference variable."""
    keras_api.move_values((s, device_of(v)) for s, v in slots_of(optimizer))


def slots_of(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of a slot and its variable: an optimizer keeps a list per kind of slot."""
    trainable = keras_api.trained_by(optimizer)
    for name, value in vars(optimizer).items():
        alike = isinstance(value, list) and len(value) == len(trainable)
        for slot, variable in zip(value, trainable) if alike else ():
            if isinstance(slot, keras.Variable) and name not in _NO_SLOTS:
                yield slot, variable
