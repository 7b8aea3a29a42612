"""Measure how planning grows with the graph, and what more time would buy.

Question: is a plan made in the limit within 5 % of what a long run, of several times
that limit, finds, and is the limit kept? The graphs are random lanes of dense calls
with a few cross links, a part per call, trained with Adam; times come from the
roofline, so no accelerator is needed.

    python benchmarks/planner_scale.py [--objective latency] [--sizes 200 2000]
        [--longer 6] [--json ROWS]
    python benchmarks/planner_scale.py --chart docs/images/planner_scale.svg --json ROWS
"""

import argparse
import json
import platform
import random
import resource
import time
from math import log10
from pathlib import Path

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.planner.planner import plan_graph

MACHINES = {200: (4, 5.0), 2_000: (8, 5.0), 10_000: (16, 20.0), 100_000: (16, 60.0)}
COLORS = {"latency": "#1f6f8b", "throughput": "#c8553d", "call_latency": "#6a994e"}


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


def measured(count, objective, longer):
    """A row: what a plan in the limit took and is worth, against a long run."""
    gpus, limit = MACHINES[count]
    graph = lanes(count, gpus + gpus // 2)
    cluster = Cluster.of(f"{gpus}*gpu", "cpu", memory="80 GiB", cpu_memory="1 TiB")
    began = time.perf_counter()
    plan = plan_graph(graph, cluster, objective=objective, time_limit=limit)
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    long = plan_graph(
        graph, cluster, objective=objective, time_limit=longer * limit, seed=1
    )
    return {
        "objective": objective,
        "calls": count,
        "devices": gpus + 1,
        "limit": limit,
        "took": took,
        "value": plan.value,
        "bound": plan.bound,
        "long": long.value,
        "longer": longer,
        "peak_gib": peak,
    }


def line(row):
    """A row of the table."""
    return (
        f"| {row['objective']} | {row['calls']} | {row['devices']} | "
        f"{row['limit']:.0f} s | {row['took']:.1f} s | {row['value'] * 1e3:.1f} ms | "
        f"{row['bound'] * 1e3:.1f} ms | {row['long'] * 1e3:.1f} ms | "
        f"{row['value'] / row['long'] - 1:+.1%} | {row['peak_gib']:.2f} GiB |"
    )


def chart(rows):
    """Draw seconds, and what a long run is better by, against the number of calls."""
    panels = (
        ("seconds to a plan (dashed: the limit)", lambda r: r["took"], (0, 20, 40, 60)),
        (
            "% above a long run (dashed: 5 %)",
            lambda r: 100 * (r["value"] / r["long"] - 1),
            (-5, 0, 5, 15, 30),
        ),
    )
    parts = []
    for number, (title, value, ticks) in enumerate(panels):
        left, low, high = 60 + 380 * number, ticks[0], ticks[-1] * 1.08

        def x(row, left=left):
            return left + 300 * (log10(row["calls"]) - 2) / 3.2

        def y(v, low=low, high=high):
            return 250 - 190 * (min(max(v, low), high) - low) / (high - low)

        parts.append(f'<text x="{left}" y="30" font-weight="bold">{title}</text>')
        for tick in ticks:
            parts.append(
                f'<path d="M{left} {y(tick):.1f}h300" stroke="#ddd"/>'
                f'<text x="{left - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">'
                f"{tick}</text>"
            )
        for count in MACHINES:
            parts.append(
                f'<text x="{x({"calls": count}):.1f}" y="270" text-anchor="middle">'
                f"{count:,}</text>"
            )
        parts.append(
            f'<text x="{left + 150}" y="290" text-anchor="middle">calls</text>'
        )
        limits = [(x(r), y(5 if number else r["limit"])) for r in rows]
        parts.append(path(sorted(dict.fromkeys(limits)), "#999", "4 4"))
        for place, (objective, color) in enumerate(COLORS.items()):
            own = [r for r in rows if r["objective"] == objective]
            own.sort(key=lambda r: r["calls"])
            if not own:
                continue
            points = [(x(r), y(value(r))) for r in own]
            parts.append(path(points, color))
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"/>'
                for a, b in points
            ]
            if not number:
                parts.append(
                    f'<text x="{left + 10}" y="{90 + 18 * place}" fill="{color}">'
                    f"{objective}</text>"
                )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="780" height="300" '
        'font-family="sans-serif" font-size="12"><rect width="780" height="300" '
        'fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def path(points, color, dashes="none"):
    """A line through points."""
    places = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return (
        f'<polyline points="{places}" fill="none" stroke="{color}" '
        f'stroke-width="2" stroke-dasharray="{dashes}"/>'
    )


def main():
    """Print a row per size, or draw rows that were kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 2_000, 10_000])
    parser.add_argument("--objective", choices=COLORS, default="latency")
    parser.add_argument("--longer", type=float, default=6.0, metavar="TIMES")
    parser.add_argument("--json", type=Path, help="keep rows here, beside those in it")
    parser.add_argument("--chart", type=Path, help="only draw the rows kept")
    options = parser.parse_args()
    kept = []
    if options.json and options.json.exists():
        kept = json.loads(options.json.read_text())
    if options.chart:
        options.chart.write_text(chart(kept))
        print("\n".join(map(line, kept)))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}")
    print(
        "| objective | calls | devices | limit | took | value | bound | long run | "
        "above it | peak |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for count in options.sizes:
        row = measured(count, options.objective, options.longer)
        print(line(row), flush=True)
        key = row["objective"], row["calls"]
        kept = [r for r in kept if (r["objective"], r["calls"]) != key] + [row]
        if options.json:
            options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
