"""A model's calls in few parts: convex, acyclic, along its seams, and as requested."""

import random
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.planner.partitioning import clusters, in_functions, with_requests
from splitnet.simulator.step_graph import step_graph
from tests.zoo import between_parts

seeds = st.integers(0, 100_000)
every = settings(max_examples=60, deadline=None, derandomize=True)


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


def random_graph(seed):
    """A random DAG of up to 40 calls, edges to later calls only."""
    draw = random.Random(seed)
    count = draw.randint(1, 40)
    edges = [
        (source, target)
        for target in range(1, count)
        for source in draw.sample(range(target), min(target, draw.randint(0, 3)))
    ]
    weights = {i: draw.choice([0.0, 10 * draw.random()]) for i in range(count)}
    return graph_of(edges, count=count, flops=weights)


@every
@given(seeds, st.integers(1, 12))
def test_clusters_keeps_every_call_and_makes_no_cycle(seed, most):
    """Parts are convex, so their graph has no cycle; the same graph gives the same."""
    graph = random_graph(seed)
    merged = clusters(graph, most, flops)

    assert merged == clusters(graph, most, flops)
    assert sorted(c.name for c in merged.calls) == sorted(c.name for c in graph.calls)
    assert nx.is_directed_acyclic_graph(between_parts(merged))
    assert {c.part for c in merged.calls} == {p.name for p in merged.parts}


@pytest.mark.parametrize("most", [1, 2, 5, 10])
def test_clusters_cuts_a_chain_into_about_as_many_parts_as_asked(most):
    """A chain of equal calls is cut evenly, to within a factor of two."""
    graph = graph_of([(i, i + 1) for i in range(99)], count=100)

    parts = clusters(graph, most, flops).parts

    assert most / 2 <= len(parts) <= most


@every
@given(seeds, st.integers(1, 12), st.booleans())
def test_clusters_makes_no_more_parts_than_asked(seed, most, mixed):
    """Parts are as few as asked; what only the CPU runs adds its own runs, no more.

    A run ends where a path changes between CPU and GPU; of each kind there are as
    many as on the path that changes most often.
    """
    graph = random_graph(seed)
    bound = {call.name for i, call in enumerate(graph.calls) if mixed and i % 3 == 0}
    requested = with_requests(graph, lambda part: "cpu" if part.name in bound else None)

    runs = dict.fromkeys((call.name for call in graph.calls), 1)
    for tensor in graph.tensors:  # sources come before targets
        turn = (tensor.source in bound) != (tensor.target in bound)
        runs[tensor.target] = max(runs[tensor.target], runs[tensor.source] + turn)
    assert len(clusters(requested, most, flops).parts) <= most + 2 * max(runs.values())


def test_clusters_gathers_what_only_the_cpu_can_run():
    """Forty columns, each looked up on the CPU and embedded: two kinds, few parts."""
    #    in_i - look_i (cpu) - embed_i - join
    count = 40
    edges = [(i, count + i) for i in range(count)]
    edges += [(count + i, 2 * count + i) for i in range(count)]
    edges += [(2 * count + i, 3 * count) for i in range(count)]
    graph = graph_of(edges, count=3 * count + 1, inputs=range(count))
    looks = {f"c{count + i}": "cpu" for i in range(count)}

    merged = clusters(with_requests(graph, looks), 8, flops)

    assert sum(part.kind != "input" for part in merged.parts) <= 8


def test_clusters_finds_parallel_branches():
    """Two heavy towers between one input and one merge stay two parts."""
    #        c0 - c1 - c2 .
    #   in <               > c6
    #        c3 - c4 - c5 .
    edges = [(0, 1), (1, 2), (2, 3), (0, 4), (4, 5), (5, 6), (3, 7), (6, 7)]
    heavy = {0: 0.1, 7: 0.1} | dict.fromkeys(range(1, 7), 5.0)
    merged = clusters(graph_of(edges, count=8, inputs=(0,), flops=heavy), 4, flops)

    part_of = {call.name: call.part for call in merged.calls}
    assert part_of["c1"] == part_of["c2"] == part_of["c3"]
    assert part_of["c4"] == part_of["c5"] == part_of["c6"]
    assert part_of["c1"] != part_of["c4"]


def test_clusters_leaves_inputs_alone():
    """An input is fed from the host; it is no group with what reads it."""
    merged = clusters(graph_of([(0, 1), (1, 2)], count=3, inputs=(0,)), 1, flops)

    assert [part.name for part in merged.parts] == ["c0", "c1 .. c2"]


def test_clusters_binds_parts_that_share_weights():
    """A layer called at both ends of a chain keeps both ends on one device."""
    edges = [(i, i + 1) for i in range(9)]
    merged = clusters(graph_of(edges, count=10, weights={0: "w", 9: "w"}), 5, flops)

    first, last = merged.call["c0"].part, merged.call["c9"].part
    assert merged.part[last].near == (first,)


def test_clusters_keeps_calls_with_different_pins_apart():
    """A pin on the middle of a chain makes a part of the middle."""
    graph = graph_of([(i, i + 1) for i in range(5)], count=6)

    merged = clusters(with_requests(graph, {"c[23]": "gpu:1"}), 1, flops)

    assert [(p.name, p.on) for p in merged.parts] == [
        ("c0 .. c1", ("auto",)),
        ("c2 .. c3", ("gpu:1",)),
        ("c4 .. c5", ("auto",)),
    ]


def test_with_requests_names_a_pattern_that_matches_nothing():
    """A wrong pattern is an error with a suggestion, before anything is merged."""
    graph = graph_of([(0, 1)], count=2)

    with pytest.raises(DeclarationError, match="matches no part, call or layer"):
        with_requests(graph, {"conv*": "gpu:0"})


def test_with_requests_tells_the_calls_of_one_layer_apart():
    """The name of a layer pins all its calls, but for those that are named themselves.

    The first of two patterns wins.
    """
    graph = graph_of([(0, 1), (1, 2)], count=3)
    graph = replace(
        graph, calls=tuple(replace(call, layer="c0") for call in graph.calls)
    )

    def requests(pins):
        return [part.on for part in with_requests(graph, pins).parts]

    assert requests({"c0": "gpu:0"}) == [("gpu:0",)] * 3
    assert requests({"c0": "gpu:0", "c1": "gpu:1"}) == [
        ("gpu:0",),
        ("gpu:1",),
        ("gpu:0",),
    ]
    assert requests({"c?": "gpu:1", "*": "gpu:0"}) == [("gpu:1",)] * 3


def test_clusters_merges_ten_thousand_calls():
    """A long chain with skips is merged into as few parts as asked."""
    edges = [(i, i + 1) for i in range(9_999)]
    edges += [(i, i + 7) for i in range(0, 9_990, 7)]

    assert len(clusters(graph_of(edges, count=10_000), 16, flops).parts) <= 16


BOX = Cluster.of("2*gpu", "cpu")


def as_run(graph, device_of):
    """The functions of a placement of calls as parts, and their devices."""
    return in_functions(graph, step_graph(graph, BOX, units="calls"), device_of)


@every
@given(seeds)
def test_functions_are_convex_parts_of_one_device(seed):
    """Every call keeps its device, and the graph of the parts has no cycle."""
    draw = random.Random(seed)
    graph = with_requests(random_graph(seed), lambda _: draw.choice([None, "cpu"]))
    device_of = {call.name: draw.choice(["gpu:0", "gpu:1"]) for call in graph.calls}
    parted, device = as_run(graph, device_of)

    assert {c.name: device[c.part] for c in parted.calls} == device_of
    assert nx.is_directed_acyclic_graph(between_parts(parted))
    for call in parted.calls:
        assert parted.part[call.part].on == graph.part[call.name].on


def test_functions_end_where_something_arrives_or_is_sent():
    """A chain that visits another device is three parts, and a fourth that waits."""
    #  gpu:0  c0 - c1 ------- c4 - c5
    #           \\             /
    #  gpu:1      c2 ------- c3
    edges = [(0, 1), (0, 2), (2, 3), (1, 4), (3, 4), (4, 5)]
    graph = graph_of(edges, count=6)
    device_of = {f"c{i}": "gpu:1" if i in (2, 3) else "gpu:0" for i in range(6)}

    parts = [part.name for part in as_run(graph, device_of)[0].parts]

    assert parts == ["c0", "c1", "c2 .. c3", "c4 .. c5"]


def test_parts_are_named_for_their_blocks():
    """What the names of a part's calls begin with, where no other call's does."""
    names = ["stem", "block1_conv", "block1_add", "block2_conv", "block2_add", "head"]
    graph = graph_of([(i, i + 1) for i in range(5)], count=6)
    new = dict(zip([call.name for call in graph.calls], names))
    graph = replace(
        graph,
        calls=tuple(
            replace(c, name=new[c.name], part=new[c.part]) for c in graph.calls
        ),
        tensors=tuple(
            replace(t, source=new[t.source], target=new[t.target])
            for t in graph.tensors
        ),
        parts=tuple(replace(p, name=new[p.name]) for p in graph.parts),
        outputs=("head",),
    )
    device_of = {name: f"gpu:{int('block1' in name)}" for name in names}
    parts, _ = as_run(graph, device_of)

    assert [p.name for p in parts.parts] == ["stem", "block1", "block2_conv .. head"]
