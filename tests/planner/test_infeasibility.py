"""What is said where nothing fits, and that what it says would do."""

import random
import re
from dataclasses import replace
from functools import partial

import pytest

import splitnet as sn
from splitnet.core.cluster import Cluster
from splitnet.core.errors import InfeasibleError
from splitnet.core.graph import Graph
from splitnet.core.plan import OBJECTIVES
from splitnet.planner import planner
from splitnet.simulator.batch import scaled_graph
from tests.zoo import chain, random_dag, two_towers, wide

find_plan = partial(planner.find_plan, time_limit=0.1)  # most of it is refused

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


def with_part(graph: Graph, name: str, **changes: object) -> Graph:
    """The graph with one part changed."""
    parts = tuple(replace(p, **changes) if p.name == name else p for p in graph.parts)
    return replace(graph, parts=parts)


def refusal(graph: Graph, cluster: Cluster, **options: object) -> str:
    """What the planner says."""
    with pytest.raises(InfeasibleError) as caught:
        find_plan(graph, cluster, **options)
    return str(caught.value)


def test_infeasible_names_the_fewest_pins_that_are_too_many():
    """Eight pins on one device: so many must go, not one fewer, and then it fits."""
    graph = pinned(chain(8), "gpu:0")
    text = refusal(graph, SMALL)
    named = re.search(r'on="gpu" instead of on="gpu:0" for (.*?), or', text)
    assert named is not None
    freed = re.findall(r"'(\w+)'", named[1])

    find_plan(graph, SMALL, pins=dict.fromkeys(freed, "gpu"))
    with pytest.raises(InfeasibleError):
        find_plan(graph, SMALL, pins=dict.fromkeys(freed[:-1], "gpu"))


def test_infeasible_names_the_least_factor_of_memory():
    """The factor is enough, and a tenth less is not."""
    halves = {"c[0-3]": "gpu:0", "*": "gpu:1"}
    text = refusal(chain(8), TINY, pins=halves)
    factor = float(re.search(r"([\d.]+) times the memory everywhere", text)[1])

    find_plan(chain(8), grown(TINY, factor), pins=halves)
    with pytest.raises(InfeasibleError):
        find_plan(chain(8), grown(TINY, factor - 0.1), pins=halves)


def grown(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster with more memory on every device."""
    return replace(
        cluster,
        devices=tuple(
            replace(d, memory_bytes=int(d.memory_bytes * factor)) for d in cluster
        ),
    )


def test_plan_keeps_room_for_copies():
    """Cuts that fill a device to the brim leave no room for what arrives there."""
    for megabytes in (60, 70, 85):
        box = Cluster.of("3*gpu", memory=f"{megabytes} MiB")
        plan = find_plan(chain(30), box, time_limit=0.2)

        assert all(plan.memory[d.name].total <= d.memory_bytes for d in box)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plan_without_time_is_not_infeasible(objective):
    """Where no single device has the room, a split is found in no time as well."""
    box = Cluster.of("3*gpu", memory="20 MiB")
    plan = find_plan(chain(6), box, objective=objective, time_limit=0.0)

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
    plan = find_plan(
        graph, SMALL, objective=objective, contiguity=contiguity, time_limit=0.5
    )

    assert {"gpu:0", "gpu:1"} <= set(plan.device_of.values())
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in SMALL)


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


def test_infeasible_pin_larger_than_its_device():
    """A part that can never be where it is pinned is judged there all the same."""
    box = Cluster.of("2*gpu", "cpu", memory="1 GiB", cpu_memory="4 MiB")

    text = refusal(pinned(chain(3), "cpu"), box)

    assert "does not fit on cpu:0, where it must be." in text


@pytest.mark.parametrize(
    ("graph", "box"),
    [
        (chain(3), Cluster.of("gpu", memory="15 MiB")),
        (wide(6), Cluster.of("gpu", "cpu", memory="35 MiB", cpu_memory="8 MiB")),
    ],
)
def test_infeasible_names_the_largest_batch(graph, box):
    """The batch that the message names does fit, and the next larger one does not."""
    batch = int(re.search(r"batch <= (\d+)", refusal(graph, box))[1])

    find_plan(scaled_graph(graph, batch), box)
    with pytest.raises(InfeasibleError):
        find_plan(scaled_graph(graph, batch + 1), box)


def test_infeasible_everywhere_says_so():
    """A part that is larger than every device is named as such."""
    box = Cluster.of("2*gpu", "cpu", memory="2 MiB", cpu_memory="3 MiB")
    with pytest.raises(InfeasibleError, match="does not fit on any device it may use"):
        find_plan(wide(2), box)


def test_infeasible_together_says_so():
    """Parts that fit alone but not all at once are told from those that never do."""
    box = Cluster.of("2*gpu", "cpu", memory="8 MiB", cpu_memory="8 MiB")
    with pytest.raises(InfeasibleError, match="do not fit together"):
        find_plan(wide(6), box)


def test_infeasible_names_how_many_devices_more():
    """Where one more device is not enough, the number that is enough is named."""
    box = Cluster.of("gpu", memory="12 MiB")
    text = refusal(chain(8), box)
    found = re.search(r"(\d+) devices more \(gpu:1 .. gpu:(\d+)\)", text)
    assert found is not None

    find_plan(chain(8), Cluster.of(f"{1 + int(found[1])}*gpu", memory="12 MiB"))
    with pytest.raises(InfeasibleError):
        find_plan(chain(8), Cluster.of(f"{int(found[1])}*gpu", memory="12 MiB"))


def test_infeasible_counts_only_devices_that_may_be_used():
    """A large CPU is no room for parts that ask for GPUs; many GPUs are found at once.

    Ten parts of 5 MiB, most of them weights, with Adam about 20 MiB each.
    """
    box = Cluster.of("2*gpu", "cpu", memory="21 MiB", cpu_memory="64 GiB")
    text = refusal(pinned(chain(30), "gpu"), box)

    assert "on gpu:0, gpu:1\n" in text
    count = int(re.search(r"(\d+) devices more", text)[1])
    find_plan(
        pinned(chain(30), "gpu"),
        Cluster.of(f"{2 + count}*gpu", "cpu", memory="21 MiB"),
        time_limit=1.0,
    )


def small_machine(seed: int) -> tuple[Graph, Cluster, dict[str, str]]:
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


def fits(graph: Graph, box: Cluster, pins: object, **options: object) -> bool:
    """Whether a plan is found as a user would ask for it, and has room."""
    plan = sn.plan(graph, box, pins=pins, time_limit=0.5, **options)
    return all(plan.memory[d.name].total <= d.memory_bytes for d in box)


def followed(remedy: str, graph: Graph, box: Cluster, pins: dict[str, str]) -> bool:
    """Whether it fits with a remedy, as it is said."""
    if found := re.match(r"strategy='auto' \(fits with (.*), predicted", remedy):
        words = re.findall(r"(\w+)=('?\w+'?)", found[1])
        how = {name: eval(value) for name, value in words}
        return fits(graph, box, pins, strategy="auto", **how)
    if found := re.match(r"batch <= (\d+)$", remedy):
        return fits(scaled_graph(graph, int(found[1])), box, pins)
    if found := re.match(r"([\d.]+) times the memory everywhere$", remedy):
        return fits(graph, grown(box, float(found[1])), pins)
    if found := re.match(r'on="(\w+)" instead of on="gpu:0" for (.*)$', remedy):
        freed = dict.fromkeys(re.findall(r"'(\w+)'", found[2]), found[1])
        return fits(graph, box, pins | freed)
    found = re.match(r"(one|\d+) devices? more \(gpu:\d+(?: .. gpu:\d+)?\)", remedy)
    assert found is not None, remedy
    count = 1 if found[1] == "one" else int(found[1])
    gpus = box.of_kind("gpu")
    first, new = len(gpus), gpus[0]
    more = (replace(new, name=f"gpu:{first + i}") for i in range(count))
    return fits(graph, replace(box, devices=(*box.devices, *more)), pins)


def tight(
    graph: Graph, memory: str, pins: dict[str, str]
) -> tuple[Graph, Cluster, dict[str, str]]:
    """A graph on two GPUs of so much memory."""
    return graph, Cluster.of("2*gpu", memory=memory), pins


def all_apart() -> Graph:
    """Three calls that must all be on other devices."""
    graph = with_part(chain(3), "c1", apart=("c0",))
    return with_part(graph, "c2", apart=("c0", "c1"))


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        (small_machine(0), {"strategy", "batch", "times"}),
        (tight(chain(8), "20 MiB", {"*": "gpu:0"}), {"times"}),
        (tight(chain(8), "12 MiB", {}), {"devices", "times"}),
        (tight(two_towers(), "14 MiB", {"*": "gpu:0"}), {"instead"}),
        (tight(all_apart(), "1 GiB", {}), {"device"}),
        (tight(wide(6), "18 MiB", {}), {"device", "times"}),
    ],
    ids=["random", "pinned", "chain", "branches", "apart", "wide"],
)
def test_every_remedy_that_is_named_helps(case, kinds) -> None:
    """Each is typed as it is said, and planned."""
    with pytest.raises(InfeasibleError) as caught:
        sn.plan(case[0], case[1], pins=case[2], time_limit=0.5)
    said = re.search(r"try +(.*)$", str(caught.value))
    assert said is not None
    remedies = said[1].split(", or ")

    assert all(any(kind in one for one in remedies) for kind in kinds), remedies
    for one in remedies:
        assert followed(one, *case), one


def test_what_fits_is_found_where_a_fast_step_is_not() -> None:
    """If no fast placement fits, the one of least memory does."""
    graph, box, pins = small_machine(5)

    assert fits(graph, grown(box, 2.0), pins)
