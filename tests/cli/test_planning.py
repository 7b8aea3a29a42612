"""`splitnet plan` and `score`, of saved plans and of workloads."""

import json
import re
import sys
from pathlib import Path

import pytest

import splitnet as sn
from tests.child import python
from tests.zoo import chain


def test_plan_of_a_saved_plan_shows_its_figures(cli, plan_file, tmp_path, monkeypatch):
    saved = tmp_path / "saved.json"
    words = f"plan {plan_file} --cluster 2*gpu,cpu"
    assert {"left", "gpu:1"} <= {*cli(f"{words} -o {saved}").out.split()}
    figures = cli(f"{words} --json").answer
    assert figures["value"] >= figures["bound"] > 0
    assert (figures["device_of"]["right"], figures["fallbacks"]) == ("gpu:1", [])
    assert figures["largest_batch"] > 32
    assert sn.load_plan(saved).device_of["left"] == "gpu:0"
    fallbacks = cli(f"plan {saved} --cluster gpu,cpu --json").answer["fallbacks"]
    assert [one["requested"] for one in fallbacks] == ["gpu:1"]
    monkeypatch.setattr("splitnet.cli.commands._MOST_SAMPLES", 64)
    how = "--objective memory --optimizer sgd --inference --contiguity convex"
    assert ": 64 or more\n" in cli(f"{words} -o {saved} {how}").out
    assert cli(f"plan {saved} --json").answer["value"] == sn.load_plan(saved).value
    cli(f"plan {saved} --strategy auto -o {saved}")
    assert sn.load_plan(saved).contiguity == "convex"
    pins = "--pin left=gpu:1 --pin join=gpu:0,cpu"
    device_of = cli(f"{words} --json {pins}").answer["device_of"]
    assert (device_of["left"], device_of["join"]) == ("gpu:1", "gpu:0")
    refused = cli(f"{words} --memory 64KiB", 1)
    assert (refused.out, "Traceback" in refused.err) == ("", False)
    assert "splitnet: InfeasibleError: " in refused.err


def test_plan_chooses_a_strategy_that_simulate_keeps(cli, tmp_path):
    source, saved = tmp_path / "chain.json", tmp_path / "saved.json"
    sn.plan(chain(2, flops=2e10), sn.Cluster.of("2*gpu"), time_limit=0.2).save(source)
    words = f"plan {source} --cluster 2*gpu --memory 9MiB --time-limit 0.2 -o"
    cli(f"{words} {saved} --strategy auto --microbatches 4 --schedule gpipe")
    plan = sn.load_plan(saved)
    # Calls that run together on one device are placed one by one on several.
    sn.plan(chain(2, flops=2e10), sn.Cluster.of("gpu"), regroup=True).save(source)
    cli(f"{words} {source}")
    assert sn.load_plan(source).regroup
    assert str(plan.execution) == "in 4 micro-batches (gpipe)"
    assert cli(f"simulate {saved} --json").answer["seconds"] == plan.seconds
    cli(f"plan {source} --cluster 2*gpu -o {saved} --strategy auto --towers 2")
    assert "/1  " in cli(f"score {source} {saved} --cluster 2*gpu").out


SPAWN = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""


def on_a_terminal(folder, *arguments):
    """What Python writes to standard error, a terminal, and to standard output."""
    command = ["sh", "-c", 'exec "$0" "$@" > answer', sys.executable, *arguments]
    how = {"cwd": folder, "seconds": 60, "TERM": "xterm", "COLUMNS": "100"}
    return python("-c", SPAWN, *command, **how).stdout, (folder / "answer").read_text()


def test_plan_shows_its_best_so_far_on_a_terminal(plan_file, tmp_path):
    """A person sees a bar and the best step yet, in units; the answer stays clean."""
    words = ("-m", "splitnet", "plan", plan_file, "--cluster", "2*gpu,cpu")
    said, answer = on_a_terminal(tmp_path, *words, "--time-limit", "1")
    assert re.search(r"planning.*best [\d.]+ (us|ms|s)\b", said)
    assert "\x1b" not in answer


def test_progress_is_shown_while_log_lines_are_hidden(tmp_path):
    """TensorFlow is imported with standard error redirected, and takes seconds."""
    said, _ = on_a_terminal(
        tmp_path,
        "-c",
        "import os, time; from splitnet.cli.console import progress\n"
        "from splitnet.tf.runtime.logging import log_filter\n"
        "with progress('loading TensorFlow') as advance, log_filter():\n"
        "    os.write(2, b'2026-01-01 00:00:00.0: I a.cc:1] a start-up line\\n')\n"
        "    advance(1, 'still loading')\n"
        "    time.sleep(0.5)\n"
        "    advance(2, 'loaded')\n",
    )
    assert "still loading" in said
    assert "start-up line" not in said


def test_plan_of_a_workload_has_the_benchmarks_fields(cli, workload_file, tmp_path):
    """The maximum load, its bound, and a device for each node; `score` agrees."""
    found = cli(f"plan {workload_file} --json --time-limit 60").answer
    assert (found["objective"], found["value"]) == ("throughput", pytest.approx(2.25))
    assert found["bound"] <= found["value"]
    assert {"gap", "seconds"} < set(found)
    assert set(found["device_of"]) == {"1", "2", "3"}
    placement = tmp_path / "planned.json"
    placement.write_text(json.dumps(found))
    scored = cli(f"score {workload_file} {placement} --json").answer
    assert scored["value"] == pytest.approx(found["value"])


@pytest.mark.parametrize(
    ("fpgas", "code", "said"),
    [
        ([[1, 2], [3]], 0, "2.25 s"),
        ([[1, 2, 3]], 1, "broken: gpu:0 needs 3 B, has 2 B"),
        ([[1, 2]], 2, "left out: 3"),
        ([[1, 2], [2, 3]], 2, "places nodes twice: 2"),
        ([["one"]], 2, "expected `int`"),
    ],
)
def test_score_of_a_workload_split(fpgas, code, said, cli, workload_file, tmp_path):
    """Two nodes and a transfer are the load; what is broken is said, with code 1."""
    split, workload = tmp_path / "split.json", Path(workload_file)
    rows = [{"nodes": nodes} for nodes in fpgas]
    split.write_text(json.dumps({"fpgas": rows, "cpus": []}))
    machine = json.loads(workload.read_text()) | {"maxSizePerFPGA": 2}
    workload.write_text(json.dumps(machine))
    assert said in "".join(cli(f"score {workload} {split}", code))
