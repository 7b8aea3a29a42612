"""`splitnet plan` and `score` of the benchmark's workloads, and of placements."""

import json
from pathlib import Path

import pytest

from splitnet.cli import main
from tests.cli.given import answer


def test_plan_of_a_workload_has_the_benchmarks_fields(
    workload_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The maximum load, its bound, and a device for each node by its id."""
    words = ["plan", workload_file, "--json", "--time-limit", "60"]
    assert main(words) == 0
    found = answer(capsys)

    assert found["objective"] == "throughput"
    assert found["value"] == pytest.approx(2.25)
    assert found["bound"] <= found["value"]
    assert {"gap", "seconds"} < set(found)
    assert set(found["device_of"]) == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("rows", "code", "load"), [([[1, 2], [3]], 0, 2.25), ([[1, 2]], 1, None)]
)
def test_score_of_a_workload_split(
    rows: list[list[int]],
    code: int,
    load: float | None,
    workload_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two nodes and a transfer are the load; a node that is nowhere is a violation."""
    split = tmp_path / "split.json"
    fpgas = [{"nodes": nodes} for nodes in rows]
    split.write_text(json.dumps({"fpgas": fpgas, "cpus": []}))
    assert main(["score", workload_file, str(split), "--json"]) == code
    figures = answer(capsys)
    assert bool(figures["violations"]) == bool(code)
    if load is not None:
        assert figures["throughput"] == pytest.approx(load)


def test_score_takes_what_plan_printed(
    workload_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A workload's plan is a split too, and is worth what the plan said."""
    words = ["plan", workload_file, "--objective", "throughput", "--json"]
    assert main([*words, "--time-limit", "60"]) == 0
    planned = answer(capsys)
    split = tmp_path / "planned.json"
    split.write_text(json.dumps(planned))
    assert main(["score", workload_file, str(split), "--json"]) == 0
    assert answer(capsys)["throughput"] == pytest.approx(planned["value"])


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ([], "is not a split"),
        ({"device_of": {"one": "gpu:0"}}, "is not a split"),
        ({"device_of": {"1": "tpu:0"}}, "is not a split"),
        ({"device_of": 3}, "is not a split"),
    ],
)
def test_score_refuses_what_is_no_split(
    split: object,
    words: str,
    workload_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot be read as a split is refused in words."""
    path = tmp_path / "split.json"
    path.write_text(json.dumps(split))
    assert main(["score", workload_file, str(path)]) == 2
    assert words in capsys.readouterr().err


def test_score_of_a_persons_placement(
    plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person's placement gets the planner's figures, and no better ones."""
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"left": "gpu:0", "right": "gpu:0", "join": "cpu:0"}))
    words = [plan_file, "--cluster", "2*gpu,cpu", "--json"]

    assert main(["score", words[0], str(mine), *words[1:]]) == 0
    person = answer(capsys)
    assert main(["plan", *words]) == 0
    planner = answer(capsys)

    assert person["device_of"]["right"] == "gpu:0"
    assert person["value"] >= planner["value"]


def test_score_has_no_option_that_it_would_ignore(
    plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pin cannot change a placement that is given, so it is a usage error."""
    assert main(["score", plan_file, plan_file, "--pin", "left=gpu:1"]) == 2
    assert "No such option: --pin" in capsys.readouterr().err
