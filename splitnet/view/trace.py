"""A timeline as a Chrome trace, for chrome://tracing and https://ui.perfetto.dev."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from splitnet.core.plan import Plan
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import Copy, Timeline
from splitnet.view.style import clean
from splitnet.view.timeline import stacked

__all__ = ["trace", "trace_events"]

_MICRO = 1e6


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
    planned = thing.timeline if isinstance(thing, Plan) else thing
    timelines = {"planned": planned}
    if measured is not None:
        timelines["measured"] = measured
    whole = {
        "displayTimeUnit": "ms",
        "otherData": {"made_by": "splitnet"},
        "traceEvents": list(trace_events(timelines)),
    }
    write_bytes(json.dumps(whole, indent=0).encode(), Path(path), "trace")
    return Path(path)


def trace_events(timelines: Mapping[str, Timeline]) -> Iterator[dict[str, object]]:
    """Make the events, times in microseconds; process n is the nth timeline."""
    for process, (name, timeline) in enumerate(timelines.items(), start=1):
        yield _named("process_name", process, 0, name)
        rows = {device: row for row, device in enumerate(timeline.devices, start=1)}
        for device, row in rows.items():
            yield _named("thread_name", process, row, clean(device))
            yield _sorted(process, row)
        yield from _task_events(timeline, process, rows)
        yield from _copy_events(timeline, process, len(rows))
        yield from _memory_events(timeline, process)


def _named(kind: str, process: int, row: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": process, "tid": row, "args": {"name": name}}


def _sorted(process: int, row: int) -> dict[str, object]:
    return {
        "ph": "M",
        "name": "thread_sort_index",
        "pid": process,
        "tid": row,
        "args": {"sort_index": row},
    }


def _task_events(
    timeline: Timeline, process: int, rows: Mapping[str, int]
) -> Iterator[dict[str, object]]:
    for task in timeline.tasks:
        yield {
            "ph": "X",
            "name": clean(task.part),
            "cat": task.phase,
            "pid": process,
            "tid": rows[task.device],
            "ts": task.start * _MICRO,
            "dur": (task.stop - task.start) * _MICRO,
            "args": {
                "phase": task.phase,
                "microbatch": task.microbatch,
            },
        }


def _copy_events(
    timeline: Timeline, process: int, first: int
) -> Iterator[dict[str, object]]:
    """A row per link; copies of one link that overlap take further rows."""
    links = dict[tuple[str, str], list[Copy]]()
    for copy in timeline.copies:
        links.setdefault((copy.source_device, copy.target_device), []).append(copy)
    for (source, target), copies in links.items():
        rows = stacked(copies)
        for row in range(first + 1, first + 2 + max(row for _, row in rows)):
            yield _named("thread_name", process, row, clean(f"{source} -> {target}"))
            yield _sorted(process, row)
        for copy, row in rows:
            yield _copy_event(copy, process, first + 1 + row)
        first += 1 + max(row for _, row in rows)


def _copy_event(copy: Copy, process: int, row: int) -> dict[str, object]:
    return {
        "ph": "X",
        "name": clean(f"{copy.kind}: {copy.source} -> {copy.target}"),
        "cat": f"transfer,{copy.phase}",
        "pid": process,
        "tid": row,
        "ts": copy.start * _MICRO,
        "dur": (copy.stop - copy.start) * _MICRO,
        "args": {"bytes": copy.bytes, "microbatch": copy.microbatch},
    }


def _memory_events(timeline: Timeline, process: int) -> Iterator[dict[str, object]]:
    for device in timeline.devices:
        for seconds, count in timeline.memory.get(device, ()):
            yield {
                "ph": "C",
                "name": clean(f"memory of {device}"),
                "pid": process,
                "tid": 0,
                "ts": seconds * _MICRO,
                "args": {"bytes": count},
            }
