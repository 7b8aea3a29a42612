"""Keras' own summary of a model, with the device of each layer behind its name."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from splitnet.tf.internals import keras_api
from splitnet.tf.placement.placed import placed_of


def with_devices(model: Any) -> Callable[..., None]:
    """As `Model.summary` of this emitted model, with "@ gpu:0" behind each name.

    A layer has that name while the table is printed.
    """

    @functools.wraps(model.summary)
    def summary(*args: Any, **kwargs: Any) -> None:
        shown = _names(model)
        names = [(vars(one), one.name) for one, _ in shown]
        try:
            for one, name in shown:
                vars(one)["name"] = name
            keras.Model.summary(model, *args, **kwargs)
        finally:
            for attributes, name in names:
                attributes["name"] = name

    return summary


def _names(model: Any) -> list[tuple[Any, str]]:
    """Each operation of a model, and those inside of it, with names that say where."""
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
    named = {}
    for operation in model.operations:
        devices = ", ".join(found.get(operation.name, ()))
        for one in (operation, *keras_api.sublayers(operation)):
            named[id(one)] = one, f"{one.name} @ {devices}" if devices else one.name
    return list(named.values())
