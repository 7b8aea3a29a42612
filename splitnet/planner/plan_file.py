"""Plans as JSON files: readable, versioned, and safe to load from any source.

A plan file holds the graph, the cluster, the costs and the decisions. What follows from
them (timeline, transfers, memory, verdict) is computed again on loading, so a file that
was edited cannot claim what is not so; the figures in the file are for people to read.
Only the bound is taken from a file whose checksum says that nobody edited it, because
the search proves better bounds than loading does. The checksum is no signature.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from splitnet.core.cluster import Cluster
from splitnet.core.costs import costs_from_dict, costs_to_dict
from splitnet.core.errors import PlanFileError, SplitnetError, listed
from splitnet.core.graph import Graph
from splitnet.core.plan import Fallback, Placement, Plan, PlanOptions
from splitnet.core.serialization import decode, encode, load_json, write_json
from splitnet.core.timeline import Execution
from splitnet.planner.analysis import with_verdict
from splitnet.planner.evaluate import executed, score
from splitnet.simulator.microbatch import execution_of

VERSION = 1


@dataclass(frozen=True, slots=True)
class _Placed:
    """A placement without its device, which is in `device_of`."""

    part: str
    requested: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """The fields of a plan file, in their order: the decisions first."""

    splitnet_plan: int
    objective: Literal["latency", "throughput", "memory"]
    strategy: str
    optimizer: str
    training: bool
    device_of: dict[str, str]
    placements: tuple[_Placed, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    reused: dict[str, str] = field(default_factory=dict)
    execution: Execution = Execution()
    summary: dict[str, Any] = field(default_factory=dict)
    bound: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    cluster: Cluster
    costs: dict[str, Any] = field(default_factory=lambda: {"model": "roofline"})
    graph: Graph
    checksum: str = ""


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan as JSON; equal plans give equal bytes.

    Raises:
        PlanFileError: the file cannot be written.
    """
    write_json(plan_to_dict(plan), path, "plan")


def load_plan(path: str | Path) -> Plan:
    """Read a plan and compute again what follows from it. TensorFlow is not needed.

    The `device_of` table may have been edited by hand: another device of the cluster
    for a part.

    Raises:
        PlanFileError: no such file, or not a plan; the message names the field.
    """
    return load_json(path, "plan", plan_from_dict)


def plan_to_dict(plan: Plan) -> dict[str, object]:
    """The plan as plain values."""
    file = _File(
        splitnet_plan=VERSION,
        objective=plan.objective,  # type: ignore[arg-type]  # a plan has no other
        strategy=plan.strategy,
        optimizer=plan.optimizer,
        training=plan.training,
        device_of=dict(plan.device_of),
        placements=tuple(
            _Placed(p.part, p.requested, p.reason) for p in plan.placements
        ),
        fallbacks=plan.fallbacks,
        reused=dict(plan.reused),
        execution=plan.execution,
        summary={
            "seconds": plan.seconds,
            "value": plan.value,
            "transfer_bytes": plan.transfer_bytes,
            "memory_bytes": {d: m.total for d, m in plan.memory.items()},
        },
        bound=plan.bound,
        options=dict(plan.options or {}),
        cluster=plan.cluster,
        costs=costs_to_dict(plan.costs, plan.graph, plan.cluster),
        graph=plan.graph,
    )
    values: dict[str, object] = encode(file)
    return values | {"checksum": _checksum(values)}


def _checksum(values: Mapping[str, object]) -> str:
    """A checksum of all fields but itself."""
    rest = {name: value for name, value in values.items() if name != "checksum"}
    text = json.dumps(rest, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def plan_from_dict(values: object) -> Plan:
    """The inverse of `plan_to_dict`, for values that nobody has checked.

    Raises:
        PlanFileError: naming the first field at fault, or what no plan can have.
    """
    fields = _checked_version(values)
    edited = fields.get("checksum") != _checksum(fields)
    options = _checked_options(fields.pop("options", {}))
    file = decode(fields, _File)
    try:
        plan = _scored(file)
    except PlanFileError:
        raise
    except SplitnetError as error:
        raise PlanFileError(f"it is not a plan that can be kept: {error}") from None
    bound = plan.bound if edited else min(plan.value, file.bound)
    return with_verdict(replace(plan, bound=bound, options=options))


def _scored(file: _File) -> Plan:
    """The decisions of a file, with all that follows from them."""
    plan = score(
        file.graph,
        file.cluster,
        file.device_of,
        objective=file.objective,
        costs=costs_from_dict(file.costs),
        optimizer=file.optimizer,
        training=file.training,
    )
    known = {one.part: (one.requested, one.reason) for one in file.placements}
    plan = replace(
        plan,
        placements=tuple(
            Placement(one.part, one.device, *known.get(one.part, ("", "given")))
            for one in plan.placements
        ),
        fallbacks=tuple(
            f for f in file.fallbacks if plan.device_of.get(f.part) == f.assigned
        ),
        reused=file.reused,
        strategy=file.strategy,
    )
    how = file.execution
    again = tuple(file.cluster[name].name for name in how.recompute)
    execution = execution_of(plan, how.microbatches, how.schedule, None)
    return executed(plan, replace(execution, recompute=again))


def _checked_options(values: object) -> dict[str, Any]:
    """The options of a file, if planning would take them."""
    options: dict[str, Any] = decode(values, dict, "options")
    asked = {name: value for name, value in options.items() if name != "ended_by_clock"}
    known = PlanOptions.__dataclass_fields__
    faults = [f"options: unknown field {name!r}" for name in asked if name not in known]
    pins = options.get("pins")
    if not (pins is None or isinstance(pins, dict) or pins == "as_built"):
        faults.append("options.pins must be a table of names and devices")
    if faults:
        raise PlanFileError(listed("it is not a plan that can be kept.", faults))
    PlanOptions(**asked)
    return options


def _checked_version(values: object) -> dict[str, Any]:
    """Refuse what is no plan, or of another version, before its fields are read."""
    if not isinstance(values, Mapping):
        raise PlanFileError(
            f"a plan is a table {{...}}. Received: {type(values).__name__}."
        )
    if "splitnet_plan" not in values:
        raise PlanFileError(
            "it has no field 'splitnet_plan', so it is not a plan. plan.save(path) "
            "writes one."
        )
    if values["splitnet_plan"] != VERSION:
        raise PlanFileError(
            f"it has version {values['splitnet_plan']!r}; this splitnet reads version "
            f"{VERSION}. Make the plan again, or install the splitnet that wrote it."
        )
    return dict(values)
