"""Is the busiest device of a plan close to the best known value, and is that proven?

    python benchmarks/planner_quality.py FOLDER [--best-known FILE] [--time-limit S]
        [--contiguity free|convex|pipeline] [--only TEXT] [--seeds N] [--effort STEPS]
        [--json FILE]

FOLDER holds the workloads of Tarnawski et al., "Efficient Algorithms for Device
Placement of DNN Graph Operators" (NeurIPS 2020), in `throughput-inputs/` and
`latency-inputs/`. Best known values come from a JSON file beside it. Values are
recomputed on the calls of the files.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from splitnet.planner.engine.load_graph import loads
from splitnet.planner.engine.solve import solve
from splitnet.planner.problem import Problem, load_problem

LINE = "{workload:44} {seed:>4} {value:12.6g} {above:>8} {bound:12.6g} {seconds:6.2f}"


def read_workload(path: Path) -> Problem:
    """The problem of a workload file: accelerators first, then CPU cores."""
    data = json.loads(path.read_text(encoding="utf-8"))
    nodes = data["nodes"]
    index = {node["id"]: i for i, node in enumerate(nodes)}
    cost: dict[int, float] = {}
    readers: dict[int, list[int]] = {}
    for edge in data["edges"]:
        source = index[edge["sourceId"]]
        cost.setdefault(source, float(edge["cost"]))
        readers.setdefault(source, []).append(index[edge["destId"]])
    numbers: dict[object, int] = {}
    keys = [("class", n["colorClass"]) if "colorClass" in n else n["id"] for n in nodes]
    accelerators, cores = data["maxFPGAs"], data["maxCPUs"]
    return load_problem(
        seconds=[
            (n["fpgaLatency"] if n["supportedOnFpga"] else inf, n["cpuLatency"])
            for n in nodes
        ],
        size_bytes=[n.get("size", 0.0) for n in nodes],
        sends=[(i, readers[i], (cost[i], 0.0)) for i in readers],
        kind=[0] * accelerators + [1] * cores,
        capacity_bytes=[data["maxSizePerFPGA"]] * accelerators + [inf] * cores,
        group=[numbers.setdefault(key, len(numbers)) for key in keys],
        backward=[bool(n.get("isBackwardNode")) for n in nodes],
    )


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row per workload and seed."""
    best_known = options.best_known or options.folder.parent / "best_known.json"
    known = json.loads(best_known.read_text())["workloads"]
    for path in sorted(options.folder.rglob("*.json")):
        key = path.relative_to(options.folder).as_posix()
        if options.only not in key or key not in known:
            continue
        problem = read_workload(path)
        best = known[key]["max_load"][options.contiguity]["value"]
        for seed in range(options.seeds):
            began = time.perf_counter()
            found = solve(
                problem,
                objective="throughput",
                contiguity=options.contiguity,
                time_limit=options.time_limit,
                effort=options.effort,
                seed=seed,
            )
            real = max(loads(problem.graph, found.assignment))
            assert abs(real - found.value) <= 1e-9 * real, "a value is not what it says"
            yield {
                "workload": key.removesuffix(".json"),
                "seed": seed,
                "value": found.value,
                "above_best_known": found.value / best - 1,
                "bound": found.bound,
                "seconds": time.perf_counter() - began,
                "ended_by_clock": found.ended_by_clock,
            }


def main() -> None:
    """Print a row per workload and seed, and the worst of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--best-known", type=Path)
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--effort", type=int)
    parser.add_argument("--contiguity", default="free")
    parser.add_argument("--only", default="", help="workloads whose path has this text")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )
    found = []
    for row in rows(options):
        found.append(row)
        print(LINE.format(**row, above=f"{row['above_best_known']:+.2%}"), flush=True)
    print(f"worst {max(row['above_best_known'] for row in found):+.3%}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
