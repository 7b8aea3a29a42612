"""The Gantt chart and the memory pictures."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.plan import Plan
from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.style import Mark, Scene, Words, dot_of_scene
from splitnet.view.timeline import gantt_of, tick_seconds
from tests.view import plans

RED = "#b3261e"


def marks(scene: Scene, part: str) -> list[Mark]:
    """The rectangles whose tip has these words."""
    return [i for i in scene.items if isinstance(i, Mark) and part in i.tip]


def red(scene: Scene) -> int:
    """How many rectangles are red."""
    return sum(isinstance(item, Mark) and item.fill == RED for item in scene.items)


def words(scene: Scene) -> list[str]:
    """The texts of a scene."""
    return [item.text for item in scene.items if isinstance(item, Words)]


def chart(*tasks: Task, copies: tuple[Copy, ...] = (), devices: int = 2) -> Scene:
    """The chart of hand-written tasks."""
    names = tuple(f"gpu:{n}" for n in range(devices))
    return gantt_of({"": Timeline(tasks, copies, names, {})})


def squeezed(memory: str) -> Plan:
    """The siamese plan on GPUs with so much memory."""
    plan = plans.siamese()
    cluster = Cluster.of("gpu:0", "gpu:1", "cpu", memory=memory)
    return plans.plan_by_hand(plan.graph, cluster, plan.device_of)


def test_gantt_of_draws_time_to_scale_and_phases_apart() -> None:
    """Widths are times; forward is plain, backward pale with an edge, update dark."""
    scene = chart(
        Task("a", "gpu:0", "forward", 0.0, 1.0),
        Task("a", "gpu:0", "backward", 1.0, 3.0),
        Task("a", "gpu:0", "update", 3.0, 4.0),
        Task("b", "gpu:1", "forward", 1.0, 2.0),
    )
    forward, backward, update = marks(scene, "a\n")
    (late,) = marks(scene, "b\n")
    light = [int(one.fill[1:3], 16) for one in (update, forward, backward)]
    outlined = [bool(one.outline) for one in (update, forward, backward)]
    assert outlined == [False, False, True]
    assert light == sorted(light)
    assert backward.width == pytest.approx(2 * forward.width, rel=0.02)
    assert late.x == pytest.approx(forward.x + forward.width, abs=1)


def test_gantt_of_gives_each_link_a_lane_with_its_bytes() -> None:
    """Transfers stand by link; gradients look like a backward pass."""
    copies = (
        Copy("a", "b", "gpu:0", "gpu:1", "activation", "forward", 1024, 0.0, 1.0),
        Copy("b", "a", "gpu:1", "gpu:0", "gradient", "backward", 1024, 2.0, 3.0),
    )
    scene = chart(Task("a", "gpu:0", "forward", 0.0, 3.0), copies=copies)
    (there,), (back,) = marks(scene, "activation, a"), marks(scene, "gradient, b")
    assert (bool(there.outline), bool(back.outline)) == (False, True)
    assert {"gpu:0 → gpu:1", "1.00 KiB"} <= set(words(scene))


@pytest.mark.parametrize(
    ("tasks", "shown", "hidden"),
    [
        ([("stage", n, n + 1.0, n) for n in range(4)], "#0 #1 #2 #3", "stage 0"),
        ([("wide", 0, 98, 0), ("tower_12", 98, 100, 0)], "wide", "12 2 tower_12"),
    ],
)
def test_gantt_of_names_bars_wholly_or_not_at_all(
    tasks: list[tuple[str, float, float, int]], shown: str, hidden: str
) -> None:
    """A pipeline's bars bear their micro-batch; no bar bears digits of a name."""
    scene = chart(*(Task(p, "gpu:0", "forward", a, b, m) for p, a, b, m in tasks))
    assert set(shown.split()) <= set(words(scene))
    assert not set(hidden.split()) & set(words(scene))


def test_gantt_of_sets_planned_and_measured_on_one_scale() -> None:
    """The measured step is twice as long: the planned one fills half the width."""
    one, two = (
        Timeline((Task("a", "gpu:0", "forward", 0.0, stop),), (), ("gpu:0",), {})
        for stop in (1.0, 2.0)
    )
    scene = gantt_of({"planned": one, "measured": two})
    planned, measured = marks(scene, "a\n")
    assert measured.width == pytest.approx(2 * planned.width, rel=0.01)
    assert "measured: one step, 2.00 s" in words(scene)


def test_gantt_of_joins_what_is_too_narrow_to_see() -> None:
    """900 tasks on four devices give a few bars, and a small file."""
    plan = plans.chain(300)
    scene = gantt_of({"": plan.timeline}, cluster=plan.cluster)
    assert len(dot_of_scene(scene)) < 300_000
    assert sum(" … " in mark.tip for mark in marks(scene, " on gpu:")) < 40


def test_gantt_of_lists_the_busiest_links_and_idle_devices() -> None:
    """Twelve links are drawn, eight counted; idle devices take one line, no lane."""
    copies = tuple(
        Copy("a", "b", f"gpu:{a}", f"gpu:{b}", "activation", "forward", 8, 0.0, 1.0 + a)
        for a in range(5)
        for b in range(5)
        if a != b
    )
    work = Task("a", "gpu:0", "forward", 0.0, 9.0)
    shown = words(chart(work, copies=copies, devices=5))
    assert sum("→" in text for text in shown) == 12
    assert "and 8 more links, less used" in shown
    assert "idle throughout: gpu:1, gpu:2, gpu:3, gpu:4" in shown


def test_gantt_of_nothing_is_a_chart_without_bars() -> None:
    """An empty step does not divide by zero."""
    assert "one step, 0 s" in words(chart())


def test_gantt_of_draws_the_critical_path_through_bars_and_copies() -> None:
    """One red line: as long as the step, with the copy, and without a break."""
    copies = (Copy("a", "b", "gpu:0", "gpu:1", "activation", "forward", 8, 1.0, 2.0),)
    scene = chart(
        Task("a", "gpu:0", "forward", 0.0, 1.0),
        Task("c", "gpu:0", "forward", 1.0, 2.5),
        Task("b", "gpu:1", "forward", 2.0, 4.0),
        copies=copies,
    )
    path = marks(scene, "critical path")
    assert [mark.tip.split(": ")[1].split(" (")[0] for mark in path] == [
        "the forward of a on gpu:0",
        "the activation of a, gpu:0 → gpu:1",
        "the forward of b on gpu:1",
    ]
    for one, two in pairwise(path):
        assert one.x + one.width == pytest.approx(two.x)
    (bar,) = marks(scene, "b\nforward")
    assert path[-1].x + path[-1].width == pytest.approx(bar.x + bar.width, abs=1)
    assert bar.y < path[-1].y < bar.y + bar.height
    heading = (
        "one step, 4.00 s; critical path: gpu:1 2.00 s, gpu:0 1.00 s, copies 1.00 s"
    )
    assert heading in words(scene)


def test_gantt_of_says_what_each_device_waits_for() -> None:
    """gpu:1 waits 1 s for a, then 1 s for its copy; then it computes until the end."""
    copies = (Copy("a", "b", "gpu:0", "gpu:1", "activation", "forward", 8, 1.0, 2.0),)
    scene = chart(
        Task("a", "gpu:0", "forward", 0.0, 1.0),
        Task("b", "gpu:1", "forward", 2.0, 4.0),
        copies=copies,
    )
    assert {
        "computing 25 %, copies 0 %, others 75 %",
        "computing 50 %, copies 25 %, others 25 %",
    } <= set(words(scene))
    (work,) = marks(scene, "gpu:1 waits for the forward of a on gpu:0")
    (wait,) = marks(scene, "gpu:1 waits for the activation of a")
    assert wait.x == pytest.approx(work.x + work.width, abs=0.5)
    assert wait.fill != work.fill
    alone = chart(Task("a", "gpu:0", "forward", 0.0, 1.0), devices=1)
    assert "computing 100 %" in words(alone)
    assert not marks(alone, "critical path")


@pytest.mark.parametrize("seconds", [1e-9, 3.3e-6, 0.0316, 1.0, 7.2, 5000.0])
def test_tick_seconds_are_few_round_and_inside(seconds: float) -> None:
    """Between three and ten ticks, the last within the step."""
    ticks = tick_seconds(seconds)
    assert 3 <= len(ticks) <= 10
    assert ticks[0] == 0.0
    assert ticks[-1] <= seconds * (1 + 1e-9)


def test_gantt_of_writes_all_times_of_an_axis_in_one_unit() -> None:
    """A step of 1.2 ms has ticks of 0 ms, 0.2 ms and so on, and none in us."""
    shown = words(chart(Task("a", "gpu:0", "forward", 0.0, 1.2e-3)))
    assert {"0 ms", "0.2 ms", "1.2 ms"} <= set(shown)
    assert not [text for text in shown if text.endswith(" us")]


def test_gantt_of_sets_copies_that_overlap_below_each_other() -> None:
    """All of them can be seen, and the lane is no higher than another."""
    copies = tuple(
        Copy(f"p{n}", "q", "gpu:0", "gpu:1", "activation", "forward", 8, n, n + 2.5)
        for n in range(6)
    )
    scene = chart(Task("a", "gpu:0", "forward", 0.0, 9.0), copies=copies)
    bars = marks(scene, "activation, p")
    assert len(bars) == len(copies)
    for one, two in combinations(bars, 2):
        apart = one.y + one.height <= two.y + 1e-9 or two.y + two.height <= one.y + 1e-9
        assert apart or one.x + one.width <= two.x or two.x + two.width <= one.x
    assert max(b.y + b.height for b in bars) - min(b.y for b in bars) <= 8.0 + 1e-9


def test_gantt_of_has_one_memory_scale_in_per_cent_of_the_limit() -> None:
    """Half of 2 GiB fills as much of its lane as half of 4 GiB."""
    half = {"gpu:0": ((0.0, 1 << 30),), "gpu:1": ((0.0, 2 << 30),)}
    step = Timeline(
        (Task("a", "gpu:0", "forward", 0.0, 1.0),), (), ("gpu:0", "gpu:1"), half
    )
    cluster = Cluster.of("gpu:0", "gpu:1", memory="2 GiB")
    first, second = cluster
    second = replace(second, memory_bytes=4 << 30)
    scene = gantt_of({"": step}, cluster=Cluster((first, second), cluster.links))
    one, other = marks(scene, "GiB on gpu")
    assert one.height == pytest.approx(other.height)
    assert "memory, each lane from 0 to 100 % of each limit" in words(scene)
    assert "50 % of 2.00 GiB" in words(scene)


def test_gantt_of_draws_the_limit_that_memory_comes_near() -> None:
    """A device that is nearly full has a dashed line; an almost empty one has not."""
    plan, near = plans.siamese(), squeezed("1 MiB")
    assert red(gantt_of({"": plan.timeline}, cluster=near.cluster)) > 0
    assert red(gantt_of({"": plan.timeline}, cluster=plan.cluster)) == 0


def test_gantt_of_draws_many_devices_that_do_the_same_in_one_lane() -> None:
    """32 GPUs with two towers each: gpu:0 runs the head as well, the others are one."""
    plan = plans.towers(64, 32)
    shown = words(gantt_of({"": plan.timeline}, cluster=plan.cluster))
    assert "gpu:1 … gpu:31 (31)" in shown
    assert sum(text.startswith("computing") for text in shown) == 3


def test_gantt_of_draws_no_curve_of_a_device_that_is_almost_empty() -> None:
    """Peaks below a tenth of the limit take one line together."""
    plan = plans.siamese()
    shown = words(gantt_of({"": plan.timeline}, cluster=squeezed("100 MiB").cluster))
    assert "memory peak below 10 % of the limit: cpu:0 70.0 MiB" in shown
    assert "peak 36.4 MiB" in shown
    many = plans.towers(64, 32)
    shown = words(gantt_of({"": many.timeline}, cluster=many.cluster))
    assert any("33 devices, at most" in text for text in shown)
