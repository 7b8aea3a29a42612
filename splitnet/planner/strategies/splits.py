"""Layers that are larger than a device, cut into slices: which, and over how many."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from splitnet.core.cluster import Cluster
from splitnet.core.costs import optimizer_name, slots_of
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Graph
from splitnet.core.plan import Plan, PlanOptions
from splitnet.planner.constraints import requests_of
from splitnet.planner.strategies.placements import device_counts, workers_of

Slices = Mapping[str, Sequence[str]]
"""The devices of a layer's slices, by its name."""

_SHARES = (1.0, 0.5, 0.25)
"""Of the largest memory: layers that hold more are cut, the largest alone first."""


@dataclass(frozen=True)
class Limits:
    """How a source can be divided, as far as its graph does not show it.

    `obstacles` say why it cannot be cut into "microbatches", or copied into "towers",
    and `obstacle` why a layer cannot be cut into so many slices, "" if it can.
    `sliced` reads the source with slices; None if it has no layers.
    """

    obstacles: Mapping[str, str] = field(default_factory=dict)
    obstacle: Callable[[str, int], str] = lambda name, count: "it is in a graph"
    sliced: Callable[[Slices], Graph] | None = None

    def checked(self, split: Mapping[str, int] | None) -> Mapping[str, int]:
        """The slices that are asked for."""
        if split and self.sliced is None:
            raise DeclarationError(
                f"split={dict(split)}: a Graph has no layers to cut. Give the net or "
                "the Keras model that it was read from."
            )
        return split or {}


def slices_of(split: Mapping[str, int], cluster: Cluster) -> Slices:
    """The devices of the slices that are asked for: those with the most memory."""
    workers = _workers(cluster)
    for name, count in split.items():
        if not 2 <= count <= len(workers):
            raise DeclarationError(
                f"split={{{name!r}: {count}}}: the slices must be at least 2 and at "
                f"most the devices for them, {len(workers)}."
            )
    return {name: workers[:count] for name, count in split.items()}


def layers_too_large(
    graph: Graph, cluster: Cluster, options: PlanOptions
) -> tuple[list[str], bool]:
    """The layers that no worker has room for, and whether no device has."""
    room = _room(cluster)
    most = max(device.memory_bytes for device in cluster)
    held = _held(graph, options)
    large = [name for name, size in held.items() if size > room]
    return large, any(held[name] > most for name in large)


def slices_to_try(
    graph: Graph, cluster: Cluster, options: PlanOptions, limits: Limits
) -> Iterator[dict[str, int]]:
    """Layers to cut and their numbers of slices: few layers, few slices first."""
    workers, held = _workers(cluster), _held(graph, options)
    tried: list[list[str]] = []
    for share in _SHARES:
        large = [name for name, size in held.items() if size > share * _room(cluster)]
        if not large or large in tried:
            continue
        tried.append(large)
        for count in device_counts(len(workers)):
            names = [name for name in large if not limits.obstacle(name, count)]
            least = cluster[workers[count - 1]].memory_bytes
            if names and sum(held[name] for name in names) <= count * least:
                yield dict.fromkeys(names, count)


def _workers(cluster: Cluster) -> list[str]:
    """The devices for slices, those with the most memory first."""
    return sorted(workers_of(cluster), key=lambda name: -cluster[name].memory_bytes)


def _room(cluster: Cluster) -> int:
    """The memory of the largest worker."""
    return max((cluster[name].memory_bytes for name in _workers(cluster)), default=0)


def _held(graph: Graph, options: PlanOptions) -> dict[str, int]:
    """Bytes of weights, gradients and slots of each layer that asks for no device."""
    if isinstance(options.pins, Plan):
        return {}
    on = requests_of(graph, options.pins)
    size = {weight.name: weight.bytes for weight in graph.weights}
    if options.training:
        times = 1 + slots_of(optimizer_name(options.optimizer))
        trained = {w.name: w.bytes * times for w in graph.weights if w.trainable}
        size = {name: count + trained.get(name, 0) for name, count in size.items()}
    return {
        call.layer: sum(size[name] for name in call.weights)
        for call in graph.calls
        if call.layer and call.weights and on[call.part][0] == ("auto",)
    }
