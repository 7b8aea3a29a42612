"""Read and score the benchmark's workload files (NeurIPS 2020, device placement).

A workload is a JSON object with `nodes`, `edges` and the machine (`maxFPGAs`,
`maxCPUs`, `maxSizePerFPGA`). Files come from strangers: every fault is collected and
reported in one `PlanFileError` that names the fields. `score_split` walks the original
nodes, not the contracted problem, so that it can judge what the search reports.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf, isfinite
from pathlib import Path
from typing import Any

from splitnet.core.errors import PlanFileError
from splitnet.core.search.problem import Device, Problem, build_problem

__all__ = [
    "Node",
    "Score",
    "Workload",
    "parse_workload",
    "problem_of",
    "score_split",
    "split_of",
    "workload_of",
]

MAX_FILE_BYTES = 2_000_000_000
MAX_DEVICES = 100_000
MAX_FAULTS_SHOWN = 20


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


@dataclass(frozen=True, slots=True)
class Score:
    """What a split costs; `violations` is empty for a feasible split.

    `call_latency` is infinite when calls wait for one another in a circle.
    """

    max_load: float
    call_latency: float
    convex: bool
    pipeline: bool
    violations: tuple[str, ...]


def parse_workload(path: str | Path) -> Workload:
    """Read a workload file; raise `PlanFileError` with all its faults."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PlanFileError(
                f"{path} is larger than {MAX_FILE_BYTES} bytes; no workload is"
            )
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanFileError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlanFileError(f"{path} is not UTF-8 text") from None
    except RecursionError:
        raise PlanFileError(f"{path} is not a workload: nested too deeply") from None
    except ValueError as error:
        raise PlanFileError(f"{path} is not complete JSON: {error}") from None
    return workload_of(data, name=path.stem, origin=str(path))


def workload_of(
    data: object, *, name: str = "workload", origin: str = "workload"
) -> Workload:
    """Check a decoded workload object and return it as a value."""
    faults: list[str] = []
    if not isinstance(data, dict):
        raise PlanFileError(f"{origin}: expected a JSON object at the top level")
    accelerators = _whole(data, "maxFPGAs", faults)
    cpus = _whole(data, "maxCPUs", faults)
    memory = _number(data, "maxSizePerFPGA", "", faults)
    if accelerators + cpus == 0 and not faults:
        faults.append("maxFPGAs and maxCPUs are both 0: there is no device")
    rows = _rows(data, "nodes", faults)
    position = _positions(rows, faults)
    nodes = [_node(row, f"nodes[{i}]", faults) for i, row in enumerate(rows)]
    edges, transfer = _edges(_rows(data, "edges", faults), position, faults)
    if not faults:
        circle = _cycle(len(nodes), edges)
        if circle:
            names = " -> ".join(str(nodes[index]["id"]) for index in circle)
            faults.append(f"edges form a cycle: {names}")
    if faults:
        shown = faults[:MAX_FAULTS_SHOWN]
        rest = len(faults) - len(shown)
        lines = [f"  - {fault}" for fault in shown]
        lines += [f"  - and {rest} more"] if rest else []
        raise PlanFileError(
            f"{origin} is not a valid workload (faults: {len(faults)}):\n"
            + "\n".join(lines)
        )
    return Workload(
        name=name,
        nodes=tuple(
            Node(**fields, transfer=transfer.get(index, 0.0))
            for index, fields in enumerate(nodes)
        ),
        edges=tuple(edges),
        accelerators=accelerators,
        cpus=cpus,
        memory_bytes=memory,
    )


def problem_of(workload: Workload, *, objective: str = "throughput") -> Problem:
    """Turn a workload into the search engine's problem.

    Devices are `gpu:0..k-1` then `cpu:0..l-1`. For `call_latency` the cores are one
    pool of unlimited size, so there is exactly one pooled `cpu:0`, whatever `maxCPUs`.
    """
    cores = 1 if objective == "call_latency" else workload.cpus
    devices = [
        Device(f"gpu:{index}", 0, workload.memory_bytes)
        for index in range(workload.accelerators)
    ] + [Device(f"cpu:{index}", 1, pooled=True) for index in range(cores)]
    nodes = workload.nodes
    return build_problem(
        [str(node.id) for node in nodes],
        seconds=[(n.accelerator if n.supported else inf, n.cpu) for n in nodes],
        size_bytes=[node.size_bytes for node in nodes],
        edges=workload.edges,
        transfer_seconds=[(node.transfer, 0.0) for node in nodes],
        devices=devices,
        together=[node.color for node in nodes],
        backward=[node.backward for node in nodes],
    )


def split_of(
    workload: Workload, problem: Problem, assignment: Sequence[int]
) -> dict[str, Any]:
    """Write an assignment of the workload's problem as the benchmark's split object."""
    inside: list[list[int]] = [[] for _ in problem.devices]
    for node, group in zip(workload.nodes, problem.nodes.group, strict=True):
        inside[assignment[group]].append(node.id)
    rows = list(zip(problem.devices, inside, strict=True))
    return {
        "fpgas": [{"nodes": ids} for device, ids in rows if not device.pooled],
        "cpus": [{"nodes": ids} for device, ids in rows if device.pooled],
    }


# -- reading ---------------------------------------------------------------------------


def _rows(data: Mapping[str, Any], field: str, faults: list[str]) -> list[Any]:
    rows = data.get(field)
    if not isinstance(rows, list):
        faults.append(f"{field}: expected a list, found {_kind_of(rows)}")
        return []
    return rows


def _kind_of(value: object) -> str:
    if value is None:
        return "nothing"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _whole(data: Mapping[str, Any], field: str, faults: list[str]) -> int:
    value = data.get(field)
    whole = isinstance(value, int) or (isinstance(value, float) and value % 1 == 0)
    if isinstance(value, bool) or not whole or value is None or value < 0:
        faults.append(f"{field}: expected a whole number >= 0, found {_kind_of(value)}")
        return 0
    if value > MAX_DEVICES:
        faults.append(f"{field}: at most {MAX_DEVICES} devices, found {value}")
        return 0
    return int(value)


def _number(
    row: Mapping[str, Any],
    field: str,
    where: str,
    faults: list[str],
    default: float | None = None,
) -> float:
    value = row.get(field, default)
    label = f"{where}.{field}" if where else field
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        faults.append(f"{label}: expected a number, found {_kind_of(value)}")
        return 0.0
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not isfinite(number) or number < 0:
        faults.append(f"{label}: expected a finite number >= 0, found {number}")
        return 0.0
    return number


def _flag(
    row: Mapping[str, Any],
    field: str,
    where: str,
    faults: list[str],
    default: bool | None = None,
) -> bool:
    value = row.get(field, default)
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        faults.append(
            f"{where}.{field}: expected true, false, 0 or 1, found {_kind_of(value)}"
        )
        return False
    return bool(value)


def _positions(rows: Sequence[Any], faults: list[str]) -> dict[int, int]:
    position: dict[int, int] = {}
    for index, row in enumerate(rows):
        key = row.get("id") if isinstance(row, dict) else None
        if isinstance(key, bool) or not isinstance(key, int):
            faults.append(
                f"nodes[{index}].id: expected a whole number, found {_kind_of(key)}"
            )
        elif key in position:
            faults.append(
                f"nodes[{index}].id: {key} is already the id of nodes[{position[key]}]"
            )
        else:
            position[key] = index
    return position


def _node(row: Any, where: str, faults: list[str]) -> dict[str, Any]:
    if not isinstance(row, dict):
        faults.append(f"{where}: expected an object, found {_kind_of(row)}")
        row = {}
    color = row.get("colorClass")
    if color is not None and (isinstance(color, bool) or not isinstance(color, int)):
        faults.append(
            f"{where}.colorClass: expected a whole number, found {_kind_of(color)}"
        )
        color = None
    return {
        "id": row.get("id"),
        "accelerator": _number(row, "fpgaLatency", where, faults),
        "cpu": _number(row, "cpuLatency", where, faults),
        "size_bytes": _number(row, "size", where, faults, 0.0),
        "supported": _flag(row, "supportedOnFpga", where, faults),
        "backward": _flag(row, "isBackwardNode", where, faults, False),
        "color": color,
    }


def _edges(
    rows: Sequence[Any], position: Mapping[int, int], faults: list[str]
) -> tuple[list[tuple[int, int]], dict[int, float]]:
    edges: dict[tuple[int, int], None] = {}
    transfer: dict[int, float] = {}
    first: dict[int, int] = {}
    for index, row in enumerate(rows):
        where = f"edges[{index}]"
        if not isinstance(row, dict):
            faults.append(f"{where}: expected an object, found {_kind_of(row)}")
            continue
        ends = []
        for field in ("sourceId", "destId"):
            key = row.get(field)
            if not isinstance(key, int) or isinstance(key, bool) or key not in position:
                faults.append(f"{where}.{field}: no node has id {_kind_of(key)}")
            else:
                ends.append(position[key])
        cost = _number(row, "cost", where, faults)
        if len(ends) < 2:
            continue
        source, target = ends
        if source not in transfer:
            transfer[source], first[source] = cost, index
        elif abs(transfer[source] - cost) > 1e-6:
            faults.append(
                f"{where}.cost: {cost} differs from {transfer[source]} in "
                f"edges[{first[source]}]; node {row['sourceId']} has one output cost"
            )
        edges[source, target] = None
    return list(edges), transfer


def _adjacent(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    successors: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        successors[source].append(target)
    return successors


def _order(successors: Sequence[Sequence[int]]) -> list[int]:
    waiting = [0] * len(successors)
    for row in successors:
        for target in row:
            waiting[target] += 1
    order = [node for node, number in enumerate(waiting) if number == 0]
    for node in order:
        for target in successors[node]:
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    return order


def _cycle(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return one cycle as a closed path, or nothing; O(nodes + edges)."""
    successors = _adjacent(count, edges)
    left = set(range(count)) - set(_order(successors))
    if not left:
        return []
    before = {t: s for s, t in edges if s in left and t in left}
    # Every node left has a predecessor left, so walking back must repeat.
    seen: dict[int, int] = {}
    walk: list[int] = []
    node = min(left)
    while node not in seen:
        seen[node] = len(walk)
        walk.append(node)
        node = before[node]
    return [node, *reversed(walk[seen[node] :])]


# -- scoring ---------------------------------------------------------------------------


def score_split(
    workload: Workload, split: Mapping[str, Any], *, cpu_limit: bool = True
) -> Score:
    """Score a split on the original nodes; `cpu_limit=False` for `call_latency`."""
    where, faults = _places(workload, split)
    used: dict[str, set[tuple[str, int]]] = {"gpu": set(), "cpu": set()}
    for place in where.values():
        used[place[0]].add(place)
    faults += _violations(workload, where, used, cpu_limit=cpu_limit)
    if len(where) < len(workload.nodes):
        return Score(inf, inf, False, False, tuple(faults))
    device = [where[index] for index in range(len(workload.nodes))]
    successors = _adjacent(len(workload.nodes), workload.edges)
    return Score(
        max_load=_score_max_load(workload, device, successors),
        call_latency=_score_latency(workload, device, successors),
        convex=_score_convex(workload, device, successors),
        pipeline=_score_pipeline(workload, device),
        violations=tuple(faults),
    )


def _places(
    workload: Workload, split: Mapping[str, Any]
) -> tuple[dict[int, tuple[str, int]], list[str]]:
    position = {node.id: index for index, node in enumerate(workload.nodes)}
    where: dict[int, tuple[str, int]] = {}
    faults = []
    for field, kind in (("fpgas", "gpu"), ("cpus", "cpu")):
        entries = split.get(field, [])
        if not isinstance(entries, list):
            raise PlanFileError(f"{field}: expected a list, found {_kind_of(entries)}")
        for number, entry in enumerate(entries):
            ids = entry.get("nodes") if isinstance(entry, dict) else None
            if not isinstance(ids, list):
                raise PlanFileError(f"{field}[{number}].nodes: expected a list of ids")
            for key in ids:
                index = position.get(key) if isinstance(key, int) else None
                if index is None:
                    faults.append(f"{field}[{number}].nodes: no node has id {key!r}")
                elif index in where:
                    faults.append(f"node {key} is placed twice")
                else:
                    where[index] = (kind, number)
    faults += [
        f"node {node.id} is not placed"
        for index, node in enumerate(workload.nodes)
        if index not in where
    ]
    return where, faults


def _violations(
    workload: Workload,
    where: Mapping[int, tuple[str, int]],
    used: Mapping[str, set[tuple[str, int]]],
    *,
    cpu_limit: bool,
) -> list[str]:
    faults = []
    if len(used["gpu"]) > workload.accelerators:
        faults.append(
            f"{len(used['gpu'])} accelerators used, {workload.accelerators} allowed"
        )
    if cpu_limit and len(used["cpu"]) > workload.cpus:
        faults.append(f"{len(used['cpu'])} CPU cores used, {workload.cpus} allowed")
    sizes: dict[tuple[str, int], list[float]] = {}
    home: dict[int, tuple[str, int]] = {}
    for index, node in enumerate(workload.nodes):
        if index not in where:
            continue
        place = where[index]
        if place[0] == "gpu":
            sizes.setdefault(place, []).append(node.size_bytes)
            if not node.supported:
                faults.append(f"node {node.id} is not supported on accelerators")
        pool = place if place[0] == "gpu" or cpu_limit else ("cpu", 0)
        if node.color is not None and home.setdefault(node.color, pool) != pool:
            faults.append(f"colour class {node.color} is on two devices")
    for (kind, number), parts in sorted(sizes.items()):
        if fsum(parts) > workload.memory_bytes * (1 + 1e-12):
            faults.append(
                f"{kind}:{number} needs {fsum(parts):.12g} bytes, has "
                f"{workload.memory_bytes:.12g}"
            )
    return faults


def _score_max_load(
    workload: Workload,
    device: Sequence[tuple[str, int]],
    successors: Sequence[Sequence[int]],
) -> float:
    parts: dict[tuple[str, int], list[float]] = {}
    for index, node in enumerate(workload.nodes):
        here = device[index]
        time = node.accelerator if here[0] == "gpu" else node.cpu
        parts.setdefault(here, []).append(time)
        guests = {device[target] for target in successors[index]} - {here}
        for place in {here} | guests if guests else ():
            if place[0] == "gpu":
                parts.setdefault(place, []).append(node.transfer)
    return max((fsum(part) for part in parts.values()), default=0.0)


def _score_latency(
    workload: Workload,
    device: Sequence[tuple[str, int]],
    successors: Sequence[Sequence[int]],
) -> float:
    """Cut each accelerator's nodes into calls and take the longest chain of units."""
    order = _order(successors)
    predecessors = _adjacent(len(order), [(t, s) for s, t in workload.edges])
    unit: dict[int, tuple[str, int, int]] = {}
    for place in {d for d in device if d[0] == "gpu"}:
        call = [0] * len(order)
        for node in order:
            inside = device[node] == place
            call[node] = max(
                (call[u] + (inside and device[u] != place) for u in predecessors[node]),
                default=0,
            )
            if inside:
                call[node] = max(call[node], 1)
                unit[node] = (*place, call[node])
    for node in order:
        unit.setdefault(node, ("cpu", node, 0))
    seconds: dict[tuple[str, int, int], list[float]] = {}
    after: dict[tuple[str, int, int], set[tuple[str, int, int]]] = {}
    for index in order:
        data, here = workload.nodes[index], unit[index]
        time = data.cpu if here[0] == "cpu" else data.accelerator
        seconds.setdefault(here, []).append(time)
        guests = {unit[target] for target in successors[index]} - {here}
        after.setdefault(here, set()).update(guests)
        for other in {here} | guests if guests else ():
            if other[0] == "gpu":
                seconds.setdefault(other, []).append(data.transfer)
    return _longest({u: fsum(parts) for u, parts in seconds.items()}, after)


def _longest(
    seconds: Mapping[tuple[str, int, int], float],
    after: Mapping[tuple[str, int, int], set[tuple[str, int, int]]],
) -> float:
    waiting = dict.fromkeys(seconds, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    start = dict.fromkeys(seconds, 0.0)
    ready = [unit for unit, number in waiting.items() if number == 0]
    best = 0.0
    for unit in ready:
        stop = start[unit] + seconds[unit]
        best = max(best, stop)
        for target in after.get(unit, ()):
            start[target] = max(start[target], stop)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return best if len(ready) == len(seconds) else inf


def _score_convex(
    workload: Workload,
    device: Sequence[tuple[str, int]],
    successors: Sequence[Sequence[int]],
) -> bool:
    """Whether no path of forward nodes leaves a device and comes back."""
    order = _order(successors)

    def forward(node: int) -> bool:
        return not workload.nodes[node].backward

    for place in sorted(set(device)):
        left = set()
        for node in filter(forward, order):
            if device[node] == place or node in left:
                for target in filter(forward, successors[node]):
                    if device[target] != place:
                        left.add(target)
                    elif node in left:
                        return False
    return True


def _score_pipeline(workload: Workload, device: Sequence[tuple[str, int]]) -> bool:
    """Whether the devices can be ordered so that forward edges never go back."""
    number = {place: index for index, place in enumerate(sorted(set(device)))}
    edges = {
        (number[device[a]], number[device[b]])
        for a, b in workload.edges
        if not (workload.nodes[a].backward or workload.nodes[b].backward)
        and device[a] != device[b]
    }
    return not _cycle(len(number), sorted(edges))
