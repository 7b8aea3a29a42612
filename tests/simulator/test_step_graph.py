"""The step graph: units, edges between them, weights and tables of seconds."""

from dataclasses import replace

from splitnet.core.costs import Measured
from splitnet.simulator.step_graph import step_graph
from splitnet.simulator.task_graph import Edge, SharedWeight
from tests.simulator.small import Seconds, box, dense, graph


def test_units_are_parts_in_an_order_in_which_they_may_run():
    """A part of two calls is one unit with the sum of their seconds."""
    calls = [dense("a"), dense("b1", "b"), dense("b2", "b"), dense("c")]
    step = step_graph(graph(calls, "a-b1 b1-b2 b2-c"), box(), Seconds())

    assert step.names == ("a", "b1", "c")
    assert step.forward[0] == (1, 2, 1)
    assert step.backward[0] == (2, 4, 2)


def test_parts_that_wait_for_each_other_count_call_by_call():
    """P leaves for q and comes back; r is not concerned."""
    calls = [dense("p1", "p"), dense("q"), dense("p2", "p")]
    calls += [dense("r1", "r"), dense("r2", "r")]
    step = step_graph(graph(calls, "p1-q q-p2 p2-r1 r1-r2"), box(), Seconds())

    assert step.names == ("p1", "q", "p2", "r1")
    assert step.parts == ("p", "q", "p", "r")


def test_units_may_be_calls():
    """They do not pay the call of a function."""
    calls = [dense("a"), dense("b"), dense("c", "b")]
    one = graph(calls, "a-b b-c")
    cluster = box(part=10)

    assert step_graph(one, cluster, Seconds()).forward[0] == (11, 12)
    assert step_graph(one, cluster, Seconds(), units="calls").forward[0] == (1, 1, 1)


def test_an_output_that_two_units_read_is_one_edge():
    """One edge with two readers, both of which save it and return gradients."""
    one = graph([dense("a"), dense("b"), dense("c")], "a-b a-c")
    step = step_graph(one, box(), Seconds())

    assert step.edges[0] == Edge(0, (1, 2), 1, gradients_from=(1, 2), saved_by=(1, 2))
    assert [(edge.source, edge.readers) for edge in step.edges[1:]] == [
        (1, ()),
        (2, ()),
    ]


def test_gradients_flow_between_trained_weights_and_outputs():
    """Nothing flows into what has no weight before it, or has no way to an output."""
    calls = [dense("x", weights=()), dense("a"), dense("b", weights=()), dense("side")]
    one = replace(graph(calls, "x-a a-b a-side"), outputs=("b",))
    step = step_graph(one, box(), Seconds())

    assert step.has_backward == (False, True, True, False)
    assert step.has_update == (False, True, False, False)


def test_frozen_weights_get_neither_gradient_nor_update():
    """Their bytes count, nothing else."""
    one = graph([dense("a")], "", weight_bytes=8)
    frozen = replace(one, weights=(replace(one.weights[0], trainable=False),))
    step = step_graph(frozen, box(), Seconds())

    assert (step.weight_bytes, step.trained_bytes) == ((8,), (0,))
    assert not step.has_update[0]


def test_a_weight_of_two_units_is_shared_and_at_home_with_the_first():
    """Its bytes count at home; both users contribute gradients."""
    calls = [dense("a", weights=("w",)), dense("b", weights=("w",))]
    step = step_graph(graph(calls, "a-b", weight_bytes=8), box(), Seconds())

    assert step.weights == (SharedWeight("w", 8, (0, 1), (0, 1)),)
    assert step.weight_bytes == (8, 0)


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
    [reduction] = [r for r in step.tasks.reductions if r.kind == 3]

    assert step.weights[0].row_bytes == (4, 4, 0)
    assert reduction.bytes_from([True, True, False]) == 8
    assert reduction.bytes_from([False, True, True]) == 104


def test_a_graph_with_backward_calls_of_its_own_gets_no_other_backward_pass():
    """Forward and backward calls of one part are two units."""
    calls = [dense("f", "p"), dense("loss"), dense("g", "p", backward=True)]
    step = step_graph(graph(calls, "f-loss loss-g"), box(), Seconds())

    assert step.explicit_backward == (False, False, True)
    assert not any(step.has_backward)


def test_devices_of_equal_cost_share_their_rows():
    """A table that names one device tells it apart."""
    one = graph([dense("a")], "")
    alike = step_graph(one, box(3), Measured())
    told = step_graph(one, box(3), Measured(forward={("a", "gpu:1"): 9.0}))

    assert alike.forward[0] is alike.forward[2]
    assert told.forward[0] is told.forward[2]
    assert told.forward[1][0] - box()["gpu:1"].part_seconds == 9.0


def test_tails_are_the_least_seconds_behind_each_task():
    """Behind a: b, b', a' and its update; free copies, the fastest devices."""
    step = step_graph(
        graph([dense("a"), dense("b", seconds=2.0)], "a-b"), box(), Seconds()
    )

    #                     a  b  b' a' update of a and of b
    assert step.tails == (9, 7, 3, 1, 0, 0)
