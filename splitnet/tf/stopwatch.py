"""Timing one thing at a time on one device: what `measure` is made of."""

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.cluster import Device
from splitnet.tf.workers.barrier import wait_for_workers

__all__ = ["finish", "made_up", "nothing", "seconds_of"]

_ROUNDS = 15
_OPEN_SIZE = 8


def seconds_of(run: Callable[[], Any], *, enough_seconds: float = 0.3) -> float:
    """The fastest of several runs, after two that trace and warm up.

    What else this machine does only ever makes a run longer. After `enough_seconds` it
    is not run again; a run as long as that is its own warming up.
    """
    wait_for_workers()
    run()
    began = time.perf_counter()
    run()
    times: list[float] = []
    if time.perf_counter() - began > enough_seconds:
        times.append(time.perf_counter() - began)  # long enough to be warm already
    began = time.perf_counter()
    while len(times) < _ROUNDS and time.perf_counter() - began < enough_seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def finish(outputs: Any, device: str) -> Any:
    """A number that needs every output; TensorFlow drops what nothing needs."""
    flat = [
        t.values if isinstance(t, tf.IndexedSlices) else t
        for t in keras.tree.flatten(outputs)
    ]
    with tf.device(device):
        numbers = [
            tf.cast(tf.reshape(t, [-1])[0], "float32")
            for t in flat
            if isinstance(t, tf.Tensor) and t.dtype not in (tf.string, tf.variant)
        ]
        return tf.add_n([tf.constant(0.0), *numbers])


def nothing(device: Device) -> Callable[[], Any]:
    """What is run to learn the cost of running anything on a device."""

    @tf.function
    def run() -> Any:
        with tf.device(device.target):
            return tf.constant(0.0)

    return lambda: run().numpy()


def made_up(tensor: Any, batch: int) -> Any:
    """A value for a symbolic tensor; whole numbers are 0 or 1, good for any table.

    Drawn on the device of the scope it is made in, so that nothing is sent there.
    """
    shape = [batch, *(extent or _OPEN_SIZE for extent in tensor.shape[1:])]
    if tensor.shape and tensor.shape[0]:
        shape[0] = tensor.shape[0]
    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
        return tf.fill(shape, "a")
    values = tf.random.stateless_normal(shape, seed=(0, 0))
    return tf.cast(values if dtype.is_floating else values > 0, dtype)
