"""The Chrome trace: valid, complete, in microseconds."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.render import trace
from tests.view import plans


def events(path: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in a trace file."""
    found = json.loads(path.read_text())["traceEvents"]
    return [event for event in found if event["ph"] == kind]


def names(path: Path, kind: str) -> list[str]:
    """The names of rows or processes."""
    return [e["args"]["name"] for e in events(path, "M") if e["name"] == kind]


def test_trace_has_an_event_per_task_and_per_copy(tmp_path: Path) -> None:
    """In microseconds, in named rows; the memory's highest value is the peak."""
    plan = plans.siamese()
    path = trace(plan, tmp_path / "t.json")
    spans, counters = events(path, "X"), events(path, "C")
    assert len(spans) == len(plan.timeline.tasks) + len(plan.timeline.copies)
    (left,) = [e for e in spans if (e["name"], e["cat"]) == ("left", "forward")]
    assert left["dur"] == pytest.approx(32010)
    rows = {"gpu:0", "gpu:1", "cpu:0", "cpu:0 -> gpu:0", "gpu:0 -> cpu:0"}
    assert rows <= set(names(path, "thread_name"))
    used = [e["args"]["bytes"] for e in counters if e["name"] == "memory of gpu:0"]
    assert max(used) == plan.timeline.peak_bytes["gpu:0"]


def test_trace_never_overlaps_two_spans_of_one_row(tmp_path: Path) -> None:
    """Copies that share a link at the same time take rows of their own."""
    copies = tuple(
        Copy("a", "b", "gpu:0", "gpu:1", "activation", "forward", 8, n, n + 2.5)
        for n in range(4)
    )
    task = Task("a", "gpu:0", "forward", 0.0, 1.0)
    path = trace(Timeline((task,), copies, ("gpu:0", "gpu:1"), {}), tmp_path / "t.json")
    spans = sorted(events(path, "X"), key=lambda event: (event["tid"], event["ts"]))
    for one, two in pairwise(spans):
        assert one["tid"] < two["tid"] or one["ts"] + one["dur"] <= two["ts"]


def test_trace_puts_the_measured_step_beside_the_planned(tmp_path: Path) -> None:
    """Two processes, named."""
    step = plans.siamese().timeline
    path = trace(step, tmp_path / "t.json", measured=step)
    assert names(path, "process_name") == ["planned", "measured"]


def test_trace_has_a_process_per_host(tmp_path: Path) -> None:
    """Each with its own devices; a copy is in the process of its source."""
    devices = ("worker:0/gpu:0", "worker:1/gpu:0")
    copy = Copy("a", "b", *devices, "activation", "forward", 8, 1.0, 2.0)
    tasks = (
        Task("a", devices[0], "forward", 0.0, 1.0),
        Task("b", devices[1], "forward", 2.0, 3.0),
    )
    path = trace(Timeline(tasks, (copy,), devices, {}), tmp_path / "t.json")
    assert names(path, "process_name") == ["planned, worker:0", "planned, worker:1"]
    where = {event["name"]: event["pid"] for event in events(path, "X")}
    assert where == {"a": 1, "b": 2, "activation: a -> b": 1}
