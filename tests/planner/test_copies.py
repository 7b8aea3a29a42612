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
