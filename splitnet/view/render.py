"""Draw plans, audits and timelines into files: SVG, PNG, PDF, DOT, Chrome traces.

Graphviz runs in a child process, by way of pygraphviz. A fault in its C code then costs
a picture and not the training that runs in this process. The child uses the bundled
font, so that a machine without fonts still draws words, and the same plan is laid out
alike everywhere.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

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
# Straight lines if Graphviz cannot route them around the boxes.
_ATTEMPTS = ((), ("-Gsplines=line",))
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

    In a digraph boxes have positions, in a graph all has; `program` is "dot" for one
    without. What Graphviz fails to lay out is tried again with straight lines.

    Raises:
        SplitnetError: Graphviz is missing, or the text is not a graph.
    """
    program = program or ("nop1" if text.startswith("digraph") else "nop2")
    size = [f"-Gdpi={dpi}"] if kind == "png" else []
    command = [sys.executable, "-P", str(_CHILD), kind, program, *size]
    fault = ""
    for extra in _ATTEMPTS:
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
        except OSError as error:
            fault = f"it could not start: {error.strerror}"
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

    fontconfig writes files into the folders that it reads, so that it reads a copy of
    the font in the user's cache, or in the temporary `folder`. Elsewhere there is
    always a font, and Graphviz finds it without fontconfig.
    """
    variables = dict(os.environ)
    if sys.platform != "linux":
        return variables
    home = variables.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for fonts in (Path(home, "splitnet", "fonts"), folder / "fonts"):
        try:
            fonts.mkdir(parents=True, exist_ok=True)
            for font in sorted(_FONTS.glob("*.ttf")):
                copy = fonts / font.name
                if not copy.is_file() or copy.stat().st_size != font.stat().st_size:
                    write_bytes(font.read_bytes(), copy, "font")
            break
        except (OSError, SplitnetError):  # no home, or one that is full
            continue
    machine = escaped(variables.get("FONTCONFIG_FILE", "/etc/fonts/fonts.conf"))
    settings = folder / "fonts.conf"
    text = _FONT_SETTINGS.format(machine=machine, fonts=escaped(str(fonts)))
    settings.write_text(text, encoding="utf-8")
    return variables | {"FONTCONFIG_FILE": str(settings)}


def _warn_of_missing_letters(text: str, kind: str) -> None:
    """Warn if a png or pdf of this text would show boxes instead of letters.

    An svg is drawn by its viewer, with the viewer's fonts. Only on Linux can a machine
    be without fonts; fontconfig's `fc-list` knows them.
    """
    if sys.platform != "linux":
        return
    foreign: dict[str, str] = {}  # a letter of each script that the bundled font lacks
    for character in dict.fromkeys(text):
        if character > "\u02ff" and unicodedata.category(character).startswith("L"):
            script = unicodedata.name(character, "LETTER").split()[0]
            if script not in _FONT_SCRIPTS:
                foreign.setdefault(script, character)
    missing = [letter for letter in foreign.values() if not _has_font(letter)]
    if missing:
        warn(
            f"no font here has letters such as {', '.join(missing)}, so the {kind} has "
            "boxes in their place. Install a font that has them (for Chinese, Japanese "
            "and Korean the package fonts-noto-cjk), or draw to .svg."
        )


def _has_font(letter: str) -> bool:
    """Whether fontconfig names a font that has a letter."""
    program = shutil.which("fc-list")
    query = [f":charset={ord(letter):x}", "family"]
    if program is None:
        return False
    return bool(subprocess.run([program, *query], capture_output=True).stdout.strip())


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
            yield its | {"ph": "M", "name": "process_name"} | _args(name=clean(words))
            rows = _trace_rows(timeline, devices)
            for number, ((title, _), spans) in enumerate(rows.items(), start=1):
                row: Event = {"ph": "M", "pid": process, "tid": number}
                yield row | {"name": "thread_name"} | _args(name=clean(title))
                yield row | {"name": "thread_sort_index"} | _args(sort_index=number)
                yield from (row | span for span in spans)
            for device in devices:
                curve = its | {"ph": "C", "name": clean(f"memory of {device}")}
                for seconds, count in timeline.memory.get(device, ()):
                    yield curve | {"ts": seconds * 1e6} | _args(bytes=count)


def _args(**values: object) -> Event:
    return {"args": values}


def _trace_rows(
    timeline: Timeline, devices: list[str]
) -> dict[tuple[str, int], list[Event]]:
    """The spans of a host's devices, and of the links that leave them, by row.

    Copies of one link that overlap take further rows.
    """
    rows: dict[tuple[str, int], list[Event]] = {(device, 0): [] for device in devices}

    def add(row: tuple[str, int], event: Task | Copy, name: str, **facts: Any) -> None:
        kind = "transfer," if isinstance(event, Copy) else ""
        times = {"ts": event.start * 1e6, "dur": (event.stop - event.start) * 1e6}
        span = {"ph": "X", "name": clean(name), "cat": kind + event.phase} | times
        args = _args(**facts, microbatch=event.microbatch)
        rows.setdefault(row, []).append(span | args)

    for task in timeline.tasks:
        if task.device in devices:
            add((task.device, 0), task, task.part, phase=task.phase)
    links: dict[str, list[Copy]] = {}
    for copy in timeline.copies:
        if copy.source_device in devices:
            title = f"{copy.source_device} -> {copy.target_device}"
            links.setdefault(title, []).append(copy)
    for title, copies in links.items():
        for copy, row in sorted(stacked(copies), key=lambda one: one[1]):
            name = f"{copy.kind}: {copy.source} -> {copy.target}"
            add((title, row), copy, name, bytes=copy.bytes)
    return rows
