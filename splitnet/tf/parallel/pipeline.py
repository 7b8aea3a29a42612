"""Pipelines: the batch in micro-batches, each on its way through the parts.

Each part is traced once in a step and called once per micro-batch. On each device
control dependencies keep the calls in the order of `simulator/microbatch`, which draws
the schedules; TensorFlow's executor overlaps what is on different devices. The loss is
the mean over samples, so each counts by its share of the batch; gradients are summed as
they come, on the variable's device; metrics see the outputs of the whole batch.
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
from splitnet.tf.internals.tf_api import graph_optimizer, sum_as_written
from splitnet.tf.parallel.batch_shards import Shards
from splitnet.tf.parallel.pipeline_checks import check_losses, warn_of_masks
from splitnet.tf.placement.placed import Placed
from splitnet.tf.placement.run import Shared, device_of
from splitnet.tf.reading.variables import weights_of

_Unit = tuple[int, str]
"""A segment that runs as a part: the segment's id and the part's key."""


def pipelined(model: Any, placed: Placed) -> None:
    """Replace one instance's training step by one over micro-batches.

    Args:
        model: an emitted model.
        placed: its placement, with the pipeline.
    """
    compile_plainly, make_plainly = model.compile, model.make_train_function
    stages = _stages(placed)

    @functools.wraps(compile_plainly)
    def compile_checked(*args: Any, **kwargs: Any) -> None:
        compile_plainly(*args, **kwargs)
        check_losses(model, placed.pipeline)

    @tf.autograph.experimental.do_not_convert  # by a `tf.function` of the user's own
    def train_step(data: Any) -> Any:
        placed.shared.append(Shared())
        try:
            with graph_optimizer(on=True):
                return _train_step(model, placed, stages, data)
        finally:
            placed.shared.pop()

    @functools.wraps(make_plainly)
    def make_train_function(force: bool = False) -> None:
        """The graph optimizer works on functions that are called, not on calls."""
        before = model.train_function
        make_plainly(force)
        made = model.train_function
        if made is before or model.run_eagerly:
            return

        def train_function(iterator: Any) -> Any:
            with graph_optimizer(on=False):
                return made(iterator)

        model.train_function = train_function

    model.compile = compile_checked
    model.make_train_function = make_train_function
    model.train_step = train_step


def _train_step(
    model: Any,
    placed: Placed,
    stages: "Mapping[_Unit, _Stage]",
    data: Any,
) -> Any:
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
    sums = _Sums(model.trainable_weights)
    turns = shared.turns = _Turns(stages, sums)
    losses, outputs = [], []
    with _noted_once(model, rows):
        for number, (one_x, one_y, one_weights, share) in enumerate(pieces):
            turns.made.append({})
            away = shared.weights
            with tf.GradientTape() as tape:
                tape.watch(list(away.values()))
                shared.tape = tape
                made = model(one_x, training=True)
                given = {"x": one_x, "y": one_y, "y_pred": made, "training": True}
                loss = keras_api.compute_loss(model, sample_weight=one_weights, **given)
                scaled = loss = loss * tf.cast(share, loss.dtype)
                if model.optimizer is not None:
                    scaled = model.optimizer.scale_loss(loss)
            asked = (sums.variables, list(away.values()))
            own, others = tape.gradient(scaled, asked)
            sums.add(own, dict(zip(away, others)))
            if not number:
                warn_of_masks(model, pipeline, made)
            outputs.append(made)
            losses.append(loss)
    tracker = keras_api.loss_tracker(model)
    tracker.update_state(tf.add_n(losses), sample_weight=rows.extent)
    if sums.variables:
        model.optimizer.apply_gradients(zip(sums.total(), sums.variables))
    joined = keras.tree.map_structure(lambda *parts: rows.join(parts), *outputs)
    return model.compute_metrics(x, y, joined, sample_weight=weights)


def _split(rows: Shards, data: Any, uncut: Set[int] = frozenset()) -> list[Any]:
    """A nest of tensors as one nest for each micro-batch; None stays None.

    The tensors with the numbers `uncut` are handed to each as they are.
    """
    if data is None:
        return [None] * rows.count
    each = [
        [t] * rows.count if t is None or i in uncut else rows.split(t)
        for i, t in enumerate(keras.tree.flatten(data))
    ]
    numbers = range(rows.count)
    return [keras.tree.pack_sequence_as(data, [t[m] for t in each]) for m in numbers]


class _Sums:
    """Gradients of each variable, summed as they come, where they are made.

    Those of a variable are summed where it lives, those of what was fetched of it on
    each device that fetched it, from which one sum goes home. Sums and the gradients of
    each micro-batch are by (id of a variable, device).
    """

    def __init__(self, variables: list[Any]) -> None:
        self.variables = list(variables)
        self._sums: dict[tuple[int, str], Any] = {}
        self._made: list[dict[tuple[int, str], Any]] = []

    def add(self, own: list[Any], away: dict[tuple[int, str], Any]) -> None:
        """Add the gradients of one more micro-batch; None stays out."""
        homes = {id(v): device_of(v) for v in self.variables}
        at_home = {(id(v), homes[id(v)]): g for v, g in zip(self.variables, own)}
        made: dict[tuple[int, str], Any] = {}
        self._made.append(made)
        together: dict[Any, list[tuple[int, str]]] = {}
        for key, gradient in (at_home | away).items():
            if gradient is None or key[0] not in homes:
                continue
            before = self._sums.get(key)
            sparse = [isinstance(g, tf.IndexedSlices) for g in (gradient, before)]
            made[key] = gradient.values if sparse[0] else gradient
            if before is None:
                self._sums[key] = gradient
            elif tf.executing_eagerly() or key not in at_home or any(sparse):
                with tf.device(key[1]):
                    self._sums[key] = _added(before, gradient)
            else:
                together.setdefault((key[1], gradient.op), []).append(key)
        for (device, _), keys in together.items():  # what one backward call made
            before, new = [self._sums[key] for key in keys], [made[key] for key in keys]
            specs = [
                [tf.TensorSpec(one.shape, one.dtype) for one in each]
                for each in (before, new)
            ]
            with tf.init_scope():  # without the devices of the step that is being made
                function = _gradient_sums.get_concrete_function(*specs)
            with tf.device(device):
                self._sums |= dict(zip(keys, function(before, new)))

    def made_by(self, number: int, variables: list[Any], device: str) -> list[Any]:
        """The gradients that a micro-batch made of some variables on a device."""
        made = self._made[number]
        keys = [(id(variable), device) for variable in variables]
        return [made[key] for key in keys if key in made]

    def total(self) -> list[Any]:
        """The gradient of the whole batch, for each variable."""
        found = []
        for variable in self.variables:
            parts = [s for (which, _), s in self._sums.items() if which == id(variable)]
            with tf.device(device_of(variable)):
                found.append(functools.reduce(_added, parts) if parts else None)
        return found


@functools.partial(
    tf.function, autograph=False, experimental_attributes={"_noinline": True}
)
def _gradient_sums(ones: list[Any], others: list[Any]) -> list[Any]:
    """Sums of gradients, as ops of a function that is not inlined.

    TensorFlow's graph optimizer goes over the graph of a step many times, and there
    would be thousands of them.
    """
    return [one + other for one, other in zip(ones, others)]


def _added(one: Any, other: Any) -> Any:
    """The sum of two gradients; of two sparse ones, sparse."""
    sparse = [isinstance(g, tf.IndexedSlices) for g in (one, other)]
    if all(sparse):
        return tf.IndexedSlices(
            tf.concat([one.values, other.values], 0),
            tf.concat([one.indices, other.indices], 0),
            one.dense_shape,
        )
    if any(sparse):
        one, other = tf.convert_to_tensor(one), tf.convert_to_tensor(other)
    return sum_as_written(one, other)


@dataclass(frozen=True)
class _Stage:
    """What a device calls one after the other for one micro-batch.

    If there are several calls, those that `begin` it wait for those that `end` it for
    the micro-batch before. They also wait for the gradients of its first trained
    `variables` of the micro-batch that is `window` before. The last of several stages
    has no such order: backward is ready as soon as forward is done, and calls that wait
    for one another are run by a thread in one go, so that a device with a single thread
    would send nothing meanwhile.
    """

    device: str
    window: int
    alone: bool
    begin: frozenset[_Unit]
    end: frozenset[_Unit]
    variables: list[Any]


def _stages(placed: Placed) -> dict[_Unit, _Stage]:
    """The stage of each call of a part function."""
    units: nx.DiGraph[_Unit] = nx.DiGraph()
    trained: dict[_Unit, list[Any]] = {}
    stage_of, made_by = {}, dict[int, list[_Unit]]()
    for segment in (runner.segment for runner in placed.runners):
        node = segment.nodes[0]
        for key in placed.keys(node):
            unit = (id(segment), key)
            stage = placed.pipeline.stage_of.get(placed.part_of[key])
            if stage is None:
                continue
            trained[unit] = [v for n in segment.nodes for v in weights_of(n.operation)]
            stage_of[unit] = stage
            units.add_node(unit)
            for tensor in segment.reads:
                sources = made_by.get(id(tensor), ())
                units.add_edges_from((source, unit) for source in sources)
            for tensor in segment.gives:
                made_by.setdefault(id(tensor), []).append(unit)
    found: dict[_Unit, _Stage] = {}
    for number, run in runs_of(units, stage_of):
        learns = {unit for unit in run if trained[unit]}
        first = [u for u in run if u in learns and not nx.ancestors(run, u) & learns]
        stage = _Stage(
            placed.target_of[next(iter(run))[1]],
            placed.pipeline.window(number),
            placed.pipeline.depth == 1,
            frozenset(unit for unit in run if not run.in_degree(unit)),
            frozenset(unit for unit in run if not run.out_degree(unit)),
            [v for unit in first for v in trained[unit]],
        )
        found.update(dict.fromkeys(run, stage))
    return found


class _Turns:
    """The turns that micro-batches take in each stage.

    `made` holds, for each micro-batch so far, a tensor that each unit returned.
    """

    def __init__(self, stages: Mapping[_Unit, _Stage], sums: _Sums) -> None:
        self._stages, self._sums = stages, sums
        self.made: list[dict[_Unit, list[Any]]] = []

    def before(self, segment: Any, key: str) -> list[Any]:
        """What must have run before a segment runs as a part."""
        unit, number = (id(segment), key), len(self.made) - 1
        stage = self._stages.get(unit)
        if stage is None or unit not in stage.begin or not number:
            return []
        before = stage.end if stage.end != stage.begin else ()
        found = [one for end in before for one in self.made[-2].get(end, ())]
        if number >= stage.window and (stage.window > 1 or stage.alone):
            earlier = number - stage.window
            found += self._sums.made_by(earlier, stage.variables, stage.device)
        return found

    def ran(self, segment: Any, key: str, made: Any) -> None:
        """Note what a segment returned."""
        tensors = [t for t in tf.nest.flatten(made) if isinstance(t, tf.Tensor)]
        self.made[-1][id(segment), key] = tensors[:1]


@contextlib.contextmanager
def _noted_once(model: Any, rows: Shards) -> Iterator[None]:
    """Let the losses of all pieces, worked out inside, be reported as one batch's.

    Args:
        model: a compiled model.
        rows: how its batch is cut.
    """
    loss = keras_api.compiled_loss(model)
    taken: list[tuple[Any, list[Any]]] = []

    def take_down() -> None:
        for metric in loss.metrics:
            values: list[Any] = []

            def note(value: Any, sample_weight: Any = None, to: Any = values) -> None:
                to.append(value)

            vars(metric)["update_state"] = note
            taken.append((metric, values))

    def build(*args: Any, **kwargs: Any) -> None:
        del vars(loss)["build"]
        loss.build(*args, **kwargs)
        take_down()

    if loss is not None and loss.built:
        take_down()
    elif loss is not None:  # its metrics are made with it, in the first piece
        vars(loss)["build"] = build
    try:
        yield
    finally:
        for metric, _ in taken:
            del vars(metric)["update_state"]
        if loss is not None:
            vars(loss).pop("build", None)
    weight = rows.extent if rows.known else None
    for metric, values in taken:
        mean = rows.mean(list(map(tf.convert_to_tensor, values)))
        metric.update_state(mean, sample_weight=weight)
