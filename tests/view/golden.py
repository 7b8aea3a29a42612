"""Expected texts kept as files; `UPDATE_GOLDEN=1 pytest` writes them anew."""

import os
from pathlib import Path


def assert_golden(text, name):
    path = Path(__file__).parents[1] / "golden" / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
