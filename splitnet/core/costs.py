"""What things cost: seconds of a call, an update and a copy on given devices.

A cost model is anything with the methods of `CostModel`. `Roofline` estimates from
FLOPs and bytes; `Measured` looks a call up in a table first, and estimates what it does
not find. Known times that a call carries (`seconds_on`) beat every estimate. A call is
charged as it is given: those of a micro-batch or a tower have a share of the FLOPs,
bytes and rows of the whole.

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
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations, product
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol

from splitnet.core.checks import Amount, Positive, Rate, Seconds
from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph
from splitnet.core.serialization import decode, encode, load_json, write_json

__all__ = [
    "OPTIMIZER_SLOTS",
    "VIEWS",
    "CallSeconds",
    "CostModel",
    "Measured",
    "Roofline",
    "UpdateSeconds",
    "costs_from_dict",
    "costs_of",
    "costs_to_dict",
    "efficiency_of",
    "launch_seconds",
    "load_costs",
    "optimizer_name",
    "rows_of",
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
    """Name what a call computes for each row, not which call it is.

    Calls of one signature differ in what the shapes do not show, such as the width of
    their input; their FLOPs tell these apart.

    >>> signature(Call("a", "p", "Dense", output_shapes=((32, 4),), forward_flops=8.0))
    'Dense (4)'
    """
    shapes = (", ".join(map(str, shape[1:])) for shape in call.output_shapes)
    return " ".join((call.kind, *(f"({shape})" for shape in shapes)))


def rows_of(call: Call) -> int:
    """The first extent of what a call gives; it grows with the batch."""
    shape = call.output_shapes[0] if call.output_shapes else ()
    return (shape[0] if shape else 1) or 1


@dataclass(frozen=True, slots=True)
class CallSeconds:
    """Measured seconds of a call on a device, or on every device of a kind.

    `forward` and `backward` are for `rows` rows, or for any number if that is None; of
    these seconds, `forward_fixed` and `backward_fixed` do not depend on their number.
    `call` is a call's name, or its `signature`; `flops` are forward, of all rows.
    """

    call: str
    device: str
    forward: Seconds
    backward: Seconds = 0.0
    forward_fixed: Seconds = 0.0
    backward_fixed: Seconds = 0.0
    rows: Positive | None = None
    flops: Amount = 0.0


@dataclass(frozen=True, slots=True)
class UpdateSeconds:
    """Measured update of a variable on a device, or on every device of a kind."""

    device: str
    bytes_per_second: Rate
    fixed: Seconds = 0.0


_SAME_FLOPS = 0.25
"""Calls of a signature are alike if their FLOPs per row differ by this share at most:
some, such as those of moments, do not grow with the rows."""


@dataclass(frozen=True)
class Measured:
    """Seconds from a table of measurements; what it does not hold is estimated.

    A call is looked up by its name, then by its signature. With fewer or more rows than
    were measured it takes the fixed seconds and its share of the others.
    """

    calls: tuple[CallSeconds, ...] = ()
    updates: tuple[UpdateSeconds, ...] = ()
    links: tuple[Link, ...] = ()
    batch: Positive | None = None

    @cached_property
    def devices(self) -> frozenset[str]:
        """The devices and kinds that the table tells apart."""
        names = [one.device for one in self.calls]
        return frozenset([*names, *(one.device for one in self.updates)])

    @cached_property
    def _calls(self) -> dict[tuple[str, str], list[CallSeconds]]:
        table: dict[tuple[str, str], list[CallSeconds]] = {}
        for one in self.calls:
            table.setdefault((one.call, one.device), []).append(one)
        return table

    def _found(self, call: Call, device: Device) -> CallSeconds | None:
        flops = call.forward_flops / rows_of(call)
        for where in (device.name, device.kind):
            if known := self._calls.get((call.name, where)):
                return known[0]
            like = self._calls.get((signature(call), where), ())
            pairs = ((abs(one.flops / (one.rows or 1) - flops), one) for one in like)
            off, near = min(pairs, key=lambda pair: pair[0], default=(math.inf, None))
            if near and off <= _SAME_FLOPS * flops:
                return near
        return None

    def forward_seconds(self, call: Call, device: Device) -> float:
        """The measured forward pass, else the estimate."""
        if (one := self._found(call, device)) is None:
            return Roofline().forward_seconds(call, device)
        share = rows_of(call) / (one.rows or rows_of(call))
        return one.forward_fixed + (one.forward - one.forward_fixed) * share

    def backward_seconds(self, call: Call, device: Device) -> float:
        """The measured backward pass, else the estimate."""
        if (one := self._found(call, device)) is None:
            return Roofline().backward_seconds(call, device)
        share = rows_of(call) / (one.rows or rows_of(call))
        return one.backward_fixed + (one.backward - one.backward_fixed) * share

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """The measured update, else the estimate."""
        for one in self.updates:
            if one.device in (device.name, device.kind):
                return one.fixed + count / one.bytes_per_second
        return Roofline().update_seconds(count, device, optimizer)

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The measured link between these two devices, else the cluster's."""
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        return cluster.link(source, target)


@dataclass(frozen=True, slots=True)
class _CostFile:
    """A cost table in a file of its own."""

    splitnet_costs: Literal[2]
    costs: Measured


def save_costs(costs: Measured, path: str | Path) -> None:
    """Write measured costs as JSON, atomically.

    Raises:
        PlanFileError: the file cannot be written.
    """
    write_json(encode(_CostFile(2, costs)), path, "cost table")


def load_costs(path: str | Path) -> Measured:
    """Read what `save_costs` wrote.

    Raises:
        PlanFileError: no such file, or not a cost table; the message names the field.
    """
    return load_json(path, "cost table", lambda values: decode(values, _CostFile)).costs


def costs_of(costs: Any) -> Any:
    """A cost model as given, or read from its file."""
    return load_costs(Path(costs)) if isinstance(costs, str | PathLike) else costs


def costs_to_dict(
    costs: CostModel, graph: Graph, cluster: Cluster
) -> dict[str, object] | None:
    """A cost model as plain values, None for a roofline; others become a table."""
    if isinstance(costs, Roofline):
        return None
    if not isinstance(costs, Measured):
        costs = _tabulated(costs, graph, cluster)
    found: dict[str, object] = encode(costs)
    return found


def _tabulated(costs: CostModel, graph: Graph, cluster: Cluster) -> Measured:
    """What another cost model says of each call, device and link."""
    ends = permutations((device.name for device in cluster), 2)
    return Measured(
        calls=tuple(
            CallSeconds(
                call.name,
                device.name,
                costs.forward_seconds(call, device),
                costs.backward_seconds(call, device),
                rows=rows_of(call),
            )
            for call, device in product(graph.calls, cluster)
        ),
        links=tuple(
            replace(costs.link(a, b, cluster), source=a, target=b) for a, b in ends
        ),
        batch=graph.batch,
    )


def costs_from_dict(values: object) -> Measured | Roofline:
    """The inverse of `costs_to_dict`.

    Raises:
        PlanFileError: not a cost model; the message names the field.
    """
    return Roofline() if values is None else decode(values, Measured, "costs")
