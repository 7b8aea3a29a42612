"""How firmly groups hang together."""

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.problem import Device, Net, Nodes, Problem
from splitnet.planner.search.strength import strong_links

END = 7


def graph_of(nets: list[tuple[int, tuple[int, ...], float]]) -> Problem:
    """Make groups without work for one device, with these nets."""
    return Problem(
        names=tuple(str(group) for group in range(END)),
        seconds=((0.0,),) * END,
        size_bytes=(0.0,) * END,
        nets=tuple(Net(source, ends, (cost,)) for source, ends, cost in nets),
        devices=(Device("gpu:0", 0),),
        allowed=((0,),) * END,
        forward=(),
        nodes=Nodes(),
    )


RING = [(0, (1,), 1.0), (0, (2,), 1.0), (1, (3,), 1.0), (2, (3,), 1.0), (3, (4,), 1.0)]


def test_ends_on_a_ring_hang_together_twice_as_firmly_as_a_bridge() -> None:
    """All nets cost the same; two ways lead round the ring, one to group 4."""
    links = strong_links(graph_of(RING), Budget(iterations=1000))

    assert links == [
        (2.0, 0, 1),
        (2.0, 0, 2),
        (2.0, 1, 3),
        (2.0, 2, 3),
        (1.0, 3, 4),
    ]


def test_a_net_with_many_ends_is_one_way() -> None:
    """Cutting it once costs once, so its ends are no firmer than a pair's."""
    links = strong_links(graph_of([(0, (1, 2, 3), 1.0)]), Budget(iterations=1000))

    assert links == [(1.0, 0, 1), (1.0, 0, 2), (1.0, 0, 3)]


def test_without_time_only_shared_nets_count() -> None:
    """No detour is looked for; two nets between the same ends add up."""
    nets = [*RING, (1, (0,), 0.5)]
    links = strong_links(graph_of(nets), Budget(iterations=0))

    assert [flow for flow, _, _ in links] == [1.5, 1.0, 1.0, 1.0, 1.0]


@given(
    st.lists(
        st.tuples(
            st.integers(0, END - 1), st.integers(0, END - 1), st.integers(1, 8)
        ).filter(lambda row: row[0] != row[1]),
        max_size=14,
    )
)
def test_the_flow_is_at_most_the_cheapest_cut(rows: list[tuple[int, int, int]]) -> None:
    """And at least what the ends share."""
    graph = nx.Graph()
    shared: dict[frozenset[int], float] = {}
    for a, b, cost in rows:
        pair = frozenset((a, b))
        shared[pair] = shared.get(pair, 0.0) + cost
        graph.add_edge(a, b, capacity=shared[pair])
    problem = graph_of([(a, (b,), float(cost)) for a, b, cost in rows])

    for flow, a, b in strong_links(problem, Budget(iterations=1000)):
        assert flow <= nx.minimum_cut_value(graph, a, b) * (1 + 1e-9)
        assert flow >= shared[frozenset((a, b))] * (1 - 1e-9)
