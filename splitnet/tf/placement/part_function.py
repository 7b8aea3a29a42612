"""Part functions: each part of a plan runs as one TensorFlow function on its device.

A function that is not inlined and is called under `tf.device(d)` runs forward and
backward on d, because ops without a device run where their function is called. The body
uses its own weights as they are; weights that live on another device and states come in
as arguments. Outputs, Keras masks, losses and new states go out.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.keras_api import CARRIED
from splitnet.tf.placement.device_function import ancestors, body_name, scope_of
from splitnet.tf.placement.part_gradient import PartGradient, part_gradient
from splitnet.tf.placement.run import Run, device_of
from splitnet.tf.placement.segments import Segment
from splitnet.tf.placement.states import StateScope, Update, affine
from splitnet.tf.reading.variables import states_of, tables_of, weights_of

__all__ = ["PartFunction", "run_node", "running"]

_here = threading.local()


def running() -> bool:
    """Whether this thread runs a call of a model by `run_node`."""
    return getattr(_here, "running", False)


def run_node(node: Any, tensors: dict[int, Any], context: Mapping[str, Any]) -> None:
    """Run one call; an optional input that is missing skips it, as Keras does."""
    if any(id(tensor) not in tensors for tensor in node.input_tensors):
        return
    args, kwargs = node.arguments.fill_in(tensors)
    outer, _here.running = running(), True
    try:
        made = keras_api.operation_fn(node.operation, **context)(*args, **kwargs)
    finally:
        _here.running = outer
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
        """Run the part on its device, as a function where a graph is being made."""
        if tf.executing_eagerly() or keras_api.in_stateless_scope():
            self._inline(run)
            return
        segment = self.segment
        if any(id(tensor) not in run.tensors for tensor in segment.reads):
            return
        given = [run.arrive(tensor, self.device) for tensor in segment.reads]
        trace, made = self.call(run, given, self.device, segment.key)
        for number in trace.unmasked:
            _set(run.tensors.get(id(segment.reads[number])), CARRIED[0], None)
        for variable, value in trace.new_states(run, made):
            run.assign(variable, value)
        for operation, loss in zip(trace.owners, made["losses"]):
            operation.add_loss(loss)
        for (layer, name), value in zip(trace.kept, made["kept"]):
            vars(layer)[name] = value
        for old, value in zip(segment.gives, trace.outputs(made)):
            run.give(old, value, self.device)

    def call(
        self,
        run: Run,
        given: list[Any],
        device: str,
        key: str,
        *,
        captures: bool = True,
    ) -> tuple["Trace", Any]:
        """Call the function on a device: its trace, and the structure it returns.

        Args:
            run: the run that it is part of.
            given: the values that it reads, on the device.
            device: where to run it.
            key: the key of the part that it runs as.
            captures: use weights that live on the device as they are; else they are
                arguments, so that one trace serves several devices.
        """
        weights, states = self._arguments(device if captures else "")
        trace = self._traced(run, given, weights, states)
        values = [run.weight(v, device) for v in trace.weights]
        current = [run.state(v, first=i in trace.early) for i, v in enumerate(states)]
        masks = [keras_api.mask_of(value) for value in given]
        frozen = [v for v in self.weights() if run.trains and not v.trainable]
        copies = {id(v): one for v, one in zip(trace.weights, values)}
        idle = {id(copies.get(id(v), v.value.handle)) for v in frozen}
        turns = run.shared.turns
        before = turns.before(self.segment, key) if turns else []
        with (
            tf.name_scope(scope_of(key)),
            tf.device(device),
            tf.control_dependencies(before),
        ):
            made = trace.run(
                [given, masks, values, current], device, scope_of(key), idle
            )
        if turns:
            turns.ran(self.segment, key, made)
        return trace, made

    def _arguments(self, home: str) -> tuple[list[Any], list[Any]]:
        """The variables that are arguments: weights of other devices, and states."""
        operations = [node.operation for node in self.segment.nodes]
        states = _unique(v for one in operations for v in states_of(one))
        return [v for v in self.read_whole() if device_of(v) != home], states

    def weights(self) -> list[Any]:
        """The trained variables of all calls, each once."""
        return _unique(v for n in self.segment.nodes for v in weights_of(n.operation))

    def read_whole(self) -> list[Any]:
        """The trained variables without those of which calls read rows alone."""
        nodes = self.segment.nodes
        tables = {id(v) for node in nodes for v in tables_of(node.operation)}
        return [v for v in self.weights() if id(v) not in tables]

    def _traced(
        self, run: Run, given: list[Any], weights: list[Any], states: list[Any]
    ) -> "Trace":
        """The trace for these arguments, made once in a step."""
        masks = [keras_api.mask_of(value) for value in given]
        signature = ([_spec(v) for v in given], [_spec(v) for v in masks])
        flat = tf.nest.flatten(signature)
        key = (id(self), tuple(map(id, weights)), tuple(map(repr, flat)))
        if key not in run.shared.traces:
            run.shared.traces[key] = Trace(
                self, run.context, signature, weights, states
            )
        return run.shared.traces[key]

    def _inline(self, run: Run) -> None:
        for key, node in zip(self.segment.keys, self.segment.nodes):
            with tf.name_scope(scope_of(key)), tf.device(self.device):
                run_node(node, run.tensors, run.context)


class Trace:
    """A part's body, traced for one signature.

    `weights` are the arguments among the weights: without those that a function of a
    layer's own reads. `early` are the numbers of the states that the body may read as
    they were at the start of the step, `unmasked` those of the reads whose mask a call
    took off; `owners` the operations that made the losses, `kept` the layers and
    attributes that keep tensors.
    """

    def __init__(
        self,
        part: PartFunction,
        context: Mapping[str, Any],
        signature: tuple[Any, Any],
        weights: Sequence[Any],
        states: Sequence[Any],
    ) -> None:
        self._part, self._context = part, context
        self._gradients: dict[Any, PartGradient | None] = {}
        self.weights, self._states = list(weights), list(states)
        captured = self._trace(signature)
        if captured & set(map(id, weights)):
            self.weights = [v for v in weights if id(v) not in captured]
            self._trace(signature)

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
        specs = [[_spec(v) for v in vs] for vs in (self.weights, self._states)]
        with tf.init_scope():  # without the devices of the step that is being made
            self.function = function.get_concrete_function(*signature, *specs)
        self._ops = self.function.graph.get_operations()
        return captured

    def run(self, arguments: list[Any], device: str, scope: str, idle: Set[int]) -> Any:
        """Call the function; its gradient runs on the same device.

        `idle` holds the ids of inputs whose gradients nobody asks for.
        """
        flat = tf.nest.flatten(arguments, expand_composites=True)
        flat = [one for one in flat if isinstance(one, tf.Tensor)]
        function = self.function
        tf_api.note_reads(function.variables)
        flat += [outside for outside, _ in function.graph.captures]
        if tf_api.gradient_order(flat) != 1:
            return function(*arguments)
        wanted = tuple(
            i
            for i, one in enumerate(flat)
            if id(one) not in idle and tf_api.gradient_order([one])
        )
        cpu = tf.DeviceSpec.from_string(device).device_type == "CPU"
        if (wanted, cpu) not in self._gradients:
            self._gradients[wanted, cpu] = part_gradient(
                function,
                self._ops,
                wanted,
                body_name(self._part.segment.key),
                cpu=cpu,
                xla=self._part.how == "xla",
                again=self._part.how == "recompute",
            )
        gradient = self._gradients[wanted, cpu]
        if gradient is None:
            return function(*arguments)
        return gradient.run(function.structured_outputs, flat, device, scope)

    def _body(
        self, given: Any, masks: Any, weights: Any, states: Any
    ) -> tuple[Any, StateScope]:
        """What the body returns, and the scope in which its calls ran.

        Weights are read before the calls: a loop would pass a variable on to its
        gradient, and TensorFlow places what surrounds a call that returns a variable by
        other rules.
        """
        part = self._part.segment
        local = {}
        for old, value, mask in zip(part.reads, given, masks):
            if mask is not None:
                _set(value, CARRIED[0], mask)
            local[id(old)] = value
        arguments = set(map(id, self.weights))
        own = [v for v in self._part.read_whole() if id(v) not in arguments]
        read = [(v, tf.convert_to_tensor(v.value)) for v in own]
        given_weights = [*read, *zip(self.weights, weights)]
        owners: list[Any] = []
        with StateScope(zip(self._states, states), given_weights) as scope:
            for key, node in zip(part.keys, part.nodes):
                with tf.name_scope(scope_of(key)):
                    run_node(node, local, self._context)
                owners += [node.operation] * (len(scope.losses) - len(owners))
        outputs = [local.get(id(old)) for old in part.gives]
        made = {
            "outputs": outputs,
            "masks": [getattr(v, CARRIED[0], None) for v in outputs],
            "logits": [getattr(v, CARRIED[1], None) for v in outputs],
            "losses": [tf.convert_to_tensor(loss) for loss in scope.losses],
        }
        updates, offsets = _updates(scope, dict(zip(map(id, self._states), states)))
        self.owners, self.updates = owners, updates
        self.unmasked = [
            number
            for number, (old, mask) in enumerate(zip(part.reads, masks))
            if mask is not None and getattr(local[id(old)], CARRIED[0], None) is None
        ]
        self.kept = self._attributes()
        made["kept"] = [vars(layer)[name] for layer, name in self.kept]
        made["states"] = offsets
        leaves = tf.nest.flatten(made, expand_composites=True)
        needed = ancestors(one.op for one in leaves if one is not None)
        self.early = {i for i, old in enumerate(states) if old.op not in needed}
        return made, scope

    def _attributes(self) -> list[tuple[Any, str]]:
        """The layers and attributes that keep tensors of the body."""
        graph = tf.compat.v1.get_default_graph()
        return [
            (layer, name)
            for node in self._part.segment.nodes
            for layer in keras_api.sublayers(node.operation)
            for name, value in vars(layer).items()
            if isinstance(value, tf.Tensor) and getattr(value, "graph", None) is graph
        ]

    def outputs(self, made: Any) -> list[Any]:
        """The values of what the part gives, with masks and logits attached."""
        for name, attached in zip(CARRIED, (made["masks"], made["logits"])):
            for value, one in zip(made["outputs"], attached):
                if one is not None:
                    _set(value, name, one)
        return list(made["outputs"])

    def new_states(self, run: Run, made: Any) -> Iterator[tuple[Any, Any]]:
        """Each variable that the calls changed, with its new value, at its home."""
        offsets = iter(made["states"])
        for update in self.updates:
            offset = next(offsets) if update.constant is None else None
            with tf.device(device_of(update.variable)):
                old = None if update.scale is None else run.state(update.variable)
                yield update.variable, update.value(old, offset)


def _updates(
    scope: StateScope, olds: Mapping[int, Any]
) -> tuple[list[Update], list[Any]]:
    """The variables that calls changed, and the tensors that tell how."""
    updates, offsets = [], []
    for variable in scope.assigned.values():
        old, new = olds.get(id(variable)), scope.get_current_value(variable)
        form = None if old is None else affine(new, old)
        scale, offset = form or (None, new)
        constant = 0 if offset is None else tf.get_static_value(offset)
        updates.append(Update(variable, scale, constant))
        if constant is None:
            offsets.append(offset)
    return updates, offsets


def _unique(variables: Iterable[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())


def _set(value: Any, name: str, attached: Any) -> None:
    if isinstance(value, tf.Tensor):
        setattr(value, name, attached)


def _spec(value: Any) -> Any:
    """The signature of a tensor or variable; anything else is a constant."""
    if isinstance(value, tf.Tensor | keras.Variable):
        return tf.TensorSpec(value.shape, value.dtype)
    return tf.type_spec_from_value(value) if tf.is_tensor(value) else value
