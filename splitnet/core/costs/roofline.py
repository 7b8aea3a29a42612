"""Roofline estimates: seconds of a call from its FLOPs, bytes and kernel launches.

A kernel takes max(FLOPs / FLOP/s, bytes / B/s), each times the share of the peak that
kernels of its class reach, and a launch takes `Device.call_seconds` (Williams,
Waterman, Patterson, "Roofline", 2009). The steps of a recurrence run one after the
other, so each pays its launches.

`Device.flops_per_second` is what large matrix products reach, so the other classes
count against that. The figures for GPUs were chosen so that these published ones come
out within a factor of two (`tests/core/test_roofline.py`):

    ResNet-50 training        A100, TF32, batch 256: 909 images/s; V100, FP32, batch
                              128: 412 images/s (NVIDIA DeepLearningExamples,
                              TensorFlow ResNet50 v1.5)
    BERT-base inference       V100, FP32, 8 sequences of 128: 18.7 ms, of 384: 54.7 ms
                              (NVIDIA DeepLearningExamples, TensorFlow2 BERT)
    LSTM of cuDNN             V100, 100 steps, batch 64, 512 units: forward 11.4 ms,
                              backward 17.9 ms (PyTorch fastrnns, pull request 45591)

Those for CPUs come from single layers in TensorFlow 2.21 on two cores.
"""

from typing import NamedTuple

from splitnet.core.cluster import Device
from splitnet.core.graph import Call

__all__ = [
    "VIEWS",
    "backward_estimate",
    "efficiency_of",
    "forward_estimate",
    "kernels_of",
    "launch_seconds",
]

VIEWS = frozenset(
    ["InputLayer", "Input", "Reshape", "Flatten", "Identity", "Activation:linear"]
    + ["ExpandDims", "Squeeze", "StopGradient", "NotMask"]
)
"""Calls that only rename bytes: TensorFlow runs no kernel for them."""


class _Efficiency(NamedTuple):
    """Shares of a device's peak FLOP/s and bytes/s that a class of kernels reaches."""

    flops: float
    bytes: float


_EFFICIENCY = {
    "gpu": {
        "product": _Efficiency(1.0, 0.8),
        "convolution": _Efficiency(0.8, 0.8),
        "depthwise": _Efficiency(0.1, 0.5),
        "gather": _Efficiency(0.1, 0.4),
        "recurrence": _Efficiency(0.25, 0.8),
        "element-wise": _Efficiency(0.1, 0.8),
    },
    "cpu": {
        "product": _Efficiency(1.0, 0.8),
        "convolution": _Efficiency(1.0, 0.8),
        "depthwise": _Efficiency(0.2, 0.5),
        "gather": _Efficiency(0.1, 0.4),
        "recurrence": _Efficiency(0.8, 0.8),
        "element-wise": _Efficiency(0.2, 0.8),
    },
}

_CLASSES = {
    "product": "Dense EinsumDense MultiHeadAttention GroupedQueryAttention Attention "
    "AdditiveAttention Dot Matmul Einsum Tensordot",
    "convolution": "Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose "
    "Conv3DTranspose SeparableConv1D SeparableConv2D",
    "depthwise": "DepthwiseConv1D DepthwiseConv2D",
    "gather": "Embedding Take TakeAlongAxis GetItem",
    "recurrence": "LSTM GRU SimpleRNN RNN Bidirectional ConvLSTM1D ConvLSTM2D "
    "ConvLSTM3D",
}
_CLASS_OF_KIND = {
    kind: name for name, kinds in _CLASSES.items() for kind in kinds.split()
}

_KERNELS = {
    "MultiHeadAttention": 14,
    "GroupedQueryAttention": 14,
    "Attention": 4,
    "AdditiveAttention": 6,
    "LayerNormalization": 6,
    "GroupNormalization": 8,
    "BatchNormalization": 2,
    "Dropout": 2,
}
_KERNELS_OF_CLASS = {"product": 3, "convolution": 3, "depthwise": 2}
"""Kernels of a forward pass: the product, its bias and its activation."""

_KERNELS_PER_STEP = {"gpu": 4, "cpu": 20}
"""cuDNN runs a step of a recurrence in a few kernels; a loop of TensorFlow does not."""

_BACKWARD = 2
"""A backward pass has twice the kernels: gradients of inputs and of weights."""


def forward_estimate(call: Call, device: Device) -> float:
    """Seconds of the forward pass of a call."""
    if call.kind in VIEWS:
        return 0.0
    moved = call.moved_bytes or 2.0 * call.output_bytes
    return _kernel_seconds(call, device, call.forward_flops, moved) + launch_seconds(
        call, device
    )


def backward_estimate(call: Call, device: Device) -> float:
    """Seconds of the backward pass: it reads what forward saved, and writes gradients.

    So it moves twice the bytes.
    """
    if call.kind in VIEWS:
        return 0.0
    moved = 2.0 * (call.moved_bytes or 2.0 * call.output_bytes)
    seconds = _kernel_seconds(call, device, call.backward_flops, moved)
    return seconds + _BACKWARD * launch_seconds(call, device)


def launch_seconds(call: Call, device: Device) -> float:
    """Seconds of a forward pass that do not depend on the batch: kernel launches."""
    kernels = call.kernels or kernels_of(call.kind)
    if call.sequential_steps > 1:
        kernels = call.sequential_steps * _KERNELS_PER_STEP[device.kind]
    return kernels * device.call_seconds


def kernels_of(kind: str) -> int:
    """How many kernels the forward pass of a kind of layer runs."""
    if kind in VIEWS:
        return 0
    kind = kind.partition(":")[0]
    return _KERNELS.get(kind, _KERNELS_OF_CLASS.get(efficiency_of(kind), 1))


def efficiency_of(kind: str) -> str:
    """The class of kernels that a kind of layer runs."""
    return _CLASS_OF_KIND.get(kind.partition(":")[0], "element-wise")


def _kernel_seconds(call: Call, device: Device, flops: float, moved: float) -> float:
    peak = device.flops_per_second
    if device.kind == "gpu" and _is_half(call) and _class(call) != "element-wise":
        peak *= 2.0
    reached = _EFFICIENCY[device.kind][_class(call)]
    return max(
        flops / (peak * reached.flops),
        moved / (device.bytes_per_second * reached.bytes),
    )


def _class(call: Call) -> str:
    if call.sequential_steps > 1:
        return "recurrence"
    return call.efficiency or efficiency_of(call.kind)


def _is_half(call: Call) -> bool:
    """Whether tensor cores compute it in 16 bits, at twice the speed of TF32."""
    return bool(call.output_dtypes) and call.output_dtypes[0].endswith("float16")
