"""The chart of a step, with its critical path, and its Chrome trace."""

import json
import re
from itertools import combinations, pairwise
from types import SimpleNamespace

import pygraphviz
import pytest

from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.timeline import dot_of_steps, tick_seconds, trace
from tests.view import plans


class Chart:
    """A chart as Graphviz reads it: its texts, and its rectangles, in points."""

    def __init__(self, timelines):
        its = timelines if isinstance(timelines, dict) else {"": timelines}
        self.dot, self.marks, self.texts = dot_of_steps(its), [], {}  # with their y
        graph = pygraphviz.AGraph(string=self.dot)  # nodes do not keep it alive
        for look in (node.attr for node in graph.nodes()):
            x, y = map(float, look["pos"].split(","))
            if look["label"]:
                self.texts[re.sub(r"<[^>]*>", "", look["label"])] = -y
                continue
            wide, tall = (72 * float(look[side]) for side in ("width", "height"))
            its = {"tip": look["tooltip"], "fill": look["fillcolor"], "wide": wide}
            its |= {"x": x - wide / 2, "right": x + wide / 2}
            its |= {"y": -y - tall / 2, "bottom": -y + tall / 2}
            self.marks.append(SimpleNamespace(outline=look["penwidth"] == "1", **its))

    def tipped(self, part):
        return [mark for mark in self.marks if part in mark.tip]


def task(part, start, stop, gpu=0, phase="forward", microbatch=0):
    return Task(part, f"gpu:{gpu}", phase, start, stop, microbatch)


def step(*tasks, copies=(), devices=2):
    return Chart(Timeline(tasks, copies, tuple(f"gpu:{n}" for n in range(devices)), {}))


def copy_of(start, stop, source="a", ends="01", kind="activation", target="b"):
    ways = (f"gpu:{n}" for n in ends)
    return Copy(source, target, *ways, kind, "forward", 1024, start, stop)


A = task("a", 0.0, 1.0)


def test_bars_are_to_scale_and_phases_apart():
    """Widths are times; forward is plain, backward pale with an edge, update dark."""
    back, change = task("a", 1, 3, phase="backward"), task("a", 3, 4, phase="update")
    shown = step(A, back, change, task("b", 1, 2, 1))
    forward, backward, update = shown.tipped("of a on")
    light = [int(one.fill[1:3], 16) for one in (update, forward, backward)]
    assert [one.outline for one in (update, forward, backward)] == [False, False, True]
    assert light == sorted(light)
    assert backward.wide == pytest.approx(2 * forward.wide, rel=0.02)
    assert shown.tipped("of b on")[0].x == pytest.approx(forward.right, abs=1)
    assert {"forward", "backward"} & {*step(A).texts} == {"forward"}


def test_each_link_has_a_lane_with_its_bytes():
    copies = copy_of(0, 1), copy_of(2, 3, "b", "10", "gradient")
    shown = step(task("a", 0, 3), copies=copies)
    (there,), (back,) = shown.tipped("the activation of a"), shown.tipped("gradient of")
    assert (there.outline, back.outline) == (False, True)
    assert {"gpu:0 → gpu:1", "1.00 KiB"} <= set(shown.texts)
    ends = "worker:10/gpu:1", "worker:11/gpu:0"
    far = Copy("a", "b", *ends, "activation", "forward", 1024, 0.0, 1.0)
    shown = Chart(Timeline((A,), (far,), (A.device, *ends), {}))
    assert " → ".join(ends) in shown.texts


@pytest.mark.parametrize(
    ("tasks", "seen", "hidden"),
    [
        ([task("s", n, n + 1, microbatch=n) for n in range(4)], "#0 #1 #2 #3", "s 0"),
        ([task("编码器", 0, 98), task("tower_12", 98, 100)], "编码器", "12 2 tower_12"),
        ([task("M" * 99, 0, 20), task("b", 20, 99)], f"{'M' * 11}…{'M' * 10} b", "M"),
    ],
)
def test_bars_are_named_wholly_or_not_at_all(tasks, seen, hidden):
    """In their middle; a pipeline's bars bear their micro-batch, none half a name."""
    shown = step(*tasks)
    assert set(seen.split()) <= set(shown.texts)
    assert not set(hidden.split()) & set(shown.texts)
    assert {*re.findall('"CENTER"><F[^>]*>([^<]*)', shown.dot)} >= {*seen.split()}


def test_a_micro_batch_of_a_stage_is_one_bar_and_updates_have_no_number():
    """Two parts of two micro-batches, and their updates: three bars, two numbers."""
    tasks = [task("ab"[n % 2], n, n + 1, microbatch=n // 2) for n in range(4)]
    tasks += [task("ab"[n], 4 + n, 5 + n, phase="update") for n in range(2)]
    shown = step(*tasks)
    assert len(shown.tipped(" and 1 more on gpu:0")) == 3
    assert [text for text in shown.texts if text.startswith("#")] == ["#0", "#1"]


def test_planned_and_measured_have_one_scale():
    tasks = ((task("a", 0, stop),) for stop in (1.0, 2.0))
    one, two = (Timeline(its, (), ("gpu:0",), {}) for its in tasks)
    shown = Chart({"planned": one, "measured": two})
    planned, measured = shown.tipped("of a on")
    assert measured.wide == pytest.approx(2 * planned.wide, rel=0.01)
    assert "measured: one step, 2.00 s" in shown.texts


def test_bars_too_narrow_to_see_are_joined():
    shown = Chart(plans.chain(300).timeline)
    assert len(shown.dot) < 300_000
    joined = [mark for mark in shown.tipped(" more on gpu:") if "path" not in mark.tip]
    assert 0 < len(joined) < 40


def test_busy_links_and_unlike_devices_have_lanes_and_idle_devices_a_line():
    """Twelve links are drawn, eight counted; idle devices take one line, no lane."""
    ends = [f"{a}{b}" for a in range(5) for b in range(5) if a != b]
    copies = tuple(copy_of(0.0, 1.0 + int(both[0]), "a", both) for both in ends)
    shown = step(task("a", 0, 9), copies=copies, devices=5)
    texts = shown.texts
    assert sum("→" in text for text in texts) == 12
    assert "and 8 more links" in texts
    below = texts["idle throughout: gpu:1, gpu:2, gpu:3, gpu:4"]
    assert below > max(m.bottom for m in shown.marks if m.wide < 1)  # of the grid
    assert "one step, 0 s" in step().texts  # no division by zero
    texts = Chart(plans.towers(64, 32).timeline).texts
    assert "gpu:1 … gpu:31 (31)" in texts
    assert sum(text.startswith("computing") for text in texts) == 3


def test_the_critical_path_goes_through_bars_and_copies():
    """One red line: as long as the step, with the copy, and without a break."""
    tasks = A, task("c", 1, 2.5), task("b", 2, 4, 1)
    shown = step(*tasks, copies=(copy_of(1.0, 2.0),))
    path = shown.tipped("critical path")
    assert [mark.tip.split(": ", 1)[1].split(" (")[0] for mark in path] == [
        "the forward of a on gpu:0",
        "the activation of a, 1.00 KiB, gpu:0 → gpu:1",
        "the forward of b on gpu:1",
    ]
    for one, two in pairwise(path):
        assert one.right == pytest.approx(two.x, abs=0.05)
    (bar,) = [mark for mark in shown.tipped("of b on") if mark not in path]
    assert path[-1].right == pytest.approx(bar.right, abs=1)
    assert bar.y < path[-1].y < bar.bottom
    words = "critical path: gpu:1 2.00 s, gpu:0 1.00 s, copies 1.00 s"
    assert f"one step, 4.00 s; {words}" in shown.texts
    others = (task("d", 0, 1 / n, n) for n in range(2, 17))
    many = step(*tasks, *others, copies=(copy_of(1.0, 2.0),), devices=17)
    assert len(many.tipped("critical path")) == 2  # not to the link, far below


def test_gaps_say_what_a_device_waits_for():
    """gpu:1 waits 1 s for a, then 1 s for its copy; then it computes until the end."""
    shown = step(A, task("b", 2, 4, 1), copies=(copy_of(1.0, 2.0),))
    assert {
        "computing 25 %, copies 0 %, others 75 %",
        "computing 50 %, copies 25 %, others 25 %",
    } <= set(shown.texts)
    (work,) = shown.tipped("gpu:1 waits for the forward of a on gpu:0")
    (wait,) = shown.tipped("gpu:1 waits for the activation of a")
    assert wait.x == pytest.approx(work.right, abs=0.5)
    assert wait.fill != work.fill
    alone = step(A, devices=1)
    assert "computing 100 %" in alone.texts
    assert not alone.tipped("critical path")


@pytest.mark.parametrize("seconds", [1e-9, 3.3e-6, 0.0316, 1.0, 7.2, 5000.0])
def test_ticks_are_few_round_and_inside_and_have_one_unit(seconds):
    """Between three and ten, the last within the step; 0.2 ms in a step of 1.2 ms."""
    ticks = tick_seconds(seconds)
    assert 3 <= len(ticks) <= 10
    assert ticks[0] == 0.0
    assert ticks[-1] <= seconds * (1 + 1e-9)
    shown = step(task("a", 0, 1.2e-3)).texts
    assert {"0 ms", "0.2 ms", "1.2 ms"} <= set(shown)
    assert not [text for text in shown if text.endswith(" us")]


def test_copies_that_overlap_are_below_each_other():
    """All of them can be seen, and the lane is no higher than another."""
    copies = tuple(copy_of(n, n + 2.5, f"p{n}") for n in range(6))
    bars = step(task("a", 0, 9), copies=copies).tipped("the activation of p")
    bars = [bar for bar in bars if "critical" not in bar.tip and "wait" not in bar.tip]
    assert len(bars) == len(copies)
    for one, two in combinations(bars, 2):
        apart = one.bottom <= two.y + 0.1 or two.bottom <= one.y + 0.1
        assert apart or one.right <= two.x or two.right <= one.x
    assert max(bar.bottom for bar in bars) - min(bar.y for bar in bars) <= 8.1


class Events(list):
    def __init__(self, path):
        super().__init__(json.loads(path.read_text())["traceEvents"])

    def of(self, kind):
        return [event for event in self if event["ph"] == kind]

    def names(self, kind):
        return [e["args"]["name"] for e in self.of("M") if e["name"] == kind]


def test_trace_has_an_event_per_task_and_per_copy(tmp_path):
    """In microseconds, in named rows; the measured step is a process of its own."""
    plan, step = plans.siamese(), plans.siamese().timeline
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
    at = zip("ab", ends, (0.0, 2.0))
    tasks = tuple(Task(*its, "forward", start, start + 1.0) for *its, start in at)
    found = Events(trace(Timeline(tasks, copies, ends, {}), tmp_path / "t.json"))
    assert found.names("process_name") == ["planned, worker:0", "planned, worker:1"]
    spans = sorted(found.of("X"), key=lambda event: (event["tid"], event["ts"]))
    where = {event["name"]: event["pid"] for event in spans}
    assert where == {"a": 1, "b": 2, "activation: a -> b": 1}
    for one, two in pairwise(event for event in spans if event["pid"] == 1):
        assert one["tid"] < two["tid"] or one["ts"] + one["dur"] <= two["ts"]
