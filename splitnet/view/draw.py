"""Draw a plan, a timeline or an audit into a file; the suffix says how."""

import os
from pathlib import Path

from splitnet.core.audit import Audit
from splitnet.core.errors import SplitnetError
from splitnet.core.plan import Plan
from splitnet.core.timeline import Timeline
from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.dot import dot_of
from splitnet.view.facts import part_facts
from splitnet.view.letters import warn_of_boxes
from splitnet.view.render import format_of, render_dot, write_beside
from splitnet.view.scene import dot_of_scene, svg_of_scene
from splitnet.view.settle import render_diagram
from splitnet.view.text import table
from splitnet.view.timeline import gantt_of
from splitnet.view.words import counted, escaped

__all__ = ["chart_of", "draw", "html_of", "page_of", "svg_of"]


def draw(
    thing: Plan | Audit | Timeline,
    path: str | os.PathLike[str],
    *,
    other: Plan | Timeline | None = None,
    calls: str | None = None,
    what: str = "placement",
) -> Path:
    """Draw a plan or a timeline into a file, whole or not at all; show nothing.

    Args:
        thing: a plan gives its placement diagram, an audit the same with what strayed
            marked, a timeline a chart of the step with a lane per device and per link,
            and the memory over time.
        path: where to; ".svg", ".png", ".pdf" or ".dot".
        other: beside a plan an earlier plan, and what moved since is marked; beside a
            timeline another, such as the measured one, drawn below on the same scale.
        calls: a part to open into its calls.
        what: "placement", or "timeline" for a plan's timeline with memory limits.

    Returns:
        The path written.

    Raises:
        SplitnetError: the suffix, the part or the thing is none that can be drawn, the
            file cannot be written, or no Graphviz is here (the DOT text is then left
            beside `path`).
    """
    kind = format_of(path)
    if what not in ("placement", "timeline"):
        raise SplitnetError(
            f"cannot draw the {what!r} of a plan. Allowed: 'placement', 'timeline'."
        )
    audit = thing if isinstance(thing, Audit) else None
    if isinstance(thing, Audit):
        thing = thing.plan
    if isinstance(thing, Timeline) or (isinstance(thing, Plan) and what == "timeline"):
        if calls is not None:
            raise SplitnetError(
                f"calls={calls!r} opens a part of a placement diagram, and this is a "
                "timeline. Leave it out, or draw the plan."
            )
        return _draw_timeline(thing, path, kind, other)
    if not isinstance(thing, Plan) or not isinstance(other, Plan | None):
        wrong = other if isinstance(thing, Plan) else thing
        raise SplitnetError(
            f"cannot draw a {type(wrong).__name__} here. Give a plan, an audit or a "
            "timeline; `other` is of the same kind."
        )
    text = dot_of(thing, other=other, calls=calls, audit=audit)
    if kind == "dot":
        return write_beside(path, text.encode())
    warn_of_boxes(text, kind)
    return write_beside(path, _rendered(text, kind, Path(path)))


def _draw_timeline(
    thing: Plan | Timeline,
    path: str | os.PathLike[str],
    kind: str,
    other: Plan | Timeline | None,
) -> Path:
    timelines = {"" if other is None else "planned": _timeline(thing)}
    if other is not None:
        timelines["measured" if isinstance(other, Timeline) else "other plan"] = (
            _timeline(other)
        )
    scene = gantt_of(
        timelines,
        cluster=thing.cluster if isinstance(thing, Plan) else None,
        title=thing.graph.name if isinstance(thing, Plan) else "timeline",
    )
    if kind == "svg":
        return write_beside(path, svg_of_scene(scene).encode())
    text = dot_of_scene(scene)
    if kind == "dot":
        return write_beside(path, text.encode())
    warn_of_boxes(text, kind)
    return write_beside(path, _rendered(text, kind, Path(path), chart=True))


def _timeline(thing: Plan | Timeline) -> Timeline:
    if isinstance(thing, Plan):
        return thing.timeline
    if isinstance(thing, Timeline):
        return thing
    raise SplitnetError(
        f"cannot draw a {type(thing).__name__} here. Give a plan or a timeline."
    )


def _rendered(text: str, kind: str, path: Path, *, chart: bool = False) -> bytes:
    """The picture; if there is no Graphviz, leave its DOT text behind and say so."""
    try:
        if chart:
            return render_dot(text, kind, program="nop2")
        return render_diagram(text, kind)
    except SplitnetError as error:
        left = write_beside(path.with_suffix(".dot"), text.encode())
        raise SplitnetError(f"{error} The DOT text is in {str(left)!r}.") from None


def svg_of(plan: Plan, audit: Audit | None = None) -> str:
    """Draw a plan as SVG text, for a notebook or a page; no XML prolog."""
    picture = render_diagram(dot_of(plan, audit=audit), "svg").decode()
    return picture[picture.index("<svg") :]


def chart_of(timeline: Timeline) -> str:
    """Draw a timeline as SVG text, for a notebook."""
    return svg_of_scene(gantt_of({"": timeline}, title=""))


def page_of(audit: Audit) -> str:
    """Show an audit as a piece of HTML: diagram and table, and no script."""
    return (
        '<div style="overflow:auto;background:white">'
        f"{svg_of(audit.plan, audit)}</div><pre>{_lines(table(audit))}</pre>"
    )


def _lines(text: str) -> str:
    return "\n".join(escaped(line) for line in text.splitlines())


def html_of(plan: Plan) -> str:
    """Show a plan as a piece of HTML: diagram, table and verdict, and no script."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escaped(one.name)}</th>"
        f"<td>{escaped(one.device)}</td><td>{escaped(one.reason)}</td>"
        f"<td>{format_bytes(one.total_bytes)}</td>"
        f"<td>{format_seconds(one.total_seconds)}</td></tr>"
        for one in part_facts(plan).values()
    )
    words = ("branch", "device", "why", "memory", "time")
    head = "".join(f"<th style='text-align:left'>{word}</th>" for word in words)
    said = "<br>".join(escaped(line) for line in str(plan.verdict).splitlines())
    return (
        f'<div style="overflow:auto;background:white">{svg_of(plan)}</div>'
        f"<p>{said}</p><details><summary>"
        f"{counted(len(plan.placements), 'part')}</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>"
    )
