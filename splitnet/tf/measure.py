"""Seconds of every call, and bytes per second of every road, as this machine has them.

Each kind of call runs alone on one device of each kind: its forward pass, then forward
and backward together, with made-up values of the right shapes. What a step costs before
its first kernel is taken off. Calls that compute the same are measured once.

Then all calls run together, on one device of each kind and at several moments, and the
times are scaled to add up to that: alone, a call finds its data in the cache, is not
fused with its neighbours, and is timed in a moment of its own. Steps of seconds are
spared that; their calls are too large for a cache anyway.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.cluster import Cluster, Device
from splitnet.core.cost import Measured, signature
from splitnet.core.errors import DeviceError, listed
from splitnet.core.graph import Call, Graph
from splitnet.simulator.step import step_of
from splitnet.tf.blueprint import Site, blueprint_of
from splitnet.tf.copying import Copies
from splitnet.tf.internals import keras_api
from splitnet.tf.marks import canonical
from splitnet.tf.read import graph_of
from splitnet.tf.roads import roads
from splitnet.tf.stopwatch import finish, made_up, nothing, seconds_of
from splitnet.tf.whole import Starts, Wholes

__all__ = ["measure"]

_UPDATED_BYTES = 16 * 2**20
_LOOKING_SECONDS = 8.0  # for repetitions of all calls, beside the first run of each
_LONG_STEP_SECONDS = 2.0
_LEAST_SENT, _MOST_SENT = 64 * 2**10, 16 * 2**20


def measure(
    source: Any,
    cluster: Cluster,
    batch: int = 32,
    *,
    optimizer: str = "adam",
    on_progress: Callable[[float, str], None] | None = None,
) -> Measured:
    """Time every call of a source on each kind of device, and the roads between them.

    The source is left as it was. Devices of one kind and speed count as one kind. Times
    are those of training.

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
    blueprint = blueprint_of(source, "expand")
    graph = graph_of(blueprint, batch)
    jobs = _jobs(blueprint.sites, graph)
    groups = _groups(cluster)
    enough = min(_LOOKING_SECONDS / max(2 * len(jobs) * len(groups), 1), 0.3)
    tell = _teller(on_progress, len(groups) * (len(jobs) + 2) + 1)
    alone: dict[str, dict[str, tuple[float, float]]] = {}
    idle: dict[str, float] = {}
    speeds: dict[str, float] = {}
    first = [members[0] for members in groups.values()]
    starts, wholes = Starts(cluster, first), Wholes(source, graph, cluster)
    starts.run()
    for where, device in zip(groups, first):
        idle[device.name] = seconds_of(nothing(device))
        mine = alone[device.name] = {}
        for name, (call, site) in jobs.items():
            tell(f"{site.call} on {device.name}")
            mine[name] = _call_seconds(
                call, site, device, idle[device.name], batch=batch, enough=enough
            )
        tell(f"all calls on {device.name}")
        if _added_up(mine, graph, device) < _LONG_STEP_SECONDS:
            wholes.add(device)
        tell(f"update on {device.name}")
        speed = _update_speed(device, optimizer, idle[device.name])
        speeds |= dict.fromkeys(where, speed)
        starts.run()
        wholes.run()
    tell("roads between devices")
    alike = {d.name: i for i, each in enumerate(groups.values()) for d in each}
    links = roads(cluster, alike, _usual_bytes(graph))
    starts.run()
    wholes.run()
    tell("done")
    forward: dict[tuple[str, str], float] = {}
    backward: dict[tuple[str, str], float] = {}
    for where, device in zip(groups, first):
        found, scale = wholes.of(device), 1.0
        if found is not None:
            scale = _scale(found - idle[device.name], alone[device.name], graph, device)
        for label in where:
            for name, (ahead, back) in alone[device.name].items():
                forward[name, label] = ahead * scale
                backward[name, label] = back * scale
    return Measured(
        forward=forward,
        backward=backward,
        update_bytes_per_second=speeds,
        links=links,
        batch=batch,
        start_seconds={
            label: starts.of(device)
            for where, device in zip(groups, first)
            for label in where
        },
    )


def _jobs(sites: tuple[Site, ...], graph: Graph) -> dict[str, tuple[Call, Site]]:
    """A call for each that computes something else; what towers share is estimated."""
    jobs: dict[str, tuple[Call, Site]] = {}
    for site in sites:
        call = graph.call.get(site.call)
        if call and not site.node.is_input and call.kind != "InputLayer":
            jobs.setdefault(signature(call), (call, site))
    return jobs


def _teller(
    on_progress: Callable[[float, str], None] | None, count: int
) -> Callable[[str], None]:
    """Tell what comes next, and how much of `count` such things is done."""
    done = -1

    def tell(text: str) -> None:
        nonlocal done
        done += 1
        if on_progress:
            on_progress(done / count, text)

    return tell


def _scale(
    seconds: float, alone: dict[str, tuple[float, float]], graph: Graph, device: Device
) -> float:
    """What to multiply times of calls alone by, so that they add up to `seconds`."""
    total = _added_up(alone, graph, device)
    return max(seconds, 0.0) / total if total else 1.0


def _added_up(
    alone: dict[str, tuple[float, float]], graph: Graph, device: Device
) -> float:
    """Seconds of all calls, forward and where a gradient flows backward, one by one."""
    costs = Measured(
        forward={(name, device.kind): f for name, (f, _) in alone.items()},
        backward={(name, device.kind): b for name, (_, b) in alone.items()},
    )
    here = Cluster((device,))
    step = step_of(graph, here, costs, training=True, optimizer="sgd")
    return sum(step.forward[0]) + sum(step.backward[0])


def _usual_bytes(graph: Graph) -> int:
    """The size of what goes from call to call: half of all bytes go in larger ones."""
    sizes = sorted(tensor.bytes for tensor in graph.tensors)
    sums = list(accumulate(sizes, initial=0))
    middle = next((s for s, n in zip(sizes, sums[1:]) if 2 * n >= sums[-1]), 0)
    return min(max(middle, _LEAST_SENT), _MOST_SENT)


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


def _call_seconds(
    call: Call, site: Site, device: Device, idle: float, *, batch: int, enough: float
) -> tuple[float, float]:
    """Forward and backward seconds of one call, alone on a device."""
    node = site.node
    with tf.device(device.target):
        twin = Copies().of(node.operation)
        operation = keras_api.operation_fn(twin, training=True)
        values = {id(t): made_up(t, batch) for t in node.input_tensors}
        inputs = {key: tf.Variable(value) for key, value in values.items()}
        args, kwargs = node.arguments.fill_in(
            {key: tf.convert_to_tensor(v) for key, v in inputs.items()}
        )
        operation(*args, **kwargs)  # builds it, here
    trained = list(getattr(twin, "trainable_variables", ()))
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
                outputs = forward_pass()
                flat = [t for t in keras.tree.flatten(outputs) if t.dtype.is_floating]
                loss = tf.add_n([tf.reduce_sum(tf.cast(t, "float32")) for t in flat])
            gradients = tape.gradient(loss, [*floats, *(v.value for v in trained)])
        return finish([g for g in gradients if g is not None], device.target)

    alone = seconds_of(lambda: forward().numpy(), enough_seconds=enough)
    alone = max(alone - idle, 0.0)
    if not call.backward_flops and not trained:
        return alone, 0.0
    with_backward = seconds_of(lambda: both().numpy(), enough_seconds=enough) - idle
    return alone, max(with_backward - alone, 0.0)


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
