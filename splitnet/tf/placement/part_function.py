"""Part functions: each part of a plan runs as one TensorFlow function on its device.

A function that is not inlined and is called under `tf.device(d)` runs forward and
backward on d, because ops without a device run where their function is called. Weights
and states come in as arguments, so that one trace serves several devices; outputs,
Keras masks, losses and new states go out. Only tables of which a layer reads rows, and
weights that a function of a layer's own reads, are captured as variables.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import networkx as nx
import numpy as np
import tensorflow as tf

from splitnet.simulator.units import condensed, function_runs
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.keras_api import CARRIED, states_of, tables_of, weights_of
from splitnet.tf.placement.device_function import device_of, scope_of
from splitnet.tf.placement.part_gradient import PartGradient, not_inlined, part_gradient
from splitnet.tf.placement.placed import Run
from splitnet.tf.reading.flatten import Flow


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A convex run of calls, each with the key of its part.

    `reads` and `gives` are the tensors that come from outside and that others need.
    """

    nodes: tuple[Any, ...]
    keys: tuple[str, ...]
    reads: tuple[Any, ...]
    gives: tuple[Any, ...]


def segments_of(
    flow: Flow, key_of: Mapping[int, str], units: Sequence[Any]
) -> Iterator[Segment]:
    """The calls of a model as segments, in an order in which they can run.

    A segment starts where something arrives from another place, and ends where another
    needs something. `units` has (device, how) of each node, and what calls of a segment
    share inside of such a run: a part, as the simulator's functions do.
    """
    place = {id(node): number for number, node in enumerate(flow.nodes)}
    reads = [
        [
            (place[id(maker)], id(tensor))
            for tensor in node.input_tensors
            if id(maker := keras_api.producer(tensor)) in place
        ]
        for node in flow.nodes
    ]
    made_on = {id(t): u[0] for node, u in zip(flow.nodes, units) for t in node.outputs}
    group = dict[int, int]()
    for run in function_runs(reads, [unit[:2] for unit in units]):
        at = {n: i for i, n in enumerate(run)}
        inside = [[(at[m], t) for m, t in reads[n] if m in at] for n in run]
        for piece in function_runs(inside, [units[n][2:] for n in run]):
            group |= {run[i]: run[piece[0]] for i in piece}
    pairs = ((source, n) for n, own in enumerate(reads) for source, _ in own)
    order = condensed([group[n] for n in range(len(reads))], pairs)
    nodes: dict[int, list[Any]] = {number: [] for number in order}
    readers: dict[int, set[int]] = {id(tensor): {-1} for tensor in flow.outputs}
    changed: dict[int, int] = {}  # the group that changed a state variable last
    for n, node in enumerate(flow.nodes):
        mine = group[n]
        nodes[mine].append(node)
        for tensor in node.input_tensors:
            readers.setdefault(id(tensor), set()).add(mine)
        for variable in states_of(node.operation):
            before = changed.get(id(variable), mine)
            if before != mine and not nx.has_path(order, mine, before):
                order.add_edge(before, mine)
            changed[id(variable)] = mine

    for number in nx.lexicographical_topological_sort(order):
        run = nodes[number]
        outputs = [tensor for node in run for tensor in node.outputs]
        made = set(map(id, outputs))
        # Copies last: TensorFlow runs first what reads the last result of a function,
        # so the gradient of a copy leaves before the device goes on.
        outside = [t for one in run for t in one.input_tensors if id(t) not in made]
        near = [t for t in outside if made_on.get(id(t)) == units[number][0]]
        yield Segment(
            nodes=tuple(run),
            keys=tuple(key_of[id(node)] for node in run),
            reads=tuple({id(t): t for t in (*near, *outside)}.values()),
            gives=tuple(t for t in outputs if readers.get(id(t), set()) - {number}),
        )


class StateScope(keras.StatelessScope):
    """A stateless scope that lists the variables that calls assign.

    Inside a `tf.function`, `tf.custom_gradient` or `tf.recompute_grad` of a layer's
    own, variables are read themselves: TensorFlow would give no gradient to a value
    that such a function captures. So are those that a loop, a branch or such a function
    assigns, which no tensor leaves. The ids of all are `captured`; what was `captured`
    before is assigned where it is.
    """

    def __init__(self, states: Any, weights: Any = (), captured: Any = ()) -> None:
        mapping = [*states, *weights]
        super().__init__(mapping, collect_losses=True, initialize_variables=False)
        self.assigned: dict[int, Any] = {}
        self.captured: set[int] = set()
        self._weights = {id(variable): value for variable, value in weights}
        self._entered = tf_api.functions_entered()
        self._before, self._graph = captured, tf.compat.v1.get_default_graph()
        self.inside = False  # whether something was assigned in a loop or function

    def get_current_value(self, variable: Any) -> Any:
        """The value of a variable in this scope; None for that of the variable."""
        if tf_api.functions_entered() > self._entered:
            self.captured.add(id(variable))
            return None
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Note what a variable is assigned."""
        variable, value = update
        inside = tf.compat.v1.get_default_graph() is not self._graph
        if inside or id(variable) in self._before:
            self.captured.add(id(variable))
            self.inside = True
            keras_api.assign_value(variable, value)
            return
        self.assigned[id(variable)] = variable
        value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
        # A variable that is assigned and read again has no gradient of that value
        # either; a weight has its own, as SpectralNormalization's.
        value = tf.stop_gradient(value)
        if (weight := self._weights.get(id(variable))) is not None:
            value += weight - tf.stop_gradient(weight)
        super().add_update((variable, value))

    def updates(
        self, states: Iterable[tuple[Any, Any]]
    ) -> tuple[list[tuple[Any, Any, Any]], list[Any]]:
        """The updates of assigned variables, and the offset of each that is a tensor.

        `states` are variables with their values before. An update is (variable, scale,
        offset) for `scale * old + offset`, or the offset if the scale is None. Offsets
        that are tensors are None there, and are all that the body returns. So a second
        call of the layer waits for a small update and not for the whole first call.
        """
        before = {id(variable): old for variable, old in states}
        updates, offsets = [], []
        for variable in self.assigned.values():
            old, new = before.get(id(variable)), self.get_current_value(variable)
            scale, offset = (old is not None and _affine(new, old)) or (None, new)
            constant = 0 if offset is None else tf.get_static_value(offset)
            updates.append((variable, scale, constant))
            offsets.append(offset if constant is None else None)
        return updates, offsets


def _affine(new: Any, old: Any) -> tuple[Any, Any] | None:
    """The scale and the offset of a traced sum or product of a tensor, or None."""
    if new is old:
        return np.ones((), old.dtype.as_numpy_dtype), None
    op = new.op
    if op.type in ("Identity", "StopGradient"):
        return _affine(op.inputs[0], old)
    if op.type not in ("Add", "AddV2", "Mul"):
        return None
    for mine, other in (tuple(op.inputs), tuple(op.inputs)[::-1]):
        if (inner := _affine(mine, old)) is None:
            continue
        scale, offset = inner
        if op.type == "Mul":
            if (factor := tf.get_static_value(other)) is None:
                return None
            return scale * factor, None if offset is None else offset * other
        if old.op in tf_api.ancestors([other.op]):
            return None
        return scale, other if offset is None else offset + other
    return None


@dataclass(frozen=True, slots=True, eq=False)
class PartFunction:
    """A segment as a function on a device.

    `how` is "" for a plain function, "xla" for a compiled one, "recompute" for one that
    keeps its inputs for the backward pass and nothing else.
    """

    segment: Segment
    device: str
    how: str = ""

    def run(self, run: Run) -> None:
        """Run the part on its device, in the graph of a step."""
        segment = self.segment
        if any(id(tensor) not in run.tensors for tensor in segment.reads):
            return
        given = [run.arrive(tensor, self.device) for tensor in segment.reads]
        trace, made = self.call(run, given, self.device, segment.keys[0])
        for number in trace.unmasked:
            keras_api.set_mask(run.tensors[id(segment.reads[number])], None)
        for variable, value in trace.new_states(run, made):
            run.assign(variable, value)
        for operation, loss in zip(trace.owners, made["losses"]):
            keras.layers.Layer.add_loss(operation, loss)  # a Functional's raises
        for (layer, name), value in zip(trace.kept, made["kept"]):
            vars(layer)[name] = value
        for old, value in zip(segment.gives, made["outputs"]):
            run.give(old, value, self.device)

    def call(self, run: Run, given: Any, device: str, key: str) -> tuple["Trace", Any]:
        """Call the function as a part on a device, where the values are that it reads.

        It is traced once per signature and step. Returns its trace, and what it made.
        """
        masks = [keras_api.mask_of(value) for value in given]
        signature = ([_spec(v) for v in given], [_spec(v) for v in masks])
        known = (id(self.segment), *map(repr, tf.nest.flatten(signature)))
        traces, turns = run.shared.traces, run.shared.turns
        if known not in traces:
            traces[known] = Trace(self, run.context, signature)
        trace: Trace = traces[known]
        weights = [run.weight(v, device) for v in trace.weights]
        states = [run.state(v, first=id(v) in trace.early) for v in trace.states]
        unit = id(self.segment), key
        with (
            tf.name_scope(scope_of(key)),
            tf.device(device),
            tf.control_dependencies(turns.before(unit) if turns else []),
        ):
            made = trace.run(run, [given, masks, weights, states], device, unit)
        if turns:
            turns.ran(unit, made)
        for name, attached in zip(CARRIED, made["attached"]):
            for value, one in zip(made["outputs"], attached):
                if one is not None:
                    setattr(value, name, one)
        return trace, made


class Trace:
    """A part's body, traced for one signature.

    `trained` are the weights of its calls, `weights` those that are arguments. `states`
    with an id in `early` may be read as they were at the start of the step. A call took
    off the masks of the reads `unmasked`; `owners` are the operations that made the
    losses, `kept` the layers and attributes that keep tensors.
    """

    def __init__(
        self, part: PartFunction, context: Mapping[str, Any], signature: tuple[Any, Any]
    ) -> None:
        self._segment, self._how, self._context = part.segment, part.how, context
        self._name = scope_of(part.segment.keys[0])
        self._gradients: dict[Any, PartGradient | None] = {}
        operations = [node.operation for node in part.segment.nodes]
        left_out = {id(v) for one in operations for v in tables_of(one)}
        self._direct = set[int]()  # variables that are assigned where they are
        self.trained = [*{id(v): v for o in operations for v in weights_of(o)}.values()]
        self.states = [*{id(v): v for o in operations for v in states_of(o)}.values()]
        captured = {-1}
        while captured:  # weights that functions of a layer's own read
            self.weights = [v for v in self.trained if id(v) not in left_out]
            read = [v for v in self.trained if id(v) in left_out]
            if part.how == "xla" and any(device_of(v) != part.device for v in read):
                self._how = ""  # XLA reads variables of its own device only
            self._trace(signature)
            captured = self._captured - left_out
            left_out |= captured
            self._direct |= captured
            self.states = [v for v in self.states if id(v) not in captured]
            seed = keras_api.seed_of_all()  # a user's layer may draw from it
            if id(seed) in self._assigned - set(map(id, self.states)):
                self.states.append(seed)
                captured = captured or {-1}

    def _trace(self, signature: tuple[Any, Any]) -> None:
        def named(given: Any, masks: Any, weights: Any, states: Any) -> Any:
            return self._body(given, masks, weights, states)

        named.__name__ = self._name
        function = not_inlined(named, self._how)
        specs = [[_spec(v) for v in vs] for vs in (self.weights, self.states)]
        with tf.init_scope():  # without the devices of the step that is being made
            self.function = function.get_concrete_function(*signature, *specs)
        self._ops = self.function.graph.get_operations()
        outputs = self.function.structured_outputs
        self._leaves = tf.nest.flatten(outputs, expand_composites=True)

    def _body(self, given: Any, masks: Any, weights: Any, states: Any) -> Any:
        """What the function returns."""
        part, local = self._segment, dict[int, Any]()
        for old, value, mask in zip(part.reads, given, masks):
            if mask is not None:
                keras_api.set_mask(value, mask)
            local[id(old)] = value
        self.owners: list[Any] = []
        pairs = list(zip(self.states, states))
        known = pairs, list(zip(self.weights, weights)), self._direct
        with StateScope(*known) as scope:
            for key, node in zip(part.keys, part.nodes):
                with tf.name_scope(scope_of(key)):
                    keras_api.run_node(node, local, self._context)
                self.owners += [node.operation] * (len(scope.losses) - len(self.owners))
        self._captured, self._assigned = scope.captured, {*scope.assigned}
        self._how *= not scope.inside  # what is computed again would be assigned again
        self.unmasked = [
            number
            for number, (old, mask) in enumerate(zip(part.reads, masks))
            if mask is not None and keras_api.mask_of(local[id(old)]) is None
        ]
        graph = tf.compat.v1.get_default_graph()
        self.kept = [
            (layer, name)
            for node in part.nodes
            for layer in keras_api.sublayers(node.operation)
            for name, value in vars(layer).items()
            if isinstance(value, tf.Tensor) and getattr(value, "graph", None) is graph
        ]
        self._updates, offsets = scope.updates(pairs)
        outputs = [local.get(id(old)) for old in part.gives]
        made = {
            "outputs": outputs,
            "attached": [[getattr(v, n, None) for v in outputs] for n in CARRIED],
            "losses": [tf.convert_to_tensor(loss) for loss in scope.losses],
            "kept": [vars(layer)[name] for layer, name in self.kept],
            "states": offsets,
        }
        leaves = tf.nest.flatten(made, expand_composites=True)
        needed = tf_api.ancestors(one.op for one in leaves if one is not None)
        self.early = {id(v) for v, old in pairs if old.op not in needed}
        return made

    def run(self, run: Run, args: list[Any], on: str, unit: tuple[int, str]) -> Any:
        """Call the function; its gradient runs on the same device."""
        function, turns = self.function, run.shared.turns
        for variable in function.variables:
            tf_api.note_read(variable)
        flat = tf.nest.flatten(args, expand_composites=True)
        inputs = [one for one in flat if isinstance(one, tf.Tensor)]
        inputs += [outside for outside, _ in function.graph.captures]
        if tf_api.gradient_order(inputs) != 1:
            return function(*args)
        of_weight = {id(one): v for v, one in zip(self.weights, args[2])}
        values = of_weight | {id(v.value.handle): v for v in self.trained}
        frozen = {i for i, v in values.items() if run.trains and not v.trainable}
        wanted = [i for i, one in enumerate(inputs) if id(one) not in frozen]
        wanted = [i for i in wanted if tf_api.gradient_order([inputs[i]])]
        # What leaves the device behind gradients of weights: the last one leaves first.
        given = set(map(id, tf.nest.flatten(args[0], expand_composites=True)))
        wanted.sort(key=lambda i: id(inputs[i]) in given)
        on_cpu = tf.DeviceSpec.from_string(on).device_type == "CPU"
        known, how = (*wanted, on_cpu), self._how
        if known not in self._gradients:
            self._gradients[known] = part_gradient(
                function, self._ops, wanted, self._name, how=how, on_cpu=on_cpu
            )
        if (gradient := self._gradients[known]) is None:
            return function(*args)
        with tf_api.stop_recording():
            made = gradient.forward(*inputs[: gradient.arguments])
        count = sum(one is not None for one in self._leaves)
        kept = [*(inputs[i] for i in gradient.reused), *made[count:]]

        def backward(*flows: Any) -> list[Any]:
            run.on_gradient()
            flows = tuple(map(tf.convert_to_tensor, flows))
            with tf.name_scope(scope_of(unit[1])), tf.device(on):
                found = gradient.backward(*kept, *flows)
            reached = list(found)
            own = dict[tuple[int, str], Any]()
            for place, i in enumerate(gradient.reached):
                if turns and id(inputs[i]) in of_weight:
                    key_of_sum = (id(of_weight[id(inputs[i])]), on)
                    own[key_of_sum], reached[place] = reached[place], None
                elif inputs[i].dtype == tf.resource:  # summed where the variable is
                    with tf.device(inputs[i].device):
                        reached[place] = tf.identity(reached[place])
            if turns:
                turns.ran(unit, found, back=True)
                turns.add(own)
            return reached

        given_by = [inputs[i] for i in gradient.reached]
        tf_api.record_gradient([made[i] for i in gradient.flows], given_by, backward)
        there = iter(made)
        leaves = [one if one is None else next(there) for one in self._leaves]
        outputs = function.structured_outputs
        return tf.nest.pack_sequence_as(outputs, leaves, expand_composites=True)

    def new_states(self, run: Run, made: Any) -> Iterator[tuple[Any, Any]]:
        """Each variable that the calls changed, with its new value, at its home."""
        for (variable, scale, constant), offset in zip(self._updates, made["states"]):
            value = offset if constant is None else constant
            with tf.device(device_of(variable)):
                if scale is not None:
                    old = run.state(variable)
                    scaled = old if np.all(scale == 1) else old * scale
                    value = tf.stop_gradient(scaled + tf.cast(value, old.dtype))
                yield variable, value


def _spec(value: Any) -> Any:
    """The signature of a tensor or variable; anything else is a constant."""
    if isinstance(value, tf.Tensor | keras.Variable):
        return tf.TensorSpec(value.shape, value.dtype)
    return tf.type_spec_from_value(value) if tf.is_tensor(value) else value
