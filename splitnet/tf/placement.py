"""The overlay that makes placement true on a plain functional model.

The model's class, layers, weights and configuration stay Keras' own. Only methods of
this one instance are replaced: `call` runs each node under its mark and device, the
steps run under a device function that places what Keras adds to them, and `compile`
hands the optimizer over.
"""

import contextlib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.plan import Plan
from splitnet.simulator.pipeline import Pipeline
from splitnet.tf.cuts import Cuts, Fetched
from splitnet.tf.internals import gradient_marks, keras_api
from splitnet.tf.marks import DeviceFunction, canonical, key_in, scope_of
from splitnet.tf.optimizer import place_optimizer
from splitnet.tf.pipeline import pipelined
from splitnet.tf.reading.flatten import Flow
from splitnet.tf.replicas import Replicas, leaving
from splitnet.tf.segments import Segment, run_segment
from splitnet.tf.sends import send_first
from splitnet.tf.sums import settle_sums
from splitnet.tf.towers import TowerRun
from splitnet.tf.workers.barrier import add_barrier

__all__ = ["Placed", "lay_over", "marked", "placed_of", "placement_scope"]

_ATTRIBUTE = "_splitnet"

gradient_marks.scope_custom_gradients(lambda scope: key_in(scope) is not None)


@dataclass(frozen=True, eq=False)
class Placed:
    """What an emitted model remembers: its plan, and where its parts really are.

    `flow` is what it runs. `key_of` maps a node's id to the key of its part,
    `target_of` a key to the device TensorFlow is told (none where a model is only
    marked), `part_of` a key to the part's name, `home_of` the id of a variable that
    several parts use to the key of its home. `weight_of` maps a variable's id to the
    plan's name of it, `replicas` the id of a node that runs on towers to them.
    `segments` are the segments and nodes to run, in order, where some run as one.
    `graphs` holds weak references to the step graphs made last, `fetched` the weights
    that a step of several runs shares.
    """

    plan: Plan
    flow: Flow
    key_of: Mapping[int, str]
    target_of: Mapping[str, str]
    part_of: Mapping[str, str]
    home_of: Mapping[int, str]
    weight_of: Mapping[int, str]
    receipts: tuple[Any, ...] = ()
    replicas: Mapping[int, Replicas] = field(default_factory=dict)
    pipeline: Pipeline = field(default_factory=Pipeline)
    segments: tuple[Any, ...] = ()
    graphs: list[Any] = field(default_factory=list)
    fetched: list[Fetched] = field(default_factory=list)

    def device_function(self) -> DeviceFunction:
        """A device function for the graph of one step."""
        homes = {key: one.home for one in self.replicas.values() for key in one.keys}
        return DeviceFunction(self.target_of, homes)


def placed_of(model: Any) -> Placed | None:
    """The placement of an emitted model; None for any other."""
    found = vars(model).get(_ATTRIBUTE)
    return found if isinstance(found, Placed) else None


def lay_over(model: Any, placed: Placed) -> None:
    """Replace the methods of one functional model's instance; see the module."""
    if placed.pipeline.microbatches > 1:
        alone = {n: placed.target_of[k] for n, k in placed.key_of.items()}
        for node in placed.replicas:
            alone.pop(node, None)
        pipelined(model, placed.pipeline, placed.flow.nodes, alone, placed.fetched)
    own = {
        _ATTRIBUTE: placed,
        "call": _call(model, placed),
        "compile": _compile(model),
        "train_step": _step(model, model.train_step, placed),
        "test_step": _step(model, model.test_step, placed),
        "predict_step": _step(model, model.predict_step, placed),
        "_get_regularization_losses": _regularization(model, placed),
    }
    vars(model).update(own)
    add_barrier(model, placed.target_of.values())
    model.supports_jit = False  # XLA drops device scopes: Keras must not turn it on


def _call(model: Any, placed: Placed) -> Callable[..., Any]:
    """As `Functional.call`, each node under its own mark and device."""

    @functools.wraps(model.call)
    def call(inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        flat = keras_api.standardized_inputs(model, inputs)
        if mask is not None:
            for tensor, one in zip(flat, keras.tree.flatten(mask)):
                if one is not None:
                    keras_api.set_mask(tensor, one)
        return _run(model, placed, flat, {"training": training, **kwargs})

    return call


def _run(model: Any, placed: Placed, inputs: list[Any], context: Any) -> Any:
    """Run the nodes in Keras' own order; an optional input that is None stays None."""
    tensors = {id(old): new for old, new in zip(model.inputs, inputs)}
    cuts = Cuts(placed)
    towers = TowerRun(placed, cuts, leaving(placed), context)

    def run_node(node: Any, tensors: dict[int, Any]) -> None:
        if any(id(tensor) not in tensors for tensor in node.input_tensors):
            return
        if id(node) in placed.replicas:
            towers.run(node, tensors)
            return
        key = placed.key_of[id(node)]
        seen = cuts.seen_from(key, node, tensors)
        args, kwargs = node.arguments.fill_in(seen)
        run = keras_api.operation_fn(node.operation, **context)
        with (
            tf.name_scope(scope_of(key)),
            _device(placed, key),
            cuts.weights_at(key, node.operation),
        ):
            outputs = run(*args, **kwargs)
        cuts.take_masks(node, seen, tensors)
        for old, new in zip(node.outputs, keras.tree.flatten(outputs)):
            tensors[id(old)] = cuts.made(key, new)

    for step in placed.segments or placed.flow.nodes:
        if isinstance(step, Segment):
            run_segment(step, tensors, run_node, context)
        else:
            run_node(step, tensors)
    structure = keras_api.output_structure(model)
    flat = [tensors[id(tensor)] for tensor in placed.flow.outputs]
    packed = keras.tree.pack_sequence_as(structure, flat)
    single = isinstance(packed, list | tuple) and len(packed) == 1
    return packed[0] if single else packed


def _device(placed: Placed, key: str) -> Any:
    """The device scope of a part; none where a model is only marked."""
    target = placed.target_of.get(key)
    return tf.device(target) if target else contextlib.nullcontext()


def _compile(model: Any) -> Callable[..., Any]:
    compile_plainly = model.compile

    @functools.wraps(compile_plainly)
    def compile_placed(*args: Any, **kwargs: Any) -> None:
        compile_plainly(*args, **kwargs)
        place_optimizer(model.optimizer)

    return compile_placed


def _step(model: Any, step: Callable[..., Any], placed: Placed) -> Callable[..., Any]:
    """One step of any kind, its graph under a device function."""

    @functools.wraps(step)
    def placed_step(*args: Any, **kwargs: Any) -> Any:
        _refuse_xla(model)
        for optimizer in _optimizers(model):
            place_optimizer(optimizer)
        with _graph_scope(placed):
            return step(*args, **kwargs)

    return placed_step


def _optimizers(model: Any) -> list[Any]:
    """Those a model was compiled with or keeps for a step of its own."""
    kept = [
        value
        for value in vars(model).values()
        if isinstance(value, keras.optimizers.Optimizer)
    ]
    return list(
        {id(one): one for one in [getattr(model, "optimizer", None), *kept]}.values()
    )


def _refuse_xla(model: Any) -> None:
    """Keep a placed model out of XLA, which would run it whole on one device."""
    if getattr(model, "jit_compile", False):
        warnings.warn(
            f"model {model.name!r} is placed on several devices, and XLA would compile "
            "it for one (jit_compile=True drops device scopes); it runs without XLA.",
            stacklevel=2,
        )
        keras_api.turn_off_xla(model)


@contextlib.contextmanager
def _graph_scope(placed: Placed) -> Iterator[None]:
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    placed.graphs[:] = [ref for ref in placed.graphs if ref() is not None][-31:]
    placed.graphs.append(weakref.ref(graph))
    decide = placed.device_function()
    with graph.device(decide):
        yield
    settle_sums(decide, graph)
    send_first(graph, placed.target_of.values())
    placed.graphs.extend(r for n, r in decide.inner_graphs.items() if n != id(graph))


@contextlib.contextmanager
def marked(model: Any, marks: Placed) -> Iterator[None]:
    """Mark the ops of a model that is not placed, for the time of an audit."""
    own = {
        "call": _call(model, marks),
        "train_step": _watched(model.train_step, marks),
    }
    before = {name: vars(model).get(name) for name in own}
    vars(model).update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            del vars(model)[name]
            if value is not None:
                vars(model)[name] = value


def _watched(step: Callable[..., Any], marks: Placed) -> Callable[..., Any]:
    def watched_step(*args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            marks.graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        return step(*args, **kwargs)

    return watched_step


@contextlib.contextmanager
def placement_scope(model: Any, *optimizers: Any) -> Iterator[None]:
    """Place what runs in this block as `fit` would: for a training step of your own.

    Inside a `tf.function`, the gradient ops of an emitted model follow its branches,
    and so do the updates of an optimizer that the model was compiled with or that
    `optimizers` names. Elsewhere it does nothing.

    Args:
        model: an emitted model; around any other the block runs as it would anyway.
        optimizers: optimizers of your own, to be placed as well.
    """
    for optimizer in optimizers:
        place_optimizer(optimizer)
    placed = placed_of(model)
    if placed is None:
        yield
        return
    with _graph_scope(placed):
        yield


def _regularization(model: Any, placed: Placed) -> Callable[[], list[Any]]:
    """As Keras', each weight's penalty computed where the weight is."""
    keys = {canonical(device): key for key, device in placed.target_of.items()}

    def losses() -> list[Any]:
        found = []
        for variable in model.trainable_weights:
            if variable.regularizer is None:
                continue
            device = canonical(variable.value.device)
            with (
                tf.name_scope(scope_of(keys.get(device, "other"))),
                tf.device(device),
            ):
                found.append(variable.regularizer(variable))
        return found

    return losses
