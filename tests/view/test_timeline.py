"""The chart of a step: bars, links, waits, and the critical path."""

import re
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import pygraphviz
import pytest

from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.timeline import dot_of_steps, tick_seconds
from tests.view import plans


class Mark(NamedTuple):
    """A rectangle of a chart, from its upper left corner, in points."""

    tip: str
    fill: str
    outline: bool
    x: float
    y: float
    right: float
    bottom: float


class Chart:
    """A chart as Graphviz reads it: its rectangles and its texts."""

    def __init__(self, timelines: Any) -> None:
        its = timelines if isinstance(timelines, dict) else {"": timelines}
        self.dot = dot_of_steps(its)
        self.marks: list[Mark] = []
        self.texts: list[str] = []
        graph = pygraphviz.AGraph(string=self.dot)  # nodes do not keep it alive
        for node in graph.nodes():
            look = node.attr
            if look["label"]:
                self.texts.append(re.sub(r"<[^>]*>", "", look["label"]))
                continue
            x, y = map(float, look["pos"].split(","))
            wide, tall = (36 * float(look[side]) for side in ("width", "height"))
            edges = x - wide, -y - tall, x + wide, -y + tall
            outline = look["penwidth"] == "1"
            self.marks.append(Mark(look["tooltip"], look["fillcolor"], outline, *edges))

    def tipped(self, part: str) -> list[Mark]:
        """The rectangles whose tooltip has these words."""
        return [mark for mark in self.marks if part in mark.tip]


def step(*tasks: Task, copies: tuple[Copy, ...] = (), devices: int = 2) -> Chart:
    """The chart of hand-written tasks."""
    names = tuple(f"gpu:{n}" for n in range(devices))
    return Chart(Timeline(tasks, copies, names, {}))


def copy_of(
    start: float, stop: float, source: str = "a", ends: str = "01", kind: str = ""
) -> Copy:
    """A copy of 1 KiB between two GPUs."""
    ways = (f"gpu:{n}" for n in ends)
    kind = kind or "activation"
    return Copy(source, "b", *ways, kind, "forward", 1024, start, stop)


def test_bars_are_to_scale_and_phases_apart() -> None:
    """Widths are times; forward is plain, backward pale with an edge, update dark."""
    shown = step(
        Task("a", "gpu:0", "forward", 0.0, 1.0),
        Task("a", "gpu:0", "backward", 1.0, 3.0),
        Task("a", "gpu:0", "update", 3.0, 4.0),
        Task("b", "gpu:1", "forward", 1.0, 2.0),
    )
    forward, backward, update = shown.tipped("of a on")
    (late,) = shown.tipped("of b on")
    light = [int(one.fill[1:3], 16) for one in (update, forward, backward)]
    assert [one.outline for one in (update, forward, backward)] == [False, False, True]
    assert light == sorted(light)
    wide = backward.right - backward.x
    assert wide == pytest.approx(2 * (forward.right - forward.x), rel=0.02)
    assert late.x == pytest.approx(forward.right, abs=1)


def test_each_link_has_a_lane_with_its_bytes() -> None:
    """Transfers stand by link; gradients look like a backward pass."""
    copies = copy_of(0, 1), copy_of(2, 3, "b", "10", "gradient")
    shown = step(Task("a", "gpu:0", "forward", 0.0, 3.0), copies=copies)
    (there,), (back,) = shown.tipped("the activation of a"), shown.tipped("gradient of")
    assert (there.outline, back.outline) == (False, True)
    assert {"gpu:0 → gpu:1", "1.00 KiB"} <= set(shown.texts)


@pytest.mark.parametrize(
    ("tasks", "seen", "hidden"),
    [
        ([("stage", n, n + 1.0, n) for n in range(4)], "#0 #1 #2 #3", "stage 0"),
        ([("wide", 0, 98, 0), ("tower_12", 98, 100, 0)], "wide", "12 2 tower_12"),
    ],
)
def test_bars_are_named_wholly_or_not_at_all(
    tasks: list[tuple[str, float, float, int]], seen: str, hidden: str
) -> None:
    """A pipeline's bars bear their micro-batch; no bar bears digits of a name."""
    shown = step(*(Task(p, "gpu:0", "forward", a, b, m) for p, a, b, m in tasks))
    assert set(seen.split()) <= set(shown.texts)
    assert not set(hidden.split()) & set(shown.texts)


def test_a_micro_batch_of_a_stage_is_one_bar_and_updates_have_no_number() -> None:
    """Two parts of two micro-batches, and their updates: three bars, two numbers."""
    tasks = [
        Task(part, "gpu:0", "forward", 2 * m + n, 2 * m + n + 1.0, m)
        for m in range(2)
        for n, part in enumerate("ab")
    ]
    tasks += [Task(p, "gpu:0", "update", 4.0 + n, 5.0 + n) for n, p in enumerate("ab")]
    shown = step(*tasks)
    assert len(shown.tipped(" and 1 more on gpu:0")) == 3
    assert [text for text in shown.texts if text.startswith("#")] == ["#0", "#1"]


def test_planned_and_measured_have_one_scale() -> None:
    """The measured step is twice as long: the planned one fills half the width."""
    one, two = (
        Timeline((Task("a", "gpu:0", "forward", 0.0, stop),), (), ("gpu:0",), {})
        for stop in (1.0, 2.0)
    )
    shown = Chart({"planned": one, "measured": two})
    wide = [mark.right - mark.x for mark in shown.tipped("of a on")]
    assert wide[1] == pytest.approx(2 * wide[0], rel=0.01)
    assert "measured: one step, 2.00 s" in shown.texts


def test_bars_too_narrow_to_see_are_joined() -> None:
    """900 tasks on four devices give a few bars, and a small file."""
    shown = Chart(plans.chain(300).timeline)
    assert len(shown.dot) < 300_000
    joined = [mark for mark in shown.tipped(" more on gpu:") if "path" not in mark.tip]
    assert 0 < len(joined) < 40


def test_the_busiest_links_have_lanes_and_idle_devices_a_line() -> None:
    """Twelve links are drawn, eight counted; idle devices take one line, no lane."""
    ends = [f"{a}{b}" for a in range(5) for b in range(5) if a != b]
    copies = tuple(copy_of(0.0, 1.0 + int(both[0]), "a", both) for both in ends)
    work = Task("a", "gpu:0", "forward", 0.0, 9.0)
    texts = step(work, copies=copies, devices=5).texts
    assert sum("→" in text for text in texts) == 12
    assert "and 8 more links, less used" in texts
    assert "idle throughout: gpu:1, gpu:2, gpu:3, gpu:4" in texts
    assert "one step, 0 s" in step().texts  # no division by zero


def test_the_critical_path_goes_through_bars_and_copies() -> None:
    """One red line: as long as the step, with the copy, and without a break."""
    shown = step(
        Task("a", "gpu:0", "forward", 0.0, 1.0),
        Task("c", "gpu:0", "forward", 1.0, 2.5),
        Task("b", "gpu:1", "forward", 2.0, 4.0),
        copies=(copy_of(1.0, 2.0),),
    )
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


def test_gaps_say_what_a_device_waits_for() -> None:
    """gpu:1 waits 1 s for a, then 1 s for its copy; then it computes until the end."""
    first = Task("a", "gpu:0", "forward", 0.0, 1.0)
    then = Task("b", "gpu:1", "forward", 2.0, 4.0)
    shown = step(first, then, copies=(copy_of(1.0, 2.0),))
    assert {
        "computing 25 %, copies 0 %, others 75 %",
        "computing 50 %, copies 25 %, others 25 %",
    } <= set(shown.texts)
    (work,) = shown.tipped("gpu:1 waits for the forward of a on gpu:0")
    (wait,) = shown.tipped("gpu:1 waits for the activation of a")
    assert wait.x == pytest.approx(work.right, abs=0.5)
    assert wait.fill != work.fill
    alone = step(first, devices=1)
    assert "computing 100 %" in alone.texts
    assert not alone.tipped("critical path")


@pytest.mark.parametrize("seconds", [1e-9, 3.3e-6, 0.0316, 1.0, 7.2, 5000.0])
def test_tick_seconds_are_few_round_and_inside(seconds: float) -> None:
    """Between three and ten ticks, the last within the step."""
    ticks = tick_seconds(seconds)
    assert 3 <= len(ticks) <= 10
    assert ticks[0] == 0.0
    assert ticks[-1] <= seconds * (1 + 1e-9)


def test_all_times_of_an_axis_have_one_unit() -> None:
    """A step of 1.2 ms has ticks of 0 ms, 0.2 ms and so on, and none in us."""
    shown = step(Task("a", "gpu:0", "forward", 0.0, 1.2e-3)).texts
    assert {"0 ms", "0.2 ms", "1.2 ms"} <= set(shown)
    assert not [text for text in shown if text.endswith(" us")]


def test_copies_that_overlap_are_below_each_other() -> None:
    """All of them can be seen, and the lane is no higher than another."""
    copies = tuple(copy_of(n, n + 2.5, f"p{n}") for n in range(6))
    work = Task("a", "gpu:0", "forward", 0.0, 9.0)
    bars = step(work, copies=copies).tipped("the activation of p")
    bars = [bar for bar in bars if "critical" not in bar.tip and "wait" not in bar.tip]
    assert len(bars) == len(copies)
    for one, two in combinations(bars, 2):
        apart = one.bottom <= two.y + 0.1 or two.bottom <= one.y + 0.1
        assert apart or one.right <= two.x or two.right <= one.x
    assert max(bar.bottom for bar in bars) - min(bar.y for bar in bars) <= 8.1


def test_devices_that_do_the_same_share_a_lane() -> None:
    """32 GPUs with two towers each: gpu:0 runs the head as well, the others are one."""
    texts = Chart(plans.towers(64, 32).timeline).texts
    assert "gpu:1 … gpu:31 (31)" in texts
    assert sum(text.startswith("computing") for text in texts) == 3
