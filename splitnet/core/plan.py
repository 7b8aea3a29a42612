"""The decision: which part lives where, why, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from splitnet.core.cluster import Cluster
from splitnet.core.errors import PlanFileError
from splitnet.core.graph import Graph
from splitnet.core.timeline import Timeline

__all__ = ["Fallback", "Memory", "Placement", "Plan", "Transfer"]


@dataclass(frozen=True, slots=True)
class Placement:
    """One part and its device; `asked` is what its `on=` said, `why` the reason.

    `why` is "pin", "preference", "near", "cost", "memory", "merge", "input", "no kernel",
    "only choice", "tie", "fallback" or "given" (by a person, to be scored).
    """

    part: str
    device: str
    asked: str
    why: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """The receipt of a wish that the machine could not grant."""

    part: str
    asked: str
    got: str
    why: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes that one step moves between two devices, once per consumer device.

    `kind` is "activation", "gradient", "weights" or "weights gradient"; `source` and
    `target` are parts.
    """

    source: str
    target: str
    source_device: str
    target_device: str
    kind: str
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What one device holds at its fullest during a step, in bytes."""

    weights: int = 0
    gradients: int = 0
    slots: int = 0
    activations: int = 0
    transfers: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        """The sum, in bytes."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Plan:
    """A placement of a graph's parts on a cluster, with its costs and their proof.

    `value` is what the
    objective counts (seconds, or bytes for "memory"). `home` maps each weight to the
    device that owns it.
    """

    graph: Graph
    cluster: Cluster
    placements: tuple[Placement, ...]
    fallbacks: tuple[Fallback, ...]
    transfers: tuple[Transfer, ...]
    memory: Mapping[str, Memory]
    timeline: Timeline
    home: Mapping[str, str]
    objective: str = "latency"
    strategy: str = "earliest_finish"
    optimizer: str = "adam"
    training: bool = True
    value: float = 0.0
    bound: float = 0.0
    options: Mapping[str, object] | None = None

    @cached_property
    def device_of(self) -> Mapping[str, str]:
        """The device of each part, by name."""
        return {p.part: p.device for p in self.placements}

    @cached_property
    def _placement(self) -> Mapping[str, Placement]:
        return {p.part: p for p in self.placements}

    def __getitem__(self, name: str) -> Placement:
        """The placement of one part.

        Raises:
            PlanFileError: the plan has no such part.
        """
        if name not in self._placement:
            raise PlanFileError(
                f"the plan of {self.graph.name!r} has no part {name!r}. It has: "
                f"{', '.join(list(self._placement)[:12])}."
            )
        return self._placement[name]

    @property
    def gap(self) -> float:
        """How far the plan may be from the best, as a share of its value: 0 is proven."""
        return 0.0 if self.value <= 0 else max(0.0, 1.0 - self.bound / self.value)

    @property
    def batch(self) -> int:
        """Samples per step."""
        return self.graph.batch
