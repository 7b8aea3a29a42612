"""Cost models: what is measured, known, and estimated."""

from dataclasses import replace

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.costs.model import Measured, Roofline
from tests.zoo import chain

BOX = Cluster.of("2*gpu", "cpu")


def test_measured_costs_beat_the_estimate():
    """A measured call takes what was measured; another is still estimated."""
    graph = chain(2)
    costs = Measured(forward={("c0", "gpu"): 1.0}, backward={("c0", "gpu:0"): 2.0})
    gpu = BOX["gpu:0"]

    assert costs.forward_seconds(graph.call["c0"], gpu) == 1.0
    assert costs.backward_seconds(graph.call["c0"], gpu) == 2.0
    assert costs.forward_seconds(graph.call["c1"], gpu) == Roofline().forward_seconds(
        graph.call["c1"], gpu
    )


def test_roofline_takes_the_slower_of_arithmetic_and_memory():
    """Bytes (at 80 % of the bandwidth) bound a call without arithmetic, else FLOPs."""
    gpu = replace(BOX["gpu:0"], call_seconds=0.0)
    graph = chain(1, flops=1e12)
    light = replace(graph.call["c0"], forward_flops=0.0, moved_bytes=5e11)

    assert Roofline().forward_seconds(graph.call["c0"], gpu) == pytest.approx(0.1)
    assert Roofline().forward_seconds(light, gpu) == pytest.approx(1.25)
    assert Roofline().forward_seconds(graph.call["x"], gpu) == 0.0


def test_known_seconds_beat_the_roofline():
    """A call that knows its seconds is not estimated; backward scales with FLOPs."""
    one = replace(chain(1).call["c0"], seconds_on=(("gpu", 3.0),))

    assert Roofline().forward_seconds(one, BOX["gpu:0"]) == 3.0
    assert Roofline().backward_seconds(one, BOX["gpu:0"]) == 6.0
