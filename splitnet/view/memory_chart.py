"""Memory as pictures: stacked bars per device, and lanes over the step."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Memory, Plan
from splitnet.core.timeline import Timeline
from splitnet.view.style import (
    ALARM,
    QUIET,
    Mark,
    Scene,
    Words,
    colors_of,
    mixed,
    percent,
    shortened,
)

__all__ = ["KINDS", "MEMORY_LANE", "memory_lanes", "memory_scene"]

KINDS = ("weights", "gradients", "slots", "activations", "receive_buffers", "workspace")
MEMORY_LANE = 44.0

_LEFT, _WIDE, _RIGHT = 126.0, 740.0, 214.0
_BAR, _ROW = 20.0, 34.0
# Share of white mixed in, and hatching: neighbours differ in at least one.
_SHADES = (
    (0.0, False),
    (0.0, True),
    (0.35, False),
    (0.55, False),
    (0.35, True),
    (0.75, False),
)
_LANE_LEFT, _LANE_WIDE, _LANE_GAP = 150.0, 900.0, 8.0
_NARROW = 2.0
_TOPS = (0.1, 0.25, 0.5, 1.0)


def memory_scene(plan: Plan, *, title: str = "memory per device") -> Scene:
    """Draw each device's peak by kind; all bars have one scale in bytes.

    A limit is a red line; one far beyond the scale is drawn after an axis break.
    """
    colors = colors_of(device.name for device in plan.cluster)
    fullest = max((memory.total for memory in plan.memory.values()), default=0)
    limits = [device.memory_bytes for device in plan.cluster]
    near = [limit for limit in limits if limit <= 2.5 * fullest]
    top = max([fullest, *near, 1]) * 1.04
    items = list(_legend())
    y = 40.0
    for device in plan.cluster:
        memory = plan.memory.get(device.name, Memory())
        color = colors[device.name]
        items += _bar(device.name, memory, device.memory_bytes, color, y, top)
        y += _ROW
    return Scene(_LEFT + _WIDE + _RIGHT, y + 6, title, tuple(items))


def _legend() -> Iterator[Mark | Words]:
    x = 16.0
    for kind, (pale, hatched) in zip(KINDS, _SHADES, strict=True):
        word = _NAMES.get(kind, kind)
        yield Mark(x, 8, 22, 11, mixed("#57606a", "#ffffff", pale), hatched)
        yield Words(x + 28, 13.5, word, 10, QUIET, room=110)
        x += 42 + 5.8 * len(word)
    yield Mark(x + 8, 6, 2, 15, ALARM)
    yield Words(x + 16, 13.5, "limit (after a gap: outside the scale)", 10, QUIET)


_NAMES = {"activations": "saved activations", "receive_buffers": "receive buffers"}


def _bar(
    device: str, memory: Memory, limit: int, color: str, y: float, top: float
) -> Iterator[Mark | Words]:
    strong = mixed(color, "#000000", 0.25)
    middle = y + _BAR / 2
    yield Words(16, middle, shortened(device, 16), 11, strong, bold=True, room=108)
    yield Mark(_LEFT, y, _WIDE, _BAR, "#eef0f2")
    x = _LEFT
    for kind, (pale, hatched) in zip(KINDS, _SHADES, strict=True):
        size = getattr(memory, kind)
        wide = _WIDE * size / top
        if wide > 0.05:
            tip = f"{_NAMES.get(kind, kind)} on {device}: {format_bytes(size)}"
            yield Mark(x, y, wide, _BAR, mixed(color, "#ffffff", pale), hatched, tip)
        x += wide
    far = limit > top
    if far:
        yield Mark(_LEFT + _WIDE - 14, y - 1, 6, _BAR + 2, "#ffffff")
    if limit:
        place = _LEFT + _WIDE * (1 if far else limit / top)
        yield Mark(place - 1, y - 4, 2, _BAR + 8, ALARM)
    over = memory.total > limit
    said = f"{format_bytes(memory.total)} of {format_bytes(limit)}"
    said += f" ({percent(memory.total / limit)})" if limit else ""
    said += ": too much" if over else ""
    ink = ALARM if over else QUIET
    room = _RIGHT - 12
    yield Words(_LEFT + _WIDE + 10, middle, said, 10, ink, bold=over, room=room)


def memory_lanes(
    timeline: Timeline,
    devices: Sequence[str],
    colors: Mapping[str, str],
    limits: Mapping[str, int],
    x_of: Callable[[float], float],
    y: float,
) -> list[Mark | Words]:
    """Bytes in use over the step; all lanes share one scale in per cent of the limit.

    Where limits are unknown, the scale is the largest peak.

    Args:
        timeline: the step.
        devices: whose lanes to draw, from the top.
        colors: by device.
        limits: bytes by device; devices may be missing.
        x_of: seconds to points.
        y: the top of the first lane.
    """
    if not devices:
        return []
    peaks = {device: timeline.peak_bytes[device] for device in devices}
    known = all(limits.get(device) for device in devices)
    whole = {d: limits[d] if known else max(peaks.values()) for d in devices}
    share = max(peaks[d] / whole[d] for d in devices)
    top = next((s for s in _TOPS if share <= 0.95 * s), 1.08 * max(share, 1.0))
    unit = "of each limit" if known else f"of {format_bytes(max(peaks.values()))}"
    words = f"memory, each lane from 0 to {percent(top)} {unit}"
    items: list[Mark | Words] = [Words(16, y + 6, words, 9, QUIET, room=600)]
    y += 18
    for device in devices:
        limit = limits.get(device, 0)
        said = f"peak {format_bytes(peaks[device])}"
        share_text = percent(peaks[device] / limit) if limit else ""
        note = f"{share_text} of {format_bytes(limit)}" if limit else ""
        items += [
            Words(16, y + 10, shortened(device, 20), 9.5, room=134),
            Words(16, y + 23, said, 9, QUIET, room=134),
            Words(16, y + 35, note, 9, QUIET, room=134),
            Mark(_LANE_LEFT, y, _LANE_WIDE, MEMORY_LANE, "#f4f6f8"),
            *_curve(timeline, device, colors[device], whole[device] * top, x_of, y),
        ]
        if known and top >= 1:
            height = y + MEMORY_LANE * (1 - 1 / top)
            dashes = range(0, int(_LANE_WIDE), 12)
            items += [Mark(_LANE_LEFT + at, height, 7, 1.4, ALARM) for at in dashes]
        y += MEMORY_LANE + _LANE_GAP
    return items


def _curve(
    timeline: Timeline,
    device: str,
    color: str,
    top: float,
    x_of: Callable[[float], float],
    y: float,
) -> Iterator[Mark]:
    """The area under one device's bytes in use; `top` is the bytes of a full lane."""
    pale = mixed(color, "#ffffff", 0.45)
    for start, stop, count in _levels(timeline, device, x_of):
        if not count:
            continue
        x = x_of(start)
        wide = min(x_of(stop) - x + 0.6, _LANE_LEFT + _LANE_WIDE - x)  # no seams
        tall = MEMORY_LANE * count / top
        base = y + MEMORY_LANE - tall
        tip = f"{format_bytes(count)} on {device} from {format_seconds(start)}"
        yield Mark(x, base, wide, tall, pale, tip=tip)
        yield Mark(x, base, wide, 1.2, color)


def _levels(
    timeline: Timeline, device: str, x_of: Callable[[float], float]
) -> list[tuple[float, float, int]]:
    """Intervals of one level; those too short to be seen keep the highest."""
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
            if count == level or x_of(stop) - x_of(begun) < _NARROW:
                found[-1] = (begun, stop, max(count, level))
                continue
        found.append((start, stop, count))
    return found
