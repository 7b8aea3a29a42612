"""The examples are run.

Each runs in a Python of its own, in an empty folder, and must succeed without a word on
stderr from splitnet or a warning of Python's.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(arguments: list[str], folder: Path) -> str:
    """Run this Python in a folder; what it printed, if it went well."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_draw(example: Path, tmp_path: Path) -> None:
    """An example prints its plan, passes its own audit, and leaves its picture."""
    printed = run([str(example)], tmp_path)

    assert "gpu:1" in printed
    picture = (tmp_path / f"{example.stem}.svg").read_text(encoding="utf-8")
    assert "gpu:1" in picture


def test_there_are_four_examples() -> None:
    """The examples that the README names are there."""
    assert [path.stem for path in EXAMPLES] == [
        "existing_model",
        "many_branches",
        "shared_encoder",
        "two_towers",
    ]
