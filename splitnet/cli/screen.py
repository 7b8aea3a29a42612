"""What the terminal sees: answers on stdout, progress on stderr, no start-up noise."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from splitnet.tf.runtime.logging import import_frameworks, log_filter

__all__ = ["hush", "progress", "show", "show_json", "show_rows"]


def show(text: str) -> None:
    """Print an answer."""
    print(text)


def show_json(value: Any) -> None:
    """Print an answer for a program: one JSON value; not-a-number never gets out."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def show_rows(rows: Sequence[Sequence[object]], heads: Sequence[str]) -> None:
    """Print aligned columns under their heads; the last column is not padded."""
    texts = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(heads))]
    for row in texts:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        print("  ".join(cells).rstrip())


@contextmanager
def progress(what: str, *, total: float | None = None) -> Iterator[Any]:
    """Show progress on a terminal; yields `advance(done, text)`, silent when piped."""
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


def hush(*, loud: bool = False, level: str = "3") -> None:
    """Import TensorFlow without its start-up lines, unless they are asked for.

    A log level that the user has set is left alone; "0" hides nothing.

    Args:
        loud: hide nothing.
        level: what TensorFlow may say afterwards: "3" nothing, "2" errors.
    """
    if loud:
        import_frameworks()
        return
    with log_filter():
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
        import_frameworks()
