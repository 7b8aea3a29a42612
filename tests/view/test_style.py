"""Colours that stay apart, and names that are only ever text."""

from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from splitnet.view.style import (
    Mark,
    Scene,
    clean,
    colors_of,
    dot_of_scene,
    escaped,
    mixed,
    ranged,
    readable_on,
    shortened,
    svg_of_scene,
)


def test_colors_of_gives_the_first_eight_devices_different_colours() -> None:
    """Seven GPUs and a CPU can be told apart, on one host or on two."""
    one_host = colors_of([*(f"gpu:{n}" for n in range(7)), "cpu:0"])
    two_hosts = colors_of(["worker:0/gpu:0", "worker:1/gpu:0", "worker:0/cpu:0"])

    assert len(set(one_host.values())) == 8
    assert len(set(two_hosts.values())) == 3


def test_colors_of_keeps_a_device_its_colour_when_others_join_behind() -> None:
    """The same device looks the same in a plan for two and for four GPUs."""
    few = colors_of(["gpu:0", "gpu:1", "cpu:0"])
    many = colors_of(["gpu:0", "gpu:1", "gpu:2", "gpu:3", "cpu:0"])

    assert {name: many[name] for name in few} == dict(few)


def test_colors_of_does_not_run_out() -> None:
    """Forty GPUs have colours, the first sixteen of them different."""
    found = list(colors_of(f"gpu:{n}" for n in range(40)).values())

    assert all(len(color) == 7 and color.startswith("#") for color in found)
    assert len(set(found[:16])) == 16


def test_colors_of_differ_for_people_who_do_not_see_red_and_green() -> None:
    """Seen through deuteranopia, any two of the first five GPUs stay apart."""
    seen = [_deuteranope(c) for c in colors_of(f"gpu:{n}" for n in range(5)).values()]

    for one, other in combinations(seen, 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 30


def _deuteranope(color: str) -> tuple[float, float, float]:
    """A common linear approximation of how a deuteranope sees a colour."""
    r, g, b = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return (0.625 * r + 0.375 * g, 0.7 * r + 0.3 * g, 0.3 * g + 0.7 * b)


def test_readable_on_picks_a_contrast_of_at_least_four_and_a_half() -> None:
    """Text on a device's colour can be read (WCAG 2, AA)."""
    for color in colors_of([*(f"gpu:{n}" for n in range(14)), "cpu:0"]).values():
        dark, light = sorted([_luminance(color), _luminance(readable_on(color))])
        assert (light + 0.05) / (dark + 0.05) >= 4.5, color


def _luminance(color: str) -> float:
    shares = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in shares
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_mixed_ends_in_either_colour() -> None:
    """None of the other is the one; all of it is the other."""
    assert mixed("#123456", "#ffffff", 0.0) == "#123456"
    assert mixed("#123456", "#ffffff", 1.0) == "#ffffff"


@given(st.text(), st.integers(5, 40))
def test_shortened_never_exceeds_its_room(text: str, most: int) -> None:
    """Whatever the name, wide characters included, it fits its column."""
    assert cell_len(shortened(text, most)) <= most


def test_shortened_keeps_both_ends_of_a_name() -> None:
    """Numbers stand at the end of names, and families at their beginning."""
    short = shortened("encoder_block_17_attention_output_42", 16)

    assert short.startswith("encoder")
    assert short.endswith("42")


def test_ranged_of_one_is_the_name() -> None:
    """A single name is no range."""
    assert ranged(["alone"], 30) == "alone"


@given(st.text())
def test_clean_leaves_nothing_that_xml_refuses(text: str) -> None:
    """No control character, no surrogate, no line end."""
    assert all(c.isprintable() or c.isspace() for c in clean(text))
    assert "\n" not in clean(text)


def test_clean_replaces_characters_that_reverse_the_line() -> None:
    """A name cannot make the text after it run backwards."""
    assert "\u202e" not in clean("evil\u202etxt.exe")


@pytest.mark.parametrize("raw", ["<b>", "a & b", '"', "'", "a<br/>b", "&lt;"])
def test_escaped_reads_back_as_it_was(raw: str) -> None:
    """XML gives the very same text back."""
    assert ElementTree.fromstring(f"<t>{escaped(raw)}</t>").text == raw


def test_scene_is_drawn_at_the_same_places_in_svg_and_in_dot() -> None:
    """A rectangle's middle, counted from the bottom, is Graphviz' position."""
    scene = Scene(100, 50, "t", (Mark(10, 5, 20, 10, "#112233"),))

    assert 'x="10" y="5" width="20" height="10"' in svg_of_scene(scene)
    assert 'pos="20,40!"' in dot_of_scene(scene)


def test_svg_of_scene_keeps_ids_of_two_charts_on_one_page_apart() -> None:
    """The hatch of one is not the hatch of the other."""
    scene = Scene(9, 9, "t", (Mark(0, 0, 5, 5, "#112233", hatched=True),))

    assert 'id="a-hatch-0"' in svg_of_scene(scene, prefix="a")
    assert "url(#b-hatch-0)" in svg_of_scene(scene, prefix="b")
