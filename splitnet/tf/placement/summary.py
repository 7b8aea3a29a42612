"""Keras' own summary of a model, with a column that says where each layer lives."""

import functools
import re
from collections.abc import Callable
from typing import Any

import keras

from splitnet.core.errors import PlanFileError
from splitnet.tf.internals import keras_api
from splitnet.tf.placement.placed import placed_of

# A rule's left corner -> what its right one becomes when a column is added.
_JOINTS = {"┏": "┳", "┡": "╇", "├": "┼", "└": "┴", "+": "+"}
_WALLS = ("┃", "│", "|")


def summary(model: keras.Model, **options: Any) -> str:
    """As `model.summary()`, as text, with the device of each layer; prints nothing.

    Args:
        model: an emitted model.
        **options: those of `keras.Model.summary`, but for `print_fn`.

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

    def take(text: str, **_: Any) -> None:
        said.append(text)

    keras.Model.summary(model, print_fn=take, **options)
    lines, number = said[0].split("\n"), -1
    devices, cells = _devices(model, options.get("layer_range")), dict[int, str]()
    for i, line in enumerate(lines):
        if line.startswith(_WALLS) and not lines[i - 1].startswith(_WALLS):
            inside = line[1:].lstrip().startswith("└")  # where the layer around is
            number += not inside
            cells[i] = "Device" if number == 0 else devices[number - 1]
    width = max(map(len, cells.values()))
    for i, line in enumerate(lines):
        if line.startswith(_WALLS):
            lines[i] = f"{line} {cells.get(i, ''):<{width}} {line[-1]}"
        elif line[:1] in _JOINTS:
            rule = line[1] * (width + 2)
            lines[i] = line[:-1] + _JOINTS[line[0]] + rule + line[-1]
    return "\n".join(lines)


def with_devices(model: Any) -> Callable[..., None]:
    """As `Model.summary` of this emitted model, with the column of devices."""

    @functools.wraps(model.summary)
    def summarize(
        line_length: Any = None,
        positions: Any = None,
        print_fn: Any = None,
        **options: Any,
    ) -> None:
        options |= {"line_length": line_length, "positions": positions}
        (print_fn or print)(summary(model, **options))

    return summarize


def _devices(model: Any, layer_range: Any) -> list[str]:
    """The devices of each of a model's operations that its summary lists."""
    placed = placed_of(model)
    assert placed is not None
    found: dict[str, dict[str, None]] = {}
    for node in (*map(keras_api.producer, model.inputs), *placed.flow.nodes):
        opened = re.split("[/@]", getattr(node, "path", ""))[0]
        on = found.setdefault(opened or node.operation.name, {})
        on |= dict.fromkeys(placed.device_of[key] for key in placed.keys(node))
    names = [operation.name for operation in model.operations]
    ends = layer_range or [""]
    first = next(i for i, n in enumerate(names) if any(re.match(e, n) for e in ends))
    return [", ".join(found.get(name, ())) for name in names[first:]]
