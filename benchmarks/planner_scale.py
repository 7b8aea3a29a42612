"""Measure how planning grows with the graph, and what more time would buy.

Question: is a plan made in the limit within 5 % of what a run of six times that limit
finds? The graphs are random lanes of dense calls with a few cross links, a part per
call, trained with Adam; times come from the roofline, so no accelerator is needed.

    python benchmarks/planner_scale.py [--largest 10000]
"""

import argparse
import platform
import random
import resource
import time

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.planner import plan_graph

SIZES = ((200, 4, 5.0), (2_000, 8, 5.0), (10_000, 16, 20.0), (100_000, 16, 60.0))


def lanes(count, width, seed=0):
    """A graph of `count` calls in `width` lanes; one call in twenty reads two lanes."""
    draw = random.Random(seed)
    calls = [Call("x", "x", "InputLayer", output_bytes=2**20)]
    tensors, last = [], ["x"] * width
    while len(calls) < count:
        before = list(last)
        for lane in range(min(width, count - len(calls))):
            name = f"c{len(calls)}"
            size = draw.choice((2**16, 2**20))
            flops = draw.choice((1e9, 3e9, 1e10))
            calls.append(
                Call(
                    *(name, name, "Dense"),
                    output_bytes=size,
                    activation_bytes=size,
                    forward_flops=flops,
                    backward_flops=2 * flops,
                    weights=(f"{name}/kernel",),
                )
            )
            sources = [before[lane]]
            if draw.random() < 0.05:
                sources.append(before[draw.randrange(width)])
            for source in dict.fromkeys(sources):
                size = next((c.output_bytes for c in calls[-2:] if c.name == source), 0)
                tensors.append(Tensor(source, name, bytes=size or 2**19))
            last[lane] = name
    parts = [Part("x", "input", ("cpu",)), *(Part(c.name) for c in calls[1:])]
    weights = [Weights(c.weights[0], 2**20) for c in calls[1:]]
    ends = tuple(dict.fromkeys(last))
    return Graph(
        "lanes", 32, tuple(calls), tuple(tensors), tuple(weights), tuple(parts), ends
    )


def main():
    """Print a row per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=10_000, metavar="CALLS")
    largest = parser.parse_args().largest
    print(f"{platform.processor() or platform.machine()}, Python ", end="")
    print(platform.python_version())
    print(
        "| calls | devices | limit | took | step | bound | long run | above it | peak |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for count, gpus, limit in SIZES:
        if count > largest:
            continue
        graph = lanes(count, gpus + gpus // 2)
        cluster = Cluster.of(f"{gpus}*gpu", "cpu", memory="80 GiB", cpu_memory="1 TiB")
        began = time.perf_counter()
        plan = plan_graph(graph, cluster, time_limit=limit)
        took = time.perf_counter() - began
        long = plan_graph(graph, cluster, time_limit=6 * limit, seed=1)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"| {count} | {gpus + 1} | {limit:.0f} s | {took:.1f} s | "
            f"{plan.seconds * 1e3:.1f} ms | {plan.bound * 1e3:.1f} ms | "
            f"{long.seconds * 1e3:.1f} ms | {plan.seconds / long.seconds - 1:+.1%} | "
            f"{peak:.2f} GiB |"
        )


if __name__ == "__main__":
    main()
