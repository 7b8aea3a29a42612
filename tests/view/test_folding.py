"""Folding: fewer boxes, nothing lost, no cycle made of a chain."""

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.view.folding import Fold, fold


def chain(count: int) -> tuple[list[str], list[tuple[str, str]]]:
    """b0 -> b1 -> ..."""
    names = [f"b{n}" for n in range(count)]
    return names, list(zip(names, names[1:], strict=False))


def test_fold_leaves_few_names_alone() -> None:
    """A small graph is drawn as it is, equal or not."""
    names, edges = chain(4)
    groups = fold(
        names, edges, dict.fromkeys(names, 0), dict.fromkeys(names, 0), most=4
    )
    assert groups == [Fold((name,)) for name in names]


def test_fold_counts_a_run_of_equal_blocks() -> None:
    """b0 -> ... -> b11, all alike, is one box, twelve times."""
    names, edges = chain(12)
    groups = fold(
        names, edges, dict.fromkeys(names, 0), dict.fromkeys(names, 0), most=3
    )
    assert groups == [Fold(tuple(names), 12)]


def test_fold_counts_a_repeated_pattern() -> None:
    """A b a b a b is the pattern "a b", three times."""
    names, edges = chain(6)
    look = {name: "ab"[n % 2] for n, name in enumerate(names)}
    groups = fold(names, edges, dict.fromkeys(names, 0), look, most=2)
    assert groups == [Fold(tuple(names), 3)]


def test_fold_keeps_devices_apart() -> None:
    """A run that changes its device is two boxes."""
    names, edges = chain(10)
    place = {name: n // 5 for n, name in enumerate(names)}
    groups = fold(names, edges, place, dict.fromkeys(names, 0), most=3)
    assert [(g.members[0], g.times) for g in groups] == [("b0", 5), ("b5", 5)]


def test_fold_counts_branches_side_by_side() -> None:
    r"""Like branches between the same ends are one box.

    /-> t0 -\
    x --+-> t1 --+-> y
    \-> t2 -/
    """
    towers = [f"t{n}" for n in range(30)]
    edges = [("x", t) for t in towers] + [(t, "y") for t in towers]
    names = ["x", *towers, "y"]
    look = {name: name[0] for name in names}
    groups = fold(names, edges, {n: n[0] for n in names}, look, most=5)
    assert groups == [
        Fold(("x",)),
        Fold(tuple(towers), 30),
        Fold(("y",)),
    ]


def test_fold_does_not_count_what_is_unlike() -> None:
    """Unlike branches fold only when they must, and are then not counted as equal."""
    towers = [f"t{n}" for n in range(30)]
    edges = [("x", t) for t in towers] + [(t, "y") for t in towers]
    names = ["x", *towers, "y"]
    groups = fold(names, edges, {n: n[0] for n in names}, {n: n for n in names}, most=5)
    assert (groups[1].members, groups[1].times) == (tuple(towers), 0)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 60),
    st.integers(1, 4),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_fold_keeps_every_name_once_and_its_place(
    count: int, places: int, looks: int, random: "object"
) -> None:
    """Any graph: each name is in one group, and a group lives in one place."""
    names = [f"n{n}" for n in range(count)]
    draw = random.random  # type: ignore[attr-defined]  # hypothesis' Random
    edges = [
        (names[a], names[b])
        for b in range(1, count)
        for a in range(max(0, b - 5), b)
        if draw() < 0.4
    ]
    place = {name: int(draw() * places) for name in names}
    look = {name: int(draw() * looks) for name in names}
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
    place = {name: min(int(name[1:] or 0) // 7, 2) for name in names}
    look = {n: "branch" if n[0] in "lr" else n[0] for n in names}
    groups = fold(names, edges, place, look, most=6)
    group_of = {name: n for n, group in enumerate(groups) for name in group.members}
    folded = nx.DiGraph((group_of[a], group_of[b]) for a, b in edges)
    folded.remove_edges_from(list(nx.selfloop_edges(folded)))
    assert nx.is_directed_acyclic_graph(folded)
    assert len(groups) <= 6


def test_fold_does_not_hang_on_names() -> None:
    """Other names, the same groups."""
    names, edges = chain(40)
    new = {name: f"z{99 - n}" for n, name in enumerate(names)}
    look = {name: n % 3 for n, name in enumerate(names)}
    one = fold(names, edges, dict.fromkeys(names, 0), look, most=5)
    two = fold(
        [new[n] for n in names],
        [(new[a], new[b]) for a, b in edges],
        {new[n]: 0 for n in names},
        {new[n]: look[n] for n in names},
        most=5,
    )
    assert [tuple(new[m] for m in g.members) for g in one] == [g.members for g in two]
    assert [g.times for g in one] == [g.times for g in two]


def test_fold_takes_a_tangle_down_to_a_bearable_number() -> None:
    """Where nothing repeats, neighbours in time on one device share a box."""
    names = [f"n{n}" for n in range(300)]
    edges = [
        (names[max(0, n - 1 - (n * s) % 11)], names[n])
        for n in range(1, 300)
        for s in (7, 13)
    ]
    edges = [(a, b) for a, b in edges if a != b]
    place = {name: (n * 5) % 4 for n, name in enumerate(names)}
    groups = fold(names, edges, place, {n: n for n in names}, most=24)
    assert len(groups) <= 24
    assert sorted({group.column for group in groups}) == [1, 2, 3, 4]
    rows = {place[group.members[0]] for group in groups}
    assert len({(place[g.members[0]], g.column) for g in groups}) == 4 * len(rows)
