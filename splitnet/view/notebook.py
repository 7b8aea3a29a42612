"""Pictures of nets, clusters, plans and steps in a notebook, and a progress bar."""

import sys
from collections.abc import Callable
from importlib import import_module

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.cluster import Cluster
from splitnet.core.errors import format_bytes, format_count
from splitnet.core.net import Branch, Net
from splitnet.core.plan import Plan
from splitnet.core.timeline import Timeline
from splitnet.view.diagram import fold
from splitnet.view.dot import dot_of, layers_text
from splitnet.view.render import svg_of
from splitnet.view.style import (
    QUIET,
    THIN,
    Line,
    colors_of,
    counted,
    escaped,
    html_label,
    mixed,
    page,
    ranged,
)
from splitnet.view.tables import table
from splitnet.view.timeline import dot_of_steps

_MOST_BOXES = 40


def html_of(thing: Plan | Audit | Cluster) -> str:
    """A picture and a table below it; without script."""
    if isinstance(thing, Cluster):
        svg = svg_of(_dot_of_devices(thing), program="osage")
    else:
        plan, audit = (thing.plan, thing) if isinstance(thing, Audit) else (thing, None)
        svg = svg_of(dot_of(plan, audit=audit))
    lines = "\n".join(escaped(line) for line in table(thing, width=100).splitlines())
    return f'<div style="overflow:auto;background:white">{svg}</div><pre>{lines}</pre>'


def svg_of_timeline(timeline: Timeline) -> str:
    """The chart of a step as SVG text."""
    return svg_of(dot_of_steps({"": timeline}))


def _dot_of_devices(cluster: Cluster) -> str:
    """A frame for each host, its devices in rows with their memory and speed."""
    colors = colors_of(device.name for device in cluster)
    dot = page(graphviz.Digraph(), fixed=False, pack="12")
    for host in dict.fromkeys(device.host for device in cluster):
        name = html_label([Line(host or "this machine", 11)])
        frame = graphviz.Digraph(f"cluster_{host}")
        frame.attr(label=name, style="rounded", color=THIN, pack="12")
        for one in (device for device in cluster if device.host == host):
            stand_in = " (stand-in)" if one.stand_in else ""
            rows = [
                Line(one.name.rpartition("/")[2] + stand_in, 10, bold=True),
                Line(format_bytes(one.memory_bytes)),
                Line(f"{format_count(one.flops_per_second)}FLOP/s"),
            ]
            look = {"fillcolor": mixed(colors[one.name], "#ffffff", 0.72)}
            look["color"] = colors[one.name]
            frame.node(one.name.replace(":", "-"), html_label(rows), **look)
        dot.subgraph(frame)
    return str(dot.source)


def svg_of_net(net: Net) -> str:
    """The declared branches of a net as SVG text, with the requested devices."""
    branch = {one.name: one for one in net.branches}
    requested = {name: ", ".join(one.on) for name, one in branch.items()}
    layers = {name: _layers(one) for name, one in branch.items()}
    look = {name: (one.kind, layers[name]) for name, one in branch.items()}
    dot = page(graphviz.Digraph(), fixed=False, rankdir="LR", pad="0.2")
    box: dict[str, str] = {}
    for block in fold(list(branch), requested, look, most=_MOST_BOXES):
        first, count = branch[block.members[0]], len(block.members)
        rows = [Line(ranged(block.members, 34), 10, bold=True)]
        if count > 1:
            rows.append(Line(counted(count, "branch"), 8.5, QUIET))
        if layers[first.name]:
            rows.append(Line(layers_text(layers[first.name]), 8.5, QUIET))
        if first.on != ("auto",) and first.kind != "input":
            rows.append(Line(f"on {requested[first.name]}", 9))
        fill = "white" if first.kind == "input" else mixed("#034793", "#ffffff", 0.9)
        number = str(len(dot.body))
        dot.node(number, label=html_label(rows), fillcolor=fill)
        box |= dict.fromkeys(block.members, number)
    ends = {
        (box[ref.name], box[one.name]) for one in net.branches for ref in one.sources
    }
    dot.edges(sorted((source, target) for source, target in ends if source != target))
    return svg_of(str(dot.source), program="dot")


def _layers(branch: Branch) -> tuple[str, ...]:
    """The kinds of a branch's layers; of a function its name."""
    body = branch.body
    its = body if isinstance(body, list | tuple) else [body] if body is not None else []
    return tuple(getattr(one, "__name__", type(one).__name__) for one in its)


def notebook_progress() -> Callable[[float, float], None] | None:
    """A bar for `on_progress=` where this is a notebook; otherwise None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ != "ZMQInteractiveShell":
        return None
    notebook = import_module("IPython.display")
    shown = notebook.display(notebook.HTML("planning"), display_id=True)

    def advance(share: float, value: float) -> None:
        bar = f'<progress value="{share:.3f}"></progress>'
        shown.update(notebook.HTML(f"planning {bar} best {value:.4g}"))

    return advance
