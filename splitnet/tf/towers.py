"""Towers at run time: the calls of one part, once for each share of the batch.

The model's graph holds the body once. When it runs, each of its calls runs on every
tower's device with that tower's samples, under the tower's own mark, and what leaves
the towers is put together in the order of the samples. TensorFlow's kernels may crash
on an empty batch, so a batch smaller than the number of towers is padded with copies of
its first sample; what comes of them is cut off, and counts for nothing in gradients,
losses and moving averages.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from splitnet.tf.cuts import CARRIED, Cuts
from splitnet.tf.internals import keras_api
from splitnet.tf.marks import scope_of
from splitnet.tf.reading.variables import variables_of
from splitnet.tf.reads import StateScope
from splitnet.tf.replicas import Replicas
from splitnet.tf.rows import Rows

if TYPE_CHECKING:
    from splitnet.tf.placement import Placed

__all__ = ["TowerRun"]


class TowerRun:
    """The towers of one run of a placed model; see the module.

    `tensors` is the run's own map from symbolic to real tensors, which this fills for
    what leaves the towers.
    """

    def __init__(
        self, placed: "Placed", cuts: Cuts, leaving: frozenset[int], context: Any
    ) -> None:
        self._placed, self._cuts = placed, cuts
        self._leaving, self._context = leaving, context
        self._local: dict[int, list[Any]] = {}
        self._rows: dict[str, Rows] = {}
        self._split: dict[tuple[int, int], list[Any]] = {}

    def run(self, node: Any, tensors: dict[int, Any]) -> None:
        """Run one call on every tower."""
        replicas = self._placed.replicas[id(node)]
        rows = self._rows_of(replicas, node, tensors)
        seen = [self._inputs(node, replicas, i, tensors) for i in range(replicas.count)]
        states = _States(node.operation, self._cuts, replicas)
        made: list[list[Any]] = []
        with self._moments(node, replicas, rows, seen):
            for i, key in enumerate(replicas.keys):
                args, kwargs = node.arguments.fill_in(seen[i])
                run = keras_api.operation_fn(node.operation, **self._context)
                with self._at(key), states.seen_by(key):
                    outputs = run(*args, **kwargs)
                made.append(keras.tree.flatten(outputs))
        with self._at(replicas.home):
            states.settle(rows)
        for number, old in enumerate(node.outputs):
            self._local[id(old)] = [outputs[number] for outputs in made]
            tensors[id(old)] = None
            if id(old) in self._leaving:
                with self._at(replicas.join):
                    tensors[id(old)] = rows.join(self._local[id(old)])

    @contextlib.contextmanager
    def _at(self, key: str) -> Iterator[None]:
        with tf.name_scope(scope_of(key)), tf.device(self._placed.target_of[key]):
            yield

    def _rows_of(self, replicas: Replicas, node: Any, tensors: dict[int, Any]) -> Rows:
        """How the towers' samples are cut: by the first input that is split."""
        part = replicas.join
        if part in self._rows:
            return self._rows[part]
        for old in node.input_tensors:
            theirs = self._placed.replicas.get(id(keras_api.producer(old)))
            if theirs is not None and theirs.feeds(replicas):
                self._rows[part] = self._rows[theirs.join]
                return self._rows[part]
            if self._is_split(old, replicas):
                with self._at(part):
                    self._rows[part] = Rows.of(tensors[id(old)], replicas.count)
                return self._rows[part]
        batched = next(t for t in tensors.values() if t is not None)
        with self._at(part):
            return Rows.of(batched, replicas.count)

    def _is_split(self, old: Any, replicas: Replicas) -> bool:
        if self._placed.key_of[id(keras_api.producer(old))] in replicas.broadcast:
            return False
        return len(old.shape) > 0 and old.shape[0] is None

    def _inputs(
        self, node: Any, replicas: Replicas, number: int, tensors: dict[int, Any]
    ) -> dict[int, Any]:
        """What one tower reads, by tensor id: its own, its share, or the whole."""
        return {
            id(old): self._input(old, node, replicas, number, tensors)
            for old in node.input_tensors
        }

    def _input(
        self,
        old: Any,
        node: Any,
        replicas: Replicas,
        number: int,
        tensors: dict[int, Any],
    ) -> Any:
        placed, key = self._placed, replicas.keys[number]
        source = keras_api.producer(old)
        theirs = placed.replicas.get(id(source))
        if theirs is not None and theirs.feeds(replicas):
            local = self._local[id(old)][number]
            return self._fetch(local, theirs.keys[number], key)
        if not self._is_split(old, replicas):
            return self._fetch(tensors[id(old)], placed.key_of[id(source)], key)
        place = (id(old), replicas.count)
        if place not in self._split:
            with self._at(placed.key_of[id(source)]):
                self._split[place] = self._rows[replicas.join].split(tensors[id(old)])
        return self._fetch(self._split[place][number], placed.key_of[id(source)], key)

    def _fetch(self, value: Any, source: str, key: str) -> Any:
        """A value on a tower's device, with what Keras hung on it."""
        target_of = self._placed.target_of
        if target_of[source] == target_of[key] or not isinstance(value, tf.Tensor):
            return value
        local = self._cuts.arrive(value, key)
        for name in CARRIED:
            hung = getattr(value, name, None)
            if hung is not None:
                setattr(local, name, hung)
        return local

    @contextlib.contextmanager
    def _moments(
        self, node: Any, replicas: Replicas, rows: Rows, seen: list[dict[int, Any]]
    ) -> Iterator[None]:
        """Let a synchronised BatchNormalization see the moments of the whole batch."""
        layer = node.operation
        if not replicas.synchronised or not isinstance(
            layer, keras.layers.BatchNormalization
        ):
            yield
            return
        plain = keras_api.moments_of(layer)
        found: list[Any] = []

        def moments(inputs: Any, mask: Any) -> Any:
            if not found:
                each = []
                for i, key in enumerate(replicas.keys):
                    value, *masks = seen[i].values()
                    with self._at(key):
                        local = tf.cast(value, inputs.dtype)
                        kept = masks[0] if masks else getattr(value, CARRIED[0], None)
                        kept = kept if mask is not None else None
                        each.append((*plain(local, kept), kept))
                with self._at(replicas.home):
                    found.append(_combined(each, rows))
            return found[0]

        with keras_api.with_moments(layer, moments):
            yield


def _combined(each: list[tuple[Any, Any, Any]], rows: Rows) -> tuple[Any, Any]:
    """Mean and variance of the whole batch from each tower's.

    The variance of a union is the mean variance plus the variance of the means.
    """
    dtype = each[0][0].dtype
    if each[0][2] is None:
        weights = [tf.cast(share, dtype) for share in rows.weights()]
    else:
        counts = [
            tf.reduce_sum(tf.cast(mask, dtype)) * tf.cast(real, dtype)
            for (_, _, mask), real in zip(each, rows.real())
        ]
        weights = [tf.math.divide_no_nan(c, tf.add_n(counts)) for c in counts]
    mean = tf.add_n([w * m for w, (m, _, _) in zip(weights, each)])
    spread = [v + tf.square(m - mean) for m, v, _ in each]
    return mean, tf.add_n([w * s for w, s in zip(weights, spread)])


class _States:
    """What one call changes besides its outputs, tower by tower: states and losses.

    All towers start from the same state but for random seeds, which go on from tower to
    tower. A float's new value is the mean over towers, weighted by their samples; any
    other's is the first tower's. Losses are means over samples, as Keras' own.
    """

    def __init__(self, operation: Any, cuts: Cuts, replicas: Replicas) -> None:
        self._operation, self._cuts, self._replicas = operation, cuts, replicas
        self._scopes: list[Any] = []
        self._seeds: dict[int, Any] = {}
        self._given: list[dict[int, Any]] = []
        self._variables = variables_of(operation)

    @contextlib.contextmanager
    def seen_by(self, key: str) -> Iterator[None]:
        """The state as one tower reads it, on its device."""
        given = {
            id(v): self._cuts.weight_at(v, key)
            for v in self._cuts.away(key, self._operation)
        }
        if keras_api.in_stateless_scope():
            for v in self._variables:
                given.setdefault(id(v), v.value)
        given |= self._seeds
        mapping = [(v, given[id(v)]) for v in self._variables if id(v) in given]
        with StateScope(
            mapping, collect_losses=True, initialize_variables=False
        ) as scope:
            self._given.append({id(v): scope.get_current_value(v) for v, _ in mapping})
            yield
        self._scopes.append(scope)
        for v in self._variables:
            if _is_seed(v) and (value := self._changed(v, -1)) is not None:
                self._seeds[id(v)] = value

    def _changed(self, variable: Any, number: int) -> Any:
        """The value a tower gave a variable; None if it left it alone."""
        value = self._scopes[number].get_current_value(variable)
        before = self._given[number].get(id(variable))
        return None if value is before else value

    def settle(self, rows: Rows) -> None:
        """Give every variable its new value, and the call its losses."""
        for v in self._variables:
            values = [self._changed(v, i) for i in range(self._replicas.count)]
            if any(value is None for value in values):
                continue
            if _is_seed(v):
                v.assign(values[-1])
            elif tf.as_dtype(v.dtype).is_floating:
                v.assign(rows.mean([tf.convert_to_tensor(x) for x in values]))
            else:
                v.assign(values[0])
        losses = [scope.losses for scope in self._scopes]
        for each in zip(*losses):
            self._operation.add_loss(rows.mean(list(each)))


def _is_seed(variable: Any) -> bool:
    return bool(variable.name == "seed_generator_state")
