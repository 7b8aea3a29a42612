"""The tree of blocks: what repeats, what is named alike, and a cut through it."""

import random
from collections.abc import Callable, Iterator

import pytest

from splitnet.view.diagram import Block, block_of, fold

Key = Callable[[str], object]


def every(block: Block) -> Iterator[Block]:
    """A block and all below it."""
    yield block
    for child in block.children:
        yield from every(child)


def blocks(count: int, *inside: str) -> list[str]:
    """Names of blocks with the same parts in each."""
    return [f"block_{n}/{part}" for n in range(count) for part in inside]


def test_block_of_sets_many_children_in_ranges() -> None:
    """1,000 unlike parts without a common beginning: at most twelve in each block."""
    names = [f"part_{n}" for n in range(1000)]
    one = block_of(names, {name: name for name in names})
    assert all(len(block.children) <= 12 for block in every(one))
    assert [block.members[0] for block in every(one) if not block.children] == names


@pytest.mark.parametrize("seed", range(20))
def test_fold_keeps_every_name_once_and_its_place(seed: int) -> None:
    """Any names: each is in one block, and all members of a block have one place."""
    draw = random.Random(seed)
    begins = [draw.choice(["a/b", "a.b", "d"]) for _ in range(draw.randint(2, 99))]
    names = [f"{begin}_{n // 2}" for n, begin in enumerate(begins)]
    names = list(dict.fromkeys(names))
    place = {name: draw.randrange(4) for name in names}
    look = {name: draw.randrange(3) for name in names}
    shown = fold(names, place, look, most=20)
    assert sorted(n for block in shown for n in block.members) == sorted(names)
    assert all(len({place[n] for n in block.members}) == 1 for block in shown)
    assert len(shown) <= max(20, len(set(place.values())))


@pytest.mark.parametrize(
    ("names", "most", "place", "shown"),
    [
        (["a", "b"], 2, lambda n: 0, "a 1 1; b 1 1"),
        (blocks(12, "x"), 3, lambda n: 0, "block_0/x 12 12"),
        (blocks(30, "x", "y"), 9, lambda n: n[-1], "block_0/x 30 30; block_0/y 30 30"),
        (
            [f"{kind}_{n}" for n in range(5) for kind in ("convx", "acty")],
            *(2, lambda n: 0, "convx_0 10 5"),
        ),
        (
            ["in", *blocks(3, "x", "y"), "end/x", "end/z", "out"],
            *(8, lambda n: 0),
            "in 1 1; block_0/x 6 3; end/x 1 1; end/z 1 1; out 1 1",
        ),
    ],
    ids=["few", "equal", "two devices", "a pattern", "unlike are opened"],
)
def test_fold_opens_what_there_is_room_for(
    names: list[str], most: int, place: Key, shown: str
) -> None:
    """From the top, in running order: first member, members and repeats of each."""
    places = {n: place(n) for n in names}
    looks = {
        n: n.partition("_")[0] if "_" in n and "/" not in n else n[-1] for n in names
    }
    found = fold(names, places, looks, most=most)
    words = (f"{one.members[0]} {len(one.members)} {one.times}" for one in found)
    assert "; ".join(words) == shown
