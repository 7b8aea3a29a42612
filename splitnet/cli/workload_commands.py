"""Workload files of the maximum-load benchmark: `plan --json` and `score`."""

import json
import math
import time
from typing import Any

from splitnet.cli.console import interruptible, progress, show_json
from splitnet.cli.targets import kind_of_file
from splitnet.core.errors import PlanFileError

__all__ = ["score_workload", "workload_figures"]

_SECONDS = 5.0


def workload_figures(
    values: object, options: dict[str, Any], began: float
) -> dict[str, Any]:
    """Plan a workload for maximum load; reading the file counts against the limit.

    A `Plan` of 100,000 nodes takes longer to make than to search; a program that asks
    for figures alone needs none.
    """
    from splitnet.planner.workloads import plan_workload, workload_of

    with interruptible(), progress("planning", total=1.0) as advance:
        limit = options.get("time_limit", _SECONDS)
        workload = workload_of(values)
        found = plan_workload(
            workload,
            contiguity=options.get("contiguity", "free"),
            time_limit=max(0.0, limit - (time.perf_counter() - began)),
            seed=options.get("seed", 0),
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


def score_workload(target: str, placement: str, json_: bool) -> int:
    """Check a split of a workload; exit code 1 if it breaks a rule."""
    from splitnet.planner.workloads import parse_workload, score_split

    scored = score_split(parse_workload(target), _split_in(placement))
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


def _split_in(path: str) -> dict[str, Any]:
    """A workload's split, also from what `plan --json` printed."""
    _, values = kind_of_file(path)
    if isinstance(values, dict) and isinstance(values.get("device_of"), dict):
        rows: dict[str, list[int]] = {}
        for name, device in values["device_of"].items():
            if not str(name).removeprefix("-").isdecimal():
                raise PlanFileError(
                    f"{path!r}: device_of: {name!r} is not a node's id."
                )
            if not str(device).startswith(("gpu:", "cpu:")):
                raise PlanFileError(
                    f"{path!r}: device_of: {device!r} is neither 'gpu:N' nor 'cpu:N'."
                )
            rows.setdefault(str(device), []).append(int(name))
        return {
            field: [{"nodes": rows[d]} for d in sorted(rows) if d.startswith(kind)]
            for field, kind in (("fpgas", "gpu:"), ("cpus", "cpu:"))
        }
    if not isinstance(values, dict) or not {"fpgas", "cpus"} & set(values):
        raise PlanFileError(
            f"{path!r} is not a split: expected {{'fpgas': [{{'nodes': [...]}}], "
            "'cpus': [...]} or {'device_of': {'1': 'gpu:0', ...}}."
        )
    return values
