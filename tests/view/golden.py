"""Expected texts kept as files; `UPDATE_GOLDEN=1 pytest` writes them anew."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "golden"


def assert_golden(text, name):
    """Compare with the file, or write it when asked to."""
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
