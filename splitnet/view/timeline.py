"""The step as a Gantt chart with its critical path, and memory over time."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from splitnet.core.cluster import Cluster
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.timeline import (
    PHASES,
    Copy,
    Span,
    Task,
    Timeline,
    critical_path,
    waits,
)
from splitnet.view.facts import alike_devices
from splitnet.view.style import (
    ALARM,
    INK,
    QUIET,
    Mark,
    Scene,
    Words,
    colors_of,
    counted,
    mixed,
    percent,
    ranged,
    readable_on,
    shortened,
    text_width,
)

__all__ = ["gantt_of", "path_text", "stacked", "tick_seconds"]

Event = TypeVar("Event", Task, Copy)

_LEFT, _WIDE, _RIGHT = 196.0, 860.0, 60.0
_LANE, _LINK_LANE, _MEMORY_LANE, _GAP = 34.0, 14.0, 44.0, 8.0
_MOST_LINK_ROWS = 4
_MOST_LINKS = 12
_MOST_NAMED = 8
_NARROW = 2.0  # points; narrower neighbours become one bar
_SHORTEST_NAME = 7
_NOISE = 1e-12  # seconds, of sums of floats
_IDLE, _WAIT, _GRID, _PALE = "#eef0f3", "#c3cad3", "#d5dae0", "#f4f6f8"
_GREY, _PATH = "#57606a", "#c2185b"
_TOPS = (0.25, 0.5, 1.0)  # of the scale of memory lanes, in shares of the limit
_LITTLE = 0.1  # of a limit: a curve below it shows nothing
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def gantt_of(
    timelines: Mapping[str, Timeline],
    *,
    cluster: Cluster | None = None,
    title: str = "timeline",
) -> Scene:
    """Set one or more timelines of the same machine below each other, on one scale.

    Args:
        timelines: by heading, such as "planned" and "measured".
        cluster: the machine, for the memory limits.
        title: what stands on top; "" for nothing.
    """
    seconds = max(timeline.seconds for timeline in timelines.values())
    devices = dict.fromkeys(d for t in timelines.values() for d in t.devices)
    names = [device.name for device in cluster or ()]
    chart = _Chart(
        seconds,
        colors_of(dict.fromkeys([*names, *devices])),
        {device.name: device.memory_bytes for device in cluster or ()},
    )
    if title:
        chart.say(16, 4, shortened(title, 90), 15, INK, bold=True)
        chart.y += 24
    copied = [name for name, timeline in timelines.items() if timeline.copies]
    paths = {name: critical_path(timelines[name]) for name in copied}
    chart.legend(bool(copied))
    for heading, timeline in timelines.items():
        words = f"{heading}: " if heading else ""
        words += f"one step, {format_seconds(timeline.seconds)}"
        path = paths.get(heading, [])
        words += f"; critical path: {path_text(path)}" if path else ""
        chart.say(16, 8, words, 11, INK, bold=True)
        chart.y += 38
        top, behind = chart.y - 16, len(chart.items)
        chart.lanes = {}
        chart.devices(timeline)
        chart.links(timeline, path)
        chart.path(path)
        chart.memory(timeline)
        chart.items[behind:behind] = _axis(top, chart.y - top - _GAP, seconds, chart.x)
        chart.y += _GAP
    return Scene(_LEFT + _WIDE + _RIGHT, chart.y + 8, title, tuple(chart.items))


def path_text(path: Sequence[Span]) -> str:
    """What the critical path consists of: its devices, and its copies."""
    spent: dict[str, float] = {}
    for event, start, stop in path:
        name = event.device if isinstance(event, Task) else "copies"
        spent[name] = spent.get(name, 0.0) + stop - start
    largest = sorted(spent, key=lambda name: -spent[name])
    words = [f"{name} {format_seconds(spent[name])}" for name in largest[:4]]
    more = sum(spent[name] for name in largest[4:])
    words += [f"others {format_seconds(more)}"] if more else []
    return ", ".join(words)


def tick_seconds(seconds: float, most: int = 9) -> list[float]:
    """Choose round times from 0 to `seconds`, at most `most` and the zero.

    >>> tick_seconds(0.0316, most=4)
    [0.0, 0.01, 0.02, 0.03]
    """
    if seconds <= 0:
        return [0.0]
    rough = seconds / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    count = int(seconds / step * (1 + 1e-9))
    return [float(f"{number * step:.12g}") for number in range(count + 1)]


def _axis(
    y: float, height: float, seconds: float, x_of: Callable[[float], float]
) -> list[Mark | Words]:
    """Ticks with their times, all in one unit."""
    ticks = tick_seconds(seconds)
    unit, name = next((u for u in _UNITS if ticks[-1] >= u[0]), _UNITS[-1])
    items: list[Mark | Words] = []
    for moment in ticks:
        x, said = x_of(moment), f"{moment / unit:g} {name}"
        items.append(Mark(x, y + 12, 0.6, height - 12, _GRID))
        items.append(Words(x, y + 4, said, 9, QUIET, centered=True))
    return items


def _look(color: str, phase: str) -> tuple[str, str]:
    """Fill and outline of a bar: plain forward, pale backward, dark update."""
    if phase == "backward":
        return mixed(color, "#ffffff", 0.7), color
    return (mixed(color, "#000000", 0.6) if phase == "update" else color), ""


class _Chart:
    """A scene in the making; `y` is where the next lane begins, in points."""

    def __init__(
        self, seconds: float, colors: Mapping[str, str], limits: Mapping[str, int]
    ) -> None:
        self.seconds, self.colors, self.limits = seconds, colors, limits
        self.items: list[Mark | Words] = []
        self.y = 16.0
        self.lanes: dict[Hashable, float] = {}  # of devices and links: their middle

    def x(self, moment: float) -> float:
        """Where a time lies, in points."""
        return _LEFT + _WIDE * (moment / self.seconds if self.seconds else 0.0)

    def say(
        self,
        x: float,
        down: float,
        text: str,
        size: float,
        ink: str,
        *,
        bold: bool = False,
    ) -> None:
        """Write words into the lane."""
        self.items.append(Words(x, self.y + down, text, size, ink, bold))

    def legend(self, copies: bool) -> None:
        """The shades, in grey: the hues are the devices'."""
        looks = {phase: (*_look(_GREY, phase), 0.0) for phase in PHASES}
        if copies:
            looks["waiting for a copy"] = _WAIT, "", 0.0
            looks["waiting for other devices"] = _IDLE, "", 0.0
            looks["transfer (thin lanes)"] = _GREY, "", 3.0
            looks["critical path"] = _PATH, "", 4.0
        else:
            looks["idle"] = _IDLE, "", 0.0
        x = 16.0
        for word, (fill, outline, thin) in looks.items():
            height = 10 - 2 * thin
            self.items.append(Mark(x, self.y - 5 + thin, 26, height, fill, outline))
            self.say(x + 32, 0, word, 10, QUIET)
            x += 50 + text_width(word, 10)
        self.y += 24

    def devices(self, timeline: Timeline) -> None:
        """A lane per device that computes, and a line that names the others."""
        idle = [d for d in timeline.devices if not timeline.compute_seconds[d]]
        pipelined = any(task.microbatch for task in timeline.tasks)
        gaps = waits(timeline)
        for devices in alike_devices(timeline):
            device = devices[0]
            color = self.colors[device]
            strong = mixed(color, "#000000", 0.25)
            name = ranged(devices, 26)
            name += f" ({len(devices)})" if len(devices) > 1 else ""
            self.say(16, 6, name, 11, strong, bold=True)
            self._shares(timeline, device, gaps[device])
            self.items.append(Mark(_LEFT, self.y, _WIDE, _LANE, _IDLE))
            for gap in gaps[device]:
                self._gap(device, gap)
            for group in self._merged(
                [task for task in timeline.tasks if task.device == device],
                lambda task: (task.part, task.phase, task.microbatch),
                lambda task: task.phase == "forward",
            ):
                self._bar(group, color, pipelined=pipelined)
            self.lanes |= dict.fromkeys(devices, self.y + _LANE - 6)
            self.y += _LANE + _GAP
        if idle:
            names = shortened(", ".join(idle), 150)
            self.say(16, 6, f"idle throughout: {names}", 9, QUIET)
            self.y += 18

    def _gap(self, device: str, gap: Span) -> None:
        """An interval without work, darker where a copy is on its way."""
        x, right = self.x(gap.start), self.x(gap.stop)
        if right - x < 1:
            return
        fill = _WAIT if isinstance(gap.event, Copy) else _IDLE
        tip = f"{device} is idle"
        if gap.event:
            tip = f"{device} waits for {_said(gap.event)}"
            right += 0.3  # no seams
        self.items.append(Mark(x, self.y, right - x, _LANE, fill, tip=tip))

    def _shares(self, timeline: Timeline, device: str, gaps: Sequence[Span]) -> None:
        """A bar and a line of what a device does in the step, below its name."""
        whole = timeline.seconds or 1.0
        copies = sum(g.stop - g.start for g in gaps if isinstance(g.event, Copy))
        busy = timeline.compute_seconds[device] / whole
        words = f"computing {percent(busy)}"
        if timeline.copies:
            others = max(1 - busy - copies / whole, 0.0)
            words += f", copies {percent(copies / whole)}, others {percent(others)}"
        self.say(16, 28, words, 8, QUIET)
        shares = {_IDLE: 1.0, _WAIT: busy + copies / whole, self.colors[device]: busy}
        for fill, share in shares.items():
            wide = (_LEFT - 32) * min(share, 1.0)
            self.items.append(Mark(16, self.y + 14, wide, 6, fill, tip=words))

    def _bar(self, group: Sequence[Task], color: str, *, pipelined: bool) -> None:
        x, right = self.x(group[0].start), self.x(group[-1].stop)
        inset = 0.4 if right - x > 3 else 0.0
        spent: dict[str, float] = {}
        for task in group:
            spent[task.phase] = spent.get(task.phase, 0.0) + task.stop - task.start
        fill, outline = _look(color, max(spent, key=spent.__getitem__))
        wide = max(right - x - 2 * inset, 0.5)
        place = x + inset, self.y + 2, wide, _LANE - 4
        self.items.append(Mark(*place, fill, outline, _task_tip(group)))
        if len({(task.part, task.microbatch) for task in group}) > 1:
            return
        name = f"#{group[0].microbatch}" if pipelined else group[0].part
        room = right - x - 6
        letters = len(name) if text_width(name, 9) <= room else int(room / 5.6)
        if letters >= min(len(name), _SHORTEST_NAME):
            text, ink = shortened(name, letters), readable_on(fill)
            middle, y = (x + right) / 2, self.y + _LANE / 2
            self.items.append(Words(middle, y, text, 9, ink, centered=True))

    def links(self, timeline: Timeline, path: Sequence[Span]) -> None:
        """A thin lane for each link of the path and of the busiest, in order of use."""
        links: dict[tuple[str, str], list[Copy]] = {}
        for copy in timeline.copies:
            links.setdefault((copy.source_device, copy.target_device), []).append(copy)
        busy = {ends: sum(c.stop - c.start for c in its) for ends, its in links.items()}
        first = {_lane_of(span.event) for span in path}
        shown = sorted(links, key=lambda ends: (ends not in first, -busy[ends]))
        shown = shown[:_MOST_LINKS]
        for ends, copies in links.items():
            if ends in shown:
                self._link(ends, copies)
        if len(links) > _MOST_LINKS:
            more = counted(len(links) - _MOST_LINKS, "more link")
            self.say(16, 5, f"and {more}, less used", 9, QUIET)
            self.y += 14
        self.y += _GAP

    def _link(self, ends: tuple[str, str], copies: Sequence[Copy]) -> None:
        """A link's copies as thin bars; copies that overlap have rows of their own."""
        source, target = ends
        self.say(16, 7, shortened(f"{source} → {target}", 24), 9, INK)
        self.items.append(Mark(_LEFT, self.y, _WIDE, _LINK_LANE, _PALE))
        rows: dict[int, list[Copy]] = {}
        for copy, row in stacked(copies):
            rows.setdefault(min(row, _MOST_LINK_ROWS - 1), []).append(copy)
        high = 8.0 / len(rows)
        for row, members in rows.items():
            top = self.y + 3 + row * high
            for group in self._merged(members, id, _is_gradient):
                x = self.x(group[0].start)
                wide = max(self.x(max(copy.stop for copy in group)) - x, 0.8)
                phase = "backward" if _is_gradient(group[0]) else "forward"
                look = _look(self.colors.get(source, QUIET), phase)
                self.items.append(Mark(x, top, wide, high, *look, _copy_tip(group)))
        total = format_bytes(sum(copy.bytes for copy in copies))
        self.say(_LEFT + _WIDE + 6, 7, total, 8, QUIET)
        self.lanes[ends] = self.y + _LINK_LANE / 2
        self.y += _LINK_LANE + _GAP / 2

    def path(self, path: Sequence[Span]) -> None:
        """The critical path: one line through the lanes, from bar to copy to bar."""
        last: float | None = None
        for lane, group in groupby(path, key=lambda span: _lane_of(span.event)):
            spans = list(group)
            x, y = self.x(spans[0].start), self.lanes.get(lane)
            wide = self.x(spans[-1].stop) - x
            if y is None or (last is not None and wide < _NARROW / 2):
                continue  # one of many links, or too short to be seen
            tip = f"critical path: {_said(spans[0].event)}"
            tip += f" and {len(spans) - 1} more" if len(spans) > 1 else ""
            if last is not None:
                top, tall = min(last, y) - 1.25, abs(last - y) + 2.5
                self.items.append(Mark(x - 0.75, top, 1.5, tall, _PATH))
            self.items.append(Mark(x, y - 2, wide, 4, "#ffffff"))
            self.items.append(Mark(x, y - 1.25, wide, 2.5, _PATH, tip=tip))
            last = y

    def _merged(
        self,
        events: Iterable[Event],
        same: Callable[[Event], Hashable],
        alike: Callable[[Event], bool],
    ) -> list[list[Event]]:
        """Join neighbours that are the same, or alike and too narrow to be seen."""
        groups: list[list[Event]] = []
        for event in sorted(events, key=lambda event: (event.start, event.stop)):
            last = groups[-1][-1] if groups else event
            adjacent = self.x(event.start) - self.x(last.stop) < 0.5
            widths = (self.x(one.stop) - self.x(one.start) for one in (last, event))
            joined = same(last) == same(event) or (
                alike(last) == alike(event) and max(widths) < _NARROW
            )
            if groups and adjacent and joined:
                groups[-1].append(event)
            else:
                groups.append([event])
        return groups

    def memory(self, timeline: Timeline) -> None:
        """Bytes in use over the step; all lanes have one scale, per cent of the limit.

        Where limits are unknown, the scale is the largest peak.
        """
        peaks = {d: p for d in timeline.devices if (p := timeline.peak_bytes.get(d))}
        known = all(self.limits.get(device) for device in peaks)
        whole = {d: self.limits[d] if known else max(peaks.values()) for d in peaks}
        low = {d: p for d, p in peaks.items() if known and p < _LITTLE * whole[d]}
        if low:
            said = ", ".join(f"{d} {format_bytes(peak)}" for d, peak in low.items())
            if len(low) > _MOST_NAMED:
                said = f"{len(low)} devices, at most {format_bytes(max(low.values()))}"
            words = f"memory peak below {percent(_LITTLE)} of the limit: {said}"
            self.say(16, 6, words, 9, QUIET)
            self.y += 18
        peaks = {d: p for d, p in peaks.items() if d not in low}
        if not peaks:
            return
        share = max(peak / whole[d] for d, peak in peaks.items())
        top = next((s for s in _TOPS if share <= 0.95 * s), 1.08 * max(share, 1.0))
        unit = "of each limit" if known else f"of {format_bytes(max(peaks.values()))}"
        self.say(16, 6, f"memory, each lane from 0 to {percent(top)} {unit}", 9, QUIET)
        self.y += 18
        for device, peak in peaks.items():
            limit = self.limits.get(device, 0)
            self.say(16, 10, shortened(device, 20), 9.5, INK)
            self.say(16, 23, f"peak {format_bytes(peak)}", 9, QUIET)
            if limit:
                said = f"{percent(peak / limit)} of {format_bytes(limit)}"
                self.say(16, 35, said, 9, QUIET)
            self.items.append(Mark(_LEFT, self.y, _WIDE, _MEMORY_LANE, _PALE))
            self._curve(timeline, device, whole[device] * top)
            if known and top >= 1:
                height = self.y + _MEMORY_LANE * (1 - 1 / top)
                dashes = range(0, int(_WIDE), 12)
                self.items += [Mark(_LEFT + at, height, 7, 1.4, ALARM) for at in dashes]
            self.y += _MEMORY_LANE + _GAP

    def _curve(self, timeline: Timeline, device: str, top: float) -> None:
        """The area under the bytes in use; `top` is the bytes of a full lane."""
        color = self.colors[device]
        for start, stop, count in self._levels(timeline, device):
            x = self.x(start)
            wide = min(self.x(stop) - x + 0.6, _LEFT + _WIDE - x)  # no seams
            tall = _MEMORY_LANE * count / top
            base = self.y + _MEMORY_LANE - tall
            tip = f"{format_bytes(count)} on {device} from {format_seconds(start)}"
            pale = mixed(color, "#ffffff", 0.45)
            self.items.append(Mark(x, base, wide, tall, pale, tip=tip))
            self.items.append(Mark(x, base, wide, 1.2, color))

    def _levels(
        self, timeline: Timeline, device: str
    ) -> list[tuple[float, float, int]]:
        """Intervals of one level; those too short to be seen keep the highest."""
        points = [(0.0, 0), *timeline.memory[device]]
        stops = [seconds for seconds, _ in points[1:]] + [timeline.seconds]
        found: list[tuple[float, float, int]] = []
        for (start, count), stop in zip(points, stops, strict=True):
            stop = min(stop, timeline.seconds)
            if stop <= start:
                continue
            if found:
                begun, _, level = found[-1]
                if count == level or self.x(stop) - self.x(begun) < _NARROW:
                    found[-1] = (begun, stop, max(count, level))
                    continue
            found.append((start, stop, count))
        return [level for level in found if level[2]]


def _is_gradient(copy: Copy) -> bool:
    return "gradient" in copy.kind


def _lane_of(event: Task | Copy | None) -> Hashable:
    """The device of a task, the two ends of a copy's link."""
    if isinstance(event, Copy):
        return event.source_device, event.target_device
    return event and event.device


def _said(event: Task | Copy | None) -> str:
    """An event in a few words, with its whole time."""
    if event is None:
        return "nothing"
    spent = format_seconds(event.stop - event.start)
    if isinstance(event, Task):
        return f"the {event.phase} of {event.part} on {event.device} ({spent})"
    ways = f"{event.source_device} → {event.target_device}"
    return f"the {event.kind} of {event.source}, {ways} ({spent})"


def _task_tip(group: Sequence[Task]) -> str:
    first, last = group[0], group[-1]
    parts = list(dict.fromkeys(task.part for task in group))
    name = parts[0] if len(parts) == 1 else f"{parts[0]} … {parts[-1]} ({len(parts)})"
    phases = ", ".join(dict.fromkeys(task.phase for task in group))
    batch = f", micro-batch {first.microbatch}" if first.microbatch else ""
    return (
        f"{name}\n{phases} on {first.device}{batch}\n"
        f"{format_seconds(last.stop - first.start)} from {format_seconds(first.start)}"
    )


def _copy_tip(group: Sequence[Copy]) -> str:
    first, last = group[0], group[-1]
    head = f"{first.kind}, {first.source} → {first.target}"
    if len(group) > 1:
        head += f" and {len(group) - 1} more"
    sent = format_bytes(sum(copy.bytes for copy in group))
    spent = format_seconds(max(copy.stop for copy in group) - first.start)
    return f"{head}\n{sent} in {spent}, {last.source_device} → {last.target_device}"


def stacked(copies: Iterable[Copy]) -> list[tuple[Copy, int]]:
    """Sort the copies of one link by start, each with a row where it has room.

    Rows count from 0. Copies share a link's bandwidth in turn but not its latency, so
    one may begin before the one before it has arrived; it takes the next row.
    """
    free: list[float] = []
    found: list[tuple[Copy, int]] = []
    for copy in sorted(copies, key=lambda copy: (copy.start, copy.stop)):
        room = (row for row, stop in enumerate(free) if stop <= copy.start + _NOISE)
        row = next(room, len(free))
        free[row : row + 1] = [copy.stop]
        found.append((copy, row))
    return found
