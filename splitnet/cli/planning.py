"""Commands about plans: plan, score, simulate, draw, report.

For saved files none of them imports Keras.
"""

import json
import math
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splitnet.cli.screen import progress, show, show_json
from splitnet.cli.sources import (
    TARGET_HELP,
    add_cluster_options,
    cluster_of,
    kind_of_file,
    load_json,
    load_source,
)
from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeviceError, PlanFileError

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = ["add_commands", "add_planning_options", "plan_target"]


def add_commands(commands: Any) -> None:
    """Add the planning commands to the parser."""
    _add_plan(commands)
    _add_score(commands)
    simulate = commands.add_parser(
        "simulate", help="play a saved plan, second by second"
    )
    simulate.add_argument("plan", metavar="PLAN.json")
    simulate.add_argument(
        "--trace", metavar="FILE", help="write a Perfetto trace (JSON)"
    )
    simulate.add_argument("--json", action="store_true", help="for a program")
    simulate.set_defaults(do=run_simulate)

    draw = commands.add_parser("draw", help="draw a saved plan: svg, png, pdf or dot")
    draw.add_argument("plan", metavar="PLAN.json")
    draw.add_argument("-o", "--out", default="placement.svg", metavar="FILE")
    draw.add_argument("--other", metavar="PLAN.json", help="mark what moved since")
    draw.add_argument("--calls", metavar="PART", help="open one part into its calls")
    draw.add_argument(
        "--timeline", action="store_true", help="draw when things run, not where"
    )
    draw.set_defaults(do=run_draw)

    report = commands.add_parser("report", help="one HTML page about a saved plan")
    report.add_argument("plan", metavar="PLAN.json")
    report.add_argument("-o", "--out", default="report.html", metavar="FILE")
    report.set_defaults(do=run_report)


def _add_plan(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        help="decide what lives where, and what it costs",
        description="Plan a model, a saved graph or plan, or a benchmark workload.",
    )
    parser.add_argument(
        "target", metavar="TARGET", help=TARGET_HELP + "; or a JSON file"
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="save the plan as JSON")
    add_planning_options(parser)
    parser.set_defaults(do=run_plan)


def add_planning_options(parser: ArgumentParser) -> None:
    """Add the options of `sn.plan`, by the same names."""
    parser.add_argument("--batch", type=int, default=32, help="samples per step (32)")
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="PATTERN=DEVICE",
        help="keep parts on a device: --pin 'block1_*=gpu:0'; may be repeated",
    )
    parser.add_argument("--objective", default=None, help="latency, throughput, memory")
    parser.add_argument(
        "--contiguity",
        choices=("free", "convex", "pipeline"),
        help="which sets of calls may share a device",
    )
    parser.add_argument("--missing", choices=("fallback", "warn", "error"))
    parser.add_argument("--optimizer", help="whose slots count as memory (adam)")
    parser.add_argument("--strategy", help="one algorithm by name, or auto")
    parser.add_argument("--costs", metavar="FILE", help="a file of measured costs")
    parser.add_argument("--time-limit", type=float, metavar="S", help="seconds (5)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--inference", action="store_true", help="one forward pass, no training"
    )
    parser.add_argument("--json", action="store_true", help="for a program")
    add_cluster_options(parser)


def plan_target(arguments: Namespace) -> "tuple[Any, Plan, float]":
    """The source, its plan, and the seconds that planning took.

    The source is the Graph itself where the target is a saved file.
    """
    from splitnet.verbs import plan

    source, cluster = _source_and_cluster(arguments)
    options = _planner_options(arguments)
    began = time.perf_counter()
    with progress("planning", total=1.0) as advance:
        made = plan(
            source,
            cluster,
            batch=arguments.batch,
            on_progress=lambda share, best: advance(share, f"best {best:.4g}"),
            **options,
        )
    return source, made, time.perf_counter() - began


def _source_and_cluster(arguments: Namespace) -> tuple[Any, Cluster]:
    target = arguments.target
    if not target.endswith(".json"):
        # The machine first: stand-ins must be made before a program builds layers.
        cluster = cluster_of(arguments)
        assert cluster is not None
        return load_source(target), cluster
    values = load_json(target)
    kind = kind_of_file(values)
    cluster = cluster_of(arguments, here=False)
    if kind == "workload":
        from splitnet.core.workgraph import read_workload

        if cluster is not None:
            raise DeviceError(
                "a workload file brings its machine; leave --cluster out."
            )
        return read_workload(target)
    if kind == "plan":
        from splitnet.core.planfile import load_plan

        old = load_plan(target)
        return old.graph, cluster or old.cluster
    if kind == "graph":
        from splitnet.core.graphfile import graph_from_dict

        if cluster is None:
            raise DeviceError(
                "a saved graph has no machine; add --cluster '2*gpu,cpu', --cluster "
                "box.toml or --stand-ins 2."
            )
        return graph_from_dict(values), cluster
    raise PlanFileError(
        f"{target!r} is neither a plan, a graph nor a workload: it has none of the "
        "fields 'splitnet_plan', 'calls', 'nodes'."
    )


def _planner_options(arguments: Namespace) -> dict[str, Any]:
    """Only what was said, so that the library's defaults hold for the rest."""
    given = {
        name: getattr(arguments, name)
        for name in (
            *("objective", "contiguity", "missing", "optimizer", "strategy"),
            *("costs", "time_limit", "seed"),
        )
        if getattr(arguments, name) is not None
    }
    if arguments.pin:
        given["pins"] = dict(_pin(text) for text in arguments.pin)
    if arguments.inference:
        given["training"] = False
    return given


def _pin(text: str) -> tuple[str, Any]:
    pattern, equals, device = text.rpartition("=")
    if not equals or not pattern or not device:
        raise DeviceError(
            f"--pin {text!r}: write a name or pattern, = and a device, such as "
            "'block1_*=gpu:0'; several in order of preference: 'head=gpu:1,cpu'."
        )
    wishes = device.split(",")
    return pattern, wishes if len(wishes) > 1 else device


def run_plan(arguments: Namespace) -> int:
    """Plan, save if asked, and show the table or the figures."""
    _, made, seconds = plan_target(arguments)
    if arguments.out:
        made.save(arguments.out)
    if arguments.json:
        show_json(plan_figures(made, seconds))
        return 0
    from splitnet.view.text import table

    show(table(made))
    if arguments.out:
        show(f"\nsaved to {arguments.out}")
    return 0


def plan_figures(plan: "Plan", seconds: float) -> dict[str, Any]:
    """A plan's answer as plain values; "seconds" is what planning took."""
    return {
        "objective": plan.objective,
        "value": plan.value,
        "bound": plan.bound,
        "gap": plan.gap,
        "seconds": round(seconds, 3),
        "strategy": plan.strategy,
        "batch": plan.batch,
        "device_of": dict(plan.device_of),
        "fallbacks": [
            {"part": f.part, "asked": f.asked, "got": f.got, "why": f.why}
            for f in plan.fallbacks
        ],
        "memory_bytes": {name: used.total for name, used in plan.memory.items()},
        "transfer_bytes": sum(t.bytes for t in plan.transfers),
        "step_seconds": plan.timeline.seconds,
    }


def _add_score(commands: Any) -> None:
    parser = commands.add_parser(
        "score",
        help="judge a placement that a person made",
        description="Judge a split of a workload, or a placement of any other target.",
    )
    parser.add_argument(
        "target", metavar="TARGET", help=TARGET_HELP + "; or a JSON file"
    )
    parser.add_argument(
        "placement",
        metavar="PLACEMENT.json",
        help='{"part": "gpu:0", ...}, a saved plan, or the split of a workload',
    )
    add_planning_options(parser)
    parser.set_defaults(do=run_score)


def run_score(arguments: Namespace) -> int:
    """Evaluate a given placement; 1 if it breaks a rule."""
    if arguments.target.endswith(".json") and (
        kind_of_file(load_json(arguments.target)) == "workload"
    ):
        return _score_workload(arguments)
    from splitnet.verbs import score

    source, cluster = _source_and_cluster(arguments)
    options = _planner_options(arguments)
    for name in ("contiguity", "missing", "strategy", "time_limit", "seed", "pins"):
        options.pop(name, None)
    began = time.perf_counter()
    scored = score(
        source,
        cluster,
        _placement_in(arguments.placement),
        batch=arguments.batch,
        **options,
    )
    if arguments.json:
        show_json(plan_figures(scored, time.perf_counter() - began))
        return 0
    from splitnet.view.text import table

    show(table(scored))
    return 0


def _placement_in(path: str) -> dict[str, str]:
    values = load_json(path)
    if kind_of_file(values) == "plan":
        from splitnet.core.planfile import load_plan

        return dict(load_plan(path).device_of)
    if isinstance(values, dict) and isinstance(values.get("device_of"), dict):
        values = values["device_of"]
    if not isinstance(values, dict) or not all(
        isinstance(device, str) for device in values.values()
    ):
        raise PlanFileError(
            f"{path!r} is not a placement: expected {{'part': 'gpu:0', ...}} or a plan."
        )
    return values


def _score_workload(arguments: Namespace) -> int:
    from splitnet.core.workload import parse_workload, score_split

    workload = parse_workload(arguments.target)
    scored = score_split(workload, load_json(arguments.placement))
    figures = {
        "throughput": _finite(scored.max_load),
        "call_latency": _finite(scored.call_latency),
        "convex": scored.convex,
        "pipeline": scored.pipeline,
        "violations": list(scored.violations),
    }
    if arguments.json:
        show_json(figures)
    else:
        for name, value in figures.items():
            show(f"{name:13} {json.dumps(value)}")
    return 1 if scored.violations else 0


def _finite(value: float) -> float | None:
    """JSON has no infinity; a split that cannot run has no load."""
    return value if math.isfinite(value) else None


def run_simulate(arguments: Namespace) -> int:
    """Play a saved plan: a chart, a trace, or the rows."""
    from splitnet.core.planfile import load_plan
    from splitnet.core.simulate import simulate

    timeline = simulate(load_plan(arguments.plan))
    if arguments.trace:
        from splitnet.view.trace import trace

        trace(timeline, arguments.trace)
    if arguments.json:
        show_json(_timeline_figures(timeline))
        return 0
    from splitnet.view.text import chart

    show(chart(timeline))
    if arguments.trace:
        show(f"\ntrace written to {arguments.trace}; open it in ui.perfetto.dev")
    return 0


def _timeline_figures(timeline: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "seconds": timeline.seconds,
        "busy": dict(timeline.busy),
        "idle": dict(timeline.idle),
        "peak_bytes": dict(timeline.peak_bytes),
        "tasks": [asdict(task) for task in timeline.tasks],
        "copies": [asdict(copy) for copy in timeline.copies],
    }


def run_draw(arguments: Namespace) -> int:
    """Draw a saved plan into a file."""
    from splitnet.core.planfile import load_plan
    from splitnet.view.draw import draw

    plan = load_plan(arguments.plan)
    other = load_plan(arguments.other) if arguments.other else None
    what = "timeline" if arguments.timeline else "placement"
    written = draw(plan, arguments.out, other=other, calls=arguments.calls, what=what)
    show(str(written))
    return 0


def run_report(arguments: Namespace) -> int:
    """Write the page about a saved plan."""
    from splitnet.core.planfile import load_plan
    from splitnet.view.report import report

    report(load_plan(arguments.plan), arguments.out)
    show(str(Path(arguments.out)))
    return 0
