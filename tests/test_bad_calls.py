"""Impossible calls, command lines and files: a sample of `benchmarks/bad_calls.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.tf
def test_what_is_impossible_is_refused_in_words() -> None:
    """No traceback, no hang and no silence in 60 calls of each kind."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "bad_calls.py"), "--count", "60"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("'refused'") == 3
