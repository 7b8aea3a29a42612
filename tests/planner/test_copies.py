"""Copies as simulated: the road they keep, and the processors at its ends."""

from dataclasses import replace

import pytest

from splitnet.core.cluster import Cluster, Link
from splitnet.simulator.old_simulate import simulate_step
from tests.zoo import MIB, call, graph_of, source

BOX = Cluster.of("2*gpu", "cpu", link="1 GB/s", latency=0)


def test_simulate_serves_one_copy_at_a_time_per_direction():
    """Two copies over one link queue: the second starts when the first is done."""
    calls = [source("x"), source("y"), call("a", flops=1.0), call("b", flops=1.0)]
    graph = graph_of("queue", calls, [("x", "a"), ("y", "b")])
    device_of = {"x": "cpu:0", "y": "cpu:0", "a": "gpu:0", "b": "gpu:0"}
    first, second = simulate_step(graph, BOX, device_of).copies

    assert first.stop == pytest.approx(MIB / 1e9)
    assert second.start == first.stop


def test_simulate_overlaps_what_latency_the_road_is_free_in():
    """Of two copies at once the second waits for the first one's gap and bytes."""
    calls = [source("x"), source("y"), call("a", flops=1.0), call("b", flops=1.0)]
    graph = graph_of("queue", calls, [("x", "a"), ("y", "b")])
    device_of = {"x": "cpu:0", "y": "cpu:0", "a": "gpu:0", "b": "gpu:0"}
    moving, stops = MIB / 1e9, {}
    for gap in (None, 3e-3, 1e-3, 0.0):
        box = replace(BOX, links=(Link("*", "*", 1e9, 3e-3, gap_seconds=gap),))
        copies = simulate_step(graph, box, device_of).copies
        stops[gap] = [copy.stop for copy in copies]

    assert stops[None] == stops[3e-3]
    for gap in (3e-3, 1e-3, 0.0):
        assert stops[gap] == pytest.approx([3e-3 + moving, 3e-3 + gap + 2 * moving])


def test_simulate_lets_copies_arrive_at_a_processor_that_only_receives():
    """Where nothing is computed yet, what came before delays no copy."""
    calls = [source(n) for n in "xyz"] + [call(n, flops=1.0) for n in "abc"]
    graph = graph_of("burst", calls, [("x", "a"), ("y", "b"), ("z", "c")])
    device_of = dict.fromkeys("xyz", "cpu:0") | dict.fromkeys("abc", "gpu:0")
    box = replace(BOX, links=(Link("*", "*", 1e9, 0.0, 1.0),))
    copies = simulate_step(graph, box, device_of).copies

    moving = MIB / 1e9
    assert [c.stop for c in copies] == pytest.approx([moving, 2 * moving, 3 * moving])


def test_simulate_copies_may_keep_both_ends_busy():
    """Where processors copy, what their devices compute meanwhile ends later."""
    calls = [source("x"), call("a", flops=1e10), call("b", flops=1e10)]
    calls.append(call("c", flops=1e10))
    graph = graph_of("ends", calls, [("x", "a"), ("a", "b"), ("a", "c")])
    device_of = {"x": "cpu:0", "a": "gpu:0", "b": "gpu:1", "c": "gpu:0"}
    road = Link("*", "*", 1e9, 0.0)
    times = {}
    for share in (0.0, 0.5):
        box = replace(BOX, links=(replace(road, busy_share=share),))
        timeline = simulate_step(graph, box, device_of, training=False)
        times[share] = {task.call: task.start for task in timeline.tasks}

    copy = MIB / 1e9
    assert times[0.5]["a"] == times[0.0]["a"]
    assert times[0.5]["c"] == pytest.approx(times[0.0]["c"] + 0.5 * copy)
    assert times[0.5]["b"] == times[0.0]["b"]


def test_simulate_slows_devices_that_share_processors():
    """What runs at once takes longer by their share; what runs alone does not."""
    calls = [source("x"), call("a", flops=1e10), call("b", flops=1e10)]
    calls.append(call("c", flops=1e10))
    graph = graph_of("both", calls, [("x", "a"), ("x", "b"), ("a", "c"), ("b", "c")])
    device_of = {"x": "cpu:0", "a": "gpu:0", "b": "gpu:1", "c": "gpu:0"}
    road = Link("*", "*", 1e15, 0.0)
    times = {}
    for share in (0.0, 0.5, 1.0):
        box = replace(BOX, links=(replace(road, crowding=share),))
        timeline = simulate_step(graph, box, device_of, training=False)
        times[share] = {task.call: task.stop - task.start for task in timeline.tasks}

    alone = times[0.0]["a"]
    for share in (0.5, 1.0):
        assert times[share]["b"] == pytest.approx(alone * (1 + share), rel=1e-3)
        assert times[share]["c"] == pytest.approx(alone)


def test_simulate_lets_copies_take_processors_of_neighbours():
    """A copy's work slows what computes on the same processors as its ends."""
    calls = [source("x"), call("a", flops=1e10), call("b", flops=1e10)]
    calls.append(call("c", flops=1e10))
    graph = graph_of("near", calls, [("x", "a"), ("a", "c"), ("x", "b")])
    device_of = {"x": "cpu:0", "a": "gpu:0", "b": "gpu:1", "c": "gpu:0"}
    starts = []
    for share in (0.0, 1.0):
        pairs = (("cpu:0", "gpu:0"), ("gpu:0", "cpu:0"))
        crowd = [Link(*pair, 1e9, 0.0, 0.5, share) for pair in pairs]
        box = replace(BOX, links=(*crowd, Link("*", "*", 1e9, 0.0, 0.5)))
        wide = replace(graph, tensors=tuple(_wide(t, "b") for t in graph.tensors))
        timeline = simulate_step(wide, box, device_of, training=False)
        starts.append(next(t.start for t in timeline.tasks if t.call == "c"))

    assert starts[1] > starts[0]


def _wide(tensor, target):
    """The tensor, a hundred times as large if it goes to the target."""
    many = 100 if tensor.target == target else 1
    return replace(tensor, bytes=many * tensor.bytes, index=int(many > 1))
