"""Files: every format, whole or not at all, from names that nobody would choose."""

import os
import struct
import subprocess
import warnings
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest

import splitnet as sn
from splitnet.view import render
from splitnet.view.dot import dot_of
from splitnet.view.render import draw
from tests.view import plans

SVG = "{http://www.w3.org/2000/svg}"
MAGIC = {"png": b"\x89PNG\r\n", "pdf": b"%PDF-", "svg": b"<", "dot": b"digraph"}
ONE, STEP = plans.one(), plans.one().timeline


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "dot"])
def test_draw_writes_the_format_that_the_suffix_says(suffix, tmp_path):
    path = tmp_path / f"x.{suffix}"
    draw(sn.Audit(plans.siamese(), (), (), {}), path)
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert b"CreationDate" not in path.read_bytes()  # equal plans give equal bytes
    draw(plans.siamese().timeline, path)
    assert path.read_bytes().startswith((MAGIC | {"dot": b"graph"})[suffix])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("thing", "name", "options", "said"),
    [
        (ONE, "x.jpeg", {}, r"\.jpeg is unknown.*\.svg, \.png, \.pdf"),
        (ONE, "picture", {}, "no suffix"),
        (ONE, "nowhere/x.dot", {}, "there is no folder '.*nowhere'"),
        ("plan", "x.svg", {}, "thing= must be Plan or Audit or Timeline"),
        (ONE, "x.svg", {"other": STEP}, "cannot draw a Timeline beside a Plan"),
        (STEP, "x.svg", {"other": 3}, "other= must be"),
    ],
)
def test_draw_refuses_what_cannot_be_drawn(thing, name, options, said, tmp_path):
    with pytest.raises(sn.SplitnetError, match=said):
        sn.draw(thing, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_draw_takes_another_timeline_and_a_resolution(tmp_path):
    """On one scale below the first; twice the dots per inch are twice the pixels."""
    text = draw(plans.siamese().timeline, tmp_path / "x.dot", other=STEP).read_text()
    assert text.index("<B>one step, 113 ms") < text.index("<B>other: one step, ")
    wide = []
    for dpi in (96, 192):
        png = draw(ONE, tmp_path / "x.png", dpi=dpi).read_bytes()
        wide.append(struct.unpack(">I", png[16:20])[0])
    assert wide[1] == pytest.approx(2 * wide[0], abs=2)


def test_draw_shows_every_nasty_name_as_text(tmp_path):
    for thing in (plans.nasty().timeline, plans.nasty()):
        tree = ElementTree.parse(draw(thing, tmp_path / "x.svg"))
        assert not list(tree.iter(f"{SVG}script"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a machine may lack letters for the names
            assert draw(thing, tmp_path / "x.png").read_bytes().startswith(MAGIC["png"])
    texts = tree.iter(f"{SVG}text")
    shown = {(text.text or "").replace("\u200c", "") for text in texts}
    for name in ("&amp; &lt; &", "<b>bold</b>", 'a"b', "a\\nb\\l\\G", "漢字かな交じり"):
        assert name in shown


def test_render_dot_reports_what_went_wrong(monkeypatch):
    """Text that is no DOT; a child that hangs is stopped; a layout that fails."""
    real, said = subprocess.run, r"could not make .*Invalid.*; temporary files are in "
    with pytest.raises(sn.SplitnetError, match=said):
        render.render_dot("this is no graph", "svg")

    def fragile(command, **rest):
        if "-Gsplines=line" not in command:
            return subprocess.CompletedProcess(command, 1, b"", b"Assertion failed")
        return real(command, **rest)

    monkeypatch.setattr(render.subprocess, "run", fragile)
    assert b"<svg" in render.render_dot(dot_of(plans.siamese()), "svg")
    hang = Mock(side_effect=subprocess.TimeoutExpired("dot", 120))
    monkeypatch.setattr(render.subprocess, "run", hang)
    with pytest.raises(sn.SplitnetError, match="more than 90 s"):
        render.render_dot("graph {}", "svg")


@pytest.mark.parametrize("cache", [True, False])
def test_draw_needs_no_font_and_leaves_the_package_alone(cache, tmp_path, monkeypatch):
    """On a machine without any font, and with no cache, the picture is the same."""
    here = draw(plans.siamese(), tmp_path / "here.png").read_bytes()
    home, bare = tmp_path / "home", tmp_path / "bare.conf"
    if not cache:
        home.write_text("not a folder")
    bare.write_text("<?xml version='1.0'?><fontconfig></fontconfig>")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setenv("FONTCONFIG_FILE", str(bare))
    before = sorted(path.name for path in render._FONTS.iterdir())
    assert here == draw(plans.siamese(), tmp_path / "there.png").read_bytes()
    assert sorted(path.name for path in render._FONTS.iterdir()) == before
    assert not any(name.startswith(".") for name in before)


def test_draw_warns_of_letters_that_no_font_has(tmp_path, monkeypatch):
    """A png would have boxes there; not an svg, nor where a font has the letters."""
    known, program = tmp_path / "known", tmp_path / "fc-list"
    known.write_text("")
    program.write_text(f'#!/bin/sh\ncat "{known}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("splitnet.view.render.sys.platform", "linux")
    plan = plans.towers(2, 2, names="塔🗼")
    for thing in (plan, plan.timeline):
        with pytest.warns(UserWarning, match="such as 塔, 🗼, so the png .*to .svg"):
            draw(thing, tmp_path / "x.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(plan, tmp_path / "x.svg")
        draw(plans.towers(2, 2, names="Ж_ω_é"), tmp_path / "x.png")
        known.write_text("Some CJK font\n")
        draw(plan, tmp_path / "x.png")
