"""Published workload files: maximum load of a pipeline, NeurIPS 2020.

The files come with Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (github.com/msr-fiddle/dnn-partitioning). A workload is a JSON object
with `nodes`, `edges` and the machine (`maxFPGAs`, `maxCPUs`, `maxSizePerFPGA`); a split
says which node is on which device. Times are in the file's unit (milliseconds).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from math import fsum, inf, isfinite
from pathlib import Path

import msgspec
import networkx as nx

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.errors import InfeasibleError, PlanFileError, listed
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.serialization import load_json
from splitnet.planner.bounds import lower_bound
from splitnet.planner.engine import solve
from splitnet.planner.partitioning import is_convex, is_pipeline
from splitnet.planner.problem import Problem, load_problem

__all__ = [
    "Node",
    "SplitScore",
    "Workload",
    "WorkloadPlan",
    "graph_of_workload",
    "parse_workload",
    "plan_workload",
    "read_workload",
    "score_split",
    "workload_of",
    "workload_problem",
]

_MOST_DEVICES = 100_000
_MOST_FAULTS = 20
_MOST_DIGITS = 9
_UNLIMITED_BYTES = 1 << 60

Place = tuple[str, int]
"""A device of a split: ("gpu", 0) or ("cpu", 0)."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator; times and `transfer` in the file's unit (milliseconds)."""

    id: int
    accelerator: float
    cpu: float
    size_bytes: float
    supported: bool
    backward: bool
    color: int | None
    transfer: float


@dataclass(frozen=True, slots=True)
class Workload:
    """A graph of operators and `accelerators` + `cpus` identical devices of each kind.

    `edges` are pairs of positions in `nodes`, without repetitions.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[tuple[int, int], ...]
    accelerators: int
    cpus: int
    memory_bytes: float


class _NodeRow(msgspec.Struct, rename="camel"):
    id: int
    cpu_latency: float
    fpga_latency: float
    supported_on_fpga: bool | int
    is_backward_node: bool | int = False
    size: float = 0.0
    color_class: int | None = None


class _EdgeRow(msgspec.Struct, rename="camel"):
    source_id: int
    dest_id: int
    cost: float


class _File(msgspec.Struct):
    nodes: list[_NodeRow]
    edges: list[_EdgeRow]
    accelerators: float = msgspec.field(name="maxFPGAs")
    cpus: float = msgspec.field(name="maxCPUs")
    memory: float = msgspec.field(name="maxSizePerFPGA")


def read_workload(path: str | Path) -> tuple[Graph, Cluster]:
    """Read a workload file as a graph and a cluster.

    Raises:
        PlanFileError: with every fault of the file, the field named.
    """
    return graph_of_workload(parse_workload(path))


def parse_workload(path: str | Path) -> Workload:
    """Read a workload file.

    Raises:
        PlanFileError: with every fault of the file, the field named.
    """
    name = Path(str(path)).stem
    return load_json(path, "workload", lambda data: workload_of(data, name=name))


def workload_of(data: object, *, name: str = "workload") -> Workload:
    """Check a decoded workload object and return it as a value.

    Raises:
        PlanFileError: the first field of another type, or every other fault.
    """
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"it is not a valid workload: {error}") from None
    position = {row.id: i for i, row in enumerate(file.nodes)}
    faults = [
        *_machine_faults(file),
        *_node_faults(file),
        *_edge_faults(file, position),
    ]
    edges = {(e.source_id, e.dest_id): e.cost for e in file.edges}
    if not faults:
        try:
            cycle = nx.find_cycle(nx.DiGraph(list(edges)))
            ids = [source for source, _ in cycle]
            faults.append(
                f"edges form a cycle: {' -> '.join(map(str, [*ids, ids[0]]))}"
            )
        except (nx.NetworkXNoCycle, nx.NetworkXPointlessConcept):
            pass
    if faults:
        shown = faults[:_MOST_FAULTS]
        rest = [f"and {len(faults) - len(shown)} more"] if faults[_MOST_FAULTS:] else []
        headline = f"it is not a valid workload (faults: {len(faults)}):"
        raise PlanFileError(listed(headline, [*shown, *rest]))
    transfer = {e.source_id: e.cost for e in reversed(file.edges)}
    return Workload(
        name,
        tuple(
            Node(
                row.id,
                row.fpga_latency,
                row.cpu_latency,
                row.size,
                bool(row.supported_on_fpga),
                bool(row.is_backward_node),
                row.color_class,
                transfer.get(row.id, 0.0),
            )
            for row in file.nodes
        ),
        tuple((position[a], position[b]) for a, b in edges),
        int(file.accelerators),
        int(file.cpus),
        file.memory,
    )


def _machine_faults(file: _File) -> Iterator[str]:
    for field, count in (("maxFPGAs", file.accelerators), ("maxCPUs", file.cpus)):
        if not (0 <= count <= _MOST_DEVICES and count % 1 == 0):
            yield (
                f"{field}: expected a whole number from 0 to {_MOST_DEVICES}, found "
                f"{count:g}"
            )
    if file.accelerators == 0 and file.cpus == 0:
        yield "maxFPGAs and maxCPUs are both 0: there is no device"
    yield from _number_faults("maxSizePerFPGA", file.memory)


def _number_faults(where: str, number: float) -> Iterator[str]:
    if not isfinite(number) or number < 0:
        yield f"{where}: expected a finite number >= 0, found {number}"


def _node_faults(file: _File) -> Iterator[str]:
    twice = Counter(row.id for row in file.nodes)
    for i, row in enumerate(file.nodes):
        where = f"nodes[{i}]"
        if twice[row.id] > 1:
            yield f"{where}.id: {row.id} is the id of {twice[row.id]} nodes"
        yield from _number_faults(f"{where}.fpgaLatency", row.fpga_latency)
        yield from _number_faults(f"{where}.cpuLatency", row.cpu_latency)
        yield from _number_faults(f"{where}.size", row.size)
        flags = {
            "supportedOnFpga": row.supported_on_fpga,
            "isBackwardNode": row.is_backward_node,
        }
        for field, flag in flags.items():
            if flag not in (0, 1):
                yield f"{where}.{field}: expected true, false, 0 or 1, found {flag}"


def _edge_faults(file: _File, position: Mapping[int, int]) -> Iterator[str]:
    cost: dict[int, tuple[int, float]] = {}
    for i, row in enumerate(file.edges):
        where = f"edges[{i}]"
        for field, end in (("sourceId", row.source_id), ("destId", row.dest_id)):
            if end not in position:
                yield f"{where}.{field}: no node has id {end}"
        yield from _number_faults(f"{where}.cost", row.cost)
        first, known = cost.setdefault(row.source_id, (i, row.cost))
        if abs(known - row.cost) > 1e-6:
            yield (
                f"{where}.cost: {row.cost} differs from {known} in edges[{first}]; "
                f"node {row.source_id} has one output cost"
            )


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """A device per node id, the maximum load, and a lower bound of it."""

    device_of: Mapping[int, str]
    value: float
    bound: float


def plan_workload(
    workload: Workload,
    *,
    contiguity: str = "free",
    time_limit: float = 5.0,
    seed: int = 0,
    on_progress: Callable[[float, float], None] | None = None,
) -> WorkloadPlan:
    """Search the split of least maximum load, without a graph or a simulation.

    Raises:
        InfeasibleError: nothing fits.
    """
    problem = workload_problem(workload)
    found = solve(
        problem,
        objective="throughput",
        contiguity=contiguity,
        time_limit=time_limit,
        seed=seed,
        on_progress=on_progress,
    )
    if not found.feasible:
        raise InfeasibleError(
            f"the workload {workload.name!r} fits in no split: its nodes need "
            f"{fsum(node.size_bytes for node in workload.nodes):.6g} bytes, and "
            f"{workload.accelerators} accelerators have {workload.memory_bytes:.6g} "
            f"each, with {workload.cpus} CPU cores beside them."
        )
    names = [f"gpu:{i}" for i in range(workload.accelerators)]
    names += [f"cpu:{i}" for i in range(workload.cpus)]
    groups = _groups(workload)
    device_of = {
        node.id: names[found.assignment[group]]
        for node, group in zip(workload.nodes, groups)
    }
    bound = max(found.bound, lower_bound(problem, "throughput"))
    return WorkloadPlan(device_of, found.value, min(bound, found.value))


def workload_problem(workload: Workload) -> Problem:
    """A workload as arrays; the devices are gpu:0 ... and then cpu:0 ..."""
    nodes = workload.nodes
    return load_problem(
        seconds=[(n.accelerator if n.supported else inf, n.cpu) for n in nodes],
        size_bytes=[node.size_bytes for node in nodes],
        edges=workload.edges,
        transfer_seconds=[(node.transfer, 0.0) for node in nodes],
        kind=[0] * workload.accelerators + [1] * workload.cpus,
        capacity_bytes=[workload.memory_bytes] * workload.accelerators
        + [inf] * workload.cpus,
        group=_groups(workload),
        backward=[node.backward for node in nodes],
    )


def _groups(workload: Workload) -> list[int]:
    """The group of each node: a colour class, or the node alone."""
    number: dict[object, int] = {}
    keys = ((n.color, None) if n.color is not None else n.id for n in workload.nodes)
    return [number.setdefault(key, len(number)) for key in keys]


def graph_of_workload(workload: Workload) -> tuple[Graph, Cluster]:
    """A part per node, named by its id; a colour class is bound by near=.

    Where a plan says seconds, read the file's unit. CPUs have no limit of memory. Where
    a file has fractions of a byte, sizes and memories count in that fraction, so that
    what fits is what fits in the file.
    """
    digits = _digits(workload)
    leader: dict[int, str] = {}
    parts, calls = [], []
    for node in workload.nodes:
        name = str(node.id)
        first = name if node.color is None else leader.setdefault(node.color, name)
        parts.append(Part(name, near=() if first == name else (first,)))
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
    return graph, _cluster(workload, digits)


def _digits(workload: Workload) -> int:
    """How many decimal digits of a byte the file uses, at most nine."""
    sizes = [workload.memory_bytes, *(node.size_bytes for node in workload.nodes)]
    powers = (
        -int(Decimal(repr(size)).normalize().as_tuple().exponent)
        for size in sizes
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
    sizes = [("gpu", memory)] * workload.accelerators
    sizes += [("cpu", unlimited)] * workload.cpus
    number = {"gpu": 0, "cpu": workload.accelerators}
    devices = (
        replace(
            Device.of(f"{kind}:{i - number[kind]}", memory=size, overhead=0),
            part_seconds=0.0,
        )
        for i, (kind, size) in enumerate(sizes)
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


def score_split(workload: Workload, split: Mapping[str, object]) -> SplitScore:
    """Score a split on the original nodes, independently of the search.

    Raises:
        PlanFileError: it is not a split.
    """
    where, faults = _places(workload, split)
    faults += _violations(workload, where)
    if len(where) < len(workload.nodes):
        return SplitScore(inf, False, False, tuple(faults))
    device = [where[i] for i in range(len(workload.nodes))]
    return SplitScore(
        _max_load(workload, device),
        is_convex(_forward_edges(workload), where),
        is_pipeline(_forward_edges(workload), where),
        tuple(faults),
    )


class _SplitRow(msgspec.Struct):
    nodes: list[int]


class _Split(msgspec.Struct):
    fpgas: list[_SplitRow] = []
    cpus: list[_SplitRow] = []


def _places(
    workload: Workload, split: Mapping[str, object]
) -> tuple[dict[int, Place], list[str]]:
    """The device of each node by position, and what is wrong with the split."""
    try:
        rows = msgspec.convert(split, _Split)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"it is not a split: {error}") from None
    position = {node.id: i for i, node in enumerate(workload.nodes)}
    where: dict[int, Place] = {}
    faults = []
    for kind, entries in (("gpu", rows.fpgas), ("cpu", rows.cpus)):
        for number, entry in enumerate(entries):
            for key in entry.nodes:
                if key not in position:
                    faults.append(f"{kind}:{number}: no node has id {key}")
                elif position[key] in where:
                    faults.append(f"node {key} is placed twice")
                else:
                    where[position[key]] = (kind, number)
    for i, node in enumerate(workload.nodes):
        if i not in where:
            faults.append(f"node {node.id} is not placed")
    return where, faults


def _violations(workload: Workload, where: Mapping[int, Place]) -> list[str]:
    faults = []
    used = Counter(kind for kind, _ in set(where.values()))
    if used["gpu"] > workload.accelerators:
        faults.append(f"{used['gpu']} accelerators, {workload.accelerators} allowed")
    if used["cpu"] > workload.cpus:
        faults.append(f"{used['cpu']} CPU cores, {workload.cpus} allowed")
    sizes: dict[Place, list[float]] = {}
    home: dict[int, Place] = {}
    for i, place in sorted(where.items()):
        node = workload.nodes[i]
        if place[0] == "gpu":
            sizes.setdefault(place, []).append(node.size_bytes)
            if not node.supported:
                faults.append(f"node {node.id} is not supported on accelerators")
        if node.color is not None and home.setdefault(node.color, place) != place:
            faults.append(f"colour class {node.color} is on two devices")
    for (kind, number), each in sorted(sizes.items()):
        if fsum(each) > workload.memory_bytes * (1 + 1e-12):
            faults.append(
                f"{kind}:{number} needs {fsum(each):.12g} bytes, has "
                f"{workload.memory_bytes:.12g}"
            )
    return faults


def _max_load(workload: Workload, device: Sequence[Place]) -> float:
    """Seconds of the busiest device, with what it sends and receives."""
    readers: list[set[Place]] = [set() for _ in device]
    for source, target in workload.edges:
        readers[source].add(device[target])
    seconds: dict[Place, list[float]] = {}
    for i, node in enumerate(workload.nodes):
        here = device[i]
        own = node.accelerator if here[0] == "gpu" else node.cpu
        seconds.setdefault(here, []).append(own)
        others = readers[i] - {here}
        for place in {here, *others} if others else ():
            if place[0] == "gpu":
                seconds.setdefault(place, []).append(node.transfer)
    return max((fsum(each) for each in seconds.values()), default=0.0)


def _forward_edges(workload: Workload) -> list[tuple[int, int]]:
    nodes = workload.nodes
    return [
        (a, b)
        for a, b in workload.edges
        if not (nodes[a].backward or nodes[b].backward)
    ]
