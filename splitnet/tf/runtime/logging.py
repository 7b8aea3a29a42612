"""Keep TensorFlow's start-up log lines off the terminal.

TensorFlow writes lines about oneDNN, CPU instructions and missing CUDA drivers to file
descriptor 2 when it is imported and when it looks for devices. Some of them come before
it reads `TF_CPP_MIN_LOG_LEVEL`, so they are filtered at the file descriptor.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
_STAMP = re.compile(r"(?:\d{4}-\d\d-\d\d [\d:.]+: )?([IWE])(?:\d{4})? ")
_HEADS = (
    "WARNING: All log messages before absl::InitializeLog()",
    "To enable the following instructions:",
)
_DRIVER = Path("/proc/driver/nvidia")


def _is_startup_line(line: str, severities: str) -> bool:
    """Whether a line is one of TensorFlow's start-up lines of these severities."""
    stamp = _STAMP.match(line)
    if stamp:
        return ".cc:" in line and stamp[1] in severities
    return bool(severities) and line.startswith(_HEADS)


@contextmanager
def log_filter() -> Iterator[None]:
    """Hide start-up lines written to standard error in this block.

    Without an NVIDIA driver, errors about it are expected and hidden as well. Other
    lines are written when the block ends, those of other threads included.
    """
    severities = "I" if _DRIVER.exists() else "IWE"
    if os.environ.get(LEVEL_VARIABLE) == "0":
        severities = ""
    try:
        terminal = os.dup(2) if severities else None
    except OSError:  # there is no standard error
        terminal = None
    if terminal is None:
        yield
        return
    with tempfile.TemporaryFile() as written:
        sys.stderr.flush()
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            written.seek(0)
            text = written.read().decode(errors="replace")
            for line in text.splitlines(keepends=True):
                if not _is_startup_line(line, severities):
                    os.write(2, line.encode())


def hide_remarks() -> None:
    """Keep INFO lines off standard error, unless asked for or TensorFlow is loaded.

    With workers there is one whenever a function is deleted, at any time.
    """
    if "tensorflow" not in sys.modules:
        os.environ.setdefault(LEVEL_VARIABLE, "1")


def import_frameworks() -> None:
    """Import Keras and TensorFlow and list the devices; each writes log lines once."""
    import keras  # noqa: F401  # for its effect
    import tensorflow as tf

    tf.config.list_physical_devices()
