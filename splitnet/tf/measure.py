"""Seconds of every call, and bytes per second of every road, as this machine has them.

Each kind of call runs alone on one device of each kind: its forward pass, then forward
and backward together, with made-up values of the right shapes. What a step costs before
its first kernel is taken off. Calls that compute the same are measured once.
"""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.core.cluster import Cluster, Link
from splitnet.core.cost import Measured, signature
from splitnet.core.devices import Device
from splitnet.core.errors import DeviceError, listed
from splitnet.core.graph import Call
from splitnet.tf.blueprint import Site, blueprint_of
from splitnet.tf.copying import Copies
from splitnet.tf.marks import canonical
from splitnet.tf.read import graph_of

__all__ = ["measure"]

_ROUNDS, _ENOUGH_SECONDS = 15, 0.3
_LARGE_BYTES, _OPEN_SIZE = 16 * 2**20, 8


def measure(
    source: Any,
    cluster: Cluster,
    batch: int = 32,
    *,
    optimizer: str = "adam",
    on_progress: Callable[[float, str], None] | None = None,
) -> Measured:
    """Time every call of a source on each kind of device, and the roads between them.

    The source is left as it was. Devices of one kind and speed count as one kind.

    Args:
        source: a `Net` or a Keras model.
        cluster: devices that are all here: `local_cluster()`, or workers after
            `connect`.
        batch: samples per step; times hold for this batch.
        optimizer: whose update is timed, by Keras' name.
        on_progress: called with the share that is done, 0 to 1, and what comes next.

    Returns:
        Seconds per call and bytes per second; `save_costs` keeps it, and
        `plan(costs=...)` uses it.

    Raises:
        DeviceError: devices of the cluster are not here.
        DeclarationError: the source cannot be read.
    """
    _check_here(cluster)
    tell = on_progress or (lambda share, text: None)
    blueprint = blueprint_of(source)
    calls = {call.name: call for call in graph_of(blueprint, batch).calls}
    jobs: dict[str, Site] = {}
    for site in blueprint.sites:
        call = calls[site.call]
        if not site.node.is_input and call.kind != "InputLayer":
            jobs.setdefault(signature(call), site)
    groups = _groups(cluster)
    found: dict[str, dict[tuple[str, str], float]] = {"forward": {}, "backward": {}}
    speeds: dict[str, float] = {}
    total, done = len(groups) * (len(jobs) + 1), 0
    for where, members in groups.items():
        device = members[0]
        idle = _seconds(_nothing(device))
        for name, site in jobs.items():
            tell(done / total, f"{site.call} on {device.name}")
            forward, backward = _call_seconds(
                calls[site.call], site, device, batch, idle
            )
            for label in where:
                found["forward"][name, label] = forward
                found["backward"][name, label] = backward
            done += 1
        tell(done / total, f"update on {device.name}")
        speed = _update_speed(device, optimizer, idle)
        speeds |= dict.fromkeys(where, speed)
        done += 1
    links = tuple(_links(cluster, groups))
    tell(1.0, "done")
    return Measured(
        forward=found["forward"],
        backward=found["backward"],
        update_bytes_per_second=speeds,
        links=links,
        batch=batch,
    )


def _check_here(cluster: Cluster) -> None:
    here = {canonical(d.name) for d in tf.config.list_logical_devices()}
    missing = [d for d in cluster if canonical(d.target) not in here]
    if missing:
        raise DeviceError(
            listed(
                "what is not here cannot be measured. Use sn.local_cluster(), or join "
                "the workers with sn.connect(cluster) first.",
                [f"{d.name} ({d.target})" for d in missing],
            )
        )


def _groups(cluster: Cluster) -> dict[tuple[str, ...], list[Device]]:
    """Devices that are alike, under the labels that the table gives them.

    A kind whose devices are all alike goes by the kind's name, others by their own.
    """
    alike: dict[tuple[Any, ...], list[Device]] = {}
    for device in cluster:
        key = (device.kind, device.flops_per_second, bool(device.host))
        alike.setdefault(key, []).append(device)
    kinds = [key[0] for key in alike]
    return {
        (key[0],)
        if kinds.count(key[0]) == 1
        else tuple(device.name for device in members): members
        for key, members in alike.items()
    }


def _seconds(run: Callable[[], Any]) -> float:
    """The fastest of several runs, after two that trace and warm up.

    What else this machine does only ever makes a run longer.
    """
    run()
    run()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _ROUNDS and time.perf_counter() - began < _ENOUGH_SECONDS:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _finish(outputs: Any, device: str) -> Any:
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


def _nothing(device: Device) -> Callable[[], Any]:
    @tf.function
    def run() -> Any:
        with tf.device(device.target):
            return tf.constant(0.0)

    return lambda: run().numpy()


def _call_seconds(
    call: Call, site: Site, device: Device, batch: int, idle: float
) -> tuple[float, float]:
    """Forward and backward seconds of one call, alone on a device."""
    node = site.node
    with tf.device(device.target):
        operation = Copies().of(node.operation)
        values = {id(t): _made_up(t, batch) for t in node.input_tensors}
        inputs = {key: tf.Variable(value) for key, value in values.items()}
        args, kwargs = node.arguments.fill_in(
            {key: tf.convert_to_tensor(v) for key, v in inputs.items()}
        )
        operation(*args, **kwargs)  # builds it, here
    trained = list(getattr(operation, "trainable_variables", ()))
    floats = [v for v in inputs.values() if v.dtype.is_floating]

    def forward_pass() -> Any:
        tensors = {key: v.read_value() for key, v in inputs.items()}
        args, kwargs = node.arguments.fill_in(tensors)
        return operation(*args, **kwargs)

    @tf.function
    def forward() -> Any:
        with tf.device(device.target):
            outputs = forward_pass()
        return _finish(outputs, device.target)

    @tf.function
    def both() -> Any:
        with tf.device(device.target):
            with tf.GradientTape() as tape:
                outputs = forward_pass()
                flat = [t for t in keras.tree.flatten(outputs) if t.dtype.is_floating]
                loss = tf.add_n([tf.reduce_sum(tf.cast(t, "float32")) for t in flat])
            gradients = tape.gradient(loss, [*floats, *(v.value for v in trained)])
        return _finish([g for g in gradients if g is not None], device.target)

    alone = max(_seconds(lambda: forward().numpy()) - idle, 0.0)
    if not call.backward_flops and not trained:
        return alone, 0.0
    together = max(_seconds(lambda: both().numpy()) - idle, 0.0)
    return alone, max(together - alone, 0.0)


def _made_up(tensor: Any, batch: int) -> Any:
    shape = [batch, *(extent or _OPEN_SIZE for extent in tensor.shape[1:])]
    if tensor.shape and tensor.shape[0]:
        shape[0] = tensor.shape[0]
    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
        return tf.fill(shape, "a")
    draw = np.random.default_rng(0)
    values = (
        draw.normal(size=shape) if dtype.is_floating else draw.integers(0, 2, shape)
    )
    return tf.cast(tf.constant(values), dtype)


def _update_speed(device: Device, optimizer: str, idle: float) -> float:
    """Bytes of weights that an optimizer updates in a second."""
    with tf.device(device.target):
        weight = keras.Variable(np.zeros(_LARGE_BYTES // 4, "float32"))
        gradient = tf.Variable(np.ones(_LARGE_BYTES // 4, "float32"))
        rule = keras.optimizers.get(optimizer.partition("+")[0])
        rule.build([weight])

    @tf.function
    def run() -> Any:
        with tf.device(device.target):
            rule.update_step(gradient.read_value(), weight.value, rule.learning_rate)
        return _finish([], device.target)

    seconds = _seconds(lambda: run().numpy()) - idle
    return _LARGE_BYTES / max(seconds, 1e-9)


def _links(cluster: Cluster, groups: dict[tuple[str, ...], list[Device]]) -> list[Link]:
    """A road for each ordered pair of devices; alike pairs are measured once."""
    number = {d.name: i for i, each in enumerate(groups.values()) for d in each}
    known: dict[tuple[int, int, bool], tuple[float, float]] = {}
    links = []
    for one in cluster:
        for other in cluster:
            if one.name == other.name:
                continue
            key = (number[one.name], number[other.name], one.host == other.host)
            if key not in known:
                known[key] = _road(one, other)
            links.append(Link(one.name, other.name, *known[key]))
    return links


def _road(one: Device, other: Device) -> tuple[float, float]:
    """Bytes per second, and seconds before the first, from one device to another."""
    idle = _seconds(_sending(one, one, 4))
    small = _seconds(_sending(one, other, 4))
    large = _seconds(_sending(one, other, _LARGE_BYTES))
    return _LARGE_BYTES / max(large - small, 1e-9), max(small - idle, 0.0)


def _sending(one: Device, other: Device, count: int) -> Callable[[], Any]:
    with tf.device(one.target):
        held = tf.Variable(np.ones(max(count // 4, 1), "float32"))

    @tf.function
    def run() -> Any:
        with tf.device(one.target):
            value = held.read_value()
        with tf.device(other.target):
            return tf.identity(value)[:1]

    return lambda: run().numpy()
