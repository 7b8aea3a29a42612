"""The decision: which part lives where, why, and what follows from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from splitnet.core.cluster import Cluster
from splitnet.core.cost import CostModel, Roofline
from splitnet.core.errors import PlanFileError
from splitnet.core.graph import Graph
from splitnet.core.timeline import Timeline
from splitnet.core.units import format_seconds

if TYPE_CHECKING:
    from splitnet.planner.comparison import Comparison
    from splitnet.planner.explain import Explanation
    from splitnet.planner.words import Verdict

__all__ = ["Fallback", "Memory", "Placement", "Plan", "Transfer"]


@dataclass(frozen=True, slots=True)
class Placement:
    """One part and its device; `asked` is what its `on=` said, `why` the reason.

    `why` is "pin", "preference", "near", "cost", "memory", "merge", "input",
    "no kernel", "only choice", "tie", "fallback" or "given" (by a person).
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

    `value` is what the objective counts (seconds, or bytes for "memory"), `bound` what
    no plan can be below. `home` maps each weight to the device that owns it. `options`
    are the wishes given to the planner ("pins", "missing", "seed" ...).
    """

    # The package's front door sets this to the view's `svg_of` and `html_of`.
    pictures: ClassVar["tuple[Callable[[Plan], str], Callable[[Plan], str]] | None"] = (
        None
    )

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
    costs: CostModel = field(default_factory=Roofline)

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
        """How far the plan may be from the best, as a share of its value."""
        return 0.0 if self.value <= 0 else max(0.0, 1.0 - self.bound / self.value)

    @property
    def batch(self) -> int:
        """Samples per step."""
        return self.graph.batch

    @property
    def seconds(self) -> float:
        """How long one step takes, as simulated."""
        return self.timeline.seconds

    @cached_property
    def verdict(self) -> "Verdict":
        """Whether it is worth it: this plan, one device, and what cannot be beaten."""
        from splitnet.planner.words import verdict_of

        return verdict_of(self)

    def explain(self, name: str) -> "Explanation":
        """Say why a part is where it is, and what each other device would cost.

        Raises:
            PlanFileError: the plan has no such part.
        """
        from splitnet.planner.explain import explain

        return explain(self, name)

    def compare(self, other: "Plan") -> "Comparison":
        """Say what moved from this plan to another, and what that changed."""
        from splitnet.planner.comparison import compare

        return compare(self, other)

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, beside the file first and then in its place.

        Raises:
            PlanFileError: the file cannot be written.
        """
        from splitnet.planner.planfile import save_plan

        save_plan(self, path)

    def _repr_svg_(self) -> str | None:
        """The diagram, for a notebook."""
        return self.pictures[0](self) if self.pictures else None

    def _repr_html_(self) -> str | None:
        """The diagram and the table, for a notebook."""
        return self.pictures[1](self) if self.pictures else None

    def __repr__(self) -> str:
        """A line for a prompt."""
        used = list(dict.fromkeys(self.device_of.values()))
        return (
            f"<Plan of {self.graph.name!r}: {len(self.placements)} parts on "
            f"{', '.join(used[:6])}{' ...' if len(used) > 6 else ''}, "
            f"{format_seconds(self.seconds)} a step>"
        )
