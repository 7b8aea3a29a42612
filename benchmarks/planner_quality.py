"""Compare plans with the best known values and a proven bound.

    python benchmarks/planner_quality.py FOLDER [--best-known FILE] [--time-limit S]
        [--objective free|pipeline|convex|all] [--only TEXT] [--seed N] [--json FILE]
    python benchmarks/planner_quality.py --scale [--json FILE]

FOLDER holds the workloads of "Efficient Algorithms for Device Placement of DNN Graph
Operators" (NeurIPS 2020) in `throughput-inputs/`. The best known values come from a
JSON file beside it. Values are recomputed on the original nodes. `--scale` makes
layered random graphs instead and shows time and quality against size.
"""

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if not __package__:
    # Run as a file: the checkout around it, not a package, has what it needs.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.layered import layered
from splitnet.planner.engine import solve
from splitnet.planner.workloads import parse_workload, plan_workload, score_split

SETS = ("free", "convex", "pipeline")
SCALES = ((2_000, 8, 5.0), (10_000, 16, 20.0), (100_000, 16, 60.0))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ratio` is value / best known."""

    workload: str
    contiguity: str
    value: float
    best_known: float | None
    ratio: float | None
    bound: float
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--best-known", type=Path)
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--objective", choices=(*SETS, "all"), default="all")
    parser.add_argument("--only", default="", help="workloads whose path has this text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not options.scale and options.folder is None:
        parser.error("give a FOLDER, or --scale")
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}\n"
        f"command: planner_quality {' '.join(arguments or sys.argv[1:])}"
    )
    rows = []
    for row in _scale_rows(options) if options.scale else _rows(options):
        rows.append(row)
        ratio = "-" if row.ratio is None else f"{row.ratio:.4f}"
        print(
            f"{row.workload:<46} {row.contiguity:<10} {row.value:<13.6f} {ratio:<8} "
            f"{row.bound:<13.6f} {row.seconds:.2f}",
            flush=True,
        )
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        print(f"worst ratio {max(ratios):.5f} of {len(ratios)}")
    if options.scale:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory {peak:.0f} MB")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    path = options.best_known or options.folder.parent / "best_known.json"
    known = json.loads(path.read_text())["workloads"] if path.exists() else {}
    for file in sorted(options.folder.rglob("throughput-inputs/**/*.json")):
        key = file.relative_to(options.folder).as_posix()
        if options.only not in key:
            continue
        workload = parse_workload(file)
        for name in SETS if options.objective == "all" else (options.objective,):
            entry = known.get(key, {}).get("max_load", {}).get(name)
            best = None if entry is None else float(entry["value"])
            began = time.perf_counter()
            found = plan_workload(
                workload,
                contiguity=name,
                time_limit=options.time_limit,
                seed=options.seed,
            )
            seconds = time.perf_counter() - began
            inside: dict[str, list[int]] = {}
            for node, device in found.device_of.items():
                inside.setdefault(device, []).append(node)
            scored = score_split(
                workload,
                {
                    field: [
                        {"nodes": ids}
                        for device, ids in inside.items()
                        if device.startswith(f"{kind}:")
                    ]
                    for field, kind in (("fpgas", "gpu"), ("cpus", "cpu"))
                },
            )
            kept = name == "free" or getattr(scored, name)
            off = abs(scored.max_load - found.value)
            if scored.violations or off > 1e-6 or not kept:
                raise SystemExit(f"{key}: {found.value} reported, {scored} found")
            ratio = found.value / best if best else None
            row = (found.value, best, ratio, found.bound, seconds)
            yield Row(key.removesuffix(".json"), name, *row)


def _scale_rows(options: argparse.Namespace) -> Iterator[Row]:
    for count, devices, limit in SCALES:
        if options.only and options.only != str(count):
            continue
        problem = layered(count, devices, seed=options.seed)
        for name in ("free", "pipeline"):
            if options.objective not in ("all", name):
                continue
            began = time.perf_counter()
            found = solve(
                problem,
                objective="throughput",
                contiguity=name,
                time_limit=limit,
                seed=options.seed,
            )
            seconds = time.perf_counter() - began
            label = f"layered {count} on {devices}"
            yield Row(label, name, found.value, None, None, found.bound, seconds)


if __name__ == "__main__":
    sys.exit(main())
