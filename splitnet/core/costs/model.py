"""What things cost: seconds of a call, an update and a copy on given devices.

A cost model is anything with the methods of `CostModel`. `Roofline` estimates from
FLOPs and bytes; `Measured` looks a call up in a table first, and estimates what it does
not find. Known times that a call carries (`seconds_on`) beat every estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.costs.roofline import backward_estimate, forward_estimate
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call

__all__ = [
    "OPTIMIZER_SLOTS",
    "CostModel",
    "Measured",
    "Roofline",
    "optimizer_name",
    "signature",
    "slots_of",
]

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
    """Estimate seconds from FLOPs, bytes and kernel launches; see `core/roofline`."""

    def forward_seconds(self, call: Call, device: Device) -> float:
        """Known seconds if the call has them, else the roofline."""
        known = _known_seconds(call, device)
        return forward_estimate(call, device) if known is None else known

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Known seconds scaled by backward to forward FLOPs, else the roofline."""
        known = _known_seconds(call, device)
        if known is not None:
            return known * _backward_share(call)
        return backward_estimate(call, device)

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


def _known_seconds(call: Call, device: Device) -> float | None:
    for kind, seconds in call.seconds_on:
        if kind == device.kind:
            return seconds
    return None


def _backward_share(call: Call) -> float:
    if call.forward_flops > 0:
        return call.backward_flops / call.forward_flops
    return 0.0


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
