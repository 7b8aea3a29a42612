"""One self-contained HTML page about a plan: explorer, step, memory, tables."""

import os
from importlib.resources import files
from pathlib import Path

from splitnet import __version__
from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Plan, Strategy
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import Timeline, critical_path
from splitnet.view.explorer import explorer_json
from splitnet.view.facts import (
    algorithm_text,
    bottleneck_text,
    objective_text,
    transfer_sums,
    verdict_lines,
)
from splitnet.view.style import clean, colors_of
from splitnet.view.tables import PAGE, audit_grids, plan_grids
from splitnet.view.timeline import path_text

__all__ = ["report", "report_html"]

_MOST_LISTED = 4
_MOST_ERRORS = 5


def report(
    thing: Plan | Audit,
    path: str | os.PathLike[str],
    *,
    measured: Timeline | None = None,
) -> Path:
    """Write one self-contained HTML page about a plan, completely or not at all.

    Args:
        thing: a plan, or an audit, whose plan and findings are then shown.
        path: the file, usually "report.html".
        measured: the step as it ran; drawn below the planned one, on the same scale.

    Raises:
        SplitnetError: the thing is neither a plan nor an audit, the file cannot be
            written, or Graphviz is missing.
    """
    page = report_html(thing, measured=measured)
    write_bytes(page.encode(), Path(path), "report")
    return Path(path)


def report_html(thing: Plan | Audit, *, measured: Timeline | None = None) -> str:
    """Make the page of `report` as text, and write no file."""
    # Jinja takes longer to import than the rest of the view, and only pages need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    plan, audit = (thing.plan, thing) if isinstance(thing, Audit) else (thing, None)
    environment = Environment(
        loader=PackageLoader("splitnet.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    used = set(plan.device_of.values())
    script = files("splitnet.view").joinpath("vendor", "d3.min.js")
    return environment.get_template("report.html.j2").render(
        version=__version__,
        name=clean(plan.graph.name),
        verdict=[
            clean(line)
            for line in (*verdict_lines(plan), bottleneck_text(plan))
            if not line.startswith("strategies: ")  # they are bars
        ],
        worth=plan.verdict is None or plan.verdict.worth_distributing,
        figures=_figures(plan),
        idle=", ".join(d.name for d in plan.cluster if d.name not in used),
        strategies=_strategies(plan),
        path=path_text(critical_path(plan.timeline)) if plan.transfers else "",
        errors=_errors(plan.timeline, measured) if measured is not None else [],
        matrix=_matrix(plan),
        measured=measured is not None,
        algorithm=algorithm_text(plan),
        colors=colors_of(device.name for device in plan.cluster),
        grids=plan_grids(plan, PAGE),
        audit=audit,
        audited=audit_grids(audit) if audit is not None else {},
        clean=clean,
        data=Markup(explorer_json(plan, measured)),
        d3=Markup(script.read_text(encoding="utf-8")),
    )


def _strategies(plan: Plan) -> list[tuple[Strategy, list[tuple[str, float]]]]:
    """Each strategy with its time, memory and bytes, as shares of the largest."""
    compared = plan.verdict.strategies if plan.verdict is not None else None
    every = compared.all if compared is not None else ()
    figures = [(one.seconds, one.peak_bytes, one.copied_bytes) for one in every]
    largest = [max(column) or 1 for column in zip(*figures, strict=True)]
    words = (format_seconds, format_bytes, format_bytes)
    return [
        (
            one,
            [
                (say(figure), figure / most)
                for say, figure, most in zip(words, its, largest, strict=True)
            ],
        )
        for one, its in zip(every, figures, strict=True)
    ]


def _errors(planned: Timeline, measured: Timeline) -> list[tuple[str, str, str]]:
    """The parts whose measured time differs most from the planned one."""
    spent: dict[str, list[float]] = {}
    for turn, timeline in enumerate((planned, measured)):
        for task in timeline.tasks:
            both = spent.setdefault(task.part, [0.0, 0.0])
            both[turn] += task.stop - task.start
    worst = sorted(spent, key=lambda part: -abs(spent[part][0] - spent[part][1]))
    return [
        (clean(part), format_seconds(spent[part][0]), format_seconds(spent[part][1]))
        for part in worst[:_MOST_ERRORS]
    ]


def _figures(plan: Plan) -> list[tuple[str, str]]:
    """The numbers on top of the page."""
    used = set(plan.device_of.values())
    limit = {device.name: device.memory_bytes or 1 for device in plan.cluster}
    fullest = max(limit, key=lambda d: plan.memory[d].total / limit[d])
    return [
        objective_text(plan),
        ("batch", str(plan.batch)),
        ("parts", str(len(plan.placements))),
        ("devices", f"{len(used)} of {len(plan.cluster)}"),
        ("transferred per step", format_bytes(plan.transfer_bytes)),
        (f"memory peak: {fullest}", format_bytes(plan.memory[fullest].total)),
    ]


def _matrix(plan: Plan) -> dict[str, list[tuple[str, float]]]:
    """Bytes from device to device in a step, each with its share of the largest.

    Empty for up to four devices: a list of transfers says as much.
    """
    moved: dict[tuple[str, str], int] = {}
    for one in transfer_sums(plan):
        ends = one.source, one.target
        moved[ends] = moved.get(ends, 0) + one.bytes
    used = [d.name for d in plan.cluster if any(d.name in ends for ends in moved)]
    if len(used) <= _MOST_LISTED:
        return {}
    most = max(moved.values()) or 1
    cells = {ends: (format_bytes(size), size / most) for ends, size in moved.items()}
    return {a: [cells.get((a, b), ("", 0.0)) for b in used] for a in used}
