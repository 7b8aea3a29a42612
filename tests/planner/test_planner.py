"""Plans: constraints kept, the right devices used, values those of the simulator."""

import random
from dataclasses import replace
from itertools import groupby

import pytest

import splitnet as sn
from splitnet.core.graph import Graph, Part
from splitnet.core.plan import OBJECTIVES
from splitnet.planner.evaluate import score
from tests.planner.quick import has_room, plan_graph
from tests.zoo import MIB, altered, chain, random_dag, wide

BOX = sn.Cluster.of("2*gpu", "cpu")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", ["latency", "memory"])
def test_plan_is_between_its_bound_and_every_device(seed, objective):
    """No placement is below a bound, and no single device is better than the plan."""
    graph, draw = random_dag(seed, 6), random.Random(seed)
    plan = plan_graph(graph, BOX, objective=objective, cut_penalty=0.0)
    names, parts = [device.name for device in BOX], [p.name for p in graph.parts[1:]]
    mixed = [{part: draw.choice(names) for part in parts} for _ in range(8)]
    for device_of in (*[{"*": name} for name in names], *mixed):
        other = score(graph, BOX, device_of, objective=objective)
        assert max(plan.bound, other.bound) <= other.value
        assert device_of in mixed or plan.value <= other.value * (1 + 1e-12)


@pytest.mark.parametrize("contiguity", ["convex", "pipeline"])
def test_plan_in_one_piece_each_returns_to_no_device(contiguity):
    """Weights of any size on three devices: each has one run of the chain."""
    graph, draw = chain(9), random.Random(0)
    sizes = (replace(w, bytes=draw.randint(1, 9) * MIB) for w in graph.weights)
    graph = replace(graph, weights=tuple(sizes))
    how = {"objective": "memory", "cut_penalty": 0.0}
    both = "free", contiguity
    free, plan = (plan_graph(graph, BOX, contiguity=one, **how) for one in both)
    assert plan_graph(graph, BOX, regroup=True, **how).value < 100 * MIB  # not convex
    where = [[one.device_of[p.name] for p in graph.parts] for one in (free, plan)]
    runs = [[device for device, _ in groupby(its)] for its in where]
    assert len(runs[0]) > len(set(runs[0]))
    assert len(runs[1]) == len(set(runs[1])) > 1


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_plan_keeps_constraints_and_is_valued_like_its_placement(objective):
    """Two parts that must be apart are, one stays near another, the merge at home."""
    graph = altered(wide(4), "parts", "b1", apart=("b0",))
    graph = altered(graph, "parts", "b2", near=("b0",))
    graph = altered(graph, "parts", "b3", apart=("b0", "b1"))
    plan = plan_graph(graph, BOX, objective=objective)
    again = score(graph, BOX, plan.device_of, objective=objective)
    at = plan.device_of
    assert (at["b2"], at["join"]) == (at["b0"], "cpu:0")
    assert len({at["b0"], at["b1"], at["b3"]}) == 3
    assert plan.value == pytest.approx(again.value)
    if objective == "memory":
        assert plan.value == max(m.total for m in plan.memory.values())
        fastest = plan_graph(wide(6), BOX, objective=objective)
        assert fastest.seconds < score(wide(6), BOX, {"*": "gpu:0"}).seconds
    assert 0 < max(again.bound, plan.bound) <= again.value * (1 + 1e-12)


def test_plan_reports_progress():
    seen = list[float]()
    how = {"cut_penalty": 0.0, "on_progress": lambda _, value: seen.append(value)}
    plan = plan_graph(random_dag(3, 14), BOX, **how)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == plan.value


@pytest.mark.parametrize("how", [{"time_limit": 0.0}, {}], ids=str)
@pytest.mark.parametrize("regroup", [False, True])
def test_a_chain_of_blocks_does_not_cross_devices_for_next_to_nothing(regroup, how):
    """The cut penalty holds for declared parts as for the calls of a model."""
    box = sn.Cluster.of("4*gpu", "cpu")
    alone = score(chain(16), box, {"*": "gpu:0"})
    plan = plan_graph(chain(16), box, regroup=regroup, **how)
    used = {device for part, device in plan.device_of.items() if part != "x"}
    assert len(used) == 1 or plan.value < 0.98 * alone.value


def test_plan_without_a_choice_is_complete():
    """On a machine of one device; a part that holds no call is placed, too."""
    parts = (*chain(1).parts, Part("empty"))
    plan = plan_graph(replace(chain(1), parts=parts), sn.Cluster.of("cpu"))
    assert plan["c0"].reason == "only choice"
    assert dict(plan.device_of) == dict.fromkeys(("x", "c0", "empty"), "cpu:0")
    for objective in OBJECTIVES:  # and of no call at all
        assert plan_graph(Graph("none", 1, (), ()), BOX, objective=objective).value == 0


def test_plan_for_hundreds_of_devices_is_searched_in_time():
    boxes = (sn.Cluster.of(f"{count}*gpu", "cpu") for count in (8, 256))
    few, many = (plan_graph(wide(6), box, time_limit=1.0).value for box in boxes)
    assert many == few


def test_score_judges_a_persons_plan():
    plan = score(wide(2), BOX, dict.fromkeys(["b0", "b1", "join"], "gpu"))
    assert plan.device_of["b1"] == "gpu:0"
    assert {p.reason for p in plan.placements} == {"given"}
    assert plan.gap > 0
    with pytest.raises(sn.DeclarationError, match="left out: b2, join. A pattern"):
        score(wide(3), BOX, {"b0": "cpu", "b1": "cpu"})
    with pytest.raises(sn.DeviceError, match=r"part 'c0': there is no device 'gpu:7'"):
        score(chain(1), BOX, {"c0": "gpu:7"})


@pytest.mark.parametrize("share", [2.0, 0.7])
def test_calls_are_judged_by_the_functions_that_run(share):
    """Whatever fits: time and memory are those of the functions that calls make."""
    graph = random_dag(5, 25)
    alone = score(graph, BOX, {"*": "gpu:0"}).memory["gpu:0"].total
    box = sn.Cluster.of("2*gpu", "cpu", memory=int(share * alone), link="12 GB/s")
    plan = plan_graph(graph, box, regroup=True, seed=1)
    where = {one.name: plan.device_of[one.part] for one in plan.graph.calls}
    as_run = score(graph, box, where, regroup=True)
    assert as_run.seconds == pytest.approx(plan.seconds)
    assert has_room(as_run)
    assert plan.transfers
    assert len(plan.graph.parts) < len(graph.parts)
