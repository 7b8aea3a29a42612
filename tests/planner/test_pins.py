"""Plans as pins, from a file or of other parts; what moved between them."""

from pathlib import Path

import pytest

import splitnet as sn
from splitnet.planner.evaluate import score
from tests.zoo import chain

CLUSTER = sn.Cluster.of("2*gpu", "cpu", memory="16 GiB")


def grouped(*ends: int) -> sn.Graph:
    """A chain of eight calls in parts that begin so."""
    where = {f"c{i}": f"gpu:{sum(i >= end for end in ends) % 2}" for i in range(8)}
    return score(chain(8), CLUSTER, where, regroup=True).graph


def test_a_plan_file_edited_by_hand_is_kept(tmp_path: Path) -> None:
    """The device that a person wrote is the device of the next plan."""
    graph = chain(4)
    plan = sn.plan(graph, CLUSTER, pins={"*": "gpu:0"})
    plan.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    name = [part.name for part in graph.parts if part.kind != "input"][-1]
    edited = text.replace(f'"{name}": "gpu:0"', f'"{name}": "gpu:1"', 1)
    assert edited != text
    (tmp_path / "plan.json").write_text(edited)

    again = sn.plan(graph, CLUSTER, pins=tmp_path / "plan.json")
    assert again.device_of == {**plan.device_of, name: "gpu:1"}
    assert sn.plan(graph, CLUSTER, pins=again).device_of == again.device_of


def test_a_wrong_name_in_a_plan_file_is_told_with_a_suggestion(tmp_path: Path) -> None:
    """A slip of the pen costs a sentence, not a search."""
    graph = chain(4)
    name = graph.parts[-1].name
    sn.plan(graph, CLUSTER).save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace(f'"{name}":', f'"{name}x":', 1))

    with pytest.raises(sn.PlanFileError, match=f"did you mean '{name}'"):
        sn.load_plan(tmp_path / "plan.json")


def test_comparison_of_other_parts_tells_runs_of_calls() -> None:
    """Calls that moved side by side stand on one line."""
    graph = chain(8)
    before = sn.plan(graph, CLUSTER, pins={"*": "gpu:0"})
    after = sn.plan(grouped(4), CLUSTER, pins=lambda part: "gpu:1")
    calls = [c.name for c in graph.calls if graph.part[c.part].kind != "input"]
    moved = before.compare(after).moved

    assert (f"{calls[0]} .. {calls[-1]}", "gpu:0", "gpu:1") in moved
    assert len(moved) <= 2
    assert before.compare(before).moved == ()
