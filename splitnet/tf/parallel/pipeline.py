"""Pipelines: the batch in micro-batches, each on its way through the parts.

    gpu:0  |F0|F1|F2|F3|  |B0|  |B1|  |B2|  |B3|      F forward, B backward
    gpu:1     |F0|B0|F1|B1|F2|B2|F3|B3|               of micro-batch 0, 1, ...

Each part is traced once in a step and called once per micro-batch, and TensorFlow's
executor lets the calls overlap as their data allow. The loss is the mean over samples,
so each counts by its share of the batch; gradients are summed as they come, on the
variable's device; metrics see the outputs of the whole batch. With "1f1b" micro-batch m
starts when the first stage is done with the backward pass of m - S, S stages: no more
than S are in flight. That bounds the memory of activations, and adds no hop to a step
as a strict order would.
"""

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.simulator.microbatch import Pipeline
from splitnet.tf.internals import keras_api
from splitnet.tf.internals.tf_api import keep_as_written
from splitnet.tf.parallel.batch_shards import Shards, as_tensor
from splitnet.tf.parallel.loss_report import noted_once
from splitnet.tf.parallel.pipeline_checks import check_losses, warn_of_masks
from splitnet.tf.placement.placed import Placed
from splitnet.tf.placement.run import Shared, device_of

__all__ = ["pipelined"]


def pipelined(model: Any, placed: Placed) -> None:
    """Replace one instance's training step by one over micro-batches.

    Args:
        model: an emitted model.
        placed: its placement, with the pipeline.
    """
    compile_plainly, entry = model.compile, _entry_of(model, placed)

    @functools.wraps(compile_plainly)
    def compile_checked(*args: Any, **kwargs: Any) -> None:
        compile_plainly(*args, **kwargs)
        check_losses(model, placed.pipeline)

    def train_step(data: Any) -> Any:
        placed.shared.append(Shared())
        try:
            return _Step(model, placed.pipeline, entry, placed.shared[-1]).run(data)
        finally:
            placed.shared.pop()

    model.compile = compile_checked
    model.train_step = train_step


@dataclass(frozen=True, slots=True)
class _Step:
    """One training step over micro-batches."""

    model: Any
    pipeline: Pipeline
    entry: "_Entry"
    shared: Shared

    def run(self, data: Any) -> Any:
        """As `keras.Model.train_step`, micro-batch by micro-batch."""
        model = self.model
        data = keras.tree.map_structure(as_tensor, data)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        first = next(t for t in keras.tree.flatten(x) if t is not None)
        rows = Shards.of(first, self.pipeline.microbatches)
        cut = [_split(rows, part) for part in (x, y, weights)]
        sums = _Sums(model.trainable_weights)
        losses, outputs = [], []
        with noted_once(model, rows):
            for number, (own_x, *rest) in enumerate(zip(*cut, rows.weights())):
                own_x = self._held(own_x, number, sums)
                made, loss = self._one(own_x, *rest, sums)
                if not number:
                    warn_of_masks(model, self.pipeline, made)
                outputs.append(made)
                losses.append(loss)
        keras_api.loss_tracker(model).update_state(
            tf.add_n(losses), sample_weight=rows.extent
        )
        if sums.variables:
            model.optimizer.apply_gradients(zip(sums.total(), sums.variables))
        whole = keras.tree.map_structure(lambda *parts: rows.join(parts), *outputs)
        return model.compute_metrics(x, y, whole, sample_weight=weights)

    def _one(self, x: Any, y: Any, weights: Any, share: Any, sums: "_Sums") -> Any:
        """The outputs and the share of the loss of one micro-batch."""
        model = self.model
        away = self.shared.weights
        with tf.GradientTape() as tape:
            tape.watch(list(away.values()))
            self.shared.tape = tape
            made = model(x, training=True)
            loss = keras_api.compute_loss(
                model, x=x, y=y, y_pred=made, sample_weight=weights, training=True
            )
            loss = loss * tf.cast(share, loss.dtype)
            scaled = loss
            if model.optimizer is not None:
                scaled = model.optimizer.scale_loss(loss)
        own, others = tape.gradient(scaled, (sums.variables, list(away.values())))
        sums.add(own, dict(zip(away, others)))
        return made, loss

    def _held(self, x: Any, number: int, sums: "_Sums") -> Any:
        """The micro-batch, once the first stage has room for it.

        It waits where it is read, so that it has arrived when its turn comes.
        """
        window = self.pipeline.window
        if window is None or number < window or tf.executing_eagerly():
            return x
        with tf.control_dependencies(sums.made_by(number - window, self.entry.after)):
            if isinstance(x, dict):
                return {k: _kept(v, self.entry.reader.get(k)) for k, v in x.items()}
            flat = keras.tree.flatten(x)
            known = list(self.entry.reader.values())
            where = known if len(known) == len(flat) else [None] * len(flat)
            return keras.tree.pack_sequence_as(x, list(map(_kept, flat, where)))


class _Sums:
    """Gradients of each variable, summed as they come, where they are made.

    Those of a variable are summed where it lives, those of what was fetched of it on
    each device that fetched it, from which one sum goes home.
    """

    def __init__(self, variables: list[Any]) -> None:
        self.variables = list(variables)
        # (id of a variable, device or "" for its home) -> sum
        self._sums: dict[tuple[int, str], Any] = {}
        self._made: list[dict[int, list[Any]]] = []

    def add(self, own: list[Any], away: dict[tuple[int, str], Any]) -> None:
        """Add the gradients of one more micro-batch; None stays out."""
        made: dict[int, list[Any]] = {}
        homes = {id(v): device_of(v) for v in self.variables}
        at_home = {(id(v), ""): g for v, g in zip(self.variables, own)}
        for (which, device), gradient in (at_home | away).items():
            if gradient is None or which not in homes:
                continue
            made.setdefault(which, []).append(gradient)
            before = self._sums.get((which, device))
            with tf.device(device or homes[which]):
                self._sums[which, device] = (
                    gradient if before is None else _added(before, gradient)
                )
        self._made.append(made)

    def made_by(self, number: int, variables: list[Any]) -> list[Any]:
        """The gradients that a micro-batch made of some variables."""
        return [
            one.values if isinstance(one, tf.IndexedSlices) else one
            for variable in variables
            for one in self._made[number].get(id(variable), ())
        ]

    def total(self) -> list[Any]:
        """The gradient of the whole batch, for each variable."""
        found = []
        for variable in self.variables:
            parts = [s for (which, _), s in self._sums.items() if which == id(variable)]
            with tf.device(device_of(variable)):
                found.append(functools.reduce(_added, parts) if parts else None)
        return found


def _kept(value: Any, device: str | None) -> Any:
    """A nest of tensors, on a device if one is named; None stays None."""
    with tf.device(device) if device else contextlib.nullcontext():
        return keras.tree.map_structure(
            lambda t: None if t is None else tf.identity(t), value
        )


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
    return keep_as_written(one + other)


def _split(rows: Shards, data: Any) -> list[Any]:
    """A nest of tensors as one nest for each micro-batch; None stays None."""
    flat = [None if t is None else rows.split(t) for t in keras.tree.flatten(data)]
    return [
        keras.tree.pack_sequence_as(data, [None if t is None else t[m] for t in flat])
        if data is not None
        else None
        for m in range(rows.count)
    ]


@dataclass(frozen=True)
class _Entry:
    """Where a micro-batch enters a model.

    `after` are the first trained variables on every way through it, whose gradients are
    the last of a backward pass; `reader` maps each input's name to the device that
    reads it, None where several do.
    """

    after: list[Any]
    reader: dict[str, str | None]


def _entry_of(model: Any, placed: Placed) -> _Entry:
    reached: set[int] = set()
    found: dict[int, Any] = {}
    readers: dict[int, set[str | None]] = {id(t): set() for t in model.inputs}
    for node in placed.flow.nodes:
        towers = placed.keys_of.get(id(node))
        device = None if towers else placed.target_of[placed.key_of[id(node)]]
        for tensor in node.input_tensors:
            if id(tensor) in readers:
                readers[id(tensor)].add(device)
        mine = list(getattr(node.operation, "trainable_variables", ()))
        behind = any(id(tensor) in reached for tensor in node.input_tensors)
        if mine and not behind:
            found[id(mine[0])] = mine[0]
        if mine or behind:
            reached.update(id(tensor) for tensor in node.outputs)
    reader = {
        keras_api.producer(t).operation.name: next(iter(readers[id(t)]))
        if len(readers[id(t)]) == 1
        else None
        for t in model.inputs
    }
    return _Entry(list(found.values()), reader)
