"""Published workload files: maximum load of a pipeline, NeurIPS 2020.

The files come with Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (github.com/msr-fiddle/dnn-partitioning). A workload is a JSON object
with `nodes`, `edges` and the machine (`maxFPGAs`, `maxCPUs`, `maxSizePerFPGA`); a split
says which node is on which device. Times are in the file's unit (milliseconds).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, fsum, inf
from pathlib import Path
from typing import Annotated

import msgspec
import networkx as nx
from msgspec import Meta, field

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.errors import PlanFileError, listed
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.serialization import load_json
from splitnet.planner.partitioning import is_convex, is_pipeline

_MOST_FAULTS = 20
_UNLIMITED_BYTES = 1 << 60

Place = tuple[str, int]
"""A device of a split: ("gpu", 0) or ("cpu", 0)."""
_Number = Annotated[float, Meta(ge=0)]
_Count = Annotated[float, Meta(ge=0, le=100_000, multiple_of=1)]
_Flag = bool | Annotated[int, Meta(ge=0, le=1)]


class Node(msgspec.Struct, frozen=True):
    """One operator; times are in the file's unit (milliseconds)."""

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
    nodes: tuple[Node, ...]
    edges: tuple[_Edge, ...]
    accelerators: _Count = field(name="maxFPGAs")
    cpus: _Count = field(name="maxCPUs")
    memory_bytes: _Number = field(name="maxSizePerFPGA")


@dataclass(frozen=True, slots=True)
class Workload:
    """A graph of operators and `accelerators` + `cpus` identical devices of each kind.

    `edges` are pairs of positions in `nodes`, without repetitions; `transfer` is the
    time in which each node's output is sent once.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    transfer: tuple[float, ...]
    accelerators: int
    cpus: int
    memory_bytes: float

    @property
    def devices(self) -> list[str]:
        """gpu:0 ... and then cpu:0 ..."""
        gpus = [f"gpu:{i}" for i in range(self.accelerators)]
        return gpus + [f"cpu:{i}" for i in range(self.cpus)]


def read_workload(path: str | Path) -> tuple[Graph, Cluster]:
    """Read a workload file as a graph and a cluster.

    Raises:
        PlanFileError: with every fault of the file, the field named.
    """
    name = Path(str(path)).stem
    made = load_json(path, "workload", lambda data: workload_of(data, name=name))
    return graph_of_workload(made)


def workload_of(data: object, *, name: str = "workload") -> Workload:
    """Check a decoded workload object and return it as a value.

    Raises:
        PlanFileError: the first field of another type, or every other fault.
    """
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"it is not a valid workload: {error}") from None
    position = {node.id: i for i, node in enumerate(file.nodes)}
    edges = {(edge.source, edge.target): edge.cost for edge in file.edges}
    faults = list(_faults(file, position)) or _cycle_faults(edges)
    if faults:
        shown = faults[:_MOST_FAULTS]
        rest = [f"and {len(faults) - len(shown)} more"] if faults[_MOST_FAULTS:] else []
        headline = f"it is not a valid workload (faults: {len(faults)}):"
        raise PlanFileError(listed(headline, [*shown, *rest]))
    cost = {edge.source: edge.cost for edge in reversed(file.edges)}
    return Workload(
        name,
        file.nodes,
        tuple((position[a], position[b]) for a, b in edges),
        tuple(cost.get(node.id, 0.0) for node in file.nodes),
        int(file.accelerators),
        int(file.cpus),
        file.memory_bytes,
    )


def _faults(file: _File, position: Mapping[int, int]) -> Iterator[str]:
    if file.accelerators == file.cpus == 0:
        yield "maxFPGAs and maxCPUs are both 0: there is no device"
    if not file.nodes:
        yield "nodes is empty: there is nothing to place"
    twice = Counter(node.id for node in file.nodes)
    for i, node in enumerate(file.nodes):
        if twice[node.id] > 1:
            yield f"nodes[{i}].id: {node.id} is the id of {twice[node.id]} nodes"
    first: dict[int, tuple[int, float]] = {}
    for i, edge in enumerate(file.edges):
        for name, end in (("sourceId", edge.source), ("destId", edge.target)):
            if end not in position:
                yield f"edges[{i}].{name}: no node has id {end}"
        number, known = first.setdefault(edge.source, (i, edge.cost))
        if abs(known - edge.cost) > 1e-6:
            yield (
                f"edges[{i}].cost: {edge.cost} differs from {known} in "
                f"edges[{number}]; node {edge.source} has one output cost"
            )


def _cycle_faults(edges: Iterable[tuple[int, int]]) -> list[str]:
    graph = nx.DiGraph(list(edges))
    if nx.is_directed_acyclic_graph(graph):
        return []
    ids = [source for source, _ in nx.find_cycle(graph)]
    return [f"edges form a cycle: {' -> '.join(map(str, [*ids, ids[0]]))}"]


def graph_of_workload(workload: Workload) -> tuple[Graph, Cluster]:
    """A part per node, named by its id; a colour class is bound by near=.

    Where a plan says seconds, read the file's unit. CPUs have no limit of memory. Sizes
    are rounded up to bytes, and memories down.
    """
    leader: dict[int, str] = {}
    parts, calls = [], []
    for node, transfer in zip(workload.nodes, workload.transfer):
        name = str(node.id)
        first = name if node.color is None else leader.setdefault(node.color, name)
        parts.append(Part(name, near=() if first == name else (first,)))
        calls.append(
            Call(
                name=name,
                part=name,
                kind="Node",
                cpu_only=not node.supported,
                backward=bool(node.backward),
                size_bytes=ceil(node.size_bytes),
                seconds_on=(("gpu", node.accelerator), ("cpu", node.cpu)),
                transfer_seconds=transfer,
            )
        )
    order = nx.DiGraph()
    order.add_nodes_from(range(len(calls)))
    order.add_edges_from(workload.edges)
    graph = Graph(
        name=workload.name,
        batch=1,
        calls=tuple(calls[i] for i in nx.lexicographical_topological_sort(order)),
        tensors=tuple(Tensor(calls[a].name, calls[b].name) for a, b in workload.edges),
        parts=tuple(parts),
    )
    return graph, _cluster(workload)


def _cluster(workload: Workload) -> Cluster:
    unlimited = 2 * sum(ceil(node.size_bytes) for node in workload.nodes)
    sizes = [floor(workload.memory_bytes)] * workload.accelerators
    sizes += [max(_UNLIMITED_BYTES, unlimited)] * workload.cpus
    devices = (
        replace(Device.of(name, memory=size, overhead=0), part_seconds=0.0)
        for name, size in zip(workload.devices, sizes)
    )
    return Cluster(tuple(devices), (Link("*", "*", 1.0),))


@dataclass(frozen=True, slots=True)
class SplitScore:
    """What a split costs; `violations` is empty for a feasible split.

    `convex`: no path of forward nodes leaves a device and comes back. `pipeline`: the
    devices can be ordered so that forward edges never go back.
    """

    max_load: float
    convex: bool
    pipeline: bool
    violations: tuple[str, ...]


def score_split(workload: Workload, split: object) -> SplitScore:
    """Score a split on the original nodes, independently of the search.

    Args:
        workload: Its nodes and devices.
        split: As the benchmark writes it, or a table of nodes and devices.

    Raises:
        PlanFileError: it is not a split.
    """
    where, faults = _checked(workload, _nodes_in(split))
    for kind, what, most in (
        ("gpu", "accelerators", workload.accelerators),
        ("cpu", "CPU cores", workload.cpus),
    ):
        count = len({place for place in where.values() if place[0] == kind})
        if count > most:
            faults.append(f"{count} {what}, {most} allowed")
            where = {}
    nodes = workload.nodes
    if len(where) < len(nodes):
        return SplitScore(inf, False, False, tuple(faults))
    busy = dict.fromkeys(where.values(), 0.0)
    users = [{where[i]: None} for i in range(len(nodes))]  # of what each node sends
    for source, target in workload.edges:
        users[source][where[target]] = None
    for i, node in enumerate(nodes):
        seconds = node.cpu
        if where[i][0] == "gpu":
            seconds = node.accelerator if node.supported else inf
        busy[where[i]] += seconds
        for place in users[i] if len(users[i]) > 1 else ():
            busy[place] += workload.transfer[i] * (place[0] == "gpu")
    forward = [
        (a, b)
        for a, b in workload.edges
        if not (nodes[a].backward or nodes[b].backward)
    ]
    return SplitScore(
        max(busy.values(), default=0.0),
        is_convex(forward, where),
        is_pipeline(forward, where),
        tuple(faults),
    )


class _SplitRow(msgspec.Struct):
    nodes: list[int]


class _Split(msgspec.Struct):
    fpgas: list[_SplitRow] = []
    cpus: list[_SplitRow] = []


_Device = Annotated[str, Meta(pattern=r"^(gpu|cpu):\d+$")]


def _nodes_in(split: object) -> list[tuple[int, Place]]:
    """The nodes of a split with their devices."""
    try:
        if isinstance(split, dict) and {"fpgas", "cpus"} & set(split):
            rows = msgspec.convert(split, _Split)
            return [
                (key, (kind, number))
                for kind, entries in (("gpu", rows.fpgas), ("cpu", rows.cpus))
                for number, entry in enumerate(entries)
                for key in entry.nodes
            ]
        table = msgspec.convert(split, dict[int, _Device], str_keys=True)
    except msgspec.ValidationError as error:
        raise PlanFileError(
            f"it is not a split: {error}. Expected {{'fpgas': [{{'nodes': [...]}}], "
            "'cpus': [...]}} or a table of nodes and devices, {'1': 'gpu:0', ...}."
        ) from None
    return [(key, (device[:3], int(device[4:]))) for key, device in table.items()]


def _checked(
    workload: Workload, nodes: Iterable[tuple[int, Place]]
) -> tuple[dict[int, Place], list[str]]:
    """The device of each node by position, and what is wrong with the split."""
    position = {node.id: i for i, node in enumerate(workload.nodes)}
    where: dict[int, Place] = {}
    faults = []
    for key, place in nodes:
        i = position.get(key)
        if i is None:
            faults.append(f"{place[0]}:{place[1]}: no node has id {key}")
        elif i in where:
            faults.append(f"node {key} is placed twice")
        else:
            where[i] = place
    sizes: dict[Place, list[float]] = {}
    home: dict[int, Place] = {}
    for i, node in enumerate(workload.nodes):
        if i not in where:
            faults.append(f"node {node.id} is not placed")
            continue
        if where[i][0] == "gpu":
            sizes.setdefault(where[i], []).append(node.size_bytes)
            if not node.supported:
                faults.append(f"node {node.id} is not supported on accelerators")
        if node.color is not None and home.setdefault(node.color, where[i]) != where[i]:
            faults.append(f"colour class {node.color} is on two devices")
    for (kind, number), each in sorted(sizes.items()):
        if fsum(each) > workload.memory_bytes * (1 + 1e-12):
            faults.append(
                f"{kind}:{number} needs {fsum(each):.12g} bytes, has "
                f"{workload.memory_bytes:.12g}"
            )
    return where, faults
