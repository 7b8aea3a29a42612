"""Plans as JSON files: readable, versioned, and safe to load from any source.

A plan file holds the graph, the cluster, the costs and the decisions. What follows from
them is computed again on loading, so a file that was edited cannot claim what is not
so. Only the bound is taken from it, if its plan has the value that the file says.
"""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from splitnet.core.cluster import Cluster
from splitnet.core.costs import Costs
from splitnet.core.errors import PlanFileError
from splitnet.core.graph import Graph
from splitnet.core.plan import Fallback, Plan, StrategyComparison
from splitnet.core.serialization import decode, encode, load_file, write_json
from splitnet.core.timeline import Execution
from splitnet.planner.analysis import with_verdict
from splitnet.planner.evaluate import executed, score
from splitnet.simulator.microbatch import execution_of

VERSION = 1


@dataclass(frozen=True, slots=True)
class _Placed:
    """A placement; of another device in `device_of`, a person wrote that one."""

    part: str
    requested: str
    reason: str
    device: str = ""


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
    value: float = 0.0
    bound: float = 0.0
    contiguity: Literal["free", "convex", "pipeline"] | None = None
    regroup: bool = False
    ended_by_clock: bool = False
    compared: StrategyComparison | None = None
    cluster: Cluster
    costs: Costs = Costs()
    graph: Graph


def save_plan(plan: Plan, path: str | Path) -> None:
    """As `Plan.save`; equal plans give equal bytes."""
    write_json(plan_to_dict(plan), path, "plan")


def load_plan(path: str | Path) -> Plan:
    """Read a plan and compute again what follows from it. TensorFlow is not needed.

    `device_of` may have been edited by hand: another device of the cluster for a part.

    Raises:
        PlanFileError: no such file, or not a plan; the message names the field.
    """
    return load_file(path, "plan", plan_from_dict)


def plan_to_dict(plan: Plan) -> dict[str, object]:
    """The plan as plain values."""
    if not isinstance(plan.costs, Costs):
        fault = f"a file cannot hold costs of class {type(plan.costs).__name__!r}"
        raise PlanFileError(f"{fault}; plan with costs=None, or measured ones.")
    known: dict[str, Any] = {
        "splitnet_plan": VERSION,
        "placements": tuple(
            _Placed(p.part, p.requested, p.reason, p.device) for p in plan.placements
        ),
        "compared": plan.verdict and plan.verdict.known,
    }
    same = {one.name for one in fields(_File)} - known.keys()
    file = _File(**known, **{name: getattr(plan, name) for name in same})
    values: dict[str, object] = encode(file)
    return values


def plan_from_dict(values: object) -> Plan:
    """The inverse of `plan_to_dict`, for values that nobody has checked."""
    version = values.get("splitnet_plan") if isinstance(values, dict) else None
    if version != VERSION or isinstance(version, bool):
        found = f"version {version!r}" if version else "no field 'splitnet_plan'"
        fault = f"it is not a plan of version {VERSION}, as plan.save(path) writes it"
        hint = "Make the plan again, or install the splitnet that wrote it."
        raise PlanFileError(f"{fault}: it has {found}. {hint}")
    file = decode(values, _File)
    if file.graph.training not in (None, file.training):
        why = f"training={file.training} contradicts training= of its graph"
        raise PlanFileError(f"{why}. Set both alike, or plan the model again.")
    inputs = (c for c in file.graph.calls if file.graph.part[c.part].kind == "input")
    sizes = {shape[0] for call in inputs for shape in call.output_shapes if shape}
    if sizes and not sizes & {file.graph.batch, None}:
        why = f"graph.batch={file.graph.batch} contradicts the shapes of its inputs"
        raise PlanFileError(f"{why}. Plan the model for another batch again.")
    names = "objective", "costs", "optimizer", "training"
    options = {name: getattr(file, name) for name in names}
    plan = score(file.graph, file.cluster, file.device_of, **options)
    on = plan.device_of
    known = {one.part: one for one in file.placements}
    known = {n: one for n, one in known.items() if one.device in ("", on.get(n))}
    both = ((one, known.get(one.part, one)) for one in plan.placements)
    rows = [replace(a, requested=b.requested, reason=b.reason) for a, b in both]
    kept = (f for f in file.fallbacks if on.get(f.part) == f.assigned)
    decided: dict[str, Any] = {n: getattr(file, n) for n in ("contiguity", "regroup")}
    decided |= {"reused": file.reused, "placements": tuple(rows)}
    plan = replace(plan, fallbacks=tuple(kept), **decided)
    how = file.execution
    again = tuple(file.cluster[name].name for name in how.recompute)
    execution = execution_of(plan, how.microbatches, how.schedule, None)
    plan = executed(plan, replace(execution, recompute=again))
    if plan.value != file.value:
        return with_verdict(plan)
    decided = {"bound": min(plan.value, file.bound)}
    if all(one.reason != "given" for one in rows):  # as the search left it
        decided |= {"strategy": file.strategy, "ended_by_clock": file.ended_by_clock}
    return with_verdict(replace(plan, **decided), file.compared)
