"""The Chrome trace: valid, complete, in microseconds."""

import json
from pathlib import Path
from typing import Any

import pytest

from splitnet.core.errors import SplitnetError
from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.trace import trace
from tests.view import plans


def events(path: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in a trace file."""
    found = json.loads(path.read_text())["traceEvents"]
    return [event for event in found if event["ph"] == kind]


def test_trace_has_an_event_per_task_and_per_copy(tmp_path: Path) -> None:
    """Nothing that the timeline holds is missing."""
    plan = plans.siamese()
    spans = events(trace(plan, tmp_path / "t.json"), "X")
    assert len(spans) == len(plan.timeline.tasks) + len(plan.timeline.copies)


def test_trace_counts_in_microseconds(tmp_path: Path) -> None:
    """A task of 32.01 ms lasts 32010."""
    path = trace(plans.siamese(), tmp_path / "t.json")
    (left,) = [
        e for e in events(path, "X") if e["name"] == "left" and e["cat"] == "forward"
    ]
    assert left["dur"] == pytest.approx(32010)


def test_trace_names_a_row_per_device_and_link(tmp_path: Path) -> None:
    """Viewers show names, not numbers."""
    path = trace(plans.siamese(), tmp_path / "t.json")
    names = {e["args"]["name"] for e in events(path, "M") if e["name"] == "thread_name"}
    assert {"gpu:0", "gpu:1", "cpu:0", "cpu:0 -> gpu:0", "gpu:0 -> cpu:0"} <= names


def test_trace_never_overlaps_two_spans_of_one_row(tmp_path: Path) -> None:
    """Copies that share a link at the same time take rows of their own."""
    copies = tuple(
        Copy("a", "b", "gpu:0", "gpu:1", "activation", "forward", 8, n, n + 2.5)
        for n in range(4)
    )
    task = Task("a", "gpu:0", "forward", 0.0, 1.0)
    path = trace(Timeline((task,), copies, ("gpu:0", "gpu:1"), {}), tmp_path / "t.json")
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in events(path, "X"):
        rows.setdefault(event["tid"], []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    for spans in rows.values():
        spans.sort()
        assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False))


def test_trace_draws_memory_as_a_counter(tmp_path: Path) -> None:
    """The highest value is the device's peak."""
    plan = plans.siamese()
    counters = events(trace(plan, tmp_path / "t.json"), "C")
    highest = max(
        e["args"]["bytes"] for e in counters if e["name"] == "memory of gpu:0"
    )
    assert highest == plan.timeline.peak_bytes["gpu:0"]


def test_trace_puts_the_measured_step_beside_the_planned(tmp_path: Path) -> None:
    """Two processes, named."""
    plan = plans.siamese()
    path = trace(plan.timeline, tmp_path / "t.json", measured=plan.timeline)
    names = [
        e["args"]["name"] for e in events(path, "M") if e["name"] == "process_name"
    ]
    assert names == ["planned", "measured"]


def test_trace_says_when_it_cannot_write(tmp_path: Path) -> None:
    """A folder that is not there is named."""
    with pytest.raises(SplitnetError, match="cannot write"):
        trace(plans.one(), tmp_path / "nowhere" / "t.json")
