"""The lanes below the devices of a timeline: links, and memory over time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from splitnet.core.timeline import Copy, Timeline, stacked
from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.bars import NARROW, Scale
from splitnet.view.colors import QUIET, mixed
from splitnet.view.scene import Mark, Words
from splitnet.view.words import shortened

__all__ = ["LEFT", "LINK_LANE", "MEMORY_LANE", "WIDE", "link_lane", "memory_lane"]

LEFT, WIDE = 150.0, 900.0
LINK_LANE, MEMORY_LANE = 14.0, 44.0
_BARS = 8.0  # points of a link's lane that bars fill
_MOST_ROWS = 4
_LIMIT = "#b3261e"


def link_lane(
    ends: tuple[str, str],
    copies: Sequence[Copy],
    colors: Mapping[str, str],
    x_of: Scale,
    y: float,
) -> list[Mark | Words]:
    """Draw a link's copies as thin bars, with the bytes of the whole step.

    Copies that overlap lie in rows of their own, as far as those can be told apart.
    """
    source, target = ends
    total = sum(copy.bytes for copy in copies)
    items: list[Mark | Words] = [
        Words(16, y + 7, shortened(f"{source} → {target}", 24), 9, room=134),
        Mark(LEFT, y, WIDE, LINK_LANE, "#f4f6f8"),
    ]
    rows: list[list[Copy]] = [[]]
    for copy, row in stacked(copies):
        while len(rows) <= min(row, _MOST_ROWS - 1):
            rows.append([])
        rows[min(row, _MOST_ROWS - 1)].append(copy)
    high = _BARS / len(rows)
    top = y + (LINK_LANE - _BARS) / 2
    for number, members in enumerate(rows):
        for group in _coalesced(members, x_of):
            bar = _copy_bar(group, colors.get(source, QUIET), x_of)
            items.append(replace(bar, y=top + number * high, height=high))
    items.append(
        Words(
            LEFT + WIDE + 6,
            y + 7,
            format_bytes(total),
            8,
            QUIET,
            room=50,
        )
    )
    return items


def _copy_bar(group: Sequence[Copy], color: str, x_of: Scale) -> Mark:
    """A bar over the time of a group, at no height yet."""
    x = x_of(group[0].start)
    wide = max(x_of(max(copy.stop for copy in group)) - x, 0.8)
    back = "gradient" in group[0].kind
    return Mark(x, 0.0, wide, 0.0, color, hatched=back, tip=_copy_tip(group))


def _coalesced(copies: Sequence[Copy], x_of: Scale) -> list[list[Copy]]:
    """Join neighbours of one direction that are too narrow to be seen."""
    groups: list[list[Copy]] = []
    for copy in sorted(copies, key=lambda copy: (copy.start, copy.stop)):
        narrow = x_of(copy.stop) - x_of(copy.start) < NARROW
        if groups and narrow:
            last = groups[-1][-1]
            near = x_of(copy.start) - x_of(last.stop) < 0.5
            thin = x_of(last.stop) - x_of(last.start) < NARROW
            back = "gradient" in copy.kind
            if near and thin and back == ("gradient" in last.kind):
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


def memory_lane(
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
        Words(16, y + 10, f"memory of {shortened(device, 16)}", 9.5, room=134),
        Words(16, y + 23, said, 9, QUIET, room=134),
        Mark(LEFT, y, WIDE, MEMORY_LANE, "#f4f6f8"),
    ]
    if limit:
        items.append(Words(16, y + 35, f"of {format_bytes(limit)}", 9, QUIET, room=134))
    for start, stop, count in _levels(timeline, device, x_of):
        x, right = x_of(start), x_of(stop)
        tall = MEMORY_LANE * count / top
        if count:
            tip = f"{format_bytes(count)} on {device} from {format_seconds(start)}"
            base = y + MEMORY_LANE - tall
            pale = mixed(color, "#ffffff", 0.45)
            wide = min(right - x + 0.6, LEFT + WIDE - x)  # no seam to the next
            items.append(Mark(x, base, wide, tall, pale, tip=tip))
            items.append(Mark(x, base, wide, 1.2, color))
    if near:
        height = y + MEMORY_LANE * (1 - limit / top)
        for dash in range(0, int(WIDE), 12):
            items.append(Mark(LEFT + dash, height, 7, 1.4, _LIMIT))
        items.append(
            Words(
                LEFT + WIDE - 4,
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
