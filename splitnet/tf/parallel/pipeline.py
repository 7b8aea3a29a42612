"""Pipelines: the batch in micro-batches, each on its way through the parts.

Each part is traced once in a step and called once per micro-batch. On each device
control dependencies keep the calls in the order of `simulator/microbatch`, which draws
the schedules; TensorFlow's executor overlaps what is on different devices. The loss is
the mean over samples, so each counts by its share of the batch; gradients are summed as
they come, on the device that made them. Metrics see the outputs of the whole batch.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import keras
import networkx as nx
import numpy as np
import tensorflow as tf

from splitnet.simulator.microbatch import runs_of
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.batch_shards import Shards
from splitnet.tf.parallel.pipeline_checks import check_losses, warn_of_masks
from splitnet.tf.placement.placed import Placed
from splitnet.tf.placement.run import Shared, device_of
from splitnet.tf.reading.variables import weights_of

_Unit = tuple[int, str]
"""A segment that runs as a part: the segment's id and the part's key."""


def pipelined(model: Any, placed: Placed) -> None:
    """Replace an emitted model's training step by one over micro-batches."""
    compile_plainly, stages = model.compile, _stages(placed)

    @functools.wraps(compile_plainly)
    def compile_checked(*args: Any, **kwargs: Any) -> None:
        compile_plainly(*args, **kwargs)
        check_losses(model, placed.pipeline)

    @tf.autograph.experimental.do_not_convert  # by a `tf.function` of the user's own
    def train_step(data: Any) -> Any:
        placed.shared.append(Shared(_Turns(stages)))
        try:
            return _train_step(model, placed, data)
        finally:
            placed.shared.pop()

    vars(model).update(compile=compile_checked, train_step=train_step)


def _train_step(model: Any, placed: Placed, data: Any) -> Any:
    """As `keras.Model.train_step`, micro-batch by micro-batch."""
    shared, pipeline = placed.shared[-1], placed.pipeline
    data = keras.tree.map_structure(
        # An eager step is given arrays.
        lambda value: tf.constant(value) if isinstance(value, np.ndarray) else value,
        data,
    )
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    names = sorted(x) if isinstance(x, dict) else [t.name for t in model.inputs]
    uncut = {i for i, name in enumerate(names) if name in placed.whole}
    flat = enumerate(keras.tree.flatten(x))
    first = next(t for i, t in flat if t is not None and i not in uncut)
    rows = Shards.of(first, pipeline.microbatches)
    pieces = zip(
        *(_split(rows, x, uncut), _split(rows, y), _split(rows, weights)),
        rows.weights(),
    )
    turns, variables = shared.turns, model.trainable_weights
    losses, outputs, counts = [], [], list[Any]()
    with _weighted(model, counts):
        for one_x, one_y, one_weights, share in pieces:
            # As Keras counts: by samples if it knows how many, else by batches.
            counts.append(share * (first.shape[0] or 1))
            with tf.GradientTape() as tape:
                turns.begin(tape, shared.weights)
                made = model(one_x, training=True)
                given = {"x": one_x, "y": one_y, "y_pred": made, "training": True}
                loss = keras_api.compute_loss(model, sample_weight=one_weights, **given)
                scaled = loss = loss * tf.cast(share, loss.dtype)
                if model.optimizer is not None:
                    scaled = model.optimizer.scale_loss(loss)
            own = {(id(v), device_of(v)): v for v in variables}
            asked = (list(own.values()), list(shared.weights.values()))
            for keys, found in zip((own, shared.weights), tape.gradient(scaled, asked)):
                turns.add(dict(zip(keys, found)))
            if not outputs:
                warn_of_masks(model, pipeline, made)
            outputs.append(made)
            losses.append(loss)
    tracker = keras_api.loss_tracker(model)
    tracker.update_state(tf.add_n(losses), sample_weight=rows.extent)
    if variables:
        model.optimizer.apply_gradients(zip(turns.total(variables), variables))
    joined = keras.tree.map_structure(lambda *parts: rows.join(parts), *outputs)
    return model.compute_metrics(x, y, joined, sample_weight=weights)


def _split(rows: Shards, data: Any, uncut: Set[int] = frozenset()) -> list[Any]:
    """A nest of tensors, or None, for each micro-batch; those `uncut` go whole."""
    if data is None:
        return [None] * rows.count
    each = [
        [t] * rows.count if t is None or i in uncut else rows.split(t)
        for i, t in enumerate(keras.tree.flatten(data))
    ]
    numbers = range(rows.count)
    return [keras.tree.pack_sequence_as(data, [t[m] for t in each]) for m in numbers]


@dataclass(frozen=True)
class _Stage:
    """What a device calls one after the other for one micro-batch.

    If there are several calls, those that `begin` it wait for those that `end` it for
    the micro-batch before. They also wait for the backward calls of the first that
    `learn`, for the micro-batch that is `window` before. The last of several stages
    does not wait: backward is ready as soon as forward is done, and calls that wait for
    one another are run by a thread in one go, so that a device with a single thread
    would send nothing meanwhile.
    """

    window: int
    begin: frozenset[_Unit]
    end: frozenset[_Unit]
    learn: frozenset[_Unit]


def _stages(placed: Placed) -> dict[_Unit, _Stage]:
    """The stage of each call of a part function."""
    units: nx.DiGraph[_Unit] = nx.DiGraph()
    learning = set[_Unit]()
    stage_of, made_by = {}, dict[int, list[_Unit]]()
    for segment in (runner.segment for runner in placed.runners):
        for key in placed.keys(segment.nodes[0]):
            unit = (id(segment), key)
            stage = placed.pipeline.stage_of.get(placed.part_of[key])
            if stage is None:
                continue
            if any(weights_of(node.operation) for node in segment.nodes):
                learning.add(unit)
            stage_of[unit] = stage
            units.add_node(unit)
            for tensor in segment.reads:
                sources = made_by.get(id(tensor), ())
                units.add_edges_from((source, unit) for source in sources)
            for tensor in segment.gives:
                made_by.setdefault(id(tensor), []).append(unit)
    found: dict[_Unit, _Stage] = {}
    for number, run in runs_of(units, stage_of):
        learns = learning & set(run)
        window = placed.pipeline.window(number)
        last = not all(units.out_degree(unit) for unit in run)
        if last and placed.pipeline.depth > 1:
            window = placed.pipeline.microbatches
        stage = _Stage(
            window,
            frozenset(unit for unit in run if not run.in_degree(unit)),
            frozenset(unit for unit in run if not run.out_degree(unit)),
            frozenset(u for u in learns if not nx.ancestors(run, u) & learns),
        )
        found.update(dict.fromkeys(run, stage))
    return found


class _Turns:
    """The turns that micro-batches take in each stage, and their gradients' sums.

    Gradients of a variable are summed on each device that reads it, from which one sum
    goes home: `sums` are by (id of a variable, device). `tape` records the present
    micro-batch.
    """

    def __init__(self, stages: Mapping[_Unit, _Stage]) -> None:
        self.sums: dict[tuple[int, str], Any] = {}
        self.tape: Any = None
        self._stages = stages
        # For each micro-batch, a tensor that each unit returned, forward and backward.
        self._forward: list[dict[_Unit, list[Any]]] = []
        self._backward: list[dict[_Unit, list[Any]]] = []

    def begin(self, tape: Any, weights: Mapping[Any, Any]) -> None:
        """The next micro-batch, with the weights that earlier ones have read."""
        self.tape = tape
        tape.watch(list(weights.values()))
        self._forward.append({})
        self._backward.append({})

    def before(self, unit: _Unit) -> list[Any]:
        """What must have run before a segment runs as a part."""
        stage, number = self._stages.get(unit), len(self._forward) - 1
        if stage is None or unit not in stage.begin or not number:
            return []
        found = []
        if stage.end != stage.begin:
            found += [t for end in stage.end for t in self._forward[-2].get(end, ())]
        if number >= stage.window:
            back = self._backward[number - stage.window]
            found += [tensor for one in stage.learn for tensor in back.get(one, ())]
        return found

    def ran(self, unit: _Unit, made: Any) -> None:
        """Note what a segment returned."""
        tensors = [t for t in tf.nest.flatten(made) if isinstance(t, tf.Tensor)]
        self._forward[-1][unit] = tensors[:1]

    def came_back(
        self, unit: _Unit, found: list[Any], own: Mapping[tuple[int, str], Any]
    ) -> None:
        """Note what the backward call of a segment returned, and add its `own`.

        Its gradients of weights are added to the sums by one function, which is not
        inlined: TensorFlow's graph optimizer goes over the graph of a step many times.
        """
        both = {
            key: (self.sums[key], made)
            for key, made in own.items()
            if isinstance(made, tf.Tensor) and isinstance(self.sums.get(key), tf.Tensor)
        }
        self.add({key: made for key, made in own.items() if key not in both})
        if both:
            specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, [*both.values()])
            with tf.init_scope():  # without the devices of the step that is being made
                function = _gradient_sums.get_concrete_function(specs)
            with tf.device(next(iter(both))[1]):
                self.sums |= dict(zip(both, function([*both.values()])))
        self._backward[-1][unit] = found[:1]

    def add(self, gradients: Mapping[tuple[int, str], Any]) -> None:
        """Add gradients that no backward call of a part has summed; None stays out."""
        for key, gradient in gradients.items():
            if gradient is not None:
                before = self.sums.get(key)
                with tf.device(key[1]):
                    both = gradient if before is None else _added(before, gradient)
                self.sums[key] = both

    def total(self, variables: list[Any]) -> list[Any]:
        """The gradient of the whole batch, for each variable."""
        found = []
        for variable in variables:
            parts = [s for (which, _), s in self.sums.items() if which == id(variable)]
            with tf.device(device_of(variable)):
                found.append(functools.reduce(_added, parts) if parts else None)
        return found


@functools.partial(
    tf.function, autograph=False, experimental_attributes={"_noinline": True}
)
def _gradient_sums(pairs: list[tuple[Any, Any]]) -> list[Any]:
    return [one + other for one, other in pairs]


def _added(one: Any, other: Any) -> Any:
    """The sum of two gradients; of two sparse ones, sparse."""
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([one.values, other.values], 0),
            tf.concat([one.indices, other.indices], 0),
            one.dense_shape,
        )
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


@contextlib.contextmanager
def _weighted(model: Any, weights: list[Any]) -> Iterator[None]:
    """Let each micro-batch count by the last of `weights` in the metrics of losses."""
    loss = keras_api.compiled_loss(model)
    metrics: list[Any] = []

    def take() -> None:
        metrics.extend(loss.metrics)
        for metric in metrics:

            def update(value: Any, sample_weight: Any = None, to: Any = metric) -> None:
                type(to).update_state(to, value, sample_weight=weights[-1])

            vars(metric)["update_state"] = update

    def build(*args: Any, **kwargs: Any) -> None:
        del vars(loss)["build"]
        loss.build(*args, **kwargs)
        take()

    if loss is not None and loss.built:
        take()
    elif loss is not None:  # its metrics are made with it, in the first micro-batch
        vars(loss)["build"] = build
    try:
        yield
    finally:
        for metric in metrics:
            del vars(metric)["update_state"]
