"""The event loop: tasks and copies of small steps at times computed by hand."""

from dataclasses import replace

import pytest

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Weights
from splitnet.simulator.step_graph import step_graph
from tests.simulator.small import Seconds, box, dense, graph, outcome, spans
from tests.zoo import altered

LEFT, RIGHT = (dense(name, weights=("w",)) for name in ("left", "right"))
JOIN = dense("join", weights=())
TWO, PART = [dense("a"), dense("b")], [dense("a1", "a"), dense("a2", "a")]
THREE = [dense("a", out=2), dense("b"), dense("c")]
TWO_CALLS = [dense("a"), dense("b", seconds=5.0), dense("c1", "c"), dense("c2", "c")]
FOUR = [dense("a", out=2), dense("d", out=2), dense("b"), dense("c")]
EARLY = [dense("a", out=2), dense("d", seconds=0.0, out=2), dense("b"), dense("c")]
QUEUE = graph([dense("a"), dense("b", seconds=2.0)], "a-b")
SENT = graph([dense("a", out=3), dense("b")], "a-b")
LATE, BUSY = {"latency": 10.0, "gap": 1.0}, {"overhead": 3.0}


@pytest.mark.parametrize(
    ("one", "devices", "machine", "training", "expected"),
    [
        # The update of b is ready at 7 and queues behind a', which is ready as early
        # and has a lower number.
        (QUEUE, "00", {}, True, "a 0-1, b 1-3, b' 3-7, a' 7-9, b* 9-10, a* 10-11"),
        # 3 bytes take 3 seconds each way; b updates while its gradient is on the way.
        (SENT, "01", {}, True, "a>b 1-4, b 4-5, b' 5-7, b>a' 7-10, b* 7-8, a' 10-12"),
        # b and c share the copy of a's output, and one gradient crosses after both.
        (
            graph([*TWO, dense("c")], "a-b a-c"),
            *("011", {}, True),
            "a 0-1, a>b 1-2, b 2-3, c 3-4, b' 4-6, c' 6-8, b>a' 8-9",
        ),
        # The first call of the part does not need b, but the part is one function.
        (graph(TWO_CALLS, "a-c1 c1-c2 b-c2"), "010", {}, False, "b>c 5-6, c 6-8"),
        # w is at home with left on gpu:0; 4 bytes each way.
        (
            graph([LEFT, RIGHT, JOIN], "left-join right-join", weight_bytes=4),
            *("010", {}, True),
            "left>right weights 0-4, right 4-5, right' 10-12, "
            "right>left weights' 12-16, left* 16-17",
        ),
        # A link carries one copy at a time; the other way is free.
        (graph(FOUR, "a-b d-c"), "0011", {}, False, "a>b 1-3, d>c 3-5"),
        # Arrivals 3 seconds apart: the gap occupies the link, the latency does not.
        (graph(EARLY, "a-b d-c"), "0011", LATE, False, "d>c 0-12, a>b 3-15"),
        # Two bytes of a copy, 1 second each, occupy its ends for 3 seconds each.
        (graph(THREE, "a-b a-c"), "010", BUSY, False, "a 0-1, a>b 1-9, c 7-8, b 9-10"),
        # Two calls of a part pay one call of a function, forward and backward.
        (graph(PART, "a1-a2"), "0", {"part": 10}, True, "a 0-12, a' 12-26, a* 26-28"),
    ],
)
def test_a_step_at_times_computed_by_hand(one, devices, machine, training, expected):
    """A' is the backward task of a, a* its update, a>b' the copy of a gradient."""
    found = spans(outcome(one, box(2, **machine), devices, training=training))
    for event in expected.split(", "):
        name, _, times = event.rpartition(" ")
        assert found[name] == tuple(map(float, times.split("-"))), event


OWN = [dense("f", "p"), dense("loss"), dense("g", "p", backward=True)]
SHARED = graph([LEFT, RIGHT, JOIN], "left-join right-join")


@pytest.mark.parametrize(
    ("one", "devices", "training", "names"),
    [
        (graph(TWO, "a-b"), "00", False, "a b"),
        (graph(TWO, "a-b", dtype="int32"), "01", True, "a a' a* a>b b b' b*"),
        (SHARED, "000", True, "join join' left left' left* right right'"),
        # A graph with backward calls of its own gets no other backward pass.
        (graph(OWN, "f-loss loss-g"), "00", True, "loss p p'"),
    ],
)
def test_what_a_step_consists_of(one, devices, training, names):
    """Inference is forward; integers get no gradient; a shared weight one update."""
    found = outcome(one, box(), devices, training=training)
    assert sorted(spans(found)) == names.split()
    assert len(found.timeline.tasks) + len(found.timeline.copies) == len(names.split())


def test_parts_that_wait_for_each_other_count_call_by_call():
    """P leaves for q and comes back; r is not concerned."""
    calls = [dense("p1", "p"), dense("q"), dense("p2", "p")]
    calls += [dense("r1", "r"), dense("r2", "r")]
    step = step_graph(graph(calls, "p1-q q-p2 p2-r1 r1-r2"), box(), Seconds())
    assert [unit.name for unit in step.units] == ["p1", "q", "p2", "r1"]
    assert step.parts == ["p", "q", "p", "r"]


def test_gradients_flow_between_trained_weights_and_outputs():
    """Not into what has no weight before it, no way to an output, or is frozen."""
    calls = [dense("x", weights=()), dense("a"), dense("b", weights=()), dense("side")]
    one = replace(graph(calls, "x-a a-b a-side", weight_bytes=8), outputs=("b",))
    still = (replace(weight, trainable=False) for weight in one.weights)
    frozen = replace(one, weights=(*still, Weights("unused", 8)))
    stopped = altered(one, "calls", "b", kind="StopGradient")
    wanted = (one, ["a", "b"], ["a"]), (frozen, [], []), (stopped, [], [])
    for which, flows, trained in wanted:
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


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_cost_model_gives_finite_seconds(seconds):
    costs = type("Odd", (Seconds,), {"backward_seconds": lambda *_: seconds})()
    with pytest.raises(DeclarationError, match="for 'a' on gpu:0 the cost model gives"):
        step_graph(graph(TWO, "a-b"), box(), costs)
