"""Clone the model of a source, its weights on their devices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from splitnet.core.errors import listed, warn
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.flatten import Flow, flow_of
from splitnet.tf.reading.source import Blueprint

__all__ = ["Clone", "clone"]


@dataclass(frozen=True, slots=True, eq=False)
class Clone:
    """A model over copies of a blueprint's layers.

    `flow` is what it runs, node for node as the blueprint's; `nodes` has the model's
    node of each of the blueprint's, by its id. `reused` says by name which layers are
    the user's own, and why they could not be rebuilt.
    """

    model: Any
    flow: Flow
    nodes: dict[int, Any]
    reused: dict[str, str]


def clone(
    blueprint: Blueprint,
    device_of: Callable[[Any], str | None] | None = None,
    *,
    copy: bool = True,
    move: bool = True,
) -> Clone:
    """Make the model of a blueprint anew, each layer under the device of its weights.

    Weights have the values that the source's have or would be initialized with, and
    its order, names and paths. Random states are left as they were found.

    Args:
        blueprint: the form of a source.
        device_of: the TensorFlow device of a layer's weights; None or "" for that of
            the nested model around it, or the default device.
        copy: False to use the user's layers themselves.
        move: whether the variables of layers that are used themselves go to their
            devices; a placed model that has these layers would be moved too.

    Raises:
        DeclarationError: a layer hides variables, or has no values and no
            configuration.
    """
    cloner = Cloner(device_of, copy=copy, originals=blueprint.originals)
    with keras_api.random_states_kept():
        model, nodes = cloner.model(blueprint.model)
        for old, new in cloner.pairs():
            if id(new) not in cloner.filled:
                keras_api.copy_value(new, old)
            if old.trainable != new.trainable:
                new.trainable = old.trainable
            keras_api.rename_variable(new, old.name, old.path)
        cloner.carry_assets()
    if move:
        cloner.move_used()
    flow = flow_of(model, blueprint.flow.nested)
    for old, new in zip(blueprint.flow.nodes, flow.nodes, strict=True):
        nodes.setdefault(id(old), new)
    if cloner.reused:
        warn(
            listed(
                "some layers cannot be rebuilt from their configuration, so the model "
                "uses the very layers of its source"
                + (", moved to their devices." if move else "."),
                [f"{name}: {why}" for name, why in cloner.reused.items()],
            )
        )
    return Clone(model, flow, nodes, cloner.reused)
