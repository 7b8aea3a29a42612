"""What is said where nothing fits, and that what it says would do."""

import random
import re
from dataclasses import replace

import pytest

from splitnet import Cluster, InfeasibleError
from splitnet.core.plan import OBJECTIVES, PlanOptions
from splitnet.planner import planner
from splitnet.planner.evaluate import score
from splitnet.planner.planner import NothingFitsError, search
from splitnet.simulator.units import scaled_graph
from tests.planner.quick import has_room, plan_graph
from tests.zoo import altered, chain, random_dag, two_towers, wide

SMALL = Cluster.of("2*gpu", "cpu", memory="30 MiB", cpu_memory="20 MiB")


def gpus(count, memory):
    return Cluster.of(f"{count}*gpu", memory=f"{memory} MiB")


def grown(cluster, factor):
    devices = (replace(d, memory_bytes=int(d.memory_bytes * factor)) for d in cluster)
    return replace(cluster, devices=tuple(devices))


def small_machine(seed, factor=1.0):
    """A random net, a machine that is a little too small for it, and some pins."""
    draw = random.Random(seed)
    graph = random_dag(seed, draw.randint(5, 12))
    room, count = draw.uniform(0.2, 0.9), draw.randint(1, 3)
    whole = score(graph, Cluster.of("gpu", "cpu"), {"*": "gpu:0"}).memory["gpu:0"].total
    memory = int(factor * room * whole / count)
    box = Cluster.of(f"{count}*gpu", "cpu", memory=memory, cpu_memory=memory // 2)
    return graph, box, {part.name: "gpu:0" for part in graph.parts[1 : 1 + seed % 4]}


RANDOM, BOX, PINS = small_machine(5)
NO_TIME = {"time_limit": 0.0}
LISTS = {"pins": {"*": ["gpu:0", "gpu:1"]}}
ALL_ON_ONE = {f"c{i}": "gpu:0" for i in range(8)}
APART = altered(chain(3), "parts", "c1", apart=("c0",))
SLICE = altered(chain(1), "parts", "c0", kind="slice")
ZIGZAG = altered(APART, "parts", "c2", apart=("c1",))
ALL_APART = altered(APART, "parts", "c2", apart=("c0", "c1"))


@pytest.mark.parametrize(
    ("graph", "box", "options"),
    [
        # Cuts that fill a device to the brim leave no room for what arrives there.
        *((chain(30), gpus(3, size), {}) for size in (60, 85)),
        # Where no single device has the room, a split is found in no time as well.
        *((chain(6), gpus(3, 20), NO_TIME | {"objective": one}) for one in OBJECTIVES),
        # Where first wishes have no room, the others count, however parts must cohere.
        *(
            (chain(8), SMALL, LISTS | {"objective": one, "contiguity": each})
            for one in ("throughput", "memory")
            for each in (None, "convex", "pipeline")
        ),
        # If no fast placement fits, the one of least memory does.
        (RANDOM, grown(BOX, 2.2), {"pins": PINS}),
    ],
)
def test_what_fits_is_found(graph, box, options):
    plan = plan_graph(graph, box, **options)
    assert has_room(plan)
    assert len(set(plan.device_of.values())) > 1


def test_infeasible_pin_names_needs_rooms_and_remedies():
    box = Cluster.of("2*gpu", "cpu", memory="14 MiB")
    with pytest.raises(InfeasibleError) as caught:
        plan_graph(two_towers(on=("gpu:0", "gpu:0")), box)
    first, needs, gpu0, *_, total, last = str(caught.value).splitlines()
    said = "branch 'see' (with 1 near it) does not fit on gpu:0, where it is declared."
    assert first == said
    assert needs.startswith("  needs     10.0 MiB  weights 2.00 MiB, gradients")
    assert gpu0.startswith("  gpu:0")
    assert "'tell' is pinned there with 6.00 MiB; updates and copies take" in gpu0
    assert total.startswith("  in all")
    assert """on="gpu" instead of on="gpu:0" for 'see'""" in last


@pytest.mark.parametrize(
    ("graph", "pins", "memory", "cpu_memory", "said"),
    [
        (chain(2), {"*": "cpu"}, "1 GiB", "4 MiB", "fit on cpu:0, where it must be."),
        (wide(2), {}, "2 MiB", "3 MiB", "does not fit on any device it may use"),
        (APART, {}, "2 MiB", "3 MiB", "does not fit on any device it may use"),
        (wide(3), {}, "8 MiB", "8 MiB", "do not fit together"),
        (chain(2), {"*": "gpu"}, "3 MiB", "9 GiB", "6.00 MiB on gpu:0, gpu:1\n"),
        (SLICE, {"*": "gpu:0"}, "3 MiB", "9 GiB", "declared or the strategy put it."),
    ],
)
def test_infeasible_says_what_does_not_fit(graph, pins, memory, cpu_memory, said):
    box = Cluster.of("2*gpu", "cpu", memory=memory, cpu_memory=cpu_memory)
    with pytest.raises(InfeasibleError, match=re.escape(said)):
        plan_graph(graph, box, pins=pins)


def test_a_contiguity_is_given_up_or_kept_by_more_devices():
    with pytest.raises(InfeasibleError, match='try +contiguity="free", or 1 more dev'):
        plan_graph(ZIGZAG, gpus(2, 64), objective="throughput", contiguity="convex")


def changed(remedy, case, less):
    """The case with a remedy as it is said, or with a little less of it."""
    graph, box, pins = case
    if found := re.match(r"batch <= (\d+)$", remedy):
        graph = scaled_graph(graph, int(found[1]) + less)
    elif found := re.match(r"([\d.]+) times the memory everywhere$", remedy):
        box = grown(box, float(found[1]) - 0.1 * less)
    elif found := re.match(r'on="(\w+)" instead of on="gpu:0" for (.*)$', remedy):
        names = re.findall(r"'(.+?)'", found[2])
        pins = pins | dict.fromkeys(names[: len(names) - less], found[1])
    else:
        found = re.match(r"(\d+) more devices? like gpu:0$", remedy)
        gpu, start = box["gpu:0"], len(box.of_kind("gpu"))
        for i in range(start, start + int(found[1]) - less):
            new = replace(gpu, name=f"gpu:{i}", target=f"/device:GPU:{i}")
            box = replace(box, devices=(*box.devices, new))
    return graph, box, pins


@pytest.mark.parametrize(
    ("case", "kinds", "least"),
    [
        (small_machine(6), "batch times", False),
        # Three calls on one device run as one function, which needs more than they do.
        (small_machine(55, 0.7), "batch devices times", False),
        ((chain(8), SMALL, ALL_ON_ONE), "instead times", True),
        ((chain(4), gpus(1, 10), {}), "devices times", True),
        ((chain(3), gpus(1, 14), {}), "batch times", True),
        ((chain(3), gpus(1, 1.3), {}), "times", True),  # 11.55, not 11.5
        ((two_towers(), gpus(2, 14), {"*": "gpu:0"}), "instead", False),
        ((ALL_APART, gpus(2, 1024), {}), "device", False),
    ],
)
def test_every_remedy_that_is_named_helps(case, kinds, least, monkeypatch):
    """Each is typed as it is said, and planned; of parts the least is named."""
    for module in ("planner", "engine.budget"):  # searches end by their steps alone
        monkeypatch.setattr(f"splitnet.planner.{module}.monotonic", lambda: 0.0)
    (graph, box, pins), regroup = case, not least
    with pytest.raises(InfeasibleError) as caught:
        plan_graph(graph, box, pins=pins, regroup=regroup)
    remedies = re.search(r"try +(.*)$", str(caught.value))[1].split(", or ")
    assert all(any(kind in one for one in remedies) for kind in kinds.split()), remedies
    for one in remedies:
        there, machine, pinned = changed(one, case, less=0)
        assert has_room(plan_graph(there, machine, pins=pinned, regroup=regroup)), one
        if least:
            there, machine, pinned = changed(one, case, less=1)
            with pytest.raises(NothingFitsError):
                search(there, machine, PlanOptions(pins=pinned, effort=50_000))


def test_what_does_not_do_is_given_up_after_two_tries(monkeypatch):
    """In the middle of the range and at its end: of batches, devices and memory."""
    tries = []
    monkeypatch.setattr(planner, "fits_somewhere", lambda *a: tries.append(a))
    with pytest.raises(InfeasibleError, match="nothing was found that would do"):
        plan_graph(chain(3), gpus(1, 1))
    assert len(tries) == 2 * 3
