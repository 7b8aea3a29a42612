"""Commands about plans: plan, compare, score, simulate, draw, report."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Option

import splitnet as sn
import splitnet.cli.options as opt
from splitnet.cli.console import interruptible, progress, show_json
from splitnet.cli.targets import (
    Machine,
    check_target,
    kind_of_file,
    load_plan_file,
    load_source,
)
from splitnet.cli.workload_commands import score_workload, workload_figures
from splitnet.core.cluster import Cluster
from splitnet.core.errors import (
    DeviceError,
    PlanFileError,
    format_bytes,
    format_seconds,
)

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = [
    "compare",
    "draw",
    "given_options",
    "pins_of",
    "plan",
    "plan_source",
    "report",
    "score",
    "simulate",
]

# Beyond these the largest batch is not searched for, or not searched further.
_MOST_CALLS = 2_000
_MOST_BATCH = 2**20
_WORKLOAD_FIGURES = ("objective", "value", "bound", "gap", "seconds", "device_of")


def plan(
    context: Context,
    target: opt.Target = "",
    out: opt.Out = None,
    other: opt.Other = None,
    batch: opt.Batch = 32,
    objective: opt.Objective = None,
    optimizer: opt.Optimizer = None,
    costs: opt.Costs = None,
    inference: opt.Inference = False,
    json_: opt.Json = False,
    pin: opt.Pin = None,
    contiguity: opt.Contiguity = None,
    missing: opt.Missing = None,
    time_limit: opt.TimeLimit = None,
    seed: opt.Seed = None,
    cluster: opt.ClusterName = None,
    preset: opt.Preset = None,
    memory: opt.GpuMemory = None,
    link: opt.LinkSpeed = None,
    stand_ins: opt.StandIns = 0,
    warm_up: Annotated[
        bool, Option("--warm-up", help="Compile the search loops in advance.")
    ] = False,
) -> int:
    """Choose a device for every part, and show what it costs."""
    if warm_up:
        from splitnet.planner.engine.solve import warm_up as warm_up_search

        with progress("compiling the search"):
            warm_up_search()
        if not target:
            return 0
    machine = Machine(cluster, preset, memory, link, stand_ins)
    options = given_options(
        batch=batch,
        objective=objective,
        optimizer=optimizer,
        costs=costs,
        training=False if inference else None,
        pins=pins_of(pin),
        contiguity=contiguity,
        missing=missing,
        time_limit=time_limit,
        seed=seed,
    )
    check_target(target)
    kind, values = kind_of_file(target) if target.endswith(".json") else ("", None)
    plain = json_ and not (out or pin or costs or cluster or stand_ins)
    if kind == "workload" and plain and objective in (None, "throughput"):
        show_json(workload_figures(values, options, context.obj))
        return 0
    _, made, seconds = plan_source(target, machine, options)
    since = other or (target if kind == "plan" else None)
    change = load_plan_file(since).compare(made) if since else None
    if out:
        made.save(out)
    if json_ and kind == "workload":
        figures = _plan_figures(made, seconds)
        show_json({name: figures[name] for name in _WORKLOAD_FIGURES})
        return 0
    most = _largest_batch(made)
    if json_:
        moved = {} if change is None else {"moved": change.moved}
        show_json(_plan_figures(made, seconds) | {"largest_batch": most} | moved)
        return 0
    print(sn.table(made))
    if change is not None:
        print(f"\nsince {since}: {change}")
    if most is not None:
        at_least = " or more" if most == _MOST_BATCH else ""
        print(f"\nlargest batch that fits this placement: {most}{at_least}")
    if cluster and not cluster.endswith(".toml") and not preset:
        print("\nfigures of typical GPUs are assumed; name yours: --preset A100")
    if out:
        print(f"\nsaved to {out}")
    return 0


def given_options(**options: Any) -> dict[str, Any]:
    """Only what was given, so that the library's defaults hold for the rest."""
    return {name: value for name, value in options.items() if value is not None}


def pins_of(texts: list[str] | None) -> dict[str, Any] | None:
    """Read --pin options: a pattern, and one device or several in order."""
    pins: dict[str, Any] = {}
    for text in texts or ():
        pattern, equals, device = text.rpartition("=")
        if not equals or not pattern or not device:
            raise DeviceError(
                f"--pin {text!r}: write a name or pattern, = and a device, such as "
                "'block1_*=gpu:0'; several in order of preference: 'head=gpu:1,cpu'."
            )
        devices = device.split(",")
        pins[pattern] = devices if len(devices) > 1 else device
    return pins or None


def plan_source(
    target: str, machine: Machine, options: dict[str, Any]
) -> "tuple[Any, Plan, float]":
    """The source, its plan, and the seconds that planning took.

    The source of a saved file is its Graph.

    Raises:
        KeyboardInterrupt: Ctrl-C, although the planner has a best plan so far.
    """
    source, cluster = _source_and_cluster(target, machine)
    if target.endswith(".json") and kind_of_file(target)[0] == "workload":
        options = {"objective": "throughput"} | options
    began = time.perf_counter()
    written = format_bytes if options.get("objective") == "memory" else format_seconds
    with interruptible(), progress("planning", total=1.0) as advance:
        made = sn.plan(
            source,
            cluster,
            on_progress=lambda share, best: advance(share, f"best {written(best)}"),
            **options,
        )
        advance(1.0, f"best {written(made.value)}")
    return source, made, time.perf_counter() - began


def _source_and_cluster(target: str, machine: Machine) -> tuple[Any, Cluster]:
    """What to plan and for which machine, from a program, a model or a saved file."""
    check_target(target)
    if not target.endswith(".json"):
        # The machine first: stand-ins must be made before a program builds layers.
        cluster = machine.described() or machine.local()
        return load_source(target), cluster
    kind, values = kind_of_file(target)
    cluster_or_none = machine.described()
    if kind == "workload":
        from splitnet.planner.workloads import graph_of_workload, workload_of

        if cluster_or_none is not None:
            raise DeviceError(
                "a workload file includes its machine; leave --cluster out."
            )
        return graph_of_workload(workload_of(values, name=Path(target).stem))
    if kind == "plan":
        old = load_plan_file(target)
        return old.graph, cluster_or_none or old.cluster
    if kind == "graph":
        from splitnet.core.graph import Graph
        from splitnet.core.serialization import decode

        if cluster_or_none is None:
            raise DeviceError(
                "a saved graph has no machine; add --cluster '2*gpu,cpu', --cluster "
                "box.toml or --stand-ins 2."
            )
        return decode(values, Graph, "graph"), cluster_or_none
    raise PlanFileError(
        f"{target!r} is neither a plan, a graph nor a workload: it has none of the "
        "fields 'splitnet_plan', 'calls', 'nodes'."
    )


def _largest_batch(plan: "Plan") -> int | None:
    """The largest batch that fits this placement; None if the search takes long."""
    if len(plan.graph.calls) > _MOST_CALLS or plan.objective == "throughput":
        return None
    return sn.largest_batch(
        plan.graph,
        plan.cluster,
        device_of=plan.device_of,
        optimizer=plan.optimizer,
        training=plan.training,
        most=_MOST_BATCH,
    )


def _plan_figures(plan: "Plan", seconds: float) -> dict[str, Any]:
    """A plan as plain values; "seconds" is what planning took."""
    return {
        "objective": plan.objective,
        "value": plan.value,
        "bound": plan.bound,
        "gap": plan.gap,
        "seconds": round(seconds, 3),
        "strategy": plan.strategy,
        "batch": plan.batch,
        "device_of": dict(plan.device_of),
        "fallbacks": [asdict(fallback) for fallback in plan.fallbacks],
        "memory_bytes": {name: used.total for name, used in plan.memory.items()},
        "transfer_bytes": sum(t.bytes for t in plan.transfers),
        "step_seconds": plan.timeline.seconds,
    }


def compare(
    target: opt.Target,
    batch: opt.Batch = 32,
    optimizer: opt.Optimizer = None,
    costs: opt.Costs = None,
    json_: opt.Json = False,
    time_limit: opt.TimeLimit = None,
    cluster: opt.ClusterName = None,
    preset: opt.Preset = None,
    memory: opt.GpuMemory = None,
    link: opt.LinkSpeed = None,
    stand_ins: opt.StandIns = 0,
) -> int:
    """Compare one device, this plan, data parallelism and a pipeline."""
    machine = Machine(cluster, preset, memory, link, stand_ins)
    options = given_options(
        batch=batch, optimizer=optimizer, costs=costs, time_limit=time_limit
    )
    _, made, _ = plan_source(target, machine, options)
    found = sn.compare_strategies(made)
    if json_:
        show_json([asdict(one) for one in found.all])
    else:
        print(str(found))
    return 0


def score(
    target: opt.Target,
    placement: Annotated[
        str,
        Argument(
            metavar="PLACEMENT.json",
            help='{"part": "gpu:0", ...}, a saved plan, or the split of a workload.',
        ),
    ],
    batch: opt.Batch = 32,
    objective: opt.Objective = None,
    optimizer: opt.Optimizer = None,
    costs: opt.Costs = None,
    inference: opt.Inference = False,
    json_: opt.Json = False,
    cluster: opt.ClusterName = None,
    preset: opt.Preset = None,
    memory: opt.GpuMemory = None,
    link: opt.LinkSpeed = None,
    stand_ins: opt.StandIns = 0,
) -> int:
    """Evaluate your own placement; exit code 1 if it breaks a rule."""
    check_target(target)
    if target.endswith(".json") and kind_of_file(target)[0] == "workload":
        return score_workload(target, placement, json_)
    machine = Machine(cluster, preset, memory, link, stand_ins)
    source, machine_cluster = _source_and_cluster(target, machine)
    began = time.perf_counter()
    scored = sn.score(
        source,
        machine_cluster,
        _placement_in(placement),
        **given_options(
            batch=batch,
            objective=objective,
            optimizer=optimizer,
            costs=costs,
            training=False if inference else None,
        ),
    )
    if json_:
        show_json(_plan_figures(scored, time.perf_counter() - began))
    else:
        print(sn.table(scored))
    return 0


def _placement_in(path: str) -> dict[str, str]:
    kind, values = kind_of_file(path)
    if kind == "plan":
        return dict(load_plan_file(path).device_of)
    if isinstance(values, dict) and isinstance(values.get("device_of"), dict):
        values = values["device_of"]
    if not isinstance(values, dict) or not all(
        isinstance(device, str) for device in values.values()
    ):
        raise PlanFileError(
            f"{path!r} is not a placement: expected {{'part': 'gpu:0', ...}} or a plan."
        )
    return values


def simulate(
    plan: opt.SavedPlan,
    trace: Annotated[
        Path | None, Option(metavar="FILE", help="Write a Perfetto trace (JSON).")
    ] = None,
    microbatches: Annotated[
        int, Option(metavar="M", help="Number of micro-batches of a pipeline.")
    ] = 1,
    schedule: Annotated[
        Literal["gpipe", "1f1b"], Option(help="Order of the micro-batches.")
    ] = "gpipe",
    recompute: Annotated[
        bool, Option("--recompute", help="Recompute activations in the backward pass.")
    ] = False,
    json_: opt.Json = False,
) -> int:
    """Simulate one step of a saved plan."""
    timeline = sn.simulate(
        load_plan_file(plan),
        microbatches=microbatches,
        schedule=schedule,
        recompute=recompute,
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
    plan: opt.SavedPlan,
    out: Annotated[
        Path,
        Option(
            "--out", "-o", metavar="FILE", help="The file: .svg, .png, .pdf or .dot."
        ),
    ] = Path("placement.svg"),
    other: Annotated[
        str | None, Option(metavar="PLAN.json", help="Mark what moved since this plan.")
    ] = None,
    calls: Annotated[
        str | None, Option(metavar="PART", help="Show the calls of one part.")
    ] = None,
    timeline: Annotated[
        bool, Option("--timeline", help="Draw the timeline instead of the placement.")
    ] = False,
) -> int:
    """Draw a saved plan as SVG, PNG, PDF or DOT."""
    made = load_plan_file(plan)
    old = load_plan_file(other) if other else None
    what = "timeline" if timeline else "placement"
    with progress("drawing"):
        written = sn.draw(made, out, other=old, calls=calls, what=what)
    print(str(written))
    return 0


def report(
    plan: opt.SavedPlan,
    out: Annotated[
        Path, Option("--out", "-o", metavar="FILE", help="The file.")
    ] = Path("report.html"),
) -> int:
    """Write one HTML page about a saved plan."""
    made = load_plan_file(plan)
    with progress("writing the report"):
        sn.report(made, out)
    print(str(out))
    return 0
