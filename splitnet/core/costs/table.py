"""Cost tables as JSON: measured once, used by every later plan."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from splitnet.core.checks import Positive, Rate, Seconds
from splitnet.core.cluster import Cluster, Link, device_name
from splitnet.core.costs.model import CostModel, Measured, Roofline
from splitnet.core.errors import DeviceError, PlanFileError
from splitnet.core.graph import Graph
from splitnet.core.serialization import decode, encode, load_json, write_json

__all__ = ["costs_from_dict", "costs_to_dict", "load_costs", "save_costs"]

_COSTS_VERSION = 1


@dataclass(frozen=True, slots=True)
class _CostTable:
    """Rows of (call or signature, device or kind, seconds), and links."""

    model: Literal["roofline", "measured"]
    splitnet_costs: int = _COSTS_VERSION
    batch: Positive | None = None
    forward: tuple[tuple[str, str, Seconds], ...] = ()
    backward: tuple[tuple[str, str, Seconds], ...] = ()
    update_bytes_per_second: dict[str, Rate] = field(default_factory=dict)
    links: tuple[Link, ...] = ()


def save_costs(costs: Measured, path: str | Path) -> None:
    """Write measured costs as JSON, atomically.

    Raises:
        PlanFileError: the file cannot be written.
    """
    values = {"splitnet_costs": _COSTS_VERSION} | _measured_to_dict(costs)
    write_json(values, path, "cost table")


def load_costs(path: str | Path) -> Measured:
    """Read what `save_costs` wrote.

    Raises:
        PlanFileError: no such file, or not a cost table; the message names the field.
    """
    return load_json(path, "cost table", _measured_file)


def _measured_file(values: Any) -> Measured:
    known = isinstance(values, dict) and values.get("splitnet_costs")
    if known != _COSTS_VERSION or isinstance(known, bool):
        raise PlanFileError(
            f"it has no field 'splitnet_costs' of version {_COSTS_VERSION}, so it is "
            "not a cost table. sn.save_costs(measured, path) writes one."
        )
    found = costs_from_dict(values)
    if not isinstance(found, Measured):
        raise PlanFileError("it holds no measurements.")
    return found


def _is_device(name: str) -> bool:
    """Whether it is the canonical name of a device, or a kind."""
    try:
        return device_name(name) == name
    except DeviceError:
        return False


def costs_to_dict(
    costs: CostModel, graph: Graph, cluster: Cluster
) -> dict[str, object]:
    """A cost model as plain values; others become a table of their values."""
    if isinstance(costs, Roofline):
        return {"model": "roofline"}
    if isinstance(costs, Measured):
        return _measured_to_dict(costs)
    places = [(call, device) for call in graph.calls for device in cluster]
    ends = [(a.name, b.name) for a in cluster for b in cluster if a.name != b.name]
    return _measured_to_dict(
        Measured(
            forward={(c.name, d.name): costs.forward_seconds(c, d) for c, d in places},
            backward={
                (c.name, d.name): costs.backward_seconds(c, d) for c, d in places
            },
            links=tuple(
                replace(costs.link(a, b, cluster), source=a, target=b) for a, b in ends
            ),
            batch=graph.batch,
        )
    )


def _measured_to_dict(costs: Measured) -> dict[str, object]:
    return {
        "model": "measured",
        "batch": costs.batch,
        "forward": [[*key, value] for key, value in sorted(costs.forward.items())],
        "backward": [[*key, value] for key, value in sorted(costs.backward.items())],
        "update_bytes_per_second": dict(sorted(costs.update_bytes_per_second.items())),
        "links": encode(costs.links),
    }


def costs_from_dict(values: object) -> Measured | Roofline:
    """The inverse of `costs_to_dict`.

    Raises:
        PlanFileError: not a cost model; the message names the field.
    """
    table = decode(values, _CostTable, "costs")
    if table.model == "roofline":
        return Roofline()
    places = [where for _, where, _ in (*table.forward, *table.backward)]
    ends = [end for one in table.links for end in (one.source, one.target)]
    names = dict.fromkeys((*places, *ends, *table.update_bytes_per_second))
    if wrong := [name for name in names if name != "*" and not _is_device(name)]:
        raise PlanFileError(f"costs: there is no device {', '.join(map(repr, wrong))}.")
    return Measured(
        forward={(call, device): seconds for call, device, seconds in table.forward},
        backward={(call, device): seconds for call, device, seconds in table.backward},
        update_bytes_per_second=table.update_bytes_per_second,
        links=table.links,
        batch=table.batch,
    )
