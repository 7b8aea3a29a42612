"""What calls take and hold on each kind of device: the rows of the search's problem."""

from collections.abc import Mapping, Sequence
from math import inf

from splitnet.core.cluster import Cluster, Device
from splitnet.core.costs.model import CostModel, slots_of
from splitnet.core.graph import Graph
from splitnet.simulator.step import Step

__all__ = [
    "Kind",
    "first_of",
    "held_rows",
    "kind_of",
    "second_rows",
    "sizes_of",
    "transfer_rows",
]

Kind = tuple[str, float, float, float]
"""What makes devices alike: kind, and three speeds."""


def kind_of(device: Device) -> Kind:
    """What a device is alike by."""
    return (
        device.kind,
        device.flops_per_second,
        device.bytes_per_second,
        device.call_seconds,
    )


def first_of(cluster: Cluster, kind: Kind) -> int:
    """The number of the first device of a kind."""
    return next(i for i, device in enumerate(cluster) if kind_of(device) == kind)


def second_rows(
    graph: Graph, step: Step, kinds: Sequence[Kind], first: Mapping[Kind, int]
) -> list[tuple[float, ...]]:
    """All that a call takes per step on each kind; infinite where it has no kernel."""
    tables = [
        (step.forward[first[k]], step.backward[first[k]], step.update[first[k]])
        for k in kinds
    ]
    return [
        tuple(
            inf if call.cpu_only and kind[0] != "cpu" else f[i] + b[i] + u[i]
            for kind, (f, b, u) in zip(kinds, tables)
        )
        for i, call in enumerate(graph.calls)
    ]


def held_rows(
    graph: Graph, step: Step, kinds: Sequence[Kind]
) -> list[tuple[float, ...]]:
    """The bytes that a call holds all along; infinite where it has no kernel."""
    per_trained = 1 + step.slot_copies if step.training else 0
    return [
        tuple(
            inf
            if call.cpu_only and kind[0] != "cpu"
            else float(own + per_trained * trained + kept)
            for kind in kinds
        )
        for call, own, trained, kept in zip(
            graph.calls, step.own_bytes, step.own_trained, step.kept_bytes
        )
    ]


def sizes_of(step: Step, optimizer: str, training: bool) -> list[float]:
    """Weights, gradients, slots and what backward needs, per call."""
    per_trained = 1 + slots_of(optimizer) if training else 0
    return [
        float(own + per_trained * trained + kept)
        for own, trained, kept in zip(
            step.own_bytes, step.own_trained, step.activation_bytes
        )
    ]


def transfer_rows(
    graph: Graph,
    cluster: Cluster,
    step: Step,
    costs: CostModel,
    kinds: Sequence[Kind],
    first: Mapping[Kind, int],
) -> list[tuple[float, ...]]:
    """What a device of each kind pays when a call's output crosses its border."""
    size = [0] * step.count
    times = [1] * step.count
    for net in step.nets:
        size[net.source] += net.bytes
        times[net.source] = 2 if net.backward else times[net.source]
    names = [device.name for device in cluster]
    roads = []
    for kind in kinds:
        here = names[first[kind]]
        other = next((n for n in (cluster.home.name, *names) if n != here), None)
        free = kind[0] == "cpu" or other is None
        roads.append(None if free else costs.link(here, str(other), cluster))
    rows = []
    for i, call in enumerate(graph.calls):
        known = call.transfer_seconds
        rows.append(
            tuple(
                0.0
                if road is None or not size[i] and known is None
                else known
                if known is not None
                else road.seconds(size[i]) * times[i]
                for road in roads
            )
        )
    return rows
