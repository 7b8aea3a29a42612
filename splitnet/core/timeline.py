"""One step in time: how it runs, its tasks and copies, what moves and what it holds."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from splitnet.core import hook
from splitnet.core.errors import format_seconds

__all__ = [
    "PHASES",
    "SCHEDULES",
    "Copy",
    "Execution",
    "Memory",
    "Task",
    "Timeline",
]

PHASES = ("forward", "backward", "update")
SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class Execution:
    """How the parts of a plan run in a step.

    The batch goes through them in `microbatches` pieces, in the order of `schedule`.
    Parts on the devices `recompute` save their inputs only, and run forward again in
    their backward pass.
    """

    microbatches: int = 1
    schedule: str = SCHEDULES[0]
    recompute: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What a person would say: "in 4 micro-batches (1f1b)"; "" if nothing."""
        said = []
        if self.microbatches > 1:
            said.append(f"in {self.microbatches} micro-batches ({self.schedule})")
        if self.recompute:
            said.append(f"recomputing on {', '.join(self.recompute)}")
        return ", ".join(said)


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory of one device during a step, by kind, in bytes."""

    weights: int = 0
    gradients: int = 0
    slots: int = 0
    activations: int = 0
    receive_buffers: int = 0
    workspace: int = 0

    @property
    def total(self) -> int:
        """The sum, in bytes."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Task:
    """One part occupying one device; times are seconds since the step began.

    `phase` is "forward", "backward" or "update"; `microbatch` counts from 0 in a
    pipeline and is 0 elsewhere.
    """

    part: str
    device: str
    phase: str
    start: float
    stop: float
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes on their way from device to device; times are seconds since the step began.

    `source` and `target` are parts: whence it comes, and the first that reads it there.
    `kind` is "activation", "gradient", "weights" or "weights gradient".
    """

    source: str
    target: str
    source_device: str
    target_device: str
    kind: str
    phase: str
    bytes: int
    start: float
    stop: float
    microbatch: int = 0

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Timeline:
    """One step on a cluster, as simulated (or as measured)."""

    tasks: tuple[Task, ...]
    copies: tuple[Copy, ...]
    devices: tuple[str, ...]
    # device -> ((seconds, bytes in use), ...), ascending in time
    memory: Mapping[str, tuple[tuple[float, int], ...]]

    def _repr_svg_(self) -> str:
        """The chart, for a notebook."""
        return str(hook("timeline_svg")(self))

    def __repr__(self) -> str:
        """A line for a prompt."""
        return (
            f"<Timeline: {format_seconds(self.seconds)}, {len(self.tasks)} tasks on "
            f"{len(self.devices)} devices, {len(self.copies)} copies>"
        )

    @cached_property
    def seconds(self) -> float:
        """How long the step takes, in seconds."""
        stops = [task.stop for task in self.tasks] + [c.stop for c in self.copies]
        return max(stops, default=0.0)

    @cached_property
    def compute_seconds(self) -> Mapping[str, float]:
        """Seconds that each device computes."""
        total = dict.fromkeys(self.devices, 0.0)
        for task in self.tasks:
            total[task.device] += task.stop - task.start
        return total

    @cached_property
    def utilization(self) -> Mapping[str, float]:
        """The share of the step in which each device computes, 0 to 1."""
        if not self.seconds:
            return dict.fromkeys(self.devices, 1.0)
        return {d: busy / self.seconds for d, busy in self.compute_seconds.items()}

    @cached_property
    def peak_bytes(self) -> Mapping[str, int]:
        """The most memory each device uses at any time of the step."""
        return {
            device: max((count for _, count in self.memory.get(device, ())), default=0)
            for device in self.devices
        }
