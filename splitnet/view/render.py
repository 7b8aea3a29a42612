"""From DOT to a file: pygraphviz' own Graphviz first, an installed `dot` second.

Graphviz runs in a child process. A picture that it chokes on, or a fault in its C code,
then costs a picture and not the training that runs in this one; and its own chatter on
the screen stays out of sight. The child is lent a font, so that there are words in the
picture on a machine that has no font at all, and the same plan is laid out alike
everywhere.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from splitnet.core.errors import SplitnetError
from splitnet.view.words import escaped

__all__ = ["FORMATS", "format_of", "render_dot", "write_beside"]

FORMATS = ("svg", "png", "pdf", "dot")

_CHILD = (
    "import sys, pygraphviz\n"
    "graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())\n"
    "sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog=sys.argv[2]))\n"
)
_MOST_SECONDS = 120.0
_FONTS = Path(__file__).parent / "fonts"
# Ours stands in for Helvetica, whose widths it has; the machine's serve other scripts.
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


def format_of(path: str | os.PathLike[str]) -> str:
    """Read the format from the path's suffix.

    Raises:
        SplitnetError: a suffix that is none of `FORMATS`.

    >>> format_of("a/Placement.SVG")
    'svg'
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise SplitnetError(
            f"cannot draw to {os.fspath(path)!r}: "
            + (f"the suffix .{suffix} is unknown. " if suffix else "it has no suffix. ")
            + f"Allowed: {', '.join('.' + name for name in FORMATS)}."
        )
    return suffix


def render_dot(text: str, kind: str, *, program: str = "dot") -> bytes:
    """Lay DOT text out and return the picture; nothing is written.

    Args:
        text: a graph in the DOT language.
        kind: "svg", "png" or "pdf"; "dot" or "json" for the layout as text.
        program: the layout, "dot", or "nop2" for positions that stand already.

    Raises:
        SplitnetError: no Graphviz was found, or none could lay the graph out.
    """
    found = shutil.which("dot")
    roads = [
        ("pygraphviz", [sys.executable, "-P", "-c", _CHILD, kind, program])
        if sys.executable
        else ("pygraphviz", None),
        ("the program 'dot'", [found, f"-K{program}", f"-T{kind}"] if found else None),
    ]
    faults = []
    for name, command in roads:
        if command is None:
            faults.append(f"{name} is not here")
            continue
        picture, fault = _run(command, text)
        if picture:
            return picture
        faults.append(f"{name}: {fault}")
    raise SplitnetError(
        f"Graphviz could not make the picture ({'; '.join(faults)}). Install it with "
        "`pip install 'pygraphviz>=2'`, whose wheels carry Graphviz, or draw to a .dot "
        "file and render that elsewhere."
    )


def _run(command: list[str], text: str) -> tuple[bytes, str]:
    """The child's output, or why there is none."""
    try:
        with tempfile.TemporaryDirectory(prefix="splitnet-") as folder:
            done = subprocess.run(
                command,
                input=text.encode(),
                capture_output=True,
                timeout=_MOST_SECONDS,
                env=_environment(Path(folder)),
            )
    except subprocess.TimeoutExpired:
        return b"", f"it took more than {_MOST_SECONDS:.0f} s"
    except OSError as error:
        return b"", f"it could not start: {error.strerror}"
    if done.returncode == 0 and done.stdout:
        return done.stdout, ""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return b"", said[-1] if said else f"it ended with code {done.returncode}"


def _environment(folder: Path) -> dict[str, str]:
    """Give the child our variables and, on Linux, settings that know our font.

    Elsewhere there is always a font, and Graphviz finds it without fontconfig.
    """
    variables = dict(os.environ)
    if sys.platform == "linux":
        machine = variables.get("FONTCONFIG_FILE", "/etc/fonts/fonts.conf")
        settings = folder / "fonts.conf"
        settings.write_text(
            _FONT_SETTINGS.format(
                machine=escaped(machine), fonts=escaped(str(_lent_fonts()))
            ),
            encoding="utf-8",
        )
        variables["FONTCONFIG_FILE"] = str(settings)
    return variables


def _lent_fonts() -> Path:
    """Where the child may look for our font: a copy in the user's cache folder.

    fontconfig leaves notes of its own in the folders it reads, and the installed
    package is no place for them; it serves only where there is no cache to write to.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        place = cache / "splitnet" / "fonts"
        place.mkdir(parents=True, exist_ok=True)
        for font in sorted(_FONTS.glob("*.ttf")):
            copy = place / font.name
            if not copy.is_file() or copy.stat().st_size != font.stat().st_size:
                write_beside(copy, font.read_bytes())
    except (OSError, RuntimeError, SplitnetError):  # no home, or one that is full
        return _FONTS
    return place


def write_beside(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a whole file or none: beside its place first, then renamed.

    Raises:
        SplitnetError: the place cannot be written to.
    """
    place = Path(path)
    beside = place.with_name(f".{place.name[:100]}.{os.getpid()}.part")
    try:
        try:
            beside.write_bytes(content)
            os.replace(beside, place)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise SplitnetError(
            f"cannot write {os.fspath(path)!r}: {error.strerror}. Name a file in a "
            "folder that is there and may be written to."
        ) from None
    return place
