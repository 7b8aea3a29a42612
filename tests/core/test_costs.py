"""Cost models: measured, known and estimated seconds."""

from dataclasses import replace

import pytest

from splitnet.core.cluster import Device
from splitnet.core.costs import CallSeconds, Costs, UpdateSeconds, signature, slots_of
from tests.zoo import call, chain

A100 = Device.of("gpu:0", preset="A100")
ESTIMATE = Costs()
seconds = ESTIMATE.forward_seconds


def layer(kind, flops, moved=1.0, **more):
    return call("layer", kind=kind, flops=flops, moved_bytes=moved, **more)


def test_roofline_charges_every_step_of_a_recurrence():
    """500 dependent steps take milliseconds on a GPU, however small they are."""
    small = layer("LSTM", 500 * 98304.0, 500 * 3072.0, sequential_steps=500)
    assert seconds(small, A100) == pytest.approx(500 * 4 * A100.call_seconds, rel=0.01)


def test_roofline_doubles_tensor_cores_in_half_precision():
    """On a GPU, and more if 16 bits are all that they do; none less on a CPU."""
    cpu, v100 = Device.of("cpu:0"), Device.of("gpu:0", preset="V100")
    full = call("d", flops=1e15)
    half = replace(full, output_dtypes=("float16",))
    assert seconds(half, A100) == pytest.approx(seconds(full, A100) / 2, rel=1e-3)
    assert seconds(half, cpu) == seconds(full, cpu)
    assert seconds(half, v100) < 0.5 * seconds(half, Device.of("gpu:0", speed=13e12))


def test_roofline_takes_the_slower_of_arithmetic_and_memory():
    """Bytes (at 80 % of the bandwidth) bound a call without arithmetic, else FLOPs."""
    gpu = replace(A100, call_seconds=0.0)
    heavy, light = layer("Dense", 1e12), layer("Dense", 0.0, 5e11)
    fused = replace(light, fused_kernels=2, fused_bytes=1e11)  # by XLA, on GPUs
    cpu = Device.of("cpu:0")
    assert seconds(heavy, gpu) == pytest.approx(1e12 / gpu.flops_per_second)
    assert seconds(light, gpu) == pytest.approx(5e11 / (0.8 * gpu.bytes_per_second))
    assert seconds(fused, gpu) == pytest.approx(0.2 * seconds(light, gpu))
    assert seconds(fused, cpu) == seconds(light, cpu)
    assert seconds(chain(1).call["x"], gpu) == 0.0


def test_updates_pay_for_each_variable():
    """Adam has two slots: 12 kernels, whatever the size; or seconds of the device."""
    row = UpdateSeconds("gpu:0", 4.0, 0.5, "nadam")
    kind = replace(row, device="gpu", fixed=9.0)
    costs = Costs(updates=(kind, row, replace(row, device="gpu:1", optimizer="")))
    other = replace(A100, name="gpu:1", target="/device:GPU:1")
    tiny, estimate = (
        ESTIMATE.update_seconds(*its) for its in ((4, A100, "adam"), (8, other, "sgd"))
    )
    assert slots_of("adamw+amsgrad") == slots_of("rmsprop+momentum+centered") == 3
    assert tiny == pytest.approx(12 * A100.call_seconds, rel=1e-3)
    assert costs.update_seconds(8, A100, "adam") == 2.5
    assert costs.update_seconds(8, A100, "sgd") == estimate
    assert costs.update_seconds(8, other, "sgd") == 2.5


def test_measured_and_known_seconds_beat_the_estimate():
    """Another call is still estimated; what is known of backward scales with FLOPs."""
    measured, other = layer("Dense", 0.0), layer("Conv1D", 0.0)
    costs = Costs((CallSeconds(signature(measured), "gpu", 1.0, 2.0, rows=32),))
    known = replace(chain(1).call["c0"], seconds_on=(("gpu", 3.0),))
    assert costs.forward_seconds(measured, A100) == 1.0
    assert costs.backward_seconds(measured, A100) == 2.0
    assert costs.forward_seconds(other, A100) == seconds(other, A100)
    assert seconds(known, A100) == 3.0
    assert ESTIMATE.backward_seconds(known, A100) == 6.0


def test_a_share_of_the_rows_takes_its_share_and_all_that_is_fixed():
    whole = layer("Dense", 800.0, output_shapes=((8, 4),), backward_flops=1600.0)
    half = replace(whole, name="tower", output_shapes=((4, 4),), forward_flops=400.0)
    half = replace(half, backward_flops=800.0)
    first = replace(half, backward_flops=400.0)  # without gradients of its inputs
    wider = replace(half, forward_flops=800.0)
    one = CallSeconds(signature(whole), "gpu", 1.0, 2.0, 0.5, 0.2, 8, 800.0, 1600.0)
    costs = Costs((one, replace(one, backward=1.2, backward_flops=800.0)))
    assert costs.forward_seconds(half, A100) == 0.5 + 0.25
    assert costs.backward_seconds(half, A100) == pytest.approx(0.2 + 0.9)
    assert costs.backward_seconds(first, A100) == pytest.approx(0.2 + 0.5)
    assert costs.forward_seconds(wider, A100) == seconds(wider, A100)
