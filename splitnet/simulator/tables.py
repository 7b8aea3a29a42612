"""Seconds of every call on every device, and of every road, looked up once."""

from collections.abc import Mapping, Sequence

from splitnet.core.cluster import Cluster, Device
from splitnet.core.costs.model import CostModel, Measured, Roofline
from splitnet.core.graph import Graph

__all__ = [
    "Crowd",
    "Table",
    "crowd_table",
    "deep_first",
    "road_tables",
    "seconds_tables",
    "start_table",
]

Table = list[list[float]]

Crowd = tuple[int, float]
"""Another device, and the `crowding` of the road to it."""


def seconds_tables(
    graph: Graph,
    cluster: Cluster,
    costs: CostModel,
    has_backward: Sequence[bool],
    update_bytes: Sequence[int],
    optimizer: str,
) -> tuple[Table, Table, Table]:
    """Forward, backward and update seconds; equal devices share one row."""
    rows: dict[object, tuple[list[float], list[float], list[float]]] = {}
    keys = [_cost_key(device, costs) for device in cluster]
    for key, device in zip(keys, cluster):
        if key in rows:
            continue
        rows[key] = (
            [costs.forward_seconds(call, device) for call in graph.calls],
            [
                costs.backward_seconds(call, device) if flows else 0.0
                for call, flows in zip(graph.calls, has_backward)
            ],
            [
                costs.update_seconds(count, device, optimizer) if count else 0.0
                for count in update_bytes
            ],
        )
    forward, backward, update = ([rows[key][i] for key in keys] for i in range(3))
    return forward, backward, update


def _cost_key(device: Device, costs: CostModel) -> object:
    """Devices of one key cost the same; a model that is not ours may tell any apart."""
    figures = (
        device.kind,
        device.flops_per_second,
        device.bytes_per_second,
        device.call_seconds,
    )
    if isinstance(costs, Roofline):
        return figures
    if isinstance(costs, Measured):
        return (*figures, device.name if device.name in costs.devices else "")
    return device.name


def start_table(cluster: Cluster, costs: CostModel) -> list[float]:
    """Seconds of a step before each device computes; 0 where nobody measured them."""
    known: Mapping[str, float] = getattr(costs, "start_seconds", {})
    return [known.get(d.name, known.get(d.kind, 0.0)) for d in cluster]


def crowd_table(cluster: Cluster, costs: CostModel) -> list[list[Crowd]]:
    """For each device, those that share its processors; none where nobody measured."""
    return [[] for _ in cluster]


def deep_first(cluster: Cluster) -> list[bool]:
    """Which devices follow what they have just computed: processors of workers.

    A device that takes what is ready in turn is a GPU; a client's own processor has
    threads enough to do so as well. Empty where there is no worker.
    """
    found = [device.kind == "cpu" and bool(device.host) for device in cluster]
    return found if any(found) else []


def road_tables(cluster: Cluster, costs: CostModel) -> tuple[Table, ...]:
    """Seconds before the first byte, what of them keeps the road, seconds per byte.

    And the share in which the ends work. Each from every device to every other.
    """
    latency: Table = []
    gap: Table = []
    per_byte: Table = []
    busy: Table = []
    for a in cluster:
        roads = [costs.link(a.name, b.name, cluster) for b in cluster]
        latency.append([road.latency_seconds for road in roads])
        gap.append([road.gap for road in roads])
        per_byte.append([1.0 / road.bytes_per_second for road in roads])
        busy.append([0.0 for _ in roads])
    return latency, gap, per_byte, busy
