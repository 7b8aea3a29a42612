"""Measure the seconds of every call, and the links between devices, on this machine.

Each distinct call runs alone on one device of each kind: its forward pass, then forward
and backward together, with synthetic values. What a step costs before its first kernel
is subtracted. Alone, a call finds its data in the cache and is not fused with its
neighbours, so the sum of all calls is not quite a step; what compares devices is each
call's own figure.
"""

from collections.abc import Callable
from itertools import accumulate, count
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster, Device
from splitnet.core.costs import Measured, optimizer_name, signature
from splitnet.core.errors import DeviceError, listed
from splitnet.core.graph import Call, Graph
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.profiling.links import measure_links
from splitnet.tf.profiling.synthetic import synthetic_tensor
from splitnet.tf.profiling.timing import empty_step, finish, seconds_of
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.read import graph_of
from splitnet.tf.reading.source import Site, blueprint_of, sized

__all__ = ["measure"]

_UPDATED_BYTES = 16 * 2**20
_REPEAT_SECONDS = 8.0  # for repetitions of all calls, beside the first run of each
_LEAST_SENT, _MOST_SENT = 64 * 2**10, 16 * 2**20


def measure(
    source: Any,
    cluster: Cluster,
    batch: Positive = 32,
    *,
    optimizer: str = "adam",
    on_progress: Callable[[float, str], None] | None = None,
) -> Measured:
    """Time every call of a source on each kind of device, and the links between them.

    The source is left as it was. Devices of one kind and speed count as one kind. Times
    are those of training.

    Args:
        source: a `Net` or a Keras model.
        cluster: devices that are all available: `local_cluster()`, or workers after
            `connect`.
        batch: samples per step; times hold for this batch.
        optimizer: whose update is timed, by Keras' name.
        on_progress: called with the share that is done, 0 to 1, and what comes next.

    Returns:
        Seconds per call, and links; `save_costs` keeps it, and `plan(costs=...)` uses
        it.

    Raises:
        DeviceError: devices of the cluster are not available.
        DeclarationError: the source cannot be read.
    """
    _check_available(cluster)
    optimizer = optimizer_name(optimizer)
    blueprint = sized(blueprint_of(source, "expand"))
    graph = graph_of(blueprint, batch)
    jobs = _jobs(blueprint.sites, graph)
    groups = _groups(cluster)
    enough = min(_REPEAT_SECONDS / max(2 * len(jobs) * len(groups), 1), 0.3)
    steps = len(groups) * (len(jobs) + 1) + 1
    done = count()

    def tell(text: str) -> None:
        if on_progress:
            on_progress(next(done) / steps, text)

    forward: dict[tuple[str, str], float] = {}
    backward: dict[tuple[str, str], float] = {}
    speeds: dict[str, float] = {}
    for labels, (device, *_) in groups.items():
        idle = seconds_of(empty_step(device))
        for name, (call, site) in jobs.items():
            tell(f"{site.call} on {device.name}")
            ahead, back = _call_seconds(
                call, site, device, idle, batch=batch, enough=enough
            )
            forward |= {(name, label): ahead for label in labels}
            backward |= {(name, label): back for label in labels}
        tell(f"update on {device.name}")
        speeds |= dict.fromkeys(labels, _update_speed(device, optimizer, idle))
    tell("links between devices")
    alike = {d.name: i for i, each in enumerate(groups.values()) for d in each}
    links = measure_links(cluster, alike, _typical_bytes(graph))
    tell("done")
    return Measured(
        forward=forward,
        backward=backward,
        update_bytes_per_second=speeds,
        links=links,
        batch=batch,
    )


def _jobs(sites: tuple[Site, ...], graph: Graph) -> dict[str, tuple[Call, Site]]:
    """One call per signature; what towers share is estimated."""
    jobs: dict[str, tuple[Call, Site]] = {}
    for site in sites:
        call = graph.call.get(site.call)
        if call and not site.node.is_input:
            jobs.setdefault(signature(call), (call, site))
    return jobs


def _typical_bytes(graph: Graph) -> int:
    """The size of what goes from call to call: half of all bytes go in larger ones."""
    sizes = sorted(tensor.bytes for tensor in graph.tensors)
    sums = list(accumulate(sizes, initial=0))
    middle = next((s for s, n in zip(sizes, sums[1:]) if 2 * n >= sums[-1]), 0)
    return min(max(middle, _LEAST_SENT), _MOST_SENT)


def _check_available(cluster: Cluster) -> None:
    here = {canonical(d.name) for d in tf.config.list_logical_devices()}
    missing = [d for d in cluster if canonical(d.target) not in here]
    if missing:
        raise DeviceError(
            listed(
                "devices that are not available cannot be measured. Use "
                "sn.local_cluster(), or join the workers with sn.connect(cluster) "
                "first.",
                [f"{d.name} ({d.target})" for d in missing],
            )
        )


def _groups(cluster: Cluster) -> dict[tuple[str, ...], list[Device]]:
    """Equal devices, under the labels that the table gives them.

    A kind whose devices are all equal goes by the kind's name, others by their own.
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


def _call_seconds(
    call: Call, site: Site, device: Device, idle: float, *, batch: int, enough: float
) -> tuple[float, float]:
    """Forward and backward seconds of one call, alone on a device."""
    node = site.node
    with tf.device(device.target):
        clone = Cloner(lambda layer: device.target).of(node.operation)
        operation = keras_api.operation_fn(clone, training=True)
        values = {id(t): synthetic_tensor(t, batch) for t in node.input_tensors}
        inputs = {key: tf.Variable(value) for key, value in values.items()}
        args, kwargs = node.arguments.fill_in(
            {key: tf.convert_to_tensor(v) for key, v in inputs.items()}
        )
        operation(*args, **kwargs)  # builds it, here
    trained = list(getattr(clone, "trainable_variables", ()))
    floats = [v for v in inputs.values() if v.dtype.is_floating]

    def forward_pass() -> Any:
        tensors = {key: v.read_value() for key, v in inputs.items()}
        args, kwargs = node.arguments.fill_in(tensors)
        return operation(*args, **kwargs)

    @tf.function
    def forward() -> Any:
        with tf.device(device.target):
            outputs = forward_pass()
        return finish(outputs, device.target)

    @tf.function
    def both() -> Any:
        with tf.device(device.target):
            with tf.GradientTape() as tape:
                loss = _sum_of(forward_pass())
            gradients = tape.gradient(loss, [*floats, *(v.value for v in trained)])
        return finish([g for g in gradients if g is not None], device.target)

    alone = seconds_of(lambda: forward().numpy(), enough_seconds=enough)
    alone = max(alone - idle, 0.0)
    if not call.backward_flops and not trained:
        return alone, 0.0
    with_backward = seconds_of(lambda: both().numpy(), enough_seconds=enough) - idle
    return alone, max(with_backward - alone, 0.0)


def _sum_of(outputs: Any) -> Any:
    """A loss that depends on every output."""
    floats = [t for t in keras.tree.flatten(outputs) if t.dtype.is_floating]
    return tf.add_n([tf.reduce_sum(tf.cast(t, "float32")) for t in floats])


def _update_speed(device: Device, optimizer: str, idle: float) -> float:
    """Bytes of weights that an optimizer updates in a second."""
    with tf.device(device.target):
        weight = keras.Variable(tf.zeros([_UPDATED_BYTES // 4]))
        gradient = tf.Variable(tf.ones([_UPDATED_BYTES // 4]))
        rule = keras.optimizers.get(optimizer.partition("+")[0])
        rule.build([weight])

    @tf.function
    def run() -> Any:
        with tf.device(device.target):
            rule.update_step(gradient.read_value(), weight.value, tf.constant(1e-3))
        return finish([], device.target)

    seconds = seconds_of(lambda: run().numpy()) - idle
    return _UPDATED_BYTES / max(seconds, 1e-9)
