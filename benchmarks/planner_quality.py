"""Compare plans with the best known values and a proven bound.

    python benchmarks/planner_quality.py FOLDER [--best-known FILE] [--time-limit S]
        [--objective free|pipeline|convex|all] [--only TEXT] [--baselines]
        [--json FILE]
    python benchmarks/planner_quality.py --scale [--json FILE]

FOLDER holds the workloads of "Efficient Algorithms for Device Placement of DNN Graph
Operators" (NeurIPS 2020) in `throughput-inputs/` and `latency-inputs/`. The best known
values come from a JSON file beside it. Values are recomputed on the original nodes.
`--scale` makes layered random graphs instead and shows time and quality against size.
"""

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

if not __package__:
    # Run as a file: the checkout around it, not a package, has what it needs.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.layered import layered
from splitnet.planner.search import Problem, search
from splitnet.planner.search.baselines import (
    earliest_finish,
    first_fit,
    longest_first,
    single_devices,
    topological_fill,
)
from splitnet.planner.search.orders import depth_first
from splitnet.planner.search.problem import max_load
from splitnet.planner.search_adapter import workload_problem
from splitnet.planner.workloads import Workload, parse_workload, score_split

SETS = ("free", "convex", "pipeline")
BASELINE = "baseline: "
SCALES = ((2_000, 8, 5.0), (10_000, 16, 20.0), (100_000, 16, 60.0))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ratio` is value / best known."""

    workload: str
    objective: str
    contiguity: str
    value: float
    best_known: float | None
    ratio: float | None
    bound: float | None
    gap: float | None
    seconds: float
    strategy: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table asked for; return 1 if a value does not survive recomputation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--best-known", type=Path)
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--objective", choices=(*SETS, "all"), default="all")
    parser.add_argument("--only", default="", help="workloads whose path has this text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--baselines", action="store_true")
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not options.scale and options.folder is None:
        parser.error("give a FOLDER, or --scale")
    print(
        f"{_machine()}\ncommand: planner_quality {' '.join(arguments or sys.argv[1:])}"
    )
    rows = []
    print(_line("workload", "set", "value", "best known", "ratio", "bound", "gap", "s"))
    for row in _scale_rows(options) if options.scale else _rows(options):
        rows.append(row)
        print(_format(row), flush=True)
    searched = [row for row in rows if not row.strategy.startswith(BASELINE)]
    ratios = [row.ratio for row in searched if row.ratio is not None]
    if ratios:
        print(f"worst ratio {max(ratios):.5f} of {len(ratios)}")
    if options.scale:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory {peak:.0f} MB")
    if options.json:
        plain = [
            {k: None if v == inf else v for k, v in row.items()}
            for row in map(asdict, rows)
        ]
        options.json.write_text(json.dumps(plain, indent=1, allow_nan=False))
    return 0


def _machine() -> str:
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    known = _best_known(options)
    for path in sorted(options.folder.rglob("*.json")):
        key = path.relative_to(options.folder).as_posix()
        if options.only not in key or not key.split("/")[0].endswith("-inputs"):
            continue
        workload = parse_workload(path)
        for name in SETS if options.objective == "all" else (options.objective,):
            best = _known_value(known.get(key, {}), name)
            yield _searched(workload, key, name, best, options)
            if options.baselines and name == "free":
                yield from _baselines(workload, key, name, best)


def _best_known(options: argparse.Namespace) -> dict[str, Any]:
    path = options.best_known or options.folder.parent / "best_known.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())["workloads"]
    return found


def _known_value(entry: dict[str, Any], name: str) -> float | None:
    row = entry.get("max_load", {}).get(name)
    return None if row is None else float(row["value"])


def _searched(
    workload: Workload,
    key: str,
    name: str,
    best: float | None,
    options: argparse.Namespace,
) -> Row:
    problem = workload_problem(workload)
    began = time.perf_counter()
    result = search(
        problem,
        "throughput",
        name,
        time_limit=options.time_limit,
        seed=options.seed,
    )
    seconds = time.perf_counter() - began
    _verify(workload, problem, result.assignment, name, result.value)
    ratio = result.value / best if best else None
    return Row(
        key.removesuffix(".json"),
        "throughput",
        name,
        result.value,
        best,
        ratio,
        result.bound,
        result.gap,
        seconds,
        result.strategy,
    )


def _verify(
    workload: Workload,
    problem: Problem,
    assignment: Sequence[int],
    name: str,
    value: float,
) -> None:
    """Recompute a plan on the original nodes."""
    inside: list[list[int]] = [[] for _ in problem.devices]
    for node, group in zip(workload.nodes, problem.nodes.group, strict=True):
        inside[assignment[group]].append(node.id)
    rows = [{"nodes": ids} for ids in inside]
    split = {
        "fpgas": rows[: workload.accelerators],
        "cpus": rows[workload.accelerators :],
    }
    score = score_split(workload, split)
    real = score.max_load
    kept = {"convex": score.convex, "pipeline": score.pipeline}.get(name, True)
    if score.violations or not kept or abs(real - value) > 1e-6 * max(1.0, real):
        raise SystemExit(f"{workload.name}: {value} reported, {score} found")


Rule = Callable[[Problem], list[int] | None]


def _best_single(problem: Problem) -> list[int] | None:
    plans = single_devices(problem)
    return min(plans, key=lambda plan: max_load(problem, plan), default=None)


RULES: tuple[tuple[str, Rule], ...] = (
    ("single device", _best_single),
    ("topological fill", lambda p: topological_fill(p, depth_first(p))),
    ("earliest finish", earliest_finish),
    ("longest first", longest_first),
    ("first fit", first_fit),
)


def _baselines(
    workload: Workload, key: str, name: str, best: float | None
) -> Iterator[Row]:
    problem = workload_problem(workload)
    for label, rule in RULES:
        began = time.perf_counter()
        plan = rule(problem)
        seconds = time.perf_counter() - began
        if plan is None:
            continue
        value = max_load(problem, plan)
        ratio = value / best if best else None
        yield Row(
            f"  {key.removesuffix('.json')}",
            "throughput",
            "free",
            value,
            best,
            ratio,
            None,
            None,
            seconds,
            f"{BASELINE}{label}",
        )


def _scale_rows(options: argparse.Namespace) -> Iterator[Row]:
    for count, devices, seconds in SCALES:
        if options.only and options.only != str(count):
            continue
        problem = layered(count, devices, seed=options.seed)
        for contiguity in ("free", "pipeline"):
            if options.objective not in ("all", contiguity):
                continue
            limits = {"time_limit": seconds, "seed": options.seed}
            began = time.perf_counter()
            result = search(problem, contiguity=contiguity, **limits)
            yield Row(
                f"layered {count} on {devices}",
                "throughput",
                contiguity,
                max_load(problem, result.assignment),
                None,
                None,
                result.bound,
                result.gap,
                time.perf_counter() - began,
                result.strategy,
            )


def _line(*cells: str) -> str:
    widths = (46, 12, 13, 13, 8, 13, 8, 7)
    return " ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True))


def _format(row: Row) -> str:
    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    return (
        _line(
            row.workload,
            row.contiguity,
            number(row.value, ".6f"),
            number(row.best_known, ".6f"),
            number(row.ratio, ".4f"),
            number(row.bound, ".6f"),
            number(row.gap, ".2%"),
            number(row.seconds, ".2f"),
        )
        + row.strategy
    )


if __name__ == "__main__":
    sys.exit(main())
