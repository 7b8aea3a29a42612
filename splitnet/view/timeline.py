"""The step as a Gantt chart: a lane per device and per link, and memory over time."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from splitnet.core.cluster import Cluster
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.memory_chart import MEMORY_LANE, memory_lanes
from splitnet.view.style import (
    QUIET,
    Mark,
    Scene,
    Words,
    colors_of,
    counted,
    mixed,
    percent,
    readable_on,
    shortened,
)

__all__ = ["gantt_of", "stacked", "tick_seconds"]

Scale = Callable[[float], float]
"""Seconds to points."""

_LEFT, _WIDE, _RIGHT = 150.0, 900.0, 60.0
_LANE, _LINK_LANE, _GAP = 30.0, 14.0, 8.0
_LINK_BARS = 8.0  # points of a link's lane that bars fill
_MOST_LINK_ROWS = 4
_MOST_LINKS = 12
_NARROW = 2.0  # points; narrower neighbours become one bar
_POINTS_PER_LETTER = 5.6
_SHORTEST_NAME = 7
_NOISE = 1e-12  # seconds, of sums of floats
_IDLE, _GRID, _LINK, _GREY = "#e9ecef", "#d5dae0", "#f4f6f8", "#57606a"


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
    colors = colors_of(dict.fromkeys([*names, *devices]))
    limits = {device.name: device.memory_bytes for device in cluster or ()}

    def x_of(moment: float) -> float:
        return _LEFT + _WIDE * (moment / seconds if seconds else 0.0)

    items: list[Mark | Words] = []
    y = 16.0
    if title:
        items.append(Words(16, 20, shortened(title, 90), 15, bold=True, room=900))
        y += 24
    items += _legend(y, timelines.values())
    y += 24
    for heading, timeline in timelines.items():
        words = f"{heading}: " if heading else ""
        words += f"one step, {format_seconds(timeline.seconds)}"
        items.append(Words(16, y + 8, words, 11, bold=True, room=600))
        top, y = y + 22, y + 38
        lanes: list[Mark | Words] = []
        for bottom, drawn in _lanes(timeline, colors, x_of, y):
            y = bottom
            lanes += drawn
        held = [d for d in timeline.devices if timeline.peak_bytes.get(d)]
        lanes += memory_lanes(timeline, held, colors, limits, x_of, y)
        y += len(held) * (MEMORY_LANE + _GAP) + (18 if held else 0)
        items += _axis(top, y - top - _GAP, seconds, x_of)
        items += lanes
        y += _GAP
    return Scene(_LEFT + _WIDE + _RIGHT, y + 8, title, tuple(items))


def _legend(y: float, timelines: Iterable[Timeline]) -> Iterator[Mark | Words]:
    """The shades, in grey: the hues are the devices'."""
    entries = [
        ("forward", Mark(0, 0, 26, 10, _GREY)),
        ("backward", Mark(0, 0, 26, 10, _GREY, hatched=True)),
        ("update", Mark(0, 0, 26, 10, _dark(_GREY))),
        ("idle", Mark(0, 0, 26, 10, _IDLE)),
    ]
    if any(timeline.copies for timeline in timelines):
        entries.append(("transfer (thin lanes)", Mark(0, 3, 26, 5, _GREY)))
    x = 16.0
    for word, mark in entries:
        yield replace(mark, x=x, y=y - 5 + mark.y)
        yield Words(x + 32, y, word, 10, QUIET, room=130)
        x += 50 + _POINTS_PER_LETTER * len(word)


def _dark(color: str) -> str:
    return mixed(color, "#000000", 0.55)


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
    y: float, height: float, seconds: float, x_of: Scale
) -> Iterator[Mark | Words]:
    """Ticks with their times; all in the unit of the largest."""
    for moment in tick_seconds(seconds):
        x = x_of(moment)
        yield Mark(x, y + 12, 0.6, height - 12, _GRID)
        yield Words(x, y + 4, format_seconds(moment), 9, QUIET, align="middle", room=60)


def _lanes(
    timeline: Timeline, colors: Mapping[str, str], x_of: Scale, y: float
) -> Iterator[tuple[float, list[Mark | Words]]]:
    """Each lane's drawing and where the next one begins: devices, then links."""
    idle = [d for d in timeline.devices if not timeline.compute_seconds[d]]
    for device in timeline.devices:
        if device not in idle:
            drawn = _device_lane(timeline, device, colors[device], x_of, y)
            y += _LANE + _GAP
            yield y, drawn
    if idle:
        words = "idle throughout: " + shortened(", ".join(idle), 150)
        y += 18
        yield y, [Words(16, y - 12, words, 9, QUIET, room=900)]
    links = _links(timeline)
    for ends, copies in links[:_MOST_LINKS]:
        drawn = _link_lane(ends, copies, colors, x_of, y)
        y += _LINK_LANE + _GAP / 2
        yield y, drawn
    if len(links) > _MOST_LINKS:
        words = f"and {counted(len(links) - _MOST_LINKS, 'more link')}, less used"
        y += 14
        yield y, [Words(16, y - 9, words, 9, QUIET)]
    yield y + _GAP, []


def _device_lane(
    timeline: Timeline, device: str, color: str, x_of: Scale, y: float
) -> list[Mark | Words]:
    used = percent(timeline.utilization.get(device, 0.0))
    strong = mixed(color, "#000000", 0.25)
    items: list[Mark | Words] = [
        Words(16, y + 10, shortened(device, 18), 11, strong, bold=True, room=120),
        Words(16, y + 23, f"utilization {used}", 9, QUIET, room=120),
        Mark(_LEFT, y, _WIDE, _LANE, _IDLE, tip=f"{device} is idle"),
    ]
    tasks = [task for task in timeline.tasks if task.device == device]
    pipelined = any(task.microbatch for task in timeline.tasks)
    for group in _merged_tasks(tasks, x_of):
        x, right = x_of(group[0].start), x_of(group[-1].stop)
        inset = 0.4 if right - x > 3 else 0.0
        phases = _main_phases(group)
        fill = _dark(color) if "update" in phases else color
        wide = max(right - x - 2 * inset, 0.5)
        back = "backward" in phases
        items.append(
            Mark(x + inset, y + 2, wide, _LANE - 4, fill, back, _task_tip(group))
        )
        if len({(task.part, task.microbatch) for task in group}) == 1:
            first = group[0]
            name = str(first.microbatch) if pipelined else first.part
            ground = mixed(color, "#ffffff", 0.62) if back else fill
            items += _bar_name(name, ground, x, right, y, plate=back)
    return items


def _merged_tasks(tasks: Sequence[Task], x_of: Scale) -> list[list[Task]]:
    """Join adjacent tasks of one part and phase, and those too narrow to be seen."""

    def narrow(task: Task) -> bool:
        return x_of(task.stop) - x_of(task.start) < _NARROW

    groups: list[list[Task]] = []
    for task in sorted(tasks, key=lambda task: (task.start, task.stop)):
        if groups:
            last = groups[-1][-1]
            adjacent = x_of(task.start) - x_of(last.stop) < 0.5
            same = (last.part, last.phase, last.microbatch) == (
                *(task.part, task.phase, task.microbatch),
            )
            forward = (last.phase == "forward") == (task.phase == "forward")
            if adjacent and (same or forward and narrow(last) and narrow(task)):
                groups[-1].append(task)
                continue
        groups.append([task])
    return groups


def _main_phases(group: Sequence[Task]) -> set[str]:
    """The phases that a bar shows: those with at least a quarter of its time."""
    spent: dict[str, float] = {}
    for task in group:
        spent[task.phase] = spent.get(task.phase, 0.0) + task.stop - task.start
    return {phase for phase, s in spent.items() if 4 * s >= sum(spent.values())}


def _bar_name(
    name: str, ground: str, x: float, right: float, y: float, *, plate: bool
) -> list[Mark | Words]:
    """The name in the middle of its bar, if there is room; on hatching, on a plate."""
    letters = int((right - x - 6) / _POINTS_PER_LETTER)
    if letters < min(len(name), _SHORTEST_NAME):
        return []
    text = shortened(name, letters)
    middle = (x + right) / 2
    half = _POINTS_PER_LETTER * len(text) / 2 + 3
    room = right - x
    ink = readable_on(ground)
    words = Words(middle, y + _LANE / 2, text, 9, ink, align="middle", room=room)
    if plate:
        return [Mark(middle - half, y + 8, 2 * half, _LANE - 16, ground), words]
    return [words]


def _task_tip(group: Sequence[Task]) -> str:
    first, last = group[0], group[-1]
    parts = list(dict.fromkeys(task.part for task in group))
    phases = " and ".join(dict.fromkeys(task.phase for task in group))
    name = parts[0] if len(parts) == 1 else f"{parts[0]} … {parts[-1]} ({len(parts)})"
    micro = f", micro-batch {first.microbatch}" if first.microbatch else ""
    spent = format_seconds(last.stop - first.start)
    return (
        f"{name}\n{phases} on {first.device}{micro}\n"
        f"{spent}, from {format_seconds(first.start)} to {format_seconds(last.stop)}"
    )


def _links(timeline: Timeline) -> list[tuple[tuple[str, str], list[Copy]]]:
    """Copies by the devices they go between: the busiest links, in order of use."""
    links: dict[tuple[str, str], list[Copy]] = {}
    for copy in timeline.copies:
        links.setdefault((copy.source_device, copy.target_device), []).append(copy)
    busy = {ends: sum(c.stop - c.start for c in found) for ends, found in links.items()}
    ranked = sorted(links, key=lambda ends: -busy[ends])
    shown = set(ranked[:_MOST_LINKS])
    order = [ends for ends in links if ends in shown] + ranked[_MOST_LINKS:]
    return [(ends, links[ends]) for ends in order]


def _link_lane(
    ends: tuple[str, str],
    copies: Sequence[Copy],
    colors: Mapping[str, str],
    x_of: Scale,
    y: float,
) -> list[Mark | Words]:
    """A link's copies as thin bars; copies that overlap lie in rows of their own."""
    source, target = ends
    color = colors.get(source, QUIET)
    total = format_bytes(sum(copy.bytes for copy in copies))
    items: list[Mark | Words] = [
        Words(16, y + 7, shortened(f"{source} → {target}", 24), 9, room=134),
        Mark(_LEFT, y, _WIDE, _LINK_LANE, _LINK),
    ]
    rows: dict[int, list[Copy]] = {}
    for copy, row in stacked(copies):
        rows.setdefault(min(row, _MOST_LINK_ROWS - 1), []).append(copy)
    high = _LINK_BARS / len(rows)
    for row, members in rows.items():
        top = y + (_LINK_LANE - _LINK_BARS) / 2 + row * high
        for group in _merged_copies(members, x_of):
            x = x_of(group[0].start)
            wide = max(x_of(max(copy.stop for copy in group)) - x, 0.8)
            back = "gradient" in group[0].kind
            items.append(Mark(x, top, wide, high, color, back, _copy_tip(group)))
    items.append(Words(_LEFT + _WIDE + 6, y + 7, total, 8, QUIET, room=50))
    return items


def _merged_copies(copies: Sequence[Copy], x_of: Scale) -> list[list[Copy]]:
    """Join neighbours of one direction that are too narrow to be seen."""

    def narrow(copy: Copy) -> bool:
        return x_of(copy.stop) - x_of(copy.start) < _NARROW

    groups: list[list[Copy]] = []
    for copy in sorted(copies, key=lambda copy: (copy.start, copy.stop)):
        if groups:
            last = groups[-1][-1]
            adjacent = x_of(copy.start) - x_of(last.stop) < 0.5
            same = ("gradient" in copy.kind) == ("gradient" in last.kind)
            if adjacent and same and narrow(copy) and narrow(last):
                groups[-1].append(copy)
                continue
        groups.append([copy])
    return groups


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
