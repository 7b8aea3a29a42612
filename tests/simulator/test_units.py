"""The step graph: units and functions, what is between them, and seconds."""

from dataclasses import replace

import pytest

from splitnet.core.costs import CallSeconds, Costs, signature
from splitnet.core.graph import Weights
from splitnet.simulator.memory import functions_of
from splitnet.simulator.step_graph import step_graph
from splitnet.simulator.units import cut_run
from tests.simulator.small import Seconds, box, dense, graph, outcome

CHAIN = {i: [(i - 1, 0)] for i in range(1, 64)}


@pytest.mark.parametrize(
    ("count", "more", "lengths"),
    [
        (1, {}, [1]),
        (15, {}, [15]),
        (16, {}, [8, 8]),
        (31, {}, [8, 8, 15]),
        (32, {}, [8, 8, 8, 8]),
        # A skip from call 2 to call 20 moves the cut behind it.
        (32, {20: [(19, 0), (2, 0)]}, [21, 11]),
        # A tensor that two calls read is one, two outputs of a call are two.
        (20, {12: [(11, 0), (7, 0)], 8: [(7, 0)]}, [8, 12]),
        (20, {12: [(11, 0), (7, 1)], 8: [(7, 0)]}, [20]),
    ],
)
def test_a_chain_is_cut_every_eight_calls_where_one_tensor_passes(count, more, lengths):
    """What is left has eight calls at least."""
    assert [len(run) for run in cut_run(range(count), CHAIN | more)] == lengths


@pytest.mark.parametrize(
    ("devices", "functions"),
    [
        ([0, 0, 0], [[0, 1, 2]]),
        ([0, 1, 0], [[0], [1], [2]]),
        ([0, 0, 1], [[0, 1], [2]]),
    ],
)
def test_parts_of_one_device_without_a_hop_between_are_one_function(devices, functions):
    """A part that comes back to a device is a function of its own."""
    one = graph([dense("a"), dense("b"), dense("c")], "a-b b-c")

    assert functions_of(step_graph(one, box(2), Seconds()), devices) == functions


def test_parts_that_wait_for_each_other_count_call_by_call():
    """P leaves for q and comes back; r is not concerned."""
    calls = [dense("p1", "p"), dense("q"), dense("p2", "p")]
    calls += [dense("r1", "r"), dense("r2", "r")]
    step = step_graph(graph(calls, "p1-q q-p2 p2-r1 r1-r2"), box(), Seconds())

    assert [unit.name for unit in step.units] == ["p1", "q", "p2", "r1"]
    assert step.parts == ["p", "q", "p", "r"]


def test_gradients_flow_between_trained_weights_and_outputs():
    """Not into what has no weight before it, no way to an output, or frozen weights.

    A weight that no call uses changes nothing.
    """
    calls = [dense("x", weights=()), dense("a"), dense("b", weights=()), dense("side")]
    one = replace(graph(calls, "x-a a-b a-side", weight_bytes=8), outputs=("b",))
    still = (replace(weight, trainable=False) for weight in one.weights)
    frozen = replace(one, weights=(*still, Weights("unused", 8)))
    for which, flows, trained in ((one, ["a", "b"], ["a"]), (frozen, [], [])):
        units = step_graph(which, box(), Seconds()).units

        assert [unit.name for unit in units if unit.has_backward] == flows
        assert [unit.name for unit in units if unit.trained] == trained
        assert [unit.weight_bytes for unit in units] == [0, 8, 0, 8]


def test_a_shared_embedding_sends_rows_where_all_of_a_unit_look_up():
    """B looks up rows of 3 bytes by numbers of 1 byte; c multiplies by the table."""
    look = {"weights": ("table",), "lookups": ("table",)}
    calls = [dense("i", weights=()), dense("a", out=3, **look)]
    calls += [dense("b", out=3, **look), dense("c", weights=("table",))]
    one = graph(calls, "i-a i-b a-c", weight_bytes=100)
    [table] = step_graph(one, box(), Seconds()).weights

    assert table.row_bytes == (4, 4, 0)
    assert table.sum_bytes([True, True, False]) == 8
    assert table.sum_bytes([False, True, True]) == 104


def test_a_graph_with_backward_calls_of_its_own_gets_no_other_backward_pass():
    """Forward and backward calls of one part are two units."""
    calls = [dense("f", "p"), dense("loss"), dense("g", "p", backward=True)]
    tasks = outcome(graph(calls, "f-loss loss-g"), box(), "00").timeline.tasks

    assert [(task.part, task.phase) for task in tasks] == [
        ("p", "forward"),
        ("loss", "forward"),
        ("p", "backward"),
    ]


def test_devices_of_equal_cost_share_their_rows():
    """A table that names one device tells it apart."""
    one = graph([dense("a")], "")
    known = signature(one.calls[0]), "gpu:1"
    alike, told = (
        step_graph(one, box(3), costs).task_seconds
        for costs in (Costs(), Costs((CallSeconds(*known, 9.0, flops=1.0),)))
    )

    assert alike[0] is alike[2]
    assert told[0] is told[2]
    assert told[1][0] - box()["gpu:1"].part_seconds == 9.0
