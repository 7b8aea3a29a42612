"""`splitnet simulate`, `draw`, `report` and `config`, in this process."""

import json
import re
from pathlib import Path

import pytest

from splitnet.cli import main
from tests.cli.given import answer


def test_simulate_shows_a_chart_writes_a_trace_and_answers_programs(
    plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lane per device on the screen, events in the file, all tasks in the JSON."""
    trace = tmp_path / "trace.json"
    assert main(["simulate", plan_file, "--trace", str(trace)]) == 0
    assert "gpu:1" in capsys.readouterr().out
    assert json.loads(trace.read_text())["traceEvents"]
    assert main(["simulate", plan_file, "--json"]) == 0
    figures = answer(capsys)
    for device, busy in figures["compute_seconds"].items():
        its = [task for task in figures["tasks"] if task["device"] == device]
        assert sum(t["stop"] - t["start"] for t in its) == pytest.approx(busy)
    words = ["simulate", plan_file, "--microbatches", "4", "--schedule", "1f1b"]
    assert main([*words, "--json"]) == 0
    assert {task["microbatch"] for task in answer(capsys)["tasks"]} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("words", "name"),
    [("draw", "a.dot"), ("draw --timeline", "a.svg"), ("report", "a.html")],
)
def test_draw_and_report_write_their_file(
    words: str,
    name: str,
    plan_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file holds the plan, and its path is on the screen."""
    out = tmp_path / name
    assert main([*words.split(), plan_file, "-o", str(out)]) == 0
    assert "left" in out.read_text()
    assert str(out) in capsys.readouterr().out


def test_config_shows_every_option_and_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Values from the environment and the file, and what they mean."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITNET_VISIBLE", "0,1")
    monkeypatch.setenv("SPLITNET_CPU_THREADS", "3")
    (tmp_path / "splitnet.toml").write_text('memory_limit = "4 GiB"\n')

    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    for word in ("0,1", "SPLITNET_VISIBLE", "4.00 GiB", "splitnet.toml", "GPUs to use"):
        assert word in printed
    assert re.search(r"cpu_threads +3 +SPLITNET_CPU_THREADS", printed)


def test_estimate_says_what_fits_and_how(
    plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every strategy, the fastest first; exit code 1 where nothing fits."""
    plan = json.loads(Path(plan_file).read_text())
    for part in plan["graph"]["parts"]:
        part["on"] = ["auto"]
    Path(plan_file).write_text(json.dumps(plan))
    words = ["estimate", plan_file, "--gpus", "2", "--preset", "A100"]
    words += ["--time-limit", "1"]
    assert main([*words, "--json"]) == 0
    found = answer(capsys)
    assert {"one device", "towers"} <= {one["kind"] for one in found}
    assert all(one["fits"] for one in found)
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "is fastest" in printed
    assert "typical" not in printed
    tiny = ["estimate", plan_file, "--cluster", "2*gpu", "--memory", "64 KiB"]
    assert main([*tiny, "--time-limit", "1"]) == 1
    assert capsys.readouterr().out.startswith("no strategy fits; ")
