"""Split layers in whole models: cut as `strategy="auto"` and `split=` say, and joined.

The blueprint of a net or a Keras model becomes that of a model with slices, each a part
of its own that asks for a device. Its files hold whole layers and fit any machine.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError, SplitnetError, listed, warn
from splitnet.core.graph import Graph, Part, grouped
from splitnet.core.replication import split_layers
from splitnet.tf.internals import keras_api
from splitnet.tf.internals.keras_api import variables_of
from splitnet.tf.placement.optimizer import all_optimizers, slots_of
from splitnet.tf.reading import slices as slicing
from splitnet.tf.reading.call_cost import size_of
from splitnet.tf.reading.cloner import Cloner, functional, input_like
from splitnet.tf.reading.flatten import Blueprint, Site, flow_of, named
from splitnet.tf.reading.rebuild import compile_arguments
from splitnet.tf.reading.source import sized

_WHOLE_MATRICES = ("Adafactor", "Lamb", "Muon")


def with_slices(blueprint: Blueprint, slices: Mapping[str, Sequence[str]]) -> Blueprint:
    """The blueprint with some of its layers cut, a slice for each device."""
    if not slices:
        return blueprint
    obstacles = ((n, obstacle_of(blueprint, n, len(its))) for n, its in slices.items())
    if faults := [f"layer {name!r}: {why}" for name, why in obstacles if why]:
        raise DeclarationError(listed("some layers cannot be split.", faults))
    cut = {name: _sites(blueprint, name)[0] for name in slices}
    counts = {id(site.node.operation): len(slices[n]) for n, site in cut.items()}

    def copy() -> tuple[_Cutter, Any, dict[int, Any]]:
        cloner = _Cutter(counts, originals=blueprint.originals)
        made = cloner.model(blueprint.model)
        cloner.rename()
        return cloner, *made

    cloner, model, tensors = keras_api.without_memory(copy)
    flow = flow_of(model, blueprint.flow.nested)
    declared = blueprint.declared  # of a Keras model each call is a part
    part_of = {
        id(keras_api.producer(tensors[id(site.node.outputs[0])])): site.part
        for site in (blueprint.sites if declared else ())
    }
    device_of = {}
    for name, site in cut.items():
        made = cloner.slices[id(site.node.operation)]
        for number, (tensor, device) in enumerate(zip(made, slices[name])):
            node = id(keras_api.producer(tensor))
            part_of[node] = f"{site.part}/slice{number}"
            device_of[node] = device
    sites = named((part_of[id(n)] if declared else None, n) for n in flow.calls)
    parts = {part.name: part for part in blueprint.parts}
    for site in sites:
        parts.setdefault(site.part, Part(site.part))
        if asked := device_of.get(id(site.node)):
            parts[site.part] = Part(site.part, "slice", (asked,))
    used = {site.part for site in sites}
    kept = tuple(part for name, part in parts.items() if name in used)
    made = replace(blueprint, model=model, flow=flow, originals=cloner.sources())
    return replace(made, parts=kept, sites=sites)


def obstacle_of(blueprint: Blueprint, name: str, count: int) -> str:
    """Why a layer cannot be cut into so many slices; "" if it can."""
    found = _sites(blueprint, name)
    if not found:
        return "the model has no such layer outside of nested models"
    if len(found) > 1:
        return f"it is called {len(found)} times"
    [site] = found
    layer, arguments = site.node.operation, site.node.arguments
    part = next(p for p in blueprint.parts if p.name == site.part)
    if part.kind != "branch" or part.on != ("auto",) or part.name in blueprint.towers:
        return f"part {part.name!r} is a {part.kind} or asks for a device"
    mine = set(map(id, variables_of(layer)))
    for other in blueprint.sites:
        its = map(id, variables_of(other.node.operation))
        if other is not site and not mine.isdisjoint(its):
            return f"{other.call!r} has some of its weights"

    def cut() -> None:
        read = site.node.input_tensors
        given = {id(t): keras.Input(batch_shape=t.shape, dtype=t.dtype) for t in read}
        _Cutter({id(layer): count}).call(layer, *arguments.fill_in(given))

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
    graph, known = graph.plain or graph, joined_layers(blueprint.model)
    cut = split_layers(graph)
    if cut.keys() <= {*known}:
        return blueprint
    inside = {call for calls in cut.values() for call in calls}
    wholes = {kind.__name__: name for name, kind in slicing.HEAD_SLICES.items()}
    planned, here = dict[Any, list[str]](), dict[Any, list[str]]()
    for call in graph.calls:
        if call.name not in inside and call.output_shapes:
            name = call.layer.removesuffix("_join")
            kind = graph.call[cut[name][0]].kind if name in cut else call.kind
            sort = (wholes.get(kind, kind), *call.output_shapes[0][1:])
            planned.setdefault(sort, []).append(name)
    for node in (site.node for site in sized(blueprint, graph.batch).sites):
        sort = (type(node.operation).__name__, *size_of(node.outputs[0], 1).shape[1:])
        here.setdefault(sort, []).append(node.operation.name)
    found = {}
    for sort, names in planned.items():
        alike = here.get(sort, [])
        for rank, name in enumerate(names):
            if name in cut and name not in known and (name in alike or alike[rank:]):
                its = name if name in alike else alike[rank]
                parts = (graph.part[graph.call[call].part] for call in cut[name])
                found[its] = tuple(part.on[0] for part in parts)
    return with_slices(blueprint, found)


def _sites(blueprint: Blueprint, name: str) -> list[Site]:
    own = (site for site in blueprint.sites if not getattr(site.node, "path", ""))
    its = ((site, site.node.operation) for site in own)
    kind = keras.layers.Layer
    return [site for site, one in its if isinstance(one, kind) and one.name == name]


class _Cutter(Cloner):
    """A cloner that calls slices in the place of some layers, by their ids."""

    def __init__(self, counts: Mapping[int, int], **options: Any) -> None:
        super().__init__(**options)
        self.slices: dict[int, list[Any]] = {}
        self._counts = counts

    def call(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """As `Cloner.call`; of a layer that is cut, what its slices' join gives."""
        if (count := self._counts.get(id(operation))) is None:
            return super().call(operation, args, kwargs)
        self.slices[id(operation)], joined = slicing.cut_layer(
            operation, count, self, lambda layer: layer(*args, **kwargs)
        )
        return joined


def joined_layers(model: Any) -> list[str]:
    """The name of each layer of a model that is in slices."""
    ends = [one.name for one in model.layers if isinstance(one, slicing.SliceJoin)]
    return [name.removesuffix("_join") for name in ends]


def join_slices(model: Any, device: str) -> Any:
    """A copy of a plain model, state and all, with whole layers for its slices."""
    layers = {layer.name: layer for layer in model.layers}
    stand_in, handed_on = dict[int, Any](), set[int]()
    with keras_api.random_states_kept(), tf.device(device):
        for name in joined_layers(model):
            join, (first, *others) = layers[f"{name}_join"], _slices(layers, name)
            whole = keras.saving.deserialize_keras_object(json.loads(join.whole))
            whole.name, stand_in[id(first)] = name, whole
            handed_on |= {*map(id, (*others, join))}
        cloner = Cloner(lambda layer: device)

        def call(operation: Any, args: Any, kwargs: Any) -> Any:
            if id(operation) in handed_on:  # the whole layer has made its output
                return keras_api.SymbolicArguments(*args, **kwargs).keras_tensors[0]
            if id(operation) in stand_in:
                return stand_in[id(operation)](*args, **kwargs)
            return cloner.call(operation, args, kwargs)

        inputs = keras.tree.map_structure(input_like, model.input)
        outputs, _ = cloner.replay(model, inputs, call)
        made = functional(model, inputs, outputs)
    for first in (one for one in layers.values() if id(one) in stand_in):
        keras_api.freeze_alike(stand_in[id(first)], first)
    pairs = [(part, whole) for whole, parts, _ in _pairs(made, model) for part in parts]
    for part, whole in pairs:
        whole.trainable = part.trainable
    if model.compiled:
        made.compile(**compile_arguments(model))
        for both in zip(*(all_optimizers(one.optimizer) for one in (made, model))):
            keras_api.exclude_alike(*both, pairs)
        if model.optimizer is not None and model.optimizer.built:
            made.optimizer.build(made.trainable_variables)
    for whole, parts, axis in _pairs(made, model):
        values = [tf.convert_to_tensor(part.value) for part in parts]
        whole.assign(values[0] if len(parts) == 1 else tf.concat(values, axis))
    cloner.finish()
    return made


def files_of_the_whole(model: Any, whole_of: Callable[[Any], Any]) -> None:
    """Let a model save and load whole layers; `whole_of` makes it plain."""

    def run(name: str, *args: Any, **kwargs: Any) -> None:
        whole = whole_of(model)
        getattr(whole, name)(*args, **kwargs)
        if name == "load_weights":
            take_state(model, whole)

    for name in ("save", "save_weights", "load_weights"):
        vars(model)[name] = functools.partial(run, name)


def take_state(model: Any, whole: Any) -> None:
    """Give a model with slices the weights and slots of one with whole layers."""
    if whole.compiled and whole.optimizer is not None and whole.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    for variable, parts, axis in _pairs(whole, model):
        values = [variable.value]
        if axis is not None:
            with tf.device("/device:CPU:0"):  # a device may have no room for the whole
                values = tf.split(variable.value, [p.shape[axis] for p in parts], axis)
        for part, value in zip(parts, values):
            part.assign(value)


def warn_of_slices(model: Any, _: Any) -> None:
    """Warn of an optimizer that looks at more than one number of a split layer."""
    names = joined_layers(model)
    for one in all_optimizers(model.optimizer):
        kind = type(one).__name__
        if kind in _WHOLE_MATRICES or one.clipnorm:
            why = kind if kind in _WHOLE_MATRICES else "clipnorm"
            fault = f"{why} looks at each slice of {', '.join(names)} by itself"
            hint = "use global_clipnorm, or an optimizer that works number by number"
            warn(f"{fault}, so training is not that of the whole layer; {hint}.")


def _slices(layers: Mapping[str, Any], name: str) -> list[Any]:
    return [one for n in range(len(layers)) if (one := layers.get(f"{name}_slice{n}"))]


def _pairs(whole: Any, sliced: Any) -> Iterator[tuple[Any, list[Any], int | None]]:
    """Variables and slots of a whole model, their slices, and the axis if cut."""
    layers = {layer.name: layer for layer in sliced.layers}
    found: list[tuple[Any, list[Any]]] = []  # a variable, and what it was cut into
    for layer in whole.layers:
        if (known := layers.get(layer.name)) is not None:
            same = [*zip(variables_of(layer), variables_of(known), strict=True)]
        else:
            cut = _slices(layers, layer.name)
            same = [pair for one in cut for pair in slicing.matched(layer, one)]
        for pairs in grouped(same, lambda pair: id(pair[0])).values():
            found.append((pairs[0][0], [its for _, its in pairs]))
    both = [getattr(one, "optimizer", None) for one in (whole, sliced)]
    slots: list[tuple[Any, list[Any]]] = []
    for optimizers in zip(*map(all_optimizers, both)):
        # Of each variable a slot of each kind, in their order, with the variable.
        mine, theirs = (grouped(slots_of(o), lambda p: id(p[1])) for o in optimizers)
        for variable, its in found:
            rows = [mine.get(id(variable), ()), *(theirs.get(id(p), ()) for p in its)]
            slots += [(own[0], [one[0] for one in cut]) for own, *cut in zip(*rows)]
    held = {id(s) for o in both for one in all_optimizers(o) for s, _ in slots_of(one)}
    rest = ([v for v in getattr(o, "variables", ()) if id(v) not in held] for o in both)
    slots += [(own, [its]) for own, its in zip(*rest)]
    for variable, its in (*found, *slots):
        axis = slicing.cut_axis(variable, its[0])
        yield variable, its if axis is not None else its[:1], axis
