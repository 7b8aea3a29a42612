"""What is said where nothing fits, and that what it says would do."""

import re
from dataclasses import replace
from itertools import count

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.errors import InfeasibleError
from splitnet.core.graph import Graph
from splitnet.planner.planner import OBJECTIVES, plan_graph
from splitnet.planner.portfolio import best_assignment
from splitnet.planner.request import Request
from splitnet.simulator.batches import rebatched
from tests.zoo import MIB, chain, wide

SMALL = Cluster.of("2*gpu", "cpu", memory="30 MiB", cpu_memory="20 MiB")
TINY = Cluster.of("2*gpu", memory="12 MiB")


def pinned(graph: Graph, on: str) -> Graph:
    """Every part but the inputs on one device."""
    return replace(
        graph,
        parts=tuple(
            p if p.kind == "input" else replace(p, on=(on,)) for p in graph.parts
        ),
    )


def refusal(graph: Graph, cluster: Cluster, **options: object) -> str:
    """What the planner says."""
    with pytest.raises(InfeasibleError) as caught:
        plan_graph(graph, cluster, **options)
    return str(caught.value)


def test_infeasible_names_the_fewest_pins_that_are_too_many():
    """Eight pins on one device: so many must go, not one fewer, and then it fits."""
    graph = pinned(chain(8), "gpu:0")
    text = refusal(graph, SMALL)
    named = re.search(r'on="gpu" instead of on="gpu:0" for (.*?), or', text)
    assert named is not None
    freed = re.findall(r"'(\w+)'", named[1])

    plan_graph(graph, SMALL, pins=dict.fromkeys(freed, "gpu"))
    with pytest.raises(InfeasibleError):
        plan_graph(graph, SMALL, pins=dict.fromkeys(freed[:-1], "gpu"))


def test_infeasible_names_the_least_factor_of_memory():
    """The factor is enough, and a tenth less is not."""
    text = refusal(chain(12), TINY)
    found = re.search(r"try +([\d.]+) times the memory on every device", text)
    assert found is not None
    factor = float(found[1])

    plan_graph(chain(12), grown(TINY, factor))
    with pytest.raises(InfeasibleError):
        plan_graph(chain(12), grown(TINY, factor - 0.1))


def grown(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster with more memory on every device."""
    return replace(
        cluster,
        devices=tuple(
            replace(d, memory_bytes=int(d.memory_bytes * factor)) for d in cluster
        ),
    )


def test_infeasible_names_the_least_memory_of_a_device():
    """So many bytes more on the device are enough."""
    text = refusal(pinned(chain(8), "gpu:0"), SMALL)
    found = re.search(r"([\d.]+) MiB more memory on gpu:0", text)
    assert found is not None
    more = int((float(found[1]) + 0.05) * MIB)
    devices = tuple(
        replace(d, memory_bytes=d.memory_bytes + more * (d.name == "gpu:0"))
        for d in SMALL
    )

    plan_graph(pinned(chain(8), "gpu:0"), replace(SMALL, devices=devices))


def test_infeasible_names_a_smaller_batch():
    """Where activations fill the device, the largest batch that fits is named."""
    graph = wide(6)
    box = Cluster.of("gpu", "cpu", memory="35 MiB", cpu_memory="8 MiB")
    text = refusal(graph, box)
    found = re.search(r"batch <= (\d+)", text)
    assert found is not None

    plan_graph(rebatched(graph, int(found[1])), box)
    with pytest.raises(InfeasibleError):
        plan_graph(rebatched(graph, int(found[1]) + 2), box)


def test_infeasible_names_one_device_more():
    """The twin that is named is enough."""
    box = Cluster.of("gpu", memory="25 MiB")
    text = refusal(chain(6), box)

    assert "one device more (gpu:1)" in text
    plan_graph(chain(6), Cluster.of("2*gpu", memory="25 MiB"))


def test_plan_keeps_room_for_copies():
    """Cuts that fill a device to the brim leave no room for what arrives there."""
    for megabytes in range(60, 90, 5):
        box = Cluster.of("3*gpu", memory=f"{megabytes} MiB")
        plan = plan_graph(chain(30), box, strategy="simple")

        assert all(plan.memory[d.name].total <= d.memory_bytes for d in box)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plan_without_time_is_not_infeasible(objective):
    """Where no single device has the room, a split is found in no time as well."""
    box = Cluster.of("3*gpu", memory="20 MiB")
    plan = plan_graph(chain(6), box, objective=objective, time_limit=0.0)

    assert len(dict.fromkeys(plan.device_of.values())) > 1
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in box)


def listed(graph: Graph, *on: str) -> Graph:
    """Every part but the inputs with the same list of preferences."""
    return replace(
        graph,
        parts=tuple(p if p.kind == "input" else replace(p, on=on) for p in graph.parts),
    )


@pytest.mark.parametrize("contiguity", [None, "convex", "pipeline"])
@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_plan_falls_back_to_whole_lists_in_every_set(objective, contiguity):
    """Where first wishes have no room, the others count, however parts must cohere."""
    graph = listed(chain(8), "gpu:0", "gpu:1")
    plan = plan_graph(
        graph, SMALL, objective=objective, contiguity=contiguity, time_limit=0.5
    )

    assert {"gpu:0", "gpu:1"} <= set(plan.device_of.values())
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in SMALL)


def test_a_search_in_vain_leaves_time_for_whole_lists(monkeypatch):
    """Time is a clock that counts its readings: half of it is for the first wishes."""
    ticks = count()
    monkeypatch.setattr(
        "splitnet.planner.portfolio.monotonic", lambda: next(ticks) * 1e-3
    )
    request = Request(wide(20), Cluster.of("2*gpu", memory="60 MiB"))
    board = request.board(request.resolve()[1])
    began = next(ticks)
    assert not best_assignment(board, time_limit=2.0, patience=0.5).feasible
    assert next(ticks) - began < 1100
