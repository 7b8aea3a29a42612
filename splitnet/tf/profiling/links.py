"""Measure links between devices: latency, gap and bandwidth (LogGP).

A small tensor goes to the other device and back several times within one step, so that
neither the start of a step nor the way home to this program counts: the latency. Of
several at once each further one takes the gap, and of several large ones the time of
their bytes too. Each step is timed in several moments, and the fastest counts: other
load may last longer than one timing.
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
_COPIES = 12
_SMALL_BYTES = 4
_LEAST_SECONDS = 1e-7


def seconds_of(run: Callable[[], Any], runs: int | None = None) -> float:
    """The fastest of several runs, after one that traces.

    Other load only ever makes a run longer.
    """
    wait_for_workers()
    run()
    times = []
    for _ in range(runs or _RUNS):
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
    steps = {
        key: [
            *(_there_and_back(one, end) for end in (other, one)),
            *(
                _at_once(one, other, copies, size)
                for size in (_SMALL_BYTES, typical_bytes)
                for copies in (1, 1 + _COPIES)
            ),
        ]
        for key, (one, other) in pairs.items()
    }
    moments = [
        {key: [seconds_of(run) for run in runs] for key, runs in steps.items()}
        for _ in range(_MOMENTS)
    ]
    figures = {}
    for key in pairs:
        fastest = map(min, *(moment[key] for moment in moments))
        away, home, small, smalls, large, larges = fastest
        latency = max(away - home, 0.0) / (2 * _TRIPS)
        gap = min(max(smalls - small, 0.0) / _COPIES, latency)
        each = max(larges - large, 0.0) / _COPIES
        figures[key] = {
            "bytes_per_second": typical_bytes / max(each - gap, _LEAST_SECONDS),
            "latency_seconds": latency,
            "gap_seconds": gap,
        }
    return tuple(Link(*ends, **figures[key]) for ends, key in keys.items())


def _there_and_back(one: Device, other: Device) -> Callable[[], Any]:
    """A small tensor that goes to the other device and back; each end changes it.

    By a variable of its own, or TensorFlow would join what both ends do.
    """
    pair = (other, one)
    held, *floors = (_ones(end, _SMALL_BYTES) for end in (one, *pair))

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


def _at_once(one: Device, other: Device, copies: int, size: int) -> Callable[[], Any]:
    """Several tensors that go from one device to the other at once."""
    sent = [_ones(one, size) for _ in range(copies)]
    floor = _ones(other, _SMALL_BYTES)

    @tf.function
    def run() -> Any:
        ends = []
        for held in sent:
            with tf.device(one.target):
                value = held.read_value()
            with tf.device(other.target):
                ends.append(tf.maximum(value[:1], floor.read_value()))
        with tf.device(other.target):
            return tf.add_n(ends)

    return lambda: run().numpy()


def _ones(device: Device, count: int) -> Any:
    """A variable of so many bytes."""
    with tf.device(device.target):
        return tf.Variable(tf.ones([max(count // 4, 1)]))
