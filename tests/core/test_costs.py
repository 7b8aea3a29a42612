"""Cost models: measured, known and estimated seconds."""

from dataclasses import replace

import pytest

from splitnet.core.cluster import Device
from splitnet.core.costs import (
    CallSeconds,
    Measured,
    Roofline,
    UpdateSeconds,
    launch_seconds,
    signature,
)
from splitnet.core.graph import Call
from tests.zoo import call, chain

ROOFLINE = Roofline()
A100 = Device.of("gpu:0", preset="A100")


def seconds(calls: list[Call], device: Device, *, training: bool) -> float:
    """All calls, one after the other."""
    total = sum(ROOFLINE.forward_seconds(one, device) for one in calls)
    if training:
        total += sum(ROOFLINE.backward_seconds(one, device) for one in calls)
    return total


def layer(kind: str, flops: float, moved: float, **more: object) -> Call:
    """A call of a kind of layer, by its forward FLOPs and bytes."""
    return call("layer", kind=kind, flops=flops, moved_bytes=moved, **more)


def lstm(steps: int, batch: int, units: int, inputs: int) -> Call:
    """An LSTM of four gates."""
    flops = 8.0 * steps * batch * units * (units + inputs)
    moved = 4.0 * steps * batch * (inputs + units)
    return layer("LSTM", flops, moved, sequential_steps=steps)


def test_roofline_charges_every_step_of_a_recurrence() -> None:
    """500 dependent steps take milliseconds on a GPU, however small they are."""
    small = seconds([lstm(500, 32, 16, 8)], A100, training=False)

    assert 5e-3 < small < 50e-3
    assert launch_seconds(lstm(500, 32, 16, 8), A100) == 500 * 4 * A100.call_seconds


def test_roofline_doubles_tensor_cores_in_half_precision() -> None:
    """A large product in float16 takes half the time on a GPU, none less on a CPU."""
    cpu = Device.of("cpu:0")
    full, half = (
        call("d", flops=1e15, output_dtypes=(dtype,))
        for dtype in ("float32", "float16")
    )

    assert ROOFLINE.forward_seconds(half, A100) == pytest.approx(
        ROOFLINE.forward_seconds(full, A100) / 2, rel=1e-3
    )
    assert ROOFLINE.forward_seconds(half, cpu) == ROOFLINE.forward_seconds(full, cpu)


def test_a_gpu_without_tf32_gains_more_in_half_precision() -> None:
    """Its only tensor cores are those for 16 bits."""
    half = call("d", flops=1e15, output_dtypes=("float16",))
    v100, own = (
        Device.of("gpu:0", preset="V100"),
        Device.of("gpu:0", speed="13 TFLOP/s"),
    )

    assert ROOFLINE.forward_seconds(half, v100) < 0.5 * ROOFLINE.forward_seconds(
        half, own
    )


def test_updates_pay_launches_for_each_variable() -> None:
    """Adam has two slots: 12 kernels, whatever the size of the variable."""
    tiny = ROOFLINE.update_seconds(4, A100, "adam")

    assert tiny == pytest.approx(12 * A100.call_seconds, rel=1e-3)


def test_measured_costs_beat_the_estimate():
    """A measured call takes what was measured; another is still estimated."""
    graph = chain(2)
    costs = Measured((CallSeconds("c0", "gpu", 1.0, 2.0),))
    gpu = A100

    assert costs.forward_seconds(graph.call["c0"], gpu) == 1.0
    assert costs.backward_seconds(graph.call["c0"], gpu) == 2.0
    assert costs.forward_seconds(graph.call["c1"], gpu) == ROOFLINE.forward_seconds(
        graph.call["c1"], gpu
    )


def test_a_share_of_the_rows_takes_its_share_and_all_that_is_fixed() -> None:
    """So do micro-batches and towers, whatever their calls are named."""
    whole = layer("Dense", 800.0, 1.0, output_shapes=((8, 4),))
    half = replace(whole, name="tower", output_shapes=((4, 4),), forward_flops=400.0)
    wider = replace(half, forward_flops=800.0)
    costs = Measured(
        (CallSeconds(signature(whole), "gpu", 1.0, 2.0, 0.5, 0.2, 8, 800.0),)
    )

    assert costs.forward_seconds(half, A100) == 0.5 + 0.25
    assert costs.backward_seconds(half, A100) == pytest.approx(0.2 + 0.9)
    assert costs.forward_seconds(wider, A100) == ROOFLINE.forward_seconds(wider, A100)


def test_measured_updates_pay_for_each_variable() -> None:
    """Fixed seconds and those of the bytes; another device is estimated."""
    costs = Measured(updates=(UpdateSeconds("gpu:0", 4.0, 0.5),))

    assert costs.update_seconds(8, A100, "sgd") == 2.5
    other = replace(A100, name="gpu:1", target="/device:GPU:1")
    assert costs.update_seconds(8, other, "sgd") == ROOFLINE.update_seconds(
        8, other, "sgd"
    )


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
