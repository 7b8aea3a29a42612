"""The tree of blocks: what repeats, what is named alike, and a cut through it."""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest

from splitnet.view.diagram import Block, block_of, fold


def tree(names: Sequence[str], look: Callable[[str], object] = lambda name: 0) -> Block:
    """The tree of names on one device."""
    return block_of(names, {name: look(name) for name in names})


def every(block: Block) -> Iterator[Block]:
    """A block and all below it."""
    yield block
    for child in block.children:
        yield from every(child)


def folded(
    names: Sequence[str],
    most: int,
    place: Callable[[str], object] = lambda name: 0,
    look: Callable[[str], object] = lambda name: 0,
) -> list[tuple[str, int, int]]:
    """The first member, the number of members and the repeats of each block shown."""
    places = {name: place(name) for name in names}
    looks = {name: look(name) for name in names}
    shown = fold(names, places, looks, most=most)
    return [(block.members[0], len(block.members), block.times) for block in shown]


def blocks(count: int, *inside: str) -> list[str]:
    """Names of blocks with the same parts in each."""
    return [f"block_{n}/{part}" for n in range(count) for part in inside]


def test_block_of_counts_equal_neighbours() -> None:
    """Eight equal parts are one block, ×8."""
    one = tree([f"tower_{n}" for n in range(8)])
    assert (one.times, len(one.children)) == (8, 8)


def test_block_of_finds_patterns_without_common_names() -> None:
    """conv, act, conv_1, act_1 and so on repeat two by two."""
    names = [f"{kind}_{n}" for n in range(5) for kind in ("conv", "act")]
    one = tree(names, lambda name: name.split("_")[0])
    assert (one.times, len(one.members)) == (5, 10)
    assert [child.members for child in one.children][0] == ("conv_0", "act_0")


def test_block_of_takes_names_that_begin_alike_together() -> None:
    """Unlike blocks of unlike parts: a level per folder."""
    one = tree(["stem", *blocks(2, "attention", "dense")], lambda name: name)
    assert [child.members for child in one.children] == [
        ("stem",),
        ("block_0/attention", "block_0/dense", "block_1/attention", "block_1/dense"),
    ]
    assert [len(child.members) for child in one.children[1].children] == [2, 2]


def test_block_of_sets_many_children_in_ranges() -> None:
    """1,000 unlike parts without a common beginning: at most twelve in each block."""
    names = [f"part_{n}" for n in range(1000)]
    one = tree(names, lambda name: name)
    assert all(len(block.children) <= 12 for block in every(one))
    assert [block.members[0] for block in every(one) if not block.children] == names


@pytest.mark.parametrize("seed", range(20))
def test_fold_keeps_every_name_once_and_its_place(seed: int) -> None:
    """Any names: each is in one block, and all members of a block have one place."""
    draw = random.Random(seed)
    names = [
        f"{draw.choice(['a/b', 'a/c', 'd'])}_{n}" for n in range(draw.randint(2, 99))
    ]
    place = {name: draw.randrange(4) for name in names}
    look = {name: draw.randrange(3) for name in names}
    shown = fold(names, place, look, most=20)
    assert sorted(n for block in shown for n in block.members) == sorted(names)
    assert all(len({place[n] for n in block.members}) == 1 for block in shown)
    assert len(shown) <= max(20, len(set(place.values())))


@pytest.mark.parametrize(
    ("names", "most", "place", "shown"),
    [
        (["a", "b"], 2, lambda n: 0, [("a", 1, 1), ("b", 1, 1)]),
        (blocks(12, "x"), 3, lambda n: 0, [("block_0/x", 12, 12)]),
        (
            blocks(30, "x", "y"),
            9,
            lambda n: n[-1],
            [("block_0/x", 30, 30), ("block_0/y", 30, 30)],
        ),
        (
            ["in", *blocks(3, "x", "y"), "end/x", "end/z", "out"],
            8,
            lambda n: 0,
            [
                ("in", 1, 1),
                ("block_0/x", 6, 3),
                ("end/x", 1, 1),
                ("end/z", 1, 1),
                ("out", 1, 1),
            ],
        ),
    ],
    ids=["few names", "equal blocks", "two devices", "unlike blocks are opened"],
)
def test_fold_opens_what_there_is_room_for(
    names: list[str],
    most: int,
    place: Callable[[str], object],
    shown: list[tuple[str, int, int]],
) -> None:
    """From the top, in running order; repeats of two devices stay alike."""
    assert folded(names, most, place, lambda name: name[-1]) == shown
