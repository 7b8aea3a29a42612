"""Commands about saved plans: simulate, draw, report. None of them imports Keras."""

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from splitnet.cli.screen import show, show_json

__all__ = ["add_commands"]

_SAVED = "what `splitnet plan -o` or `plan.save` wrote"


def add_commands(commands: Any) -> None:
    """Add the commands about saved plans to the parser."""
    simulate = commands.add_parser(
        "simulate", help="play a saved plan, second by second"
    )
    simulate.add_argument("plan", metavar="PLAN.json", help=_SAVED)
    simulate.add_argument(
        "--trace", metavar="FILE", help="write a Perfetto trace (JSON)"
    )
    simulate.add_argument("--json", action="store_true", help="for a program")
    simulate.set_defaults(do=run_simulate)

    draw = commands.add_parser("draw", help="draw a saved plan: svg, png, pdf or dot")
    draw.add_argument("plan", metavar="PLAN.json", help=_SAVED)
    draw.add_argument(
        "-o",
        "--out",
        default="placement.svg",
        metavar="FILE",
        help="the suffix says the kind (placement.svg)",
    )
    draw.add_argument("--other", metavar="PLAN.json", help="mark what moved since")
    draw.add_argument("--calls", metavar="PART", help="open one part into its calls")
    draw.add_argument(
        "--timeline", action="store_true", help="draw when things run, not where"
    )
    draw.set_defaults(do=run_draw)

    report = commands.add_parser("report", help="one HTML page about a saved plan")
    report.add_argument("plan", metavar="PLAN.json", help=_SAVED)
    report.add_argument(
        "-o",
        "--out",
        default="report.html",
        metavar="FILE",
        help="where to write it (report.html)",
    )
    report.set_defaults(do=run_report)


def run_simulate(arguments: Namespace) -> int:
    """Play a saved plan: a chart, a trace, or the rows."""
    from splitnet.planner.plan_file import load_plan
    from splitnet.simulator.old_simulate import simulate

    timeline = simulate(load_plan(arguments.plan))
    if arguments.trace:
        from splitnet.view.trace import trace

        trace(timeline, arguments.trace)
    if arguments.json:
        show_json(_timeline_figures(timeline))
        return 0
    from splitnet.view.tables import chart

    show(chart(timeline))
    if arguments.trace:
        show(f"\ntrace written to {arguments.trace}; open it in ui.perfetto.dev")
    return 0


def _timeline_figures(timeline: Any) -> dict[str, Any]:
    return {
        "seconds": timeline.seconds,
        "compute_seconds": dict(timeline.compute_seconds),
        "utilization": dict(timeline.utilization),
        "peak_bytes": dict(timeline.peak_bytes),
        "tasks": [asdict(task) for task in timeline.tasks],
        "copies": [asdict(copy) for copy in timeline.copies],
    }


def run_draw(arguments: Namespace) -> int:
    """Draw a saved plan into a file."""
    from splitnet.planner.plan_file import load_plan
    from splitnet.view.render import draw

    plan = load_plan(arguments.plan)
    other = load_plan(arguments.other) if arguments.other else None
    what = "timeline" if arguments.timeline else "placement"
    written = draw(plan, arguments.out, other=other, calls=arguments.calls, what=what)
    show(str(written))
    return 0


def run_report(arguments: Namespace) -> int:
    """Write the page about a saved plan."""
    from splitnet.planner.plan_file import load_plan
    from splitnet.view.report import report

    report(load_plan(arguments.plan), arguments.out)
    show(str(Path(arguments.out)))
    return 0
