"""A model's calls in few parts: convex, acyclic, along its seams, and as wished."""

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.grouping import group, pinned


def graph_of(edges, *, count, weights=None, inputs=(), flops=None):
    """A graph with a part per call "c0", "c1" ..., edges by number."""
    names = [f"c{i}" for i in range(count)]
    calls = tuple(
        Call(
            name,
            name,
            "Dense",
            forward_flops=(flops or {}).get(i, 1.0),
            weights=tuple((weights or {}).get(i, ())),
        )
        for i, name in enumerate(names)
    )
    held = dict.fromkeys(w for call in calls for w in call.weights)
    return Graph(
        "g",
        8,
        calls,
        tuple(Tensor(names[a], names[b], bytes=4) for a, b in edges),
        tuple(Weights(w, 4) for w in held),
        tuple(
            Part(n, "input" if i in inputs else "branch") for i, n in enumerate(names)
        ),
        (names[-1],),
    )


def flops(call):
    """The weight of a call in these tests."""
    return call.forward_flops


@st.composite
def graphs(draw):
    """Random DAGs of up to 40 calls, edges to later calls only."""
    count = draw(st.integers(1, 40))
    edges = []
    for target in range(1, count):
        sources = draw(
            st.lists(st.integers(0, target - 1), min_size=0, max_size=3, unique=True)
        )
        edges += [(source, target) for source in sources]
    weights = {i: draw(st.floats(0, 10)) for i in range(count)}
    return graph_of(edges, count=count, flops=weights)


@given(graphs(), st.integers(1, 12))
@settings(max_examples=300, deadline=None)
def test_group_keeps_every_call_and_makes_no_cycle(graph, most):
    """Parts are convex: the graph of the parts stays without a cycle."""
    grouped = group(graph, most, flops)

    assert sorted(c.name for c in grouped.calls) == sorted(c.name for c in graph.calls)
    assert nx.is_directed_acyclic_graph(grouped.by_part())
    assert {c.part for c in grouped.calls} == {p.name for p in grouped.parts}


@given(graphs(), st.integers(1, 12))
@settings(max_examples=100, deadline=None)
def test_group_is_deterministic(graph, most):
    """The same graph gives the same parts."""
    assert group(graph, most, flops) == group(graph, most, flops)


@pytest.mark.parametrize("most", [1, 2, 5, 10])
def test_group_cuts_a_chain_into_about_as_many_parts_as_asked(most):
    """A chain of equal calls is cut evenly, to within a factor of two."""
    graph = graph_of([(i, i + 1) for i in range(99)], count=100)

    parts = group(graph, most, flops).parts

    assert most / 2 <= len(parts) <= most


def test_group_finds_parallel_branches():
    """Two heavy towers between one input and one merge stay two parts."""
    #        c0 - c1 - c2 .
    #   in <               > c6
    #        c3 - c4 - c5 .
    edges = [(0, 1), (1, 2), (2, 3), (0, 4), (4, 5), (5, 6), (3, 7), (6, 7)]
    heavy = {0: 0.1, 7: 0.1} | dict.fromkeys(range(1, 7), 5.0)
    grouped = group(graph_of(edges, count=8, inputs=(0,), flops=heavy), 4, flops)

    part_of = {call.name: call.part for call in grouped.calls}
    assert part_of["c1"] == part_of["c2"] == part_of["c3"]
    assert part_of["c4"] == part_of["c5"] == part_of["c6"]
    assert part_of["c1"] != part_of["c4"]


def test_group_leaves_inputs_alone():
    """An input is fed from the host; it is no group with what reads it."""
    grouped = group(graph_of([(0, 1), (1, 2)], count=3, inputs=(0,)), 1, flops)

    assert [part.name for part in grouped.parts] == ["c0", "c1 .. c2"]


def test_group_binds_parts_that_share_weights():
    """A layer called at both ends of a chain keeps both ends on one device."""
    edges = [(i, i + 1) for i in range(9)]
    grouped = group(graph_of(edges, count=10, weights={0: "w", 9: "w"}), 5, flops)

    first, last = grouped.call["c0"].part, grouped.call["c9"].part
    assert grouped.part[last].near == (first,)


def test_group_keeps_calls_with_different_pins_apart():
    """A pin on the middle of a chain makes a part of the middle."""
    graph = graph_of([(i, i + 1) for i in range(5)], count=6)

    grouped = group(pinned(graph, {"c[23]": "gpu:1"}), 1, flops)

    assert [(p.name, p.on) for p in grouped.parts] == [
        ("c0 .. c1", ("auto",)),
        ("c2 .. c3", ("gpu:1",)),
        ("c4 .. c5", ("auto",)),
    ]


def test_pinned_names_a_pattern_that_matches_nothing():
    """A wrong pattern is an error with a suggestion, before anything is grouped."""
    graph = graph_of([(0, 1)], count=2)

    with pytest.raises(DeclarationError, match="matches no part, call or layer"):
        pinned(graph, {"conv*": "gpu:0"})


def test_group_of_many_calls_takes_no_time():
    """Ten thousand calls with skips are grouped in a couple of seconds."""
    edges = [(i, i + 1) for i in range(9_999)]
    edges += [(i, i + 7) for i in range(0, 9_990, 7)]

    assert len(group(graph_of(edges, count=10_000), 16, flops).parts) <= 16
