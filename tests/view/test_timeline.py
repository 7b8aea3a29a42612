"""The Gantt chart: lanes, phases, waiting, memory."""

from itertools import combinations
from xml.etree import ElementTree

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.view.style import Mark, Scene, Words, svg_of_scene
from splitnet.view.timeline import gantt_of, tick_seconds
from tests.view import plans
from tests.view.golden import assert_golden
from tests.view.plans import task


def marks(scene: Scene, start: str) -> list[Mark]:
    """The rectangles whose tip begins so."""
    return [i for i in scene.items if isinstance(i, Mark) and i.tip.startswith(start)]


def words(scene: Scene) -> list[str]:
    """The texts of a scene."""
    return [item.text for item in scene.items if isinstance(item, Words)]


def step(*tasks: Task, copies: tuple[Copy, ...] = (), devices: int = 2) -> Timeline:
    """A timeline of hand-written tasks."""
    names = tuple(f"gpu:{n}" for n in range(devices))
    return Timeline(tasks, copies, names, {})


def test_gantt_of_siamese_is_the_golden_svg() -> None:
    """A change of the chart is seen in review."""
    plan = plans.siamese()
    scene = gantt_of({"": plan.timeline}, cluster=plan.cluster, title="siamese")
    assert_golden(svg_of_scene(scene), "siamese_timeline.svg")


def test_gantt_of_tells_phases_apart_without_colour() -> None:
    """Backward is hatched, forward is not, and update is darker than both."""
    scene = gantt_of(
        {
            "": step(
                task("a", "gpu:0", "forward", 0.0, 1.0),
                task("a", "gpu:0", "backward", 1.0, 3.0),
                task("a", "gpu:0", "update", 3.0, 4.0),
            )
        }
    )
    forward, backward, update = marks(scene, "a\n")
    assert (forward.hatched, backward.hatched, update.hatched) == (False, True, False)
    assert update.fill != forward.fill


def test_gantt_of_draws_time_to_scale() -> None:
    """A task of a quarter of the step is a quarter of the lane."""
    scene = gantt_of(
        {
            "": step(
                task("a", "gpu:0", "forward", 0.0, 1.0),
                task("b", "gpu:1", "forward", 1.0, 4.0),
            )
        }
    )
    (lane,) = marks(scene, "gpu:0 is idle")
    (bar,) = marks(scene, "a\n")
    assert bar.width == pytest.approx(lane.width / 4, abs=1)


def test_gantt_of_leaves_idle_time_visible() -> None:
    """Nothing is drawn over a lane while its device is idle."""
    scene = gantt_of({"": step(task("b", "gpu:1", "forward", 1.0, 4.0))})
    (bar,) = marks(scene, "b\n")
    (lane,) = marks(scene, "gpu:1 is idle")
    assert bar.x > lane.x + lane.width / 5


def test_gantt_of_gives_each_link_a_lane_with_its_bytes() -> None:
    """Transfers stand by link; gradients are hatched."""
    copies = (
        Copy("a", "b", "gpu:0", "gpu:1", "activation", "forward", 1024, 0.0, 1.0),
        Copy("b", "a", "gpu:1", "gpu:0", "gradient", "backward", 1024, 2.0, 3.0),
    )
    scene = gantt_of({"": step(task("a", "gpu:0", "forward", 0.0, 3.0), copies=copies)})
    (there,) = marks(scene, "activation, a → b")
    (back,) = marks(scene, "gradient, b → a")
    assert (there.hatched, back.hatched) == (False, True)
    assert "gpu:0 → gpu:1" in words(scene)
    assert "1.00 KiB" in words(scene)


def test_gantt_of_shows_micro_batches_by_number() -> None:
    """A pipeline's bars bear their micro-batch, not the part's name."""
    tasks = [task("stage", "gpu:0", "forward", n, n + 1.0, n) for n in range(4)]
    scene = gantt_of({"": step(*tasks)})
    assert {"0", "1", "2", "3"} <= set(words(scene))
    assert "stage" not in words(scene)


def test_gantt_of_sets_planned_and_measured_on_one_scale() -> None:
    """The measured step is twice as long: the planned one fills half the width."""
    planned = step(task("a", "gpu:0", "forward", 0.0, 1.0))
    measured = step(task("a", "gpu:0", "forward", 0.0, 2.0))
    scene = gantt_of({"planned": planned, "measured": measured})
    one, two = marks(scene, "a\n")
    assert two.width == pytest.approx(2 * one.width, rel=0.01)
    assert "measured: one step, 2.00 s" in words(scene)


def test_gantt_of_draws_the_limit_that_memory_comes_near() -> None:
    """A device that is nearly full has a dashed line; an almost empty one has not."""
    plan = plans.siamese()
    near = Cluster.of("gpu:0", "gpu:1", "cpu", memory="1 MiB")

    def dashes(cluster: Cluster) -> int:
        scene = gantt_of({"": plan.timeline}, cluster=cluster)
        return sum(isinstance(i, Mark) and i.fill == "#b3261e" for i in scene.items)

    assert dashes(near) > 0
    assert dashes(plan.cluster) == 0


def test_gantt_of_joins_what_is_too_narrow_to_see() -> None:
    """900 tasks on four devices give a few bars, and a small file."""
    plan = plans.chain(300)
    scene = gantt_of({"": plan.timeline}, cluster=plan.cluster)
    bars = [m for m in scene.items if isinstance(m, Mark) and " on gpu:" in m.tip]
    assert len(svg_of_scene(scene)) < 300_000
    assert sum(" … " in m.tip for m in bars) < 40


def test_gantt_of_shows_both_phases_of_a_bar_of_many() -> None:
    """Where backward and updates alternate too fast to be seen, the bar is of both."""
    phases = ("backward", "update")
    tasks = [
        task(f"p{i}", "gpu:0", phases[i % 2], i / 1e3, (i + 1) / 1e3)
        for i in range(1000)
    ]
    scene = gantt_of({"": step(*tasks)})
    joined = max(
        (m for m in scene.items if isinstance(m, Mark) and " … " in m.tip),
        key=lambda mark: mark.width,
    )
    alone = gantt_of({"": step(task("a", "gpu:0", "update", 0.0, 1.0))})
    assert joined.hatched
    assert joined.fill == marks(alone, "a\n")[0].fill


def test_gantt_of_lists_the_busiest_links_only() -> None:
    """Sixteen devices have 240 links; twelve are drawn and the rest is counted."""
    copies = tuple(
        Copy("a", "b", f"gpu:{a}", f"gpu:{b}", "activation", "forward", 8, 0.0, 1.0 + a)
        for a in range(5)
        for b in range(5)
        if a != b
    )
    work = task("a", "gpu:0", "forward", 0.0, 9.0)
    shown = words(gantt_of({"": step(work, copies=copies, devices=5)}))
    assert sum("→" in text for text in shown) == 12
    assert "and 8 more links, less used" in shown


def test_gantt_of_nothing_is_a_chart_without_bars() -> None:
    """An empty step does not divide by zero."""
    scene = gantt_of({"": step()})
    assert ElementTree.fromstring(svg_of_scene(scene)) is not None


@pytest.mark.parametrize("seconds", [1e-9, 3.3e-6, 0.0316, 1.0, 7.2, 5000.0])
def test_tick_seconds_are_few_round_and_inside(seconds: float) -> None:
    """Between three and ten ticks, the last within the step."""
    ticks = tick_seconds(seconds)
    assert 3 <= len(ticks) <= 10
    assert ticks[0] == 0.0
    assert ticks[-1] <= seconds * (1 + 1e-9)


def test_gantt_of_sets_copies_that_overlap_below_each_other() -> None:
    """All of them can be seen, and the lane is no higher than another."""
    copies = tuple(
        Copy(f"p{n}", "q", "gpu:0", "gpu:1", "activation", "forward", 8, n, n + 2.5)
        for n in range(6)
    )
    work = task("a", "gpu:0", "forward", 0.0, 9.0)
    scene = gantt_of({"": step(work, copies=copies)})
    bars = marks(scene, "activation, p")
    assert len(bars) == len(copies)
    for one, two in combinations(bars, 2):
        apart = one.y + one.height <= two.y + 1e-9 or two.y + two.height <= one.y + 1e-9
        assert apart or one.x + one.width <= two.x or two.x + two.width <= one.x
    assert max(b.y + b.height for b in bars) - min(b.y for b in bars) <= 8.0 + 1e-9


def test_gantt_of_names_bars_wholly_or_shortened_but_never_by_digits() -> None:
    """A bar with room for two letters has no name: "12" of tower_12 says nothing."""
    tasks = [task("wide", "gpu:0", "forward", 0.0, 50.0)]
    tasks.append(task("tower_12", "gpu:0", "forward", 50.0, 51.5))
    tasks.append(task("rest", "gpu:1", "forward", 0.0, 100.0))
    shown = words(gantt_of({"": step(*tasks)}))

    assert "wide" in shown
    assert not {"12", "2", "tower_12"} & set(shown)


def test_gantt_of_lists_idle_devices_in_one_line() -> None:
    """Devices that compute nothing take no lane."""
    scene = gantt_of({"": step(task("a", "gpu:0", "forward", 0.0, 1.0), devices=5)})

    assert "idle throughout: gpu:1, gpu:2, gpu:3, gpu:4" in words(scene)
