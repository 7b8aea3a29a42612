"""Is the busiest device of a plan close to the best known value, and does it hold?

    python benchmarks/planner_quality.py FOLDER [--best-known FILE] [--evaluator FILE]
        [--time-limit S] [--effort STEPS] [--contiguity free|convex|pipeline]
        [--only TEXT] [--seeds N] [--perturbed] [--random COUNT] [--json FILE]

FOLDER holds the workloads of Tarnawski et al., "Efficient Algorithms for Device
Placement of DNN Graph Operators" (NeurIPS 2020), in `throughput-inputs/` and
`latency-inputs/`. Best known values and an evaluator that shares no code with the
planner are files beside it.

`--perturbed` also changes each file: memory for 5 % more than all on the accelerators,
times up to 30 % off, half of the classes, 8 accelerators. Those are compared with the
best of all seeds. `--random` instead solves so many small problems of its own. Each
answer must keep every constraint and be worth what the evaluator says; what is refused
must have no answer among all assignments.
"""

import argparse
import json
import os
import platform
import random
import runpy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from splitnet.core.plan import PlanOptions
from splitnet.planner.engine.solve import Solution, solve
from splitnet.planner.evaluate import Evaluator
from splitnet.planner.problem import Problem
from splitnet.planner.workloads import workload_of

LINE = "{workload:52} {seed:>4} {value:12.6g} {above:>8} {bound:12.6g} {seconds:6.2f}"

Workload = dict[str, Any]


def problem_from(data: Workload) -> tuple[Problem, np.ndarray]:
    """The problem of a workload, and the group of each node."""
    graph, cluster = workload_of(data)
    evaluator = Evaluator.of(graph, cluster, PlanOptions(objective="throughput"))
    groups = evaluator.resolve()
    number = {part: i for i, group in enumerate(groups) for part in group.parts}
    group = np.array([number[str(node["id"])] for node in data["nodes"]])
    return evaluator.problem_of(groups), group


def perturbed(data: Workload, seed: int = 0) -> Iterator[tuple[str, Workload]]:
    """A workload with little memory, noisy times, fewer classes, other devices."""
    draw, nodes = random.Random(seed), data["nodes"]
    total = sum(node.get("size", 0.0) for node in nodes)
    yield "memory", data | {"maxSizePerFPGA": 1.05 * total / data["maxFPGAs"]}
    factor = {node["id"]: draw.uniform(0.7, 1.3) for node in nodes}
    times = ("fpgaLatency", "cpuLatency")
    noisy = [n | {name: n[name] * factor[n["id"]] for name in times} for n in nodes]
    yield "noise", data | {"nodes": noisy}
    classes = sorted({n["colorClass"] for n in nodes if "colorClass" in n})
    gone = set(draw.sample(classes, len(classes) // 2))
    half = [
        {k: v for k, v in n.items() if k != "colorClass" or v not in gone}
        for n in nodes
    ]
    yield "classes", data | {"nodes": half}
    yield "8 devices", data | {"maxFPGAs": 8}


def random_workload(seed: int) -> Workload:
    """A small graph with classes and little memory; one in three has no CPU.

    Those are smaller still, so that all their assignments can be tried.
    """
    draw = random.Random(seed)
    cores = int(seed % 3 > 0)
    count, devices = draw.randrange(5, 60 if cores else 14), draw.randrange(1, 5)
    nodes = [
        {
            "id": i,
            "fpgaLatency": draw.lognormvariate(0, 1),
            "cpuLatency": draw.lognormvariate(2, 1),
            "size": draw.randrange(100, 900),
            "supportedOnFpga": not cores or draw.random() < 0.95,
            "isBackwardNode": i >= 0.7 * count,
            "colorClass": draw.randrange(count),
        }
        for i in range(count)
    ]
    cost = [draw.lognormvariate(-1, 1) for _ in nodes]
    edges = [
        {"sourceId": source, "destId": i, "cost": cost[source]}
        for i in range(1, count)
        for source in sorted({draw.randrange(max(0, i - 5), i) for _ in range(2)})
    ]
    shares = (0.3, 0.6, 2.0) if cores else (0.98, 1.02, 1.1)
    room = draw.choice(shares) * sum(node["size"] for node in nodes) / devices
    return {
        "nodes": nodes,
        "edges": edges,
        "maxFPGAs": devices,
        "maxCPUs": cores,
        "maxSizePerFPGA": room,
    }


def split_of(data: Workload, places: Sequence[int]) -> dict[str, Any]:
    """An assignment of nodes as the evaluator reads it."""
    accelerators = data["maxFPGAs"]
    held: list[list[int]] = [[] for _ in range(accelerators + data["maxCPUs"])]
    for node, place in zip(data["nodes"], places):
        held[place].append(node["id"])
    rows = [{"nodes": nodes} for nodes in held]
    return {"fpgas": rows[:accelerators], "cpus": rows[accelerators:]}


def holds(data: Workload, split: dict[str, Any], judge: Any, contiguity: str) -> bool:
    """Whether the evaluator finds that a split keeps every constraint."""
    problem = judge.Workload(data)
    kept = {"free": lambda *_: True, "convex": judge.is_convex}
    rule = kept.get(contiguity, judge.is_pipeline)
    return not judge.check(problem, split) and bool(rule(problem, split))


def some_fit(data: Workload, judge: Any, contiguity: str) -> bool:
    """Whether any assignment of a workload without CPUs keeps every constraint."""
    problem, group = problem_from(data)
    sizes = problem.graph.size_bytes
    order = np.argsort(-sizes, kind="stable").tolist()
    room, place = [data["maxSizePerFPGA"]] * data["maxFPGAs"], [0] * len(sizes)

    def assign(depth: int, used: int) -> bool:
        if depth == len(order):
            places = [place[g] for g in group]
            return holds(data, split_of(data, places), judge, contiguity)
        for device in range(min(used + 1, len(room))):
            if sizes[order[depth]] <= room[device]:
                place[order[depth]] = device
                room[device] -= sizes[order[depth]]
                found = assign(depth + 1, max(used, device + 1))
                room[device] += sizes[order[depth]]
                if found:
                    return True
        return False

    return assign(0, 0)


def check(data: Workload, found: Solution, judge: Any, contiguity: str) -> None:
    """The evaluator agrees with the value or, by trying all, with the refusal."""
    if not found.feasible:
        assert not data["maxCPUs"], "everything on a CPU fits"
        assert not some_fit(data, judge, contiguity), data
        return
    _, group = problem_from(data)
    split = split_of(data, found.assignment[group].tolist())
    assert holds(data, split, judge, contiguity), split
    real = judge.max_load(judge.Workload(data), split)
    assert abs(real - found.value) <= 1e-9 * real, (real, found.value)


def rows_of(
    name: str, data: Workload, best: float, judge: Any, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row per seed; above the best of all seeds if no value is known."""
    rows = []
    for seed in range(options.seeds):
        began = time.process_time()
        found = solve(
            replace(problem_from(data)[0], contiguity=options.contiguity),
            objective="throughput",
            time_limit=options.time_limit,
            effort=options.effort,
            seed=seed,
            prove=not options.random,
        )
        check(data, found, judge, options.contiguity)
        rows.append(
            {
                "workload": name,
                "seed": seed,
                "value": found.value,
                "bound": found.bound,
                "seconds": time.process_time() - began,
                "ended_by_clock": found.ended_by_clock,
            }
        )
    best = min([best, *(row["value"] for row in rows)]) if best == inf else best
    for row in rows:
        row["above_best"] = row["value"] / best - 1 if best < inf else 0.0
    return rows


def workloads(options: argparse.Namespace) -> Iterator[tuple[str, Workload, float]]:
    """Names, workloads and best known values, infinite if none is."""
    if options.random:
        for seed in range(options.random):
            yield f"random {seed}", random_workload(seed), inf
        return
    best_known = options.best_known or options.folder.parent / "best_known.json"
    known = json.loads(best_known.read_text())["workloads"]
    for path in sorted(options.folder.rglob("*.json")):
        key = path.relative_to(options.folder).as_posix()
        if options.only not in key or key not in known:
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        name = key.removesuffix(".json")
        yield name, data, known[key]["max_load"][options.contiguity]["value"]
        for change, other in perturbed(data) if options.perturbed else ():
            yield f"{name} {change}", other, inf


def main() -> None:
    """Print a row per workload and seed, and the worst of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--best-known", type=Path)
    parser.add_argument("--evaluator", type=Path)
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--effort", type=int)
    parser.add_argument("--contiguity", default="free")
    parser.add_argument("--only", default="", help="workloads whose path has this text")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--perturbed", action="store_true")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )
    path = options.evaluator or options.folder.parent / "evaluate.py"
    judge = SimpleNamespace(**runpy.run_path(str(path)))
    found = []
    for name, data, best in workloads(options):
        rows = rows_of(name, data, best, judge, options)
        found += rows
        for row in rows if not options.random else ():
            above = f"{row['above_best']:+.2%}"
            print(LINE.format(**row, above=above), flush=True)
    fits = sum(row["value"] < inf for row in found)
    print(f"{fits} of {len(found)} fit, as the evaluator says")
    print(f"worst {max(row['above_best'] for row in found if row['value'] < inf):+.3%}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
