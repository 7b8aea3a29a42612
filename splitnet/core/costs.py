"""What things cost: seconds of a call, an update and a copy on given devices.

A cost model is anything with the methods of `CostModel`. `Roofline` estimates from
FLOPs and bytes; `Measured` looks a call up in a table first, and estimates what it does
not find. Known times that a call carries (`seconds_on`) beat every estimate.

A kernel takes max(FLOPs / FLOP/s, bytes / B/s), each times the share of the peak that
kernels of its class reach, and a launch takes `Device.call_seconds` (Williams,
Waterman, Patterson, "Roofline", 2009). The steps of a recurrence run one after the
other, so each pays its launches.

`Device.flops_per_second` is what large matrix products reach, so the other classes
count against that. The figures for GPUs were chosen so that these published ones come
out within a factor of two: ResNet-50, BERT-base and an LSTM on V100, A100 and T4, whose
sources and figures are in `tests/tf/test_presets.py`.

Those for CPUs come from single layers in TensorFlow 2.21 on two cores.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol

from splitnet.core.checks import Positive, Rate, Seconds
from splitnet.core.cluster import Cluster, Device, Link, device_name
from splitnet.core.errors import DeclarationError, DeviceError, PlanFileError
from splitnet.core.graph import Call, Graph
from splitnet.core.serialization import decode, encode, load_json, write_json

__all__ = [
    "OPTIMIZER_SLOTS",
    "VIEWS",
    "CostModel",
    "Measured",
    "Roofline",
    "costs_from_dict",
    "costs_of",
    "costs_to_dict",
    "efficiency_of",
    "launch_seconds",
    "load_costs",
    "optimizer_name",
    "save_costs",
    "signature",
    "slots_of",
]

VIEWS = frozenset(
    ["InputLayer", "Input", "Reshape", "Flatten", "Identity", "Activation:linear"]
    + ["ExpandDims", "Squeeze", "StopGradient", "NotMask"]
)
"""Calls that only rename bytes: TensorFlow runs no kernel for them."""


_EFFICIENCY = {
    "gpu": {
        "product": (1.0, 0.8),
        "convolution": (0.8, 0.8),
        "depthwise": (0.1, 0.5),
        "gather": (0.1, 0.4),
        "recurrence": (0.25, 0.8),
        "element-wise": (0.1, 0.8),
    },
    "cpu": {
        "product": (1.0, 0.8),
        "convolution": (1.0, 0.8),
        "depthwise": (0.2, 0.5),
        "gather": (0.1, 0.4),
        "recurrence": (0.8, 0.8),
        "element-wise": (0.2, 0.8),
    },
}
"""Shares of a device's peak FLOP/s and bytes/s that each class of kernels reaches."""

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


def launch_seconds(call: Call, device: Device) -> float:
    """Seconds of a forward pass that do not depend on the batch: kernel launches."""
    kind = call.kind.partition(":")[0]
    usual = _KERNELS.get(kind, _KERNELS_OF_CLASS.get(efficiency_of(kind), 1))
    kernels = call.kernels or (0 if call.kind in VIEWS else usual)
    if call.sequential_steps > 1:
        kernels = call.sequential_steps * _KERNELS_PER_STEP[device.kind]
    return kernels * device.call_seconds


def efficiency_of(kind: str) -> str:
    """The class of kernels that a kind of layer runs."""
    return _CLASS_OF_KIND.get(kind.partition(":")[0], "element-wise")


def _estimate(
    call: Call, device: Device, flops: float, *, backward: bool = False
) -> float:
    """Seconds of a pass: its kernels, or the bytes that they move, and the launches.

    A backward pass reads what forward saved and writes gradients: twice the bytes and
    twice the kernels.
    """
    if call.kind in VIEWS:
        return 0.0
    times = 2.0 if backward else 1.0
    moved = times * (call.moved_bytes or 2.0 * call.output_bytes)
    peak, kernels = device.flops_per_second, call.efficiency or efficiency_of(call.kind)
    if call.sequential_steps > 1:
        kernels = "recurrence"
    half = bool(call.output_dtypes) and call.output_dtypes[0].endswith("float16")
    if device.kind == "gpu" and half and kernels != "element-wise":
        peak *= device.half_speed
    share_of_flops, share_of_bytes = _EFFICIENCY[device.kind][kernels]
    seconds = max(
        flops / (peak * share_of_flops),
        moved / (device.bytes_per_second * share_of_bytes),
    )
    return seconds + times * launch_seconds(call, device)


# Copies of each weight that Keras' optimizers keep beside it (keras/src/optimizers).
# Adafactor keeps a row and a column per matrix instead, which rounds to nothing.
OPTIMIZER_SLOTS: Mapping[str, int] = {
    "sgd": 0,
    "momentum": 1,
    "sgd+momentum": 1,
    "adam": 2,
    "adamw": 2,
    "adamax": 2,
    "nadam": 2,
    "lamb": 2,
    "amsgrad": 3,
    "rmsprop": 1,
    "rmsprop+momentum": 2,
    "adagrad": 1,
    "adadelta": 2,
    "ftrl": 2,
    "lion": 1,
    "muon": 2,
    "adafactor": 0,
}


def optimizer_name(optimizer: object) -> str:
    """Bring an optimizer, or its name, to a key of `OPTIMIZER_SLOTS`.

    Raises:
        DeclarationError: no optimizer of that name is known.

    >>> optimizer_name("AdamW")
    'adamw'
    """
    if isinstance(optimizer, str):
        name = optimizer.strip().lower()
    else:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        name = type(inner).__name__.lower()
        if name in ("sgd", "rmsprop") and getattr(inner, "momentum", None):
            name += "+momentum"
        if name == "adam" and getattr(inner, "amsgrad", False):
            name = "amsgrad"
    if name not in OPTIMIZER_SLOTS:
        raise DeclarationError(
            f"there is no known optimizer {optimizer!r}. Known: "
            f"{', '.join(OPTIMIZER_SLOTS)}. Name the one with as many slots per weight."
        )
    return name


def slots_of(optimizer: str) -> int:
    """How many copies of each weight the optimizer keeps beside it."""
    return OPTIMIZER_SLOTS[optimizer_name(optimizer)]


class CostModel(Protocol):
    """Seconds for everything that a step does; all finite and not negative."""

    def forward_seconds(self, call: Call, device: Device) -> float:
        """The forward pass of a call for the graph's batch."""

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Its backward pass; asked only where a gradient flows."""

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """The optimizer's update of `count` bytes of weights."""

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The link between two devices, whose `seconds(bytes)` is the copy's time."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Estimate seconds from FLOPs, bytes and kernel launches."""

    def forward_seconds(self, call: Call, device: Device) -> float:
        """Known seconds if the call has them, else the roofline."""
        known = dict(call.seconds_on).get(device.kind)
        return _estimate(call, device, call.forward_flops) if known is None else known

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Known seconds scaled by backward to forward FLOPs, else the roofline."""
        known = dict(call.seconds_on).get(device.kind)
        if known is None:
            return _estimate(call, device, call.backward_flops, backward=True)
        return known * call.backward_flops / (call.forward_flops or math.inf)

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """Read weight, gradient and slots once, write weight and slots once.

        Keras updates each variable by itself, in about 5 kernels for each slot.
        """
        slots = slots_of(optimizer)
        touched = count * (3 + 2 * slots)
        launches = (2 + 5 * slots) * device.call_seconds
        return touched / device.bytes_per_second + launches

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The cluster's own link."""
        return cluster.link(source, target)


def signature(call: Call) -> str:
    """Name what a call computes, not which call it is, so that equals share costs.

    >>> signature(Call("a", "p", "Dense", output_shapes=((32, 4),), forward_flops=8.0))
    'Dense|((32, 4),)|8'
    """
    return f"{call.kind}|{call.output_shapes}|{call.forward_flops:.0f}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds from a table of measurements; what it does not hold is estimated.

    `forward` and `backward` map (call name or `signature`, device kind or name) to
    seconds; `links` lists measured links; `batch` is the batch that was measured.
    """

    forward: Mapping[tuple[str, str], float] = field(default_factory=dict)
    backward: Mapping[tuple[str, str], float] = field(default_factory=dict)
    update_bytes_per_second: Mapping[str, float] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    batch: int | None = None
    estimate: Roofline = field(default_factory=Roofline)

    @property
    def devices(self) -> frozenset[str]:
        """The devices and kinds that the table tells apart."""
        names = [where for _, where in (*self.forward, *self.backward)]
        return frozenset([*names, *self.update_bytes_per_second])

    def forward_seconds(self, call: Call, device: Device) -> float:
        """The measured forward pass, else the estimate."""
        found = _looked_up(self.forward, call, device)
        return self.estimate.forward_seconds(call, device) if found is None else found

    def backward_seconds(self, call: Call, device: Device) -> float:
        """The measured backward pass, else the estimate."""
        found = _looked_up(self.backward, call, device)
        return self.estimate.backward_seconds(call, device) if found is None else found

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """The measured bytes per second of an update, else the estimate."""
        speeds = self.update_bytes_per_second
        speed = speeds.get(device.name) or speeds.get(device.kind)
        if not speed:
            return self.estimate.update_seconds(count, device, optimizer)
        return count / speed + device.call_seconds

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The measured link between these two devices, else the cluster's."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        return cluster.link(source, target)


def _looked_up(
    table: Mapping[tuple[str, str], float], call: Call, device: Device
) -> float | None:
    for name in (call.name, signature(call)):
        for where in (device.name, device.kind):
            if (name, where) in table:
                return table[name, where]
    return None


_COSTS_VERSION = 1


@dataclass(frozen=True, slots=True)
class _CostTable:
    """Rows of (call or signature, device or kind, seconds), and links."""

    model: Literal["roofline", "measured"]
    splitnet_costs: int = _COSTS_VERSION
    batch: Positive | None = None
    forward: tuple[tuple[str, str, Seconds], ...] = ()
    backward: tuple[tuple[str, str, Seconds], ...] = ()
    update_bytes_per_second: dict[str, Rate] = field(default_factory=dict)
    links: tuple[Link, ...] = ()


def save_costs(costs: Measured, path: str | Path) -> None:
    """Write measured costs as JSON, atomically.

    Raises:
        PlanFileError: the file cannot be written.
    """
    values = {"splitnet_costs": _COSTS_VERSION} | _measured_to_dict(costs)
    write_json(values, path, "cost table")


def load_costs(path: str | Path) -> Measured:
    """Read what `save_costs` wrote.

    Raises:
        PlanFileError: no such file, or not a cost table; the message names the field.
    """
    return load_json(path, "cost table", _measured_file)


def costs_of(costs: Any) -> Any:
    """A cost model as given, or read from its file."""
    return load_costs(Path(costs)) if isinstance(costs, str | PathLike) else costs


def _measured_file(values: Any) -> Measured:
    known = isinstance(values, dict) and values.get("splitnet_costs")
    if known != _COSTS_VERSION or isinstance(known, bool):
        raise PlanFileError(
            f"it has no field 'splitnet_costs' of version {_COSTS_VERSION}, so it is "
            "not a cost table. sn.save_costs(measured, path) writes one."
        )
    found = costs_from_dict(values)
    if not isinstance(found, Measured):
        raise PlanFileError("it holds no measurements.")
    return found


def _is_device(name: str) -> bool:
    """Whether it is the canonical name of a device, or a kind."""
    try:
        return device_name(name) == name
    except DeviceError:
        return False


def costs_to_dict(
    costs: CostModel, graph: Graph, cluster: Cluster
) -> dict[str, object]:
    """A cost model as plain values; others become a table of their values."""
    if isinstance(costs, Roofline):
        return {"model": "roofline"}
    if isinstance(costs, Measured):
        return _measured_to_dict(costs)
    forward, backward = {}, {}
    for call, device in product(graph.calls, cluster):
        forward[call.name, device.name] = costs.forward_seconds(call, device)
        backward[call.name, device.name] = costs.backward_seconds(call, device)
    ends = permutations((device.name for device in cluster), 2)
    links = (replace(costs.link(a, b, cluster), source=a, target=b) for a, b in ends)
    table = Measured(forward, backward, links=tuple(links), batch=graph.batch)
    return _measured_to_dict(table)


def _measured_to_dict(costs: Measured) -> dict[str, object]:
    return {
        "model": "measured",
        "batch": costs.batch,
        "forward": [[*key, value] for key, value in sorted(costs.forward.items())],
        "backward": [[*key, value] for key, value in sorted(costs.backward.items())],
        "update_bytes_per_second": dict(sorted(costs.update_bytes_per_second.items())),
        "links": encode(costs.links),
    }


def costs_from_dict(values: object) -> Measured | Roofline:
    """The inverse of `costs_to_dict`.

    Raises:
        PlanFileError: not a cost model; the message names the field.
    """
    table = decode(values, _CostTable, "costs")
    if table.model == "roofline":
        return Roofline()
    places = [where for _, where, _ in (*table.forward, *table.backward)]
    ends = [end for one in table.links for end in (one.source, one.target)]
    names = dict.fromkeys((*places, *ends, *table.update_bytes_per_second))
    if wrong := [name for name in names if name != "*" and not _is_device(name)]:
        raise PlanFileError(f"costs: there is no device {', '.join(map(repr, wrong))}.")
    return Measured(
        forward={(call, device): seconds for call, device, seconds in table.forward},
        backward={(call, device): seconds for call, device, seconds in table.backward},
        update_bytes_per_second=table.update_bytes_per_second,
        links=table.links,
        batch=table.batch,
    )
