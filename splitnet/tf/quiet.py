"""TensorFlow's start-up lines, kept off the screen.

TensorFlow writes lines about oneDNN, CPU instructions and missing CUDA drivers to file
descriptor 2 when it is imported and when it looks for devices, part of them before it
reads any log level. They are caught there, and whatever else was written is passed on.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["hushed", "import_frameworks", "is_start_up_line"]

_STAMP = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWE])(?:\d{4})? ")
_HEADS = (
    "WARNING: All log messages before absl::InitializeLog()",
    "To enable the following instructions:",
)
_DRIVER = Path("/proc/driver/nvidia")


def is_start_up_line(line: str, *, driver: bool) -> bool:
    """Whether a line is mere talk. With a driver, warnings and errors are not."""
    stamp = _STAMP.match(line)
    if stamp:
        return ".cc:" in line and (stamp[1] == "I" or not driver)
    return line.startswith(_HEADS)


@contextmanager
def hushed() -> Iterator[None]:
    """Catch what is written to standard error meanwhile; pass on all but such lines.

    Does nothing where the user has set TF_CPP_MIN_LOG_LEVEL, or where there is no
    standard error. What other threads write meanwhile comes late, not never.
    """
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    try:
        terminal = os.dup(2)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as aside:
        sys.stderr.flush()
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            aside.seek(0)
            _pass_on(aside.read().decode(errors="replace"))


def import_frameworks() -> None:
    """Import Keras and TensorFlow and look for devices once: each has its lines."""
    import keras  # noqa: F401  # wanted for its effect
    import tensorflow as tf

    tf.config.list_physical_devices()


def _pass_on(text: str) -> None:
    driver = _DRIVER.exists()
    for line in text.splitlines(keepends=True):
        if not is_start_up_line(line, driver=driver):
            os.write(2, line.encode())
