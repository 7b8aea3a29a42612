"""Part functions: each part of a plan runs as one TensorFlow function on its device.

A function that is not inlined and is called under `tf.device(d)` runs forward and
backward on d, because ops without a device run where their function is called. Weights
and states come in as arguments, so that one trace serves several devices; outputs,
Keras masks, losses and new states go out. Only tables of which a layer reads rows, and
weights that a function of a layer's own reads, are captured as variables.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.keras_api import CARRIED, mask_of
from splitnet.tf.placement.device_function import ancestors, body_name, scope_of
from splitnet.tf.placement.part_gradient import PartGradient, part_gradient
from splitnet.tf.placement.run import Run, StateScope, copied, device_of
from splitnet.tf.placement.segments import Segment
from splitnet.tf.reading.variables import states_of, tables_of, weights_of


def run_node(node: Any, tensors: dict[int, Any], context: Mapping[str, Any]) -> None:
    """Run one call; an optional input that is missing skips it, as Keras does."""
    if any(id(tensor) not in tensors for tensor in node.input_tensors):
        return
    args, kwargs = node.arguments.fill_in(tensors)
    made = keras_api.operation_fn(node.operation, **context)(*args, **kwargs)
    for old, new in zip(node.outputs, keras.tree.flatten(made)):
        tensors[id(old)] = new


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
        trace, made = self.call(run, given, self.device, segment.key)
        for number in trace.unmasked:
            _attach(run.tensors.get(id(segment.reads[number])), CARRIED[0], None)
        for variable, value in trace.new_states(run, made):
            run.assign(variable, value)
        for operation, loss in zip(trace.owners, made["losses"]):
            operation.add_loss(loss)
        for (layer, name), value in zip(trace.kept, made["kept"]):
            vars(layer)[name] = value
        for old, value in zip(segment.gives, made["outputs"]):
            run.give(old, value, self.device)

    def call(
        self, run: Run, given: list[Any], device: str, key: str
    ) -> tuple["Trace", Any]:
        """Call the function as a part on a device, where the values are that it reads.

        It is traced once per signature and step. Returns its trace, and what it made.
        """
        masks = [mask_of(value) for value in given]
        signature = ([_spec(v) for v in given], [_spec(v) for v in masks])
        known = (id(self.segment), *map(repr, tf.nest.flatten(signature)))
        traces, turns = run.shared.traces, run.shared.turns
        if known not in traces:
            traces[known] = Trace(self, run.context, signature)
        trace: Trace = traces[known]
        weights = [run.weight(v, device) for v in trace.weights]
        states = [run.state(v, first=id(v) in trace.early) for v in trace.states]
        before = turns.before((id(self.segment), key)) if turns else []
        with (
            tf.name_scope(scope_of(key)),
            tf.device(device),
            tf.control_dependencies(before),
        ):
            made = trace.run(run, [given, masks, weights, states], device, key)
        if turns:
            turns.ran((id(self.segment), key), made)
        for name, kind in zip(CARRIED, ("masks", "logits")):
            for value, one in zip(made["outputs"], made[kind]):
                if one is not None:
                    _attach(value, name, one)
        return trace, made


class Trace:
    """A part's body, traced for one signature.

    `trained` are the weights of its calls, `weights` those that are arguments. `early`
    has the ids of `states` that the body may read as they were at the start of the
    step, `unmasked` the numbers of the reads whose mask a call took off; `owners` are
    the operations that made the losses, `kept` the layers and attributes that keep
    tensors.
    """

    def __init__(
        self, part: PartFunction, context: Mapping[str, Any], signature: tuple[Any, Any]
    ) -> None:
        self._part, self._context = part, context
        self._gradients: dict[Any, PartGradient | None] = {}
        operations = [node.operation for node in part.segment.nodes]
        left_out = {id(v) for one in operations for v in tables_of(one)}
        self.trained = _unique(v for one in operations for v in weights_of(one))
        self.states = _unique(v for one in operations for v in states_of(one))
        while True:
            self.weights = [v for v in self.trained if id(v) not in left_out]
            captured = self._trace(signature) - left_out
            if not captured:
                break
            left_out |= captured

    def _trace(self, signature: tuple[Any, Any]) -> set[int]:
        """Trace the body; the ids of weights that functions of a layer's own read."""
        captured: set[int] = set()

        def named(given: Any, masks: Any, weights: Any, states: Any) -> Any:
            made, scope = self._body(given, masks, weights, states)
            captured.update(scope.captured)
            return made

        named.__name__ = body_name(self._part.segment.key)
        function = tf.function(
            named,
            autograph=False,
            jit_compile=True if self._part.how == "xla" else None,
            experimental_attributes={"_noinline": True},
        )
        specs = [[_spec(v) for v in vs] for vs in (self.weights, self.states)]
        with tf.init_scope():  # without the devices of the step that is being made
            self.function = function.get_concrete_function(*signature, *specs)
        self._ops = self.function.graph.get_operations()
        return captured

    def run(self, run: Run, arguments: list[Any], device: str, key: str) -> Any:
        """Call the function; its gradient runs on the same device."""
        function, turns = self.function, run.shared.turns
        tf_api.note_reads(function.variables)
        flat = tf.nest.flatten(arguments, expand_composites=True)
        inputs = [one for one in flat if isinstance(one, tf.Tensor)]
        inputs += [outside for outside, _ in function.graph.captures]
        if tf_api.gradient_order(inputs) != 1:
            return function(*arguments)
        of_weight = {id(one): v for v, one in zip(self.weights, arguments[2])}
        values = of_weight | {id(v.value.handle): v for v in self.trained}
        frozen = {i for i, v in values.items() if run.trains and not v.trainable}
        wanted = tuple(
            i
            for i, one in enumerate(inputs)
            if id(one) not in frozen and tf_api.gradient_order([one])
        )
        on_cpu = tf.DeviceSpec.from_string(device).device_type == "CPU"
        if (wanted, on_cpu) not in self._gradients:
            self._gradients[wanted, on_cpu] = part_gradient(
                function,
                self._ops,
                wanted,
                body_name(self._part.segment.key),
                how=self._part.how,
                on_cpu=on_cpu,
            )
        gradient = self._gradients[wanted, on_cpu]
        if gradient is None:
            return function(*arguments)
        with tf_api.stop_recording():
            made = gradient.forward(*inputs[: gradient.arguments])
        outputs = function.structured_outputs
        leaves = tf.nest.flatten(outputs, expand_composites=True)
        count = sum(one is not None for one in leaves)
        kept = [*(inputs[i] for i in gradient.reused), *made[count:]]

        def backward(*flows: Any) -> list[Any]:
            run.on_gradient()
            flows = tuple(map(tf.convert_to_tensor, flows))
            with tf.name_scope(scope_of(key)), tf.device(device):
                found = gradient.backward(*kept, *flows)
            packed = tf.nest.pack_sequence_as(
                gradient.structure, found, expand_composites=True
            )
            own = dict[tuple[int, str], Any]()
            for place, i in enumerate(gradient.reached):
                if turns and id(inputs[i]) in of_weight:
                    key_of_sum = (id(of_weight[id(inputs[i])]), device)
                    own[key_of_sum], packed[place] = packed[place], None
                elif inputs[i].dtype == tf.resource:  # summed where the variable is
                    with tf.device(inputs[i].device):
                        packed[place] = copied(packed[place])
            if turns:
                turns.came_back((id(self._part.segment), key), found, own)
            return list(packed)

        tf_api.record_gradient(
            [made[i] for i in gradient.flows],
            [inputs[i] for i in gradient.reached],
            backward,
        )
        there = iter(made)
        return tf.nest.pack_sequence_as(
            outputs,
            [one if one is None else next(there) for one in leaves],
            expand_composites=True,
        )

    def _body(
        self, given: Any, masks: Any, weights: Any, states: Any
    ) -> tuple[Any, StateScope]:
        """What the body returns, and the scope in which its calls ran."""
        part = self._part.segment
        local = {}
        for old, value, mask in zip(part.reads, given, masks):
            if mask is not None:
                _attach(value, CARRIED[0], mask)
            local[id(old)] = value
        owners: list[Any] = []
        pairs = list(zip(self.states, states))
        with StateScope(pairs, list(zip(self.weights, weights))) as scope:
            for key, node in zip(part.keys, part.nodes):
                with tf.name_scope(scope_of(key)):
                    run_node(node, local, self._context)
                owners += [node.operation] * (len(scope.losses) - len(owners))
        self.owners = owners
        self.unmasked = [
            number
            for number, (old, mask) in enumerate(zip(part.reads, masks))
            if mask is not None and mask_of(local[id(old)]) is None
        ]
        graph = tf.compat.v1.get_default_graph()
        self.kept = [
            (layer, name)
            for node in part.nodes
            for layer in keras_api.sublayers(node.operation)
            for name, value in vars(layer).items()
            if isinstance(value, tf.Tensor) and getattr(value, "graph", None) is graph
        ]
        self.updates, offsets = scope.updates(pairs)
        outputs = [local.get(id(old)) for old in part.gives]
        made = {
            "outputs": outputs,
            "masks": [getattr(v, CARRIED[0], None) for v in outputs],
            "logits": [getattr(v, CARRIED[1], None) for v in outputs],
            "losses": [tf.convert_to_tensor(loss) for loss in scope.losses],
            "kept": [vars(layer)[name] for layer, name in self.kept],
            "states": offsets,
        }
        leaves = tf.nest.flatten(made, expand_composites=True)
        needed = ancestors(one.op for one in leaves if one is not None)
        self.early = {id(v) for v, old in pairs if old.op not in needed}
        return made, scope

    def new_states(self, run: Run, made: Any) -> Iterator[tuple[Any, Any]]:
        """Each variable that the calls changed, with its new value, at its home."""
        offsets = iter(made["states"])
        for update in self.updates:
            offset = next(offsets) if update.constant is None else update.constant
            with tf.device(device_of(update.variable)):
                old = None if update.scale is None else run.state(update.variable)
                yield update.variable, update.value(old, offset)


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


def _attach(value: Any, name: str, attached: Any) -> None:
    if isinstance(value, tf.Tensor):
        setattr(value, name, attached)


def _spec(value: Any) -> Any:
    """The signature of a tensor or variable; anything else is a constant."""
    if isinstance(value, tf.Tensor | keras.Variable):
        return tf.TensorSpec(value.shape, value.dtype)
    return tf.type_spec_from_value(value) if tf.is_tensor(value) else value
