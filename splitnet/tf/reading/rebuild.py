"""Make a layer anew from its class and configuration, as a `.keras` file would.

Also: which layers and variables a Python function reaches that no model tracks.
"""

import contextlib
import copy
import enum
import functools
import gc
import tempfile
import types
import warnings
from collections.abc import Container, Iterator, Sequence
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
_SETTINGS = bool | int | float | complex | str | bytes | enum.Enum | None
_SETTINGS |= np.ndarray | np.generic | np.ufunc | types.CodeType | type
# What a copy shares with its original, or is given, is not compared.
_ELSEWHERE = keras.layers.Layer | keras.random.SeedGenerator | keras.Variable
_ELSEWHERE |= tf.Variable | keras.Initializer | keras.Regularizer | types.ModuleType
_ELSEWHERE |= keras.metrics.Metric | keras.optimizers.Optimizer | set | frozenset
_HOLDERS = (list, tuple, set, frozenset, dict)
_HOLDERS += (functools.partial, types.MethodType, types.CellType)
_STATEFUL = (keras.Variable, tf.Variable, keras.layers.Layer)
_AUTOMATIC = ("name", "trainable", "build_config", "shared_object_id")


class NotRebuiltError(Exception):
    """Why a layer cannot be rebuilt from its configuration."""


def rebuilt(layer: Any, held: Sequence[Any]) -> Any:
    """A new layer like this one, not built, unless something is `held_elsewhere`."""
    _refuse_hidden_variables(layer, held)
    if held and not all(map(from_keras, sublayers(layer))):
        names = (getattr(x, "name", None) or type(x).__name__ for x in held[:6])
        raise NotRebuiltError(f"it holds {', '.join(names)} where Keras does not look")
    try:
        if isinstance(layer, keras.layers.Lambda):  # no configuration has its function
            own = {name: getattr(layer, name) for name in ("mask", "arguments", "name")}
            own["output_shape"] = keras_api.lambda_output_shape(layer)
            own["dtype"] = keras.layers.Layer.get_config(layer).get("dtype")
            return type(layer)(layer.function, **own)
        return remade(layer)
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


def remade(one: Any) -> Any:
    """A layer, metric or optimizer made anew, with what its `get_config` leaves out."""
    config = config_of(one)
    if (config.get("optimizer_map") or {}).get("class_name") == "function":
        raise ValueError("a function chooses its optimizers, which are not copied")
    direct = isinstance(one, keras.layers.TFSMLayer)  # its file is trusted already
    if isinstance(one, keras.metrics.MeanMetricWrapper) and "fn" in config:
        # from_config takes no function.
        direct, config["fn"] = True, keras_api.metric_function(one)
    own = [type(v) for v, _ in _configured(one, one) if not from_keras(v)]
    with keras.saving.CustomObjectScope({kind.__name__: kind for kind in own}):
        made = type(one)(**config) if direct else type(one).from_config(config)
    for its, mine in _configured(one, made):
        if from_keras(its) or isinstance(its, keras.layers.Layer):
            continue
        inits = [kind.__init__ for kind in type(its).__mro__ if not from_keras(kind)]
        sets = {n for f in inits if hasattr(f, "__code__") for n in f.__code__.co_names}
        for name in vars(its).keys() - {"built"}:
            value, known = vars(its)[name], vars(mine).get(name)
            its_own = name in sets or not name.startswith("_")
            if its_own and not hasattr(value, "get_config") and _differ(value, known):
                setattr(mine, name, copy.copy(value))
    return made


def _configured(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """An object with a configuration and those inside of it, each with the other's."""
    seen, todo = set[int](), [(one, other)]
    for its, mine in todo:  # grows
        new = type(its) is type(mine) and id(its) not in seen
        if new and hasattr(its, "get_config"):
            seen.add(id(its))
            yield its, mine
            for name, value in vars(its).items():
                if keras.tree.is_nested(value) or hasattr(value, "get_config"):
                    both = value, vars(mine).get(name)
                    todo += zip(*map(keras.tree.flatten, both))


def compile_arguments(model: Any) -> dict[str, Any]:
    """What a model was compiled with; optimizer and metrics are made anew."""

    def anew(value: Any) -> Any:
        stateful = isinstance(value, keras.metrics.Metric | keras.optimizers.Optimizer)
        return remade(value) if stateful else value

    arguments = keras_api.compiled_with(model)
    arguments["optimizer"] = anew(model.optimizer) or arguments.get("optimizer")
    for key in ("metrics", "weighted_metrics"):
        arguments[key] = keras.tree.map_structure(anew, arguments.get(key))
    return arguments


def _refuse_hidden_variables(layer: Any, held: Sequence[Any]) -> None:
    """Refuse a layer with variables that Keras does not see."""
    names = {id(v): n for one in sublayers(layer) for n, v in vars(one).items()}
    hidden = [names.get(id(v), v.name) for v in held if isinstance(v, tf.Variable)]
    if isinstance(layer, keras.layers.Lambda):
        some = [one for one in held if isinstance(one, _STATEFUL)]
        hidden = [x.name for x in some if not getattr(x, "built", False) or x.variables]
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


def held_elsewhere(layer: Any) -> list[Any]:
    """Variables, layers and tables that a layer holds where Keras does not see them."""
    own = {*map(id, sublayers(layer)), *map(id, keras_api.variables_of(layer))}
    own |= {*map(id, getattr(layer, "metrics_variables", ()))}
    held = [(v.regularizer, v.constraint) for v in keras_api.variables_of(layer)]
    for one in sublayers(layer):
        if not (isinstance(one, keras.Model) or hasattr(one, "load_assets")):
            names = vars(one).keys() - _OF_KERAS - {"call"}
            held.append(tuple(vars(one)[name] for name in names))
    tables = tf.saved_model.experimental.TrackableResource
    return [x for x in reached(held, (*_STATEFUL, tables)) if id(x) not in own]


def check_alike(layer: Any, clone: Any) -> None:
    """Raise a NotRebuiltError if a clone has other variables or plain attributes."""
    if [v.shape for v in layer.variables] != [v.shape for v in clone.variables]:
        mine, its = (
            ", ".join(f"{v.name}{tuple(v.shape)}" for v in one.variables) or "none"
            for one in (layer, clone)
        )
        raise NotRebuiltError(f"its variables are {mine}, the copy's {its}")
    if [*map(type, sublayers(layer))] != [*map(type, sublayers(clone))]:
        raise NotRebuiltError("the copy has other layers inside")
    inside = () if all(map(from_keras, sublayers(layer))) else sublayers(layer)[1:]
    for one, other in zip(sublayers(layer), sublayers(clone)):
        known = from_keras(one) or hasattr(one, "load_assets")  # which come later
        own = {n for n in vars(one) if n == "call" or not (known or n in _OF_KERAS)}
        held = {name: vars(one)[name] for name in own}
        found = {n: vars(other).get(n, getattr(type(other), n, None)) for n in own}
        if one in inside and from_keras(one) and not isinstance(one, keras.Model):
            with contextlib.suppress(Exception):  # some cannot be written
                held |= without(config_of(one), _AUTOMATIC)
                found |= without(config_of(other), _AUTOMATIC)
        for name, value in held.items():
            copied = found.get(name)
            if name == "call":
                value = getattr(value, "splitnet_plain", value)
                value = getattr(value, "__func__", value)
            if _differ(value, copied):
                what = f"{name} is {shown(value)}, in the copy {shown(copied)}"
                raise NotRebuiltError(what)


def _differ(one: Any, other: Any) -> bool:
    """Whether settings differ in plain values, at any depth."""

    def items(value: Any) -> list[Any]:
        if isinstance(value, dict | list | tuple):
            return [*(value.values() if isinstance(value, dict) else value)]
        if isinstance(value, types.FunctionType):
            return [value.__code__, value.__kwdefaults__, *_held_by(value)]
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            return [value.numpy()]
        return [] if isinstance(value, _ELSEWHERE) else _held_by(value)

    seen, todo = set[tuple[int, int]](), [(one, other)]
    for both in todo:  # grows
        if both[0] is both[1] or (key := (id(both[0]), id(both[1]))) in seen:
            continue
        if all(isinstance(value, _SETTINGS) for value in both):
            if not np.array_equal(*both):
                return True
        else:
            seen.add(key)
            todo += zip_longest(*map(items, both))
    return False


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
    opaque = _is_framework(owner) and not hasattr(value, "get_config")
    if opaque or isinstance(value, types.ModuleType | type):
        return []
    if not function:
        return [*getattr(value, "__dict__", {}).values()]
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
