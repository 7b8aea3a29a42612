"""Private names of TensorFlow, each behind a function that says what it is for."""

import contextlib
import copy
import functools
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as tf_context
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.eager.record import could_possibly_record as recording
from tensorflow.python.eager.record import record_operation, stop_recording
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.ops import (
    add_exit_callback_to_default_func_graph as when_traced,
)
from tensorflow.python.ops import custom_gradient
from tensorflow.python.ops.gradients_util import PossibleTapeGradientTypes
from tensorflow.python.ops.resource_variable_ops import variable_accessed as note_read

__all__ = ["FuncGraph", "note_read", "recording", "stop_recording", "when_traced"]

gradient_order = PossibleTapeGradientTypes
"""Which gradients tapes may ask of tensors: 0 none, 1 first order, 2 higher."""

record_gradient = functools.partial(record_operation, "Identity")
"""Tells tapes how gradients of inputs come from those of outputs: lists, `backward`.

As `tf.custom_gradient`, which would route inputs and outputs of a graph's op through
one more op on one device.
"""

_FUNCTIONS = (polymorphic_function.__name__, custom_gradient.__name__)
_instances = itertools.count(1)


def started() -> bool:
    """Whether TensorFlow has claimed its devices; does not make it do so."""
    return getattr(tf_context.context(), "_context_handle", None) is not None


def wait_for_eager_operations() -> None:
    """Wait until devices, those of workers included, did what they were asked."""
    tf_context.context().sync_executors()


def join_again(cluster_spec: Any) -> None:
    """Join workers again, or others; TensorFlow's public way would listen anew."""
    context = tf_context.context()
    fresh = copy.deepcopy(context.get_server_def())
    fresh.cluster.CopyFrom(cluster_spec.as_cluster_def())
    context.update_server_def(fresh)


def forget_traces(owner: Any, held: Iterable[Any]) -> None:
    """Let a layer's `tf.function`s, methods or `held`, trace its present variables."""
    for function in held:
        vars(function).update(vars(function._clone(None)))
    for one in type(owner).__mro__:
        for value in vars(one).values():
            if isinstance(value, polymorphic_function.Function):
                value._descriptor_cache.pop(owner, None)


def compiled_by_xla(function: Any) -> bool:
    """Whether a function is a `tf.function(jit_compile=True)`."""
    return isinstance(function, polymorphic_function.Function) and function._jit_compile


def add_functions(source: Any, target: Any) -> None:
    """Let ops of a graph call the functions that those of another graph call."""
    for function in source._functions.values():
        target._add_function_recursive(function)


def walk(ops: Iterable[Any], ahead: Callable[[Any], Iterable[Any]]) -> Iterator[Any]:
    """Ops or tensors, and those that are ahead of them, each once."""
    left, done = list(ops), dict[int, Any]()
    while left:
        op = left.pop()
        if id(op) not in done:
            done[id(op)] = op
            yield op
            left += ahead(op)


def ancestors(ops: Iterable[Any]) -> set[Any]:
    """Traced ops with all that they need."""
    return set(walk(ops, lambda op: [*(t.op for t in op.inputs), *op.control_inputs]))


def functions_called(node: Any) -> dict[str, str]:
    """The functions that a node calls, by calls, branches or loops: its attributes."""
    called = ((key, one.list.func or [one.func]) for key, one in node.attr.items())
    return {one.name: key for key, its in called for one in its if one.name}


def function_body(graph: Any, name: str) -> Any:
    """The graph of a function that an op of `graph` calls."""
    return graph._get_function(name).graph


def functions_entered() -> int:
    """Frames on the stack of functions that capture variables but no other tensor.

    `tf.function` may be called again in another graph; the gradients of
    `tf.custom_gradient` and `tf.recompute_grad` know variables only. Those that Keras
    makes for one call, as for convolutions with groups, take a tensor.
    """
    entered = 0
    for frame, _ in traceback.walk_stack(sys._getframe()):
        if frame.f_globals.get("__name__") in _FUNCTIONS:
            made = getattr(frame.f_locals.get("self"), "python_function", None)
            of_keras = getattr(made, "__module__", "").startswith("keras.")
            entered += not (of_keras or frame.f_code.co_name == "wrapped_fn")
    return entered


def function_nodes(name: str) -> list[Any]:
    """The nodes of a function that a graph calls, by the function's name."""
    name = name.partition("_specialized_for_")[0]  # by TensorFlow's graph optimizer
    return list(tf_context.context().get_function_def(name).node_def)


@contextlib.contextmanager
def watch_graphs() -> Iterator[list[Any]]:
    """Collect nodes of functions that TensorFlow instantiates; filled at the end."""
    context = tf_context.context()
    context.ensure_initialized()
    context.enable_graph_collection()
    context.export_run_metadata()  # what `tf.summary.trace_on` has left
    found: list[Any] = []
    try:
        yield found
    finally:
        metadata = context.export_run_metadata()
        context.disable_graph_collection()
        found += [
            [node for graph in function.partition_graphs for node in graph.node]
            for function in metadata.function_graphs
        ]


@contextlib.contextmanager
def instantiated_again() -> Iterator[None]:
    """Have TensorFlow instantiate anew each function that this thread calls here."""
    context = tf_context.context()
    before = context.function_call_options
    config = tf.compat.v1.ConfigProto.FromString(before.config_proto_serialized)
    config.experimental.session_metadata.name = "audit"
    config.experimental.session_metadata.version = next(_instances)
    context.function_call_options = tf_context.FunctionCallOptions(
        executor_type=before.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        context.function_call_options = before
