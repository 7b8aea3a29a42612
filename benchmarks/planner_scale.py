"""How does planning grow with the graph, and what would more time buy?

    python benchmarks/planner_scale.py [--objective latency] [--sizes 200 2000]
        [--longer 5] [--seeds 1] [--json FILE]

Random lanes of dense calls with a few cross links are placed call by call, trained with
Adam; times come from the roofline, so no accelerator is needed. A row compares the
limit with a run of several times that limit.
"""

import argparse
import json
import platform
import random
import resource
import time
from pathlib import Path

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.planner.constraints import Group
from splitnet.planner.engine.solve import solve, warm_up
from splitnet.planner.problem import Problem, problem_of
from splitnet.simulator.step_graph import step_graph

MACHINES = {30: (4, 5.0), 200: (4, 5.0), 2_000: (8, 5.0), 10_000: (16, 20.0)}


def lanes(count: int, width: int, seed: int = 0) -> Graph:
    """A graph of `count` calls in `width` lanes; one call in twenty reads two lanes."""
    draw = random.Random(seed)
    calls = [Call("x", "x", "InputLayer", output_bytes=2**20)]
    tensors: list[Tensor] = []
    last = [calls[0]] * width
    while len(calls) < count:
        before = list(last)
        for lane in range(min(width, count - len(calls))):
            size, flops = draw.choice((2**16, 2**20)), draw.choice((1e9, 3e9, 1e10))
            name = f"c{len(calls)}"
            call = Call(
                *(name, name, "Dense"),
                output_bytes=size,
                activation_bytes=size,
                forward_flops=flops,
                backward_flops=2 * flops,
                weights=(f"{name}/kernel",),
            )
            sources = [before[lane]]
            if draw.random() < 0.05:
                sources.append(before[draw.randrange(width)])
            for source in {one.name: one for one in sources}.values():
                tensors.append(Tensor(source.name, name, bytes=source.output_bytes))
            calls.append(call)
            last[lane] = call
    weights = tuple(Weights(call.weights[0], 2**20) for call in calls[1:])
    parts = tuple(Part(call.name) for call in calls)
    return Graph("lanes", 32, tuple(calls), tuple(tensors), weights, parts)


def lanes_problem(count: int, gpus: int, seed: int) -> Problem:
    """Lanes on GPUs and a CPU, a group per call."""
    cluster = Cluster.of(f"{gpus}*gpu", "cpu", memory="16 GiB", link="12 GB/s")
    step = step_graph(lanes(count, gpus + gpus // 2, seed), cluster, units="calls")
    anywhere = Group((), cluster.names)
    return problem_of(step, cluster, [anywhere] * count, range(count))


def main() -> None:
    """Print a row per size and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objective", default="latency")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(MACHINES))
    parser.add_argument("--longer", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{platform.system()} {platform.machine()}, {platform.python_version()}")
    warm_up()
    rows = []
    for count in options.sizes:
        gpus, limit = MACHINES[count]
        problem = lanes_problem(count, gpus, seed=count)
        for seed in range(options.seeds):
            row: dict[str, float] = {"calls": count, "gpus": gpus, "seed": seed}
            for name, seconds in (("value", limit), ("longer", options.longer * limit)):
                began = time.perf_counter()
                found = solve(
                    problem,
                    objective=options.objective,
                    time_limit=seconds,
                    seed=seed,
                )
                row[name] = found.value
                row[f"{name}_seconds"] = time.perf_counter() - began
                row["bound"] = found.bound
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            row["above_longer"] = row["value"] / row["longer"] - 1
            row["peak_mib"] = peak
            rows.append(row)
            print("  ".join(f"{k} {v:.6g}" for k, v in row.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
