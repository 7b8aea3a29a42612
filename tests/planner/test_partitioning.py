"""The functions that run a placement of calls: convex, acyclic, and as requested."""

import random
from itertools import pairwise

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.planner.constraints import with_pins
from splitnet.planner.partitioning import in_functions
from splitnet.simulator.step_graph import step_graph
from tests.zoo import between_parts

seeds = st.integers(0, 100_000)
every = settings(max_examples=60, deadline=None, derandomize=True)


def graph_of(edges, *, count, weights=None):
    """A graph with a part per call "c0", "c1" ..., edges by number."""
    names, used = [f"c{i}" for i in range(count)], weights or {}
    how = {"kind": "Dense", "forward_flops": 1.0}
    return Graph(
        "g",
        8,
        tuple(Call(n, n, **how, weights=used.get(n, ())) for n in names),
        tuple(Tensor(names[a], names[b], bytes=4) for a, b in edges),
        tuple(Weights(w, 4) for w in {w for own in used.values() for w in own}),
        tuple(Part(n) for n in names),
        (names[-1],),
    )


def random_graph(seed):
    """A random DAG of up to 40 calls, edges to later calls only."""
    draw = random.Random(seed)
    count = draw.randint(1, 40)
    edges = [
        (source, target)
        for target in range(1, count)
        for source in draw.sample(range(target), min(target, draw.randint(0, 3)))
    ]
    return graph_of(edges, count=count)


BOX = Cluster.of("2*gpu", "cpu")


def as_run(graph, device_of):
    """The functions of a placement of calls as parts, and their devices."""
    return in_functions(graph, step_graph(graph, BOX, units="calls"), device_of)


@every
@given(seeds)
def test_functions_are_convex_parts_of_one_device(seed):
    """Every call keeps its device, and the graph of the parts has no cycle."""
    draw = random.Random(seed)
    graph = with_pins(random_graph(seed), lambda _: draw.choice([None, "cpu"]))
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
    graph = Graph(
        "g",
        8,
        tuple(Call(name, name, "Dense") for name in names),
        tuple(Tensor(a, b) for a, b in pairwise(names)),
        parts=tuple(Part(name) for name in names),
    )
    device_of = {name: f"gpu:{int('block1' in name)}" for name in names}
    parts, _ = as_run(graph, device_of)

    assert [p.name for p in parts.parts] == ["stem", "block1", "block2_conv .. head"]


def test_functions_that_share_weights_are_bound():
    """A layer called at both ends of a chain keeps both ends on one device."""
    edges = [(i, i + 1) for i in range(4)]
    graph = graph_of(edges, count=5, weights={"c0": "w", "c4": "w"})
    device_of = {f"c{i}": "gpu:1" if i == 2 else "gpu:0" for i in range(5)}
    parted, _ = as_run(graph, device_of)

    assert parted.part[parted.call["c4"].part].near == (parted.call["c0"].part,)
