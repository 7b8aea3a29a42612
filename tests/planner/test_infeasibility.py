"""What is said where nothing fits, and that what it says would do."""

import random
import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import splitnet as sn
from splitnet.core.cluster import Cluster
from splitnet.core.errors import InfeasibleError
from splitnet.core.graph import Graph
from splitnet.core.plan import OBJECTIVES, Plan
from splitnet.planner import planner
from splitnet.simulator.units import scaled_graph
from tests.zoo import chain, random_dag, two_towers, wide

find_plan = partial(planner.find_plan, time_limit=0.1)  # most of it is refused

SMALL = Cluster.of("2*gpu", "cpu", memory="30 MiB", cpu_memory="20 MiB")
Case = tuple[Graph, Cluster, dict[str, Any]]
"""A net, a machine that is too small for it, and pins."""


def grown(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster with more memory on every device."""
    devices = (replace(d, memory_bytes=int(d.memory_bytes * factor)) for d in cluster)
    return replace(cluster, devices=tuple(devices))


def has_room(plan: Plan) -> bool:
    """Whether no device holds more than it has."""
    return all(plan.memory[d.name].total <= d.memory_bytes for d in plan.cluster)


def test_plan_keeps_room_for_copies():
    """Cuts that fill a device to the brim leave no room for what arrives there."""
    for megabytes in (60, 70, 85):
        box = Cluster.of("3*gpu", memory=f"{megabytes} MiB")

        assert has_room(find_plan(chain(30), box, time_limit=0.2))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plan_without_time_is_not_infeasible(objective):
    """Where no single device has the room, a split is found in no time as well."""
    box = Cluster.of("3*gpu", memory="20 MiB")
    plan = find_plan(chain(6), box, objective=objective, time_limit=0.0)

    assert len(set(plan.device_of.values())) > 1
    assert has_room(plan)


@pytest.mark.parametrize("contiguity", [None, "convex", "pipeline"])
@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_plan_falls_back_to_whole_lists_in_every_set(objective, contiguity):
    """Where first wishes have no room, the others count, however parts must cohere."""
    options = {"objective": objective, "contiguity": contiguity, "time_limit": 0.5}
    plan = find_plan(chain(8), SMALL, pins={"*": ["gpu:0", "gpu:1"]}, **options)

    assert {"gpu:0", "gpu:1"} <= set(plan.device_of.values())
    assert has_room(plan)


def test_what_fits_is_found_where_a_fast_step_is_not() -> None:
    """If no fast placement fits, the one of least memory does."""
    graph, box, pins = small_machine(5)

    assert has_room(sn.plan(graph, grown(box, 2.0), pins=pins, time_limit=0.5))


def test_infeasible_pin_names_needs_rooms_and_remedies():
    """The message of the design: needs, what is free where, and what to try."""
    box = Cluster.of("2*gpu", "cpu", memory="14 MiB")
    with pytest.raises(InfeasibleError) as caught:
        find_plan(two_towers(on=("gpu:0", "gpu:0")), box)

    first, needs, gpu0, *_, total, last = str(caught.value).splitlines()
    assert first == (
        "branch 'see' (with 1 near it) does not fit on gpu:0, where it is declared."
    )
    assert needs.startswith("  needs     10.0 MiB  weights 2.00 MiB, gradients")
    assert gpu0.startswith("  gpu:0")
    assert "'tell' is pinned there with 6.00 MiB" in gpu0
    assert total.startswith("  in all")
    assert """on="gpu" instead of on="gpu:0" for 'see'""" in last


@pytest.mark.parametrize(
    ("graph", "pins", "memory", "cpu_memory", "said"),
    [
        (chain(3), {"*": "cpu"}, "1 GiB", "4 MiB", "fit on cpu:0, where it must be."),
        (wide(2), {}, "2 MiB", "3 MiB", "does not fit on any device it may use"),
        (wide(6), {}, "8 MiB", "8 MiB", "do not fit together"),
        (chain(9), {"*": "gpu"}, "12 MiB", "9 GiB", "24.0 MiB on gpu:0, gpu:1\n"),
    ],
    ids=["on its device", "anywhere", "together", "where it may be"],
)
def test_infeasible_says_what_does_not_fit(graph, pins, memory, cpu_memory, said):
    """One part where it must be, one part at all, or all together; and the room."""
    box = Cluster.of("2*gpu", "cpu", memory=memory, cpu_memory=cpu_memory)
    with pytest.raises(InfeasibleError) as caught:
        find_plan(graph, box, pins=pins)

    assert said in str(caught.value)


def small_machine(seed: int) -> Case:
    """A random net, a machine that is a little too small for it, and some pins."""
    draw = random.Random(seed)
    graph = random_dag(seed, draw.randint(5, 12))
    room = draw.uniform(0.2, 0.9)
    count = draw.randint(1, 3)
    roomy = Cluster.of("gpu", "cpu")
    whole = sn.score(graph, roomy, {"*": "gpu:0"}).memory["gpu:0"].total
    memory = int(room * whole / count)
    box = Cluster.of(f"{count}*gpu", "cpu", memory=memory, cpu_memory=memory // 2)
    return graph, box, {part.name: "gpu:0" for part in graph.parts[1 : 1 + seed % 4]}


def tight(graph: Graph, memory: str, pins: dict[str, str], gpus: int = 2) -> Case:
    """A graph on GPUs of so much memory."""
    return graph, Cluster.of(f"{gpus}*gpu", memory=memory), pins


def all_apart() -> Graph:
    """Three calls that must all be on other devices."""
    apart = {"c1": ("c0",), "c2": ("c0", "c1")}
    parts = (replace(p, apart=apart.get(p.name, ())) for p in chain(3).parts)
    return replace(chain(3), parts=tuple(parts))


def changed(remedy: str, case: Case, less: int) -> tuple[Case, dict[str, Any]]:
    """The case with a remedy as it is said, or with a little less of it; options."""
    graph, box, pins = case
    if found := re.match(r"strategy='auto' \(fits with (.*), predicted", remedy):
        words = re.findall(r"(\w+)=('?\w+'?)", found[1])
        how = {name: eval(value) for name, value in words}
        return case, {"strategy": "auto", **how}
    if found := re.match(r"batch <= (\d+)$", remedy):
        graph = scaled_graph(graph, int(found[1]) + less)
    elif found := re.match(r"([\d.]+) times the memory everywhere$", remedy):
        box = grown(box, float(found[1]) - 0.1 * less)
    elif found := re.match(r'on="(\w+)" instead of on="gpu:0" for (.*)$', remedy):
        names = re.findall(r"'(\w+)'", found[2])
        pins = pins | dict.fromkeys(names[: len(names) - less], found[1])
    else:
        found = re.match(r"(\d+) devices like gpu:0$", remedy)
        assert found is not None, remedy
        gpus = box.of_kind("gpu")
        count = int(found[1]) - less - len(gpus)
        more = (replace(gpus[0], name=f"gpu:{len(gpus) + i}") for i in range(count))
        box = replace(box, devices=(*box.devices, *more))
    return (graph, box, pins), {}


@pytest.mark.parametrize(
    ("case", "kinds", "least"),
    [
        (small_machine(0), {"strategy", "batch", "times"}, False),
        (tight(chain(8), "20 MiB", {"*": "gpu:0"}), {"times"}, True),
        (
            (chain(8), SMALL, {f"c{i}": "gpu:0" for i in range(8)}),
            {"instead", "times"},
            True,
        ),
        (tight(chain(8), "12 MiB", {}, gpus=1), {"devices", "times"}, True),
        (tight(chain(3), "15 MiB", {}, gpus=1), {"batch", "times"}, True),
        (tight(two_towers(), "14 MiB", {"*": "gpu:0"}), {"instead"}, False),
        (tight(all_apart(), "1 GiB", {}), {"devices"}, False),
        (tight(wide(6), "18 MiB", {}), {"devices", "times"}, False),
    ],
    ids=["random", "list", "pins", "chain", "batch", "branches", "apart", "wide"],
)
def test_every_remedy_that_is_named_helps(case, kinds, least) -> None:
    """Each is typed as it is said, and planned; the least of its kind is named."""
    with pytest.raises(InfeasibleError) as caught:
        sn.plan(case[0], case[1], pins=case[2], time_limit=0.5)
    said = re.search(r"try +(.*)$", str(caught.value))
    assert said is not None
    remedies = said[1].split(", or ")

    assert all(any(kind in one for one in remedies) for kind in kinds), remedies
    for one in remedies:
        (graph, box, pins), options = changed(one, case, less=0)
        assert has_room(sn.plan(graph, box, pins=pins, time_limit=0.5, **options)), one
        if least and not options:
            graph, box, pins = changed(one, case, less=1)[0]
            with pytest.raises(InfeasibleError):
                find_plan(graph, box, pins=pins)
