"""One form for every source: a functional model, and the part of each of its calls.

A net's model is a template of copies without values; a Keras model's is the model
itself. Both are read, matched with plans and cloned by the same code.
"""

import functools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Part
from splitnet.core.net import Net, Ref, raise_faults
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.call_cost import UNKNOWN_EXTENT
from splitnet.tf.reading.cloner import STEPS
from splitnet.tf.reading.flatten import Blueprint, Site, flow_of, inner_node
from splitnet.tf.reading.net import model_of, trace_of

_LOG = logging.getLogger("splitnet")
_IMAGE_EXTENT = 224


def blueprint_of(source: Any, nested: str = "keep") -> Blueprint:
    """Bring a net or a Keras model to one form; no variable is given memory.

    A source is a net, whose branches are its parts, a Keras model, or a function
    without arguments that builds one. For `nested` see `read`.

    Raises:
        DeclarationError: with every fault of the declaration.
    """
    if isinstance(source, Net):
        return _of_net(source)
    source = resolved(source)
    if isinstance(source, keras.Model):
        return _of_model(source, nested)
    raise DeclarationError(
        "a model is a splitnet.Net, a keras.Model, or a function without arguments "
        f"that builds one. Received: {source!r} ({type(source).__name__})."
    )


def resolved(source: Any) -> Any:
    """The model that a function builds, without memory; another source as it is.

    Raises:
        DeclarationError: the function returns something else.
    """
    if not callable(source) or isinstance(source, keras.Operation | type):
        return source
    made = keras_api.without_memory(source)
    if isinstance(made, keras.Model):
        return made
    name = getattr(source, "__name__", repr(source))
    raise DeclarationError(
        f"the function {name} returned {type(made).__name__}; a function that is given "
        "as a source must return a keras.Model."
    )


def _of_net(net: Net) -> Blueprint:
    model, parts, trace = model_of(net)
    order = {part.name: i for i, part in enumerate(parts)}
    flow = flow_of(model)
    nodes = [*map(keras_api.producer, model.inputs), *flow.nodes]
    nodes.sort(key=lambda node: order[trace.part_of[id(node)]])
    sites = named([(trace.part_of[id(node)], node) for node in nodes], prefix=True)
    originals = {id(copy): old for old, copy in trace.cloner.layers()}
    towers = {b.name: b.towers for b in net.branches if b.towers is not None}
    return Blueprint(
        net.name, model, flow, parts, sites, towers, originals, declared=True
    )


def _of_model(source: Any, nested: str) -> Blueprint:
    model = _functional_of(source)
    flow = flow_of(model, nested)
    nodes = [*map(keras_api.producer, model.inputs), *flow.nodes]
    sites = named([(None, node) for node in nodes], prefix=False)
    parts = tuple(
        Part(site.part, "input", ("cpu",))
        if site.node.is_input
        else Part(site.part, "branch", ("auto",))
        for site in sites
    )
    return Blueprint(model.name, model, flow, parts, sites)


def _functional_of(model: Any) -> Any:
    """The functional form of a Keras model, over its own layers and nodes.

    Raises:
        DeclarationError: the model has no graph of calls to read, or its class has code
            that the graph does not have.
    """
    kind, own = type(model), vars(model)
    base, codes = keras_api.Functional, ("call", "__call__")
    if isinstance(model, keras.Sequential):
        base, codes = keras.Sequential, (*codes, *STEPS)  # it becomes functional
        if not model.built or not model.inputs:
            raise DeclarationError(
                f"the Sequential model {model.name!r} is not built, so its shapes are "
                "not known. Start it with keras.Input(shape), or call model.build()."
            )
    hidden = [
        name
        for name in codes
        if getattr(kind, name) is not getattr(base, name)
        or (name in own and "_splitnet" not in own)
    ]
    if hidden:
        raise DeclarationError(
            f"model {getattr(model, 'name', model)!r} ({kind.__qualname__}) is "
            f"subclassed: its {' and '.join(hidden)} is code that its graph of calls "
            "does not have. Make it from keras.Model(inputs, outputs), whose "
            "subclasses keep steps of their own, or declare a net with this model, or "
            "each of its sublayers, as the body of a branch."
        )
    if base is keras.Sequential:
        return keras.Model(model.inputs, model.outputs, name=model.name)
    return model


def named(pairs: Sequence[tuple[str | None, Any]], *, prefix: bool) -> tuple[Site, ...]:
    """Name each call for its layer; a second call of it is "name@2".

    A call inside an expanded model is "model/name", one of a net "branch/name".
    """
    taken: Counter[str] = Counter()
    sites = []
    for part, node in pairs:
        name = getattr(node, "path", "") + node.operation.name
        if prefix and not node.is_input:
            name = f"{part}/{name}"
        taken[name] += 1
        call = name if taken[name] == 1 else f"{name}@{taken[name]}"
        sites.append(Site(call, call if part is None else part, node))
    return tuple(sites)


def output_keys(net: Net, ref: Ref) -> list[int | str] | None:
    """The keys of what a reference stands for; None for a single tensor."""
    trace = trace_of(net, upto=ref.number)
    found = trace.look_up(ref)
    if found is None:
        raise_faults(net.name, [*net.faults(), *trace.faults])
    if isinstance(found, dict):
        return list(found)
    return list(range(len(found))) if isinstance(found, list | tuple) else None


# Dimensions that inputs leave open -----------------------------------------------


def sized(blueprint: Blueprint) -> Blueprint:
    """The same calls, with a size for each dimension that the inputs leave open.

    Only the batch stays open. What is assumed is logged, once for each model.
    """
    model = blueprint.model
    shapes = [_assumed(tuple(tensor.shape)) for tensor in model.inputs]
    changed = [
        (tensor, shape)
        for tensor, shape in zip(model.inputs, shapes)
        if tuple(tensor.shape) != shape
    ]
    if not changed:
        return blueprint
    old = [keras_api.producer(tensor) for tensor in model.inputs]
    new = [
        inner_node(node.operation, [keras.KerasTensor(shape, t.dtype, sparse=t.sparse)])
        for node, t, shape in zip(old, model.inputs, shapes)
    ]
    given = [node.outputs[0] for node in new]
    try:
        flow = flow_of(model, blueprint.flow.nested, inputs=given)
    except Exception:  # whatever a layer raises that takes no such size
        return blueprint
    said = [
        f"{keras_api.producer(tensor).operation.name!r} {tuple(tensor.shape)} as "
        f"{shape}"
        for tensor, shape in changed
    ]
    _tell_assumed(blueprint.name, "; ".join(said))
    pairs = zip([*old, *blueprint.flow.nodes], [*new, *flow.nodes], strict=True)
    node_of = {id(one): other for one, other in pairs}
    sites = tuple(replace(s, node=node_of[id(s.node)]) for s in blueprint.sites)
    return replace(blueprint, flow=flow, sites=sites)


def _assumed(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """A size for what is open: of an image that of its other side, or 224."""
    extent = UNKNOWN_EXTENT
    if len(shape) == 4:
        sides = [n for n in shape[1:] if n is not None and n > 4]
        extent = max(sides, default=_IMAGE_EXTENT)
    return (*shape[:1], *(extent if n is None else n for n in shape[1:]))


@functools.cache
def _tell_assumed(name: str, sizes: str) -> None:
    """Log the sizes that costs and memory are worked out for, once."""
    _LOG.warning(
        "model %r leaves sizes open, so costs and memory are those of inputs of an "
        "assumed size: %s. Build it with its real sizes for other figures.",
        name,
        sizes,
    )
