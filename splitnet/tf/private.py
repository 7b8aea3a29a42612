"""The private names of Keras and TensorFlow that placement needs, and nothing else.

Public Keras has no word for "run this node there": a layer knows its calls only through
nodes, a variable is born where it is built, and the optimizer sends every gradient
through one device. The names that change this are gathered here and checked on import,
so that a Keras that lost one is refused with words instead of failing inside a step.
"""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import common as keras_common
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.models.functional import Functional, operation_fn
from keras.src.ops.function import Function
from keras.src.ops.node import Node
from keras.src.ops.operation import Operation
from keras.src.ops.symbolic_arguments import SymbolicArguments
from tensorflow.python.eager import context as tf_context
from tensorflow.python.eager import record as tf_record
from tensorflow.python.framework import ops as tf_ops

from splitnet.core.errors import ConfigError, listed

__all__ = [
    "SUPPORTED",
    "Function",
    "Functional",
    "Operation",
    "SymbolicArguments",
    "TFOptimizer",
    "borrow_value",
    "compile_arguments",
    "compiled_loss",
    "functional_inside",
    "give_value",
    "hang_masks",
    "has_value",
    "in_stateless_scope",
    "made_by",
    "made_to_train",
    "move_value",
    "nodes_of",
    "note_call",
    "number_of",
    "operation_fn",
    "producer",
    "same_random_state",
    "with_values",
    "without_values",
]

SUPPORTED = ((3, 12), (3, 15))

_NEEDED = (
    (Functional, ("_standardize_inputs", "_run_through_graph", "call")),
    (keras.layers.Layer, ("_get_regularization_losses", "_flatten_layers")),
    (
        TFOptimizer,
        (
            "_all_reduce_sum_gradients",
            "_distributed_tf_update_step",
            "add_variable_from_reference",
        ),
    ),
    (keras.Variable, ("_deferred_initialize", "_initialize_with_initializer")),
    (keras_common, ("variables",)),
    (tf_context.Context, ("enable_graph_collection", "export_run_metadata")),
    (tf_record, ("record_operation",)),
    (tf_ops, ("get_gradient_function",)),
)


def check_versions() -> None:
    """Refuse a Keras outside the tested range, or without a name that is needed.

    Raises:
        ConfigError: says which version is here, which are supported, and what to do.
    """
    low, high = (".".join(map(str, v)) for v in SUPPORTED)
    here = tuple(int(x) for x in keras.__version__.split(".")[:2])
    faults = [
        f"{owner.__name__}.{name} is gone"
        for owner, names in _NEEDED
        for name in names
        if not hasattr(owner, name)
    ]
    if keras.backend.backend() != "tensorflow":
        faults.append(
            f"the Keras backend is {keras.backend.backend()!r}; set "
            "KERAS_BACKEND=tensorflow before the first import"
        )
    if not SUPPORTED[0] <= here <= SUPPORTED[1]:
        faults.append(f"Keras {keras.__version__} is outside {low} to {high}")
    if faults:
        raise ConfigError(
            listed(
                f"splitnet cannot place models with Keras {keras.__version__}; it is "
                f"tested with {low} to {high}. Try: pip install 'keras>={low},"
                f"<{SUPPORTED[1][0]}.{SUPPORTED[1][1] + 1}'",
                faults,
            )
        )


check_versions()


def compiled_loss(model: Any) -> Any:
    """What works out a compiled model's loss; None if nothing does."""
    return getattr(model, "_compile_loss", None)


def made_to_train(layer: Any) -> list[Any]:
    """A layer's own variables that were added as trainable, frozen or not."""
    return list(layer._trainable_variables)


def nodes_of(model: Any) -> list[Any]:
    """The nodes of a functional model in the order in which Keras runs them."""
    return [
        node
        for depth in sorted(model._nodes_by_depth, reverse=True)
        for node in model._nodes_by_depth[depth]
        if node.operation and not node.is_input
    ]


def producer(tensor: Any) -> Any:
    """The node that made a symbolic tensor; None for one that nothing made."""
    inner = getattr(tensor, "_splitnet_node", None)
    if inner is not None:
        return inner
    history = getattr(tensor, "_keras_history", None)
    if history is None or history.operation is None:
        return None
    return history.operation._inbound_nodes[history.node_index]


def note_call(node: Any, operation: Any, args: Any, kwargs: Any) -> list[Any]:
    """Note a call of an operation on symbolic tensors, with outputs like a node's."""
    outputs = [
        keras.KerasTensor(
            old.shape, old.dtype, sparse=old.sparse, ragged=old.ragged, name=old.name
        )
        for old in node.outputs
    ]
    Node(operation=operation, call_args=args, call_kwargs=kwargs, outputs=outputs)
    return outputs


def hang_masks(nodes: list[Any], tensors: dict[int, Any]) -> None:
    """Let the same masks hang on new outputs as on old ones; `tensors` maps both."""
    for node in nodes:
        for old in node.outputs:
            mask = getattr(old, "_keras_mask", None)
            if id(mask) in tensors:
                tensors[id(old)]._keras_mask = tensors[id(mask)]


def made_by(tensor: Any, node: Any) -> None:
    """Note the call inside an opened model that makes a symbolic tensor."""
    tensor._splitnet_node = node


def functional_inside(model: Any) -> Any:
    """The functional model that a Sequential one runs; None before it is built."""
    return model._functional


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Build layers whose variables have shapes and initializers, but no memory.

    Keras keeps such variables on a waiting list and gives them values when the next
    ordinary scope closes; ours must wait for their device, so they are taken off it.
    """
    waiting = list(_waiting())
    with keras.StatelessScope(initialize_variables=False), _patient_variables():
        try:
            yield
        finally:
            global_state.set_global_attribute("uninitialized_variables", waiting)


@contextlib.contextmanager
def _patient_variables() -> Iterator[None]:
    """Let a variable that is made from a value wait for memory, as others do.

    Keras makes the states of a stateful recurrence so, and users what they know.
    """
    kind = keras_common.variables.Variable
    plainly = kind.__init__

    def patiently(
        self: Any, initializer: Any, shape: Any = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        if not callable(initializer) and not isinstance(initializer, str):
            known = initializer
            value = self._convert_to_tensor(known, dtype=dtype)
            shape, dtype = value.shape, dtype or value.dtype

            def initializer(shape: Any, dtype: Any = None) -> Any:
                return tf.cast(tf.convert_to_tensor(known), dtype)

        plainly(self, initializer, shape, dtype, **kwargs)

    kind.__init__ = patiently
    try:
        yield
    finally:
        kind.__init__ = plainly


@contextlib.contextmanager
def with_values() -> Iterator[None]:
    """Make variables with memory of their own inside `without_values`: of metrics."""
    outer = global_state.get_global_attribute("stateless_scope")
    global_state.set_global_attribute("stateless_scope", None)
    try:
        yield
    finally:
        global_state.set_global_attribute("stateless_scope", outer)


def _waiting() -> list[Any]:
    return global_state.get_global_attribute("uninitialized_variables", []) or []


@contextlib.contextmanager
def same_random_state() -> Iterator[None]:
    """Leave Python's random state as it was: Keras draws every default seed from it."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def give_value(variable: Any, source: Any, device: str) -> None:
    """Bring a variable without a value to life on `device`, equal to `source`."""
    variable._initializer = lambda shape, dtype=None: tf.convert_to_tensor(source.value)
    with tf.device(device):
        variable._deferred_initialize()


def borrow_value(variable: Any, source: Any) -> None:
    """Let a variable without a value stand for `source`'s until it is given one."""
    variable._initializer = lambda shape, dtype=None: tf.convert_to_tensor(source.value)


def number_of(variable: Any) -> str:
    """The number that no other variable of this process has, of a TensorFlow one."""
    return str(variable._unique_id).rpartition("_")[2]


def move_value(variable: Any, device: str) -> None:
    """Give a variable that nothing has traced yet its memory on another device."""
    value = variable._value
    with tf.init_scope(), tf.device(device):
        variable._value = tf.Variable(
            value, trainable=False, name=variable.name, dtype=value.dtype
        )


def has_value(variable: Any) -> bool:
    """Whether a variable has memory on some device."""
    return variable._value is not None


def in_stateless_scope() -> bool:
    """Whether Keras is inside a stateless scope, where values are not the layer's."""
    return global_state.get_global_attribute("stateless_scope") is not None


def compile_arguments(model: Any) -> dict[str, Any]:
    """What a model was compiled with; what has state of its own is made anew."""
    arguments = dict(model._compile_config.config)
    optimizer = model.optimizer
    if optimizer is not None:
        arguments["optimizer"] = type(optimizer).from_config(optimizer.get_config())
    for key in ("metrics", "weighted_metrics"):
        arguments[key] = keras.tree.map_structure(
            lambda m: (
                type(m).from_config(m.get_config())
                if isinstance(m, keras.metrics.Metric)
                else m
            ),
            arguments.get(key),
        )
    return arguments
