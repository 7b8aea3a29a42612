"""What a notebook shows: nets, clusters, plans, steps, and a search while it runs."""

import sys
from collections.abc import Callable
from importlib import import_module

import graphviz

from splitnet.core.audit import Audit
from splitnet.core.cluster import Cluster, Device
from splitnet.core.errors import format_bytes, format_count
from splitnet.core.net import Branch, Net
from splitnet.core.plan import Plan
from splitnet.core.timeline import Timeline
from splitnet.view.diagram import fold
from splitnet.view.dot import dot_of
from splitnet.view.legend import layers_text
from splitnet.view.render import svg_of
from splitnet.view.style import (
    FONT,
    QUIET,
    THIN,
    Line,
    Mark,
    Scene,
    Words,
    clean,
    colors_of,
    counted,
    dot_of_scene,
    escaped,
    html_label,
    mixed,
    ranged,
)
from splitnet.view.tables import table
from splitnet.view.timeline import gantt_of

__all__ = ["html_of", "notebook_progress", "svg_of_net", "svg_of_timeline"]

_MOST_BOXES = 40


def html_of(thing: Plan | Audit | Cluster) -> str:
    """A picture and a table below it; without script."""
    lines = "\n".join(escaped(line) for line in table(thing, width=100).splitlines())
    if isinstance(thing, Cluster):
        svg = svg_of(dot_of_scene(_scene_of(thing)))
    else:
        plan, audit = (thing.plan, thing) if isinstance(thing, Audit) else (thing, None)
        svg = svg_of(dot_of(plan, audit=audit))
    return f'<div style="overflow:auto;background:white">{svg}</div><pre>{lines}</pre>'


def _scene_of(cluster: Cluster) -> Scene:
    """The devices of each host in rows, each with its memory and speed."""
    wide, tall, gap, row = 132.0, 58.0, 12.0, 6
    colors = colors_of(device.name for device in cluster)
    hosts: dict[str, list[Device]] = {}
    for device in cluster:
        hosts.setdefault(device.host, []).append(device)
    items: list[Mark | Words] = []
    most = min(row, max(map(len, hosts.values())))
    width, y = most * (wide + gap) + 3 * gap, gap
    for host, devices in hosts.items():
        height = 24 + -(-len(devices) // row) * (tall + gap)
        items.append(Mark(gap, y, width - 2 * gap, height, "#f6f7f9", outline=THIN))
        items.append(Words(2 * gap, y + 12, clean(host) or "this machine", bold=True))
        for number, one in enumerate(devices):
            x = 2 * gap + number % row * (wide + gap)
            top, color = y + 24 + number // row * (tall + gap), colors[one.name]
            fill = mixed(color, "#ffffff", 0.72)
            items.append(Mark(x, top, wide, tall, fill, outline=color))
            said = [
                one.name.rpartition("/")[2] + (" (stand-in)" if one.stand_in else ""),
                format_bytes(one.memory_bytes),
                f"{format_count(one.flops_per_second)}FLOP/s",
            ]
            for line, text in enumerate(said):
                at = x + wide / 2, top + 14 + 15 * line
                items.append(Words(*at, text, bold=not line, centered=True))
        y += height + gap
    return Scene(width, y, "devices", tuple(items))


def svg_of_timeline(timeline: Timeline) -> str:
    """The chart of a step as SVG text."""
    return svg_of(dot_of_scene(gantt_of({"": timeline}, title="")))


def svg_of_net(net: Net) -> str:
    """The declared branches of a net as SVG text, with the devices asked for."""
    branch = {one.name: one for one in net.branches}
    asked = {name: ", ".join(one.on) for name, one in branch.items()}
    layers = {name: _layers(one) for name, one in branch.items()}
    look = {name: (one.kind, layers[name]) for name, one in branch.items()}
    dot = graphviz.Digraph(
        graph_attr={"rankdir": "LR", "bgcolor": "white", "pad": "0.2"},
        node_attr={"fontname": FONT, "shape": "box", "style": "filled,rounded"},
        edge_attr={"color": THIN, "arrowsize": "0.6"},
    )
    box: dict[str, str] = {}
    for number, block in enumerate(fold(list(branch), asked, look, most=_MOST_BOXES)):
        first, count = branch[block.members[0]], len(block.members)
        rows = [(Line(ranged(block.members, 34), 10, bold=True),)]
        if count > 1:
            rows.append((Line(counted(count, "branch"), 8.5, QUIET),))
        if layers[first.name]:
            rows.append((Line(layers_text(layers[first.name]), 8.5, QUIET),))
        if first.on != ("auto",) and first.kind != "input":
            rows.append((Line(f"on {asked[first.name]}", 9),))
        fill = "white" if first.kind == "input" else mixed("#034793", "#ffffff", 0.9)
        dot.node(str(number), label=html_label(rows), fillcolor=fill, tooltip=" ")
        box |= dict.fromkeys(block.members, str(number))
    ends = {
        (box[ref.name], box[one.name]) for one in net.branches for ref in one.sources
    }
    for source, target in sorted(ends):
        if source != target:
            dot.edge(source, target, tooltip=" ")
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
