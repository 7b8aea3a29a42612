"""Where a long run of calls is cut into functions."""

import pytest

from splitnet.simulator.memory import functions_of
from splitnet.simulator.step_graph import step_graph
from splitnet.simulator.units import cut_run
from tests.simulator.small import Seconds, box, dense, graph

CHAIN = {i: [(i - 1, 0)] for i in range(1, 64)}


@pytest.mark.parametrize(
    ("count", "lengths"),
    [(1, [1]), (15, [15]), (16, [8, 8]), (31, [8, 8, 15]), (32, [8, 8, 8, 8])],
)
def test_a_chain_is_cut_every_eight_calls(count, lengths):
    """What is left has eight calls at least."""
    assert [len(run) for run in cut_run(range(count), CHAIN)] == lengths


def test_nothing_is_cut_where_two_tensors_pass():
    """A skip from call 2 to call 20 moves the cut behind it."""
    reads = CHAIN | {20: [(19, 0), (2, 0)]}

    assert [len(run) for run in cut_run(range(32), reads)] == [21, 11]


def test_two_outputs_of_one_call_are_two_tensors():
    """A tensor that several calls read is one, two outputs of a call are two."""
    once = CHAIN | {12: [(11, 0), (7, 0)], 8: [(7, 0)]}
    twice = CHAIN | {12: [(11, 0), (7, 1)], 8: [(7, 0)]}

    assert [len(run) for run in cut_run(range(20), once)] == [8, 12]
    assert [len(run) for run in cut_run(range(20), twice)] == [20]


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
