"""Measure links between devices: latency, bandwidth and the gap of LogGP.

A tensor goes to the other device and back several times within one step, so that
neither the start of a step nor the way home to this program counts. Several small ones
at once tell how much of the latency passes while others are on their way (the gap).
Each trip is timed in several moments, and the fastest counts: other load may last
longer than one timing.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.tf.workers.connect import wait_for_workers

_RUNS = 15
_MOMENTS = 2
_TRIPS = 6  # there and back
_COPIES = 24
_SMALL_BYTES = 4
_LEAST_SECONDS = 1e-7


def seconds_of(run: Callable[[], Any], *, enough_seconds: float = 0.3) -> float:
    """The fastest of several runs, after two that trace and warm up.

    Other load only ever makes a run longer. After `enough_seconds` it is not run again;
    a run that takes as long needs no second to warm up.
    """
    wait_for_workers()
    run()
    began = time.perf_counter()
    run()
    first = time.perf_counter() - began
    times = [first] if first > enough_seconds else []
    began = time.perf_counter()
    while len(times) < _RUNS and time.perf_counter() - began < enough_seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_links(
    cluster: Cluster, alike: Mapping[str, int], typical_bytes: int
) -> tuple[Link, ...]:
    """A link for each ordered pair of devices; equal pairs are measured once.

    `alike` has for each device's name a number that equal devices share.
    """
    keys: dict[tuple[str, str], tuple[int, int, bool]] = {}
    pairs: dict[tuple[int, int, bool], tuple[Device, Device]] = {}
    for one in cluster:
        for other in cluster:
            if one.name != other.name:
                low, high = sorted((alike[one.name], alike[other.name]))
                key = keys[one.name, other.name] = (low, high, one.host == other.host)
                pairs.setdefault(key, (one, other))
    trips = {
        key: [
            _there_and_back(one, end, size)
            for size in (_SMALL_BYTES, typical_bytes)
            for end in (other, one)
        ]
        for key, (one, other) in pairs.items()
    }
    moments = [
        {key: [seconds_of(run) for run in runs] for key, runs in trips.items()}
        for _ in range(_MOMENTS)
    ]
    figures = {}
    for key, (one, other) in pairs.items():
        away_small, home_small, away, home = map(min, *(m[key] for m in moments))
        small = max(away_small - home_small, 0.0) / (2 * _TRIPS)
        large = max(away - home, 0.0) / (2 * _TRIPS)
        few, many = (seconds_of(_at_once(one, other, n)) for n in (1, 1 + _COPIES))
        figures[key] = {
            "bytes_per_second": typical_bytes / max(large - small, _LEAST_SECONDS),
            "latency_seconds": small,
            "gap_seconds": min(max(many - few, 0.0) / _COPIES, small),
        }
    return tuple(Link(*ends, **figures[key]) for ends, key in keys.items())


def _there_and_back(one: Device, other: Device, count: int) -> Callable[[], Any]:
    """A tensor that goes to the other device and back; each end changes it.

    By a variable of its own, or TensorFlow would join what both ends do.
    """
    pair = (other, one)
    held, floors = _ones(one, count), [_ones(end, _SMALL_BYTES) for end in pair]

    @tf.function
    def run() -> Any:
        with tf.device(one.target):
            value = held.read_value()
        for _ in range(_TRIPS):
            for end, floor in zip(pair, floors):
                with tf.device(end.target):
                    value = tf.maximum(value, floor.read_value())
        with tf.device(one.target):
            return value[:1]

    return lambda: run().numpy()


def _at_once(one: Device, other: Device, copies: int) -> Callable[[], Any]:
    """Several small tensors that go from one device to the other at once."""
    sent = [_ones(one, _SMALL_BYTES) for _ in range(copies)]
    floor = _ones(other, _SMALL_BYTES)

    @tf.function
    def run() -> Any:
        ends = []
        for held in sent:
            with tf.device(one.target):
                value = held.read_value()
            with tf.device(other.target):
                ends.append(tf.maximum(value, floor.read_value()))
        with tf.device(other.target):
            return tf.add_n(ends)

    return lambda: run().numpy()


def _ones(device: Device, count: int) -> Any:
    """A variable of so many bytes."""
    with tf.device(device.target):
        return tf.Variable(tf.ones([max(count // 4, 1)]))
