"""The step as a Gantt chart: a lane per device and per link, and memory over time."""

import math
from collections.abc import Iterator, Mapping

from splitnet.core.cluster import Cluster
from splitnet.core.timeline import Copy, Timeline
from splitnet.core.units import format_seconds
from splitnet.view.bars import LANE, Scale, task_marks
from splitnet.view.colors import QUIET, colors_of, mixed
from splitnet.view.lanes import (
    LEFT,
    LINK_LANE,
    MEMORY_LANE,
    WIDE,
    link_lane,
    memory_lane,
)
from splitnet.view.scene import Mark, Scene, Words
from splitnet.view.words import counted, shortened

__all__ = ["gantt_of", "tick_seconds"]

_RIGHT = 60.0
_GAP = 8.0
_IDLE = "#e9ecef"
_GRID = "#d5dae0"
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
        return LEFT + WIDE * (moment / seconds if seconds else 0.0)

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
            if timeline.peak_bytes.get(device):
                known = cluster is not None and device in cluster
                limit = cluster[device].memory_bytes if cluster and known else 0
                items += memory_lane(timeline, device, colors[device], x_of, y, limit)
                y += MEMORY_LANE + _GAP
        y += _GAP
    return Scene(LEFT + WIDE + _RIGHT, y + 8, title, tuple(items))


def _height(timeline: Timeline) -> float:
    """The height of one timeline's lanes, in points."""
    links = min(len(_links(timeline)), _MOST_LINKS)
    held = sum(1 for device in timeline.devices if timeline.peak_bytes.get(device))
    return (
        16
        + len(timeline.devices) * (LANE + _GAP)
        + links * (LINK_LANE + _GAP / 2)
        + held * (MEMORY_LANE + _GAP)
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
        yield y + LINK_LANE + _GAP / 2, link_lane(ends, links[ends], colors, x_of, y)
        y += LINK_LANE + _GAP / 2
    if len(links) > _MOST_LINKS:
        more = counted(len(links) - _MOST_LINKS, "further link")
        items = [Words(16, y + 5, f"and {more}, less busy", 9, QUIET)]
        y += 14
        yield y, items
    yield y + _GAP, []


def _device_head(
    timeline: Timeline, device: str, color: str, y: float
) -> list[Mark | Words]:
    idle = 1 - timeline.utilization.get(device, 0.0)
    strong = mixed(color, "#000000", 0.25)
    return [
        Words(16, y + 10, shortened(device, 18), 11, strong, bold=True, room=120),
        Words(16, y + 23, f"busy {1 - idle:.0%}", 9, QUIET, room=120),
        Mark(LEFT, y, WIDE, LANE, _IDLE, tip=f"{device} waits"),
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
