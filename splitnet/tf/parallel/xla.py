"""What XLA can compile: tried, where it is not known, before anything runs."""

import re
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import first_line
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.formulas import keras_class

__all__ = ["refusal"]

_SAMPLES, _EXTENT = 2, 8  # what an unknown batch and any other unknown extent become


def refusal(node: Any) -> str:
    """Why XLA cannot compile a call forward and backward; "" if it can.

    Keras' own layers are known to compile. Any other is lowered on the shapes it reads;
    nothing of it runs.
    """
    operation = node.operation
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
        with tf.GradientTape() as tape:
            tape.watch(flat)
            with keras.StatelessScope(
                list(zip(variables, flat[count:])), initialize_variables=False
            ):
                run = keras_api.operation_fn(node.operation, training=True)
                made = keras.tree.flatten(run(*args, **kwargs))
            floats = [one for one in made if one.dtype.is_floating]
        inputs = [one for one in flat if one.dtype.is_floating]
        return made, tape.gradient(floats, inputs) if floats else []

    specs = [tf.TensorSpec(_shape(t.shape), t.dtype) for t in node.input_tensors]
    specs += [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    compiled = tf.function(both, jit_compile=True, autograph=False)
    compiled.experimental_get_compiler_ir(*specs)(stage="hlo")


def _shape(shape: Any) -> list[int]:
    return [
        (_EXTENT if axis else _SAMPLES) if extent is None else int(extent)
        for axis, extent in enumerate(shape)
    ]
