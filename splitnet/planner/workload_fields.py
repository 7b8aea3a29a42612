"""Check the fields of a workload file; every fault is added to a list, none raises."""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

__all__ = [
    "edges_of",
    "kind_of",
    "node_of",
    "number_of",
    "positions_of",
    "rows_of",
    "whole_of",
]

MAX_DEVICES = 100_000


def rows_of(data: Mapping[str, Any], field: str, faults: list[str]) -> list[Any]:
    """Return a list field, or nothing and a fault."""
    rows = data.get(field)
    if not isinstance(rows, list):
        faults.append(f"{field}: expected a list, found {kind_of(rows)}")
        return []
    return rows


def kind_of(value: object) -> str:
    """Say what a value is, for a message that names its field."""
    if value is None:
        return "nothing"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def whole_of(data: Mapping[str, Any], field: str, faults: list[str]) -> int:
    """Return a number of devices, or 0 and a fault."""
    value = data.get(field)
    whole = isinstance(value, int) or (isinstance(value, float) and value % 1 == 0)
    if isinstance(value, bool) or not whole or value is None or value < 0:
        faults.append(f"{field}: expected a whole number >= 0, found {kind_of(value)}")
        return 0
    if value > MAX_DEVICES:
        faults.append(f"{field}: at most {MAX_DEVICES} devices, found {value}")
        return 0
    return int(value)


def number_of(
    row: Mapping[str, Any],
    field: str,
    where: str,
    faults: list[str],
    default: float | None = None,
) -> float:
    """Return a finite number >= 0, or 0 and a fault."""
    value = row.get(field, default)
    label = f"{where}.{field}" if where else field
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        faults.append(f"{label}: expected a number, found {kind_of(value)}")
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
    """Return a truth value, or False and a fault."""
    value = row.get(field, default)
    if not isinstance(value, (bool, int)) or value not in (0, 1):
        faults.append(
            f"{where}.{field}: expected true, false, 0 or 1, found {kind_of(value)}"
        )
        return False
    return bool(value)


def positions_of(rows: Sequence[Any], faults: list[str]) -> dict[int, int]:
    """Map the id of every node to its position in the file."""
    position: dict[int, int] = {}
    for index, row in enumerate(rows):
        key = row.get("id") if isinstance(row, dict) else None
        if isinstance(key, bool) or not isinstance(key, int):
            faults.append(
                f"nodes[{index}].id: expected a whole number, found {kind_of(key)}"
            )
        elif key in position:
            faults.append(
                f"nodes[{index}].id: {key} is already the id of nodes[{position[key]}]"
            )
        else:
            position[key] = index
    return position


def node_of(row: Any, where: str, faults: list[str]) -> dict[str, Any]:
    """Return a node's fields by the names of `Node`, without its transfer."""
    if not isinstance(row, dict):
        faults.append(f"{where}: expected an object, found {kind_of(row)}")
        row = {}
    color = row.get("colorClass")
    if color is not None and (isinstance(color, bool) or not isinstance(color, int)):
        faults.append(
            f"{where}.colorClass: expected a whole number, found {kind_of(color)}"
        )
        color = None
    return {
        "id": row.get("id"),
        "accelerator": number_of(row, "fpgaLatency", where, faults),
        "cpu": number_of(row, "cpuLatency", where, faults),
        "size_bytes": number_of(row, "size", where, faults, 0.0),
        "supported": _flag(row, "supportedOnFpga", where, faults),
        "backward": _flag(row, "isBackwardNode", where, faults, False),
        "color": color,
    }


def edges_of(
    rows: Sequence[Any], position: Mapping[int, int], faults: list[str]
) -> tuple[list[tuple[int, int]], dict[int, float]]:
    """Return pairs of positions, and what the output of each source costs."""
    edges: dict[tuple[int, int], None] = {}
    transfer: dict[int, float] = {}
    first: dict[int, int] = {}
    for index, row in enumerate(rows):
        where = f"edges[{index}]"
        if not isinstance(row, dict):
            faults.append(f"{where}: expected an object, found {kind_of(row)}")
            continue
        ends = []
        for field in ("sourceId", "destId"):
            key = row.get(field)
            if not isinstance(key, int) or isinstance(key, bool) or key not in position:
                faults.append(f"{where}.{field}: no node has id {kind_of(key)}")
            else:
                ends.append(position[key])
        cost = number_of(row, "cost", where, faults)
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
