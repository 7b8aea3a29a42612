"""Graphs as plain JSON values, and back again from a stranger's file."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from math import isfinite
from typing import Any, TypeVar

import msgspec

from splitnet.core.errors import PlanFileError, SplitnetError
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights

__all__ = ["graph_from_dict", "graph_to_dict", "value_from_dict"]

Value = TypeVar("Value")
_ROWS = {"calls": Call, "tensors": Tensor, "weights": Weights, "parts": Part}


def graph_to_dict(graph: Graph) -> dict[str, object]:
    """The graph as plain values; what has its default value is left out."""
    rows = {key: [_row(value) for value in getattr(graph, key)] for key in _ROWS}
    head = {"name": graph.name, "batch": graph.batch, "outputs": list(graph.outputs)}
    return head | rows


def _row(value: Any) -> dict[str, object]:
    defaults = {field.name: field.default for field in fields(value)}
    return {k: v for k, v in asdict(value).items() if v != defaults[k]}


def graph_from_dict(values: object) -> Graph:
    """The inverse of `graph_to_dict`.

    Raises:
        PlanFileError: the values are not a graph; the message names the field.
    """
    if not isinstance(values, Mapping):
        raise PlanFileError(f"a graph is a table. Received: {type(values).__name__}.")
    rows: dict[str, Any] = {}
    for key, kind in _ROWS.items():
        entries = values.get(key, [])
        if not isinstance(entries, list):
            raise PlanFileError(f"graph.{key} must be a list.")
        rows[key] = tuple(
            value_from_dict(kind, entry, f"graph.{key}[{i}]")
            for i, entry in enumerate(entries)
        )
    name, batch, outputs = (values.get(k) for k in ("name", "batch", "outputs"))
    if not isinstance(name, str):
        raise PlanFileError(f"graph.name must be a text. Received: {name!r}.")
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise PlanFileError(
            f"graph.batch must be a whole number >= 1. Received: {batch!r}."
        )
    if not isinstance(outputs, list) or not all(isinstance(o, str) for o in outputs):
        raise PlanFileError("graph.outputs must be a list of texts.")
    try:
        return Graph(name=name, batch=batch, outputs=tuple(outputs), **rows)
    except SplitnetError as error:
        raise PlanFileError(str(error)) from None


def value_from_dict(kind: type[Value], entry: object, where: str) -> Value:
    """Build a flat value class from a table of a file, each field checked by its type.

    Numbers must be finite and not negative.

    Raises:
        PlanFileError: a field is missing, unknown, or of another type.
    """
    if not isinstance(entry, Mapping):
        raise PlanFileError(f"{where} must be a table. Received: {entry!r}.")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    for key in entry:
        if key not in known:
            raise PlanFileError(f"{where} has an unknown field {key!r}.")
    made: dict[str, Any] = {}
    for name, field in known.items():
        if name in entry:
            made[name] = _checked(entry[name], field.type, f"{where}.{name}")
        elif field.default is MISSING:
            raise PlanFileError(f"{where} misses the field {name!r}.")
    return kind(**made)


def _checked(value: object, kind: Any, where: str) -> object:
    """Check one field by its type; numbers must be finite and not negative."""
    try:
        made: object = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"{where}: {error}. Received: {value!r}.") from None
    return _finite(made, where)


def _finite(value: object, where: str) -> object:
    for item in value if isinstance(value, tuple) else ():
        _finite(item, where)
    if isinstance(value, int | float) and not (isfinite(value) and value >= 0):
        raise PlanFileError(
            f"{where} must be finite and not negative. Received: {value!r}."
        )
    return value
