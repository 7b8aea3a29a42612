"""`splitnet plan` and `score` of the benchmark's workloads, and of placements."""

import json
from pathlib import Path
from typing import Any

import pytest

from splitnet.cli import main
from tests.cli.given import answer


def test_plan_of_a_workload_has_the_benchmarks_fields(
    workload_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The maximum load, its bound, and a device for each node; `score` agrees."""
    assert main(["plan", workload_file, "--json", "--time-limit", "60"]) == 0
    found = answer(capsys)
    assert found["objective"] == "throughput"
    assert found["value"] == pytest.approx(2.25)
    assert found["bound"] <= found["value"]
    assert {"gap", "seconds"} < set(found)
    assert set(found["device_of"]) == {"1", "2", "3"}
    placement = tmp_path / "planned.json"
    placement.write_text(json.dumps(found))
    assert main(["score", workload_file, str(placement), "--json"]) == 0
    assert answer(capsys)["value"] == pytest.approx(found["value"])


@pytest.mark.parametrize(
    ("fpgas", "code", "said"),
    [
        ([[1, 2], [3]], 0, ""),
        ([[1, 2, 3]], 1, "broken: gpu:0 needs 3 B, has 2 B"),
        ([[1, 2]], 2, "left out: 3"),
        ([[1, 2], [2, 3]], 2, "places nodes twice: 2"),
        ([["one"]], 2, "expected `int`"),
    ],
)
def test_score_of_a_workload_split(
    fpgas: list[list[Any]],
    code: int,
    said: str,
    workload_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two nodes and a transfer are the load; what is broken is said, with code 1."""
    split = tmp_path / "split.json"
    rows = [{"nodes": nodes} for nodes in fpgas]
    split.write_text(json.dumps({"fpgas": rows, "cpus": []}))
    machine = json.loads(Path(workload_file).read_text()) | {"maxSizePerFPGA": 2}
    Path(workload_file).write_text(json.dumps(machine))
    assert main(["score", workload_file, str(split)]) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert main(["score", workload_file, str(split), "--json"]) == code
    if code == 0:
        assert answer(capsys)["value"] == pytest.approx(2.25)


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
