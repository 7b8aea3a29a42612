"""Make a layer anew from its class and configuration, as a `.keras` file would.

Also: which layers and variables a Python function reaches that no model tracks.
"""

import functools
import tempfile
import types
from collections.abc import Callable, Container, Iterator
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError, first_line
from splitnet.tf.internals import keras_api
from splitnet.tf.internals.keras_api import from_keras, sublayers

__all__ = [
    "MODELS",
    "NotRebuiltError",
    "SharedParts",
    "carry_assets",
    "check_alike",
    "held_functions",
    "held_layers",
    "rebuild",
    "without",
]

MODELS = (keras.Sequential, keras_api.Functional)
_SHARED = (keras.layers.Layer, keras.random.SeedGenerator)


class NotRebuiltError(Exception):
    """A layer cannot be rebuilt from its configuration; the message says why."""


def rebuild(layer: Any) -> Any:
    """A new layer of the same class, configuration, initializers and name, not built.

    Raises:
        NotRebuiltError: its configuration does not describe it.
        DeclarationError: it hides variables, so that it could not be placed at all.
    """
    kind = type(layer)
    _refuse_hidden_variables(layer)
    try:
        if isinstance(layer, keras.layers.Lambda):
            clone = _lambda_again(layer)
        else:
            classes = {type(one).__name__: type(one) for one in sublayers(layer)}
            with keras.saving.CustomObjectScope(classes):
                # Hints would build sublayers early, outside their owner.
                config = without(layer.get_config(), ("build_config",))
                clone = kind.from_config(config)
    except Exception as error:  # whatever a user's get_config or __init__ raises
        if keras_api.needs_memory(error):
            raise
        raise NotRebuiltError(f"{type(error).__name__}: {first_line(error)}") from error
    for one, other in zip(sublayers(layer), sublayers(clone)):
        if type(one) is type(other):
            _share_initializers(one, other)
    clone.trainable = layer.trainable
    return clone


def check_alike(layer: Any, clone: Any) -> None:
    """Check that a built clone has the variables and settings of its original.

    Raises:
        NotRebuiltError: a shape or a setting differs.
    """
    mine, its = (
        [(v.name, tuple(v.shape)) for v in x.variables] for x in (layer, clone)
    )
    if [shape for _, shape in mine] != [shape for _, shape in its]:
        raise NotRebuiltError(
            f"its variables are {_said(mine)}, the copy's {_said(its)}"
        )
    for one, other in zip(sublayers(layer), sublayers(clone)):
        for name, value in _settings(one):
            found = vars(other).get(name, value)
            if type(found) is type(value) and found != value:
                raise NotRebuiltError(f"{name} is {value!r}, in the copy {found!r}")


def _said(variables: list[Any]) -> str:
    return ", ".join(f"{name}{shape}" for name, shape in variables) or "none"


def _settings(layer: Any) -> Iterator[tuple[str, Any]]:
    """Plain attributes that a class which is not Keras' own has set."""
    if from_keras(layer):
        return
    for name, value in vars(layer).items():
        own = not name.startswith("_") and name not in ("built", "name", "trainable")
        if own and isinstance(value, bool | int | float | str):
            yield name, value


def _refuse_hidden_variables(layer: Any) -> None:
    """Refuse a layer with variables that Keras does not see.

    Raises:
        DeclarationError: names the layer and what hides them.
    """
    if isinstance(layer, keras.layers.Lambda):
        hidden = _hidden_variables(layer.function)
        if hidden:
            names = ", ".join(getattr(v, "name", type(v).__name__) for v in hidden)
            raise DeclarationError(
                f"layer {layer.name!r} (Lambda) hides variables: its function uses "
                f"{names}, which the model does not see, so they could be neither "
                "placed, trained nor saved. Make it a branch body, or a Layer that "
                "owns them."
            )
    own = [
        name
        for one in sublayers(layer)
        if not from_keras(one)
        for name, value in vars(one).items()
        if isinstance(value, tf.Variable)
    ]
    if own:
        raise DeclarationError(
            f"layer {layer.name!r} ({type(layer).__qualname__}) keeps variables that "
            f"Keras does not see ({', '.join(own)}), so they could be neither placed "
            "nor saved. Make them with add_weight() in __init__ or build()."
        )


def _lambda_again(layer: Any) -> Any:
    """A Lambda with the same function, which no configuration can carry."""
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


def without(config: Any, ignored: Container[str]) -> Any:
    """A configuration without these keys, at any depth."""
    if isinstance(config, dict):
        return {k: without(v, ignored) for k, v in config.items() if k not in ignored}
    if isinstance(config, list):
        return [without(item, ignored) for item in config]
    return tuple(without(list(config), ignored)) if type(config) is tuple else config


def _share_initializers(layer: Any, clone: Any) -> None:
    """Share initializers: each draws its default seed when it is made."""
    for name, value in vars(layer).items():
        if isinstance(value, keras.initializers.Initializer) and name in vars(clone):
            vars(clone)[name] = value


def carry_assets(layer: Any, clone: Any) -> None:
    """Copy what a layer saves beside its variables, by its own saving methods."""
    kind = type(layer)
    own = kind.load_own_variables is not keras.layers.Layer.load_own_variables
    derives = hasattr(kind, "adapt") or not from_keras(kind)
    if derives and layer.variables and own:
        store: dict[str, Any] = {}
        layer.save_own_variables(store)
        clone.load_own_variables(store)
    if hasattr(kind, "load_assets"):
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            clone.load_assets(folder)


class SharedParts:
    """The copies of layers, of what layers hold, and of seeds, one each.

    A configuration says what a layer holds and not whether another holds the same: a
    dense layer that is called, and is wrapped by `TimeDistributed` as well, would
    become two.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def copy_of(self, original: Any) -> Any:
        """The copy of a layer met alone or inside another; None if it was not met."""
        return self._known.get(id(original), (None, None))[1]

    def meet(self, original: Any, copy: Any) -> None:
        """Remember a copy, and let it hold the copies of what its original holds."""
        self._known[id(original)] = (original, copy)
        held = vars(copy)
        for name, one in vars(original).items():
            other = held.get(name)
            if isinstance(one, list) and isinstance(other, list):
                for i, pair in enumerate(zip(one, other)):
                    list.__setitem__(other, i, self._joined(*pair))  # untracked
            elif isinstance(one, dict) and isinstance(other, dict):
                for key in one:
                    if key in other:
                        dict.__setitem__(other, key, self._joined(one[key], other[key]))
            elif isinstance(one, _SHARED):
                held[name] = self._joined(one, other)

    def _joined(self, one: Any, other: Any) -> Any:
        """The copy of `one`: what was met, or `other`, which is met now."""
        if type(one) is not type(other) or not isinstance(one, _SHARED):
            return other
        if isinstance(one, MODELS):
            return other
        known = self.copy_of(one)
        if known is None:
            self.meet(one, other)
        return other if known is None else known


# What a function reaches

_STATEFUL = (keras.Variable, tf.Variable)
_TRACED = (tf.types.experimental.PolymorphicFunction,)


def _hidden_variables(function: Any) -> list[Any]:
    """Variables, and layers with some, that a function reaches and no model sees."""

    def wanted(value: Any) -> bool:
        if isinstance(value, keras.layers.Layer):
            return not value.built or bool(value.variables)
        return True

    return [value for value in _reached(function) if wanted(value)]


def held_layers(function: Any) -> list[Any]:
    """The layers that a function may call without having made them."""
    roots = [function]
    if not isinstance(function, types.FunctionType):
        roots.append(vars(type(function)).get("__call__"))
    found = {id(v): v for root in roots for v in _reached(root)}
    return [v for v in found.values() if isinstance(v, keras.layers.Layer)]


def held_functions(layer: Any) -> list[Any]:
    """The `tf.function`s that a layer keeps, also in lists, closures and the like."""
    return list(_reached(list(vars(layer).values()), _TRACED))


def _reached(
    root: Any, kinds: tuple[type, ...] = (*_STATEFUL, keras.layers.Layer)
) -> Iterator[Any]:
    """Values of some kinds, by breadth-first search.

    Followed are closures, defaults, globals that the code names, functions that it
    calls, attributes of bound objects, and items of lists, tuples and dicts.
    """
    seen: set[int] = set()
    todo = [root]
    while todo:
        value = todo.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, kinds):
            yield value
        else:
            todo += _held_by(value)


def _held_by(value: Any) -> list[Any]:
    """What a value holds, one step further; nothing of a framework's module."""
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        return [] if _is_framework(value) else _held_by_function(value)
    if isinstance(value, types.ModuleType | type) or _is_framework(type(value)):
        return []
    kinds = (*_STATEFUL, keras.layers.Layer, list, tuple, dict, Callable)
    attributes = getattr(value, "__dict__", {}).values()
    return [one for one in attributes if isinstance(one, kinds)]


def _held_by_function(function: types.FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # a name that is assigned later
            continue
    names = [name for code in _codes(function.__code__) for name in code.co_names]
    named = [function.__globals__[n] for n in names if n in function.__globals__]
    for module in [one for one in named if isinstance(one, types.ModuleType)]:
        if not _is_framework(module):
            named += [vars(module)[name] for name in names if name in vars(module)]
    return [*cells, *(function.__defaults__ or ()), *named]


def _is_framework(what: Any) -> bool:
    module = getattr(what, "__module__", None) or getattr(what, "__name__", "") or ""
    return module.partition(".")[0] in ("keras", "tensorflow", "numpy")


def _codes(code: Any) -> Iterator[Any]:
    """The code of a function and of those that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
