"""Towers: a part of the model on several devices, each with its share of the batch.

The model's graph holds the body once, and it is traced once; it is called on each
tower's device with that tower's samples, and what leaves the towers is concatenated in
the order of the samples. TensorFlow's kernels may crash on an empty batch, so a batch
smaller than the number of towers is padded with copies of its first sample; what comes
of them is cut off, and counts for nothing in gradients, losses and moving averages.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import keras_api
from splitnet.tf.internals.keras_api import CARRIED, states_of, weights_of
from splitnet.tf.placement.device_function import scope_of
from splitnet.tf.placement.part_function import PartFunction, Segment, StateScope
from splitnet.tf.placement.placed import Placed, Replicas, Run


@dataclass(frozen=True)
class Shards:
    """How many samples there are, a scalar tensor, and over how many towers they go."""

    extent: Any
    count: int

    def _sizes(self, extent: Any) -> Any:
        """How many samples go to each tower, earlier ones first."""
        return (extent + self.count - 1 - tf.range(self.count)) // self.count

    def weights(self) -> list[Any]:
        """Each tower's share of the samples, float64; the sum is 1."""
        shares = self._sizes(self.extent) / tf.maximum(self.extent, 1)
        return list(tf.unstack(shares, self.count))

    def split(self, value: Any) -> list[Any]:
        """Cut a tensor, and its mask, into a piece for each tower, each with a sample.

        The last may be copies of the first sample; no gradient comes back through them.
        """
        missing = tf.maximum(self.count - self.extent, 0)
        sizes = self._sizes(tf.maximum(self.extent, self.count))

        def cut(whole: Any) -> list[Any]:
            if isinstance(whole, tf.RaggedTensor):
                rows = tf.minimum(tf.range(tf.reduce_sum(sizes)), self.extent - 1)
                return [tf.gather(whole, part) for part in tf.split(rows, sizes)]
            each = tf.shape(whole)[0] // tf.maximum(self.extent, 1)  # rows of a sample
            copies = tf.repeat(tf.stop_gradient(whole[:each]), missing, axis=0)
            return tf.split(tf.concat([whole, copies], 0), each * sizes, num=self.count)

        pieces = cut(value)
        for name in CARRIED:
            if (attached := getattr(value, name, None)) is not None:
                for piece, one in zip(pieces, cut(attached)):
                    setattr(piece, name, one)
        return pieces

    def join(self, pieces: list[Any]) -> Any:
        """Put pieces together in order, without what came of the copies."""

        def joined(each: list[Any]) -> Any:  # a sample may have become several rows
            rows = tf.shape(whole := tf.concat(each, 0))[0]
            copies = tf.maximum(self.count - self.extent, 0)
            return whole[: rows - rows // (self.extent + copies) * copies]

        whole = joined(pieces)
        for name in CARRIED:
            attached = [getattr(piece, name, None) for piece in pieces]
            if all(one is not None for one in attached):
                with tf.name_scope(keras_api.CARRIED_SCOPE):
                    setattr(whole, name, joined(attached))
        return whole

    def mean(self, values: list[Any]) -> Any:
        """The mean over towers, each weighted by its samples."""
        pairs = zip(self.weights(), values)
        return tf.add_n([tf.cast(weight, v.dtype) * v for weight, v in pairs])


@dataclass(frozen=True, slots=True, eq=False)
class TowerRunner:
    """What runs a segment once on each tower."""

    segment: Segment
    replicas: Replicas
    placed: Placed

    def run(self, run: Run) -> None:
        """Run the segment on every tower, in the graph of a step."""
        shards = self._shards(run)
        read = [self._share(run, old, shards) for old in self.segment.reads]
        each = [[of[i] for of in read] for i in range(shards.count)]
        own = [node.operation for node in self.segment.nodes]
        with tf.device(self._on(self.replicas.home)), keras_api.penalties_summed(own):
            states, outputs, losses = self._call(run, shards, each)
            for operation, its in losses:  # means over samples
                if its[0].shape.rank:  # or a number for each, which Keras adds up
                    listed = bool(run.shared.turns)  # over micro-batches as well
                    sums = [tf.reduce_sum(one, keepdims=listed) for one in its]
                    shares = [tf.cast(w, its[0].dtype) for w in shards.weights()]
                    its = map(tf.math.divide_no_nan, sums, shares)
                keras.layers.Layer.add_loss(operation, shards.mean([*its]))
            for number, (variable, value) in states[0].items():
                # A state that is a float becomes the mean, any other that of the first.
                values = [one[number][1] for one in states if number in one]
                if len(values) == len(states):
                    floating = tf.as_dtype(variable.dtype).is_floating
                    run.assign(variable, shards.mean(values) if floating else value)
        for old, made in zip(self.segment.gives, zip(*outputs)):
            run.extra.setdefault("local", {})[id(old)] = made
            run.give_later(old, partial(self._joined, run, shards, old, made))

    def _call(self, run: Run, shards: Shards, each: list[list[Any]]) -> Any:
        """New states by id, outputs and losses of each tower, as `each` reads."""
        function = PartFunction(self.segment, "")
        states: list[dict[int, Any]] = []
        losses, outputs = [], []
        for key, given in zip(self.replicas.keys, each):
            trace, made = function.call(run, given, self._on(key), key)
            outputs.append(made["outputs"])
            losses.append(made["losses"])
            states.append({})
            for variable, value in trace.new_states(run, made):
                if variable.name == "seed_generator_state":  # on from tower to tower
                    run.assign(variable, value)
                else:
                    states[-1][id(variable)] = variable, value
        return states, outputs, zip(trace.owners, zip(*losses))

    def _on(self, key: str) -> str:
        return self.placed.target_of[key]

    def _feeding(self, old: Any) -> Replicas | None:
        """The towers that made a tensor, if these read it sample by sample."""
        theirs = self.placed.replicas.get(id(keras_api.producer(old)))
        alike = theirs is not None and len(theirs.keys) == len(self.replicas.keys)
        return theirs if alike else None

    def _shards(self, run: Run) -> Shards:
        """How the samples are cut: as those of the towers before, or by an input."""
        known: dict[str, Shards] = run.extra.setdefault("shards", {})
        join, reads = self.replicas.join, self.segment.reads
        if join not in known:
            if theirs := next(filter(None, map(self._feeding, reads)), None):
                return known.setdefault(join, known[theirs.join])
            # Where the tensor is: elsewhere all of it would cross for its shape.
            given = [old for old in reads if is_split(old)]
            keys = (self.placed.key_of[id(keras_api.producer(old))] for old in given)
            split = [*zip(map(run.value, given), keys)]
            others = ((v, join) for v in run.tensors.values() if v is not None)
            batched, key = split[0] if split else next(others)
            with tf.device(self._on(key)):
                known[join] = Shards(tf.shape(batched)[0], len(self.replicas.keys))
        return known[join]

    def _share(self, run: Run, old: Any, shards: Shards) -> list[Any]:
        """What each tower reads of a tensor: its own, its share, or the whole."""
        targets = list(map(self._on, self.replicas.keys))
        if (theirs := self._feeding(old)) is not None:
            homes = map(self._on, theirs.keys)
            return list(map(run.moved, run.extra["local"][id(old)], homes, targets))
        if not is_split(old):
            return [run.arrive(old, target) for target in targets]
        pieces = run.extra.setdefault("pieces", {})
        key = self.placed.key_of[id(keras_api.producer(old))]
        if (id(old), shards.count) not in pieces:
            whole = run.value(old)
            with tf.name_scope(scope_of(key)), tf.device(self._on(key)):
                pieces[id(old), shards.count] = shards.split(whole)
        each = pieces[id(old), shards.count]
        return [run.moved(one, self._on(key), at) for one, at in zip(each, targets)]

    def _joined(self, run: Run, shards: Shards, old: Any, made: Any) -> None:
        """Join what the towers made, because something else than towers reads it."""
        join = self._on(self.replicas.join)
        with tf.name_scope(scope_of(self.replicas.join)), tf.device(join):
            homes = map(self._on, self.replicas.keys)
            pieces = [run.moved(v, home, join) for v, home in zip(made, homes)]
            run.give(old, shards.join(pieces), join)


def is_split(tensor: Any) -> bool:
    """Whether the first axis of a symbolic tensor is the batch."""
    return tuple(tensor.shape[:1]) == (None,)


class SynchronisedNorm(TowerRunner):
    """A BatchNormalization that sees the mean and variance of the whole batch.

    All towers meet here; its few ops run in the step's graph, on each tower's device.
    """

    def _call(self, run: Run, shards: Shards, each: list[list[Any]]) -> Any:
        """The moments are made when the first tower asks, at the weights' home."""
        [node] = self.segment.nodes
        layer, keys = node.operation, self.replicas.keys
        home = self._on(self.replicas.home)
        found: list[Any] = []
        outputs, states, losses = [], [], []

        def moments(asked: Any, mask: Any) -> tuple[Any, ...]:
            if not found:
                own = []
                for key, (value, *masks) in zip(keys, each):
                    with tf.name_scope(scope_of(key)), tf.device(self._on(key)):
                        kept = masks[0] if masks else keras_api.mask_of(value)
                        kept = None if mask is None else kept
                        made = [*plainly(tf.cast(value, asked.dtype), kept)]
                        if kept is not None:
                            made.append(tf.reduce_sum(tf.cast(kept, asked.dtype)))
                    own.append([run.moved(one, self._on(key), home) for one in made])
                with tf.name_scope(scope_of(self.replicas.home)), tf.device(home):
                    found.extend(_combined(own, shards))
            target = self._on(keys[len(outputs)])
            return tuple(run.moved(one, home, target) for one in found)

        with keras_api.with_moments(layer, moments) as plainly:
            for key, given in zip(keys, each):
                device = self._on(key)
                mapping = [(v, run.weight(v, device)) for v in weights_of(layer)]
                mapping += [(v, run.state(v)) for v in states_of(layer)]
                seen: dict[int, Any] = dict(zip(map(id, self.segment.reads), given))
                scope = StateScope(mapping)
                with tf.name_scope(scope_of(key)), tf.device(device), scope:
                    keras_api.run_node(node, seen, run.context)
                outputs.append([seen[id(old)] for old in self.segment.gives])
                losses.append(scope.losses)
                new = scope.get_current_value
                states.append({i: (v, new(v)) for i, v in scope.assigned.items()})
        return states, outputs, ((layer, its) for its in zip(*losses))


def _combined(each: list[list[Any]], shards: Shards) -> tuple[Any, Any]:
    """Mean and variance of all samples (law of total variance); counts, if masked."""
    means, variances, *counts = zip(*each)
    dtype = means[0].dtype
    if counts:  # those of copies of the first sample are none
        of_samples = [tf.cast(i < shards.extent, dtype) for i in range(shards.count)]
        real = [count * one for count, one in zip(counts[0], of_samples)]
        weights = [tf.math.divide_no_nan(n, tf.add_n(real)) for n in real]
    else:
        weights = [tf.cast(share, dtype) for share in shards.weights()]
    mean = tf.add_n([w * m for w, m in zip(weights, means)])
    spread = [v + tf.square(m - mean) for m, v in zip(means, variances)]
    return mean, tf.add_n([w * s for w, s in zip(weights, spread)])
