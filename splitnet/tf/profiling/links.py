"""Measure links between devices: latency, gap and bandwidth (LogGP).

A small tensor goes to the other device and back several times within one step, so that
neither the start of a step nor the way home to this program counts: the latency. Of
several at once each further one takes the gap, and of several large ones the time of
their bytes too. Steps are timed in turn, and the fastest of each counts: other load may
last longer than one timing.
"""

import timeit
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import tensorflow as tf

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.tf.workers.connect import wait_for_workers

_RUNS = 30
_TRIPS = 6  # there and back
_COPIES = 12
_LARGE = 2**18  # elements of 4 bytes
_LEAST_SECONDS = 1e-7


def seconds_of(*runs: Callable[[], Any], rounds: int) -> list[float]:
    """The fastest time of each, over rounds of all after one that traces.

    Other load only ever makes a run longer.
    """
    wait_for_workers()
    for run in runs:
        run()
    times = [[timeit.timeit(run, number=1) for run in runs] for _ in range(rounds)]
    return [min(of_one) for of_one in zip(*times)]


def measure_links(cluster: Cluster) -> tuple[Link, ...]:
    """A link for each ordered pair of devices; pairs of equal ends are measured once.

    Ends are equal if they are of one host, kind and speed.
    """
    keys, steps = {}, {}
    for one, other in permutations(cluster, 2):
        ends = [(d.host, d.kind, d.flops_per_second) for d in (one, other)]
        key = keys[one.name, other.name] = tuple(sorted(ends))
        if key not in steps:
            steps[key] = [
                _sent([one, *(other, one) * _TRIPS]),
                _sent([one] * (1 + 2 * _TRIPS)),
                *(
                    _sent([one, other], copies, size)
                    for size in (1, _LARGE)
                    for copies in (1, 1 + _COPIES)
                ),
            ]
    figures = {}
    for key, runs in steps.items():
        away, home, small, smalls, large, larges = seconds_of(*runs, rounds=_RUNS)
        latency = max(away - home, 0.0) / (2 * _TRIPS)
        gap = min(max(smalls - small, 0.0) / _COPIES, latency)
        each = max(larges - large, 0.0) / _COPIES
        figures[key] = {
            "bytes_per_second": 4 * _LARGE / max(each - gap, _LEAST_SECONDS),
            "latency_seconds": latency,
            "gap_seconds": gap,
        }
    return tuple(Link(*ends, **figures[key]) for ends, key in keys.items())


def _sent(path: Sequence[Device], copies: int = 1, size: int = 1) -> Callable[[], Any]:
    """A step that sends tensors of so many elements along a path, all at once.

    Each stop changes them by a variable of its own, or TensorFlow would join what
    several stops do; one element goes on.
    """
    start, *stops = path
    with tf.device(start.target):
        sent = [tf.Variable(tf.ones([size])) for _ in range(copies)]
    floors = []
    for stop in stops:
        with tf.device(stop.target):
            floors.append(tf.Variable(tf.ones([1])))

    @tf.function
    def run() -> Any:
        ends = []
        for held in sent:
            with tf.device(start.target):
                value = held.read_value()
            for stop, floor in zip(stops, floors):
                with tf.device(stop.target):
                    value = tf.maximum(value[:1], floor.read_value())
            ends.append(value)
        with tf.device(path[-1].target):
            return tf.add_n(ends)

    return lambda: run().numpy()
