"""Plans and costs as JSON files: readable, versioned, and safe to load from a stranger.

A plan file holds the graph, the cluster, the costs and the decisions. What follows from
them (timeline, transfers, memory, bound) is computed again on loading, so that a file
edited by hand, or by an enemy, cannot say what is not so. The file's own figures are
there for people to read.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitnet.core.cluster import Cluster, device_name
from splitnet.core.cost import OPTIMIZER_SLOTS
from splitnet.core.cost_table import costs_from_dict, costs_to_dict
from splitnet.core.errors import PlanFileError, SplitnetError, listed
from splitnet.core.graph import Graph
from splitnet.core.plan import Fallback, Placement, Plan
from splitnet.core.serialization import decode, encode, load_json, write_json
from splitnet.planner.request import OBJECTIVES
from splitnet.planner.score import bound_of, score
from splitnet.planner.words import with_verdict

__all__ = ["load_plan", "plan_from_dict", "plan_to_dict", "save_plan"]

VERSION = 1

_KEYS = {
    "splitnet_plan",
    "objective",
    "strategy",
    "optimizer",
    "training",
    "device_of",
    "placements",
    "fallbacks",
    "summary",
    "bound",
    "options",
    "cluster",
    "costs",
    "graph",
}


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as JSON; equal plans give equal bytes.

    Raises:
        PlanFileError: the file cannot be written.
    """
    write_json(plan_to_dict(plan), path, "plan")


def load_plan(path: str | Path) -> Plan:
    """Read a plan and compute again what follows from it. TensorFlow is not needed.

    The `device_of` table may have been edited by hand: another device of the cluster
    for a part. Its `reason` is "given" then.

    Raises:
        PlanFileError: no such file, or not a plan; the message names the field.
    """
    return load_json(path, "plan", plan_from_dict)


def plan_to_dict(plan: Plan) -> dict[str, object]:
    """The plan as plain values; first what a person looks for."""
    return {
        "splitnet_plan": VERSION,
        "objective": plan.objective,
        "strategy": plan.strategy,
        "optimizer": plan.optimizer,
        "training": plan.training,
        "device_of": dict(plan.device_of),
        "placements": [
            {"part": p.part, "requested": p.requested, "reason": p.reason}
            for p in plan.placements
        ],
        "fallbacks": [
            {
                "part": f.part,
                "requested": f.requested,
                "assigned": f.assigned,
                "reason": f.reason,
            }
            for f in plan.fallbacks
        ],
        "summary": {
            "seconds": plan.seconds,
            "value": plan.value,
            "transfer_bytes": sum(t.bytes for t in plan.transfers),
            "memory_bytes": {d: m.total for d, m in plan.memory.items()},
        },
        "bound": plan.bound,
        "options": dict(plan.options or {}),
        "cluster": encode(plan.cluster),
        "costs": costs_to_dict(plan.costs, plan.graph, plan.cluster),
        "graph": encode(plan.graph),
    }


def plan_from_dict(values: object) -> Plan:
    """The inverse of `plan_to_dict`, for values that come from a stranger.

    Raises:
        PlanFileError: with every fault found in the outermost fields.
    """
    if not isinstance(values, Mapping):
        raise PlanFileError(
            f"a plan is a table {{...}}. Received: {type(values).__name__}."
        )
    _check_version(values)
    _check_fields(values, OBJECTIVES)
    graph = decode(values["graph"], Graph, "graph")
    cluster = decode(values["cluster"], Cluster, "cluster")
    device_of = _checked_devices(values["device_of"], graph.part, cluster)
    plan = score(
        graph,
        cluster,
        device_of,
        objective=values["objective"],
        costs=costs_from_dict(values.get("costs", {"model": "roofline"})),
        optimizer=values["optimizer"],
        training=values["training"],
    )
    fallbacks = [
        decode(entry, Fallback, f"fallbacks[{i}]")
        for i, entry in enumerate(values.get("fallbacks", []))
    ]
    plan = replace(
        plan,
        placements=_placements(values, device_of),
        fallbacks=tuple(f for f in fallbacks if device_of.get(f.part) == f.assigned),
        strategy=values["strategy"],
        options=dict(values.get("options", {})),
    )
    return with_verdict(replace(plan, bound=bound_of(plan)))


def _check_version(values: Mapping[str, Any]) -> None:
    if "splitnet_plan" not in values:
        raise PlanFileError(
            "it has no field 'splitnet_plan', so it is not a plan. plan.save(path) "
            "writes one."
        )
    if values["splitnet_plan"] is not VERSION and values["splitnet_plan"] != VERSION:
        raise PlanFileError(
            f"it has version {values['splitnet_plan']!r}; this splitnet reads version "
            f"{VERSION}. Make the plan again, or install the splitnet that wrote it."
        )


def _check_fields(values: Mapping[str, Any], objectives: tuple[str, ...]) -> None:
    """Check the outermost fields, all at once."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "objective": str,
        "strategy": str,
        "optimizer": str,
        "training": bool,
        "device_of": dict,
        "cluster": dict,
        "graph": dict,
    }
    optional: dict[str, type | tuple[type, ...]] = {
        "placements": list,
        "fallbacks": list,
        "summary": dict,
        "options": dict,
        "costs": dict,
        "bound": (int, float),
    }
    faults = [f"the field {key!r} is missing" for key in kinds if key not in values]
    for key, kind in (kinds | optional).items():
        if key in values and not isinstance(values[key], kind):
            faults.append(f"{key} cannot be {_short(values[key])}")
    faults += [
        f"the field {str(key)!r} is unknown" for key in values if key not in _KEYS
    ]
    if not faults and values["objective"] not in objectives:
        faults.append(
            f"objective must be one of {', '.join(objectives)}, not "
            f"{_short(values['objective'])}"
        )
    if not faults and values["optimizer"] not in OPTIMIZER_SLOTS:
        faults.append(f"optimizer {_short(values['optimizer'])} is unknown")
    if faults:
        raise PlanFileError(listed("it is not a plan that can be read.", faults))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _checked_devices(
    values: Mapping[str, Any], parts: Mapping[str, object], cluster: Cluster
) -> dict[str, str]:
    faults = [f"part {name!r} has no device" for name in parts if name not in values]
    device_of: dict[str, str] = {}
    for name, device in values.items():
        if name not in parts:
            near = difflib.get_close_matches(str(name), list(parts), n=2)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            faults.append(f"there is no part {name!r} in its graph{hint}")
            continue
        try:
            device_of[name] = cluster[device_name(device)].name
        except SplitnetError as error:
            faults.append(f"part {name!r}: {error}")
    if faults:
        raise PlanFileError(listed("device_of cannot be kept.", faults))
    return {name: device_of[name] for name in parts}


def _placements(
    values: Mapping[str, Any], device_of: Mapping[str, str]
) -> tuple[Placement, ...]:
    """What was requested and the reason, where the file says so."""
    said: dict[str, tuple[str, str]] = {}
    for i, entry in enumerate(values.get("placements", [])):
        where = f"placements[{i}]"
        if not isinstance(entry, Mapping) or not {"part", "requested", "reason"} == {
            *entry
        }:
            raise PlanFileError(
                f"{where} must be a table of part, requested and reason."
            )
        texts = [entry[key] for key in ("part", "requested", "reason")]
        if not all(isinstance(text, str) for text in texts):
            raise PlanFileError(f"{where} must hold texts. Received: {_short(entry)}.")
        said[texts[0]] = (texts[1], texts[2])
    return tuple(
        Placement(part, device, *said.get(part, ("", "given")))
        for part, device in device_of.items()
    )
