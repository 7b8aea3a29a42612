"""Layers of a whole model cut into slices: what `strategy="auto"` and `split=` choose.

The blueprint of a net or a Keras model becomes that of a model with slices, each a part
of its own that asks for a device. Nothing is given memory.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from splitnet.core.errors import DeclarationError, SplitnetError, listed
from splitnet.core.graph import Graph, Part
from splitnet.core.replication import collapse, split_layers
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.cloner import Cloner
from splitnet.tf.reading.flatten import Blueprint, Site, flow_of, named
from splitnet.tf.reading.slices import HEAD_SLICES, SliceJoin, cut_layer
from splitnet.tf.reading.source import sized
from splitnet.tf.reading.variables import variables_of

Slices = Mapping[str, Sequence[str]]
"""The devices of a layer's slices, by its name."""


def joined_layers(model: Any) -> list[str]:
    """The name of each layer of a model that is in slices."""
    ends = [layer.name for layer in model.layers if isinstance(layer, SliceJoin)]
    return [name.removesuffix("_join") for name in ends]


def with_slices(blueprint: Blueprint, slices: Slices) -> Blueprint:
    """The blueprint with some of its layers cut, a slice for each device that is named.

    Raises:
        DeclarationError: a layer that is unknown or cannot be cut; with every fault.
    """
    if not slices:
        return blueprint
    faults = [
        f"layer {name!r}: {why}"
        for name in slices
        if (why := obstacle_of(blueprint, name, len(slices[name])))
    ]
    if faults:
        raise DeclarationError(listed("some layers cannot be split.", faults))
    layers = {name: _sites(blueprint, name)[0].node.operation for name in slices}
    counts = {id(layer): len(slices[name]) for name, layer in layers.items()}

    def copy() -> tuple[_Cutter, Any, dict[int, Any]]:
        cloner = _Cutter(counts, blueprint.originals)
        return cloner, *cloner.model(blueprint.model)

    cloner, model, tensors = keras_api.without_memory(copy)
    flow = flow_of(model, blueprint.flow.nested)
    on = {
        id(keras_api.producer(tensor)): (id(layer), device)
        for name, layer in layers.items()
        for tensor, device in zip(cloner.slices[id(layer)], slices[name])
    }
    parts = list[Part]()
    if blueprint.declared:
        part_of = {
            id(keras_api.producer(tensors[id(site.node.outputs[0])])): site.part
            for site in blueprint.sites
        }
        branch = {id(site.node.operation): site.part for site in blueprint.sites}
        count = Counter[int]()
        for key, (layer, device) in on.items():  # of branch "a": "a/slice0" and on
            part_of[key] = f"{branch[layer]}/slice{count[layer]}"
            parts.append(Part(part_of[key], "slice", (device,)))
            count[layer] += 1
        parts = [*blueprint.parts, *parts]
        sites = named([(part_of[id(node)], node) for node in flow.calls])
    else:
        sites = named([(None, node) for node in flow.calls])
        for site in sites:
            kind, device = (
                ("input", "cpu") if site.node.is_input else ("branch", "auto")
            )
            if id(site.node) in on:
                kind, device = "slice", on[id(site.node)][1]
            parts.append(Part(site.part, kind, (device,)))
    return replace(
        blueprint,
        model=model,
        flow=flow,
        parts=tuple(parts),
        sites=sites,
        originals=cloner.sources(),
    )


def obstacle_of(blueprint: Blueprint, name: str, count: int) -> str:
    """Why a layer cannot be cut into so many slices; "" if it can."""
    found = _sites(blueprint, name)
    if not found:
        return "the model has no such layer outside of nested models"
    if len(found) > 1:
        return f"it is called {len(found)} times"
    site, layer = found[0], found[0].node.operation
    part = next(p for p in blueprint.parts if p.name == site.part)
    if part.kind != "branch" or part.on != ("auto",) or part.name in blueprint.towers:
        return f"part {part.name!r} is a {part.kind} or asks for a device"
    mine = {id(variable) for variable in variables_of(layer)}
    for other in blueprint.sites:
        used = variables_of(other.node.operation)
        if other is not site and mine & {id(variable) for variable in used}:
            return f"{other.call!r} has some of its weights"
    node = site.node

    def cut() -> None:
        given = {
            id(t): keras.Input(batch_shape=t.shape, dtype=t.dtype)
            for t in node.input_tensors
        }
        _Cutter({id(layer): count}, {}).call(layer, *node.arguments.fill_in(given))

    try:
        keras_api.without_memory(cut)
    except SplitnetError as error:
        return str(error)
    return ""


def split_as_planned(blueprint: Blueprint, graph: Graph) -> Blueprint:
    """The blueprint with those layers cut that a plan's graph has in slices.

    They are found by their name, or else as the same of the layers of that kind and
    shape: names that Keras counts differ each time a model is built.
    """
    graph = collapse(graph)
    here = [
        (type(site.node.operation).__name__, *site.node.outputs[0].shape[1:], site)
        for site in sized(blueprint).sites
    ]
    cut = split_layers(graph)
    inside = {call for calls in cut.values() for call in calls}
    wholes = {kind.__name__: name for name, kind in HEAD_SLICES.items()}
    kind_of = {name: graph.call[calls[0]].kind for name, calls in cut.items()}
    kind_of = {name: wholes.get(kind, kind) for name, kind in kind_of.items()}
    planned = [
        (kind_of.get(name, call.kind), *call.output_shapes[0][1:], name)
        for call in graph.calls
        if call.name not in inside and call.output_shapes
        for name in [call.layer.removesuffix("_join")]
    ]
    layers = {getattr(one[-1].node.operation, "name", "") for one in here}
    found = {}
    for name, calls in cut.items():
        if f"{name}_join" in layers:
            continue
        sort = next(one[:-1] for one in planned if one[-1] == name)
        alike = [one[-1].node.operation.name for one in here if one[:-1] == sort]
        rank = [one[-1] for one in planned if one[:-1] == sort].index(name)
        if name not in alike and rank < len(alike):
            name = alike[rank]
        if name in alike:
            found[name] = tuple(graph.part[graph.call[c].part].on[0] for c in calls)
    return with_slices(blueprint, found)


def _sites(blueprint: Blueprint, name: str) -> list[Site]:
    return [
        site
        for site in blueprint.sites
        if isinstance(site.node.operation, keras.layers.Layer)
        if site.node.operation.name == name and not getattr(site.node, "path", "")
    ]


class _Cutter(Cloner):
    """A cloner that calls slices in the place of some layers, by their ids."""

    def __init__(self, counts: Mapping[int, int], originals: Mapping[int, Any]) -> None:
        super().__init__(originals=originals)
        self.slices: dict[int, list[Any]] = {}
        self._counts = counts

    def call(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """As `Cloner.call`; of a layer that is cut, what its slices' join gives."""
        if id(operation) not in self._counts:
            return super().call(operation, args, kwargs)
        made, joined = cut_layer(
            operation,
            self._counts[id(operation)],
            (args, kwargs),
            self,
            lambda layer, given: layer(*given[0], **given[1]),
        )
        self.slices[id(operation)] = made
        return joined
