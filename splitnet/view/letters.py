"""Say so when a picture holds letters that no font here can draw."""

import shutil
import subprocess
import sys
import unicodedata
import warnings

__all__ = ["warn_of_boxes"]

_LENT = ("LATIN", "GREEK", "CYRILLIC")
"""The scripts of the font that comes along."""


def warn_of_boxes(text: str, kind: str) -> None:
    """Warn if a png or pdf of these words would have boxes where letters should be.

    Only fontconfig's `fc-list` knows which fonts are here; elsewhere than on Linux
    there always is one. An svg is drawn by its viewer, with the viewer's fonts.
    """
    if kind == "svg" or sys.platform != "linux":
        return
    boxed = [letter for letter in _letters(text) if not _drawable(letter)]
    if boxed:
        warnings.warn(
            f"no font here has letters such as {', '.join(boxed)}, so the {kind} has "
            "boxes in their place. Install a font that has them (for Chinese, Japanese "
            "and Korean the package fonts-noto-cjk), or draw to .svg.",
            stacklevel=3,
        )


def _letters(text: str) -> list[str]:
    """A letter of each script that the lent font lacks."""
    found: dict[str, str] = {}
    for character in dict.fromkeys(text):
        if character > "\u02ff" and unicodedata.category(character).startswith("L"):
            script = unicodedata.name(character, "LETTER").split()[0]
            if script not in _LENT:
                found.setdefault(script, character)
    return list(found.values())


def _drawable(letter: str) -> bool:
    """Whether fontconfig names a font that has a letter."""
    program = shutil.which("fc-list")
    if program is None:
        return False
    query = [program, f":charset={ord(letter):x}", "family"]
    try:
        done = subprocess.run(query, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return bool(done.stdout.strip())
