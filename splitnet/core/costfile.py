"""Cost tables as JSON: measured once, used by every later plan."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from splitnet.core.cluster import Cluster, Link
from splitnet.core.clusterfile import link_to_dict
from splitnet.core.cost import CostModel, Measured, Roofline
from splitnet.core.errors import PlanFileError
from splitnet.core.graph import Graph
from splitnet.core.graphfile import value_from_dict
from splitnet.core.jsonfile import read_json, write_json

__all__ = ["costs_from_dict", "costs_to_dict", "load_costs", "save_costs"]

VERSION = 1


def save_costs(costs: Measured, path: str | Path) -> None:
    """Write measured costs as JSON, beside the file first and then in its place.

    Raises:
        PlanFileError: the file cannot be written.
    """
    write_json({"splitnet_costs": VERSION} | _table(costs), path, "cost table")


def load_costs(path: str | Path) -> Measured:
    """Read what `save_costs` wrote.

    Raises:
        PlanFileError: no such file, or not a cost table; the message names the field.
    """
    try:
        values = read_json(path, "cost table")
        if not isinstance(values, dict) or values.pop("splitnet_costs", 0) != VERSION:
            raise PlanFileError(
                f"it has no field 'splitnet_costs' of version {VERSION}, so it is not "
                "a cost table. One is written by sn.save_costs(measured, path)."
            )
        found = costs_from_dict(values)
        if not isinstance(found, Measured):
            raise PlanFileError("it holds no measurements.")
        return found
    except PlanFileError as error:
        raise PlanFileError(
            f"cannot load the cost table {str(path)!r}: {error}"
        ) from None


def costs_to_dict(
    costs: CostModel, graph: Graph, cluster: Cluster
) -> dict[str, object]:
    """A cost model as plain values; one of somebody's own is written out in full."""
    if isinstance(costs, Roofline):
        return {"model": "roofline"}
    if isinstance(costs, Measured):
        return _table(costs)
    ends = [(a.name, b.name) for a in cluster for b in cluster if a.name != b.name]
    roads = [(a, b, costs.link(a, b, cluster)) for a, b in ends]
    return _table(
        Measured(
            forward={
                (call.name, device.name): costs.forward_seconds(call, device)
                for call in graph.calls
                for device in cluster
            },
            backward={
                (call.name, device.name): costs.backward_seconds(call, device)
                for call in graph.calls
                for device in cluster
            },
            links=tuple(replace(road, source=a, target=b) for a, b, road in roads),
            batch=graph.batch,
        )
    )


def _table(costs: Measured) -> dict[str, object]:
    """Rows [call or signature, device or kind, seconds], sorted."""
    return {
        "model": "measured",
        "batch": costs.batch,
        "forward": [[*key, value] for key, value in sorted(costs.forward.items())],
        "backward": [[*key, value] for key, value in sorted(costs.backward.items())],
        "update_bytes_per_second": dict(sorted(costs.update_bytes_per_second.items())),
        "start_seconds": dict(sorted(costs.start_seconds.items())),
        "links": [link_to_dict(link) for link in costs.links],
    }


def costs_from_dict(values: object) -> Measured | Roofline:
    """The inverse of `costs_to_dict`, for values that come from a stranger.

    Raises:
        PlanFileError: not a cost model; the message names the field.
    """
    if not isinstance(values, Mapping):
        raise PlanFileError(f"costs is a table. Received: {type(values).__name__}.")
    model = values.get("model")
    if model == "roofline":
        return Roofline()
    if model != "measured":
        raise PlanFileError(
            f"costs.model must be 'roofline' or 'measured'. Received: {model!r}."
        )
    batch = values.get("batch")
    if batch is not None and (type(batch) is not int or batch < 1):
        raise PlanFileError(
            f"costs.batch must be a whole number >= 1, or null. Received: {batch!r}."
        )
    speeds = values.get("update_bytes_per_second", {})
    starts = values.get("start_seconds", {})
    links = values.get("links", [])
    if not (
        isinstance(speeds, Mapping)
        and isinstance(starts, Mapping)
        and isinstance(links, list)
    ):
        raise PlanFileError(
            "costs.update_bytes_per_second and costs.start_seconds must be tables, and "
            "costs.links a list."
        )
    return Measured(
        forward=_rows(values, "forward"),
        backward=_rows(values, "backward"),
        update_bytes_per_second={
            str(name): _positive(speed, f"costs.update_bytes_per_second.{name}")
            for name, speed in speeds.items()
        },
        start_seconds={
            str(name): _number(seconds, f"costs.start_seconds.{name}")
            for name, seconds in starts.items()
        },
        links=tuple(_link(entry, f"costs.links[{i}]") for i, entry in enumerate(links)),
        batch=batch,
    )


def _rows(values: Mapping[str, Any], field: str) -> dict[tuple[str, str], float]:
    rows = values.get(field, [])
    if not isinstance(rows, list):
        raise PlanFileError(f"costs.{field} must be a list.")
    found: dict[tuple[str, str], float] = {}
    for i, row in enumerate(rows):
        where = f"costs.{field}[{i}]"
        if not (
            isinstance(row, list)
            and len(row) == 3
            and isinstance(row[0], str)
            and isinstance(row[1], str)
        ):
            raise PlanFileError(
                f"{where} must be [call, device, seconds]. Received: {row!r}."
            )
        found[row[0], row[1]] = _number(row[2], where)
    return found


def _number(value: object, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # A whole number may be too large for a float.
        number = float(value) if abs(value) < 1e300 else inf
        if isfinite(number) and number >= 0:
            return number
    raise PlanFileError(
        f"{where} must be finite and not negative. Received: {value!r}."
    )


def _positive(value: object, where: str) -> float:
    number = _number(value, where)
    if not number:
        raise PlanFileError(f"{where} must be more than zero.")
    return number


def _link(entry: object, where: str) -> Link:
    link = value_from_dict(Link, entry, where)
    if link.bytes_per_second <= 0:
        raise PlanFileError(f"{where}.bytes_per_second must be more than zero.")
    for name in ("busy_share", "crowding"):
        if getattr(link, name) > 1:
            raise PlanFileError(f"{where}.{name} must be at most 1.")
    if link.gap > link.latency_seconds:
        raise PlanFileError(f"{where}.gap_seconds must be at most latency_seconds.")
    return link
