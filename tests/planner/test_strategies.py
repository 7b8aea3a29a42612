"""Towers, pipelines and one device, on plain values and by the same costs."""

from dataclasses import replace
from functools import partial

import pytest

import splitnet as sn
from splitnet.core import replication
from splitnet.core.graph import Towers
from splitnet.core.timeline import Execution
from splitnet.planner.constraints import with_pins
from splitnet.planner.evaluate import executed
from splitnet.planner.strategies.candidates import compare_plan
from splitnet.simulator.units import scaled_graph
from splitnet.view.dot import dot_of
from tests.planner.quick import plan_graph
from tests.zoo import altered, chain, wide

BOX = sn.Cluster.of("2*gpu", "cpu")
HALVES = {"c[01]": "gpu:0", "c[23]": "gpu:1"}


def two_stages(box=BOX):
    """Four equal calls, the first half on one GPU, the rest on the other."""
    return plan_graph(chain(4, flops=4e11), box, pins=HALVES)


def test_the_fastest_of_a_heavy_chain_is_named():
    """A chain gains nothing from its own plan; towers and a pipeline do."""
    plan = two_stages()
    found, said = compare_plan(plan), str(plan.verdict)
    assert found.best.kind == "towers"
    assert found["pipeline"].seconds < found["one device"].seconds
    assert "times as fast as one device" in str(found)
    assert "strategies: towers " in said
    assert "faster than this plan: plan(source, cluster, strategy='auto'" in said
    forward = partial(plan_graph, chain(4), BOX, training=False, regroup=True)
    verdict, whole = forward(pins=HALVES).verdict, forward(pins={"*": "gpu:0"})
    assert (verdict.strategies, verdict.single_device_value) == (None, whole.value)
    assert plan_graph(chain(4), sn.Cluster.of("400*gpu")).verdict.strategies is None
    tight = sn.Cluster.of("2*gpu", "cpu", memory=found["one device"].peak_bytes - 1)
    for one in (plan.verdict, two_stages(tight).verdict):
        assert one.single_device_value == one.strategies["one device"].seconds
    assert all(row.peak_bytes and row.devices for row in found)
    assert all(f"{row.how}: {row.reason}" in str(found) for row in found.all)


def test_a_step_of_views_takes_no_time_on_any_device():
    calls = tuple(replace(call, kind="Flatten", weights=()) for call in chain(2).calls)
    plan = sn.plan(replace(chain(2), calls=calls, weights=()), BOX, strategy="auto")
    assert "0 s a step; no gain over" in str(plan.verdict)
    assert "is fastest; not worth distributing" in str(compare_plan(plan))


def test_a_chain_on_one_device_is_cut_into_stages():
    """A pipeline needs stages; where the plan has none, they are of equal work."""
    found = compare_plan(plan_graph(chain(4, flops=4e11), BOX, pins={"*": "gpu:0"}))
    pins = {"c[01]": "cpu:1", "c[23]": "cpu:2"}
    cpus = plan_graph(chain(4, flops=4e11), sn.Cluster.of("3*cpu"), pins=pins)
    assert "strategy='auto', microbatches=" in found["pipeline"].how
    assert found["pipeline"].seconds < 0.6 * found["one device"].seconds
    assert {"cpu:1", "cpu:2"} <= set(compare_plan(cpus)["towers"].devices)
    with pytest.raises(sn.PlanFileError, match="no strategy 'pipeline' was tried.*one"):
        compare_plan(plan_graph(chain(1), sn.Cluster.of("gpu", "cpu")))["pipeline"]


def test_a_row_frees_a_source_of_what_it_asks_for():
    """What is typed gives the row, or the row says what its source may not have."""
    source = with_pins(chain(4, flops=4e11), {"*": "gpu:1"})
    other = altered(source, "parts", "c3", on=("gpu:0",), apart=("c0",))
    rows, bound = (compare_plan(plan_graph(g, BOX)) for g in (source, other))
    known = {"plan": partial(sn.plan, effort=3000), "source": source, "cluster": BOX}
    merged = altered(wide(2), "calls", "join", forward_flops=1e11)  # on the CPU
    for row in (rows[kind] for kind in ("towers", "pipeline", "one device")):
        made = eval(row.how, known)
        assert made.seconds == pytest.approx(row.seconds, rel=0.03), row.how
    assert bound["towers"].how.endswith("{'*': 'auto'}): where source has no apart=")
    row = compare_plan(sn.plan(merged, BOX, effort=9))["one device"]
    assert eval(row.how, known | {"source": merged}).seconds == row.seconds, row.how


def test_the_client_of_workers_computes_nothing_that_does_not_ask_for_it():
    """Neither a plan nor any strategy uses its CPU; a pin does, and joining towers."""
    cluster = sn.Cluster.of("cpu", "worker:0/cpu", "worker:1/cpu")
    plan = plan_graph(chain(4, flops=4e11), cluster)
    pinned = plan_graph(chain(4, flops=4e11), cluster, pins={"c0": "cpu:0"})
    rows = compare_plan(plan).all
    assert {row.kind for row in rows if "cpu:0" in row.devices} <= {"towers"}
    assert {row.kind for row in rows} >= {"one device", "towers", "pipeline"}
    assert plan.timeline.compute_seconds["cpu:0"] == 0
    assert pinned.device_of["c0"] == "cpu:0"
    assert not sn.plan(chain(4), cluster, effort=9, strategy="auto", towers=2).fallbacks


def test_a_plan_that_runs_another_way_is_simulated_so():
    """Timeline, memory and value are those of the execution; no bound is known."""
    plan, how = two_stages(), Execution(4, "1f1b", ("gpu:0",))
    piped = executed(plan, how)
    assert piped.timeline == sn.simulate(piped)
    assert piped.bound == 0.0 < piped.value == piped.seconds < plan.seconds
    assert {task.microbatch for task in piped.timeline.tasks} == {0, 1, 2, 3}
    assert sn.simulate(piped, microbatches=1, recompute=False) == plan.timeline
    said = " ".join(sn.table(piped).split())
    assert "runs in 4 micro-batches (1f1b), recomputing on gpu:0" in said
    assert all("in 4 micro-batches" in text for text in (repr(piped), dot_of(piped)))
    again = executed(plan, Execution(recompute=("gpu:1",)))
    spent = [one.timeline.compute_seconds for one in (plan, again)]
    assert spent[0]["gpu:0"] == pytest.approx(spent[1]["gpu:0"])
    assert spent[0]["gpu:1"] < spent[1]["gpu:1"]
    assert plan.memory["gpu:0"] == again.memory["gpu:0"]


def towered(graph, part, count):
    towers = {part: Towers(tuple((f"gpu:{i}",) for i in range(count)))}
    sizes = {max(1, n) for n in replication.batch_shares(graph.batch, count)}
    return replication.expand(graph, {n: scaled_graph(graph, n) for n in sizes}, towers)


def test_expanded_towers_share_the_work_and_none_of_it_is_lost():
    """One part becomes three towers, the home of their weights, and the join."""
    plain, graph = chain(2), towered(chain(2), "c0", 3)
    mine = [c for c in graph.calls if c.part in ("c0/0", "c0/1", "c0/2")]
    parts = ["x", "c0/weights", "c0/0", "c0/1", "c0/2", "c0", "c1"]
    assert [part.name for part in graph.parts] == parts
    assert graph.parts_of_weights["c0/w"][0] == "c0/weights"
    joined = [t.source for t in graph.tensors if t.target == "c0/join"]
    assert joined == ["c0/0/c0", "c0/1/c0", "c0/2/c0"]
    flops = sum(c.forward_flops for c in mine)
    assert flops == pytest.approx(plain.call["c0"].forward_flops)
    assert [c.output_shapes[0][0] for c in mine] == [11, 11, 10]


@pytest.mark.parametrize(
    ("count", "samples"), [(1, (11, 11, 10)), (5, (12, 10, 10)), (20, (20, 20, 20))]
)
def test_towers_share_each_piece_of_a_batch_anew(count, samples):
    """32 over 3 are 11, 11, 10; in 20 pieces each has one of each."""
    assert replication.microbatch_growth(towered(chain(), "c1", 3), count, 32) == {
        f"c1/{i}": most / share
        for i, (most, share) in enumerate(zip(samples, (11, 11, 10)))
    }


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_pipeline_never_beats_the_ideal_and_comes_near_it(schedule):
    """M micro-batches in S stages take (M + S - 1) / (M * S) of the work, at least."""
    plan = two_stages()
    for count in (2, 4, 8, 16):
        timeline = sn.simulate(plan, microbatches=count, schedule=schedule)
        ran = [(t.part, t.phase, t.microbatch) for t in timeline.tasks if t.part != "x"]
        ideal = plan.seconds * (count + 1) / (2 * count)
        assert ideal <= timeline.seconds <= 1.02 * ideal
        assert len(set(ran)) == len(ran) == 4 * (count + count) + 4
