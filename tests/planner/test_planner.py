import random
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, DeviceError
from splitnet.core.graph import Graph, Part
from splitnet.core.plan import OBJECTIVES
from splitnet.planner.evaluate import score
from tests.planner.quick import find_plan, plan_graph
from tests.zoo import (
    MIB,
    call,
    chain,
    diamond,
    graph_of,
    random_dag,
    shared,
    two_towers,
    wide,
)

BOX = Cluster.of("2*gpu", "cpu")
SMALL = Cluster.of("2*gpu", "cpu", memory="700 MiB")
seeds = st.integers(0, 10_000)
quick = settings(max_examples=8, deadline=None, derandomize=True)


def best_single(graph: Graph, cluster: Cluster) -> float:
    """The best time of everything on one device that fits, pins not looked at."""
    times = []
    for device in cluster:
        everything = {p.name: device.name for p in graph.parts if p.kind != "input"}
        plan = score(graph, cluster, everything)
        room = all(plan.memory[d.name].total <= d.memory_bytes for d in cluster)
        times += [plan.seconds] if room else []
    return min(times, default=float("inf"))


@quick
@given(seeds)
def test_plan_is_never_worse_than_one_device(seed):
    """A free graph is placed at least as well as on the best device alone."""
    graph = random_dag(seed, 7)
    plan = find_plan(graph, BOX, cut_penalty=0.0)

    assert plan.seconds <= best_single(graph, BOX) * (1 + 1e-12)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seeds, st.sampled_from(["latency", "memory"]))
def test_bound_is_below_every_plan(seed, objective):
    """No placement of a random graph is better than the bound of any strategy."""
    graph = random_dag(seed, 5)
    plan = find_plan(graph, BOX, objective=objective, time_limit=0.0)
    draw = random.Random(seed)
    for _ in range(20):
        device_of = {
            p.name: draw.choice(["gpu:0", "gpu:1", "cpu:0"])
            for p in graph.parts
            if p.kind != "input"
        }
        other = score(graph, BOX, device_of, objective=objective)
        assert plan.bound <= other.value
        assert other.bound <= other.value


def test_plan_keeps_pins_and_the_merge_on_the_cpu():
    """The page of the design: two towers, a CPU merge, a head near the first."""
    plan = find_plan(two_towers(), BOX)

    assert plan.device_of == {
        "image": "cpu:0",
        "words": "cpu:0",
        "see": "gpu:0",
        "tell": "gpu:1",
        "join": "cpu:0",
        "head": "gpu:0",
    }
    assert [p.reason for p in plan.placements] == [
        "input",
        "input",
        "pin",
        "pin",
        "merge",
        "near",
    ]


def test_plan_spreads_parallel_branches():
    """Heavy branches side by side use both GPUs."""
    plan = find_plan(wide(4), BOX)
    branches = [plan.device_of[f"b{i}"] for i in range(4)]

    assert sorted(branches) == ["gpu:0", "gpu:0", "gpu:1", "gpu:1"]


def test_plan_keeps_a_chain_together():
    """A chain gains nothing from a second device, so it stays on one."""
    plan = find_plan(chain(5), BOX)

    assert {plan.device_of[f"c{i}"] for i in range(5)} == {"gpu:0"}


def test_plan_cuts_a_chain_that_does_not_fit():
    """Memory forces a cut: both GPUs are used, and neither is overfull."""
    box = Cluster.of("2*gpu", "cpu", memory="25 MiB")
    plan = find_plan(chain(8), box)

    assert len({plan.device_of[f"c{i}"] for i in range(8)}) >= 2
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in box)


def test_plan_for_memory_spreads_bytes():
    """The objective "memory" lowers the fullest device below one device's total."""
    plan = find_plan(wide(4), BOX, objective="memory")
    alone = score(wide(4), BOX, {f"b{i}": "gpu:0" for i in range(4)} | {"join": "cpu"})

    assert plan.value == max(m.total for m in plan.memory.values())
    assert plan.value < max(m.total for m in alone.memory.values())


@pytest.mark.parametrize("seed", range(2))
def test_plan_for_memory_in_one_piece_each(seed):
    """A convex plan for memory returns to no device, and is about as good as cuts."""
    graph = chain(9)
    draw = random.Random(seed)
    weights = tuple(
        replace(one, bytes=draw.randint(1, 9) * MIB) for one in graph.weights
    )
    graph = replace(graph, weights=weights)
    plan = find_plan(
        graph,
        BOX,
        objective="memory",
        contiguity="convex",
        cut_penalty=0.0,
        time_limit=30.0,
        effort=1_000_000,
        seed=seed,
    )
    at = [plan.device_of[part.name] for part in graph.parts]
    runs = [d for i, d in enumerate(at) if not i or at[i - 1] != d]

    assert len(runs) == len(set(runs)) > 1
    assert plan.bound <= plan.value == max(m.total for m in plan.memory.values())
    for one, two in combinations(range(len(at) + 1), 2):
        cut = ["cpu:0"] * one + ["gpu:0"] * (two - one) + ["gpu:1"] * (len(at) - two)
        there = dict(zip([part.name for part in graph.parts], cut))
        other = score(graph, BOX, there | {"x": "cpu:0"}, objective="memory")
        assert plan.value <= 1.02 * other.value


def test_plan_for_memory_goes_round_what_is_pinned():
    """Merges on the CPU do not bring everything else there."""
    graph = wide(4)
    plan = find_plan(graph, BOX, objective="memory", contiguity="convex")
    free = find_plan(graph, BOX, objective="memory")

    assert plan.device_of["join"] == "cpu:0"
    assert plan.value == free.value


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plan_is_valued_like_its_placement(objective):
    """The value of a plan is the value of its placement when a person gives it."""
    graph = wide(4)
    plan = find_plan(graph, BOX, objective=objective, time_limit=1.0)
    again = score(graph, BOX, plan.device_of, objective=objective)

    assert plan.value == pytest.approx(again.value)
    assert 0 < again.bound <= again.value
    assert plan.device_of["join"] == "cpu:0"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plan_keeps_near_and_apart_for_every_objective(objective):
    """Two parts that must be apart are, and one stays near another."""
    graph = wide(4)
    parts = (
        *graph.parts[:2],
        replace(graph.part["b1"], apart=("b0",)),
        replace(graph.part["b2"], near=("b0",)),
        replace(graph.part["b3"], apart=("b0", "b1")),
        graph.part["join"],
    )
    plan = find_plan(
        replace(graph, parts=parts), BOX, objective=objective, time_limit=0.5
    )
    at = plan.device_of

    assert at["b2"] == at["b0"]
    assert len({at["b0"], at["b1"], at["b3"]}) == 3
    assert 0 <= plan.bound <= plan.value


def test_plan_counts_slots_by_optimizer():
    """Adam keeps two copies beside each weight, SGD none."""
    adam = find_plan(chain(), BOX, optimizer="adam").memory["gpu:0"]
    sgd = find_plan(chain(), BOX, optimizer="sgd").memory["gpu:0"]

    assert (adam.slots, sgd.slots) == (6 * MIB, 0)
    assert adam.weights == sgd.weights == 3 * MIB


def test_plan_reports_progress():
    """The best value so far only falls."""
    seen: list[float] = []
    plan = find_plan(
        random_dag(3, 14),
        BOX,
        cut_penalty=0.0,
        on_progress=lambda _, value: seen.append(value),
    )

    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == plan.value


def test_an_interrupt_is_raised():
    """Ctrl-C ends planning without a plan."""

    def interrupt(_share: float, _best: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_plan(random_dag(3, 14), BOX, on_progress=interrupt)


@pytest.mark.parametrize("time_limit", [0.0, 1.0])
@pytest.mark.parametrize("regroup", [False, True])
def test_a_chain_of_blocks_does_not_cross_devices_for_next_to_nothing(
    regroup, time_limit
):
    """The cut penalty holds for declared parts as for the calls of a model."""
    box = Cluster.of("8*gpu", "cpu")
    alone = score(chain(24), box, {"*": "gpu:0"})
    plan = find_plan(chain(24), box, regroup=regroup, time_limit=time_limit)
    used = {device for part, device in plan.device_of.items() if part != "x"}

    assert len(used) == 1 or plan.value < 0.98 * alone.value


def test_plan_of_the_shared_layer_counts_its_weight_once():
    """One variable, one home, whoever calls it."""
    plan = find_plan(shared(), BOX)

    assert dict(plan.home) == {"encoder/w": "gpu:0"}
    assert sum(m.weights for m in plan.memory.values()) == MIB


def test_plan_of_an_empty_choice_says_only_choice():
    """On a machine of one device there is nothing to choose."""
    plan = find_plan(chain(1), Cluster.of("cpu"))

    assert plan["c0"].reason == "only choice"


def test_score_judges_a_persons_plan():
    """A placement given by hand has its own value and the reason "given"."""
    plan = score(diamond(), BOX, dict.fromkeys(["top", "left", "right", "join"], "gpu"))

    assert plan.device_of["left"] == "gpu:0"
    assert {p.reason for p in plan.placements} == {"given"}
    assert plan.gap > 0


def test_score_names_forgotten_parts():
    """Every part needs a device, and the message says which have none."""
    with pytest.raises(DeclarationError, match="left out: top, join. A pattern"):
        score(diamond(), BOX, {"left": "cpu", "right": "cpu"})


def test_score_names_an_unknown_device():
    """A device that is not there is named with those that are."""
    with pytest.raises(DeviceError, match=r"part 'c0': there is no device 'gpu:7'"):
        score(chain(1), BOX, {"c0": "gpu:7"})


def test_plan_of_parts_without_calls_is_complete():
    """A part that holds no call is placed too."""
    graph = chain(1)
    graph = replace(graph, parts=(*graph.parts, Part("empty")))

    assert set(find_plan(graph, BOX).device_of) == {"x", "c0", "empty"}


@pytest.mark.parametrize("memory", ["16 GiB", "30 MiB"])
def test_calls_are_judged_by_the_functions_that_run(memory: str) -> None:
    """Blocks of four branches: two GPUs gain, with time and memory of the functions."""
    calls = [call("x", kind="InputLayer", flops=0.0, activation_bytes=0)]
    edges, end = [], "x"
    for block in range(6):
        ends = []
        for branch, flops in enumerate((4e10, 8e10, 8e10, 16e10)):
            names = [f"b{block}_{branch}_{i}" for i in range(3)]
            calls += [call(name, flops=flops) for name in names]
            edges += zip([end, *names], names)
            ends.append(names[-1])
        end = f"mix{block}"
        calls.append(call(end, flops=1e7))
        edges += [(one, end) for one in ends]
    graph = graph_of("blocks", calls, edges)
    cluster = Cluster.of("2*gpu", "cpu", memory=memory, link="12 GB/s")

    plan = plan_graph(
        graph, cluster, regroup=True, effort=300_000, time_limit=30.0, seed=1
    )

    where = {one.name: plan.device_of[one.part] for one in plan.graph.calls}
    as_run = score(graph, cluster, where, regroup=True)
    assert as_run.seconds == pytest.approx(plan.seconds)
    assert all(as_run.memory[d.name].total <= d.memory_bytes for d in cluster)
    assert plan.transfers
