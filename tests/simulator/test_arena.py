"""The arena of large tensors: regions that double, the smallest piece that fits."""

import random

from splitnet.simulator.arena import arena_bytes
from tests.zoo import MIB


def test_arena_gives_what_is_free_to_the_next() -> None:
    """Blocks one after the other take the memory of one."""
    assert arena_bytes([(i, i + 1, MIB) for i in range(9)]) == MIB
    assert arena_bytes([(0, 9, MIB)] * 9) == 9 * MIB


def test_arena_keeps_a_hole_that_is_too_small() -> None:
    """What was there is resident still, though the larger block has no use for it."""
    blocks = [(0, 1, MIB), (0, 9, MIB), (2, 9, 2 * MIB)]

    assert arena_bytes(blocks) == 4 * MIB


def test_arena_joins_free_neighbours() -> None:
    """Two small blocks side by side make room for one of both."""
    blocks = [(0, 1, MIB // 2), (0, 1, MIB // 2), (0, 9, MIB), (2, 9, MIB)]

    assert arena_bytes(blocks) == 2 * MIB


def test_arena_does_not_cut_what_is_less_than_twice_as_large() -> None:
    """The rest of such a piece is nobody's, and not resident if it never was."""
    blocks = [(0, 9, 5 * MIB // 4), (1, 9, MIB // 2), (2, 9, MIB // 2)]

    # The second takes all that is left of the first region, so the third opens another.
    assert arena_bytes(blocks) == 9 * MIB // 4


def test_arena_is_never_smaller_than_what_it_holds() -> None:
    """And, of many blocks of any size, not much larger either."""
    rng = random.Random(3)
    for _ in range(20):
        blocks = []
        for _ in range(200):
            start = rng.random()
            size = rng.randrange(2**18, 2**23)
            blocks.append((start, start + rng.random() / 4, size))
        moments = [start for start, _, _ in blocks]
        held = max(sum(b for s, e, b in blocks if s <= t < e) for t in moments)
        assert held <= arena_bytes(blocks) < 2 * held
