"""How fast devices reach each other, and what a copy costs those at its ends.

A road is timed in both directions at once: a tensor goes there and back several times
within one step, so that neither the start of a step nor the way home to this program
counts. Several little ones that cross at once tell how much of a trip's start passes
while others are on their way. Then both ends compute while others send: what that takes
longer than computing alone is what the copies took of the processors. So is what both
take longer to compute at once than alone what they share of them.

A machine has moments when something else disturbs it, and one of them may be longer
than a timing: each trip is timed at several, and the fastest counts.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import tensorflow as tf

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.tf.stopwatch import seconds_of

__all__ = ["roads"]

_MOMENTS = 2
_TRIPS = 6  # there and back
_COPIES = 24
_SIZE = 256  # of the matrices that keep a processor busy
_MOST_PRODUCTS = 400
_LEAST_SECONDS = 1e-7
_LARGE, _PRODUCTS = 512, 8  # matrices large enough for every thread there is
_LEAST_CROWDING = 0.1  # less is noise


def roads(
    cluster: Cluster, alike: Mapping[str, int], typical_bytes: int
) -> tuple[Link, ...]:
    """A road for each ordered pair of devices; alike pairs are measured once.

    Args:
        cluster: the devices, all here.
        alike: device name -> a number that devices of one kind share.
        typical_bytes: the size of what the roads will carry.
    """
    keys: dict[tuple[str, str], tuple[int, int, bool]] = {}
    known: dict[tuple[int, int, bool], _Road] = {}
    for one in cluster:
        for other in cluster:
            if one.name == other.name:
                continue
            low, high = sorted((alike[one.name], alike[other.name]))
            key = keys[one.name, other.name] = (low, high, one.host == other.host)
            if key not in known:
                known[key] = _Road(one, other, typical_bytes)
    for _ in range(_MOMENTS):
        for road in known.values():
            road.time()
    figures = {key: road.figures() for key, road in known.items()}
    return tuple(Link(*ends, *figures[key]) for ends, key in keys.items())


class _Road:
    """Trips between two devices, of a few bytes and of a usual number."""

    def __init__(self, one: Device, other: Device, count: int) -> None:
        self.ends, self.count = (one, other), count
        self._trips = [_trips(one, end, n) for n in (4, count) for end in (other, one)]
        self._seconds = [inf] * len(self._trips)

    def time(self) -> None:
        """Time each trip once more."""
        self._seconds = [
            min(least, seconds_of(trip))
            for least, trip in zip(self._seconds, self._trips)
        ]

    def figures(self) -> tuple[float, ...]:
        """The figures of a link, in their order."""
        away, at_home = self._seconds[::2], self._seconds[1::2]
        small, large = (max(a - b, 0.0) / (2 * _TRIPS) for a, b in zip(away, at_home))
        moving, gap = max(large - small, _LEAST_SECONDS), _gap(*self.ends, small)
        busy = _busy_share(*self.ends, self.count, gap + moving)
        return self.count / moving, small, busy, _crowding(*self.ends), gap


def _trips(one: Device, other: Device, count: int) -> Callable[[], Any]:
    """A tensor that goes to the other device and back; each end changes it.

    By a variable of its own, or TensorFlow would join what both ends do.
    """
    pair = (other, one)
    held, floors = _ones(one, count), [_ones(end, 4) for end in pair]

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


def _ones(device: Device, count: int) -> Any:
    """A variable of so many bytes, made where it lives."""
    with tf.device(device.target):
        return tf.Variable(tf.ones([max(count // 4, 1)]))


def _gap(one: Device, other: Device, latency: float) -> float:
    """Seconds by which one more of several little copies makes them longer."""
    numbers = (1, 1 + _COPIES)
    few, many = (seconds_of(_busy((one, other), 1, n, 4)) for n in numbers)
    return min(max(many - few, 0.0) / _COPIES, latency)


def _busy_share(one: Device, other: Device, count: int, hop: float) -> float:
    """The share of a hop that both ends cannot compute in, 0 to 1."""
    pair = (one, other)
    product = seconds_of(_busy(pair, _COPIES, 0, 0)) / _COPIES
    products = int(2 * _COPIES * hop / max(product, _LEAST_SECONDS)) + _COPIES
    products = min(products, _MOST_PRODUCTS)
    alone = seconds_of(_busy(pair, products, 0, 0))
    beside = seconds_of(_busy(pair, products, _COPIES, count))
    return min(max((beside - alone) / (_COPIES * hop), 0.0), 1.0)


def _busy(
    pair: tuple[Device, Device], products: int, copies: int, count: int
) -> Callable[[], Any]:
    """Both ends multiply matrices while tensors go from the first to the second."""
    one, other = pair
    factors = []
    for end in pair:
        with tf.device(end.target):
            factors.append(tf.Variable(tf.eye(_SIZE)))
    sent = [_ones(one, count) for _ in range(copies)]
    floor = _ones(other, 4)

    @tf.function
    def run() -> Any:
        ends = []
        for end, factor in zip(pair, factors):
            with tf.device(end.target):
                value = made = factor.read_value()
                for _ in range(products):
                    made = tf.matmul(made, value)
                ends.append(made[0, :1])
        for held in sent:
            with tf.device(one.target):
                value = held.read_value()
            with tf.device(other.target):
                ends.append(tf.maximum(value, floor.read_value())[:1])
        with tf.device(other.target):
            return tf.add_n(ends)

    return lambda: run().numpy()


def _crowding(one: Device, other: Device) -> float:
    """What both take longer to compute at once than each alone, as a share, 0 to 1."""
    ends = (one, other)
    each = [seconds_of(_products({end: _PRODUCTS})) for end in ends]
    pair = {end: round(_PRODUCTS * max(each) / own) for end, own in zip(ends, each)}
    alone = max(seconds_of(_products({end: pair[end]})) for end in pair)
    lost = seconds_of(_products(pair)) / max(alone, _LEAST_SECONDS) - 1.0
    return min(lost, 1.0) if lost > _LEAST_CROWDING else 0.0


def _products(numbers: Mapping[Device, int]) -> Callable[[], Any]:
    """Each device multiplies so many large matrices, one after the other."""
    factors = []
    for end in numbers:
        with tf.device(end.target):
            factors.append(tf.Variable(tf.eye(_LARGE)))

    @tf.function
    def run() -> Any:
        ends = []
        for (end, number), factor in zip(numbers.items(), factors):
            with tf.device(end.target):
                value = made = factor.read_value()
                for _ in range(number):
                    made = tf.matmul(made, value)
                ends.append(made[0, :1])
        return ends

    return lambda: [end.numpy() for end in run()]
