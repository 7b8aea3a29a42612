"""What makes copying a thousand layers brisk, and changes nothing of what is copied.

A third of what it takes to make a Keras layer is to set its attributes: each is offered
to two trackers, one of Keras and one of TensorFlow, that look for variables and layers
in it. Most are numbers, names and functions, which neither tracks.
"""

import contextlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

import keras

__all__ = ["PLAIN", "setting_plainly"]

# Types of values in which there is no variable and no layer, told at a glance.
PLAIN = frozenset(
    (
        bool,
        int,
        float,
        str,
        type(None),
        types.FunctionType,
        types.MethodType,
        types.BuiltinFunctionType,
        inspect.Signature,
        keras.InputSpec,
        keras.DTypePolicy,
    )
)


@contextlib.contextmanager
def setting_plainly() -> Iterator[None]:
    """Let Keras' layers take plain values as plain objects do, past all tracking.

    What a class has a word for, as a property, is set as ever. So what layers are
    afterwards is the same, on this thread and any other.
    """
    track = keras.layers.Layer.__setattr__

    def quickly(self: Any, name: str, value: Any) -> None:
        if type(value) in PLAIN and not hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            track(self, name, value)

    keras.layers.Layer.__setattr__ = quickly
    try:
        yield
    finally:
        keras.layers.Layer.__setattr__ = track
