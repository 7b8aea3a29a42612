"""`splitnet score`: judge a placement that a person made."""

import json
import math
import time
from argparse import Namespace
from typing import Any

from splitnet.cli.planning import (
    add_judging_options,
    plan_figures,
    planner_options,
    source_and_cluster,
)
from splitnet.cli.screen import show, show_json
from splitnet.cli.sources import TARGET_HELP, kind_of_file, load_json
from splitnet.core.errors import PlanFileError

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Add `splitnet score` to the parser."""
    parser = commands.add_parser(
        "score",
        help="judge a placement that a person made",
        description="Judge a split of a workload, or a placement of any other target.",
    )
    parser.add_argument(
        "target", metavar="TARGET", help=TARGET_HELP + "; or a JSON file"
    )
    parser.add_argument(
        "placement",
        metavar="PLACEMENT.json",
        help='{"part": "gpu:0", ...}, a saved plan, or the split of a workload',
    )
    add_judging_options(parser)
    parser.set_defaults(do=run_score)


def run_score(arguments: Namespace) -> int:
    """Evaluate a given placement; 1 if it breaks a rule."""
    if arguments.target.endswith(".json") and (
        kind_of_file(load_json(arguments.target)) == "workload"
    ):
        return _score_workload(arguments)
    from splitnet.api import score

    source, cluster = source_and_cluster(arguments)
    options = planner_options(arguments)
    began = time.perf_counter()
    scored = score(
        source,
        cluster,
        _placement_in(arguments.placement),
        batch=arguments.batch,
        **options,
    )
    if arguments.json:
        show_json(plan_figures(scored, time.perf_counter() - began))
        return 0
    from splitnet.view.tables import table

    show(table(scored))
    return 0


def _placement_in(path: str) -> dict[str, str]:
    values = load_json(path)
    if kind_of_file(values) == "plan":
        from splitnet.planner.plan_file import load_plan

        return dict(load_plan(path).device_of)
    if isinstance(values, dict) and isinstance(values.get("device_of"), dict):
        values = values["device_of"]
    if not isinstance(values, dict) or not all(
        isinstance(device, str) for device in values.values()
    ):
        raise PlanFileError(
            f"{path!r} is not a placement: expected {{'part': 'gpu:0', ...}} or a plan."
        )
    return values


def _score_workload(arguments: Namespace) -> int:
    from splitnet.planner.workloads import parse_workload, score_split

    workload = parse_workload(arguments.target)
    split = _split_in(arguments.placement)
    scored = score_split(workload, split)
    figures = {
        "throughput": _finite(scored.max_load),
        "convex": scored.convex,
        "pipeline": scored.pipeline,
        "violations": list(scored.violations),
    }
    if arguments.json:
        show_json(figures)
    else:
        for name, value in figures.items():
            show(f"{name:13} {json.dumps(value)}")
    return 1 if scored.violations else 0


def _split_in(path: str) -> dict[str, Any]:
    """The benchmark's split, or what `plan --json` printed, brought to its form."""
    values = load_json(path)
    if isinstance(values, dict) and isinstance(values.get("device_of"), dict):
        rows: dict[str, list[int]] = {}
        for name, device in values["device_of"].items():
            if not str(name).removeprefix("-").isdecimal():
                raise PlanFileError(f"{path!r}: device_of: {name!r} is no node's id.")
            rows.setdefault(str(device), []).append(int(name))
        known = [d for d in rows if d.startswith(("gpu:", "cpu:"))]
        if len(known) < len(rows):
            other = next(d for d in rows if d not in known)
            raise PlanFileError(
                f"{path!r}: device_of: {other!r} is neither 'gpu:N' nor 'cpu:N'."
            )
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


def _finite(value: float) -> float | None:
    """JSON has no infinity; a split that cannot run has no load."""
    return value if math.isfinite(value) else None
