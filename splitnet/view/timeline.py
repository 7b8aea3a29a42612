"""The step as a Gantt chart: a lane per device and per link, and memory over time."""

import math
from collections.abc import Iterator, Mapping, Sequence

from splitnet.core.cluster import Cluster
from splitnet.core.timeline import Copy, Timeline
from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.bars import LANE, NARROW, Scale, task_marks
from splitnet.view.colors import QUIET, colors_of, mixed
from splitnet.view.scene import Mark, Scene, Words
from splitnet.view.words import counted, shortened

__all__ = ["gantt_of", "tick_seconds"]

_LEFT, _WIDE, _RIGHT = 150.0, 900.0, 30.0
_LINK_LANE, _MEMORY_LANE, _GAP = 14.0, 44.0, 8.0
_IDLE = "#e9ecef"
_GRID = "#d5dae0"
_LIMIT = "#b3261e"
_MOST_LINKS = 12
_POINTS_PER_LETTER = 5.6


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
    first = next(iter(timelines.values()))
    seconds = max(timeline.seconds for timeline in timelines.values())
    devices = list(dict.fromkeys(d for t in timelines.values() for d in t.devices))
    names = [device.name for device in cluster] if cluster else devices
    colors = dict(colors_of(dict.fromkeys([*names, *devices])))

    def x_of(moment: float) -> float:
        return _LEFT + _WIDE * (moment / seconds if seconds else 0.0)

    items: list[Mark | Words] = []
    y = 16.0
    if title:
        items.append(Words(16, 20, shortened(title, 90), 15, bold=True, room=900))
        y += 24
    items += _legend(y, first)
    y += 24
    for heading, timeline in timelines.items():
        words = f"{heading}: " if heading else ""
        words += f"one step, {format_seconds(timeline.seconds)}"
        items.append(Words(16, y + 8, words, 11, bold=True, room=600))
        y += 22
        items += _axis(y, _height(timeline), seconds, x_of)
        y += 16
        for lane in _lanes(timeline, colors, x_of, y):
            y, drawn = lane
            items += drawn
        for device in timeline.devices:
            if timeline.memory.get(device):
                known = cluster is not None and device in cluster
                limit = cluster[device].memory_bytes if cluster and known else 0
                items += _memory(timeline, device, colors[device], x_of, y, limit)
                y += _MEMORY_LANE + _GAP
        y += _GAP
    return Scene(_LEFT + _WIDE + _RIGHT, y + 8, title, tuple(items))


def _height(timeline: Timeline) -> float:
    """The height of one timeline's lanes, in points."""
    links = min(len(_links(timeline)), _MOST_LINKS)
    held = sum(1 for device in timeline.devices if timeline.memory.get(device))
    return (
        16
        + len(timeline.devices) * (LANE + _GAP)
        + links * (_LINK_LANE + _GAP / 2)
        + held * (_MEMORY_LANE + _GAP)
    )


def _legend(y: float, timeline: Timeline) -> Iterator[Mark | Words]:
    """The shades, in grey: the hues are the devices'."""
    grey = "#57606a"
    x = 16.0
    entries: list[tuple[str, Mark]] = [
        ("forward", Mark(0, 0, 26, 10, grey)),
        ("backward", Mark(0, 0, 26, 10, grey, hatched=True)),
        ("update", Mark(0, 0, 26, 10, mixed(grey, "#000000", 0.55))),
        ("waiting", Mark(0, 0, 26, 10, _IDLE)),
    ]
    if timeline.copies:
        entries.append(("transfer (thin lanes)", Mark(0, 3, 26, 5, grey)))
    for word, mark in entries:
        yield Mark(x, y - 5 + mark.y, 26, mark.height, mark.fill, mark.hatched)
        yield Words(x + 32, y, word, 10, QUIET, room=130)
        x += 50 + _POINTS_PER_LETTER * len(word)


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
    for moment in tick_seconds(seconds):
        x = x_of(moment)
        yield Mark(x, y + 12, 0.6, height - 12, _GRID)
        yield Words(x, y + 4, format_seconds(moment), 9, QUIET, align="middle", room=60)


def _lanes(
    timeline: Timeline, colors: Mapping[str, str], x_of: Scale, y: float
) -> Iterator[tuple[float, list[Mark | Words]]]:
    """Each lane's drawing, and where the next one begins."""
    for device in timeline.devices:
        items = _device_head(timeline, device, colors[device], y)
        tasks = [task for task in timeline.tasks if task.device == device]
        items += task_marks(tasks, colors[device], x_of, y)
        y += LANE + _GAP
        yield y, items
    links = _links(timeline)
    for ends in list(links)[:_MOST_LINKS]:
        yield y + _LINK_LANE + _GAP / 2, _link_lane(ends, links[ends], colors, x_of, y)
        y += _LINK_LANE + _GAP / 2
    if len(links) > _MOST_LINKS:
        more = counted(len(links) - _MOST_LINKS, "further link")
        items = [Words(16, y + 5, f"and {more}, less busy", 9, QUIET)]
        y += 14
        yield y, items
    yield y + _GAP, []


def _device_head(
    timeline: Timeline, device: str, color: str, y: float
) -> list[Mark | Words]:
    idle = timeline.idle.get(device, 1.0)
    strong = mixed(color, "#000000", 0.25)
    return [
        Words(16, y + 10, shortened(device, 18), 11, strong, bold=True, room=120),
        Words(16, y + 23, f"busy {1 - idle:.0%}", 9, QUIET, room=120),
        Mark(_LEFT, y, _WIDE, LANE, _IDLE, tip=f"{device} waits"),
    ]


def _links(timeline: Timeline) -> dict[tuple[str, str], list[Copy]]:
    """Copies by the devices they go between, the busiest link first."""
    links: dict[tuple[str, str], list[Copy]] = {}
    for copy in timeline.copies:
        links.setdefault((copy.source_device, copy.target_device), []).append(copy)
    busy = {
        ends: sum(c.stop - c.start for c in copies) for ends, copies in links.items()
    }
    chosen = sorted(links, key=lambda ends: -busy[ends])[:_MOST_LINKS]
    order = [ends for ends in links if ends in chosen]
    return {
        ends: links[ends] for ends in (*order, *(e for e in links if e not in chosen))
    }


def _link_lane(
    ends: tuple[str, str],
    copies: Sequence[Copy],
    colors: Mapping[str, str],
    x_of: Scale,
    y: float,
) -> list[Mark | Words]:
    source, target = ends
    total = sum(copy.bytes for copy in copies)
    items: list[Mark | Words] = [
        Words(16, y + 7, shortened(f"{source} → {target}", 24), 9, room=134),
        Mark(_LEFT, y, _WIDE, _LINK_LANE, "#f4f6f8"),
    ]
    color = colors.get(source, QUIET)
    for copy in sorted(copies, key=lambda copy: (copy.start, copy.stop)):
        x = x_of(copy.start)
        items.append(
            Mark(
                x,
                y + 3,
                max(x_of(copy.stop) - x, 0.8),
                _LINK_LANE - 6,
                color,
                hatched="gradient" in copy.kind,
                tip=(
                    f"{copy.kind}, {copy.source} → {copy.target}\n"
                    f"{format_bytes(copy.bytes)} in "
                    f"{format_seconds(copy.stop - copy.start)}, {source} → {target}"
                ),
            )
        )
    items.append(
        Words(
            _LEFT + _WIDE - 4,
            y + 7,
            format_bytes(total),
            8,
            QUIET,
            align="right",
            room=80,
        )
    )
    return items


def _memory(
    timeline: Timeline,
    device: str,
    color: str,
    x_of: Scale,
    y: float,
    limit: int,
) -> list[Mark | Words]:
    """Bytes in use over the step, and the limit where it is in sight."""
    peak = timeline.peak_bytes[device]
    near = 0 < limit <= 4 * peak
    top = max(peak, limit if near else 0, 1) * 1.08
    said = f"{format_bytes(peak)} at most"
    items: list[Mark | Words] = [
        Words(16, y + 10, f"memory of {shortened(device, 12)}", 9.5, room=134),
        Words(16, y + 23, said, 9, QUIET, room=134),
        Mark(_LEFT, y, _WIDE, _MEMORY_LANE, "#f4f6f8"),
    ]
    if limit:
        items.append(Words(16, y + 35, f"of {format_bytes(limit)}", 9, QUIET, room=134))
    for start, stop, count in _levels(timeline, device, x_of):
        x, right = x_of(start), x_of(stop)
        tall = _MEMORY_LANE * count / top
        if count:
            tip = f"{format_bytes(count)} on {device} from {format_seconds(start)}"
            base = y + _MEMORY_LANE - tall
            pale = mixed(color, "#ffffff", 0.45)
            wide = min(right - x + 0.6, _LEFT + _WIDE - x)  # no seam to the next
            items.append(Mark(x, base, wide, tall, pale, tip=tip))
            items.append(Mark(x, base, wide, 1.2, color))
    if near:
        height = y + _MEMORY_LANE * (1 - limit / top)
        for dash in range(0, int(_WIDE), 12):
            items.append(Mark(_LEFT + dash, height, 7, 1.4, _LIMIT))
        items.append(
            Words(
                _LEFT + _WIDE - 4,
                height + 7,
                f"limit {format_bytes(limit)}",
                8,
                _LIMIT,
                align="right",
                room=100,
            )
        )
    return items


def _levels(
    timeline: Timeline, device: str, x_of: Scale
) -> list[tuple[float, float, int]]:
    """Stretches of one level of memory; those too short to be seen keep the highest."""
    points = list(timeline.memory[device])
    if points and points[0][0] > 0:
        points.insert(0, (0.0, 0))
    stops = [seconds for seconds, _ in points[1:]] + [timeline.seconds]
    found: list[tuple[float, float, int]] = []
    for (start, count), stop in zip(points, stops, strict=True):
        stop = min(stop, timeline.seconds)
        if stop <= start:
            continue
        if found:
            begun, _, level = found[-1]
            if count == level or x_of(stop) - x_of(begun) < NARROW:
                found[-1] = (begun, stop, max(count, level))
                continue
        found.append((start, stop, count))
    return found
