"""The Chrome trace: valid, complete, in microseconds."""

import json
from itertools import pairwise

import pytest

from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.timeline import trace
from tests.view import plans


class Events(list):
    def __init__(self, path):
        super().__init__(json.loads(path.read_text())["traceEvents"])

    def of(self, kind):
        return [event for event in self if event["ph"] == kind]

    def names(self, kind):
        return [e["args"]["name"] for e in self.of("M") if e["name"] == kind]


def test_trace_has_an_event_per_task_and_per_copy(tmp_path):
    """In microseconds, in named rows; the measured step is a process of its own."""
    plan = plans.siamese()
    step = plan.timeline
    found = Events(trace(plan, tmp_path / "t.json"))
    assert len(found.of("X")) == len(step.tasks) + len(step.copies)
    (left,) = [e for e in found.of("X") if (e["name"], e["cat"]) == ("left", "forward")]
    assert left["dur"] == pytest.approx(32010)
    rows = {"gpu:0", "gpu:1", "cpu:0", "cpu:0 -> gpu:0", "gpu:0 -> cpu:0"}
    assert rows <= set(found.names("thread_name"))
    used = [e["args"]["bytes"] for e in found.of("C") if e["name"].endswith(" gpu:0")]
    assert max(used) == step.peak_bytes["gpu:0"]
    both = Events(trace(step, tmp_path / "both.json", measured=step))
    assert both.names("process_name") == ["planned", "measured"]


def test_trace_has_a_process_per_host_and_a_row_per_overlap(tmp_path):
    """Copies of one link that overlap take rows of their own, at their source."""
    ends = ("worker:0/gpu:0", "worker:1/gpu:0")
    how = (*ends, "activation", "forward", 8)
    copies = tuple(Copy("a", "b", *how, n, n + 2.5) for n in range(4))
    tasks = tuple(
        Task(part, device, "forward", start, start + 1.0)
        for part, device, start in zip("ab", ends, (0.0, 2.0))
    )
    found = Events(trace(Timeline(tasks, copies, ends, {}), tmp_path / "t.json"))
    assert found.names("process_name") == ["planned, worker:0", "planned, worker:1"]
    spans = sorted(found.of("X"), key=lambda event: (event["tid"], event["ts"]))
    where = {event["name"]: event["pid"] for event in spans}
    assert where == {"a": 1, "b": 2, "activation: a -> b": 1}
    for one, two in pairwise(event for event in spans if event["pid"] == 1):
        assert one["tid"] < two["tid"] or one["ts"] + one["dur"] <= two["ts"]
