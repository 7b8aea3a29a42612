import re
from dataclasses import replace

import pytest

from splitnet.core.cluster import Cluster, Link
from splitnet.core.errors import PlanFileError
from splitnet.core.plan import OBJECTIVES
from splitnet.planner.evaluate import score
from tests.planner.quick import find_plan, plan_graph
from tests.zoo import MIB, chain, diamond, random_dag, shared, two_towers, wide

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
    """A CPU merge that costs much is named with the request that would save it."""
    advice, *_ = plan_graph(shared(flops=1e8), BOX).verdict.advice

    assert advice == "the CPU merge 'join' costs 25%: on='gpu:1' would save it"


def test_verdict_of_a_model_that_fits_no_device():
    """Where one device is no choice, the plan is not compared with one."""
    box = Cluster.of("2*gpu", "cpu", memory="30 MiB", cpu_memory="10 MiB")
    verdict = plan_graph(chain(8), box).verdict

    assert verdict.speed_up is None
    assert "fits no single device" in str(verdict)


def test_verdict_looks_at_every_device_that_differs():
    """Equal GPUs are not the same where one has the better road to the host."""
    links = tuple(
        link
        for name, speed in (("gpu:0", 1e8), ("gpu:1", 1e11))
        for link in (Link("cpu:0", name, speed), Link(name, "cpu:0", speed))
    )
    box = replace(BOX, links=links)
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


def test_explain_quotes_the_fallback():
    """A part on a substitute is explained by its fallback."""
    explanation = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX).explain("tell")

    assert explanation.reason == "gpu:5 is not available; the least loaded gpu is used"


def test_explain_tells_ties_and_memory():
    """Equal devices are a tie; a device without room is told as memory."""
    tie = plan_graph(chain(1), BOX)
    box = Cluster.of("2*gpu", "cpu", memory="200 MiB")
    cut = plan_graph(chain(8, out=32 * MIB), box)

    assert tie["c0"].reason == "tie"
    assert "memory" in {p.reason for p in cut.placements}


def test_explain_names_unknown_parts():
    """A part that is not there is answered with those that are."""
    with pytest.raises(PlanFileError, match="has no 'sea'. Name one of: image, words"):
        plan_graph(two_towers(), BOX).explain("sea")


def test_advice_does_not_cancel_itself():
    """Of two parts that should share a device only one is advised to move."""
    graph = shared(flops=1e8)
    plan = plan_graph(graph, BOX, pins={"left": "gpu:0", "right": "gpu:1"})
    advised = [
        line for line in plan.verdict.advice if "'left'" in line or "'right'" in line
    ]

    assert len(advised) <= 1


def test_following_all_advice_saves_what_it_says():
    """Every line holds after those before it."""
    pins = {"left": "gpu:0", "right": "gpu:1"}
    before = plan_graph(shared(flops=1e8), BOX, pins=pins)
    value = before.value
    for line in before.verdict.advice:
        name, share, device = re.search(
            r"'(\w+)'.* costs (\d+)%: on='(.*)' would", line
        ).groups()
        pins[name] = device
        value *= 1 - int(share) / 100
    after = find_plan(shared(flops=1e8), BOX, pins=pins)

    assert before.verdict.advice
    assert after.value <= value * 1.02


def test_explain_takes_a_layers_name():
    """The name of a call or a layer means its part."""
    graph = chain(2)
    calls = tuple(replace(c, layer=f"dense_{c.name}") for c in graph.calls)
    plan = find_plan(replace(graph, calls=calls), BOX)

    assert plan.explain("dense_c1").placement == plan["c1"] == plan["dense_c1"]


def test_compare_tells_what_moved():
    """From one plan to another: parts, step, transfers, fullest device."""
    plan = plan_graph(two_towers(), BOX)
    other = plan_graph(two_towers(), BOX, pins={"tell": "gpu:0"})
    comparison = plan.compare(other)

    assert comparison.moved == (("tell", "gpu:1", "gpu:0"),)
    assert "tell: gpu:1 -> gpu:0" in str(comparison)
    assert "% longer" in str(comparison)
    assert "fullest" in str(comparison)
    assert "% more" in str(comparison)


def test_compare_of_equal_plans_is_nothing():
    """A plan compared with itself moved nothing."""
    plan = plan_graph(two_towers(), BOX)

    assert str(plan.compare(plan)).startswith("nothing moved.")


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
    for seed in range(6):
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
