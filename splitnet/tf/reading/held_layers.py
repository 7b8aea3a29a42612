"""Layers and variables that a Python function reaches, which no model tracks."""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

__all__ = ["hidden_variables", "held_layers"]

_STATEFUL = (keras.Variable, tf.Variable)


def hidden_variables(function: Any) -> list[Any]:
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


def _reached(root: Any) -> Iterator[Any]:
    """Variables and layers, by breadth-first search.

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
        if isinstance(value, (*_STATEFUL, keras.layers.Layer)):
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
