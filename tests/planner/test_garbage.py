"""The pause of the garbage collector."""

import gc

import pytest

from splitnet.planner.garbage import uncollected


def test_garbage_is_collected_again_even_after_an_error() -> None:
    """The collector is off inside, and back on however the block ends."""
    inside: list[bool] = []

    def fail() -> None:
        with uncollected():
            inside.append(gc.isenabled())
            raise KeyboardInterrupt

    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert gc.isenabled()
    assert inside == [False]


def test_garbage_stays_uncollected_where_it_was() -> None:
    """Who has switched the collector off finds it off afterwards."""
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
