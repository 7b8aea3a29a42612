"""Plans, audits, timelines, nets and clusters as pictures: in files, in notebooks.

Graphviz runs in a child process: a fault in its C code costs a picture, and not the
training that runs in this one. The child uses the bundled font, so that a machine
without fonts draws words too, and the same plan is laid out alike everywhere.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated

import graphviz
from msgspec import Meta

from splitnet.core.audit import Audit
from splitnet.core.cluster import Cluster
from splitnet.core.errors import SplitnetError, format_bytes, format_count, warn
from splitnet.core.net import Net
from splitnet.core.plan import Plan
from splitnet.core.serialization import PICTURES, AnyPath, user_cache, write_bytes
from splitnet.core.timeline import Timeline
from splitnet.view import style
from splitnet.view.diagram import fold
from splitnet.view.dot import dot_of, layers_text
from splitnet.view.style import QUIET, Line, escaped, mixed
from splitnet.view.tables import table
from splitnet.view.timeline import dot_of_steps

_CHILD = Path(__file__).with_stem("graphviz_child")  # .py, or .pyc
# What precedes the picture, and names of nodes, which browsers show as tooltips.
_NOT_DRAWN = re.compile(rb"\A[\s\S]*?(?=<svg)|<!--.*?-->\n|<title>[^<]*</title>\n")
_DATE = re.compile(rb"/CreationDate \([^)]*\)")  # of a pdf
_MOST_SECONDS = 90.0
_MOST_BOXES = 40  # of a net
_FONTS = Path(__file__).parent / "fonts"
_FONT_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")


def draw(
    thing: Plan | Audit | Timeline,
    path: AnyPath,
    *,
    other: Plan | Timeline | None = None,
    dpi: Annotated[int, Meta(ge=1, le=2400)] = 96,
) -> Path:
    """Draw a plan, an audit or a timeline into a file, completely or not at all.

    Args:
        thing: a plan gives its placement diagram; an audit the same, with what ran
            elsewhere marked; a timeline, such as `plan.timeline`, a chart with a lane
            per device that works, and one for each of up to twelve links.
        path: the file; ".svg", ".png", ".pdf" or ".dot".
        other: beside a plan an earlier plan, and what moved since is marked; beside a
            timeline another, such as the measured one, drawn below on the same scale.
        dpi: dots per inch of a png; 192 for print.

    Raises:
        SplitnetError: the suffix or the thing cannot be drawn, the file cannot be
            written, or Graphviz is missing.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in PICTURES:
        fault = f"the suffix .{kind} is unknown" if kind else "it has no suffix"
        known = ", ".join(f".{name}" for name in PICTURES)
        raise SplitnetError(f"cannot draw to {str(path)!r}: {fault}. Allowed: {known}.")
    return write_bytes(picture(thing, kind, other=other, dpi=dpi), path, "picture")


def picture(
    thing: Plan | Audit | Timeline,
    kind: str,
    *,
    other: Plan | Timeline | None = None,
    dpi: int = 96,
) -> bytes:
    """What `draw` writes into a file of this kind, "svg", "png", "pdf" or "dot"."""
    if isinstance(thing, Timeline) and isinstance(other, Timeline | None):
        text = dot_of_steps({"": thing} | ({"other": other} if other else {}))
    elif not isinstance(thing, Timeline) and isinstance(other, Plan | None):
        plan, audit = (thing.plan, thing) if isinstance(thing, Audit) else (thing, None)
        text = dot_of(plan, other=other, audit=audit)
    else:
        pair = f"a {type(other).__name__} beside a {type(thing).__name__}"
        hint = "Give a plan beside a plan, a timeline beside a timeline."
        raise SplitnetError(f"cannot draw {pair}. {hint}")
    if kind == "dot":
        return text.encode()
    if kind != "svg":
        _warn_of_missing_letters(text, kind)
    return render_dot(text, kind, dpi=dpi)


def notebook_output(thing: Plan | Audit | Cluster | Timeline | Net) -> dict[str, str]:
    """What a notebook shows, by MIME type: a picture, of most with a table below it."""
    if isinstance(thing, Cluster):
        svg = render_dot(_dot_of_devices(thing), "svg", program="osage")
    elif isinstance(thing, Net):
        svg = render_dot(_dot_of_net(thing), "svg", program="dot")
    else:
        svg = picture(thing, "svg")
    if isinstance(thing, Timeline | Net):
        return {"image/svg+xml": svg.decode()}
    lines = "\n".join(escaped(line) for line in table(thing, width=100).splitlines())
    shown = f'<div style="overflow:auto;background:white">{svg.decode()}</div>'
    return {"text/html": f"{shown}<pre>{lines}</pre>"}


def _dot_of_devices(cluster: Cluster) -> str:
    colors = style.colors_of(cluster.names)
    dot = style.page(graphviz.Digraph(), fixed=False, pack="12")
    for host in dict.fromkeys(device.host for device in cluster):
        name = style.html_label([Line(host or "this machine", 11)])
        frame = graphviz.Digraph(f"cluster_{host}")
        frame.attr(label=name, style="rounded", color=style.THIN, pack="12")
        for one in (device for device in cluster if device.host == host):
            called = one.name.rpartition("/")[2] + " (stand-in)" * one.stand_in
            rows = [Line(called, 10, bold=True), Line(format_bytes(one.memory_bytes))]
            rows.append(Line(f"{format_count(one.flops_per_second)}FLOP/s"))
            look = {"fillcolor": mixed(colors[one.name], "#ffffff", 0.72)}
            look["color"] = colors[one.name]
            frame.node(one.name.replace(":", "-"), style.html_label(rows), **look)
        dot.subgraph(frame)
    return str(dot.source)


def _dot_of_net(net: Net) -> str:
    branch = {one.name: one for one in net.branches}
    # Of towers and slices, the devices of each.
    on = {n: b.towers.on if b.towers else b.slices or [b.on] for n, b in branch.items()}
    requested = {n: ", ".join(map(" or ".join, each)) for n, each in on.items()}
    layers = {name: _layers(one.body) for name, one in branch.items()}
    look = {name: (one.kind, layers[name]) for name, one in branch.items()}
    dot = style.page(graphviz.Digraph(), fixed=False, rankdir="LR", pad="0.2")
    box: dict[str, str] = {}
    for block in fold(list(branch), requested, look, most=_MOST_BOXES):
        first, count = branch[block.members[0]], len(block.members)
        rows = [Line(style.ranged(block.members, 34), 10, bold=True)]
        rows += [Line(style.counted(count, "branch"), 8.5, QUIET)] * (count > 1)
        if layers[first.name]:
            rows.append(Line(layers_text(layers[first.name]), 8.5, QUIET))
        if requested[first.name] != "auto" and first.kind != "input":
            rows.append(Line(f"on {style.shortened(requested[first.name], 34)}", 9))
        fill = "white" if first.kind == "input" else mixed("#034793", "#ffffff", 0.9)
        number = str(len(dot.body))
        dot.node(number, label=style.html_label(rows), fillcolor=fill)
        box |= dict.fromkeys(block.members, number)
    ends = {(box[x.name], box[one.name]) for one in net.branches for x in one.sources}
    dot.edges(sorted((source, target) for source, target in ends if source != target))
    return str(dot.source)


def _layers(body: object) -> tuple[str, ...]:
    """The kinds of a branch's layers; of a function its name."""
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


def render_dot(text: str, kind: str, *, dpi: int = 96, program: str = "") -> bytes:
    """Lay DOT text out; what Graphviz fails on is tried again with straight lines.

    In a digraph boxes have positions, in a graph all has; `program` is for one without.
    """
    program = program or ("nop1" if text.startswith("digraph") else "nop2")
    size = [f"-Gdpi={dpi}"] if kind == "png" else []
    command = [sys.executable, "-P", str(_CHILD), kind, program, *size]
    for extra in ([], ["-Gsplines=line"]):
        try:
            with tempfile.TemporaryDirectory(prefix="splitnet-") as folder:
                done = subprocess.run(
                    [*command, *extra],
                    input=text.encode(),
                    capture_output=True,
                    timeout=_MOST_SECONDS,
                    env=_environment(Path(folder)),
                )
        except subprocess.TimeoutExpired:
            fault = f"it took more than {_MOST_SECONDS:.0f} s"
            continue
        if done.returncode == 0 and done.stdout:
            if kind == "pdf":  # which knows the places of its parts
                return _DATE.sub(lambda date: b" " * len(date[0]), done.stdout)
            return _NOT_DRAWN.sub(b"", done.stdout) if kind == "svg" else done.stdout
        said = done.stderr.decode(errors="replace").strip().splitlines()
        fault = said[-1] if said else f"it ended with code {done.returncode}"
    raise SplitnetError(
        f"Graphviz could not make the picture ({fault}; temporary files are in "
        f"{tempfile.gettempdir()}). If it is missing: `pip install 'pygraphviz>=2'`; "
        "in slim images glib and X11, too (Debian: libglib2.0-0 libxext6 libxrender1). "
        "Or draw to a .dot file and render that on another machine."
    )


def _environment(folder: Path) -> dict[str, str]:
    """The child's variables; on Linux with fontconfig settings that know our font.

    fontconfig writes into the folders that it reads: it gets a copy of the font in the
    user's cache, or in the temporary `folder`.
    """
    variables = dict(os.environ)
    if sys.platform != "linux":
        return variables
    for fonts in (place / "fonts" for place in (*user_cache(), folder)):
        with suppress(OSError, SplitnetError):  # no home, or one that is full
            fonts.mkdir(parents=True, exist_ok=True)
            for font in sorted(_FONTS.glob("*.ttf")):
                copy = fonts / font.name
                if not copy.is_file() or copy.stat().st_size != font.stat().st_size:
                    write_bytes(font.read_bytes(), copy, "font")
            break
    machine = escaped(variables.get("FONTCONFIG_FILE", "/etc/fonts/fonts.conf"))
    ours, settings = _FONTS / "fonts.conf", folder / "fonts.conf"
    text = ours.read_text("utf-8").format(machine=machine, fonts=escaped(str(fonts)))
    settings.write_text(text, encoding="utf-8")
    return variables | {"FONTCONFIG_FILE": str(settings)}


def _warn_of_missing_letters(text: str, kind: str) -> None:
    """Warn if a png or pdf would show boxes for letters: only Linux may lack fonts."""
    if text.isascii() or sys.platform != "linux":
        return
    foreign: dict[str, str] = {}  # a letter of each script that the bundled font lacks
    for letter in (c for c in text if c.isalpha() or c > "\uffff"):  # emoji, too
        script = unicodedata.name(letter, "LETTER").split()[0]
        if letter > "\u02ff" and script not in _FONT_SCRIPTS:
            foreign.setdefault(script, letter)
    program, missing = shutil.which("fc-list"), []
    for letter in foreign.values():
        query = [program or "true", f":charset={ord(letter):x}", "family"]
        if not subprocess.run(query, capture_output=True).stdout.strip():
            missing.append(letter)
    if missing:
        warn(
            f"no font here has letters such as {', '.join(missing)}, so the {kind} has "
            "boxes in their place. Install a font that has them (for Chinese, Japanese "
            "and Korean the package fonts-noto-cjk), or draw to .svg."
        )
