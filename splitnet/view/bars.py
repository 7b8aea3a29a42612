"""Bars of a timeline: one per call that can be seen, one for many that cannot."""

import re
from collections.abc import Callable, Sequence

from splitnet.core.timeline import Task
from splitnet.core.units import format_seconds
from splitnet.view.colors import mixed, readable_on
from splitnet.view.scene import Mark, Words
from splitnet.view.words import clean, counted, shortened

__all__ = ["LANE", "NARROW", "task_marks"]

LANE = 30.0
NARROW = 2.0
_POINTS_PER_LETTER = 5.6
_NUMBER = re.compile(r"\d+$")

Scale = Callable[[float], float]
"""Seconds to points."""


def task_marks(
    tasks: Sequence[Task], color: str, x_of: Scale, y: float
) -> list[Mark | Words]:
    """Rectangles for tasks; neighbours too narrow to be seen become one."""
    items: list[Mark | Words] = []
    pipelined = any(task.microbatch for task in tasks)
    for group in _coalesced(tasks, x_of):
        x, right = x_of(group[0].start), x_of(group[-1].stop)
        phase, phases = _phase_of(group), _phases_of(group)
        inset = 0.4 if right - x > 3 else 0.0
        items.append(
            Mark(
                x + inset,
                y + 2,
                max(right - x - 2 * inset, 0.5),
                LANE - 4,
                mixed(color, "#000000", 0.55) if "update" in phases else color,
                hatched="backward" in phases,
                tip=_task_tip(group),
            )
        )
        if len({(task.part, task.microbatch) for task in group}) == 1:
            first = group[0]
            name = str(first.microbatch) if pipelined else first.part
            items += _bar_name(name, phase, color, x, right, y)
    return items


def _phase_of(group: Sequence[Task]) -> str:
    """The phase in which a group spends most of its time."""
    spent = _spent(group)
    return max(spent, key=lambda phase: spent[phase])


def _phases_of(group: Sequence[Task]) -> set[str]:
    """The phases that a bar shows: those with a quarter of its time and more."""
    spent = _spent(group)
    return {phase for phase, s in spent.items() if 4 * s >= sum(spent.values())}


def _spent(group: Sequence[Task]) -> dict[str, float]:
    """Seconds of each phase."""
    spent: dict[str, float] = {}
    for task in group:
        spent[task.phase] = spent.get(task.phase, 0.0) + task.stop - task.start
    return spent


def _bar_name(
    name: str, phase: str, color: str, x: float, right: float, y: float
) -> list[Mark | Words]:
    """The name in the middle of its bar, if there is room; on hatching, on a plate."""
    letters = int((right - x - 6) / _POINTS_PER_LETTER)
    text = shortened(name, letters) if letters > 7 else _ending(name, letters)
    if not text:
        return []
    middle = (x + right) / 2
    half = _POINTS_PER_LETTER * len(text) / 2 + 3
    ground = {
        "forward": color,
        "backward": mixed(color, "#ffffff", 0.62),
        "update": mixed(color, "#000000", 0.55),
    }[phase]
    plate = Mark(middle - half, y + 8, 2 * half, LANE - 16, ground, radius=3)
    words = Words(
        middle,
        y + LANE / 2,
        text,
        9,
        readable_on(ground),
        align="middle",
        room=right - x,
    )
    return [plate, words] if phase == "backward" else [words]


def _ending(name: str, letters: int) -> str:
    """A short name, or its number alone; nothing if neither fits.

    >>> _ending("tower_12", 5), _ending("head", 5), _ending("decoder", 5)
    ('12', 'head', '')
    """
    name = clean(name)
    if len(name) <= letters:
        return name
    number = _NUMBER.search(name)
    return number[0] if number and len(number[0]) <= letters else ""


def _coalesced(tasks: Sequence[Task], x_of: Scale) -> list[list[Task]]:
    """Join a part's calls in a row, then neighbours that are too narrow to be seen."""
    parts: list[list[Task]] = []
    for task in sorted(tasks, key=lambda task: (task.start, task.stop)):
        if (
            parts
            and _adjoins(parts[-1], task, x_of)
            and _belongs(parts[-1], task, x_of)
        ):
            parts[-1].append(task)
        else:
            parts.append([task])
    groups: list[list[Task]] = []
    wide = True
    for group in parts:
        narrow = x_of(group[-1].stop) - x_of(group[0].start) < 2 * NARROW
        joins = bool(groups) and narrow and not wide
        if joins and _adjoins(groups[-1], group[0], x_of):
            forward = groups[-1][-1].phase == "forward"
            if forward == (group[0].phase == "forward"):
                groups[-1] += group
                continue
        groups.append(list(group))
        wide = not narrow
    return groups


def _belongs(group: Sequence[Task], task: Task, x_of: Scale) -> bool:
    """Whether a task is of the same part and phase; thin updates do not cut a bar."""
    last = group[-1]
    if (last.part, last.microbatch) != (task.part, task.microbatch):
        return False
    if task.phase == _phase_of(group):
        return True
    thin = x_of(task.stop) - x_of(task.start) < NARROW
    return thin and "forward" not in (task.phase, last.phase)


def _adjoins(group: Sequence[Task], task: Task, x_of: Scale) -> bool:
    return x_of(task.start) - x_of(group[-1].stop) < 0.5


def _task_tip(group: Sequence[Task]) -> str:
    first, last = group[0], group[-1]
    parts = list(dict.fromkeys(task.part for task in group))
    phases = " and ".join(dict.fromkeys(task.phase for task in group))
    head = parts[0] if len(parts) == 1 else f"{parts[0]} … {parts[-1]}"
    if len(group) > 1:
        head += f", {counted(len(group), 'call')}"
    elif first.call != first.part:
        head += f": {first.call}"
    micro = f", micro-batch {first.microbatch}" if first.microbatch else ""
    spent = format_seconds(last.stop - first.start)
    return (
        f"{head}\n{phases} on {first.device}{micro}\n"
        f"{spent}, from {format_seconds(first.start)} to {format_seconds(last.stop)}"
    )
