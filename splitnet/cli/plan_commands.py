"""Commands about plans: plan, estimate, score, simulate, draw, report."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import splitnet as sn
from splitnet.cli.console import progress, show_json
from splitnet.cli.options import (
    ESTIMATE,
    MACHINE,
    SCORE,
    SEARCH,
    Json,
    SavedPlan,
    Table,
    TargetName,
    opened,
    search_options,
)
from splitnet.core.cluster import Cluster
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.serialization import read_values

# Beyond these the largest batch is not searched for, or not searched further.
_MOST_CALLS = 2_000
_MOST_BATCH = 2**20


def plan(
    target: TargetName = "",
    out: Annotated[Path, "Save the plan in this file."] = None,
    json_: Json = False,
    warm_up: Annotated[bool, "Compile the search loops in advance."] = False,
    **options: Annotated[Any, SEARCH | MACHINE],
) -> int:
    """Choose a device for every part, and show what it costs."""
    if warm_up:
        from splitnet.planner.engine.solve import warm_up as warm_up_search

        with progress("compiling the search"):
            warm_up_search()
        if not target:
            return 0
    source, cluster, held = opened(target, options)
    made, seconds = planned(source, cluster, _search_of(held, options))
    change = held.compare(made) if isinstance(held, sn.Plan) else None
    if out:
        made.save(out)
    most = _largest_batch(made)
    if json_:
        moved = {"moved": change.moved} if change is not None else {}
        show_json(_figures(made, seconds) | {"largest_batch": most} | moved)
        return 0
    print(sn.table(made))
    if change is not None:
        print(f"\nsince {target}: {change}")
    if most is not None:
        at_least = " or more" if most == _MOST_BATCH else ""
        print(f"\nlargest batch that fits this placement: {most}{at_least}")
    if out:
        print(f"\nsaved to {out}")
    return 0


def _search_of(held: Any, options: Table) -> dict[str, Any]:
    """The options of a search; workloads are benchmarks of throughput."""
    usual = {"objective": "throughput"} if isinstance(held, tuple) else {}
    return usual | search_options(options)


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
    return made, time.perf_counter() - began


def _largest_batch(plan: "sn.Plan") -> int | None:
    """The largest batch that fits this placement; None if the search takes long."""
    if len(plan.graph.calls) > _MOST_CALLS or plan.objective == "throughput":
        return None
    how = {"optimizer": plan.optimizer, "training": plan.training, "most": _MOST_BATCH}
    return sn.largest_batch(plan.graph, plan.cluster, device_of=plan.device_of, **how)


def _figures(plan: "sn.Plan", seconds: float) -> dict[str, Any]:
    """A plan as plain values; "seconds" is what planning took."""
    names = ("objective", "value", "bound", "gap", "strategy", "batch")
    return {name: getattr(plan, name) for name in (*names, "transfer_bytes")} | {
        "seconds": round(seconds, 3),
        "execution": asdict(plan.execution),
        "device_of": dict(plan.device_of),
        "fallbacks": [asdict(fallback) for fallback in plan.fallbacks],
        "memory_bytes": {name: used.total for name, used in plan.memory.items()},
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
    source, cluster, _ = opened(target, options)
    with progress("comparing strategies"):
        found = sn.compare_strategies(source, cluster, **search_options(options))
    if json_:
        show_json([asdict(one) for one in found.all])
    else:
        print(str(found))
    return 0 if found.best.fits else 1


def score(
    target: TargetName,
    placement: Annotated[
        str, '{"part": "gpu:0", ...}, a saved plan, or the split of a workload.'
    ],
    json_: Json = False,
    **options: Annotated[Any, SCORE | MACHINE],
) -> int:
    """Evaluate your own placement.

    Exit code 1 if it breaks a constraint: near, apart, memory, or no GPU kernel.
    """
    from splitnet.planner.constraints import violations
    from splitnet.planner.workloads import device_of_split

    given = read_values(placement, "placement")
    if isinstance(given, dict) and "device_of" in given:  # of a plan, or `plan --json`
        given = given["device_of"]
    elif isinstance(given, dict) and {"fpgas", "cpus"} & set(given):
        given = device_of_split(given)
    source, cluster, held = opened(target, options)
    began = time.perf_counter()
    scored = sn.score(source, cluster, given, **_search_of(held, options))
    broken = violations(scored)
    if json_:
        figures = _figures(scored, time.perf_counter() - began)
        show_json(figures | {"violations": broken})
    else:
        print("\n".join([sn.table(scored), *(f"broken: {line}" for line in broken)]))
    return 1 if broken else 0


def simulate(
    plan: SavedPlan,
    trace: Annotated[Path, "Write a Perfetto trace (JSON) into this file."] = None,
    microbatches: Annotated[int, "Micro-batches, if not the plan's."] = None,
    schedule: Annotated[
        Literal["gpipe", "1f1b"], "Their order, if not the plan's."
    ] = None,
    recompute: Annotated[bool, "Recompute activations in the backward pass."] = False,
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
        names = ("compute_seconds", "utilization", "peak_bytes")
        figures = {name: dict(getattr(timeline, name)) for name in names}
        tasks, copies = (map(asdict, its) for its in (timeline.tasks, timeline.copies))
        events = {"tasks": list(tasks), "copies": list(copies)}
        show_json({"seconds": timeline.seconds} | figures | events)
        return 0
    print(sn.chart(timeline))
    if trace:
        print(f"\ntrace written to {trace}; open it in ui.perfetto.dev")
    return 0


def draw(
    plan: SavedPlan,
    out: Annotated[Path, ".svg, .png, .pdf or .dot."] = Path("placement.svg"),
    other: Annotated[str, "Show what moved since this saved plan."] = None,
    timeline: Annotated[bool, "Draw the timeline instead of the placement."] = False,
) -> int:
    """Draw a saved plan as SVG, PNG, PDF or DOT."""
    made = sn.load_plan(plan)
    old = sn.load_plan(other) if other else None
    with progress("drawing"):
        if timeline:
            sn.draw(made.timeline, out, other=old and old.timeline)
        else:
            sn.draw(made, out, other=old)
    print(out)
    return 0


def report(
    plan: SavedPlan, out: Annotated[Path, "The file."] = Path("report.html")
) -> int:
    """Write one HTML page about a saved plan."""
    made = sn.load_plan(plan)
    with progress("writing the report"):
        sn.report(made, out)
    print(out)
    return 0
