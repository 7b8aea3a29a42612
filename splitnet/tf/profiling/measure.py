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
import numpy as np
import tensorflow as tf

from splitnet.core.checks import Positive
from splitnet.core.cluster import Cluster, Device
from splitnet.core.costs import Measured, optimizer_name, signature
from splitnet.core.errors import DeviceError, listed
from splitnet.core.graph import Call, Graph
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.profiling.links import measure_links, seconds_of
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.flatten import Site
from splitnet.tf.reading.read import graph_of
from splitnet.tf.reading.source import blueprint_of, sized

_UPDATED_BYTES = 16 * 2**20
_REPEAT_SECONDS = 8.0  # for repetitions of all calls, beside the first run of each
_LEAST_SENT, _MOST_SENT = 64 * 2**10, 16 * 2**20
_OPEN_SIZE = 8  # for an extent that is None


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
    jobs: dict[str, tuple[Call, Site]] = {}  # one call per signature
    for site in blueprint.sites:  # what towers share is estimated
        call = graph.call.get(site.call)
        if call and not site.node.is_input:
            jobs.setdefault(signature(call), (call, site))
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
        idle = seconds_of(_step(device, list))
        for name, (call, site) in jobs.items():
            tell(f"{site.call} on {device.name}")
            ahead, both = _call_seconds(call, site, device, batch, enough)
            ahead = max(ahead - idle, 0.0)
            forward |= {(name, label): ahead for label in labels}
            back = max(both - idle - ahead, 0.0) if both else 0.0
            backward |= {(name, label): back for label in labels}
        tell(f"update on {device.name}")
        seconds = seconds_of(_update(device, optimizer)) - idle
        speeds |= dict.fromkeys(labels, _UPDATED_BYTES / max(seconds, 1e-9))
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
    call: Call, site: Site, device: Device, batch: int, enough: float
) -> tuple[float, float]:
    """Seconds of a call's forward pass, and of both; 0 without a backward pass."""
    node = site.node
    with tf.device(device.target):
        clone = Cloner(lambda layer: device.target).of(node.operation)
        operation = keras_api.operation_fn(clone, training=True)
        draw = np.random.default_rng(0)
        inputs = {}
        for tensor in node.input_tensors:
            first = (tensor.shape[0] or batch,) if tensor.shape else ()
            inputs[id(tensor)] = tf.Variable(_synthetic(tensor, first, draw))

    def forward() -> list[Any]:
        tensors = {key: tf.convert_to_tensor(v) for key, v in inputs.items()}
        args, kwargs = node.arguments.fill_in(tensors)
        return keras.tree.flatten(operation(*args, **kwargs))

    with tf.device(device.target):
        forward()  # builds it, here
    trained = list(getattr(clone, "trainable_variables", ()))
    sources = [v for v in inputs.values() if v.dtype.is_floating]
    sources += [variable.value for variable in trained]

    def both() -> list[Any]:
        with tf.GradientTape() as tape:
            floats = [t for t in forward() if t.dtype.is_floating]
            loss = tf.add_n([tf.reduce_sum(tf.cast(t, "float32")) for t in floats])
        return [g for g in tape.gradient(loss, sources) if g is not None]

    ahead = seconds_of(_step(device, forward), enough_seconds=enough)
    if not call.backward_flops and not trained:
        return ahead, 0.0
    return ahead, seconds_of(_step(device, both), enough_seconds=enough)


def _update(device: Device, optimizer: str) -> Callable[[], Any]:
    """A step that updates a weight of `_UPDATED_BYTES`."""
    with tf.device(device.target):
        weight = keras.Variable(tf.zeros([_UPDATED_BYTES // 4]))
        gradient = tf.Variable(tf.ones([_UPDATED_BYTES // 4]))
        rule = keras.optimizers.get(optimizer.partition("+")[0])
        rule.build([weight])

    def update() -> list[Any]:
        rule.update_step(gradient.read_value(), weight.value, tf.constant(1e-3))
        return []

    return _step(device, update)


def _step(device: Device, compute: Callable[[], list[Any]]) -> Callable[[], Any]:
    """A step on one device that computes tensors.

    It gives a number that depends on each: TensorFlow prunes what nothing needs.
    """

    @tf.function
    def run() -> Any:
        with tf.device(device.target):
            numbers = [tf.constant(0.0)]
            for one in compute():
                tensor = one.values if isinstance(one, tf.IndexedSlices) else one
                known = isinstance(tensor, tf.Tensor)
                if known and tensor.dtype not in (tf.string, tf.variant):
                    first = tf.reshape(tensor, [-1])[0]
                    numbers.append(tf.cast(first, "float32"))
            return tf.add_n(numbers)

    return lambda: run().numpy()


# Synthetic values ----------------------------------------------------------------


def synthetic_batch(model: Any, batch: int) -> tuple[Any, Any]:
    """Inputs and targets for one training step of a model, as NumPy arrays.

    Whole numbers are 0 or 1, which any embedding takes; texts are "a".

    Returns:
        (inputs, targets), in the structure that the model takes.
    """
    draw = np.random.default_rng(0)
    inputs, targets = keras.tree.map_structure(
        lambda one: _synthetic(one, (batch,), draw), (model.input, model.output)
    )
    return inputs, targets


def _synthetic(tensor: Any, first: tuple[int, ...], draw: np.random.Generator) -> Any:
    """Values of a symbolic tensor's shape, its first dimension given, and dtype."""
    shape = (*first, *(extent or _OPEN_SIZE for extent in tensor.shape[1:]))
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    if dtype == "string":
        return np.full(shape, "a", dtype=object)
    if "int" in dtype or dtype == "bool":
        return draw.integers(0, 2, shape).astype(dtype)
    return draw.random(shape).astype(tf.as_dtype(dtype).as_numpy_dtype)
