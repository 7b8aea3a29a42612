"""Keep TensorFlow's start-up log lines off the terminal.

Some come before it reads `TF_CPP_MIN_LOG_LEVEL`, so file descriptor 2 is filtered.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_STAMP = r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?[%s](?:\d{4})? .*\.cc:"
_HEADS = (
    "WARNING: All log messages before absl::InitializeLog\\(\\)",
    "To enable the following instructions:",
)
_DRIVER = Path("/proc/driver/nvidia")


@contextmanager
def log_filter() -> Iterator[None]:
    """Hide start-up lines, and errors of an absent NVIDIA driver, on standard error."""
    terminal = None
    if os.environ.get(LEVEL_VARIABLE) != "0":
        with suppress(OSError):  # there may be no standard error
            terminal = os.dup(2)
    if terminal is None:
        yield
        return
    severities = "I" if _DRIVER.exists() else "IWE"
    hidden = re.compile("|".join([_STAMP % severities, *_HEADS]))
    with tempfile.TemporaryFile("w+", errors="replace") as written:
        sys.stderr.flush()
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            written.seek(0)
            lines = [line for line in written if not hidden.match(line)]
            os.write(2, "".join(lines).encode())


def hide_remarks() -> None:
    """Keep INFO lines off standard error, unless asked for or TensorFlow is loaded."""
    if "tensorflow" not in sys.modules:  # there is one whenever a function is deleted
        os.environ.setdefault(LEVEL_VARIABLE, "1")


def import_frameworks() -> None:
    """Import Keras and TensorFlow and list the devices, which writes log lines once."""
    with log_filter():
        import keras  # noqa: F401  # for its effect
        import tensorflow as tf

        tf.config.list_physical_devices()
