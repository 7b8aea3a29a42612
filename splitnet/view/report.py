"""One self-contained HTML page about a plan: diagram, timeline, memory, tables."""

import os
import re
from pathlib import Path

from splitnet import __version__
from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Plan
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import Timeline
from splitnet.view.dot import dot_of
from splitnet.view.facts import (
    algorithm_text,
    bottleneck_text,
    objective_text,
    transfer_sums,
    verdict_lines,
)
from splitnet.view.render import svg_of
from splitnet.view.style import clean, colors_of, dot_of_scene, mixed, percent
from splitnet.view.tables import MEMORY, PAGE, audit_grids, plan_grids
from splitnet.view.timeline import gantt_of

__all__ = ["report", "report_html"]

_MOST_LISTED = 4
_SIZE = re.compile(r'<svg width="(\d+)[^"]*" height="(\d+)[^"]*"')


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
    timelines = {"planned": plan.timeline}
    if measured is not None:
        timelines["measured"] = measured
    compared = plan.verdict.strategies if plan.verdict is not None else None
    strategies = compared.all if compared is not None else ()
    gantt = gantt_of(timelines, cluster=plan.cluster, title="")
    diagram = svg_of(dot_of(plan, audit=audit, headed=False))
    size = _SIZE.search(diagram)
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
        diagram=Markup(_SIZE.sub("<svg", diagram, count=1)),
        wide=int(size[1]) if size else 3,
        tall=int(size[2]) if size else 2,
        timeline=Markup(svg_of(dot_of_scene(gantt))),
        tall_timeline=gantt.height > gantt.width,
        memory=_memory_bars(plan),
        matrix=_matrix(plan),
        measured=measured is not None,
        algorithm=algorithm_text(plan),
        colors=colors_of(device.name for device in plan.cluster),
        grids=plan_grids(plan, PAGE),
        audit=audit,
        audited=audit_grids(audit) if audit is not None else {},
        clean=clean,
        strategies=strategies,
        slowest=max((one.seconds for one in strategies), default=0.0) or 1.0,
        seconds=format_seconds,
    )


def _figures(plan: Plan) -> list[tuple[str, str]]:
    """The numbers on top of the page."""
    used = set(plan.device_of.values())
    fullest = max(plan.memory, key=lambda d: plan.memory[d].total)
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


def _memory_bars(plan: Plan) -> list[dict[str, object]]:
    """Per device its share of the limit, and what its peak consists of, as lengths.

    The lengths of pieces are in per cent of the largest peak.
    """
    colors = colors_of(device.name for device in plan.cluster)
    largest = max(memory.total for memory in plan.memory.values()) or 1
    rows: list[dict[str, object]] = []
    for device in plan.cluster:
        memory, limit = plan.memory[device.name], device.memory_bytes
        share = memory.total / limit if limit else 0.0
        sizes = {kind.replace("_", " "): getattr(memory, kind) for kind in MEMORY}
        shades = zip(sizes.items(), (0.0, 0.2, 0.4, 0.6, 0.75, 0.88), strict=True)
        rows.append(
            {
                "name": device.name,
                "share": min(100 * share, 100),
                "over": memory.total > limit,
                "said": f"{format_bytes(memory.total)}, {percent(share)} "
                f"of {format_bytes(limit)}",
                "pieces": [
                    (
                        f"{word} {format_bytes(size)}",
                        100 * size / largest,
                        mixed(colors[device.name], "#ffffff", pale),
                    )
                    for (word, size), pale in shades
                    if size
                ],
            }
        )
    return rows
