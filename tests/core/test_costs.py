"""Cost models: measured, known and estimated seconds."""

from dataclasses import replace

import pytest

from splitnet.core.cluster import Device
from splitnet.core.costs import (
    CallSeconds,
    Costs,
    UpdateSeconds,
    signature,
)
from splitnet.core.graph import Call
from tests.zoo import call, chain

ROOFLINE = Costs()
A100 = Device.of("gpu:0", preset="A100")


def layer(kind: str, flops: float, moved: float, **more: object) -> Call:
    """A call of a kind of layer, by its forward FLOPs and bytes."""
    return call("layer", kind=kind, flops=flops, moved_bytes=moved, **more)


def test_roofline_charges_every_step_of_a_recurrence() -> None:
    """500 dependent steps take milliseconds on a GPU, however small they are."""
    small = layer("LSTM", 500 * 98304.0, 500 * 3072.0, sequential_steps=500)

    seconds = ROOFLINE.forward_seconds(small, A100)
    assert seconds == pytest.approx(500 * 4 * A100.call_seconds, rel=0.01)


def test_roofline_doubles_tensor_cores_in_half_precision() -> None:
    """On a GPU, and more if 16 bits are all that they do; none less on a CPU."""
    cpu = Device.of("cpu:0")
    v100, own = (
        Device.of("gpu:0", **its) for its in ({"preset": "V100"}, {"speed": 13e12})
    )
    full, half = (
        call("d", flops=1e15, output_dtypes=(dtype,))
        for dtype in ("float32", "float16")
    )

    assert ROOFLINE.forward_seconds(half, A100) == pytest.approx(
        ROOFLINE.forward_seconds(full, A100) / 2, rel=1e-3
    )
    assert ROOFLINE.forward_seconds(half, cpu) == ROOFLINE.forward_seconds(full, cpu)
    alike = ROOFLINE.forward_seconds(half, own)
    assert ROOFLINE.forward_seconds(half, v100) < 0.5 * alike


def test_updates_pay_for_each_variable() -> None:
    """Adam has two slots: 12 kernels, whatever the size; or fixed measured seconds."""
    tiny = ROOFLINE.update_seconds(4, A100, "adam")
    costs = Costs(updates=(UpdateSeconds("gpu:0", 4.0, 0.5),))
    other = replace(A100, name="gpu:1", target="/device:GPU:1")

    assert tiny == pytest.approx(12 * A100.call_seconds, rel=1e-3)
    assert costs.update_seconds(8, A100, "sgd") == 2.5
    estimate = ROOFLINE.update_seconds(8, other, "sgd")
    assert costs.update_seconds(8, other, "sgd") == estimate


def test_measured_costs_beat_the_estimate():
    """A measured call takes what was measured; another is still estimated."""
    known, other = layer("Dense", 0.0, 1.0), layer("Conv1D", 0.0, 1.0)
    costs = Costs((CallSeconds(signature(known), "gpu", 1.0, 2.0, rows=32),))

    assert costs.forward_seconds(known, A100) == 1.0
    assert costs.backward_seconds(known, A100) == 2.0
    assert costs.forward_seconds(other, A100) == ROOFLINE.forward_seconds(other, A100)


def test_a_share_of_the_rows_takes_its_share_and_all_that_is_fixed() -> None:
    """So do micro-batches and towers, whatever their calls are named."""
    whole = layer("Dense", 800.0, 1.0, output_shapes=((8, 4),))
    half = replace(whole, name="tower", output_shapes=((4, 4),), forward_flops=400.0)
    wider = replace(half, forward_flops=800.0)
    costs = Costs((CallSeconds(signature(whole), "gpu", 1.0, 2.0, 0.5, 0.2, 8, 800.0),))

    assert costs.forward_seconds(half, A100) == 0.5 + 0.25
    assert costs.backward_seconds(half, A100) == pytest.approx(0.2 + 0.9)
    assert costs.forward_seconds(wider, A100) == ROOFLINE.forward_seconds(wider, A100)


def test_roofline_takes_the_slower_of_arithmetic_and_memory():
    """Bytes (at 80 % of the bandwidth) bound a call without arithmetic, else FLOPs."""
    gpu = replace(A100, call_seconds=0.0)
    graph = chain(1, flops=1e12)
    light = replace(graph.call["c0"], forward_flops=0.0, moved_bytes=5e11)

    assert ROOFLINE.forward_seconds(graph.call["c0"], gpu) == pytest.approx(
        1e12 / gpu.flops_per_second
    )
    assert ROOFLINE.forward_seconds(light, gpu) == pytest.approx(
        5e11 / (0.8 * gpu.bytes_per_second)
    )
    assert ROOFLINE.forward_seconds(graph.call["x"], gpu) == 0.0


def test_known_seconds_beat_the_roofline():
    """A call that knows its seconds is not estimated; backward scales with FLOPs."""
    one = replace(chain(1).call["c0"], seconds_on=(("gpu", 3.0),))

    assert ROOFLINE.forward_seconds(one, A100) == 3.0
    assert ROOFLINE.backward_seconds(one, A100) == 6.0
