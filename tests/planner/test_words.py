from dataclasses import replace

import pytest

from splitnet.core.cluster import Cluster, Link
from splitnet.core.cost import Measured, Roofline
from splitnet.core.errors import DeclarationError, PlanFileError
from splitnet.planner.planner import OBJECTIVES, plan_graph, score
from splitnet.planner.what_if import largest_batch, sensitivity
from tests.zoo import chain, diamond, random_dag, shared, two_towers, wide

BOX = Cluster.of("2*gpu", "cpu")


def test_verdict_praises_a_winning_plan():
    """Two equal towers on two GPUs are nearly twice as fast as on one."""
    verdict = plan_graph(two_towers(), BOX).verdict

    assert verdict.single_device == "gpu:0"
    assert verdict.speed_up == pytest.approx(1.97, abs=0.02)
    assert "1.96 times faster" in str(verdict)
    assert verdict.worth_distributing


def test_verdict_calls_a_losing_plan_one():
    """Small branches on two GPUs lose to one, and the verdict says so plainly."""
    verdict = plan_graph(shared(flops=1e8), BOX).verdict

    assert not verdict.worth_distributing
    assert "slower than gpu:0 alone" in str(verdict)
    assert "not worth distributing" in str(verdict)


def test_verdict_advises_what_would_help():
    """A CPU merge that costs much is named with the wish that would save it."""
    (advice,) = plan_graph(shared(flops=1e8), BOX).verdict.advice

    assert advice == "the CPU merge 'join' costs 22%: on='gpu:1' would save it"


def test_verdict_advice_holds():
    """Following the advice saves what it promised."""
    before = plan_graph(shared(flops=1e8), BOX)
    after = plan_graph(shared(flops=1e8), BOX, pins={"join": "gpu:1"})

    assert 1 - after.seconds / before.seconds == pytest.approx(0.22, abs=0.006)


def test_verdict_of_a_model_that_fits_no_device():
    """Where one device is no choice, the plan is not compared with one."""
    box = Cluster.of("2*gpu", "cpu", memory="30 MiB", cpu_memory="10 MiB")
    verdict = plan_graph(chain(8), box).verdict

    assert verdict.speed_up is None
    assert "fits no single device" in str(verdict)


def test_verdict_looks_at_every_device_that_differs():
    """Equal GPUs are not the same where one has the better road to the host."""
    roads = tuple(
        link
        for name, speed in (("gpu:0", 1e8), ("gpu:1", 1e11))
        for link in (Link("cpu:0", name, speed), Link(name, "cpu:0", speed))
    )
    box = replace(BOX, links=roads)
    verdict = plan_graph(two_towers(), box).verdict

    assert verdict.single_device == "gpu:1"
    alone = score(
        two_towers(),
        box,
        {p.name: "gpu:1" for p in two_towers().parts if p.kind != "input"},
    )
    assert verdict.single_device_value == pytest.approx(alone.value)


def test_verdict_of_no_gain_says_so():
    """A chain on one device is what one device gives."""
    assert "no gain over gpu:0 alone" in str(plan_graph(chain(), BOX).verdict)


def test_explain_gives_the_reason_and_the_other_devices():
    """Every other device is tried, and its price told."""
    explanation = plan_graph(two_towers(), BOX).explain("tell")

    assert explanation.reason == "it is pinned there: on='gpu:1'"
    assert [a.device for a in explanation.alternatives] == ["gpu:0", "cpu:0"]
    assert all(a.value > explanation.value for a in explanation.alternatives)
    assert "longer" in str(explanation)


def test_explain_agrees_with_score():
    """What a move is said to cost is what scoring the moved plan gives."""
    plan = plan_graph(diamond(), BOX)
    (first, _) = plan.explain("left").alternatives
    moved = score(diamond(), BOX, dict(plan.device_of) | {"left": first.device})

    assert first.value == moved.value


def test_explain_quotes_the_receipt():
    """A part that fell back is explained by its receipt."""
    explanation = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX).explain("tell")

    assert explanation.reason == "gpu:5 is not here; the least loaded gpu takes it"


def test_explain_tells_ties_and_memory():
    """Equal devices are a tie; a device without room is told as memory."""
    tie = plan_graph(chain(1), BOX)
    box = Cluster.of("2*gpu", "cpu", memory="25 MiB")
    cut = plan_graph(chain(8), box)

    assert tie["c0"].reason == "tie"
    assert "memory" in {p.reason for p in cut.placements}


def test_explain_names_unknown_parts():
    """A part that is not there is answered with those that are."""
    with pytest.raises(PlanFileError, match="has no part 'sea'. It has: image, words"):
        plan_graph(two_towers(), BOX).explain("sea")


def test_compare_tells_what_moved():
    """From one plan to another: parts, step, transfers, fullest device."""
    plan = plan_graph(two_towers(), BOX)
    other = plan_graph(two_towers(), BOX, pins={"tell": "gpu:0"})
    comparison = plan.compare(other)

    assert comparison.moved == (("tell", "gpu:1", "gpu:0"),)
    assert "tell: gpu:1 -> gpu:0" in str(comparison)
    assert "% longer" in str(comparison)


def test_compare_of_equal_plans_is_nothing():
    """A plan compared with itself moved nothing."""
    plan = plan_graph(two_towers(), BOX)

    assert str(plan.compare(plan)).startswith("nothing moved.")


def test_sensitivity_of_a_clear_decision_is_low():
    """Two heavy towers stay apart whatever ten percent do."""
    found = sensitivity(plan_graph(wide(2), BOX), draws=5)

    assert found.changed == 0.0
    assert found.regret == 0.0


def test_sensitivity_of_a_close_decision_names_the_part():
    """Where costs decide narrowly, some draws change the plan, and lose little."""
    plan = plan_graph(random_dag(7, 8), BOX)
    found = sensitivity(plan, 0.5, draws=8)

    assert 0 <= found.regret < 1
    assert (found.changed > 0) == bool(found.moved)
    assert "costs off by up to 50%" in str(found)


def test_sensitivity_keeps_the_feasible_set():
    """A pipeline is compared with pipelines, not with the better free plan."""
    graph = random_dag(6, 8)
    busy = {
        contiguity: plan_graph(
            graph, BOX, objective="throughput", contiguity=contiguity, time_limit=0.5
        )
        for contiguity in ("free", "pipeline")
    }

    assert busy["free"].value < 0.99 * busy["pipeline"].value
    assert sensitivity(busy["pipeline"], 0.0, draws=1).changed == 0.0


def test_sensitivity_refuses_nonsense():
    """A perturbation of more than all is refused."""
    with pytest.raises(DeclarationError, match=r"must be in \[0, 1\)"):
        sensitivity(plan_graph(chain(), BOX), 1.5)


def test_largest_batch_fits_and_the_next_does_not():
    """The largest batch is the last that can be placed."""
    box = Cluster.of("gpu", memory="1 GiB")
    most = largest_batch(chain(3), box)
    kept = largest_batch(chain(3), box, device_of={f"c{i}": "gpu:0" for i in range(3)})

    assert most > 32
    assert kept == most


def test_largest_batch_is_zero_where_the_weights_do_not_fit():
    """No batch helps a model whose weights are too large."""
    assert largest_batch(chain(3), Cluster.of("gpu", memory="5 MiB")) == 0


def test_measured_costs_beat_the_estimate():
    """A measured call takes what was measured; another is still estimated."""
    graph = chain(2)
    costs = Measured(forward={("c0", "gpu"): 1.0}, backward={("c0", "gpu:0"): 2.0})
    gpu = BOX["gpu:0"]

    assert costs.forward_seconds(graph.call["c0"], gpu) == 1.0
    assert costs.backward_seconds(graph.call["c0"], gpu) == 2.0
    assert costs.forward_seconds(graph.call["c1"], gpu) == Roofline().forward_seconds(
        graph.call["c1"], gpu
    )


def test_roofline_takes_the_slower_of_arithmetic_and_memory():
    """Bytes bound a call without arithmetic, FLOPs one with much."""
    gpu = replace(BOX["gpu:0"], call_seconds=0.0)
    graph = chain(1, flops=1e12)
    light = replace(graph.call["c0"], forward_flops=0.0, moved_bytes=5e11)

    assert Roofline().forward_seconds(graph.call["c0"], gpu) == pytest.approx(0.1)
    assert Roofline().forward_seconds(light, gpu) == pytest.approx(1.0)
    assert Roofline().forward_seconds(graph.call["x"], gpu) == 0.0


def test_known_seconds_beat_the_roofline():
    """A call that knows its seconds is not estimated; backward scales with FLOPs."""
    one = replace(chain(1).call["c0"], seconds_on=(("gpu", 3.0),))

    assert Roofline().forward_seconds(one, BOX["gpu:0"]) == 3.0
    assert Roofline().backward_seconds(one, BOX["gpu:0"]) == 6.0


@pytest.mark.parametrize(
    ("objective", "unit", "best"),
    [
        ("latency", "a step", "the step is shortest"),
        ("throughput", "on the busiest device", "the busiest device has least to do"),
        ("memory", "on the fullest device", "the fullest device holds least"),
    ],
)
def test_words_speak_of_the_objective(objective, unit, best):
    """Verdict, reasons and alternatives are in what the plan's objective counts."""
    plan = plan_graph(random_dag(3, 6), BOX, objective=objective, time_limit=0.5)
    texts = [str(plan.explain(part.name)) for part in plan.graph.parts]

    assert unit in str(plan.verdict).partition("\n")[0]
    assert all(unit in text for text in texts)
    assert any(best in text for text in texts)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_reasons_agree_with_the_alternatives(objective):
    """What is said to be a tie has an equal, and "cost" has none that fits."""
    for seed in range(12):
        plan = plan_graph(random_dag(seed, 5), BOX, objective=objective, time_limit=0.5)
        for part in plan.placements:
            equal = [
                a
                for a in plan.explain(part.part).alternatives
                if a.fits and a.value <= plan.value * (1 + 1e-9)
            ]
            if part.reason in ("tie", "cost"):
                assert (part.reason == "tie") == bool(equal)


def test_compare_tells_what_the_objective_counts():
    """Two plans for throughput are compared by their busiest devices as well."""
    plan = plan_graph(wide(2), BOX, objective="throughput", time_limit=0.5)
    other = score(
        wide(2),
        BOX,
        {"b0": "gpu:0", "b1": "gpu:0", "join": "cpu"},
        objective="throughput",
    )
    comparison = plan.compare(other)

    assert comparison.values == (plan.value, other.value)
    assert "busiest   " in str(comparison)
