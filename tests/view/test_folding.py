"""Folding: fewer boxes, nothing lost, no cycle made of a chain."""

import random
import re
from collections.abc import Callable

import networkx as nx
import pytest

from splitnet.view.diagram import Fold, fold

Edges = list[tuple[str, str]]

CHAIN = [f"b{n}" for n in range(12)]
TOWERS = [f"t{n}" for n in range(30)]


def folded(
    names: list[str],
    edges: Edges,
    most: int,
    place: Callable[[str], object] = lambda name: 0,
    look: Callable[[str], object] = lambda name: 0,
) -> list[Fold]:
    """Fold with a place and a look by name."""
    places = {name: place(name) for name in names}
    looks = {name: look(name) for name in names}
    return fold(names, edges, places, looks, most=most)


def chain(count: int) -> tuple[list[str], Edges]:
    """b0 -> b1 -> ..."""
    return CHAIN[:count], list(zip(CHAIN[: count - 1], CHAIN[1:], strict=False))


def number(name: str) -> int:
    """The number in a name."""
    return int(name[1:] or 0)


@pytest.mark.parametrize(
    ("count", "most", "place", "look", "groups"),
    [
        (4, 4, lambda n: 0, lambda n: 0, [("b0", 1), ("b1", 1), ("b2", 1), ("b3", 1)]),
        (12, 3, lambda n: 0, lambda n: 0, [("b0", 12)]),
        (6, 2, lambda n: 0, lambda n: number(n) % 2, [("b0", 3)]),
        (10, 3, lambda n: number(n) // 5, lambda n: 0, [("b0", 5), ("b5", 5)]),
    ],
    ids=["few names", "equal blocks", "a repeated pattern", "two devices"],
)
def test_fold_counts_what_repeats_in_a_row(
    count: int,
    most: int,
    place: Callable[[str], object],
    look: Callable[[str], object],
    groups: list[tuple[str, int]],
) -> None:
    """A run is one box on each device, and few names are left alone."""
    found = folded(*chain(count), most, place, look)
    assert [(group.members[0], group.times) for group in found] == groups
    assert [name for group in found for name in group.members] == CHAIN[:count]


@pytest.mark.parametrize(("look", "times"), [(lambda n: n[0], 30), (lambda n: n, 0)])
def test_fold_counts_equal_branches_side_by_side(
    look: Callable[[str], object], times: int
) -> None:
    r"""Branches between the same ends are one box; unlike ones are not counted.

    /-> t0 -\
    x --+-> t1 --+-> y
    \-> t2 -/
    """
    edges = [("x", t) for t in TOWERS] + [(t, "y") for t in TOWERS]
    ends = folded(["x", *TOWERS, "y"], edges, 5, lambda n: n[0], look)
    assert [group.members for group in ends] == [("x",), tuple(TOWERS), ("y",)]
    assert ends[1].times == times


@pytest.mark.parametrize("seed", range(20))
def test_fold_keeps_every_name_once_and_its_place(seed: int) -> None:
    """Any graph: each name is in one group, and a group lives in one place."""
    draw = random.Random(seed)
    names = [f"n{n}" for n in range(draw.randint(2, 60))]
    edges = [
        (names[a], names[b])
        for b in range(1, len(names))
        for a in range(max(0, b - 5), b)
        if draw.random() < 0.4
    ]
    place = {name: draw.randrange(4) for name in names}
    look = {name: draw.randrange(3) for name in names}
    groups = fold(names, edges, place, look, most=8)
    assert sorted(n for g in groups for n in g.members) == sorted(names)
    assert all(len({place[n] for n in group.members}) == 1 for group in groups)


def test_fold_makes_no_cycle_of_a_series_parallel_graph() -> None:
    """Runs and parallel branches fold into a graph that still has an order."""
    names, edges = ["s"], []
    for block in range(20):
        left, right, end = (f"{side}{block}" for side in "lre")
        edges += [(names[-1], left), (names[-1], right), (left, end), (right, end)]
        names += [left, right, end]
    groups = folded(
        names,
        edges,
        6,
        lambda n: min(number(n) // 7, 2),
        lambda n: "branch" if n[0] in "lr" else n[0],
    )
    group_of = {name: n for n, group in enumerate(groups) for name in group.members}
    graph = nx.DiGraph((group_of[a], group_of[b]) for a, b in edges)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    assert nx.is_directed_acyclic_graph(graph)
    assert len(groups) <= 6


def test_fold_takes_a_tangle_down_to_a_bearable_number() -> None:
    """Where nothing repeats, neighbours in time on one device share a box."""
    names = [f"n{n}" for n in range(300)]
    edges = [
        (names[max(0, n - 1 - (n * s) % 11)], names[n])
        for n in range(1, 300)
        for s in (7, 13)
    ]
    groups = folded(names, edges, 24, lambda n: number(n) * 5 % 4, lambda n: n)
    assert len(groups) <= 24
    cells = {(number(group.members[0]) * 5 % 4, group.column) for group in groups}
    assert cells == {(row, column) for row in range(4) for column in (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"net/level_{n}/part_{m}" for n in range(5) for m in range(6)], 10),
        ([f"block{n}_{m}" for n in range(4) for m in "abcdefgh"], 8),
    ],
    ids=["folders", "words"],
)
def test_fold_takes_names_that_begin_alike_together(
    names: list[str], groups: int
) -> None:
    """Unlike members of a level or block share a box on each of two devices."""
    edges = list(zip(names, names[1:], strict=False))
    place = {name: at % 2 for at, name in enumerate(names)}
    found = folded(names, edges, 12, place.__getitem__, lambda n: n)
    assert len(found) == groups
    beginnings = [
        {re.match(r"\D+\d", name)[0] for name in group.members}  # type: ignore[index]
        for group in found
    ]
    assert all(len(one) == 1 for one in beginnings)
