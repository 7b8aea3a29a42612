"""Commands about plans: plan, estimate, score, simulate, draw, report."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

import splitnet as sn
from splitnet.cli.console import progress, show_json
from splitnet.cli.options import (
    COSTING,
    ESTIMATE,
    MACHINE,
    SEARCH,
    Inference,
    Json,
    SavedPlan,
    Table,
    TargetName,
    device_list,
    opened,
    saved,
    search_options,
)
from splitnet.core.cluster import Cluster
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.serialization import read_json

# Beyond these the largest batch is not searched for, or not searched further.
_MOST_CALLS = 2_000
_MOST_BATCH = 2**20


def plan(
    target: TargetName = "",
    out: Annotated[
        Path | None, Option("--out", "-o", metavar="FILE", help="Save the plan here.")
    ] = None,
    inference: Inference = False,
    json_: Json = False,
    warm_up: Annotated[
        bool, Option("--warm-up", help="Compile the search loops in advance.")
    ] = False,
    **options: Annotated[Any, SEARCH | MACHINE],
) -> int:
    """Choose a device for every part, and show what it costs."""
    if warm_up:
        from splitnet.planner.engine.solve import warm_up as warm_up_search

        with progress("compiling the search"):
            warm_up_search()
        if not target:
            return 0
    held = saved(target)
    old = held if isinstance(held, sn.Plan) else None
    search = search_options(options) | ({"training": False} if inference else {})
    if held is not None and old is None:
        search = {"objective": "throughput"} | search
    made, seconds = planned(*opened(target, held, options), search)
    change = old.compare(made) if old else None
    if out:
        made.save(out)
    most = _largest_batch(made)
    if json_:
        moved = {} if change is None else {"moved": change.moved}
        show_json(_figures(made, seconds) | {"largest_batch": most} | moved)
        return 0
    print(sn.table(made))
    if change is not None:
        print(f"\nsince {target}: {change}")
    if most is not None:
        at_least = " or more" if most == _MOST_BATCH else ""
        print(f"\nlargest batch that fits this placement: {most}{at_least}")
    _say_assumed(options)
    if out:
        print(f"\nsaved to {out}")
    return 0


def planned(
    source: Any, cluster: Cluster, options: dict[str, Any]
) -> "tuple[sn.Plan, float]":
    """The plan of a source, and the seconds that planning took."""
    began = time.perf_counter()
    written = format_bytes if options.get("objective") == "memory" else format_seconds
    with progress("planning", total=1.0) as advance:

        def show(share: float, best: float) -> None:
            advance(share, f"best {written(best)}")

        made = sn.plan(source, cluster, on_progress=show, **options)
        show(1.0, made.value)
    return made, time.perf_counter() - began


def _largest_batch(plan: "sn.Plan") -> int | None:
    """The largest batch that fits this placement; None if the search takes long."""
    if len(plan.graph.calls) > _MOST_CALLS or plan.objective == "throughput":
        return None
    how = {"optimizer": plan.optimizer, "training": plan.training, "most": _MOST_BATCH}
    return sn.largest_batch(plan.graph, plan.cluster, device_of=plan.device_of, **how)


def _say_assumed(options: Table) -> None:
    if device_list(options) and not options["preset"]:
        print("\nfigures of typical GPUs are assumed; name yours: --preset A100")


def _figures(plan: "sn.Plan", seconds: float) -> dict[str, Any]:
    """A plan as plain values; "seconds" is what planning took."""
    return {
        "objective": plan.objective,
        "value": plan.value,
        "bound": plan.bound,
        "gap": plan.gap,
        "seconds": round(seconds, 3),
        "strategy": plan.strategy,
        "execution": asdict(plan.execution),
        "batch": plan.batch,
        "device_of": dict(plan.device_of),
        "fallbacks": [asdict(fallback) for fallback in plan.fallbacks],
        "memory_bytes": {name: used.total for name, used in plan.memory.items()},
        "transfer_bytes": plan.transfer_bytes,
        "step_seconds": plan.timeline.seconds,
    }


def estimate(
    target: TargetName,
    json_: Json = False,
    **options: Annotated[Any, ESTIMATE | MACHINE],
) -> int:
    """What fits, and how: one device, branches, towers, pipelines.

    Exit code 1 if nothing fits.
    """
    search = search_options(options)
    source, cluster = opened(target, saved(target), options)
    with progress("comparing strategies"):
        found = sn.compare_strategies(source, cluster, **search)
    if json_:
        show_json([asdict(one) for one in found.all])
    else:
        print(str(found))
        _say_assumed(options)
    return 0 if found.best.fits else 1


def score(
    target: TargetName,
    placement: Annotated[
        str,
        Argument(
            metavar="PLACEMENT.json",
            help='{"part": "gpu:0", ...}, a saved plan, or the split of a workload.',
        ),
    ],
    inference: Inference = False,
    json_: Json = False,
    **options: Annotated[Any, COSTING | MACHINE],
) -> int:
    """Evaluate your own placement.

    Exit code 1 if it breaks a constraint: near, apart, memory, or no GPU kernel.
    """
    from splitnet.planner.constraints import violations
    from splitnet.planner.workloads import device_of_split

    held = saved(target)
    given = read_json(placement, "placement")
    if isinstance(given, dict) and "device_of" in given:  # of a plan, or `plan --json`
        given = given["device_of"]
    elif isinstance(given, dict) and {"fpgas", "cpus"} & set(given):
        given = device_of_split(given)
    source, cluster = opened(target, held, options)
    began = time.perf_counter()
    costing = search_options(options) | ({"training": False} if inference else {})
    if isinstance(held, tuple):
        costing = {"objective": "throughput"} | costing
    scored = sn.score(source, cluster, given, **costing)
    broken = violations(scored)
    if json_:
        figures = _figures(scored, time.perf_counter() - began)
        show_json(figures | {"violations": broken})
    else:
        print(sn.table(scored))
        for line in broken:
            print(f"broken: {line}")
    return 1 if broken else 0


def simulate(
    plan: SavedPlan,
    trace: Annotated[
        Path | None, Option(metavar="FILE", help="Write a Perfetto trace (JSON).")
    ] = None,
    microbatches: Annotated[
        int | None, Option(metavar="M", help="Micro-batches, if not the plan's.")
    ] = None,
    schedule: Annotated[
        Literal["gpipe", "1f1b"] | None,
        Option(help="Order of the micro-batches, if not the plan's."),
    ] = None,
    recompute: Annotated[
        bool, Option("--recompute", help="Recompute activations in the backward pass.")
    ] = False,
    json_: Json = False,
) -> int:
    """Simulate one step of a saved plan."""
    timeline = sn.simulate(
        sn.load_plan(plan),
        microbatches=microbatches,
        schedule=schedule,
        recompute=recompute or None,
    )
    if trace:
        sn.trace(timeline, trace)
    if json_:
        show_json(
            {
                "seconds": timeline.seconds,
                "compute_seconds": dict(timeline.compute_seconds),
                "utilization": dict(timeline.utilization),
                "peak_bytes": dict(timeline.peak_bytes),
                "tasks": [asdict(task) for task in timeline.tasks],
                "copies": [asdict(copy) for copy in timeline.copies],
            }
        )
        return 0
    print(sn.chart(timeline))
    if trace:
        print(f"\ntrace written to {trace}; open it in ui.perfetto.dev")
    return 0


def draw(
    plan: SavedPlan,
    out: Annotated[
        Path, Option("--out", "-o", metavar="FILE", help=".svg, .png, .pdf or .dot.")
    ] = Path("placement.svg"),
    other: Annotated[
        str | None, Option(metavar="PLAN.json", help="Show what moved since this plan.")
    ] = None,
    timeline: Annotated[
        bool, Option("--timeline", help="Draw the timeline instead of the placement.")
    ] = False,
) -> int:
    """Draw a saved plan as SVG, PNG, PDF or DOT."""
    made = sn.load_plan(plan)
    old = sn.load_plan(other) if other else None
    with progress("drawing"):
        if timeline:
            written = sn.draw(made.timeline, out, other=old and old.timeline)
        else:
            written = sn.draw(made, out, other=old)
    print(str(written))
    return 0


def report(
    plan: SavedPlan,
    out: Annotated[
        Path, Option("--out", "-o", metavar="FILE", help="The file.")
    ] = Path("report.html"),
) -> int:
    """Write one HTML page about a saved plan."""
    made = sn.load_plan(plan)
    with progress("writing the report"):
        sn.report(made, out)
    print(str(out))
    return 0
