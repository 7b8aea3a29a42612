"""Copies of single layers: class, configuration, name, initializers and assets.

A layer is copied as a `.keras` file would carry it, but in memory and without a
registry; what its configuration forgets is refused with its name.
"""

import functools
import tempfile
import types
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError, first_line
from splitnet.tf.brisk import PLAIN
from splitnet.tf.internals import keras_api

__all__ = ["carry_assets", "copy_layer", "hidden_in"]


def copy_layer(layer: Any) -> Any:
    """A new layer of the same class, configuration and name, not yet built.

    Raises:
        DeclarationError: the layer cannot be described by its configuration.
    """
    kind = type(layer)
    _check_seen(layer)
    try:
        if isinstance(layer, keras.layers.Lambda):
            twin = _copy_lambda(layer)
        else:
            with keras.saving.CustomObjectScope(_classes_in(layer)):
                twin = kind.from_config(_config_of(layer))
    except DeclarationError:
        raise
    except Exception as error:  # whatever a stranger's get_config or __init__ raises
        raise DeclarationError(
            f"layer {layer.name!r} ({kind.__module__}.{kind.__qualname__}) cannot be "
            f"copied from its configuration: {type(error).__name__}: "
            f"{first_line(error)} Give the class a get_config() that returns every "
            "argument of __init__, so that from_config(get_config()) makes an equal "
            "layer."
        ) from error
    _copy_initializers(layer, twin)
    twin.trainable = layer.trainable
    return twin


def _check_seen(layer: Any) -> None:
    """Refuse a layer with variables that are TensorFlow's own, made by no add_weight.

    Raises:
        DeclarationError: names the layer and the attributes.
    """
    own = [
        name
        for one in keras_api.sublayers(layer)
        if not type(one).__module__.startswith("keras.")
        for name, value in vars(one).items()
        if isinstance(value, tf.Variable)
    ]
    if own:
        raise DeclarationError(
            f"layer {layer.name!r} ({type(layer).__qualname__}) keeps variables that "
            f"Keras does not see ({', '.join(own)}), so they could be neither placed "
            "nor saved. Make them with add_weight() in __init__ or build()."
        )


def _config_of(layer: Any) -> dict[str, Any]:
    """The configuration; of Keras' own layers with initializers as they are.

    The twin is given the same ones anyway, and making them anew takes a twentieth of
    emission's time.
    """
    config: dict[str, Any] = _unbuilt(layer.get_config())
    if type(layer).__module__.startswith("keras."):
        for name, value in vars(layer).items():
            if name in config and isinstance(value, keras.initializers.Initializer):
                config[name] = value
    return config


def _unbuilt(config: Any) -> Any:
    """The configuration without hints to build sublayers early, outside their owner."""
    if isinstance(config, dict):
        return {k: _unbuilt(v) for k, v in config.items() if k != "build_config"}
    if isinstance(config, list):
        return [_unbuilt(item) for item in config]
    return config


def _classes_in(layer: Any) -> dict[str, type]:
    """The classes of a layer and its sublayers, which need no registration here."""
    return {type(one).__name__: type(one) for one in keras_api.sublayers(layer)}


def _copy_lambda(layer: Any) -> Any:
    hidden = hidden_in(layer.function)
    if hidden:
        names = ", ".join(getattr(what, "name", type(what).__name__) for what in hidden)
        raise DeclarationError(
            f"layer {layer.name!r} (Lambda) hides variables: its function uses "
            f"{names}, which the model does not see, so they could be neither placed, "
            "trained nor saved. Make it a branch body, or a Layer that owns them."
        )
    config = keras.layers.Layer.get_config(layer)
    return type(layer)(
        layer.function,
        output_shape=keras_api.lambda_output_shape(layer),
        mask=layer.mask,
        arguments=layer.arguments,
        name=layer.name,
        dtype=config.get("dtype"),
        trainable=layer.trainable,
    )


def hidden_in(function: Any) -> list[Any]:
    """Variables, and layers with some, that a function reaches and no model sees.

    Followed are closures, defaults, globals that its code names, functions that it
    calls, bound objects' attributes, and what stands in lists, tuples and dicts.
    """
    found: dict[int, Any] = {}
    seen: set[int] = set()
    todo = [function]
    while todo:
        value = todo.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, keras.Variable | tf.Variable):
            found[id(value)] = value
        elif isinstance(value, keras.layers.Layer):
            if not value.built or value.variables:
                found[id(value)] = value
        else:
            todo += _held_by(value)
    return list(found.values())


def _held_by(value: Any) -> list[Any]:
    """What a value holds on to, one step further; nothing of a module or a class."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if not isinstance(value, types.FunctionType):
        return _attributes(value)
    if _is_framework(value):
        return []
    cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    named = [
        value.__globals__[name]
        for code in _codes(value.__code__)
        for name in code.co_names
        if name in value.__globals__
    ]
    return [*cells, *(value.__defaults__ or ()), *named]


def _attributes(value: Any) -> list[Any]:
    """The layers and variables that an object of a stranger's class keeps."""
    if isinstance(value, types.ModuleType | type) or _is_framework(type(value)):
        return []
    kinds = (keras.Variable, tf.Variable, keras.layers.Layer, list, tuple, dict)
    return [
        one for one in getattr(value, "__dict__", {}).values() if isinstance(one, kinds)
    ]


def _is_framework(what: Any) -> bool:
    module = getattr(what, "__module__", None) or ""
    return module.partition(".")[0] in ("keras", "tensorflow", "numpy")


def _codes(code: Any) -> Iterator[Any]:
    """The code of a function and of those that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # the look itself raises on an empty cell
    except ValueError:
        return False
    return True


def _copy_initializers(layer: Any, twin: Any) -> None:
    """Share initializers: each draws its default seed when made; it must be kept."""
    for one, other in zip(keras_api.sublayers(layer), keras_api.sublayers(twin)):
        if type(one) is not type(other):
            return
        for name, value in vars(one).items():
            if (
                type(value) not in PLAIN
                and isinstance(value, keras.initializers.Initializer)
                and name in vars(other)
            ):
                vars(other)[name] = value


def carry_assets(original: Any, twin: Any) -> None:
    """Copy what a layer saves beside its variables, by its own saving methods."""
    kind, base = type(original), keras.layers.Layer
    derives = hasattr(kind, "adapt") or not kind.__module__.startswith("keras.")
    if (
        derives
        and original.variables
        and kind.load_own_variables is not base.load_own_variables
    ):
        store: dict[str, Any] = {}
        original.save_own_variables(store)
        twin.load_own_variables(store)
    if hasattr(kind, "load_assets"):
        with tempfile.TemporaryDirectory() as folder:
            original.save_assets(folder)
            twin.load_assets(folder)
