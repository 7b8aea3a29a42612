"""Which calls run recomputed or compiled by XLA, and why others do not.

What XLA can compile is tried, where it is not known, before anything runs.
"""

import re
from collections.abc import Collection
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import first_line, warn
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.placed import Placed
from splitnet.tf.reading.call_cost import keras_class
from splitnet.tf.reading.flatten import is_sparse

_LOOPING = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed)
_SAMPLES, _EXTENT = 2, 8  # what an unknown batch and any other unknown extent become


def how_to_run(placed: Placed, how: str, devices: Collection[str]) -> dict[int, str]:
    """How each call on some devices runs, by the id of its node; warns of others.

    Args:
        placed: the placement of an emitted model.
        how: "recompute" or "xla".
        devices: the names of those whose parts shall run so.
    """
    graph, device_of = placed.plan.graph, placed.plan.device_of
    working = {call.part for call in graph.calls if call.forward_flops}
    found: dict[int, str] = {}
    refused: dict[tuple[str, str], None] = {}
    for node in placed.flow.nodes:
        part = placed.part_of[placed.key_of[id(node)]]
        if part not in working or device_of[part] not in devices:
            continue
        towers = id(node) in placed.replicas
        reason = "towers run plainly" if towers else _obstacle(node, how)
        if reason:
            refused[part, reason] = None
        else:
            found[id(node)] = how
    for part, reason in refused:
        warn(f"{how}: {part!r} runs as it is: {reason}.")
    return found


def _obstacle(node: Any, how: str) -> str:
    """Why a call cannot run so; "" if it can.

    Keras' own layers are known to compile. Any other is lowered on the shapes it reads;
    nothing of it runs.
    """
    operation = node.operation
    kinds = [*node.input_tensors, *node.outputs]
    if any(keras.backend.standardize_dtype(t.dtype) == "string" for t in kinds):
        return "it works on text"
    if any(map(is_sparse, kinds)):
        return "it works on sparse tensors"
    if how != "xla":
        return ""
    if any(isinstance(one, _LOOPING) for one in keras_api.sublayers(operation)):
        return "XLA compiles its loop for one length only"
    if not isinstance(operation, keras.layers.Layer) or _known(operation):
        return ""
    try:
        _lower(node)
    except Exception as error:  # a stranger's layer may raise anything when traced
        missing = re.search(r"_JIT: (\w+)", str(error))
        if missing:
            return f"XLA has no kernel for its {missing[1]}"
        return f"XLA cannot compile it: {first_line(error)[:120]}"
    return ""


def _known(layer: Any) -> bool:
    """Whether a layer is Keras' own, or made of such layers."""
    if isinstance(layer, keras.Sequential | keras_api.Functional):
        return all(_known(one) for one in layer.layers)
    home = type(layer).__module__
    own = keras_class(layer) not in ("", "Lambda")
    return own and home.startswith("keras.src.layers.") and "preproc" not in home


def _lower(node: Any) -> None:
    """Lower a call and its gradients for XLA."""
    variables = list(node.operation.variables)
    count = len(node.input_tensors)

    def both(*flat: Any) -> Any:
        given = {id(old): new for old, new in zip(node.input_tensors, flat)}
        args, kwargs = node.arguments.fill_in(given)
        values = list(zip(variables, flat[count:]))
        with tf.GradientTape() as tape:
            tape.watch(flat)
            with keras.StatelessScope(values, initialize_variables=False):
                run = keras_api.operation_fn(node.operation, training=True)
                made = keras.tree.flatten(run(*args, **kwargs))
            floats = [one for one in made if one.dtype.is_floating]
        inputs = [one for one in flat if one.dtype.is_floating]
        return made, tape.gradient(floats, inputs) if floats else []

    specs = []
    for tensor in node.input_tensors:
        known = enumerate(tensor.shape)
        guess = [
            (_EXTENT if axis else _SAMPLES) if extent is None else int(extent)
            for axis, extent in known
        ]
        specs.append(tf.TensorSpec(guess, tensor.dtype))
    specs += [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    compiled = tf.function(both, jit_compile=True, autograph=False)
    compiled.experimental_get_compiler_ir(*specs)(stage="hlo")
