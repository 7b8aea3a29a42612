"""The functions that run a placement of calls: convex, acyclic, and as requested."""

import random
from itertools import pairwise

import networkx as nx
import pytest

from splitnet.core.cluster import Cluster
from splitnet.planner.constraints import select, with_pins
from splitnet.planner.problem import bind_shared_weights, functions_called, in_functions
from splitnet.simulator.step_graph import step_graph
from tests.zoo import altered, between_parts, call, chain, graph_of, random_dag, source

BOX = Cluster.of("2*gpu", "cpu")


def as_run(graph, device_of):
    graph = bind_shared_weights(graph)
    return in_functions(graph, step_graph(graph, BOX, units="calls"), device_of)


@pytest.mark.parametrize("count", range(1, 41))
def test_functions_are_convex_parts_of_one_device(count):
    """Every call keeps its device, parts have no cycle, seconds are sums of calls."""
    draw = random.Random(count)
    pins = {f"p{i}": draw.choice(["auto", "cpu"]) for i in range(count)}
    graph = with_pins(random_dag(count, count), pins)
    device_of = {call.name: draw.choice(["gpu:0", "gpu:1"]) for call in graph.calls}
    parted, device = as_run(graph, device_of)
    assert {c.name: device[c.part] for c in parted.calls} == device_of
    assert nx.is_directed_acyclic_graph(between_parts(parted))
    for one in parted.calls:
        assert parted.part[one.part].on == graph.part[one.name].on
    for name in parted.part.keys() - {"x"}:
        its = {one.name for one in parted.calls_of[name]}
        assert select(graph, {name: 0}).keys() == its
    step = step_graph(graph, BOX, units="calls")
    where = [int(device_of[c.name] == "gpu:1") for c in graph.calls]
    units = functions_called(graph, step, where)
    summed = step_graph(graph, BOX, units=units, of_calls=step)
    assert summed.task_seconds == step_graph(graph, BOX, units=units).task_seconds


#  gpu:0  a - b ------- e - f
#           \         /
#  gpu:1      c --- d
DETOUR = [*("ab", "ac", "cd", "be", "de", "ef")]
LONG = "abcdefghijklmnopqrstuvwx"
BLOCKS = ["stem", "block1_conv", "block1_add", "block2_conv", "block2_add", "head"]
NAMED = ["stem", "block1", "block2_conv .. head"]


@pytest.mark.parametrize(
    ("names", "edges", "away", "parts"),
    [
        ("abcdef", DETOUR, "cd", ["a", "b", "c .. d", "e .. f"]),
        (BLOCKS, pairwise(BLOCKS), BLOCKS[1:3], NAMED),
        (LONG, pairwise(LONG), "", ["a .. h", "i .. p", "q .. x"]),
        (LONG[:-1], [*pairwise(LONG[:-1]), "ch"], "", ["a .. h", "i .. w"]),
        (LONG, [*pairwise(LONG), "ci"], "", ["a .. i", "j .. x"]),
        ("abcd", ["ab", "ac", "bd", "cd"], "a", ["a", "b, c .. d"]),
        ("abcde", ["ac", "bc", "cd", "ce"], "de", [".. c", "d", "e"]),
        ("abcd", ["ab", "bc", "bd"], "a", ["a", "b .."]),
    ],
)
def test_functions_end_where_data_cross(names, edges, away, parts):
    """Long ones as well, where one tensor passes; names are of calls or of ends."""
    graph = graph_of("g", [call(name) for name in names], [tuple(e) for e in edges])
    device_of = {name: f"gpu:{int(name in away)}" for name in names}
    assert [part.name for part in as_run(graph, device_of)[0].parts] == parts


def test_calls_of_a_function_that_no_data_joins_are_listed():
    graph = graph_of("g", [call(name) for name in "abkc"], ["ak", "bc", "kc"])
    graph = altered(graph, "parts", "k", on=("gpu:1",))
    parted, _ = as_run(graph, dict.fromkeys("abkc", "gpu:0"))
    assert [part.name for part in parted.parts] == ["a, b", "k", "c"]


def test_functions_stand_behind_the_inputs_that_they_read():
    calls = [source("x"), call("a"), source("late"), call("b")]
    graph = graph_of("g", calls, [("x", "a"), ("a", "b"), ("late", "b")])
    step = step_graph(graph, BOX, units="calls")
    assert functions_called(graph, step, [2, 0, 2, 0]) == [(0,), (2,), (1, 3)]


def test_functions_that_share_weights_are_bound_and_others_stay_apart():
    """A layer called at both ends of a chain binds them, as near= binds parts."""
    names = [one.name for one in chain(5).calls]
    calls = [call(n, weights=("w",) if n in ("x", "c3") else ()) for n in names]
    graph = graph_of("g", calls, list(pairwise(names)))
    graph = altered(graph, "parts", "c1", apart=("c0",))
    on = dict.fromkeys(names, "gpu:0") | dict.fromkeys(("c1", "c4"), "gpu:1")
    parted, _ = as_run(altered(graph, "parts", "c4", near=("c1",)), on)
    assert parted.part["c4"].near == ("c1",)
    assert parted.part[parted.call["c3"].part].near == (parted.call["x"].part,)
    assert parted.part["c1"].apart == (parted.call["c0"].part,) == ("x .. c0",)
