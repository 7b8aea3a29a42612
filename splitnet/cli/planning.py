"""`splitnet plan`, and what other commands share with it; saved files need no Keras."""

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
from splitnet.cli.workloads import is_figures_only, workload_figures
from splitnet.core.cluster import Cluster
from splitnet.core.errors import (
    DeviceError,
    PlanFileError,
    format_bytes,
    format_seconds,
)

if TYPE_CHECKING:
    from splitnet.core.plan import Plan
    from splitnet.planner.analysis import Comparison

__all__ = [
    "add_commands",
    "add_judging_options",
    "add_planning_options",
    "plan_figures",
    "plan_target",
    "planner_options",
    "source_and_cluster",
]

# Beyond these the largest batch is not looked for, or not looked for further.
_MOST_CALLS = 2_000
_MOST_BATCH = 2**20
_STEPS = ("latency", "memory")

WORKLOAD_FIGURES = ("objective", "value", "bound", "gap", "seconds", "device_of")
"""What a benchmark asks of a plan of a workload, and nothing else."""


def add_commands(commands: Any) -> None:
    """Add `splitnet plan` to the parser."""
    parser = commands.add_parser(
        "plan",
        help="decide what lives where, and what it costs",
        description="Plan a model, a saved graph or plan, or a benchmark workload.",
    )
    parser.add_argument(
        "target", metavar="TARGET", help=TARGET_HELP + "; or a JSON file"
    )
    parser.add_argument("-o", "--out", metavar="FILE", help="save the plan as JSON")
    parser.add_argument(
        "--other", metavar="PLAN.json", help="say what moved since this plan"
    )
    add_planning_options(parser)
    parser.set_defaults(do=run_plan)


def add_judging_options(parser: ArgumentParser) -> None:
    """Add what judging a placement needs to know: the step, its costs, the machine."""
    parser.add_argument(
        "--batch", type=int, default=32, metavar="N", help="samples per step (32)"
    )
    parser.add_argument(
        "--objective", metavar="WORD", help="latency, throughput or memory"
    )
    parser.add_argument(
        "--optimizer", metavar="NAME", help="whose slots count as memory (adam)"
    )
    parser.add_argument("--costs", metavar="FILE", help="a file of measured costs")
    parser.add_argument(
        "--inference", action="store_true", help="one forward pass, no training"
    )
    parser.add_argument("--json", action="store_true", help="for a program")
    add_cluster_options(parser)


def add_planning_options(parser: ArgumentParser) -> None:
    """Add the options of `sn.plan`, by the same names."""
    add_judging_options(parser)
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="PATTERN=DEVICE",
        help="keep parts on a device: --pin 'block1_*=gpu:0'; may be repeated",
    )
    parser.add_argument(
        "--contiguity",
        choices=("free", "convex", "pipeline"),
        help="which sets of calls may share a device",
    )
    parser.add_argument(
        "--missing",
        choices=("fallback", "warn", "error"),
        help="a device that is not there: replace it, warn as well, or refuse",
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="seconds to search at most (5)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="of the random moves of the search (0)"
    )


def plan_target(arguments: Namespace) -> "tuple[Any, Plan, float]":
    """The source, its plan, and the seconds that planning took.

    The source is the Graph itself where the target is a saved file.
    """
    from splitnet.api import plan

    source, cluster = source_and_cluster(arguments)
    options = planner_options(arguments)
    began = time.perf_counter()
    written = format_bytes if arguments.objective == "memory" else format_seconds
    with progress("planning", total=1.0) as advance:
        made = plan(
            source,
            cluster,
            batch=arguments.batch,
            on_progress=lambda share, best: advance(share, f"best {written(best)}"),
            **options,
        )
    return source, made, time.perf_counter() - began


def source_and_cluster(arguments: Namespace) -> tuple[Any, Cluster]:
    """What to plan and for which machine, from a program, a model or a saved file.

    Raises:
        DeclarationError: the target names no model.
        DeviceError: no machine, or two.
        PlanFileError: the file is none that can be planned.
    """
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
        from splitnet.planner.workloads import graph_of_workload, workload_of

        if cluster is not None:
            raise DeviceError(
                "a workload file brings its machine; leave --cluster out."
            )
        arguments.objective = arguments.objective or "throughput"
        arguments.workload = True
        return graph_of_workload(workload_of(values, name=Path(target).stem))
    if kind == "plan":
        from splitnet.planner.plan_file import load_plan

        old = load_plan(target)
        return old.graph, cluster or old.cluster
    if kind == "graph":
        from splitnet.core.graph import Graph
        from splitnet.core.serialization import decode

        if cluster is None:
            raise DeviceError(
                "a saved graph has no machine; add --cluster '2*gpu,cpu', --cluster "
                "box.toml or --stand-ins 2."
            )
        return decode(values, Graph, "graph"), cluster
    raise PlanFileError(
        f"{target!r} is neither a plan, a graph nor a workload: it has none of the "
        "fields 'splitnet_plan', 'calls', 'nodes'."
    )


def planner_options(arguments: Namespace) -> dict[str, Any]:
    """Only what was said, so that the library's defaults hold for the rest."""
    given = {
        name: getattr(arguments, name)
        for name in (
            *("objective", "contiguity", "missing", "optimizer"),
            *("costs", "time_limit", "seed"),
        )
        if getattr(arguments, name, None) is not None
    }
    if getattr(arguments, "pin", None):
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
    if arguments.target.endswith(".json") and is_figures_only(arguments):
        values = load_json(arguments.target)
        if kind_of_file(values) == "workload":
            show_json(workload_figures(values, arguments))
            return 0
    _, made, seconds = plan_target(arguments)
    change = _change(arguments, made)
    if arguments.out:
        made.save(arguments.out)
    most = _largest_batch(made)
    if arguments.json:
        figures = plan_figures(made, seconds)
        if getattr(arguments, "workload", False):
            show_json({name: figures[name] for name in WORKLOAD_FIGURES})
        else:
            moved = {} if change is None else {"moved": change.moved}
            show_json(figures | {"largest_batch": most} | moved)
        return 0
    from splitnet.view.tables import table

    show(table(made))
    if change is not None:
        show(f"\nsince {arguments.other or arguments.target}: {change}\n")
    if most is not None:
        at_least = " or more" if most == _MOST_BATCH else ""
        show(f"largest batch that fits, placed like this: {most}{at_least}")
    if arguments.out:
        show(f"\nsaved to {arguments.out}")
    return 0


def _change(arguments: Namespace, made: "Plan") -> "Comparison | None":
    """What moved since the plan of `--other`, or since the one planned again."""
    since = arguments.other
    saved = arguments.target.endswith(".json")
    if since is None and saved and kind_of_file(load_json(arguments.target)) == "plan":
        since = arguments.target
    if since is None:
        return None
    from splitnet.planner.plan_file import load_plan

    return load_plan(since).compare(made)


def _largest_batch(plan: "Plan") -> int | None:
    """The largest batch that this placement holds; None if nobody would wait for it."""
    if len(plan.graph.calls) > _MOST_CALLS or plan.objective not in _STEPS:
        return None
    from splitnet.planner.what_if import largest_batch

    return largest_batch(
        plan.graph,
        plan.cluster,
        device_of=plan.device_of,
        optimizer=plan.optimizer,
        training=plan.training,
        most=_MOST_BATCH,
    )


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
            {
                "part": f.part,
                "requested": f.requested,
                "assigned": f.assigned,
                "reason": f.reason,
            }
            for f in plan.fallbacks
        ],
        "memory_bytes": {name: used.total for name, used in plan.memory.items()},
        "transfer_bytes": sum(t.bytes for t in plan.transfers),
        "step_seconds": plan.timeline.seconds,
    }
