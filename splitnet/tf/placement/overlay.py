"""The methods that make placement true on a plain functional model.

The model's class, layers, weights and configuration stay Keras' own. Only methods of
this one instance are replaced: `call` runs the part functions, the steps run under a
device function, and `compile` hands the optimizer over.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import warn
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.placement import device_function as devices
from splitnet.tf.placement.optimizer import place_optimizer
from splitnet.tf.placement.placed import ATTRIBUTE, Placed, Run, Shared, placed_of
from splitnet.tf.workers.connect import add_barrier

_GRADIENTS = "a step that is not its own records its gradients"
# Steps whose ops are being placed: graph, model, whether it is Keras' training step.
_steps: list[tuple[Any, Placed, bool]] = []


def lay_over(model: Any, placed: Placed, *after: Callable[[Any, Placed], None]) -> None:
    """Replace methods of a functional model; each of `after` follows its `compile`."""
    own_step = type(model).train_step is not keras.Model.train_step
    compile_plainly, make_plainly = model.compile, model.make_train_function

    @functools.wraps(compile_plainly)
    def compile_placed(*args: Any, **kwargs: Any) -> None:
        compile_plainly(*args, **kwargs)
        place_optimizer(model.optimizer)
        keras_api.build_at_once(model)
        for then in after:
            then(model, placed)

    @functools.wraps(make_plainly)
    def make_train_function(force: bool = False) -> None:
        """Slots are made first, as metrics are: see `build_at_once`."""
        optimizer, variables = model.optimizer, model.trainable_variables
        if not own_step and optimizer is not None and not optimizer.built and variables:
            optimizer.build(variables)
        make_plainly(force)

    def regularization_losses() -> list[Any]:
        """As Keras', each weight's penalty computed where the weight is."""
        found = []
        for variable in model.trainable_weights:
            if variable.regularizer is not None:
                where = devices.device_of(variable)
                with tf.name_scope("regularization"), tf.device(where):
                    found.append(variable.regularizer(variable))
        return found

    vars(model)[ATTRIBUTE] = placed
    vars(model).update(
        call=placed_call(model, placed),
        compile=compile_placed,
        make_train_function=make_train_function,
        train_step=_step(model, model.train_step, placed, trains=not own_step),
        test_step=_step(model, model.test_step, placed),
        predict_step=_step(model, model.predict_step, placed),
        _get_regularization_losses=regularization_losses,
    )
    for node in placed.flow.nodes:
        if isinstance(node.operation, keras.layers.Layer):
            call = _call_of_layer(node.operation, model.name, placed)
            vars(node.operation)["call"] = call
    add_barrier(model, placed.plan)
    model.supports_jit = False  # XLA drops device scopes: Keras warns, and keeps it off


def placed_call(model: Any, placed: Placed) -> Callable[..., Any]:
    """As `Functional.call`, by part functions in graphs, elsewhere call by call."""

    @functools.wraps(model.call)
    @keras_api.without("autocast_scope")  # only layers cast their weights
    def call(inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        flat = keras_api.standardized_inputs(model)(inputs)
        for tensor, one in zip(flat, keras.tree.flatten(mask)):
            if one is not None:
                keras_api.set_mask(tensor, one)
        tensors = {id(old): new for old, new in zip(model.inputs, flat)}
        shared = placed.shared[-1] if placed.shared else Shared()
        run = Run(tensors, {"training": training, **kwargs}, shared)
        run.trains = [t for _, one, t in _steps if one is placed][-1:] == [True]
        placed.running.append(run)
        try:
            if placed.runners:
                _watch_step(model, placed, run)
            eager = tf.executing_eagerly() or keras_api.in_stateless_scope()
            if not eager:
                step = model.train_function if run.trains else None
                graph = tf.compat.v1.get_default_graph()
                placed.graphs[graph] = step and weakref.ref(step)
            if placed.runners and not eager:
                for runner in placed.runners:
                    runner.run(run)
            else:
                for node in placed.flow.nodes:
                    device = placed.target(node) if placed.runners else ""
                    scope = devices.scope_of(placed.key_of[id(node)])
                    with tf.name_scope(scope), tf.device(device):
                        keras_api.run_node(node, tensors, run.context)
        finally:
            placed.running.pop()
        outputs = list(map(run.value, placed.flow.outputs))
        packed = keras.tree.pack_sequence_as(model.output, outputs)
        single = isinstance(packed, list | tuple) and len(packed) == 1
        return packed[0] if single else packed

    return call


def _warn_once(placed: Placed, text: str) -> None:
    if not placed.warned:
        placed.warned.append(text)
        warn(text)


def _call_of_layer(layer: Any, model: str, placed: Placed) -> Callable[..., Any]:
    """As a layer's `call`, with a warning where no run of its model calls it."""
    plainly = getattr(layer.call, "splitnet_plain", layer.call)

    @functools.wraps(plainly)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (placed.running or keras_api.in_stateless_scope()):
            _warn_once(
                placed,
                f"layer {layer.name!r} of the placed model {model!r} is called outside "
                "of it, alone or in another model: it runs where TensorFlow puts it. "
                "Place the other model too, and with these layers themselves: "
                "emit(other, plan(other, pins='as_built'), copy=False).",
            )
        return plainly(*args, **kwargs)

    vars(call)["splitnet_plain"] = plainly
    return call


def _watch_step(model: Any, placed: Placed, run: Run) -> None:
    """Warn, once it is traced, of gradients and updates that a step does not place."""
    graph, late = tf.compat.v1.get_default_graph(), list[bool]()
    given = [v for v in run.tensors.values() if isinstance(v, tf.Tensor)]
    learns = model.trainable_variables or tf_api.gradient_order(given)

    def warn_of(what: str) -> None:
        _warn_once(
            placed,
            f"model {model.name!r} is placed, and {what}: that runs where TensorFlow "
            "puts it. Open `with splitnet.placement_scope(model, optimizer):` inside "
            "the tf.function around tape, gradients and update, or place the whole "
            "model.",
        )

    def check() -> None:
        if learns and any(late):
            warn_of(_GRADIENTS)
        outside = {id(inside): id(one) for one, inside in graph.captures}
        own = run.shared.states  # what a layer's call assigns
        weights = [v for v in model.trainable_variables if id(v) not in own]
        paths = {id(v.value.handle): v.path for v in weights}
        updated = list[str](), list[str]()  # by optimizers that are placed, by others
        for op in graph.get_operations():
            if op.type.startswith(("Assign", "ResourceScatter")) and "/" in op.name:
                path = paths.get(outside.get(id(op.inputs[0]), 0), "")
                updated[not devices.is_update(op.name)].append(path)
        if strays := {*updated[1]} - {*updated[0], ""}:
            count, some = len(strays), min(strays)
            warn_of(f"an optimizer that is not placed updates {count} weights ({some})")

    if tf.executing_eagerly():
        if learns and tf_api.recording() and not _steps:
            warn_of(_GRADIENTS)
    elif isinstance(graph, tf_api.FuncGraph) and not run.trains:
        run.on_gradient = lambda: late.append(all(g is not graph for g, *_ in _steps))
        tf_api.when_traced(check)


def _step(
    model: Any, step: Callable[..., Any], placed: Placed, *, trains: bool = False
) -> Callable[..., Any]:
    """One step of any kind, its graph under a device function; `trains` as in `Run`."""

    @functools.wraps(step)
    def placed_step(*args: Any, **kwargs: Any) -> Any:
        for value in list(vars(model).values()):  # also those of a step of its own
            if isinstance(value, keras.optimizers.Optimizer):
                place_optimizer(value)
        with _graph_scope(placed, trains=trains):
            return step(*args, **kwargs)

    return placed_step


@contextlib.contextmanager
def _graph_scope(placed: Placed, *, trains: bool = False) -> Iterator[None]:
    """Place what is added to the graph of a step in this block; note the step."""
    graph, device = tf.compat.v1.get_default_graph(), contextlib.nullcontext()
    if not tf.executing_eagerly():
        makers = map(keras_api.producer, placed.flow.outputs)
        found = {placed.target_of.get(placed.key_of[id(one)], "") for one in makers}
        of_outputs = found.pop() if len(found) == 1 else ""
        device = graph.device(devices.device_function(placed.target_of, of_outputs))
    step = (graph, placed, trains)
    _steps.append(step)
    try:
        with device:
            yield
    finally:
        _steps.remove(step)


@contextlib.contextmanager
def placement_scope(model: keras.Model, *optimizers: Any) -> Iterator[None]:
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
    with contextlib.nullcontext() if placed is None else _graph_scope(placed):
        yield
