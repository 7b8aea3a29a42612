"""What the terminal shows: answers on stdout, progress on stderr, no start-up lines."""

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = [
    "import_tensorflow",
    "interruptible",
    "progress",
    "say",
    "show_json",
    "show_rows",
]

Advance = Callable[..., None]


def say(text: str) -> None:
    """Print a message for the person at the terminal, not for a program."""
    print(f"splitnet: {text}", file=sys.stderr, flush=True)


def show_json(value: Any) -> None:
    """Print an answer for a program: one JSON value, without NaN or infinity."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def show_rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that fits the terminal; one line a row into a pipe."""
    from splitnet.view.tables import Grid, grid_text

    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else 300
    print(grid_text(Grid(heads, rows), wide))


@contextmanager
def progress(what: str, *, total: float | None = None) -> Iterator[Advance]:
    """Show progress on a terminal; yields `advance(done, text="")`."""
    if not sys.stderr.isatty():
        yield lambda done, text="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    ) as bar:
        task = bar.add_task(what, total=total, text="")
        yield lambda done, text="": bar.update(task, completed=done, text=text)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of this block if Ctrl-C came during it.

    The planner answers Ctrl-C with the best plan so far; the command line must not
    write such a plan over a file as if it had finished.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def import_tensorflow(*, verbose: bool = False, level: str = "3") -> None:
    """Import TensorFlow without its start-up lines, unless `verbose`.

    `level` is what it may log afterwards, "3" nothing, "2" errors; a level that the
    user has set in the environment is left alone.
    """
    from splitnet.tf.runtime.logging import import_frameworks, log_filter

    if verbose:
        import_frameworks()
        return
    with log_filter():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
        import_frameworks()
