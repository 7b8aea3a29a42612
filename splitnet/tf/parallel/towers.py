"""Towers: a part of the model on several devices, each with its share of the batch.

The model's graph holds the body once, and it is traced once; it is called on each
tower's device with that tower's samples, and what leaves the towers is concatenated in
the order of the samples. TensorFlow's kernels may crash on an empty batch, so a batch
smaller than the number of towers is padded with copies of its first sample; what comes
of them is cut off, and counts for nothing in gradients, losses and moving averages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.plan import Plan
from splitnet.core.replication import tower_part, towers_in, weights_part
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.batch_shards import Shards
from splitnet.tf.placement.device_function import scope_of
from splitnet.tf.placement.part_function import PartFunction, run_node
from splitnet.tf.placement.placed import Placed
from splitnet.tf.placement.run import Run
from splitnet.tf.placement.segments import Segment
from splitnet.tf.placement.states import StateScope
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.reading.variables import states_of, weights_of

__all__ = [
    "Replicas",
    "SynchronisedNorm",
    "TowerRunner",
    "is_synchronised",
    "leaving",
    "replicas_of",
]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The keys of one branch's towers, of its weights' home and of its join."""

    keys: tuple[str, ...]
    home: str
    join: str
    synchronised: bool
    broadcast: frozenset[str]

    @property
    def count(self) -> int:
        """How many towers there are."""
        return len(self.keys)

    def feeds(self, others: "Replicas") -> bool:
        """Whether tower i of these hands its own samples to tower i of the others."""
        same = self.count == others.count and self.join not in others.broadcast
        return self.join == others.join or same


def leaving(flow: Flow, replicas: Mapping[int, Replicas]) -> frozenset[int]:
    """The tensors of towers, by id, that others read or that the model returns."""
    found = {id(t) for t in flow.outputs}
    for node in flow.nodes:
        mine = replicas.get(id(node))
        for tensor in node.input_tensors:
            theirs = replicas.get(id(keras_api.producer(tensor)))
            if theirs is not None and (mine is None or not theirs.feeds(mine)):
                found.add(id(tensor))
    return frozenset(found)


def replicas_of(plan: Plan, keys: Mapping[str, str]) -> dict[str, Replicas]:
    """The towers of a plan by the name of their part, in the keys of its marks."""
    return {
        name: Replicas(
            tuple(keys[tower_part(name, i)] for i in range(one.count)),
            keys.get(weights_part(name), keys[name]),
            keys[name],
            one.batch_norm == "synchronised",
            frozenset(keys[part] for part in one.broadcast if part in keys),
        )
        for name, one in towers_in(plan.graph).items()
    }


@dataclass(frozen=True, slots=True, eq=False)
class TowerRunner:
    """What runs a segment once on each tower.

    `others` holds all towers of the model by the id of a node, `leaving` the ids of
    the tensors that something else reads.
    """

    segment: Segment
    replicas: Replicas
    placed: Placed
    others: dict[int, Replicas]
    leaving: frozenset[int]

    def run(self, run: Run) -> None:
        """Run the segment on every tower, in a graph; else once, on the whole batch."""
        join = self.placed.target_of[self.replicas.join]
        function = PartFunction(self.segment, join)
        if tf.executing_eagerly() or keras_api.in_stateless_scope():
            function.run(run)
            return
        shards = self.shards(run)
        local = _local(run)
        inputs = [self.inputs(run, tensor, shards) for tensor in self.segment.reads]
        values, losses, outputs = [], [], []
        for number, key in enumerate(self.replicas.keys):
            given = [each[number] for each in inputs]
            device = self.placed.target_of[key]
            trace, made = function.call(run, given, device, key, captures=False)
            outputs.append(trace.outputs(made))
            losses.append(made["losses"])
            values.append(_advance_seeds(run, trace.new_states(run, made)))
        self.settle(run, shards, values)
        self.add_losses(shards, trace.owners, losses)
        for number, old in enumerate(self.segment.gives):
            self.give(run, shards, old, [each[number] for each in outputs], local)

    def shards(self, run: Run) -> Shards:
        """How the samples are cut: as those of the towers before, or by an input."""
        known = run.extra.setdefault("shards", {})
        mine = self.replicas
        if mine.join in known:
            return known[mine.join]
        with tf.device(self.placed.target_of[mine.join]):
            for old in self.segment.reads:
                theirs = self.others.get(id(keras_api.producer(old)))
                if theirs is not None and theirs.feeds(mine):
                    known[mine.join] = known[theirs.join]
                    return known[mine.join]
                if self._is_split(old):
                    known[mine.join] = Shards.of(run.tensors[id(old)], mine.count)
                    return known[mine.join]
            batched = next(t for t in run.tensors.values() if t is not None)
            return Shards.of(batched, mine.count)

    def inputs(self, run: Run, old: Any, shards: Shards) -> list[Any]:
        """What each tower reads of a tensor: its own, its share, or the whole."""
        source = keras_api.producer(old)
        targets = [self.placed.target_of[key] for key in self.replicas.keys]
        theirs = self.others.get(id(source))
        if theirs is not None and theirs.feeds(self.replicas):
            homes = [self.placed.target_of[key] for key in theirs.keys]
            values = _local(run)[id(old)]
            return list(map(run.moved, values, homes, targets))
        if not self._is_split(old):
            return [run.arrive(old, target) for target in targets]
        pieces = run.extra.setdefault("pieces", {})
        key = self.placed.key_of[id(source)]
        home = self.placed.target_of[key]
        if (id(old), shards.count) not in pieces:
            with tf.name_scope(scope_of(key)), tf.device(home):
                pieces[id(old), shards.count] = shards.split(run.tensors[id(old)])
        each = pieces[id(old), shards.count]
        return [run.moved(one, home, target) for one, target in zip(each, targets)]

    def _is_split(self, old: Any) -> bool:
        source = self.placed.key_of[id(keras_api.producer(old))]
        if source in self.replicas.broadcast:
            return False
        return len(old.shape) > 0 and old.shape[0] is None

    def settle(self, run: Run, shards: Shards, values: list[dict[int, Any]]) -> None:
        """Give each state its new value: a float the mean, else the first tower's."""
        for variable, _ in values[0].values():
            each = [one[id(variable)][1] for one in values if id(variable) in one]
            if len(each) < len(values):
                continue
            with tf.device(self.placed.target_of[self.replicas.home]):
                floating = tf.as_dtype(variable.dtype).is_floating
                run.assign(variable, shards.mean(each) if floating else each[0])

    def add_losses(
        self, shards: Shards, owners: Sequence[Any], losses: list[Any]
    ) -> None:
        """Losses are means over samples, as Keras' own."""
        with tf.device(self.placed.target_of[self.replicas.home]):
            for operation, each in zip(owners, zip(*losses)):
                operation.add_loss(shards.mean(list(each)))

    def give(
        self, run: Run, shards: Shards, old: Any, values: list[Any], local: Any
    ) -> None:
        """Note what each tower made of a tensor, and all together if it is needed."""
        local[id(old)] = values
        run.tensors[id(old)] = None
        if id(old) not in self.leaving:
            return
        join = self.placed.target_of[self.replicas.join]
        homes = [self.placed.target_of[key] for key in self.replicas.keys]
        with tf.name_scope(scope_of(self.replicas.join)), tf.device(join):
            pieces = [run.moved(v, home, join) for v, home in zip(values, homes)]
            run.give(old, shards.join(pieces), join)


class SynchronisedNorm(TowerRunner):
    """A BatchNormalization that sees the mean and variance of the whole batch.

    It divides the body in two functions: all towers meet here. Its few ops run in the
    step's own graph, each on its tower's device.
    """

    def run(self, run: Run) -> None:
        """Run the layer on every tower with the moments of all.

        They are worked out when the first tower asks for them, at the weights' home.
        """
        [node] = self.segment.nodes
        if tf.executing_eagerly() or keras_api.in_stateless_scope():
            super().run(run)
            return
        shards, device_of = self.shards(run), self.placed.target_of
        home = device_of[self.replicas.home]
        inputs = [self.inputs(run, tensor, shards) for tensor in self.segment.reads]
        each_of = self._each_of(run, keras_api.moments_of(node.operation), inputs)
        found: list[Any] = []
        outputs, values = [], []

        def moments(asked: Any, mask: Any) -> tuple[Any, ...]:
            if not found:
                each = each_of(asked.dtype, mask is not None)
                with tf.name_scope(scope_of(self.replicas.home)), tf.device(home):
                    found.extend(_combined(each, shards))
            target = device_of[self.replicas.keys[len(outputs)]]
            return tuple(run.moved(one, home, target) for one in found)

        with keras_api.with_moments(node.operation, moments):
            for key, *given in zip(self.replicas.keys, *inputs):
                seen, scope = self._call(run, node, given, key)
                outputs.append([seen[id(old)] for old in node.outputs])
                new = scope.get_current_value
                values.append({i: (v, new(v)) for i, v in scope.assigned.items()})
        self.settle(run, shards, values)
        for number, old in enumerate(node.outputs):
            self.give(run, shards, old, [made[number] for made in outputs], _local(run))

    def _each_of(
        self, run: Run, plainly: Callable[..., Any], inputs: list[list[Any]]
    ) -> Callable[[Any, bool], list[list[Any]]]:
        """What computes the moments of each tower, and copies them home.

        They are mean and variance of its samples; how many, if there is a mask.
        """
        device_of = self.placed.target_of

        def each_of(dtype: Any, masked: bool) -> list[list[Any]]:
            each = []
            for key, value, *masks in zip(self.replicas.keys, *inputs):
                kept = masks[0] if masks else keras_api.mask_of(value)
                with tf.name_scope(scope_of(key)), tf.device(device_of[key]):
                    found = list(
                        plainly(tf.cast(value, dtype), kept if masked else None)
                    )
                    if masked and kept is not None:
                        found.append(tf.reduce_sum(tf.cast(kept, dtype)))
                home = device_of[self.replicas.home]
                each.append([run.moved(one, device_of[key], home) for one in found])
            return each

        return each_of

    def _call(
        self, run: Run, node: Any, given: list[Any], key: str
    ) -> tuple[dict[int, Any], StateScope]:
        """The tensors of one tower's call, by symbolic id, and what it assigned."""
        layer, device = node.operation, self.placed.target_of[key]
        mapping = [(v, run.weight(v, device)) for v in weights_of(layer)]
        mapping += [(v, run.state(v, first=True)) for v in states_of(layer)]
        seen = {id(old): one for old, one in zip(self.segment.reads, given)}
        with (
            tf.name_scope(scope_of(key)),
            tf.device(device),
            StateScope(mapping) as scope,
        ):
            run_node(node, seen, run.context)
        return seen, scope


def _combined(each: list[list[Any]], shards: Shards) -> tuple[Any, Any]:
    """Mean and variance of the whole batch from each tower's.

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


def _local(run: Run) -> dict[int, list[Any]]:
    """What each tower made of a symbolic tensor, by its id."""
    found: dict[int, list[Any]] = run.extra.setdefault("local", {})
    return found


def _advance_seeds(run: Run, values: Any) -> dict[int, Any]:
    """New states by the id of the variable; seeds go on from tower to tower at once."""
    found = {}
    for variable, value in values:
        if variable.name == "seed_generator_state":
            run.assign(variable, value)
        else:
            found[id(variable)] = (variable, value)
    return found


def is_synchronised(node: Any, replicas: Replicas) -> bool:
    """Whether a call is a BatchNormalization in which all towers meet."""
    norm = keras.layers.BatchNormalization
    return replicas.synchronised and isinstance(node.operation, norm)
