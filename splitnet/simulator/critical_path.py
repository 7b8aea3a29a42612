"""What a step waits for: its critical path, and the reasons of every device's gaps.

    gpu:0   |== a ==|               |= a' =|
    link            |~~|      |~~|            the path: a, copy, b, b', copy, a'
    gpu:1              |= b =b'|

In a simulated timeline something starts at the very moment at which the last thing that
it waited for has ended: a task of the same device, a copy that arrives there, or the
copy before it on the link. So the reasons are read from the times alone.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from splitnet.core.timeline import Copy, Task, Timeline

__all__ = ["Span", "critical_path", "waits"]


class Span(NamedTuple):
    """An interval of the step that one task or copy takes; None if it is unknown."""

    event: Task | Copy | None
    start: float
    stop: float


def critical_path(timeline: Timeline) -> list[Span]:
    """The chain of tasks and copies that leaves no gap from 0 to the end of the step.

    Empty for a measured timeline, whose gaps have reasons that it does not hold.
    """
    events: list[Task | Copy] = [*timeline.tasks, *timeline.copies]
    last = max(events, key=lambda event: event.stop, default=None)
    path = [*_Causes(timeline).back(last, timeline.seconds, 0.0)][::-1]
    return path if path and path[0].event else []


def waits(timeline: Timeline) -> Mapping[str, list[Span]]:
    """What happens elsewhere while a device is idle, for the task that comes next.

    A gap whose reason is unknown, or after which no task follows, has no event.
    """
    causes = _Causes(timeline)
    found: dict[str, list[Span]] = {device: [] for device in timeline.devices}
    free = dict.fromkeys(timeline.devices, 0.0)
    for task in sorted(timeline.tasks, key=lambda task: task.start):
        if task.stop > task.start:
            gap = causes.back(causes.of(task), task.start, free[task.device])
            found[task.device] += [*gap][::-1]
            free[task.device] = task.stop
    for device, moment in free.items():
        if moment < timeline.seconds:
            found[device].append(Span(None, moment, timeline.seconds))
    return found


class _Causes:
    """The events by where and when they end, and each link's copies in order.

    Events of no length take none of the time, and are left out.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.ended: dict[tuple[str, float], list[Task | Copy]] = {}
        self.sent: dict[tuple[str, str], list[Copy]] = {}
        events: list[Task | Copy] = [*timeline.tasks, *timeline.copies]
        for event in events:
            if event.stop <= event.start:
                continue
            ends = _end_of(event)[0], event.stop
            self.ended.setdefault(ends, []).append(event)
            if isinstance(event, Copy):
                link = event.source_device, event.target_device
                self.sent.setdefault(link, []).append(event)
        for copies in self.sent.values():
            copies.sort(key=lambda copy: copy.start)

    def of(self, event: Task | Copy) -> Task | Copy | None:
        """The event at whose end this one starts; of several that of the same part."""
        device, part = _start_of(event)
        if ends := self.ended.get((device, event.start)):
            return max(ends, key=lambda one: _end_of(one)[1] == part)
        if isinstance(event, Copy):
            copies = self.sent[event.source_device, event.target_device]
            before = bisect_left(copies, event.start, key=lambda copy: copy.start)
            return copies[before - 1] if before else None
        return None

    def back(
        self, event: Task | Copy | None, stop: float, start: float
    ) -> Iterator[Span]:
        """From event to cause, from one time back to another."""
        while event is not None and stop > start:
            yield Span(event, max(event.start, start), stop)
            stop, event = event.start, self.of(event)
        if stop > start:
            yield Span(None, start, stop)


def _start_of(event: Task | Copy) -> tuple[str, str]:
    """The device and the part that an event leaves."""
    if isinstance(event, Task):
        return event.device, event.part
    return event.source_device, event.source


def _end_of(event: Task | Copy) -> tuple[str, str]:
    """The device and the part that an event reaches."""
    if isinstance(event, Task):
        return event.device, event.part
    return event.target_device, event.target
