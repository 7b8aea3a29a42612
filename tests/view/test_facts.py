"""What the views say of a plan, against what the plan holds."""

from dataclasses import replace

import pytest

from splitnet.core.plan import Fallback, Plan
from splitnet.view.diagram import diagram_of
from splitnet.view.facts import (
    objective_text,
    part_facts,
)
from tests.view import plans


def test_part_facts_count_each_weight_once() -> None:
    """A shared encoder is at home with the first branch; a sum loses nothing."""
    facts = part_facts(plans.siamese())
    assert [facts[n].weight_bytes for n in ("left", "right")] == [330_000, 0]
    plan = plans.towers(30)
    total = sum(one.weight_bytes for one in part_facts(plan).values())
    assert total == sum(weight.bytes for weight in plan.graph.weights)


def test_part_facts_have_no_folder_of_the_author() -> None:
    """A declaration's file is named without its path."""
    plan = plans.siamese()
    parts = (replace(one, where="/home/someone/net.py:12") for one in plan.graph.parts)
    graph = replace(plan.graph, parts=tuple(parts))
    found = part_facts(plans.plan_by_hand(graph, plan.cluster, plan.device_of))
    assert {one.where for one in found.values()} == {"net.py:12"}


def test_diagram_of_carries_activations_there_and_gradients_back() -> None:
    """The link from left to join moves 64 KiB each way; all links move all bytes."""
    shown = diagram_of(plans.siamese())
    name = {box.id: box.name for box in shown.boxes}
    ends = {(name[link.source], name[link.target]): link for link in shown.links}
    link = ends["left", "join"]
    assert (link.sent_bytes, link.returned_bytes) == (65536, 65536)
    plan = plans.tangle(20)
    moved = sum(link.moved_bytes for link in diagram_of(plan, most=99).links)
    assert moved == sum(t.bytes for t in plan.transfers)


@pytest.mark.parametrize(
    "plan", [plans.towers(300), plans.chain(300), plans.tangle(300)]
)
def test_diagram_of_keeps_all_bytes_and_seconds_when_it_folds(plan: Plan) -> None:
    """300 branches in 24 boxes hold what 300 boxes hold."""
    few, many = (diagram_of(plan, most=most).boxes for most in (24, 10_000))
    assert len(few) < len(many)
    for field in ("weight_bytes", "activation_bytes", "total_seconds"):
        sums = [sum(getattr(b.facts, field) for b in boxes) for boxes in (few, many)]
        assert sums[0] == pytest.approx(sums[1])


def test_diagram_of_does_not_fold_a_fallback_with_others() -> None:
    """What is unusual stays in sight among 300."""
    plan = plans.towers(300)
    fallback = Fallback("tower_7", "gpu:9", "gpu:3", "not here")
    changed = replace(plan, fallbacks=(fallback,))
    (box,) = [b for b in diagram_of(changed).boxes if b.facts.fallback]
    assert box.group.members == ("tower_7",)


def test_diagram_of_stands_in_running_order_whatever_the_parts_order() -> None:
    """A workload file lists its nodes by id; the diagram folds and ranks by calls."""
    plan = plans.chain(60)
    graph = replace(plan.graph, parts=plan.graph.parts[::-1])
    turned = plans.plan_by_hand(graph, plan.cluster, plan.device_of)
    shown = [box.group.members for box in diagram_of(turned).boxes]
    assert shown == [box.group.members for box in diagram_of(plan).boxes]
    assert len(shown) == 6


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("latency", ("training step", "113 ms")),
        ("throughput", ("busiest device", "2.00 s")),
        ("memory", ("fullest device", "2 B")),
    ],
)
def test_objective_text_says_what_the_value_counts(
    objective: str, words: tuple[str, str]
) -> None:
    """A pipeline's value is no step, and a memory plan's value is no time."""
    plan = replace(plans.siamese(), objective=objective, value=2.0)
    assert objective_text(plan) == words
