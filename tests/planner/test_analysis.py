"""What is said of plans, of other costs and of other batches, and that it is so."""

import re
from dataclasses import replace

import pytest

import splitnet as sn
from splitnet.core.costs import CallSeconds, Costs
from splitnet.core.timeline import Execution
from splitnet.planner.evaluate import score
from tests.planner.quick import plan_graph
from tests.zoo import MIB, chain, random_dag, shared, two_towers, wide

BOX, GPU = sn.Cluster.of("2*gpu", "cpu"), {"*": "gpu"}
SMALL = sn.Cluster.of("2*gpu", "cpu", memory="30 MiB", cpu_memory="10 MiB")


@pytest.mark.parametrize(
    ("graph", "cluster", "speed_up", "said"),
    [
        (two_towers(), BOX, 1.97, "1.96 times faster than gpu:0"),
        (shared(flops=1e8), BOX, 0.70, "slower than gpu:0 alone.*not worth distribut"),
        (chain(), BOX, 1.0, "no gain over gpu:0 alone"),
        (chain(8), SMALL, None, "fits no single device"),
    ],
)
def test_verdict_compares_with_the_best_device(graph, cluster, speed_up, said):
    """Two equal towers are nearly twice as fast; small branches lose."""
    verdict = plan_graph(graph, cluster).verdict
    assert re.search(said, str(verdict))
    assert verdict.speed_up == pytest.approx(speed_up, abs=0.03)
    assert verdict.worth_distributing == (speed_up != 0.70)


def test_verdict_looks_at_every_device_that_differs():
    """Equal GPUs are not the same where one has the better road to the host."""
    slow = sn.Link("cpu:0", "gpu:0", 1e8), sn.Link("gpu:0", "cpu:0", 1e8)
    box = replace(BOX, links=(*slow, *BOX.links))
    verdict = plan_graph(two_towers(), box).verdict
    alone = score(two_towers(), box, {"*": "gpu:1"})
    assert verdict.single_device == "gpu:1"
    assert verdict.single_device_value == pytest.approx(alone.value)
    costs = Costs((CallSeconds("Dense (8192)", "gpu", 1.0, rows=32, flops=1e10),))
    calls = tuple(replace(call, moved_bytes=1.0) for call in chain(2).calls)
    some = sn.plan(replace(chain(2), calls=calls), BOX, pins=GPU, costs=costs)
    assert "; times of 1 of 3 calls are estimated, not" in str(some.verdict)
    t4 = sn.Device.of("gpu", preset="T4")
    for more, said in (
        ({"stand_ins": True}, "of GPUs were measured on CPU stand-ins"),
        ({"measured_on": (t4,)}, "of gpu:0, gpu:1 were measured on GPUs of another sp"),
    ):
        away = replace(some, costs=replace(costs, **more))
        assert f"; times {said}" in str(replace(some.verdict, plan=away))
    full = sn.score(chain(2), sn.Cluster.of("gpu", "cpu", memory=1), GPU)
    assert "optimal" not in str(full.verdict)


def test_following_all_advice_saves_what_it_says():
    """Every line holds after those before it, so no two lines cancel each other."""
    pins = {"left": "gpu:0", "right": "gpu:1"}
    before = plan_graph(shared(flops=1e8), BOX, pins=pins)
    value, said = before.value, r"'(\w+)'.* costs (\d+) %: on='(.*)' would"
    for line in before.verdict.advice:
        name, share, device = re.search(said, line).groups()
        pins[name] = device
        value *= 1 - int(share) / 100
    advice, *_ = plan_graph(shared(flops=1e8), BOX).verdict.advice
    assert before.verdict.advice
    assert plan_graph(shared(flops=1e8), BOX, pins=pins).value <= value * 1.02
    assert advice == "the CPU merge 'join' costs 25 %: on='gpu:1' would save it"


def test_explain_gives_the_reason_and_the_other_devices():
    plan = plan_graph(two_towers(), BOX)
    explanation = plan.explain("tell")
    reasons = {p.part: p.reason for p in plan.placements}
    there = score(two_towers(), BOX, dict(plan.device_of) | {"tell": "gpu:0"})
    assert [reasons[n] for n in ("see", "join", "head")] == ["pin", "merge", "near"]
    assert explanation.reason == "it is pinned there: on='gpu:1'"
    assert [a.device for a in explanation.alternatives] == ["gpu:0", "cpu:0"]
    assert explanation.alternatives[0].value == there.value > explanation.value
    assert "longer" in str(explanation)
    words = "has no 'sea'. Name one of: image, words"
    with pytest.raises(sn.PlanFileError, match=words):
        plan.explain("sea")


def test_explain_quotes_fallbacks_ties_and_memory_and_takes_a_layers_name():
    plan = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX)
    calls = tuple(replace(c, layer=f"dense_{c.name}") for c in chain(2).calls)
    named = plan_graph(replace(chain(2), calls=calls), BOX)
    box = sn.Cluster.of("2*gpu", "cpu", memory="150 MiB")
    cut = plan_graph(chain(8, out=16 * MIB), box)
    assert plan.explain("tell").reason == "gpu:5 is not available; another gpu is used"
    listed = plan_graph(two_towers(), BOX, pins={"tell": ["gpu:1", "gpu:0"]})
    assert listed.explain("tell").reason.endswith("there: on=['gpu:1', 'gpu:0']")
    assert named.explain("dense_c1").placement == named["c1"] == named["dense_c1"]
    assert plan_graph(chain(1), BOX).explain("c0").reason.endswith("would do as well")
    full = [cut.explain(p.part) for p in cut.placements if p.reason == "memory"]
    assert {all(a.fits for a in one.alternatives) for one in full} == {False}


@pytest.mark.parametrize(
    ("objective", "unit", "best"),
    [
        ("latency", "a step", "the step is shortest"),
        ("throughput", "on the busiest device", "the busiest device has least to do"),
        ("memory", "on the fullest device", "the fullest device holds least"),
    ],
)
def test_words_and_reasons_agree_with_the_objective(objective, unit, best):
    """All count the plan's objective; a tie has an equal, "cost" none that fits."""
    plan = plan_graph(random_dag(3, 6), BOX, objective=objective)
    texts = [str(plan.explain(part.name)) for part in plan.graph.parts[1:]]
    assert not plan.explain("x").alternatives  # an input
    assert unit in str(plan.verdict).partition("\n")[0]
    assert all(unit in text for text in texts)
    assert any(best in text for text in texts)
    for seed in range(3):
        plan = plan_graph(random_dag(seed, 5), BOX, objective=objective)
        for part in plan.placements:
            others = [a for a in plan.explain(part.part).alternatives if a.fits]
            equal = [a for a in others if a.value <= plan.value * (1 + 1e-9)]
            if part.reason in ("tie", "cost"):
                assert (part.reason == "tie") == bool(equal)


@pytest.mark.parametrize(
    ("objective", "row"), [("latency", "fullest"), ("throughput", "busiest")]
)
def test_compare_tells_what_moved(objective, row):
    options = {"objective": objective}
    plan = plan_graph(wide(2), BOX, **options, pins={"b0": "gpu:0", "b1": "gpu:1"})
    other = plan_graph(wide(2), BOX, **options, pins={"b[01]": "gpu:0"})
    comparison = plan.compare(other)
    assert comparison.moved == (("b1", "gpu:1", "gpu:0"),)
    for said in ("1 part moved.", "b1: gpu:1 -> gpu:0", "% longer", "% more", row):
        assert said in str(comparison)
    cut = plan.compare(replace(plan, execution=Execution(2)))
    assert str(cut).startswith("nothing moved.\nruns      at once -> in 2 micro")


def test_compare_of_other_parts_tells_runs_of_calls():
    """Calls that moved side by side stand on one line."""
    where = {f"c{i}": f"gpu:{i // 4}" for i in range(8)}
    grouped = score(chain(8), BOX, where, regroup=True).graph
    before = plan_graph(chain(8), BOX, pins={"*": "gpu:0"})
    after = plan_graph(grouped, BOX, pins=lambda part: "gpu:1")
    assert before.compare(after).moved == (("c0 .. c7", "gpu:0", "gpu:1"),)


def test_sensitivity_counts_draws_that_change_the_decision():
    """Heavy towers stay apart whatever ten percent do; close decisions name a part."""
    clear = sn.sensitivity(plan_graph(wide(2), BOX), draws=5)
    close = sn.sensitivity(plan_graph(random_dag(7, 8), BOX), 0.5, draws=2)
    assert (clear.changed, clear.regret, clear.moved) == (0.0, 0.0, {})
    assert 0 <= close.regret < 1
    assert (close.changed > 0) == bool(close.moved)
    assert "costs off by up to 50 %" in str(close)
    with pytest.raises(sn.DeclarationError, match=">= 0 and < 1"):
        sn.sensitivity(plan_graph(chain(), BOX), 1.5)


def test_sensitivity_keeps_the_feasible_set():
    """A pipeline is compared with pipelines, not with the better free plan."""
    free, piped = (
        plan_graph(random_dag(6, 8), BOX, objective="throughput", contiguity=one)
        for one in ("free", "pipeline")
    )
    assert free.value < 0.99 * piped.value
    assert sn.sensitivity(piped, 0.0, draws=1).changed == 0.0


def test_largest_batch_fits_and_the_next_does_not():
    box = sn.Cluster.of("gpu", memory="1 GiB")
    most = sn.largest_batch(chain(3), box)
    assert most > 32
    assert sn.largest_batch(chain(3), box, device_of={"*": "gpu:0"}) == most
    # No batch helps a model whose weights are too large.
    assert sn.largest_batch(chain(3), sn.Cluster.of("gpu", memory="5 MiB")) == 0
