"""What things cost: seconds of a call, an update and a copy on given devices.

A kernel takes max(FLOPs / FLOP/s, bytes / B/s), each times the share of the peak that
kernels of its class reach, and a launch takes `Device.call_seconds` (Williams,
Waterman, Patterson, "Roofline", 2009). Each step of a recurrence pays its launches.

`Device.flops_per_second` is what large matrix products reach. With the figures for GPUs
published ones of ResNet-50, BERT-base and an LSTM come out within a factor of two, on
five GPUs (`tests/tf/test_presets.py` has the sources). Those for CPUs come from single
layers in TensorFlow 2.21 on two cores.
"""

import math
import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property, partial
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from splitnet.core.checks import Amount, Positive, Rate, Seconds
from splitnet.core.cluster import Cluster, Device, Link, device_name, first_name
from splitnet.core.errors import DeclarationError, PlanFileError, repeated
from splitnet.core.graph import Call, grouped
from splitnet.core.serialization import decode, encode, load_file, write_json

_TABLE = tomllib.loads(Path(__file__).with_name("costs.toml").read_text("utf-8"))
VIEWS = frozenset(_TABLE["views"].split())
"""Calls that only rename bytes: TensorFlow runs no kernel for them."""


class _Kernels(NamedTuple):
    """Shares of the peak FLOP/s and bytes/s, launches of a pass, and kinds of calls."""

    gpu: float
    cpu: float
    bytes: float
    launches: int
    kinds: str


_CLASSES = {name: _Kernels(*row) for name, row in _TABLE["kernels"].items()}
_class_of = cache(
    lambda kind: next(n for n, one in _CLASSES.items() if re.fullmatch(one.kinds, kind))
)
_KERNELS_PER_STEP = {"gpu": 4, "cpu": 20}
"""cuDNN runs a step of a recurrence in a few kernels; a loop of TensorFlow does not."""


def _estimate(call: Call, device: Device, flops: float, times: int) -> float:
    """Seconds of a pass: the longer of arithmetic and memory, and the launches."""
    if call.kind in VIEWS:
        return 0.0
    moved = call.moved_bytes or 2.0 * call.output_bytes
    kind, gpu = call.kind.partition(":")[0], device.kind == "gpu"
    usual = _class_of(kind)
    launches = call.kernels or _CLASSES[usual].launches
    name = call.efficiency or usual
    if call.sequential_steps > 1:
        name = "recurrence"
        launches = call.sequential_steps * _KERNELS_PER_STEP[device.kind]
    elif gpu and call.fused_kernels:
        launches, moved = call.fused_kernels, call.fused_bytes
    share, peak = _CLASSES[name], device.flops_per_second
    half = bool(call.output_dtypes) and call.output_dtypes[0].endswith("float16")
    if gpu and half and name != "element-wise":
        peak *= device.half_speed
    computing = flops / (peak * (share.gpu if gpu else share.cpu))
    moving = times * moved / (device.bytes_per_second * share.bytes)
    return max(computing, moving) + times * launches * device.call_seconds


_SLOTS = {n: count for count, its in enumerate(_TABLE["slots"]) for n in its.split()}
OPTIMIZER_ARGUMENTS: dict[str, tuple[str, Any, str]] = _TABLE["arguments"]
"""Arguments that keep one copy more, a value for each, and whose they are, or ""."""


def optimizer_name(optimizer: object) -> str:
    """Bring an optimizer, or its name, to what tells its slots: "rmsprop+momentum"."""
    if isinstance(optimizer, str):
        given = optimizer.strip().lower()
        kind, *wanted = _TABLE["short"].get(given, given).split("+")
    else:
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        kind, has = type(inner).__name__.lower(), OPTIMIZER_ARGUMENTS.items()
        wanted = [n for n, (its, *_) in has if getattr(inner, its, None)]
    takes = {n: its.split() or _SLOTS for n, (*_, its) in OPTIMIZER_ARGUMENTS.items()}
    known = [name for name, its in takes.items() if kind in its]
    if not known or isinstance(optimizer, str) and not {*wanted} <= {*known}:
        fault = f"there is no known optimizer {optimizer!r}. Known: {', '.join(_SLOTS)}"
        fault += f"; with one slot more each: +{', +'.join(OPTIMIZER_ARGUMENTS)}"
        raise DeclarationError(f"{fault}. Name one with as many slots per weight.")
    return "+".join([kind, *(name for name in known if name in wanted)])


@cache
def slots_of(optimizer: str) -> int:
    """How many copies of each weight the optimizer keeps beside it."""
    kind, *more = optimizer_name(optimizer).split("+")
    return _SLOTS[kind] + len(more)


@runtime_checkable
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


def signature(call: Call) -> str:
    """What a call computes for each row, "Dense (4)"; FLOPs tell apart the rest."""
    shapes = (", ".join(map(str, shape[1:])) for shape in call.output_shapes)
    return " ".join((call.kind, *(f"({shape})" for shape in shapes)))


def rows_of(call: Call) -> int:
    """The first extent of what a call gives; it grows with the batch."""
    shape = call.output_shapes[0] if call.output_shapes else ()
    return (shape[0] if shape else 1) or 1


@dataclass(frozen=True, slots=True)
class CallSeconds:
    """Measured seconds of calls of a `signature` on a device, or on all of a kind.

    They and the FLOPs are for `rows` rows, the fixed ones for any number. The backward
    pass of a model's first layers has fewer FLOPs: none for gradients of its inputs.
    """

    call: str
    device: str
    forward: Seconds
    backward: Seconds = 0.0
    forward_fixed: Seconds = 0.0
    backward_fixed: Seconds = 0.0
    rows: Positive = 1
    flops: Amount = 0.0
    backward_flops: Amount = 0.0

    def __post_init__(self) -> None:
        if self.forward_fixed > self.forward or self.backward_fixed > self.backward:
            raise PlanFileError("fixed seconds must be at most those of the pass.")


@dataclass(frozen=True, slots=True)
class UpdateSeconds:
    """Measured update of a variable on a device, or on every device of a kind."""

    device: str
    bytes_per_second: Rate
    fixed: Seconds = 0.0
    optimizer: str = ""  # or another with as many slots; "" for any


_SAME_FLOPS = 0.25
"""Calls of a signature are alike if their FLOPs per row differ by this share."""


@dataclass(frozen=True)
class Costs:
    """Seconds as measured, as a call has them, or estimated from FLOPs and bytes.

    With `stand_ins` those of GPUs were measured on CPU devices in their place.
    `measured_on` has one device of each sort that was measured.
    """

    calls: tuple[CallSeconds, ...] = ()
    updates: tuple[UpdateSeconds, ...] = ()
    links: tuple[Link, ...] = ()
    stand_ins: bool = False
    measured_on: tuple[Device, ...] = ()

    def __post_init__(self) -> None:
        keys: list[tuple[Any, ...]] = [(one.source, one.target) for one in self.links]
        read = {name: device_name(name) for name in self.devices}
        read |= {name: first_name(name) for pair in keys for name in pair}
        keys += [(one.device, one.optimizer) for one in self.updates]
        keys += map(attrgetter("call", "device", "flops", "backward_flops"), self.calls)
        faults = [f"{n!r} must be {own!r}" for n, own in read.items() if own != n]
        faults += [f"{key} is there twice" for key in repeated(map(str, keys))]
        if faults:
            raise PlanFileError("invalid costs.", faults)

    def of_another(self, device: Device) -> bool:
        """Whether devices of its kind were measured, and none with its figures."""
        figures = attrgetter("flops_per_second", "bytes_per_second")
        known = {figures(one) for one in self.measured_on if one.kind == device.kind}
        return bool(known) and figures(device) not in known

    @cached_property
    def devices(self) -> frozenset[str]:
        """The devices and kinds that the table tells apart."""
        return frozenset(map(attrgetter("device"), (*self.calls, *self.updates)))

    @cached_property
    def _calls(self) -> dict[tuple[str, str], list[CallSeconds]]:
        return grouped(self.calls, attrgetter("call", "device"))

    def measured(self, call: Call, device: Device) -> CallSeconds | None:
        """The row for calls like this one, if any."""
        rows, ahead = rows_of(call), call.forward_flops / rows_of(call)

        def off(one: CallSeconds) -> tuple[float, float]:
            back = abs(one.backward_flops / one.rows - call.backward_flops / rows)
            return abs(one.flops / one.rows - ahead), back

        for where in (device.name, device.kind) if self.calls else ():
            like = self._calls.get((signature(call), where), ())
            near = min(like, key=off, default=None)
            if near and off(near)[0] <= _SAME_FLOPS * ahead:
                return near
        return None

    def _seconds(self, call: Call, device: Device, phase: str) -> float:
        if near := self.measured(call, device):
            fixed: float = getattr(near, f"{phase}_fixed")
            share: float = (getattr(near, phase) - fixed) / near.rows
            return fixed + share * rows_of(call)
        ahead = call.forward_flops
        work, times = (ahead, 1) if phase == "forward" else (call.backward_flops, 2)
        if (known := dict(call.seconds_on).get(device.kind)) is None:
            return _estimate(call, device, work, times)
        return known if phase == "forward" else known * work / (ahead or math.inf)

    def forward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of the forward pass."""
        return self._seconds(call, device, "forward")

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of the backward pass."""
        return self._seconds(call, device, "backward")

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """Seconds to read weight, gradient and slots, and to write weight and slots."""
        slots = slots_of(optimizer)
        for where in (device.name, device.kind):
            for one in (row for row in self.updates if row.device == where):
                if not one.optimizer or slots_of(one.optimizer) == slots:
                    return one.fixed + count / one.bytes_per_second
        moving = count * (3 + 2 * slots) / device.bytes_per_second
        return moving + (2 + 5 * slots) * device.call_seconds

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The measured link between these two devices, else the cluster's."""
        its = (x for x in self.links if (x.source, x.target) == (source, target))
        return next(its, None) or cluster.link(source, target)


@dataclass(frozen=True, slots=True)
class _CostFile:
    splitnet_costs: Literal[2]
    costs: Costs


def save_costs(costs: Costs, path: str | Path) -> None:
    """Write measured costs as JSON, atomically; `PlanFileError` if it cannot be."""
    write_json(encode(_CostFile(2, costs)), path, "cost table")


def load_costs(costs: Any) -> Any:
    """A cost model as given, or from its file; `PlanFileError` names what is wrong."""
    if isinstance(costs, str | PathLike):
        what = "cost table (version 2, as `splitnet measure` makes it)"
        return load_file(Path(costs), what, partial(decode, kind=_CostFile)).costs
    return costs
