"""Copies of single layers: class, configuration, name, initializers and assets.

A layer is copied as a `.keras` file would carry it, but in memory and without a
registry; what its configuration forgets is refused with its name.
"""

import tempfile
from typing import Any

import keras

from splitnet.core.errors import DeclarationError, first_line

__all__ = ["carry_assets", "copy_layer"]


def copy_layer(layer: Any) -> Any:
    """A new layer of the same class, configuration and name, not yet built.

    Raises:
        DeclarationError: the layer cannot be described by its configuration.
    """
    kind = type(layer)
    try:
        if isinstance(layer, keras.layers.Lambda):
            twin = _copy_lambda(layer)
        else:
            with keras.saving.CustomObjectScope(_classes_in(layer)):
                twin = kind.from_config(_unbuilt(layer.get_config()))
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


def _unbuilt(config: Any) -> Any:
    """The configuration without hints to build sublayers early, outside their owner."""
    if isinstance(config, dict):
        return {k: _unbuilt(v) for k, v in config.items() if k != "build_config"}
    if isinstance(config, list):
        return [_unbuilt(item) for item in config]
    return config


def _classes_in(layer: Any) -> dict[str, type]:
    """The classes of a layer and its sublayers, which need no registration here."""
    return {type(one).__name__: type(one) for one in layer._flatten_layers()}


def _copy_lambda(layer: Any) -> Any:
    hidden = [what for what in _closed_over(layer.function) if _has_variables(what)]
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
        output_shape=layer._output_shape,
        mask=layer.mask,
        arguments=layer.arguments,
        name=layer.name,
        dtype=config.get("dtype"),
        trainable=layer.trainable,
    )


def _closed_over(function: Any) -> list[Any]:
    """What a function holds on to: its closure, and the globals that it names."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    held = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    return held + [
        function.__globals__[name]
        for name in code.co_names
        if name in function.__globals__
    ]


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # the look itself raises on an empty cell
    except ValueError:
        return False
    return True


def _has_variables(value: Any) -> bool:
    if isinstance(value, keras.Variable):
        return True
    return isinstance(value, keras.layers.Layer) and (
        not value.built or bool(value.variables)
    )


def _copy_initializers(layer: Any, twin: Any) -> None:
    """Share initializers: each draws its default seed when made; it must be kept."""
    for one, other in zip(layer._flatten_layers(), twin._flatten_layers()):
        if type(one) is not type(other):
            return
        for name, value in vars(one).items():
            if isinstance(value, keras.initializers.Initializer) and name in vars(
                other
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
