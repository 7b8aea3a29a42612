"""Read a source as a graph: names, sizes and costs of every call; nothing runs."""

from typing import Any

import keras

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Tensor, Weights
from splitnet.core.replication import batch_shares, expand
from splitnet.tf.costs.call_cost import cost_of
from splitnet.tf.costs.recurrent import sequential_steps
from splitnet.tf.costs.value import CallCost, Size, size_of
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.replicas import check_towers
from splitnet.tf.reading.flatten import Nested
from splitnet.tf.reading.match import settings_of
from splitnet.tf.reading.source import Blueprint, Site, blueprint_of
from splitnet.tf.reading.variables import tables_of, variables_of

__all__ = ["graph_of", "read"]


def read(source: Any, batch: int = 32, *, nested: Nested = "expand") -> Graph:
    """Read a net or a Keras model as a graph of calls for one batch.

    Nothing is run and no variable is given memory. For a net the parts are its
    branches, for a Keras model its calls.

    Args:
        source: a `Net`, a functional or Sequential `keras.Model`, or a `Graph`.
        batch: samples per step, a whole number of at least 1.
        nested: functional and Sequential models inside a Keras model: "expand" to have
            their calls, named "model/layer", "keep" to have each as one call, or a
            list of patterns of the names of those to expand. One that changes its
            inputs before its first call, by a cast or another rank, is kept, and so is
            one with a `call` of its own.

    Raises:
        DeclarationError: with every fault of the declaration, or because the model
            has no graph of calls to read.
    """
    if isinstance(source, Graph):
        return source
    return graph_of(blueprint_of(source, nested), batch)


def graph_of(blueprint: Blueprint, batch: int) -> Graph:
    """Read a blueprint; see `read`. Towers are parts of their own.

    Raises:
        DeclarationError: an impossible batch, or towers whose inputs or outputs cannot
            be split.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise DeclarationError(
            f"batch must be a whole number of at least 1. Received: {batch!r}."
        )
    check_towers(blueprint)
    counts = {
        max(1, n)
        for one in blueprint.towers.values()
        for n in batch_shares(batch, one.count)
    }
    smaller = {n: _whole(blueprint, n) for n in sorted(counts)}
    return expand(_whole(blueprint, batch), smaller, blueprint.towers)


def _whole(blueprint: Blueprint, batch: int) -> Graph:
    """The calls as they stand in the source, for one batch."""
    names = _weight_names(blueprint)
    costs = {
        site.call: cost_of(
            site.node.operation,
            site.node.input_tensors,
            site.node.outputs,
            batch,
            site.node.arguments.kwargs,
        )
        for site in blueprint.sites
        if not site.node.is_input
    }
    charged = _charged(blueprint.sites, costs, batch)
    calls = tuple(
        _call(site, batch, names, costs.get(site.call), charged)
        for site in blueprint.sites
    )
    site_of = {id(site.node): site for site in blueprint.sites}
    return Graph(
        name=blueprint.name,
        batch=batch,
        calls=calls,
        tensors=tuple(_tensors(blueprint, site_of, costs, batch)),
        weights=tuple(_weights(blueprint, names)),
        parts=blueprint.parts,
        outputs=tuple(_outputs(blueprint, site_of)),
    )


def _call(
    site: Site,
    batch: int,
    names: dict[int, str],
    cost: CallCost | None,
    charged: dict[str, int],
) -> Call:
    node, operation = site.node, site.node.operation
    outputs = [size_of(tensor, batch) for tensor in node.outputs]
    shared = {
        "name": site.call,
        "part": site.part,
        "kind": type(operation).__name__,
        "layer": operation.name if isinstance(operation, keras.layers.Layer) else "",
        "output_shapes": tuple(size.shape for size in outputs),
        "output_dtypes": tuple(size.dtype for size in outputs),
        "output_bytes": sum(size.bytes for size in outputs),
        "settings": settings_of(operation),
    }
    if cost is None:
        return Call(**shared)
    keeps_output = len(cost.saves_outputs) == len(outputs)
    some = () if keeps_output else cost.saves_outputs
    return Call(
        **shared,
        forward_flops=cost.forward_flops,
        backward_flops=cost.backward_flops,
        moved_bytes=cost.moved_bytes,
        activation_bytes=charged[site.call],
        workspace_bytes=cost.workspace_bytes,
        inner_bytes=cost.inner_bytes + sum(outputs[i].bytes for i in some),
        keeps_output=keeps_output,
        weights=tuple(dict.fromkeys(names[id(v)] for v in variables_of(operation))),
        cpu_only=cost.cpu_only,
        lookups=tuple(names[id(v)] for v in tables_of(operation)),
        sequential_steps=sequential_steps(operation, node.input_tensors, batch),
    )


def _charged(
    sites: tuple[Site, ...], costs: dict[str, CallCost], batch: int
) -> dict[str, int]:
    """What each call keeps, every tensor charged once, to a call that has it anyhow.

    That is its maker, if the maker's own backward pass reads it, and else the first
    that does. Views have their input's memory.
    """
    root: dict[int, Any] = {}
    for site in sites:
        cost = costs.get(site.call)
        if cost and cost.views and site.node.input_tensors:
            source = site.node.input_tensors[0]
            root |= {id(t): root.get(id(source), source) for t in site.node.outputs}
    charged = {call: cost.inner_bytes for call, cost in costs.items()}
    paid: set[int] = set()

    def pay(call: str, tensors: Any) -> None:
        for tensor in tensors:
            whole = root.get(id(tensor), tensor)
            if id(whole) not in paid:
                paid.add(id(whole))
                charged[call] += size_of(whole, batch).bytes

    working = [site for site in sites if site.call in costs]
    for site in working:
        outputs = site.node.outputs
        pay(site.call, (outputs[i] for i in costs[site.call].saves_outputs))
    for site in working:
        inputs = site.node.input_tensors
        pay(site.call, (inputs[i] for i in costs[site.call].saves_inputs))
    return charged


def _weight_names(blueprint: Blueprint) -> dict[int, str]:
    """A unique name for each variable, its path, by its id."""
    names: dict[int, str] = {}
    taken: dict[str, int] = {}
    for site in blueprint.sites:
        for variable in variables_of(site.node.operation):
            if id(variable) not in names:
                path = variable.path
                taken[path] = taken.get(path, 0) + 1
                suffix = "" if taken[path] == 1 else f"@{taken[path]}"
                names[id(variable)] = path + suffix
    return names


def _weights(blueprint: Blueprint, names: dict[int, str]) -> list[Weights]:
    found: dict[str, Weights] = {}
    for site in blueprint.sites:
        for variable in variables_of(site.node.operation):
            size = Size(tuple(variable.shape), str(variable.dtype))
            name = names[id(variable)]
            found[name] = Weights(
                name,
                size.bytes,
                size.shape,
                size.dtype,
                bool(variable.trainable) and bool(site.node.operation.trainable),
            )
    return list(found.values())


def _tensors(
    blueprint: Blueprint,
    site_of: dict[int, Site],
    costs: dict[str, CallCost],
    batch: int,
) -> list[Tensor]:
    found: dict[tuple[str, int, str], Tensor] = {}
    for site in blueprint.sites:
        cost = costs.get(site.call)
        for position, tensor in enumerate(site.node.input_tensors):
            source = site_of[id(keras_api.producer(tensor))]
            index = next(i for i, t in enumerate(source.node.outputs) if t is tensor)
            size = size_of(tensor, batch)
            key = (source.call, index, site.call)
            before = found.get(key)
            kept = cost is not None and position in cost.saves_inputs
            found[key] = Tensor(
                source.call,
                site.call,
                index,
                size.shape,
                size.dtype,
                size.bytes,
                kept or (before is not None and before.kept),
            )
    return list(found.values())


def _outputs(blueprint: Blueprint, site_of: dict[int, Site]) -> list[str]:
    made = [
        site_of[id(keras_api.producer(tensor))].call
        for tensor in blueprint.flow.outputs
    ]
    return list(dict.fromkeys(made))
