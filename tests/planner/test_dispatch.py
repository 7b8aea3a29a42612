"""List scheduling as a step runs: what is reckoned is what is played afterwards."""

import random

import pytest

from splitnet.core.cluster import Cluster
from splitnet.planner.board import Board
from splitnet.planner.bounds import lower_bound
from splitnet.planner.dispatch import dispatched
from splitnet.planner.planner import plan_graph
from splitnet.planner.request import Request
from splitnet.planner.schedule import earliest_finish
from tests.zoo import call, graph_of, source

BOX = Cluster.of("4*gpu", "cpu", memory="80 GiB")


def lanes(count: int, width: int, seed: int) -> Board:
    """Inference through lanes of uneven calls; one call in twenty reads two lanes."""
    draw = random.Random(seed)
    calls, edges, last = [source("x")], [], ["x"] * width
    for number in range(count):
        name, lane = f"c{number}", number % width
        calls.append(call(name, flops=draw.choice((1e9, 3e9, 1e10)), out=2**19))
        sources = {last[lane]: None}
        if draw.random() < 0.05:
            sources[last[draw.randrange(width)]] = None
        edges += [(one, name) for one in sources]
        last[lane] = name
    request = Request(graph_of("lanes", calls, edges), BOX, training=False)
    return request.board(request.resolve()[1])


@pytest.mark.parametrize("seed", range(3))
def test_dispatch_keeps_devices_busy_as_the_step_is_played(seed):
    """The played pass is near its bound; a schedule in order of the graph is not."""
    board = lanes(600, 6, seed)
    bound = lower_bound(board)
    assert board.exact(dispatched(board)).value < 1.1 * bound
    in_order = earliest_finish(board, range(board.units.count))
    assert board.exact(in_order).value > 1.2 * bound


def test_dispatch_follows_a_pin_and_its_group():
    """What has one device stays there, and its reader goes where it waits least."""
    calls = [source("x", out=2**26), call("a", out=2**28), call("b")]
    graph = graph_of("pair", calls, [("x", "a"), ("a", "b")])
    plan = plan_graph(graph, BOX, pins={"a": "gpu:2"}, strategy="earliest_finish")
    assert plan.device_of["a"] == plan.device_of["b"] == "gpu:2"
