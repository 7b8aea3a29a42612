"""Cost models: measured, known and estimated seconds, against published figures."""

from dataclasses import replace

import pytest

from splitnet.core.cluster import Device
from splitnet.core.costs import Measured, Roofline, launch_seconds
from splitnet.core.graph import Call
from tests.zoo import call, chain

ROOFLINE = Roofline()
V100, A100 = (Device.of("gpu:0", preset=name) for name in ("V100", "A100"))


def seconds(calls: list[Call], device: Device, *, training: bool) -> float:
    """All calls, one after the other."""
    total = sum(ROOFLINE.forward_seconds(one, device) for one in calls)
    if training:
        total += sum(ROOFLINE.backward_seconds(one, device) for one in calls)
    return total


def layer(kind: str, flops: float, moved: float, **more: object) -> Call:
    """A call of a kind of layer, by its forward FLOPs and bytes."""
    return call("layer", kind=kind, flops=flops, moved_bytes=moved, **more)


def convolution(batch: int, side: int, size: int, inputs: int, outputs: int) -> Call:
    """A convolution of `size` squared, `side` squared positions at its output."""
    positions = batch * side * side
    flops = 2.0 * positions * size * size * inputs * outputs
    return layer("Conv2D", flops, 4.0 * positions * (inputs + outputs))


def resnet50(batch: int) -> list[Call]:
    """Its convolutions, each with normalization and activation, and its additions."""
    shapes = [(112, 7, 3, 64)]
    for side, width, blocks in ((56, 64, 3), (28, 128, 4), (14, 256, 6), (7, 512, 3)):
        inputs = 64 if side == 56 else 2 * width
        for _ in range(blocks):
            shapes += [(side, 1, inputs, width), (side, 3, width, width)]
            shapes += [(side, 1, width, 4 * width)]
            if inputs != 4 * width:
                shapes.append((side, 1, inputs, 4 * width))
            inputs = 4 * width
    found = []
    for side, size, inputs, outputs in shapes:
        made = 4.0 * batch * side * side * outputs
        found.append(convolution(batch, side, size, inputs, outputs))
        found.append(layer("BatchNormalization", 0.0, 4 * made))
        found.append(layer("Activation:relu", 0.0, 2 * made))
    return found


def transformer(batch: int, length: int, width: int = 768) -> list[Call]:
    """The twelve blocks of BERT-base."""
    rows = batch * length
    made = 4.0 * rows * width
    scores = 4.0 * 12 * batch * length * length
    attention = 8.0 * rows * width * width + 4.0 * rows * length * width
    normal = layer("LayerNormalization", 0.0, 4 * made)
    block = [
        layer("MultiHeadAttention", attention, 10 * made + 6 * scores),
        layer("Add", 0.0, 3 * made),
        normal,
        layer("Dense", 8.0 * rows * width * width, 13 * made),
        layer("Dense", 8.0 * rows * width * width, 5 * made),
        layer("Add", 0.0, 3 * made),
        normal,
    ]
    return block * 12


def lstm(steps: int, batch: int, units: int, inputs: int) -> Call:
    """An LSTM of four gates."""
    flops = 8.0 * steps * batch * units * (units + inputs)
    moved = 4.0 * steps * batch * (inputs + units)
    return layer("LSTM", flops, moved, sequential_steps=steps)


PUBLISHED = {
    "ResNet-50 training, A100": (resnet50(256), A100, True, 256 / 909),
    "ResNet-50 training, V100": (resnet50(128), V100, True, 128 / 412),
    "ResNet-50 inference, A100": (resnet50(128), A100, False, 68.23e-3),
    "ResNet-50 inference, V100": (resnet50(128), V100, False, 96.61e-3),
    "BERT-base of 128, V100": (transformer(8, 128), V100, False, 18.67e-3),
    "BERT-base of 384, V100": (transformer(8, 384), V100, False, 54.74e-3),
    "LSTM, V100": ([lstm(100, 64, 512, 512)], V100, True, 29.3e-3),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_roofline_is_within_a_factor_of_two_of_published_figures(name: str) -> None:
    """Sources are in `core/costs.py`."""
    calls, device, training, published = PUBLISHED[name]

    assert 0.5 < seconds(calls, device, training=training) / published < 2.0


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


def test_updates_pay_launches_for_each_variable() -> None:
    """Adam has two slots: 12 kernels, whatever the size of the variable."""
    tiny = ROOFLINE.update_seconds(4, A100, "adam")

    assert tiny == pytest.approx(12 * A100.call_seconds, rel=1e-3)


def test_measured_costs_beat_the_estimate():
    """A measured call takes what was measured; another is still estimated."""
    graph = chain(2)
    costs = Measured(forward={("c0", "gpu"): 1.0}, backward={("c0", "gpu:0"): 2.0})
    gpu = A100

    assert costs.forward_seconds(graph.call["c0"], gpu) == 1.0
    assert costs.backward_seconds(graph.call["c0"], gpu) == 2.0
    assert costs.forward_seconds(graph.call["c1"], gpu) == ROOFLINE.forward_seconds(
        graph.call["c1"], gpu
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
