"""Memory per device as stacked bars."""

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.plan import Plan
from splitnet.core.timeline import Timeline
from splitnet.view.memory_chart import memory_lanes, memory_scene
from splitnet.view.style import Mark, Scene, Words
from tests.view import plans


def bars(scene: Scene, device: str) -> list[Mark]:
    """The pieces of one device's bar."""
    return [i for i in scene.items if isinstance(i, Mark) and f" on {device}:" in i.tip]


def words(scene: Scene) -> list[str]:
    """The texts of a scene."""
    return [item.text for item in scene.items if isinstance(item, Words)]


def squeezed(memory: str) -> Plan:
    """The siamese plan on GPUs with so much memory."""
    plan = plans.siamese()
    cluster = Cluster.of("gpu:0", "gpu:1", "cpu", memory=memory)
    return plans.plan_by_hand(plan.graph, cluster, plan.device_of)


def test_memory_scene_draws_each_kind_in_proportion() -> None:
    """Slots are twice the weights, and so is their piece of the bar."""
    pieces = {
        bar.tip.split()[0]: bar for bar in bars(memory_scene(plans.siamese()), "gpu:0")
    }
    assert pieces["slots"].width == pytest.approx(2 * pieces["weights"].width, rel=0.01)


def test_memory_scene_sets_pieces_end_to_end() -> None:
    """No gap and no overlap."""
    pieces = bars(memory_scene(plans.siamese()), "gpu:0")
    for one, two in zip(pieces, pieces[1:], strict=False):
        assert one.x + one.width == pytest.approx(two.x)


def test_memory_scene_tells_neighbours_apart_without_colour() -> None:
    """Two pieces side by side differ in hatching or in lightness."""
    pieces = bars(memory_scene(plans.siamese()), "gpu:0")
    looks = [(bar.fill, bar.hatched) for bar in pieces]
    assert len(set(looks)) == len(looks)


def test_memory_scene_says_when_a_device_holds_too_much() -> None:
    """A bar beyond its limit line is written in words too."""
    shown = words(memory_scene(squeezed("1 MiB")))
    assert any(text.endswith(": too much") for text in shown)
    assert not any(
        text.endswith(": too much") for text in words(memory_scene(plans.siamese()))
    )


def test_memory_scene_draws_every_limit_and_breaks_the_bar_before_far_ones() -> None:
    """A red line per device and one in the legend; a gap where the scale ends first."""

    def marks(scene: Scene, fill: str) -> int:
        return sum(isinstance(i, Mark) and i.fill == fill for i in scene.items)

    near, far = memory_scene(squeezed("2 MiB")), memory_scene(plans.siamese())

    assert marks(near, "#b3261e") == marks(far, "#b3261e") == 4
    assert marks(near, "#ffffff") == 1  # the CPU's limit is far
    assert marks(far, "#ffffff") == 3


def test_memory_lanes_have_one_scale_in_per_cent_of_the_limit() -> None:
    """Half of 2 MiB fills as much of its lane as half of 4 MiB."""
    points = ((0.0, 1 << 20),), ((0.0, 2 << 20),)
    step = Timeline(
        (plans.task("a", "gpu:0", "forward", 0.0, 1.0),),
        (),
        ("gpu:0", "gpu:1"),
        {"gpu:0": points[0], "gpu:1": points[1]},
    )
    limits = {"gpu:0": 2 << 20, "gpu:1": 4 << 20}
    colors = {"gpu:0": "#111111", "gpu:1": "#222222"}
    items = memory_lanes(step, step.devices, colors, limits, lambda s: s, 0.0)
    curves = [i for i in items if isinstance(i, Mark) and "MiB on gpu" in i.tip]

    assert curves[0].height == pytest.approx(curves[1].height)
    texts = [i.text for i in items if isinstance(i, Words)]
    assert "memory, each lane from 0 to 100 % of each limit" in texts
    assert "50 % of 2.00 MiB" in texts
