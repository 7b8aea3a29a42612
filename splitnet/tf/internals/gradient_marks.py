"""Names of gradient ops and the order of their sums, for placement by name scopes."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.eager import record as tf_record
from tensorflow.python.framework import ops as tf_ops

__all__ = [
    "SIGN",
    "handle_of",
    "keep_as_written",
    "read_as",
    "same_to_tapes",
    "scope_custom_gradients",
    "signed",
]

SIGN = "gradient_of_what_was_made"


def scope_custom_gradients(wanted: Callable[[str], bool]) -> None:
    """Give a gradient function the name scope of its call, as TensorFlow gives an op's.

    TensorFlow makes the gradient ops of an ordinary op under
    "gradient_tape/<scope of the op>", but those of a `tf.custom_gradient` (swish, say)
    and of a called function under no scope at all. From here on they get it too, in
    graphs, where `wanted` says so of the scope of the call; all else stays as it is.
    """
    record = tf_record.record_operation

    @functools.wraps(record)
    def record_scoped(
        op_type: str,
        output_tensors: Any,
        input_tensors: Any,
        backward_function: Callable[..., Any],
        *forward: Any,
        **named: Any,
    ) -> None:
        scope = "" if tf.executing_eagerly() else tf.get_current_name_scope()

        def backward_scoped(*gradients: Any) -> Any:
            with tf.name_scope(f"gradient_tape/{scope}/"):
                return backward_function(*gradients)

        backward = backward_scoped if wanted(scope) else backward_function
        record(op_type, output_tensors, input_tensors, backward, *forward, **named)

    tf_record.record_operation = record_scoped


def same_to_tapes(value: Any) -> Any:
    """A copy of a graph's tensor that gradient tapes take for the tensor itself.

    Each op that reads it has its gradient summed with those of the tensor's readers, in
    their order; an identity's readers would be summed among themselves first.
    """
    if tf.executing_eagerly():
        return tf.identity(value)
    with tf_record.stop_recording():
        copy = tf.identity(value)
    copy._id = value._id
    return copy


def handle_of(variable: Any) -> Any:
    """What tapes know a variable by in a graph; None where it is read otherwise."""
    inside = not tf.executing_eagerly() and isinstance(variable, tf.Variable)
    return getattr(variable, "handle", None) if inside else None


def read_as(handle: Any, value: Any) -> Any:
    """A copy of a variable's value that gradient tapes take for one more read of it.

    Recorded as `BaseResourceVariable` records its reads in a graph.
    """
    with tf_record.stop_recording():
        copy = tf.identity(value)
    tf_record.record_operation(
        "ReadVariableOp", [copy], [handle], lambda found: [found], lambda d: [d]
    )
    return copy


def signed(value: Any) -> Any:
    """A copy of a graph's tensor whose gradient passes an op in the scope of this call.

    The gradient of an addition is that of its sum, without an op of its own: nothing
    else would say where a sum of such gradients belongs. For tapes the copy is what the
    same operation made: one more would change the order in which they go back.
    """
    op = value.op
    backward = tf_ops.get_gradient_function(op)

    def backward_signed(found: Any) -> Any:
        return backward(op, tf.identity(found, name=SIGN))

    with tf_record.stop_recording():
        copy = tf.identity(value)
    tf_record.record_operation(op.type, [copy], list(op.inputs), backward_signed)
    return copy


def keep_as_written(value: Any) -> Any:
    """The same tensor, whose op TensorFlow's graph optimizer leaves as it is.

    It makes one AddN of a chain of sums, which holds all of its terms at once.
    """
    if not tf.executing_eagerly():
        value.op._set_attr("_grappler_do_not_remove", AttrValue(b=True))
    return value
