"""Part functions: each part of a plan runs as one TensorFlow function on its device.

A function that is not inlined and is called under `tf.device(d)` runs forward and
backward on d, because ops without a device run where their function is called. The body
uses its own weights as they are; weights that live on another device and states come in
as arguments. Outputs, Keras masks, losses and new states go out.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
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
from splitnet.tf.placement.states import StateScope
from splitnet.tf.reading.variables import states_of, tables_of, weights_of

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
        segment = self.segment
        if tf.executing_eagerly() or keras_api.in_stateless_scope():
            for key, node in zip(segment.keys, segment.nodes):
                with tf.name_scope(scope_of(key)), tf.device(self.device):
                    run_node(node, run.tensors, run.context)
            return
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
            run: the run that it is part of; its step traces once per signature.
            given: the values that it reads, on the device.
            device: where to run it.
            key: the key of the part that it runs as.
            captures: use weights that live on the device as they are; else they are
                arguments, so that one trace serves several devices.
        """
        masks = [keras_api.mask_of(value) for value in given]
        signature = ([_spec(v) for v in given], [_spec(v) for v in masks])
        known = (id(self), *map(repr, tf.nest.flatten(signature)))
        if known not in run.shared.traces:
            home = device if captures else ""
            run.shared.traces[known] = Trace(self, run.context, signature, home)
        trace = run.shared.traces[known]
        weights = [run.weight(v, device) for v in trace.weights]
        states = [run.state(v, first=id(v) in trace.early) for v in trace.states]
        idle = set()  # inputs whose gradients nobody asks for
        if run.trains:
            copies = {id(v): one for v, one in zip(trace.weights, weights)}
            frozen = (v for v in trace.trained if not v.trainable)
            idle = {id(copies.get(id(v), v.value.handle)) for v in frozen}
        turns = run.shared.turns
        before = turns.before(self.segment, key) if turns else []
        scope = scope_of(key)
        with tf.name_scope(scope), tf.device(device), tf.control_dependencies(before):
            made = trace.run([given, masks, weights, states], device, scope, idle)
        if turns:
            turns.ran(self.segment, key, made)
        return trace, made


class Trace:
    """A part's body, traced for one signature.

    `trained` are the weights of its calls, `weights` those that are arguments: not at
    `home`, read whole, and not read by a function of a layer's own. `early` has the ids
    of `states` that the body may read as they were at the start of the step, `unmasked`
    the numbers of the reads whose mask a call took off; `owners` are the operations
    that made the losses, `kept` the layers and attributes that keep tensors.
    """

    def __init__(
        self,
        part: PartFunction,
        context: Mapping[str, Any],
        signature: tuple[Any, Any],
        home: str,
    ) -> None:
        self._part, self._context = part, context
        self._gradients: dict[Any, PartGradient | None] = {}
        operations = [node.operation for node in part.segment.nodes]
        tables = {id(v) for one in operations for v in tables_of(one)}
        self.trained = _unique(v for one in operations for v in weights_of(one))
        self.states = _unique(v for one in operations for v in states_of(one))
        self._whole = [v for v in self.trained if id(v) not in tables]
        self.weights = [v for v in self._whole if device_of(v) != home]
        captured = self._trace(signature)
        if captured & set(map(id, self.weights)):
            self.weights = [v for v in self.weights if id(v) not in captured]
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
        specs = [[_spec(v) for v in vs] for vs in (self.weights, self.states)]
        with tf.init_scope():  # without the devices of the step that is being made
            self.function = function.get_concrete_function(*signature, *specs)
        self._ops = self.function.graph.get_operations()
        return captured

    def run(self, arguments: list[Any], device: str, scope: str, idle: set[int]) -> Any:
        """Call the function; its gradient runs on the same device.

        `idle` holds the ids of inputs whose gradients nobody asks for.
        """
        flat = tf.nest.flatten(arguments, expand_composites=True)
        flat = [one for one in flat if isinstance(one, tf.Tensor)]
        function, part = self.function, self._part
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
            name, how = body_name(part.segment.key), part.how
            flags = {"cpu": cpu, "xla": how == "xla", "again": how == "recompute"}
            made = part_gradient(function, self._ops, wanted, name, **flags)
            self._gradients[wanted, cpu] = made
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
        own = [v for v in self._whole if id(v) not in arguments]
        read = [(v, tf.convert_to_tensor(v.value)) for v in own]
        given_weights = [*read, *zip(self.weights, weights)]
        owners: list[Any] = []
        with StateScope(zip(self.states, states), given_weights) as scope:
            for key, node in zip(part.keys, part.nodes):
                with tf.name_scope(scope_of(key)):
                    run_node(node, local, self._context)
                owners += [node.operation] * (len(scope.losses) - len(owners))
        self.owners = owners
        self.unmasked = [
            number
            for number, (old, mask) in enumerate(zip(part.reads, masks))
            if mask is not None and getattr(local[id(old)], CARRIED[0], None) is None
        ]
        graph = tf.compat.v1.get_default_graph()
        self.kept = [
            (layer, name)
            for node in part.nodes
            for layer in keras_api.sublayers(node.operation)
            for name, value in vars(layer).items()
            if isinstance(value, tf.Tensor) and getattr(value, "graph", None) is graph
        ]
        self.updates, offsets = scope.updates(zip(self.states, states))
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
        pairs = zip(self.states, states)
        self.early = {id(v) for v, old in pairs if old.op not in needed}
        return made, scope

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
            offset = next(offsets) if update.constant is None else update.constant
            with tf.device(device_of(update.variable)):
                old = None if update.scale is None else run.state(update.variable)
                yield update.variable, update.value(old, offset)


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
