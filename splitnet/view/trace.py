"""A timeline as a Chrome trace, for chrome://tracing and https://ui.perfetto.dev."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from splitnet.core.plan import Plan
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.style import clean
from splitnet.view.timeline import stacked

__all__ = ["trace", "trace_events"]

Event = dict[str, object]


def trace(
    thing: Plan | Timeline,
    path: str | os.PathLike[str],
    *,
    measured: Timeline | None = None,
) -> Path:
    """Write a timeline as trace-event JSON, completely or not at all.

    A row per device and per link, a curve of bytes in use per device. `measured`, a
    timeline of the same step as it ran, becomes a second process beside the planned.

    Raises:
        SplitnetError: the file cannot be written.
    """
    timelines = {"planned": thing.timeline if isinstance(thing, Plan) else thing}
    if measured is not None:
        timelines["measured"] = measured
    whole = {
        "displayTimeUnit": "ms",
        "otherData": {"made_by": "splitnet"},
        "traceEvents": list(trace_events(timelines)),
    }
    write_bytes(json.dumps(whole, indent=0).encode(), Path(path), "trace")
    return Path(path)


def trace_events(timelines: Mapping[str, Timeline]) -> Iterator[Event]:
    """Make the events, times in microseconds; process n is the nth timeline."""
    for process, (name, timeline) in enumerate(timelines.items(), start=1):
        yield _meta("process_name", process, 0, name=name)
        rows = {device: row for row, device in enumerate(timeline.devices, start=1)}
        for device, row in rows.items():
            yield from _row(process, row, device)
        for task in timeline.tasks:
            row, phase = rows[task.device], task.phase
            yield _span(task, task.part, phase, process, row, phase=phase)
        yield from _copy_events(timeline, process, len(rows))
        for device in timeline.devices:
            for seconds, count in timeline.memory.get(device, ()):
                yield {
                    "ph": "C",
                    "name": clean(f"memory of {device}"),
                    "pid": process,
                    "tid": 0,
                    "ts": seconds * 1e6,
                    "args": {"bytes": count},
                }


def _copy_events(timeline: Timeline, process: int, first: int) -> Iterator[Event]:
    """A row per link; copies of one link that overlap take further rows."""
    links: dict[tuple[str, str], list[Copy]] = {}
    for copy in timeline.copies:
        links.setdefault((copy.source_device, copy.target_device), []).append(copy)
    for (source, target), copies in links.items():
        rows = stacked(copies)
        last = first + 1 + max(row for _, row in rows)
        for row in range(first + 1, last + 1):
            yield from _row(process, row, f"{source} -> {target}")
        for copy, row in rows:
            name = f"{copy.kind}: {copy.source} -> {copy.target}"
            kind, at = f"transfer,{copy.phase}", first + 1 + row
            yield _span(copy, name, kind, process, at, bytes=copy.bytes)
        first = last


def _meta(kind: str, process: int, row: int, **values: object) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": values}


def _row(process: int, row: int, name: str) -> Iterator[Event]:
    """Name a row, and keep the rows in their order."""
    yield _meta("thread_name", process, row, name=clean(name))
    yield _meta("thread_sort_index", process, row, sort_index=row)


def _span(
    thing: Task | Copy, name: str, kind: str, process: int, row: int, **facts: int | str
) -> Event:
    return {
        "ph": "X",
        "name": clean(name),
        "cat": kind,
        "pid": process,
        "tid": row,
        "ts": thing.start * 1e6,
        "dur": (thing.stop - thing.start) * 1e6,
        "args": facts | {"microbatch": thing.microbatch},
    }
