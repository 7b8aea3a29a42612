"""The examples are run.

Each runs in a Python of its own, in an empty folder, and must succeed without a word on
stderr from splitnet or a warning of Python's.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_pages import words_in

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
    second = "worker:1" if example.stem == "two_workers" else "gpu:1"

    printed = run([str(example)], tmp_path)

    assert second in printed
    picture = tmp_path / f"{example.stem}.svg"
    assert second in picture.read_text(encoding="utf-8")
    shown = ROOT / "docs" / "images" / f"example_{example.stem}.svg"
    assert words_in(shown) == words_in(picture), "run docs/images/redraw.py"


def test_examples_are_shown_in_the_docs() -> None:
    """The page of examples has each of them: its program and its picture."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    missing = [
        shown
        for example in EXAMPLES
        for shown in (f"examples/{example.name}", f"images/example_{example.stem}.svg")
        if shown not in page or not (ROOT / "docs" / shown).exists()
        if shown.startswith("images/") or shown not in page
    ]

    assert missing == []
