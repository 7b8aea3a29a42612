"""Pictures say when they hold letters that no font here can draw."""

import os
import warnings
from pathlib import Path

import pytest

from splitnet.view.draw import draw
from tests.view import plans

pytestmark = pytest.mark.skipif(os.name == "nt", reason="fontconfig is Unix's")


@pytest.fixture
def fonts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `fc-list` that knows nothing; write names into `known` to change that."""
    (tmp_path / "known").write_text("")
    program = tmp_path / "fc-list"
    program.write_text(f'#!/bin/sh\ncat "{tmp_path / "known"}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("splitnet.view.letters.sys.platform", "linux")
    return tmp_path


@pytest.mark.parametrize("what", ["placement", "timeline"])
def test_draw_warns_of_letters_that_no_font_has(fonts: Path, what: str) -> None:
    """A png would have boxes there; the words say which letters, and what to do."""
    plan = plans.towers(2, 2, names="塔")
    with pytest.warns(UserWarning, match="such as 塔, so the png has boxes.*to .svg"):
        draw(plan, fonts / "x.png", what=what)


def test_draw_is_quiet_where_a_font_has_the_letters(fonts: Path) -> None:
    """A machine that has a font for them needs no word."""
    (fonts / "known").write_text("Some CJK font\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(plans.towers(2, 2, names="塔"), fonts / "x.png")


def test_draw_is_quiet_about_an_svg_and_about_plain_names(fonts: Path) -> None:
    """A viewer brings its fonts; our own font has Latin, Greek and Cyrillic."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(plans.towers(2, 2, names="塔"), fonts / "x.svg")
        draw(plans.towers(2, 2, names="Ж_ω_é"), fonts / "x.png")
