"""Keras' own summary of a model, with a column that says where each layer lives."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from splitnet.core.errors import PlanFileError
from splitnet.tf.placement.placed import placed_of

# A rule's left corner -> what its right one becomes when a column is added.
_JOINTS = {"┏": "┳", "┡": "╇", "├": "┼", "└": "┴", "+": "+"}
_WALLS = ("┃", "│", "|")


def summary(
    model: keras.Model,
    *,
    line_length: int | None = None,
    positions: Sequence[float] | None = None,
    expand_nested: bool = False,
    show_trainable: bool = False,
    layer_range: Sequence[str] | None = None,
) -> str:
    """As `model.summary()`, as text, with the device of each layer; prints nothing.

    Args:
        model: an emitted model.
        line_length: characters per line.
        positions: where each column ends, as shares of the line.
        expand_nested: also list the layers of nested models.
        show_trainable: also say whether each layer is trainable.
        layer_range: names of the first and the last layer to list.

    Raises:
        PlanFileError: the model was not emitted by splitnet.
    """
    if placed_of(model) is None:
        raise PlanFileError(
            f"model {getattr(model, 'name', model)!r} has no devices to list: it was "
            "not emitted by splitnet, or it was loaded or cloned since. Plan and emit "
            "it, or call model.summary()."
        )
    said: list[str] = []
    keras.Model.summary(
        model,
        line_length,
        positions,
        print_fn=lambda *text, **_: said.append(text[0]),
        expand_nested=expand_nested,
        show_trainable=show_trainable,
        layer_range=layer_range,
    )
    names = [operation.name for operation in model.operations]
    return _widened("\n".join(said), names, _devices(model))


def with_devices(model: Any) -> Callable[..., None]:
    """As `Model.summary` of this emitted model, with the column of devices."""

    @functools.wraps(model.summary)
    def summarize(*args: Any, **kwargs: Any) -> None:
        call = inspect.signature(keras.Model.summary).bind(model, *args, **kwargs)
        given = dict(call.arguments)
        show = given.pop("print_fn", None) or print
        show(summary(given.pop("self"), **given))

    return summarize


def _devices(model: Any) -> dict[str, str]:
    """The devices on which each operation of a model runs, by its name."""
    placed = placed_of(model)
    assert placed is not None
    plan = placed.plan
    found: dict[str, dict[str, None]] = {
        call.layer or call.name: {plan.device_of[call.part]: None}
        for call in plan.graph.calls
        if call.kind == "InputLayer"
    }
    for node in placed.flow.nodes:
        opened = getattr(node, "path", "").partition("/")[0].partition("@")[0]
        for key in placed.keys(node):
            device = plan.device_of[placed.part_of[key]]
            found.setdefault(opened or node.operation.name, {})[device] = None
    return {name: ", ".join(devices) for name, devices in found.items()}


def _widened(text: str, names: list[str], devices: dict[str, str]) -> str:
    """The text of Keras' table with one column more at its right.

    Rows stand in the order of the model's operations, a long name over several lines
    or cut short. What is nested in a layer (a "└" before its name) is where that is.
    """
    lines = text.split("\n")
    rows: list[tuple[int, str]] = []  # first line, first cell without spaces
    for number, line in enumerate(lines):
        if line.startswith(_WALLS):
            cell = "".join(line.split(line[0])[1].split())
            if number and lines[number - 1].startswith(_WALLS):
                start, before = rows.pop()
                rows.append((start, before + cell))
            else:
                rows.append((number, cell))
    cells, rest, device = {rows[0][0]: "Device"}, list(names), ""
    for start, cell in rows[1:]:
        shown = cell.partition("…")[0]
        fits = (
            one.startswith(shown) or shown.startswith(one)
            for one in ("".join(name.split()) + "(" for name in rest)
        )
        if cell.startswith("└"):
            cells[start] = device
        elif (at := next((i for i, fit in enumerate(fits) if fit), None)) is not None:
            cells[start] = device = devices.get(rest[at], "")
            del rest[: at + 1]
    width = max(map(len, cells.values()))
    for number, line in enumerate(lines):
        if line.startswith(_WALLS):
            lines[number] = f"{line} {cells.get(number, ''):<{width}} {line[-1]}"
        elif line[:1] in _JOINTS:
            rule = line[1] * (width + 2)
            lines[number] = line[:-1] + _JOINTS[line[0]] + rule + line[-1]
    return "\n".join(lines)
