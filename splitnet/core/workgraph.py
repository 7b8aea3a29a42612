"""Benchmark workloads as ordinary graphs and clusters, for every verb."""

from math import ceil
from pathlib import Path

from splitnet.core.cluster import Cluster, Link
from splitnet.core.devices import Device
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.workload import Workload, parse_workload

__all__ = ["graph_of_workload", "read_workload"]

_UNLIMITED_BYTES = 1 << 60


def read_workload(path: str | Path) -> tuple[Graph, Cluster]:
    """Read a workload file of the device-placement benchmark (NeurIPS 2020).

    Raises:
        PlanFileError: with every fault of the file, the field named.
    """
    return graph_of_workload(parse_workload(path))


def graph_of_workload(workload: Workload) -> tuple[Graph, Cluster]:
    """A part per node, named by its id; a colour class is bound by near=.

    Times stay in the file's unit (milliseconds in the benchmark): where a plan says
    seconds, read that unit. CPUs have no limit of memory.
    """
    leader: dict[int, str] = {}
    parts, calls = [], []
    for node in workload.nodes:
        name = str(node.id)
        near: tuple[str, ...] = ()
        if node.color is not None:
            first = leader.setdefault(node.color, name)
            near = () if first == name else (first,)
        parts.append(Part(name, near=near))
        calls.append(
            Call(
                name=name,
                part=name,
                kind="Node",
                cpu_only=not node.supported,
                backward=node.backward,
                size_bytes=ceil(node.size_bytes),
                seconds_on=(("gpu", node.accelerator), ("cpu", node.cpu)),
                transfer_seconds=node.transfer,
            )
        )
    order = _running_order(workload)
    return (
        Graph(
            name=workload.name,
            batch=1,
            calls=tuple(calls[i] for i in order),
            tensors=tuple(
                Tensor(calls[a].name, calls[b].name) for a, b in workload.edges
            ),
            parts=tuple(parts),
        ),
        _cluster(workload),
    )


def _running_order(workload: Workload) -> list[int]:
    """Positions of nodes so that every edge goes forward; ties in order of the file."""
    import heapq

    after: list[list[int]] = [[] for _ in workload.nodes]
    waits = [0] * len(workload.nodes)
    for source, target in workload.edges:
        after[source].append(target)
        waits[target] += 1
    heap = [i for i, count in enumerate(waits) if not count]
    order = []
    while heap:
        node = heapq.heappop(heap)
        order.append(node)
        for target in after[node]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(heap, target)
    return order


def _cluster(workload: Workload) -> Cluster:
    memory = max(0, int(workload.memory_bytes))
    gpus = [
        Device.of(f"gpu:{i}", memory=memory, overhead=0)
        for i in range(workload.accelerators)
    ]
    cpus = [
        Device.of(f"cpu:{i}", memory=_UNLIMITED_BYTES, overhead=0)
        for i in range(workload.cpus)
    ]
    return Cluster((*gpus, *cpus), (Link("*", "*", 1.0),))
