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
from splitnet.tf.placement.device_function import (
    DeviceFunction,
    function_of,
    key_of_function,
    scope_of,
    update_target,
)
from splitnet.tf.placement.optimizer import place_optimizer
from splitnet.tf.placement.part_function import run_node, running
from splitnet.tf.placement.placed import ATTRIBUTE, Placed, placed_of
from splitnet.tf.placement.run import Run, device_of
from splitnet.tf.workers.connect import add_barrier

__all__ = ["lay_over", "marked", "placement_scope"]

# The numbers of the ops of a step's graph that were made in scopes of placed models.
_spans: weakref.WeakKeyDictionary[Any, list[range]] = weakref.WeakKeyDictionary()


def lay_over(model: Any, placed: Placed) -> None:
    """Replace the methods of one functional model's instance; see the module."""
    own = {
        ATTRIBUTE: placed,
        "call": _call(model, placed),
        "compile": _compile(model),
        "make_train_function": _make_train_function(model),
        "train_step": _step(
            model,
            model.train_step,
            placed,
            trains=type(model).train_step is keras.Model.train_step,
        ),
        "test_step": _step(model, model.test_step, placed),
        "predict_step": _step(model, model.predict_step, placed),
        "_get_regularization_losses": _regularization(model),
    }
    vars(model).update(own)
    for node in placed.flow.nodes:
        if isinstance(node.operation, keras.layers.Layer):
            call = _call_of_layer(node.operation, model.name, placed.warned)
            vars(node.operation)["call"] = call
    add_barrier(model, placed.plan)
    model.supports_jit = False  # XLA drops device scopes: Keras must not turn it on


def _call(model: Any, placed: Placed) -> Callable[..., Any]:
    """As `Functional.call`, by the model's part functions."""

    @functools.wraps(model.call)
    def call(inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        _watch_step(model, placed)
        flat = keras_api.standardized_inputs(model, inputs)
        if mask is not None:
            for tensor, one in zip(flat, keras.tree.flatten(mask)):
                if one is not None:
                    keras_api.set_mask(tensor, one)
        tensors = {id(old): new for old, new in zip(model.inputs, flat)}
        context = {"training": training, **kwargs}
        run = Run(tensors, context, placed.shared[-1] if placed.shared else None)
        run.trains = bool(placed.scopes and placed.scopes[-1])
        for runner in placed.runners:
            runner.run(run)
        if not placed.runners:
            _run_marked(placed, run)
        outputs = [run.tensors[id(tensor)] for tensor in placed.flow.outputs]
        packed = keras.tree.pack_sequence_as(model.output, outputs)
        single = isinstance(packed, list | tuple) and len(packed) == 1
        return packed[0] if single else packed

    return call


def _watch_step(model: Any, placed: Placed) -> None:
    """Warn once of gradients and updates that a step leaves where TensorFlow puts them.

    A step that is traced is looked at when it has been, because an optimizer may be
    applied after a scope has closed.
    """
    own = placed.scopes and placed.scopes[-1]
    if own or placed.warned or not placed.runners:
        return
    if tf.executing_eagerly():
        if not placed.scopes and tf_api.recording():
            _warn_of_step(model, placed)
        return
    graph = tf.compat.v1.get_default_graph()
    if isinstance(graph, tf_api.FuncGraph):
        tf_api.when_traced(functools.partial(_check_step, model, placed, graph))


def _check_step(model: Any, placed: Placed, graph: Any) -> None:
    if placed.warned:
        return
    ops = graph.get_operations()
    spans = _spans.get(graph, ())
    late = (
        function_of(op)
        for number, op in enumerate(ops)
        if not any(number in span for span in spans)
    )
    keys = {key_of_function(name) for name in late if "backward" in name}
    if keys & placed.part_of.keys():
        _warn_of_step(model, placed)
    else:
        _warn_of_updates(model, placed, graph, ops)


def _warn_of_step(model: Any, placed: Placed) -> None:
    placed.warned.add("step")
    warn(
        f"model {model.name!r} is placed, and a step that is not its own records its "
        "gradients: updates and sums of gradients run where TensorFlow puts them. Open "
        "`with splitnet.placement_scope(model, optimizer):` inside the tf.function "
        "around tape, gradients and update, or place the whole model."
    )


def _call_of_layer(layer: Any, model: str, warned: set[str]) -> Callable[..., Any]:
    """As a layer's `call`, with one warning where no run of its model calls it."""
    plainly = getattr(layer.call, "splitnet_plain", layer.call)

    @functools.wraps(plainly)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (running() or warned or keras_api.in_stateless_scope()):
            warned.add("layer")
            warn(
                f"layer {layer.name!r} of the placed model {model!r} is called outside "
                "of it, alone or in another model: it runs where TensorFlow puts it. "
                "Place the other model as well: "
                "splitnet.place(other, pins='as_built')."
            )
        return plainly(*args, **kwargs)

    vars(call)["splitnet_plain"] = plainly
    return call


def _run_marked(placed: Placed, run: Run) -> None:
    """Run the calls of a model that is not placed, each in the scope of its part."""
    for node in placed.flow.nodes:
        with tf.name_scope(scope_of(placed.key_of[id(node)])):
            run_node(node, run.tensors, run.context)


def _compile(model: Any) -> Callable[..., Any]:
    compile_plainly = model.compile

    @functools.wraps(compile_plainly)
    def compile_placed(*args: Any, **kwargs: Any) -> None:
        compile_plainly(*args, **kwargs)
        place_optimizer(model.optimizer)

    return compile_placed


def _make_train_function(model: Any) -> Callable[..., Any]:
    """As Keras', with slots made first: TensorFlow traces a step that makes any twice.

    A step of the user's own may train other variables, for which Keras makes slots.
    """
    make_plainly = model.make_train_function
    own = type(model).train_step is not keras.Model.train_step

    @functools.wraps(make_plainly)
    def make(force: bool = False) -> None:
        optimizer, variables = model.optimizer, model.trainable_variables
        if not own and optimizer is not None and not optimizer.built and variables:
            optimizer.build(variables)
        make_plainly(force)

    return make


def _step(
    model: Any, step: Callable[..., Any], placed: Placed, *, trains: bool = False
) -> Callable[..., Any]:
    """One step of any kind, its graph under a device function.

    `trains` says that it is Keras' training step, which asks for the gradients of
    trainable weights only.
    """

    @functools.wraps(step)
    def placed_step(*args: Any, **kwargs: Any) -> Any:
        _refuse_xla(model)
        for optimizer in _optimizers(model):
            place_optimizer(optimizer)
        with _graph_scope(placed, trains=trains):
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
        warn(
            f"model {model.name!r} is placed on several devices, and XLA would compile "
            "it for one (jit_compile=True drops device scopes); it runs without XLA."
        )
        keras_api.turn_off_xla(model)


@contextlib.contextmanager
def _graph_scope(placed: Placed, *, trains: bool = False) -> Iterator[None]:
    if tf.executing_eagerly():
        placed.scopes.append(trains)
        try:
            yield
        finally:
            placed.scopes.pop()
        return
    graph = tf.compat.v1.get_default_graph()
    placed.graphs[:] = [ref for ref in placed.graphs if ref() is not None][-31:]
    placed.graphs.append(weakref.ref(graph))
    placed.scopes.append(trains)
    first = len(graph.get_operations())
    try:
        with graph.device(DeviceFunction(placed.target_of, _device_of_outputs(placed))):
            yield
    finally:
        placed.scopes.pop()
        if not trains:
            span = range(first, len(graph.get_operations()))
            _spans.setdefault(graph, []).append(span)


def _device_of_outputs(placed: Placed) -> str:
    """The device that makes all outputs; "" if there are several."""
    nodes = map(keras_api.producer, placed.flow.outputs)
    found = {placed.target_of.get(placed.key_of[id(node)], "") for node in nodes}
    return found.pop() if len(found) == 1 else ""


@contextlib.contextmanager
def marked(model: Any, marks: Placed) -> Iterator[None]:
    """Put the ops of an unplaced model in the scopes of their parts, for an audit."""
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
    if placed is None or tf.executing_eagerly():
        yield
        return
    with _graph_scope(placed):
        yield


def _warn_of_updates(model: Any, placed: Placed, graph: Any, ops: list[Any]) -> None:
    """Warn once if an optimizer that nobody placed updates a model's weights."""
    handle_of = {id(inside): id(outside) for outside, inside in graph.captures}
    weights = {id(v.value.handle): v.path for v in model.trainable_variables}
    updated: dict[str, bool] = {}
    for op in ops:
        if op.type.startswith(("Assign", "ResourceScatter")) and "/" in op.name:
            path = weights.get(handle_of.get(id(op.inputs[0]), 0))
            if path is not None:
                mine = bool(update_target(op.name)[0])
                updated[path] = updated.get(path, False) or mine
    strays = [path for path, mine in updated.items() if not mine]
    if strays:
        placed.warned.add("optimizer")
        warn(
            f"an optimizer that is not placed updates {len(strays)} weights of model "
            f"{model.name!r} ({strays[0]}): its slots are on one device. Name it: "
            "splitnet.placement_scope(model, optimizer)."
        )


def _regularization(model: Any) -> Callable[[], list[Any]]:
    """As Keras', each weight's penalty computed where the weight is."""

    def losses() -> list[Any]:
        found = []
        for variable in model.trainable_weights:
            if variable.regularizer is not None:
                with (
                    tf.name_scope("regularization"),
                    tf.device(device_of(variable)),
                ):
                    found.append(variable.regularizer(variable))
        return found

    return losses
