"""Which devices may change names, and who would be elsewhere when they do."""

from dataclasses import replace

from splitnet.core.cluster import Cluster, Link
from splitnet.core.cost import Measured
from splitnet.planner.request import Request
from splitnet.planner.score import score
from splitnet.planner.what_if import _moved
from tests.zoo import wide

BOX = Cluster.of("3*gpu", "cpu")


def twin_of(cluster: Cluster, costs: Measured | None = None) -> tuple[int, ...]:
    """The twins of a machine for a net that may use all of it."""
    request = Request(wide(3), cluster, costs=costs or Measured())
    return request.board(request.resolve()[1]).twin_of


def test_equal_devices_are_twins():
    """All three GPUs could change names; the CPU could not."""
    assert twin_of(BOX) == (0, 0, 0, 3)


def test_devices_that_share_processors_are_no_twins_of_others():
    """Two GPUs that slow each other down are twins, the third is none."""
    road = BOX.link("gpu:0", "gpu:1")
    crowded = [
        replace(road, source=a, target=b, crowding=0.5)
        for a, b in (("gpu:0", "gpu:1"), ("gpu:1", "gpu:0"))
    ]

    assert twin_of(replace(BOX, links=(*BOX.links, *crowded))) == (0, 0, 2, 3)


def test_roads_whose_copies_overlap_make_no_twins_of_others():
    """What a copy keeps of its road counts, and how busy it keeps the ends."""
    for figures in ({"gap_seconds": 0.0}, {"busy_share": 1.0}):
        road = BOX.link("gpu:0", "cpu:0")
        own = Link(
            *("gpu:0", "cpu:0", road.bytes_per_second, road.latency_seconds), **figures
        )

        assert twin_of(replace(BOX, links=(*BOX.links, own))) == (0, 1, 1, 3)


def test_a_device_that_begins_later_is_no_twin():
    """Seconds before a step's first call count."""
    late = Measured(start_seconds={"gpu:2": 1e-3})

    assert twin_of(BOX, late) == (0, 0, 2, 3)


def test_parts_that_only_change_names_stay():
    """All branches change devices; one of them leaves the others."""
    graph = wide(4)
    first, *others = [part.name for part in graph.parts if part.kind == "branch"][:4]
    host = {part.name: "cpu" for part in graph.parts}
    here = score(graph, BOX, host | {first: "gpu:0"} | dict.fromkeys(others, "gpu:1"))
    there = score(
        graph,
        BOX,
        host | {first: "gpu:2"} | dict.fromkeys(others, "gpu:0") | {others[0]: "gpu:1"},
    )
    alike = {"gpu:0": "gpu:0", "gpu:1": "gpu:0", "gpu:2": "gpu:0", "cpu:0": "cpu:0"}

    assert _moved(here, there, alike) == [others[0]]
    assert _moved(here, there, {d: d for d in alike}) == [first, *others[1:]]
