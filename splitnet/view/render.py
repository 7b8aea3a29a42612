"""Draw plans, audits and timelines into files: SVG, PNG, PDF, DOT, Chrome traces.

Graphviz runs in a child process: a fault in its C code costs a picture, and not the
training that runs in this one. The child uses the bundled font, so that a machine
without fonts draws words too, and the same plan is laid out alike everywhere.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from splitnet.core.audit import Audit
from splitnet.core.errors import SplitnetError, warn
from splitnet.core.plan import Plan
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.dot import dot_of
from splitnet.view.style import clean, escaped
from splitnet.view.timeline import dot_of_steps, stacked

_FORMATS = ("svg", "png", "pdf", "dot")
_CHILD = Path(__file__).with_name("graphviz_child.py")
# Names of nodes, which browsers would show as tooltips.
_NAMES = re.compile(rb"<!--.*?-->\n|<title>[^<]*</title>\n")
_MOST_SECONDS = 90.0
_FONTS = Path(__file__).parent / "fonts"
_FONT_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")
# The bundled font replaces Helvetica; the machine's fonts serve other scripts.
_FONT_SETTINGS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<include ignore_missing="yes">{machine}</include>
<dir>{fonts}</dir>
<cachedir prefix="xdg">fontconfig</cachedir>
<match target="pattern">
<test name="family"><string>Helvetica</string></test>
<edit name="family" mode="prepend" binding="strong">
<string>Splitnet Sans</string>
</edit>
</match>
<match target="font">
<edit name="hinting"><bool>false</bool></edit>
<edit name="hintstyle"><const>hintnone</const></edit>
</match>
</fontconfig>
"""


def draw(
    thing: Plan | Audit | Timeline,
    path: str | os.PathLike[str],
    *,
    other: Plan | Timeline | None = None,
    dpi: Annotated[int, Meta(ge=1, le=2400)] = 96,
) -> Path:
    """Draw a plan, an audit or a timeline into a file, completely or not at all.

    Args:
        thing: a plan gives its placement diagram; an audit the same, with what ran
            elsewhere marked; a timeline, such as `plan.timeline`, a chart of the step
            with a lane per device and per link.
        path: the file; ".svg", ".png", ".pdf" or ".dot".
        other: beside a plan an earlier plan, and what moved since is marked; beside a
            timeline another, such as the measured one, drawn below on the same scale.
        dpi: dots per inch of a png; 192 for print.

    Returns:
        The path written.

    Raises:
        SplitnetError: the suffix or the thing cannot be drawn, the file cannot be
            written, or Graphviz is missing.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise SplitnetError(
            f"cannot draw to {os.fspath(path)!r}: "
            + (f"the suffix .{kind} is unknown. " if kind else "it has no suffix. ")
            + f"Allowed: {', '.join('.' + name for name in _FORMATS)}."
        )
    write_bytes(picture(thing, kind, other=other, dpi=dpi), path, "picture")
    return path


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
        audit = thing if isinstance(thing, Audit) else None
        plan = thing.plan if isinstance(thing, Audit) else thing
        text = dot_of(plan, other=other, audit=audit)
    else:
        raise SplitnetError(
            f"cannot draw a {type(other).__name__} beside a {type(thing).__name__}. "
            "Give a plan beside a plan, a timeline beside a timeline."
        )
    if kind == "dot":
        return text.encode()
    if kind != "svg":
        _warn_of_missing_letters(text, kind)
    return render_dot(text, kind, dpi=dpi)


def svg_of(text: str, program: str = "") -> str:
    """Draw DOT text as SVG text without an XML prolog."""
    picture = render_dot(text, "svg", program=program).decode()
    return picture[picture.index("<svg") :]


def render_dot(text: str, kind: str, *, dpi: int = 96, program: str = "") -> bytes:
    """Lay DOT text out and return the picture; nothing is written.

    In a digraph boxes have positions, in a graph all has; `program` is for one without.
    What Graphviz fails to lay out is tried again with straight lines.

    Raises:
        SplitnetError: Graphviz is missing, or the text is not a graph.
    """
    program = program or ("nop1" if text.startswith("digraph") else "nop2")
    size = [f"-Gdpi={dpi}"] if kind == "png" else []
    command = [sys.executable, "-P", str(_CHILD), kind, program, *size]
    fault = ""
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
            return _NAMES.sub(b"", done.stdout) if kind == "svg" else done.stdout
        said = done.stderr.decode(errors="replace").strip().splitlines()
        fault = said[-1] if said else f"it ended with code {done.returncode}"
    raise SplitnetError(
        f"Graphviz could not make the picture ({fault}). Install it with "
        "`pip install 'pygraphviz>=2'`, whose wheels include Graphviz, or draw to a "
        ".dot file and render that on another machine."
    )


def _environment(folder: Path) -> dict[str, str]:
    """The child's variables; on Linux with fontconfig settings that know our font.

    fontconfig writes into the folders that it reads: it gets a copy of the font in the
    user's cache, or in the temporary `folder`.
    """
    variables = dict(os.environ)
    if sys.platform != "linux":
        return variables
    home = variables.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for fonts in (Path(home, "splitnet", "fonts"), folder / "fonts"):
        with suppress(OSError, SplitnetError):  # no home, or one that is full
            fonts.mkdir(parents=True, exist_ok=True)
            for font in sorted(_FONTS.glob("*.ttf")):
                copy = fonts / font.name
                if not copy.is_file() or copy.stat().st_size != font.stat().st_size:
                    write_bytes(font.read_bytes(), copy, "font")
            break
    machine = escaped(variables.get("FONTCONFIG_FILE", "/etc/fonts/fonts.conf"))
    settings = folder / "fonts.conf"
    text = _FONT_SETTINGS.format(machine=machine, fonts=escaped(str(fonts)))
    settings.write_text(text, encoding="utf-8")
    return variables | {"FONTCONFIG_FILE": str(settings)}


def _warn_of_missing_letters(text: str, kind: str) -> None:
    """Warn if a png or pdf would show boxes for letters; an svg has the viewer's fonts.

    Only on Linux can a machine be without fonts; fontconfig's `fc-list` knows them.
    """
    foreign: dict[str, str] = {}  # a letter of each script that the bundled font lacks
    for character in dict.fromkeys(text):
        if character > "\u02ff" and unicodedata.category(character).startswith("L"):
            script = unicodedata.name(character, "LETTER").split()[0]
            if script not in _FONT_SCRIPTS:
                foreign.setdefault(script, character)
    program = shutil.which("fc-list")

    def has_font(letter: str) -> bool:
        query = [program or "", f":charset={ord(letter):x}", "family"]
        done = subprocess.run(query, capture_output=True) if program else None
        return done is not None and bool(done.stdout.strip())

    missing = [letter for letter in foreign.values() if not has_font(letter)]
    if missing and sys.platform == "linux":
        warn(
            f"no font here has letters such as {', '.join(missing)}, so the {kind} has "
            "boxes in their place. Install a font that has them (for Chinese, Japanese "
            "and Korean the package fonts-noto-cjk), or draw to .svg."
        )


Event = dict[str, object]


def trace(
    thing: Plan | Timeline,
    path: str | os.PathLike[str],
    *,
    measured: Timeline | None = None,
) -> Path:
    """Write a timeline as trace-event JSON, completely or not at all.

    A process per host, with a row per device and per link, and a curve of bytes in use
    per device. `measured`, a timeline of the same step as it ran, has processes of its
    own beside the planned ones.

    Raises:
        SplitnetError: the file cannot be written.
    """
    timelines = {"planned": thing.timeline if isinstance(thing, Plan) else thing}
    if measured is not None:
        timelines["measured"] = measured
    whole = {
        "displayTimeUnit": "ms",
        "otherData": {"made_by": "splitnet"},
        "traceEvents": list(_trace_events(timelines)),
    }
    write_bytes(json.dumps(whole, indent=0).encode(), Path(path), "trace")
    return Path(path)


def _trace_events(timelines: Mapping[str, Timeline]) -> Iterator[Event]:
    """Make the events, times in microseconds; each host of a timeline is a process."""
    process = 0
    for name, timeline in timelines.items():
        hosts: dict[str, list[str]] = {}
        for device in timeline.devices:
            hosts.setdefault(device.rpartition("/")[0], []).append(device)
        for host, devices in hosts.items():
            process += 1
            words = f"{name}, {host or 'this machine'}" if len(hosts) > 1 else name
            its: Event = {"pid": process, "tid": 0}
            yield its | {"ph": "M", "name": "process_name", "args": {"name": words}}
            for number, (title, row) in enumerate(_trace_rows(timeline, devices), 1):
                row_of: Event = {"pid": process, "tid": number}
                meta = row_of | {"ph": "M"}
                yield meta | {"name": "thread_name", "args": {"name": title}}
                order = {"sort_index": number}
                yield meta | {"name": "thread_sort_index", "args": order}
                yield from (row_of | _span(event) for event in row)
            for device in devices:
                curve = its | {"ph": "C", "name": f"memory of {device}"}
                for seconds, count in timeline.memory.get(device, ()):
                    yield curve | {"ts": seconds * 1e6, "args": {"bytes": count}}


def _span(event: Task | Copy) -> Event:
    args: Event = {"microbatch": event.microbatch}
    if isinstance(event, Copy):
        name = f"{event.kind}: {event.source} -> {event.target}"
        category, args["bytes"] = f"transfer,{event.phase}", event.bytes
    else:
        name, category, args["phase"] = event.part, event.phase, event.phase
    times = {"ts": event.start * 1e6, "dur": (event.stop - event.start) * 1e6}
    return {"ph": "X", "name": clean(name), "cat": category, **times, "args": args}


def _trace_rows(
    timeline: Timeline, devices: list[str]
) -> Iterator[tuple[str, Sequence[Task | Copy]]]:
    """The events of a host's devices, and of the links that leave them, by row.

    Copies of one link that overlap take further rows.
    """
    for device in devices:
        yield device, [task for task in timeline.tasks if task.device == device]
    links: dict[str, list[Copy]] = {}
    for copy in timeline.copies:
        if copy.source_device in devices:
            title = f"{copy.source_device} -> {copy.target_device}"
            links.setdefault(title, []).append(copy)
    for title, copies in links.items():
        for row in stacked(copies):
            yield title, row
