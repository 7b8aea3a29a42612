"""How fast devices reach each other, and what a copy costs those at its ends.

A road is timed in both directions at once: a tensor goes there and back several times
within one step, so that neither the start of a step nor the way home to this program
counts. Then both ends compute while others send: what that takes longer than computing
alone is what the copies took of the processors. So is what both take longer to compute
at once than alone what they share of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from splitnet.core.cluster import Cluster, Link
from splitnet.core.devices import Device
from splitnet.tf.stopwatch import seconds_of

__all__ = ["roads"]

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
    known: dict[tuple[int, int, bool], tuple[float, ...]] = {}
    links = []
    for one in cluster:
        for other in cluster:
            if one.name == other.name:
                continue
            low, high = sorted((alike[one.name], alike[other.name]))
            key = (low, high, one.host == other.host)
            if key not in known:
                known[key] = _road(one, other, typical_bytes)
            links.append(Link(one.name, other.name, *known[key]))
    return tuple(links)


def _road(one: Device, other: Device, count: int) -> tuple[float, ...]:
    """The figures of a link, in their order."""
    small, large = _hop_seconds(one, other, 4), _hop_seconds(one, other, count)
    hop = max(large, small, _LEAST_SECONDS)
    speed = count / max(large - small, _LEAST_SECONDS)
    return speed, small, _busy_share(one, other, count, hop), _crowding(one, other)


def _hop_seconds(one: Device, other: Device, count: int) -> float:
    away = seconds_of(_trips(one, other, count))
    at_home = seconds_of(_trips(one, one, count))
    return max(away - at_home, 0.0) / (2 * _TRIPS)


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
