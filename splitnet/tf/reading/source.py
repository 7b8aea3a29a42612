"""One form for every source: a functional model, and the part of each of its calls.

A net's model is a template of copies without values; a Keras model's is the model
itself. Both are read, matched with plans and cloned by the same code.
"""

from dataclasses import replace
from typing import Any

import keras

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Part
from splitnet.core.net import Net, Ref, raise_faults
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.call_cost import UNKNOWN_EXTENT, warn_once
from splitnet.tf.reading.cloner import STEPS
from splitnet.tf.reading.flatten import Blueprint, InnerNode, flow_of, named
from splitnet.tf.reading.net import blueprint_of_net, trace_of

_IMAGE_EXTENT = 224


def blueprint_of(source: Any, nested: str = "keep") -> Blueprint:
    """Bring a net or a Keras model to one form; no variable is given memory.

    A source is a net, whose branches are its parts, a Keras model, or a function
    without arguments that builds one. For `nested` see `read`.

    Raises:
        DeclarationError: with every fault of the declaration.
    """
    if isinstance(source, Net):
        return blueprint_of_net(source)
    source = resolved(source)
    if not isinstance(source, keras.Model):
        raise DeclarationError(
            "a model is a splitnet.Net, a keras.Model, or a function without arguments "
            f"that builds one. Received: {source!r} ({type(source).__name__})."
        )
    model = _functional_of(source)
    flow = flow_of(model, nested)
    sites = named((None, node) for node in flow.calls)
    parts = tuple(
        Part(site.part, "input", ("cpu",)) if site.node.is_input else Part(site.part)
        for site in sites
    )
    return Blueprint(model.name, model, flow, parts, sites)


def resolved(source: Any) -> Any:
    """What a function builds, without memory; another source as it is."""
    builds = callable(source) and not isinstance(source, keras.Operation | type)
    return keras_api.without_memory(source) if builds else source


def _functional_of(model: Any) -> Any:
    """The functional form of a Keras model, over its own layers and nodes.

    Refused is one without a graph of calls, or with code that its graph does not have.
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
    open_sizes: list[str] = []
    given = []
    for node in blueprint.flow.inputs:
        tensor = node.outputs[0]
        shape = _assumed(tuple(tensor.shape))
        spec = keras.KerasTensor(shape, tensor.dtype, sparse=tensor.sparse)
        none = keras_api.SymbolicArguments()
        given += InnerNode(node.operation, none, [spec], is_input=True).outputs
        if shape != tuple(tensor.shape):
            name = node.operation.name
            open_sizes.append(f"{name!r} {tuple(tensor.shape)} as {shape}")
    if not open_sizes:
        return blueprint
    try:
        flow = flow_of(blueprint.model, blueprint.flow.nested, inputs=given)
    except Exception:  # whatever a layer raises that takes no such size
        return blueprint
    warn_once(
        f"model {blueprint.name!r} leaves sizes open, so costs and memory are those of "
        f"inputs of an assumed size: {'; '.join(open_sizes)}. Build it with its real "
        "sizes for other figures."
    )
    pairs = zip(blueprint.flow.calls, flow.calls, strict=True)
    node_of = {id(old): new for old, new in pairs}
    sites = tuple(replace(s, node=node_of[id(s.node)]) for s in blueprint.sites)
    return replace(blueprint, flow=flow, sites=sites)


def _assumed(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """A size for what is open: of an image that of its other side, or 224."""
    extent = UNKNOWN_EXTENT
    if len(shape) == 4:
        sides = [n for n in shape[1:] if n is not None and n > 4]
        extent = max(sides, default=_IMAGE_EXTENT)
    return (*shape[:1], *(extent if n is None else n for n in shape[1:]))
