"""Time one function on one device."""

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.cluster import Device
from splitnet.tf.workers.connect import wait_for_workers

__all__ = ["empty_step", "finish", "seconds_of"]

_RUNS = 15


def seconds_of(run: Callable[[], Any], *, enough_seconds: float = 0.3) -> float:
    """The fastest of several runs, after two that trace and warm up.

    Other load only ever makes a run longer. After `enough_seconds` it is not run again;
    a run that takes as long needs no second to warm up.
    """
    wait_for_workers()
    run()
    began = time.perf_counter()
    run()
    times: list[float] = []
    if time.perf_counter() - began > enough_seconds:
        times.append(time.perf_counter() - began)
    began = time.perf_counter()
    while len(times) < _RUNS and time.perf_counter() - began < enough_seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def finish(outputs: Any, device: str) -> Any:
    """A number that depends on every output; TensorFlow prunes what nothing needs."""
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


def empty_step(device: Device) -> Callable[[], Any]:
    """A function that computes nothing: the cost of running anything on a device."""

    @tf.function
    def run() -> Any:
        with tf.device(device.target):
            return tf.constant(0.0)

    return lambda: run().numpy()
