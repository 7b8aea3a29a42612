"""Which calls of a placed model run on towers, and whether they can."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from splitnet.core.net import raise_faults
from splitnet.core.plan import Plan
from splitnet.core.replication import tower_part, towers_in, weights_part
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.flatten import is_sparse

if TYPE_CHECKING:
    from splitnet.tf.reading.flatten import Flow
    from splitnet.tf.reading.source import Blueprint

__all__ = ["Replicas", "check_towers", "leaving", "replicas_of"]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The keys of one branch's towers, of its weights' home and of its join."""

    keys: tuple[str, ...]
    home: str
    join: str
    synchronised: bool
    broadcast: frozenset[str]

    @property
    def count(self) -> int:
        """How many towers there are."""
        return len(self.keys)

    def feeds(self, others: "Replicas") -> bool:
        """Whether tower i of these hands its own samples to tower i of the others."""
        same = self.count == others.count and self.join not in others.broadcast
        return self.join == others.join or same


def leaving(flow: "Flow", replicas: Mapping[int, Replicas]) -> frozenset[int]:
    """The tensors of towers, by id, that others read or that the model returns."""
    found = {id(t) for t in flow.outputs}
    for node in flow.nodes:
        mine = replicas.get(id(node))
        for tensor in node.input_tensors:
            theirs = replicas.get(id(keras_api.producer(tensor)))
            if theirs is not None and (mine is None or not theirs.feeds(mine)):
                found.add(id(tensor))
    return frozenset(found)


def replicas_of(plan: Plan, keys: Mapping[str, str]) -> dict[str, Replicas]:
    """The towers of a plan by the name of their part, in the keys of its marks."""
    return {
        name: Replicas(
            tuple(keys[tower_part(name, i)] for i in range(one.count)),
            keys.get(weights_part(name), keys[name]),
            keys[name],
            one.batch_norm == "synchronised",
            frozenset(keys[part] for part in one.broadcast if part in keys),
        )
        for name, one in towers_in(plan.graph).items()
    }


def check_towers(blueprint: "Blueprint") -> None:
    """Refuse towers whose inputs or outputs cannot be split.

    Raises:
        DeclarationError: with every fault.
    """
    faults: list[str] = []
    inside = {
        id(t)
        for site in blueprint.sites
        if site.part in blueprint.towers
        for t in site.node.outputs
    }
    read: dict[int, set[str]] = {id(t): {""} for t in blueprint.flow.outputs}
    for site in blueprint.sites:
        for tensor in site.node.input_tensors:
            read.setdefault(id(tensor), set()).add(site.part)
    for site in blueprint.sites:
        if site.part in blueprint.towers:
            faults += _unsplittable(blueprint, site, inside, read)
    raise_faults(blueprint.name, list(dict.fromkeys(faults)))


def _unsplittable(
    blueprint: "Blueprint", site: Any, inside: set[int], read: Mapping[int, set[str]]
) -> Iterator[str]:
    part = next(p for p in blueprint.parts if p.name == site.part)
    who = f"{part.where + ': ' if part.where else ''}towers {site.part!r}"
    node = site.node
    for tensor in node.input_tensors:
        if id(tensor) not in inside and is_sparse(tensor):
            yield (
                f"{who}: call {site.call!r} reads a sparse tensor, which cannot be "
                "split by samples; make it dense, or use net.branch."
            )
    for tensor in node.outputs:
        outside = read.get(id(tensor), set()) - {site.part}
        if outside and (len(tensor.shape) == 0 or tensor.shape[0] is not None):
            yield (
                f"{who}: call {site.call!r} gives a tensor of shape "
                f"{tuple(tensor.shape)}, whose first axis is not the batch, so the "
                "towers' outputs cannot be put together; use net.branch for it."
            )
    operation, synchronised = node.operation, keras.layers.BatchNormalization
    if blueprint.towers[site.part].batch_norm != "synchronised" or isinstance(
        operation, synchronised
    ):
        return
    if isinstance(operation, keras.layers.Layer) and any(
        isinstance(layer, synchronised) for layer in keras_api.sublayers(operation)
    ):
        yield (
            f"{who}: batch_norm='synchronised' cannot reach into {operation.name!r}, "
            "which holds a BatchNormalization of its own; list its layers in the body, "
            "or say batch_norm='per_tower'."
        )
