"""Names and numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitnet.view.words import (
    clean,
    counted,
    escaped,
    padded,
    ranged,
    shape_text,
    shortened,
    width,
)


@given(st.text(), st.integers(5, 40))
def test_shortened_never_exceeds_its_room(text: str, most: int) -> None:
    """Whatever the name, wide characters included, it fits its column."""
    assert width(shortened(text, most)) <= most


def test_shortened_keeps_both_ends_of_a_name() -> None:
    """Numbers stand at the end of names, and families at their beginning."""
    short = shortened("encoder_block_17_attention_output_42", 16)
    assert short.startswith("encoder")
    assert short.endswith("42")


@given(st.text())
def test_clean_leaves_nothing_that_xml_refuses(text: str) -> None:
    """No control character, no surrogate, no line end."""
    assert all(c.isprintable() or c.isspace() for c in clean(text))
    assert "\n" not in clean(text)


def test_clean_replaces_characters_that_turn_the_line_around() -> None:
    """A name cannot make the text after it run backwards."""
    assert "\u202e" not in clean("evil\u202etxt.exe")


@pytest.mark.parametrize("raw", ["<b>", "a & b", '"', "'", "a<br/>b", "&lt;"])
def test_escaped_reads_back_as_it_was(raw: str) -> None:
    """XML gives the very same text back."""
    from xml.etree import ElementTree

    assert ElementTree.fromstring(f"<t>{escaped(raw)}</t>").text == raw


def test_padded_counts_wide_characters_twice() -> None:
    """A Chinese character takes two columns."""
    assert padded("漢字", 6) == "漢字  "


def test_shape_text_writes_a_varying_size_as_a_question_mark() -> None:
    """None stands where a size varies."""
    assert shape_text((None, 3)) == "? × 3"


def test_counted_knows_its_plurals() -> None:
    """One branch, two branches, two devices."""
    found = [counted(1, "branch"), counted(2, "branch"), counted(2, "device")]
    assert found == ["1 branch", "2 branches", "2 devices"]


def test_ranged_of_one_is_the_name() -> None:
    """No range is made of a single name."""
    assert ranged(["alone"], 30) == "alone"
