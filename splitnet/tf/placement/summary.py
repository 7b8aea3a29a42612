"""Keras' own summary of a model, with a column that says where each layer lives."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

from splitnet.core.errors import PlanFileError
from splitnet.tf.placement.placed import placed_of

__all__ = ["summary", "with_devices"]

_HEAD = "Device"
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
    def summarize(
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Any = None,
    ) -> None:
        text = summary(
            model,
            line_length=line_length,
            positions=positions,
            expand_nested=expand_nested,
            show_trainable=show_trainable,
            layer_range=layer_range,
        )
        (print_fn or print)(text)

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
        for key in placed.keys_of.get(id(node), (placed.key_of[id(node)],)):
            part = placed.part_of[key]
            device = plan.device_of[part]
            found.setdefault(opened or node.operation.name, {})[device] = None
    return {name: ", ".join(devices) for name, devices in found.items()}


def _widened(text: str, names: list[str], devices: dict[str, str]) -> str:
    """The text of Keras' table with one column more at its right."""
    lines = text.split("\n")
    cells = _cells(lines, names, devices)
    width = max(map(len, (_HEAD, *cells.values())))
    for number, line in enumerate(lines):
        if line.startswith(_WALLS):
            cell = _HEAD if line[0] == "┃" else cells.get(number, "")
            lines[number] = f"{line} {cell:<{width}} {line[-1]}"
        elif line[:1] in _JOINTS:
            rule = line[1] * (width + 2)
            lines[number] = line[:-1] + _JOINTS[line[0]] + rule + line[-1]
    return "\n".join(lines)


def _cells(
    lines: list[str], names: list[str], devices: dict[str, str]
) -> dict[int, str]:
    """The device for the first line of each row of Keras' table, by line number.

    Rows stand in the order of the model's operations, a long name over several lines
    or cut short. What is nested in a layer (a "└" before its name) is where that is.
    """
    found: dict[int, str] = {}
    rest = list(names)
    for start, text in _rows(lines)[1:]:
        if text.startswith("└"):
            found[start] = next(reversed(found.values()), "")
            continue
        shown = text.partition("…")[0]
        for at, name in enumerate(rest):
            squeezed = "".join(name.split()) + "("
            if shown.startswith(squeezed) or squeezed.startswith(shown):
                found[start] = devices.get(name, "")
                del rest[: at + 1]
                break
    return found


def _rows(lines: list[str]) -> list[tuple[int, str]]:
    """Each row's first line and the first cell's text without spaces; heads first."""
    found: list[tuple[int, str]] = []
    inside = False
    for number, line in enumerate(lines):
        if line.startswith(_WALLS):
            text = "".join(line.split(line[0])[1].split())
            if inside:
                start, before = found.pop()
                found.append((start, before + text))
            else:
                found.append((number, text))
        inside = line.startswith(_WALLS)
    return found
