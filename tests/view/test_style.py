"""Colours that stay apart, and names that are only ever text."""

from itertools import combinations
from math import dist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitnet.view.style import clean, colors_of, readable_on


def test_colors_of_keep_devices_apart():
    """Sixteen GPUs of forty differ, and two hosts; a device keeps its colour."""
    many = colors_of([f"gpu:{n}" for n in range(40)])
    assert len(set(list(many.values())[:16])) == 16
    assert many["gpu:6"] == colors_of([f"gpu:{n}" for n in range(7)])["gpu:6"]
    hosts = colors_of(["worker:0/gpu:0", "worker:1/gpu:0", "worker:0/cpu:0"])
    assert len(set(hosts.values())) == 3


# How people with these deficiencies see linear RGB (Machado et al., 2009).
DEUTERANOPIA = (0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)
PROTANOPIA = (0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)
GREY = (0.2126, 0.7152, 0.0722)  # of a printer without colour


@pytest.mark.parametrize(
    ("seen", "least"),
    [(np.eye(3), 30), (DEUTERANOPIA, 20), (PROTANOPIA, 20), ([GREY] * 3, 7)],
)
def test_colors_of_differ_for_everybody(seen, least):
    """Any two of seven GPUs and a CPU differ in CIELAB; 2.3 can just be noticed."""
    devices = [*(f"gpu:{n}" for n in range(7)), "cpu:0"]
    labs = [_lab(color, seen) for color in colors_of(devices).values()]
    for one, other in combinations(labs, 2):
        assert dist(one, other) > least


def _lab(color, seen):
    """A colour in CIELAB as it is seen, for the white of a screen (D65)."""
    rgb = np.clip(np.array(seen) @ _linear(color), 0, 1)
    shares = np.array(_XYZ) @ rgb / (0.9505, 1.0, 1.089)
    x, y, z = np.where(shares > 0.008856, np.cbrt(shares), 7.787 * shares + 16 / 116)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))


def test_readable_on_picks_a_contrast_of_at_least_four_and_a_half():
    """Text on a device's colour can be read (WCAG 2, AA)."""
    for color in colors_of([*(f"gpu:{n}" for n in range(14)), "cpu:0"]).values():
        both = color, readable_on(color)
        dark, light = sorted(float(np.dot(GREY, _linear(one))) for one in both)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, color


def _linear(color):
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in shares]


@given(st.text())
def test_clean_leaves_nothing_that_xml_refuses(text):
    """No control character, no surrogate, no line end; joiners of letters stay."""
    assert clean("a\u200cb\u200dc") == "a\u200cb\u200dc"
    assert all(c.isprintable() or c in " \u200c\u200d" for c in clean(text))
    assert not {"\n", "\u202e"} & {*clean(text + "\n\u202e")}  # it would turn the line
