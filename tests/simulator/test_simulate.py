"""Simulating placements and plans by name."""

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Part
from splitnet.simulator.simulate import outcome_of
from splitnet.simulator.step_graph import step_graph
from tests.zoo import call, graph_of, shared, source

BOX = Cluster.of("2*gpu", "cpu", link="1 GB/s", latency=0)
CHAIN = {"x": "cpu:0", "c0": "gpu:0", "c1": "gpu:0", "c2": "gpu:1"}
SHARED = {"a": "cpu:0", "b": "cpu:0", "left": "gpu:0", "right": "gpu:1"}


def test_outcome_lists_transfers_in_the_words_of_a_plan():
    """Source and target are parts; a shared weight has its home."""
    one = shared()
    step = step_graph(one, BOX)
    found = outcome_of(BOX, step, SHARED | {"join": "cpu:0"})
    weights = [t for t in found.timeline.copies if "weights" in t.kind]

    assert [(t.kind, t.source_device, t.target_device) for t in weights] == [
        ("weights", "gpu:0", "gpu:1"),
        ("weights gradient", "gpu:1", "gpu:0"),
    ]


def test_timeline_calls_explicit_backward_calls_backward():
    """A graph with backward calls of its own gets no second backward pass."""
    calls = [source("x"), call("f", weights=("w",)), call("b", "f", backward=True)]
    parts = [Part("x", "input"), Part("f")]
    one = graph_of("explicit", calls, [("x", "f"), ("f", "b")], parts=parts)
    device_of = {"x": "cpu:0", "f": "gpu:0"}
    timeline = outcome_of(BOX, step_graph(one, BOX), device_of).timeline

    assert [(t.part, t.phase) for t in timeline.tasks] == [
        ("x", "forward"),
        ("f", "forward"),
        ("f", "backward"),
    ]
