"""Benchmark workloads as ordinary graphs and clusters, for every verb."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.planner.workload import Workload, parse_workload

__all__ = ["graph_of_workload", "read_workload"]

_UNLIMITED_BYTES = 1 << 60
_MOST_DIGITS = 9


def read_workload(path: str | Path) -> tuple[Graph, Cluster]:
    """Read a workload file of the device-placement benchmark (NeurIPS 2020).

    Raises:
        PlanFileError: with every fault of the file, the field named.
    """
    return graph_of_workload(parse_workload(path))


def graph_of_workload(workload: Workload) -> tuple[Graph, Cluster]:
    """A part per node, named by its id; a colour class is bound by near=.

    Times stay in the file's unit (milliseconds in the benchmark): where a plan says
    seconds, read that unit. CPUs have no limit of memory. Bytes are whole here: where
    a file has fractions of a byte, sizes and memories count in that fraction, so that
    what fits is what fits in the file.
    """
    digits = _digits(workload)
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
                size_bytes=_whole(node.size_bytes, digits, ROUND_CEILING),
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
        _cluster(workload, digits),
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


def _digits(workload: Workload) -> int:
    """How many decimal digits of a byte the file uses, at most nine."""
    sizes = [node.size_bytes for node in workload.nodes]
    powers = (
        -int(Decimal(repr(size)).normalize().as_tuple().exponent)
        for size in (workload.memory_bytes, *sizes)
        if size % 1
    )
    return min(_MOST_DIGITS, max(powers, default=0))


def _whole(size: float, digits: int, rounding: str) -> int:
    scaled = Decimal(repr(size)).scaleb(digits)
    return int(scaled.to_integral_value(rounding=rounding))


def _cluster(workload: Workload, digits: int) -> Cluster:
    memory = _whole(workload.memory_bytes, digits, ROUND_FLOOR)
    total = sum(node.size_bytes for node in workload.nodes) * 10.0**digits
    unlimited = max(_UNLIMITED_BYTES, 2 * int(total))
    gpus = [
        Device.of(f"gpu:{i}", memory=memory, overhead=0)
        for i in range(workload.accelerators)
    ]
    cpus = [
        Device.of(f"cpu:{i}", memory=unlimited, overhead=0)
        for i in range(workload.cpus)
    ]
    return Cluster((*gpus, *cpus), (Link("*", "*", 1.0),))
