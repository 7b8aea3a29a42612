"""A timeline as plain text: a lane per device, a letter per stretch of time."""

from splitnet.core.timeline import PHASES, Timeline
from splitnet.core.units import format_seconds

__all__ = ["chart"]


def chart(timeline: Timeline, *, width: int = 72) -> str:
    """Write a timeline as text: a lane per device, a letter per stretch of time.

    F is forward, B backward, U update; a dot is waiting; `~` marks the devices that a
    transfer leaves or reaches while they wait. Times are seconds since the step began.
    """
    whole = timeline.seconds
    if not whole:
        return "nothing runs"
    names = max(len(device) for device in timeline.devices)
    lines = []
    for device in timeline.devices:
        lane = _lane(timeline, device, width)
        idle = 1 - timeline.utilization[device]
        lines.append(f"{device.ljust(names)}  {lane}  {1 - idle:>4.0%} busy")
    scale = format_seconds(whole)
    lines.append(" " * names + "  0" + scale.rjust(width - 1))
    lines.append("F forward  B backward  U update  ~ transfer  . waiting")
    return "\n".join(lines)


def _lane(timeline: Timeline, device: str, size: int) -> str:
    """What a device does most in each of `size` equal stretches of the step."""
    letters = dict(zip(PHASES, "FBU", strict=True))
    spent: list[dict[str, float]] = [{} for _ in range(size)]
    stretch = timeline.seconds / size
    for task in timeline.tasks:
        if task.device == device:
            _spread(spent, letters[task.phase], task.start, task.stop, stretch)
    for copy in timeline.copies:
        if device in (copy.source_device, copy.target_device):
            _spread(spent, "~", copy.start, copy.stop, stretch)
    lane = []
    for cell in spent:
        work = {letter: cell[letter] for letter in "FBU" if letter in cell}
        waits = sum(work.values()) < stretch / 2
        if waits and "~" in cell:
            lane.append("~")
        else:
            lane.append(max(work, key=work.__getitem__) if work else ".")
    return "".join(lane)


def _spread(
    spent: list[dict[str, float]], letter: str, start: float, stop: float, size: float
) -> None:
    first = min(int(start / size), len(spent) - 1)
    last = min(int(stop / size), len(spent) - 1)
    for cell in range(first, last + 1):
        shared = min(stop, (cell + 1) * size) - max(start, cell * size)
        if shared > 0:
            spent[cell][letter] = spent[cell].get(letter, 0.0) + shared
