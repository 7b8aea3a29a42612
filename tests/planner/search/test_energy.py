"""What annealing takes and refuses."""

from math import exp
from random import Random

import pytest

from splitnet.planner.search.energy import Energy


def test_falls_are_taken_and_great_rises_are_not() -> None:
    """Relief of the busiest device always passes; a rise of 20 temperatures never."""
    energy, random = Energy([4.0, 1.0], 2.0, 0.001), Random(0)

    assert energy.takes(0, 1, (3.0, 2.0), random)
    assert not energy.takes(0, 1, (5.0, 0.0), random)


def test_rises_are_taken_as_often_as_their_temperature_says() -> None:
    """With energy 1 + 1 and temperature 2, a rise of 0.5 passes with exp(-0.25)."""
    energy, random = Energy([1.0, 1.0], 1.0, 1.0), Random(0)
    taken = sum(energy.takes(0, 1, (1.25, 1.25), random) for _ in range(4000))

    assert taken / 4000 == pytest.approx(exp(-0.25), abs=0.03)


def test_settled_loads_are_what_the_next_move_is_held_against() -> None:
    """After a move is counted, moving back is a rise and no longer nothing."""
    energy, random = Energy([2.0, 0.0], 2.0, 1e-6), Random(0)
    energy.settle(0, 1, (1.0, 1.0))

    assert not energy.takes(0, 1, (2.0, 0.0), random)
    assert energy.takes(0, 1, (1.0, 1.0), random)
