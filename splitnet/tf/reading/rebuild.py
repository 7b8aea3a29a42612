"""Make a layer anew from its class and configuration, as a `.keras` file would.

Also: which layers and variables a Python function reaches that no model tracks.
"""

import functools
import gc
import tempfile
import types
import warnings
from collections.abc import Callable, Container
from itertools import zip_longest
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.core.errors import DeclarationError, first_line, shown
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.keras_api import from_keras, sublayers

_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
_LOOKUPS += (keras.layers.TextVectorization,)
_OF_KERAS = {*vars(keras.layers.Layer(name="a")), "add_weight", "_self_update_uid"}
_SETTINGS = bool | int | float | str | np.ndarray | np.generic | types.CodeType | None


class NotRebuiltError(Exception):
    """Why a layer cannot be rebuilt from its configuration."""


def rebuilt(layer: Any) -> Any:
    """A new layer of the same class and configuration, not built."""
    _refuse_hidden_variables(layer)
    try:
        if isinstance(layer, keras.layers.Lambda):  # no configuration has its function
            own = {name: getattr(layer, name) for name in ("mask", "arguments", "name")}
            own["output_shape"] = keras_api.lambda_output_shape(layer)
            own["dtype"] = keras.layers.Layer.get_config(layer).get("dtype")
            return type(layer)(layer.function, **own)
        classes = {type(one).__name__: type(one) for one in sublayers(layer)}
        with keras.saving.CustomObjectScope(classes):
            config = config_of(layer)
            if isinstance(layer, keras.layers.TFSMLayer):  # its file is trusted already
                return type(layer)(**config)
            return type(layer).from_config(config)
    except Exception as error:  # whatever a user's get_config or __init__ raises
        if keras_api.needs_memory(error):
            raise
        raise NotRebuiltError(f"{type(error).__name__}: {first_line(error)}") from error


def config_of(layer: Any) -> dict[str, Any]:
    """A layer's configuration with its functions, without hints to build it early."""
    with warnings.catch_warnings(action="ignore"):  # of lambdas, which nobody saves
        config: dict[str, Any] = without(layer.get_config(), ("build_config",))
    # Keras has their names, which may be those of other functions too.
    known = ((k, getattr(layer, k, None)) for k in config)
    own = ((k, v) for k, v in known if isinstance(v, types.FunctionType))
    return config | {k: v for k, v in own if from_keras(layer) or not from_keras(v)}


def _refuse_hidden_variables(layer: Any) -> None:
    """Refuse a layer with variables that Keras does not see."""
    if isinstance(layer, keras.layers.Lambda):
        hidden = [
            getattr(value, "name", type(value).__name__)
            for value in reached(layer.function)
            if not getattr(value, "built", False) or value.variables
        ]
    else:
        own = [one for one in sublayers(layer) if not from_keras(one)]
        attributes = [pair for one in own for pair in vars(one).items()]
        hidden = [name for name, v in attributes if isinstance(v, tf.Variable)]
    if hidden:
        raise DeclarationError(
            f"layer {layer.name!r} ({type(layer).__qualname__}) hides variables from "
            f"Keras: {', '.join(hidden)}. Make them with add_weight(); a function that "
            "uses layers can be the body of a branch."
        )


def without(config: Any, ignored: Container[str]) -> Any:
    """A configuration without these keys, at any depth."""
    if isinstance(config, dict):
        return {k: without(v, ignored) for k, v in config.items() if k not in ignored}
    if type(config) in (list, tuple):
        return type(config)(without(item, ignored) for item in config)
    return config


def check_alike(layer: Any, clone: Any) -> None:
    """Raise a NotRebuiltError if a clone has other variables or plain attributes."""
    if [v.shape for v in layer.variables] != [v.shape for v in clone.variables]:
        mine, its = (
            ", ".join(f"{v.name}{tuple(v.shape)}" for v in one.variables) or "none"
            for one in (layer, clone)
        )
        raise NotRebuiltError(f"its variables are {mine}, the copy's {its}")
    for one, other in zip(sublayers(layer), sublayers(clone)):
        known = from_keras(one) or hasattr(one, "load_assets")  # which come later
        for name, value in vars(one).items():
            found = vars(other).get(name, getattr(type(other), name, None))
            own = name == "call" or not (known or name in _OF_KERAS)
            if own and _differ(getattr(value, "splitnet_plain", value), found):
                what = f"{name} is {shown(value)}, in the copy {shown(found)}"
                raise NotRebuiltError(what)


def _differ(one: Any, other: Any) -> bool:
    """Whether settings differ in plain values, constants or functions in them."""
    pairs = zip_longest(_held_in(one), _held_in(other))
    known = (pair for pair in pairs if all(isinstance(v, _SETTINGS) for v in pair))
    return not all(np.array_equal(*pair) for pair in known)


def _held_in(value: Any) -> list[Any]:
    """The items of a setting; of functions their code, and what they close over."""
    found = list[Any]()
    for one in keras.tree.flatten(value):
        if isinstance(one, functools.partial):
            one = [one.func, one.args, one.keywords]
        elif isinstance(one, types.FunctionType):
            one = [one.__code__, *gc.get_referents(*(one.__closure__ or ()))]
        elif isinstance(one, tf.Tensor) and hasattr(one, "numpy"):
            one = one.numpy()
        found += keras.tree.flatten(one)
    return found


def carry_assets(layer: Any, clone: Any) -> None:
    """Copy what a layer saves beside its variables, by its own methods."""
    kind, plain = type(layer), keras.layers.Layer.load_own_variables
    load, store = kind.load_own_variables, dict[str, Any]()
    derives = hasattr(kind, "adapt") or not from_keras(load)
    if derives and layer.variables and load is not plain:
        layer.save_own_variables(store)
        clone.load_own_variables(store)
    if isinstance(layer, _LOOKUPS):  # files would lose ends of lines, and weights
        if layer.get_vocabulary(include_special_tokens=False):  # it is adapted
            layer.save_own_variables(store)
            words = layer.get_vocabulary()
            clone.set_vocabulary(words, *(w[: len(words)] for w in store.values()))
    elif hasattr(kind, "load_assets"):
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            clone.load_assets(folder)


_HOLDERS = (list, tuple, set, frozenset, dict)
_HOLDERS += (functools.partial, types.MethodType, types.CellType)
_STATEFUL = (keras.Variable, tf.Variable, keras.layers.Layer)


def held_layers(function: Any) -> list[Any]:
    """The layers that a function may call without having made them."""
    found = reached([function, vars(type(function)).get("__call__")])
    return [value for value in found if isinstance(value, keras.layers.Layer)]


def reached(root: Any, kinds: tuple[type, ...] = _STATEFUL) -> list[Any]:
    """Values of some kinds that something holds, by breadth-first search."""
    seen: dict[int, Any] = {}
    todo = [root]
    for value in todo:  # grows
        if id(value) not in seen:
            seen[id(value)] = value
            todo += () if isinstance(value, kinds) else _held_by(value)
    return [value for value in seen.values() if isinstance(value, kinds)]


def forget_traces(operation: Any) -> None:
    """Let the functions that a layer and its sublayers have or hold be traced again."""
    kinds = (tf.types.experimental.PolymorphicFunction,)
    for layer in sublayers(operation):
        tf_api.forget_traces(layer, reached([*vars(layer).values()], kinds))


def _held_by(value: Any) -> list[Any]:
    """Items, attributes, closures, defaults, globals; nothing of a framework's."""
    if isinstance(value, _HOLDERS):
        return gc.get_referents(value)
    function = isinstance(value, types.FunctionType)
    owner = value if function else type(value)
    if isinstance(value, types.ModuleType | type) or _is_framework(owner):
        return []
    if not function:
        kinds = (*_STATEFUL, *_HOLDERS, Callable)
        attributes = getattr(value, "__dict__", {}).values()
        return [one for one in attributes if isinstance(one, kinds)]
    codes = [value.__code__]
    for code in codes:  # grows by the functions that are written inside
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    names = [name for code in codes for name in code.co_names]
    named = [value.__globals__[n] for n in names if n in value.__globals__]
    for module in [one for one in named if isinstance(one, types.ModuleType)]:
        if not _is_framework(module):
            named += [vars(module)[name] for name in names if name in vars(module)]
    return [*(value.__closure__ or ()), *(value.__defaults__ or ()), *named]


def _is_framework(what: Any) -> bool:
    module = getattr(what, "__module__", None) or getattr(what, "__name__", "") or ""
    return module.partition(".")[0] in ("keras", "tensorflow", "numpy")
