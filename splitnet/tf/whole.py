"""Seconds of a whole step on one device: what single calls alone do not show."""

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.core.cluster import Cluster, Device
from splitnet.core.graph import Graph
from splitnet.core.net import Net
from splitnet.planner.evaluate import score
from splitnet.tf.blueprint import blueprint_of
from splitnet.tf.emit import emit
from splitnet.tf.internals import keras_api
from splitnet.tf.placement import placement_scope
from splitnet.tf.read import graph_of
from splitnet.tf.stopwatch import finish, made_up, seconds_of

__all__ = ["Starts", "StepTimes", "Wholes"]

_STEPS, _WIDTH = 16, 4
_MOMENT_SECONDS = 0.15


class StepTimes(keras.callbacks.Callback):
    """Seconds of each step of `fit`, from the end of one to the end of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._last = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """What comes before an epoch's first step is no step's."""
        self._last = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step has ended when its loss is known."""
        now = time.perf_counter()
        if self._last:
            self.seconds.append(now - self._last)
        self._last = now


class Starts:
    """What a step of `fit` takes on each of some devices beside what it computes.

    A machine has faster and slower moments, and little steps feel them most. So the
    steps are run at several moments, and a device's figure is the median of all.
    """

    def __init__(self, cluster: Cluster, devices: Sequence[Device]) -> None:
        self._models = {d.name: _little(cluster, d) for d in devices}
        self._seconds: dict[str, list[float]] = {d.name: [] for d in devices}
        self.run(keep=False)  # traces

    def run(self, *, keep: bool = True) -> None:
        """Run an epoch on each device."""
        rows = np.zeros((_WIDTH * _STEPS, _WIDTH), "float32")
        for name, model in self._models.items():
            times = StepTimes()
            model.fit(
                rows, rows[:, :1], batch_size=_WIDTH, verbose=0, callbacks=[times]
            )
            if keep:
                self._seconds[name] += times.seconds

    def of(self, device: Device) -> float:
        """Seconds before and after a device computes anything."""
        return statistics.median(self._seconds[device.name])


def _little(cluster: Cluster, device: Device) -> Any:
    """A compiled model that computes next to nothing, on one device."""
    net = Net("nothing")
    x = net.input("x", (_WIDTH,))
    net.output(net.branch("little", x, keras.layers.Dense(1), on=device.name))
    model = _placed(net, graph_of(blueprint_of(net), _WIDTH), cluster, device)
    model.compile("sgd", "mse")
    return model


class Wholes:
    """Forward and backward seconds of all calls, one after the other on one device.

    What a run costs by itself is in. A machine is faster and slower for seconds at a
    time, and one timing lies within such a moment. So a device's runs are timed at
    several, and its figure is the median of each one's fastest.
    """

    def __init__(self, source: Any, graph: Graph, cluster: Cluster) -> None:
        self._asked = source, graph, cluster
        self._runs: dict[str, Callable[[], Any]] = {}
        self._seconds: dict[str, list[float]] = {}

    def add(self, device: Device) -> None:
        """Time a device as well, unless it has no room for all of it."""
        run = _all_calls(*self._asked, device)
        if run is not None:
            self._runs[device.name] = run
            self._time(device.name)

    def run(self) -> None:
        """Time each device once more."""
        for name in list(self._runs):
            self._time(name)

    def of(self, device: Device) -> float | None:
        """Seconds, or None where the device has no room for all of it."""
        found = self._seconds.get(device.name)
        return statistics.median(found) if found else None

    def _time(self, name: str) -> None:
        try:
            took = seconds_of(self._runs[name], enough_seconds=_MOMENT_SECONDS)
        except tf.errors.ResourceExhaustedError:
            del self._runs[name]
            self._seconds.pop(name, None)
        else:
            self._seconds.setdefault(name, []).append(took)


def _all_calls(
    source: Any, graph: Graph, cluster: Cluster, device: Device
) -> Callable[[], Any] | None:
    """A run of all calls, forward and backward; None where there is no room."""
    model = _placed(source, graph, cluster, device)
    if model is None:
        return None
    with tf.device(device.target):
        held = keras.tree.map_structure(
            lambda t: tf.Variable(made_up(t, graph.batch)),
            keras_api.input_structure(model),
        )
    trained = [v.value for v in model.trainable_variables]

    @tf.function
    def run() -> Any:
        with placement_scope(model), tf.GradientTape() as tape:
            inputs = keras.tree.map_structure(lambda v: v.read_value(), held)
            outputs = keras.tree.flatten(model(inputs, training=True))
            floats = [t for t in outputs if t.dtype.is_floating]
            with tf.device(device.target):
                loss = tf.add_n([tf.reduce_sum(tf.cast(t, "float32")) for t in floats])
            gradients = tape.gradient(loss, trained) if trained else outputs
        return finish([g for g in gradients if g is not None], device.target)

    return lambda: run().numpy()


def _placed(source: Any, graph: Graph, cluster: Cluster, device: Device) -> Any:
    """The source on one device; None where it has no room for it."""
    plan = score(graph, cluster, {part.name: device.name for part in graph.parts})
    if plan.memory[device.name].total > device.memory_bytes:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what runs elsewhere: this is a trial
        return emit(source, plan)
