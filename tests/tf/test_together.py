"""All kinds of parallelism in one model, on eight stand-ins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tf, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def test_towers_branches_a_split_and_a_pipeline_compose() -> None:
    """Transparent to 1e-6 of the loss, and audited, on nine devices."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tf.together"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "all as planned" in done.stdout
