"""The step graph: units, edges between them, weights and tables of seconds."""

from dataclasses import replace

from splitnet.core.costs import CallSeconds, Measured
from splitnet.simulator.step_graph import step_graph
from tests.simulator.small import Seconds, box, dense, graph


def test_parts_that_wait_for_each_other_count_call_by_call():
    """P leaves for q and comes back; r is not concerned."""
    calls = [dense("p1", "p"), dense("q"), dense("p2", "p")]
    calls += [dense("r1", "r"), dense("r2", "r")]
    step = step_graph(graph(calls, "p1-q q-p2 p2-r1 r1-r2"), box(), Seconds())

    assert [unit.name for unit in step.units] == ["p1", "q", "p2", "r1"]
    assert step.parts == ["p", "q", "p", "r"]


def test_gradients_flow_between_trained_weights_and_outputs():
    """Nothing flows into what has no weight before it, or has no way to an output."""
    calls = [dense("x", weights=()), dense("a"), dense("b", weights=()), dense("side")]
    one = replace(graph(calls, "x-a a-b a-side"), outputs=("b",))
    step = step_graph(one, box(), Seconds())

    assert [unit.name for unit in step.units if unit.has_backward] == ["a", "b"]
    assert [unit.name for unit in step.units if unit.trained] == ["a"]


def test_frozen_weights_get_neither_gradient_nor_update():
    """Their bytes count, nothing else."""
    one = graph([dense("a")], "", weight_bytes=8)
    frozen = replace(one, weights=(replace(one.weights[0], trainable=False),))
    step = step_graph(frozen, box(), Seconds())

    assert (step.units[0].weight_bytes, step.units[0].trained) == (8, ())


def test_a_shared_embedding_sends_rows_where_all_of_a_unit_look_up():
    """B looks up rows of 3 bytes by numbers of 1 byte; c multiplies by the table."""
    look = {"weights": ("table",), "lookups": ("table",)}
    calls = [
        dense("i", weights=()),
        dense("a", out=3, **look),
        dense("b", out=3, **look),
    ]
    calls.append(dense("c", weights=("table",)))
    one = graph(calls, "i-a i-b a-c", weight_bytes=100)
    step = step_graph(one, box(), Seconds())
    [table] = [item for item in step.items if item.is_weight]

    assert table.row_bytes == (4, 4, 0)
    assert table.sum_bytes([True, True, False]) == 8
    assert table.sum_bytes([False, True, True]) == 104


def test_a_graph_with_backward_calls_of_its_own_gets_no_other_backward_pass():
    """Forward and backward calls of one part are two units."""
    calls = [dense("f", "p"), dense("loss"), dense("g", "p", backward=True)]
    step = step_graph(graph(calls, "f-loss loss-g"), box(), Seconds())

    assert [unit.explicit_backward for unit in step.units] == [False, False, True]
    assert not any(unit.has_backward for unit in step.units)


def test_devices_of_equal_cost_share_their_rows():
    """A table that names one device tells it apart."""
    one = graph([dense("a")], "")
    alike = step_graph(one, box(3), Measured())
    told = step_graph(one, box(3), Measured((CallSeconds("a", "gpu:1", 9.0),)))

    assert alike.task_seconds[0] is alike.task_seconds[2]
    assert told.task_seconds[0] is told.task_seconds[2]
    assert told.task_seconds[1][0] - box()["gpu:1"].part_seconds == 9.0
