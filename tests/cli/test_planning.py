"""`splitnet plan` of saved plans."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from splitnet.cli import main
from splitnet.core.cluster import Cluster
from splitnet.planner.plan_file import load_plan
from splitnet.planner.planner import plan_graph
from tests.cli.given import ROOT, answer
from tests.zoo import chain


def test_plan_of_a_saved_plan_shows_its_table_or_figures(
    plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that is not here; --json is one value; what is saved is a target."""
    saved = str(tmp_path / "saved.json")
    words = ["plan", plan_file, "--cluster", "2*gpu,cpu"]
    assert main([*words, "-o", saved]) == 0
    printed = capsys.readouterr().out
    assert "left" in printed
    assert "gpu:1" in printed
    assert main([*words, "--json"]) == 0
    figures = answer(capsys)
    assert figures["device_of"]["right"] == "gpu:1"
    assert figures["value"] >= figures["bound"] > 0
    assert figures["fallbacks"] == []
    assert figures["largest_batch"] > 32
    assert load_plan(saved).device_of["left"] == "gpu:0"
    assert main(["plan", saved, "--cluster", "gpu,cpu", "--json"]) == 0
    assert [f["requested"] for f in answer(capsys)["fallbacks"]] == ["gpu:1"]
    assert (
        main([*words, "--json", "--pin", "left=gpu:1", "--pin", "join=gpu:0,cpu"]) == 0
    )
    device_of = answer(capsys)["device_of"]
    assert (device_of["left"], device_of["join"]) == ("gpu:1", "gpu:0")


def test_plan_chooses_a_strategy_that_simulate_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--strategy auto; `simulate` runs the saved plan as it was chosen."""
    source, saved = str(tmp_path / "chain.json"), str(tmp_path / "saved.json")
    plan_graph(chain(8, flops=1e12), Cluster.of("2*gpu")).save(source)
    words = ["plan", source, "--cluster", "2*gpu", "--memory", "30 MiB", "-o", saved]
    assert main([*words, "--strategy", "auto", "--time-limit", "0.2"]) == 0
    plan = load_plan(saved)
    capsys.readouterr()

    assert plan.execution.microbatches > 1
    assert main(["simulate", saved, "--json"]) == 0
    assert answer(capsys)["seconds"] == plan.seconds


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["2*gpu,cpu", "--memory", "64 KiB"], 1, "InfeasibleError: "),
        (["gpu,cpu", "--missing", "error"], 2, "gpu:1"),
        (["gpu,cpu", "--split", "wide"], 2, "write LAYER=N"),
        (["2*gpu", "--strategy", "auto", "--split", "left=2"], 2, "has no layers"),
    ],
)
def test_plan_that_cannot_be_is_a_no(
    words: list[str],
    code: int,
    said: str,
    plan_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An exit code, the reason on stderr, nothing on stdout, no traceback."""
    assert main(["plan", plan_file, "--cluster", *words]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("splitnet: ")
    assert said in printed.err
    assert "Traceback" not in printed.err


def on_a_terminal(*arguments: str) -> tuple[bytes, bytes]:
    """What Python writes to standard error, a terminal, and to standard output."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65536):
            said += piece
    except OSError:  # Linux ends a terminal whose last writer is gone like this
        pass
    finally:
        os.close(ours)
    answer, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return said, answer


def test_plan_shows_its_best_so_far_on_a_terminal(plan_file: str) -> None:
    """A person sees a bar and the best step yet, in units; the answer stays clean."""
    said, answer = on_a_terminal(
        *("-m", "splitnet", "plan", plan_file, "--cluster", "2*gpu,cpu"),
        *("--time-limit", "1"),
    )

    assert re.search(rb"planning.*best [\d.]+ (us|ms|s)\b", said)
    assert b"\x1b" not in answer


def test_progress_is_shown_while_log_lines_are_hidden() -> None:
    """TensorFlow is imported with standard error redirected, and takes seconds."""
    said, _ = on_a_terminal(
        "-c",
        "import os, time; from splitnet.cli.console import progress\n"
        "from splitnet.tf.runtime.logging import log_filter\n"
        "with progress('loading TensorFlow') as advance, log_filter():\n"
        "    os.write(2, b'2026-01-01 00:00:00.0: I a.cc:1] a start-up line\\n')\n"
        "    advance(1, 'still loading')\n"
        "    time.sleep(0.5)\n"
        "    advance(2, 'loaded')\n",
    )

    assert b"still loading" in said
    assert b"start-up line" not in said
