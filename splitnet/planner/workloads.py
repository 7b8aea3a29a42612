"""Published workload files: maximum load of a pipeline, NeurIPS 2020.

The files come with Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (github.com/msr-fiddle/dnn-partitioning). A split says which node is on
which device. Times are in the file's unit (milliseconds).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import ceil, floor
from pathlib import Path
from typing import Annotated

import msgspec
import networkx as nx
from msgspec import Meta, field

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.errors import PlanFileError, repeated
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.serialization import decode, load_file

_MOST_FAULTS = 20
_UNLIMITED_BYTES = 1 << 60

_Number = Annotated[float, Meta(ge=0)]
_Count = Annotated[float, Meta(ge=0, le=4_000, multiple_of=1)]
_Flag = bool | Annotated[int, Meta(ge=0, le=1)]


class _Node(msgspec.Struct, frozen=True):
    """One operator; `color` is shared by the nodes that must be on one device."""

    id: int
    cpu: _Number = field(name="cpuLatency")
    accelerator: _Number = field(name="fpgaLatency")
    supported: _Flag = field(name="supportedOnFpga")
    backward: _Flag = field(name="isBackwardNode", default=False)
    size_bytes: _Number = field(name="size", default=0.0)
    color: int | None = field(name="colorClass", default=None)


class _Edge(msgspec.Struct, frozen=True):
    source: int = field(name="sourceId")
    target: int = field(name="destId")
    cost: _Number


class _File(msgspec.Struct, frozen=True):
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]
    accelerators: _Count = field(name="maxFPGAs")
    cpus: _Count = field(name="maxCPUs")
    memory_bytes: _Number = field(name="maxSizePerFPGA")


def read_workload(path: str | Path) -> tuple[Graph, Cluster]:
    """Read a workload file as a graph and a cluster.

    The graph has a part per node, named by its id; a colour class is bound by near=.
    Where a plan says seconds, read the file's unit. CPUs have no limit of memory.

    Raises:
        PlanFileError: with every fault of the file, the field named.
    """
    return load_file(path, "workload", partial(workload_of, name=Path(path).stem))


def workload_of(data: object, *, name: str = "workload") -> tuple[Graph, Cluster]:
    """The graph and the cluster of a decoded workload; bytes are rounded to be safe."""
    file = decode(data, _File)
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(node.id for node in file.nodes)
    order.add_edges_from((edge.source, edge.target) for edge in file.edges)
    if faults := list(_faults(file, order)):
        headline = f"it is not a valid workload (faults: {len(faults)}):"
        raise PlanFileError(headline, faults[:_MOST_FAULTS])
    cost = {edge.source: edge.cost for edge in file.edges}
    leader: dict[int | None, str] = {None: ""}
    parts, calls = [], {}
    for node in file.nodes:
        own = str(node.id)
        first = leader.setdefault(node.color, own) or own
        parts.append(Part(own, near=(first,) * (first != own)))
        calls[node.id] = Call(
            name=own,
            part=own,
            kind="Node",
            cpu_only=not node.supported,
            backward=bool(node.backward),
            size_bytes=ceil(node.size_bytes),
            seconds_on=(("gpu", node.accelerator), ("cpu", node.cpu)),
            transfer_seconds=cost.get(node.id, 0.0),
        )
    position = {node.id: i for i, node in enumerate(file.nodes)}
    running = nx.lexicographical_topological_sort(order, position.__getitem__)
    graph = Graph(
        name=name,
        batch=1,
        calls=tuple(calls[node] for node in running),
        tensors=tuple(Tensor(str(a), str(b)) for a, b in order.edges),
        parts=tuple(parts),
    )
    cpus = "cpu", file.cpus, _UNLIMITED_BYTES
    rooms = ("gpu", file.accelerators, floor(file.memory_bytes)), cpus
    devices = (
        replace(Device.of(f"{kind}:{i}", memory=room, overhead=0), part_seconds=0.0)
        for kind, count, room in rooms
        for i in range(int(count))
    )
    return graph, Cluster(tuple(devices), (Link("*", "*", 1.0),))


def _faults(file: _File, order: "nx.DiGraph[int]") -> Iterator[str]:
    if file.accelerators == file.cpus == 0:
        yield "maxFPGAs and maxCPUs are both 0: there is no device"
    if not file.nodes:
        yield "nodes is empty: there is nothing to place"
    count = Counter(node.id for node in file.nodes)
    for i, node in enumerate(file.nodes):
        if count[node.id] > 1:
            yield f"nodes[{i}].id: {node.id} is the id of {count[node.id]} nodes"
    first: dict[int, tuple[int, float]] = {}
    for i, edge in enumerate(file.edges):
        for name, end in (("sourceId", edge.source), ("destId", edge.target)):
            if end not in count:
                yield f"edges[{i}].{name}: no node has id {end}"
        number, known = first.setdefault(edge.source, (i, edge.cost))
        if abs(known - edge.cost) > 1e-6:
            differs = f"{edge.cost} differs from {known} in edges[{number}]"
            yield f"edges[{i}].cost: {differs}; node {edge.source} has one output cost"
    if not nx.is_directed_acyclic_graph(order):
        ids = [str(source) for source, _ in nx.find_cycle(order)]
        yield f"edges form a cycle: {' -> '.join([*ids, ids[0]])}"


class _Row(msgspec.Struct):
    nodes: list[int]


class _Split(msgspec.Struct):
    fpgas: list[_Row] = []
    cpus: list[_Row] = []


def device_of_split(split: object) -> dict[str, str]:
    """The device of each part, of a split as the benchmark writes it.

    >>> device_of_split({"fpgas": [{"nodes": [3, 1]}], "cpus": [{"nodes": [2]}]})
    {'3': 'gpu:0', '1': 'gpu:0', '2': 'cpu:0'}
    """
    found = decode(split, _Split, "split")
    kinds = ("gpu", found.fpgas), ("cpu", found.cpus)
    rows = ((f"{kind}:{n}", row) for kind, its in kinds for n, row in enumerate(its))
    placed = [(str(node), device) for device, row in rows for node in row.nodes]
    if twice := repeated(node for node, _ in placed):
        raise PlanFileError(f"the split places nodes twice: {', '.join(twice)}.")
    return dict(placed)
