"""One self-contained HTML page about a plan: diagram, timeline, memory, tables."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitnet._version import __version__
from splitnet.core.audit import Audit
from splitnet.core.errors import SplitnetError, format_bytes, format_seconds
from splitnet.core.plan import Plan
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import Timeline
from splitnet.view.facts import (
    PartFacts,
    algorithm_text,
    objective_text,
    part_facts,
    phases_of,
    reason_text,
    transfer_sums,
    verdict_lines,
)
from splitnet.view.memory_chart import memory_scene
from splitnet.view.render import svg_of_plan
from splitnet.view.style import (
    bytes_or_dash,
    clean,
    colors_of,
    counted,
    seconds_or_dash,
    shape_text,
    svg_of_scene,
)
from splitnet.view.tables import ASPECTS
from splitnet.view.timeline import gantt_of

__all__ = ["report", "report_html"]

_MOST_ROWS = 1000
_SIZE = re.compile(r'<svg width="(\d+)[^"]*" height="(\d+)[^"]*"')


def report(
    thing: Plan | Audit,
    path: str | os.PathLike[str],
    *,
    measured: Timeline | None = None,
    audit: Audit | None = None,
) -> Path:
    """Write one self-contained HTML page about a plan, completely or not at all.

    Args:
        thing: a plan, or an audit, whose plan and findings are then shown.
        path: the file, usually "report.html".
        measured: the step as it ran; drawn below the planned one, on the same scale.
        audit: what was found when the plan's model ran.

    Raises:
        SplitnetError: the thing is neither a plan nor an audit, the file cannot be
            written, or Graphviz is missing.
    """
    page = report_html(thing, measured=measured, audit=audit)
    write_bytes(page.encode(), Path(path), "report")
    return Path(path)


def report_html(
    thing: Plan | Audit,
    *,
    measured: Timeline | None = None,
    audit: Audit | None = None,
) -> str:
    """Make the page of `report` as text, and write no file."""
    # Jinja takes longer to import than the rest of the view, and only pages need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    if not isinstance(thing, Plan | Audit):
        raise SplitnetError(
            f"cannot report on a {type(thing).__name__}. Give a plan, or an audit; "
            "`report(plan, path, audit=...)` takes both."
        )
    plan, audit = (thing.plan, thing) if isinstance(thing, Audit) else (thing, audit)
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
    gantt = gantt_of(timelines, cluster=plan.cluster, title="")
    diagram = svg_of_plan(plan, audit, headed=False)
    size = _SIZE.search(diagram)
    return environment.get_template("report.html.j2").render(
        version=__version__,
        name=clean(plan.graph.name),
        verdict=[clean(line) for line in verdict_lines(plan)],
        worth=plan.verdict is None or plan.verdict.worth_distributing,
        figures=_figures(plan),
        diagram=Markup(_SIZE.sub("<svg", diagram, count=1)),
        wide=int(size[1]) if size else 3,
        tall=int(size[2]) if size else 2,
        timeline=Markup(svg_of_scene(gantt, prefix="timeline")),
        tall_timeline=gantt.height > gantt.width,
        memory=Markup(svg_of_scene(memory_scene(plan), prefix="memory")),
        measured=measured is not None,
        algorithm=algorithm_text(plan),
        colors=colors_of(device.name for device in plan.cluster),
        **_tables(plan),
        aspects=ASPECTS,
        audit=audit,
        copies=_audited_copies(audit),
    )


def _figures(plan: Plan) -> list[tuple[str, str]]:
    """The numbers on top of the page."""
    used = set(plan.device_of.values())
    fullest = max(plan.memory, key=lambda d: plan.memory[d].total, default="")
    figures = [
        objective_text(plan),
        ("batch", str(plan.batch)),
        ("parts", str(len(plan.placements))),
        ("devices", f"{len(used)} of {len(plan.cluster)}"),
        ("transferred per step", format_bytes(sum(t.bytes for t in plan.transfers))),
    ]
    if fullest:
        total = format_bytes(plan.memory[fullest].total)
        figures.append((f"memory peak: {fullest}", total))
    return figures


def _tables(plan: Plan) -> Mapping[str, Any]:
    """The rows of the page's tables, as texts."""
    facts = list(part_facts(plan).values())
    phases = phases_of(plan)
    times = [sum(one.seconds.get(phase, 0.0) for one in facts) for phase in phases]
    return {
        "phases": phases,
        "parts": [_part_row(one, phases) for one in facts[:_MOST_ROWS]],
        "more_parts": max(len(facts) - _MOST_ROWS, 0),
        "total": [
            counted(len(facts), "part"),
            *("", "", ""),
            bytes_or_dash(sum(one.weight_bytes for one in facts)),
            bytes_or_dash(sum(one.activation_bytes for one in facts)),
            *map(seconds_or_dash, times),
        ],
        "transfers": [
            (
                *(one.source, one.target, one.kind, str(one.count)),
                *(format_bytes(one.bytes), format_seconds(one.seconds)),
            )
            for one in transfer_sums(plan)[:_MOST_ROWS]
        ],
        "fallbacks": [
            (clean(one.part), one.requested, one.assigned, clean(one.reason))
            for one in plan.fallbacks
        ],
    }


def _part_row(one: PartFacts, phases: tuple[str, ...]) -> Mapping[str, Any]:
    return {
        "name": clean(one.name),
        "device": one.device,
        "reason": reason_text(one),
        "fallback": one.fallback is not None,
        "layers": ", ".join(dict.fromkeys(clean(layer) for layer in one.layers)),
        "shapes": ", ".join(dict.fromkeys(shape_text(s) for s in one.shapes)),
        "numbers": [
            bytes_or_dash(one.weight_bytes),
            bytes_or_dash(one.activation_bytes),
            *(seconds_or_dash(one.seconds.get(phase, 0.0)) for phase in phases),
        ],
    }


def _audited_copies(audit: Audit | None) -> list[tuple[str, ...]]:
    """Bytes between devices as planned and as they were."""
    moved = audit.moved if audit is not None else {}
    return [
        (*ends, format_bytes(planned), format_bytes(actual))
        for ends, (planned, actual) in moved.items()
    ]
