"""Read the benchmark's workload files (NeurIPS 2020, device placement).

A workload is a JSON object with `nodes`, `edges` and the machine (`maxFPGAs`,
`maxCPUs`, `maxSizePerFPGA`). Files come from strangers: every fault is collected and
reported in one `PlanFileError` that names the fields.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from splitnet.core.errors import PlanFileError
from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.problem import Device, Problem
from splitnet.planner.walks import cycle_in
from splitnet.planner.workload_fields import (
    edges_of,
    node_of,
    number_of,
    positions_of,
    rows_of,
    whole_of,
)

__all__ = [
    "Node",
    "Workload",
    "parse_workload",
    "problem_of",
    "split_of",
    "workload_of",
]

MAX_FILE_BYTES = 2_000_000_000
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
    accelerators = whole_of(data, "maxFPGAs", faults)
    cpus = whole_of(data, "maxCPUs", faults)
    memory = number_of(data, "maxSizePerFPGA", "", faults)
    if accelerators + cpus == 0 and not faults:
        faults.append("maxFPGAs and maxCPUs are both 0: there is no device")
    rows = rows_of(data, "nodes", faults)
    position = positions_of(rows, faults)
    nodes = [node_of(row, f"nodes[{i}]", faults) for i, row in enumerate(rows)]
    edges, transfer = edges_of(rows_of(data, "edges", faults), position, faults)
    if not faults:
        circle = cycle_in(len(nodes), edges)
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
