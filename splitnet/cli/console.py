"""Terminal output: answers on stdout, progress on stderr, no start-up lines."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import splitnet as sn


def say(text: str) -> None:
    """Print a message for the person at the terminal, not for a program."""
    print(f"splitnet: {text}", file=sys.stderr, flush=True)


def answer(
    value: Any, text: str | Sequence[Mapping[str, str]], *, for_program: bool = False
) -> None:
    """Print an answer: for a program one JSON value, without NaN or infinity.

    For a person a text, or a table that fits the terminal; one line a row into a pipe.
    """
    if for_program:
        text = json.dumps(value, indent=2, allow_nan=False)
    elif not isinstance(text, str):
        from splitnet.view.tables import Grid, grid_text, terminal_width

        text = grid_text(Grid(text, left=99), terminal_width(300))
    print(text, flush=True)


@contextmanager
def progress(what: str, *, total: float | None = None) -> Iterator[Callable[..., None]]:
    """Show progress on a terminal; yields `advance(done, text="")`."""
    if not sys.stderr.isatty():
        yield lambda done, text="": None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Of its own, since standard error is redirected while TensorFlow starts.
    with open(os.dup(sys.stderr.fileno()), "w") as terminal:
        show = {"console": Console(file=terminal), "transient": True}
        with Progress(**show, redirect_stdout=sys.stdout.isatty()) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done, text="": bar.update(
                task, completed=done, description=f"{what} {text}"
            )


def import_tensorflow(level: str = "3") -> None:
    """Import TensorFlow without its start-up lines.

    `level` is what it may log afterwards, "3" nothing, "2" errors; a level that the
    user has set as TF_CPP_MIN_LOG_LEVEL is left alone, and "0" shows all lines.
    """
    from splitnet.tf.runtime.logging import import_frameworks

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
    loaded = "tensorflow" in sys.modules
    with nullcontext() if loaded else progress("loading TensorFlow"):
        import_frameworks()


def local_devices(stand_ins: int | None = None) -> sn.Cluster:
    """The devices of this machine, with CPU devices in place of so many GPUs."""
    import_tensorflow()
    return sn.local_cluster(stand_in_gpus=stand_ins or 0)
