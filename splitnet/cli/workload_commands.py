"""Workload files of the maximum-load benchmark: `plan --json` and `score`."""

import json
import math
import time
from typing import TYPE_CHECKING, Any

from splitnet.cli.console import progress, show_json
from splitnet.core.errors import PlanFileError

if TYPE_CHECKING:
    from splitnet.planner.workloads import Workload

__all__ = ["is_for_figures", "score_workload", "workload_figures"]


def is_for_figures(options: dict[str, Any]) -> bool:
    """Whether `workload_figures` takes all of these options."""
    known = {"objective", "contiguity", "time_limit", "seed"}
    return options.keys() <= known and options["objective"] == "throughput"


def workload_figures(
    workload: "Workload", options: dict[str, Any], began: float
) -> dict[str, Any]:
    """Plan a workload for maximum load; reading the file counts against the limit.

    A `Plan` of 100,000 nodes takes longer to make than to search; a program that asks
    for figures alone needs none.
    """
    from splitnet.core.plan import PlanOptions
    from splitnet.planner.workloads import plan_workload

    given = PlanOptions(**options)
    with progress("planning", total=1.0) as advance:
        found = plan_workload(
            workload,
            contiguity=given.contiguity or "free",
            time_limit=max(0.0, given.time_limit - (time.perf_counter() - began)),
            seed=given.seed,
            on_progress=lambda share, value: advance(share, f"best {value:.4g}"),
        )
    return {
        "objective": "throughput",
        "value": found.value,
        "bound": found.bound,
        "gap": max(0.0, 1.0 - found.bound / found.value) if found.value > 0 else 0.0,
        "seconds": round(time.perf_counter() - began, 3),
        "device_of": {str(key): name for key, name in found.device_of.items()},
    }


def score_workload(workload: "Workload", placement: Any, json_: bool) -> int:
    """Check a split of a workload; exit code 1 if it breaks a rule."""
    from splitnet.planner.workloads import score_split

    scored = score_split(workload, _split_of(placement))
    load = scored.max_load if math.isfinite(scored.max_load) else None
    figures = {
        "throughput": load,  # JSON has no infinity
        "convex": scored.convex,
        "pipeline": scored.pipeline,
        "violations": list(scored.violations),
    }
    if json_:
        show_json(figures)
    else:
        for name, value in figures.items():
            print(f"{name:11} {json.dumps(value)}")
    return 1 if scored.violations else 0


def _split_of(values: Any) -> dict[str, Any]:
    """A split as the benchmark writes it, also from a table of nodes and devices."""
    if isinstance(values, dict) and {"fpgas", "cpus"} & set(values):
        return values
    rows: dict[str, list[int]] = {}
    for name, device in values.items() if isinstance(values, dict) else ():
        known = isinstance(device, str) and device.startswith(("gpu:", "cpu:"))
        if not known or not name.removeprefix("-").isdecimal():
            break
        rows.setdefault(device, []).append(int(name))
    else:
        if rows:
            return {
                field: [{"nodes": rows[d]} for d in sorted(rows) if d.startswith(kind)]
                for field, kind in (("fpgas", "gpu:"), ("cpus", "cpu:"))
            }
    raise PlanFileError(
        "it is not a split: expected {'fpgas': [{'nodes': [...]}], 'cpus': [...]} or "
        "a table of nodes and devices, {'1': 'gpu:0', ...}."
    )
