"""Towers: a part of the model on several devices, each with its share of the batch.

The model's graph holds the body once, and it is traced once; it is called on each
tower's device with that tower's samples, and what leaves the towers is concatenated in
the order of the samples. TensorFlow's kernels may crash on an empty batch, so a batch
smaller than the number of towers is padded with copies of its first sample; what comes
of them is cut off, and counts for nothing in gradients, losses and moving averages.
"""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.batch_shards import Shards
from splitnet.tf.placement.device_function import scope_of
from splitnet.tf.placement.part_function import PartFunction, run_node
from splitnet.tf.placement.placed import Placed, Replicas
from splitnet.tf.placement.run import Run, StateScope
from splitnet.tf.placement.segments import Segment
from splitnet.tf.reading.variables import states_of, weights_of


def is_synchronised(node: Any, replicas: Replicas) -> bool:
    """Whether a call is a BatchNormalization in which all towers meet."""
    norm = keras.layers.BatchNormalization
    return replicas.synchronised and isinstance(node.operation, norm)


def leaving(placed: Placed) -> frozenset[int]:
    """The tensors of towers, by id, that others read or that the model returns."""
    found = {id(t) for t in placed.flow.outputs}
    for node in placed.flow.nodes:
        mine = placed.replicas.get(id(node))
        for tensor in node.input_tensors:
            theirs = placed.replicas.get(id(keras_api.producer(tensor)))
            if theirs is not None and (mine is None or not theirs.feeds(mine)):
                found.add(id(tensor))
    return frozenset(found)


@dataclass(frozen=True, slots=True, eq=False)
class TowerRunner:
    """What runs a segment once on each tower.

    `leaving` holds the ids of the tensors of towers that something else reads.
    """

    segment: Segment
    replicas: Replicas
    placed: Placed
    leaving: frozenset[int]

    def run(self, run: Run) -> None:
        """Run the segment on every tower, in the graph of a step."""
        shards = self._shards(run)
        read = [self._share(run, old, shards) for old in self.segment.reads]
        each = [[of[i] for of in read] for i in range(shards.count)]
        with tf.device(self._on(self.replicas.home)):
            self._run(run, shards, each)

    def _run(self, run: Run, shards: Shards, each: list[list[Any]]) -> None:
        """Run the segment on every tower; `each` has what each of them reads."""
        function = PartFunction(self.segment, "")
        values: list[dict[int, Any]] = []
        losses, outputs = [], []
        for key, given in zip(self.replicas.keys, each):
            trace, made = function.call(run, given, self._on(key), key)
            outputs.append(made["outputs"])
            losses.append(made["losses"])
            values.append({})
            for variable, value in trace.new_states(run, made):
                if variable.name == "seed_generator_state":  # on from tower to tower
                    run.assign(variable, value)
                else:
                    values[-1][id(variable)] = variable, value
        for operation, of_towers in zip(trace.owners, zip(*losses)):
            operation.add_loss(shards.mean(list(of_towers)))  # a mean over samples
        self._give(run, shards, values, outputs)

    def _on(self, key: str) -> str:
        return self.placed.target_of[key]

    def _shards(self, run: Run) -> Shards:
        """How the samples are cut: as those of the towers before, or by an input."""
        known: dict[str, Shards] = run.extra.setdefault("shards", {})
        mine = self.replicas
        batched = next(t for t in run.tensors.values() if t is not None)
        for old in () if mine.join in known else self.segment.reads:
            theirs = self.placed.replicas.get(id(keras_api.producer(old)))
            if theirs is not None and theirs.feeds(mine):
                return known.setdefault(mine.join, known[theirs.join])
            if self._is_split(old):
                batched = run.tensors[id(old)]
                break
        if mine.join not in known:
            with tf.device(self._on(mine.join)):
                known[mine.join] = Shards.of(batched, len(mine.keys))
        return known[mine.join]

    def _share(self, run: Run, old: Any, shards: Shards) -> list[Any]:
        """What each tower reads of a tensor: its own, its share, or the whole."""
        source = keras_api.producer(old)
        targets = list(map(self._on, self.replicas.keys))
        theirs = self.placed.replicas.get(id(source))
        if theirs is not None and theirs.feeds(self.replicas):
            homes = map(self._on, theirs.keys)
            return list(map(run.moved, run.extra["local"][id(old)], homes, targets))
        if not self._is_split(old):
            return [run.arrive(old, target) for target in targets]
        pieces = run.extra.setdefault("pieces", {})
        key = self.placed.key_of[id(source)]
        home = self._on(key)
        if (id(old), shards.count) not in pieces:
            with tf.name_scope(scope_of(key)), tf.device(home):
                pieces[id(old), shards.count] = shards.split(run.tensors[id(old)])
        each = pieces[id(old), shards.count]
        return [run.moved(one, home, target) for one, target in zip(each, targets)]

    def _is_split(self, old: Any) -> bool:
        source = self.placed.key_of[id(keras_api.producer(old))]
        whole = source in self.replicas.broadcast
        return not whole and len(old.shape) > 0 and old.shape[0] is None

    def _give(
        self,
        run: Run,
        shards: Shards,
        values: list[dict[int, tuple[Any, Any]]],
        outputs: list[list[Any]],
    ) -> None:
        """Note what the towers made: new states, and tensors, joined if that is needed.

        A state that is a float becomes the mean, any other that of the first tower.
        """
        for number, (variable, value) in values[0].items():
            each = [one[number][1] for one in values if number in one]
            if len(each) == len(values):
                floating = tf.as_dtype(variable.dtype).is_floating
                run.assign(variable, shards.mean(each) if floating else value)
        scope, join = scope_of(self.replicas.join), self._on(self.replicas.join)
        for old, made in zip(self.segment.gives, zip(*outputs)):
            run.extra.setdefault("local", {})[id(old)] = made
            run.tensors[id(old)] = None
            if id(old) in self.leaving:
                with tf.name_scope(scope), tf.device(join):
                    homes = map(self._on, self.replicas.keys)
                    pieces = [run.moved(v, home, join) for v, home in zip(made, homes)]
                    run.give(old, shards.join(pieces), join)


class SynchronisedNorm(TowerRunner):
    """A BatchNormalization that sees the mean and variance of the whole batch.

    It divides the body in two functions: all towers meet here. Its few ops run in the
    step's own graph, each on its tower's device.
    """

    def _run(self, run: Run, shards: Shards, each: list[list[Any]]) -> None:
        """Run the layer on every tower with the moments of all.

        They are worked out when the first tower asks for them, at the weights' home.
        """
        [node] = self.segment.nodes
        layer, keys = node.operation, self.replicas.keys
        home = self._on(self.replicas.home)
        plainly = keras_api.moments_of(layer)
        found: list[Any] = []
        outputs, values = [], []

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

        with keras_api.with_moments(layer, moments):
            for key, given in zip(keys, each):
                device = self._on(key)
                mapping = [(v, run.weight(v, device)) for v in weights_of(layer)]
                mapping += [(v, run.state(v, first=True)) for v in states_of(layer)]
                seen: dict[int, Any] = dict(zip(map(id, self.segment.reads), given))
                with (
                    tf.name_scope(scope_of(key)),
                    tf.device(device),
                    StateScope(mapping) as scope,
                ):
                    run_node(node, seen, run.context)
                outputs.append([seen[id(old)] for old in self.segment.gives])
                new = scope.get_current_value
                values.append({i: (v, new(v)) for i, v in scope.assigned.items()})
        self._give(run, shards, values, outputs)


def _combined(each: list[list[Any]], shards: Shards) -> tuple[Any, Any]:
    """Mean and variance of the whole batch from each tower's; counts, if masked.

    The variance of a union is the mean variance plus the variance of the means.
    """
    means, variances, *counts = zip(*each)
    dtype = means[0].dtype
    if not counts:
        weights = [tf.cast(share, dtype) for share in shards.weights()]
    else:
        real = [n * tf.cast(one, dtype) for n, one in zip(counts[0], shards.real())]
        weights = [tf.math.divide_no_nan(n, tf.add_n(real)) for n in real]
    mean = tf.add_n([w * m for w, m in zip(weights, means)])
    spread = [v + tf.square(m - mean) for m, v in zip(means, variances)]
    return mean, tf.add_n([w * s for w, s in zip(weights, spread)])
