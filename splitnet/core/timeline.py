"""One step in time: its tasks and copies, its memory, and what each device waits for.

    gpu:0   |== a ==|               |= a' =|
    link            |~~|      |~~|            the path: a, copy, b, b', copy, a'
    gpu:1              |= b =b'|

A simulated event starts when the last that it waited for ends: a task of its device, a
copy that arrives there, or the copy before it on the link.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, NamedTuple

from splitnet.core import Pictured
from splitnet.core.checks import Positive, check_fields
from splitnet.core.errors import format_seconds

PHASES = ("forward", "backward", "update")
SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class Execution:
    """How parts run: micro-batches, their schedule, and devices that recompute."""

    microbatches: Positive = 1
    schedule: Annotated[str, SCHEDULES] = SCHEDULES[0]
    recompute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
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
    """One part occupying one device; times are seconds since the step began."""

    part: str
    device: str
    phase: str
    start: float
    stop: float
    microbatch: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between devices, from a part to the first that reads it there.

    `kind` is "activation", "gradient", "weights" or "weights gradient". Of its bytes,
    `batch_bytes` grow with the batch; of the latter those of rows of a table.
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
    batch_bytes: int = 0


_Event = Task | Copy
_Cause = Callable[[_Event], _Event | None]


class Span(NamedTuple):
    """An interval of the step that one task or copy takes; None if it is unknown."""

    event: _Event | None
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline(Pictured):
    """One step on a cluster, as simulated (or as measured)."""

    tasks: tuple[Task, ...]
    copies: tuple[Copy, ...]
    devices: tuple[str, ...]
    # device -> ((seconds, bytes in use), ...), ascending in time
    memory: Mapping[str, tuple[tuple[float, int], ...]]

    def __repr__(self) -> str:
        counts = f"{len(self.tasks)} tasks on {len(self.devices)} devices"
        whole = format_seconds(self.seconds)
        return f"<Timeline: {whole}, {counts}, {len(self.copies)} copies>"

    @cached_property
    def events(self) -> tuple[Task | Copy, ...]:
        """All tasks, then all copies."""
        return (*self.tasks, *self.copies)

    @cached_property
    def seconds(self) -> float:
        """How long the step takes, in seconds."""
        return max((event.stop for event in self.events), default=0.0)

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
        whole = self.seconds or 1.0
        return {d: busy / whole for d, busy in self.compute_seconds.items()}

    @cached_property
    def peak_bytes(self) -> Mapping[str, int]:
        """The most memory each device uses at any time of the step."""
        used = {d: [count for _, count in self.memory.get(d, ())] for d in self.devices}
        return {device: max(its, default=0) for device, its in used.items()}

    @cached_property
    def critical_path(self) -> list[Span]:
        """The chain of tasks and copies without a gap; empty if measured."""
        last = max(self.events, key=lambda event: event.stop, default=None)
        path = [*_back(_cause_in(self), last, self.seconds, 0.0)][::-1]
        return path if path and path[0].event else []

    @cached_property
    def waits(self) -> Mapping[str, list[Span]]:
        """What a device's next task waits for, if known, in each gap of the device."""
        cause = _cause_in(self)
        found: dict[str, list[Span]] = {device: [] for device in self.devices}
        free = dict.fromkeys(self.devices, 0.0)
        for task in sorted(self.tasks, key=lambda task: task.start):
            if task.stop > task.start:
                gap = _back(cause, cause(task), task.start, free[task.device])
                found[task.device] += [*gap][::-1]
                free[task.device] = task.stop
        for device, moment in free.items():
            found[device] += _back(cause, None, self.seconds, moment)
        return found


def _cause_in(timeline: Timeline) -> _Cause:
    """What an event waited for: the one at whose end it starts, or a copy before it."""
    ended: dict[tuple[str, float], list[_Event]] = defaultdict(list)
    sent: dict[tuple[str, str], list[Copy]] = defaultdict(list)
    for event in sorted(timeline.events, key=lambda event: event.start):
        if event.stop > event.start:
            ended[_ends(event)[1][0], event.stop].append(event)
            if isinstance(event, Copy):
                sent[event.source_device, event.target_device].append(event)

    def cause(event: _Event) -> _Event | None:
        device, part = _ends(event)[0]
        if ends := ended.get((device, event.start)):
            return max(ends, key=lambda one: _ends(one)[1][1] == part)
        if isinstance(event, Task):
            return None
        copies = sent[event.source_device, event.target_device]
        before = bisect_left(copies, event.start, key=lambda copy: copy.start)
        return copies[before - 1] if before else None

    return cause


def _back(why: _Cause, one: _Event | None, stop: float, start: float) -> Iterator[Span]:
    """From event to cause, from one time back to another."""
    while one is not None and stop > start:
        yield Span(one, max(one.start, start), stop)
        stop, one = one.start, why(one)
    if stop > start:
        yield Span(None, start, stop)


def _ends(event: _Event) -> tuple[tuple[str, str], tuple[str, str]]:
    """The device and the part that an event leaves, and those that it reaches."""
    if isinstance(event, Task):
        return ((event.device, event.part),) * 2
    leaves, reaches = event.source_device, event.target_device
    return (leaves, event.source), (reaches, event.target)
