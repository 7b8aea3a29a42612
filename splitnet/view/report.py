"""One page that says everything about a plan; it needs no network and no server."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from splitnet._version import __version__
from splitnet.core.audit import Audit
from splitnet.core.errors import SplitnetError
from splitnet.core.plan import Plan
from splitnet.core.timeline import PHASES, Timeline
from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.colors import colors_of
from splitnet.view.dot import dot_of
from splitnet.view.facts import (
    PartFacts,
    audit_row,
    objective_text,
    part_facts,
    search_text,
)
from splitnet.view.memory import memory_scene
from splitnet.view.render import write_beside
from splitnet.view.scene import svg_of_scene
from splitnet.view.settle import render_diagram
from splitnet.view.timeline import gantt_of
from splitnet.view.words import bytes_or_dash, clean, counted, shape_text

__all__ = ["report", "report_html"]

_MOST_ROWS = 1000
_WIDTHS = re.compile(r'<svg width="(\d+)[^"]*" height="(\d+)[^"]*"')


def report(
    thing: Plan | Audit,
    path: str | os.PathLike[str],
    *,
    measured: Timeline | None = None,
    audit: Audit | None = None,
) -> Path:
    """Write one self-contained page about a plan, whole or not at all; open nothing.

    Args:
        thing: a plan, or an audit, whose plan and findings are then shown.
        path: where to, usually "report.html".
        measured: the step as it ran; drawn below the planned one, on the same scale.
        audit: what was found when the plan's model ran.

    Raises:
        SplitnetError: the thing is neither a plan nor an audit, the file cannot be
            written, or no Graphviz is here.
    """
    return write_beside(
        path, report_html(thing, measured=measured, audit=audit).encode()
    )


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

    plan, found = _plan_and_audit(thing, audit)
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
    return environment.get_template("report.html.j2").render(
        version=__version__,
        plan=plan,
        name=clean(plan.graph.name),
        verdict=[clean(line) for line in str(plan.verdict).splitlines()],
        losing=plan.verdict is not None and not plan.verdict.worth_distributing,
        figures=_figures(plan),
        **_diagram(plan, found),
        timeline=Markup(svg_of_scene(gantt, prefix="timeline")),
        tall_timeline=gantt.height > gantt.width,
        memory=Markup(svg_of_scene(memory_scene(plan), prefix="memory")),
        measured=measured is not None,
        search=search_text(plan),
        **_tables(plan),
        audit=_audit(found),
    )


def _plan_and_audit(
    thing: Plan | Audit, audit: Audit | None
) -> tuple[Plan, Audit | None]:
    if isinstance(thing, Plan):
        return thing, audit
    if not isinstance(thing, Audit):
        raise SplitnetError(
            f"cannot report on a {type(thing).__name__}. Give a plan, or an audit; "
            "`report(plan, path, audit=...)` takes both."
        )
    return thing.plan, thing


def _diagram(plan: Plan, audit: Audit | None) -> Mapping[str, Any]:
    """The placement as SVG that fills its frame, and its size in points.

    The title, the totals and the verdict are the page's.
    """
    from markupsafe import Markup

    dot = dot_of(plan, audit=audit, headed=False)
    text = render_diagram(dot, "svg").decode()
    text = text[text.index("<svg") :]
    match = _WIDTHS.search(text)
    wide, tall = (int(match[1]), int(match[2])) if match else (3, 2)
    return {
        "diagram": Markup(_WIDTHS.sub("<svg", text, count=1)),
        "wide": wide,
        "tall": tall,
    }


def _figures(plan: Plan) -> list[tuple[str, str]]:
    """The numbers on top of the page."""
    used = list(dict.fromkeys(plan.device_of.values()))
    fullest = max(plan.memory, key=lambda d: plan.memory[d].total, default="")
    figures = [
        objective_text(plan),
        ("batch", str(plan.batch)),
        ("parts", str(len(plan.placements))),
        ("devices", f"{len(used)} of {len(plan.cluster)}"),
        ("moved per step", format_bytes(sum(t.bytes for t in plan.transfers))),
    ]
    if fullest:
        total = format_bytes(plan.memory[fullest].total)
        figures.append((f"fullest: {fullest}", total))
    return figures


def _tables(plan: Plan) -> Mapping[str, Any]:
    """The rows of the page's tables, as texts."""
    colors = colors_of(device.name for device in plan.cluster)
    phases = PHASES if plan.training else PHASES[:1]
    facts = list(part_facts(plan).values())
    return {
        "colors": colors,
        "phases": phases,
        "parts": [_part_row(one, phases) for one in facts[:_MOST_ROWS]],
        "more_parts": max(len(facts) - _MOST_ROWS, 0),
        "part_total": [
            counted(len(facts), "part"),
            "",
            "",
            "",
            bytes_or_dash(sum(one.weight_bytes for one in facts)),
            bytes_or_dash(sum(one.activation_bytes for one in facts)),
            *(
                format_seconds(sum(one.seconds.get(phase, 0.0) for one in facts))
                for phase in phases
            ),
        ],
        "transfers": _transfer_rows(plan),
        "fallbacks": [
            (clean(f.part), f.requested, f.assigned, clean(f.reason))
            for f in plan.fallbacks
        ],
    }


def _part_row(one: PartFacts, phases: Sequence[str]) -> Mapping[str, Any]:
    times = [one.seconds.get(phase, 0.0) for phase in phases]
    return {
        "name": clean(one.name),
        "device": one.device,
        "why": f"asked {one.fallback.requested}" if one.fallback else one.reason,
        "fallback": one.fallback is not None,
        "layers": ", ".join(dict.fromkeys(clean(layer) for layer in one.layers)),
        "shapes": ", ".join(dict.fromkeys(shape_text(s) for s in one.shapes)),
        "numbers": [
            bytes_or_dash(one.weight_bytes),
            bytes_or_dash(one.activation_bytes),
            *(format_seconds(t) if t else "-" for t in times),
        ],
    }


def _transfer_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Transfers by pair of devices and kind, the heaviest first."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    for t in plan.transfers:
        row = sums.setdefault((t.source_device, t.target_device, t.kind), [0, 0, 0.0])
        row[0] += 1
        row[1] += t.bytes
        row[2] += t.seconds
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])[:_MOST_ROWS]
    return [
        (*key, f"{count:.0f}", format_bytes(size), format_seconds(spent))
        for key, (count, size, spent) in ordered
    ]


def _audit(found: Audit | None) -> Mapping[str, Any] | None:
    if found is None:
        return None
    return {
        "ok": found.ok,
        "findings": [
            (f.aspect, clean(f.part), f.planned, f.actual, clean(f.text))
            for f in found.findings
        ],
        "rows": [tuple(clean(cell) for cell in audit_row(row)) for row in found.rows],
        "moved": [
            (*ends, format_bytes(planned), format_bytes(actual))
            for ends, (planned, actual) in found.moved.items()
        ],
        "notes": [clean(note) for note in found.notes],
    }
