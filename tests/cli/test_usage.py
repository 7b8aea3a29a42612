"""The command line as such: what it shows, refuses, completes, and prints to a pipe."""

import json
import re
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

import splitnet as sn
from splitnet.cli import main
from splitnet.cli.worker_commands import run_program
from splitnet.core.serialization import write_cluster
from tests.child import python, run


def test_simulate_and_draw_show_a_step_and_answer_programs(cli, plan_file, tmp_path):
    trace = tmp_path / "trace.json"
    assert "gpu:1" in cli(f"simulate {plan_file} --trace {trace}").out
    assert json.loads(trace.read_text())["traceEvents"]
    figures = cli(f"simulate {plan_file} --json").answer
    for device, busy in figures["compute_seconds"].items():
        its = [task for task in figures["tasks"] if task["device"] == device]
        assert sum(t["stop"] - t["start"] for t in its) == pytest.approx(busy)
    picture = tmp_path / "a.svg"
    assert str(picture) in cli(f"draw --timeline {plan_file} -o {picture}").out
    assert "left" in picture.read_text()
    pieces = cli(f"simulate {plan_file} --microbatches 4 --schedule 1f1b --json").answer
    assert {task["microbatch"] for task in pieces["tasks"]} == {0, 1, 2, 3}


def test_config_shows_every_option_and_its_origin(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITNET_VISIBLE", "0,1")
    monkeypatch.setenv("SPLITNET_CPU_THREADS", "3")
    (tmp_path / "splitnet.toml").write_text('memory_limit = "4 GiB"\n')
    printed = cli("config").out
    for word in ("0,1", "SPLITNET_VISIBLE", "4.00 GiB", "splitnet.toml", "GPUs to use"):
        assert word in printed
    assert re.search(r"cpu_threads +3 +SPLITNET_CPU_THREADS", printed)


def test_estimate_says_what_fits_and_how(cli, plan_file):
    plan = json.loads(Path(plan_file).read_text())
    for part in plan["graph"]["parts"]:
        part["on"] = ["auto"]
    Path(plan_file).write_text(json.dumps(plan))
    words = f"estimate {plan_file} --time-limit 0.3"
    found = cli(f"{words} --gpus 2 --preset A100 --json").answer
    assert {"one device", "towers"} <= {one["kind"] for one in found}
    assert all(one["fits"] for one in found)
    printed = cli(f"{words} --gpus 2 --preset A100")
    assert "is fastest" in printed.out
    assert all(len(line) <= 80 for line in printed.out.splitlines())
    assert "typical" not in printed.err + cli(f"{words} --cluster cpu --inference").err
    tiny = cli(f"{words} --cluster 2*gpu --memory 64KiB", 1)
    assert re.match("no strategy fits; (.|\n)*; does not fit\n", tiny.out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan {plan} --memory 1GiB", "belong to --gpus or to a list"),
        ("plan {plan} --gpus 2 --batch 64", "64 was asked for; the graph has batch=32"),
        ("plan {plan} --pin as_built", "has no variables; leave --pin as_built out"),
        ("plan {plan} --cluster gpu --stand-ins 2", "give one of"),
        ("plan {plan} --cluster cpu --preset A100", "are of GPUs; none in cpu"),
        ("plan {plan} --cluster none.toml", "cannot load the cluster file"),
        ("plan {plan} --cluster=", "it has 0 devices"),
        ("plan {plan} --cluster gpu,cpu --pin left", "write PATTERN="),
        ("plan {plan} --cluster gpu --pin left=gpu --pin left=cpu", "has a name twice"),
        ("plan {plan} --cluster gpu,cpu --missing error", "gpu:1"),
        ("plan {plan} --cluster gpu,cpu --split wide", "write LAYER=N"),
        ("plan {plan} --cluster 2*gpu --strategy auto --split left=2", "has no layers"),
        ("plan --warm-up -o {plan}", "--warm-up without TARGET takes no other option"),
        ("plan {text} --cluster cpu", "is not JSON"),
        ("plan {other} --cluster cpu", "neither a plan nor"),
        ("plan {workload} --cluster cpu", "includes its machine"),
        ("draw {workload}", "it is not a plan of version 1"),
        ("report {plan} -o a.svg", "'a.svg': .svg is of pictures, which sn.draw"),
        ("score {plan} {other} --cluster cpu", "names cannot be placed"),
        ("score {plan} {workload}", 'must be {"part": "gpu:0", ...}, a saved'),
        ("simulate {plan} --schedule 1f1b", "there is one; give microbatches=2 or"),
        ("audit {plan}", "has none"),
        ("run --gpu none.py", "no script '--gpu'. The usage is: splitnet run [OPT"),
        ("run --max-restarts 2 {cluster}", "--max-restarts needs --workers"),
        ("measure x.py:x --links {cluster} -o a", "leave TARGET, --out out"),
        ("measure x.py:x --allow-remote", "--allow-remote belongs to --links"),
        ("cluster health {cluster}", "no worker with an address in [hosts]"),
        ("audit none.py:x --plan {plan}", "there is no file 'none.py'"),
        ("plan {exits}:x --cluster cpu", "raised SystemExit: 0"),
        ("plan none.py:x -o no/plan.json", "cannot write the plan 'no/plan.json'"),
        ("measure none.py:x -o no/costs.json", "there is no folder"),
        ("launch --image x -- true", "--image is of --engine kubernetes"),
        ("worker --core 9999 --index 0", "there is no processor core 9999 here"),
        ("worker --cluster {cluster}", "the number of this worker is unknown"),
        ("cluster up --workers 65 -- true", "count= must be int >= 1 and <= 64"),
        (f"audit {__file__}:x --plan {{plan}} --batch 8", "its own"),
    ],
)
def test_wrong_questions_are_told(words, said, cli, tmp_path, plan_file, workload_file):
    text, other = tmp_path / "text.json", tmp_path / "other.json"
    box = tmp_path / "box.toml"
    text.write_text("{ not json")
    other.write_text('{"some": "thing"}')
    (exits := tmp_path / "exits.py").write_text("raise SystemExit(0)")
    write_cluster(sn.Cluster.of("cpu", "worker:0/cpu:0"), box)
    files = {"plan": plan_file, "workload": workload_file, "cluster": box}
    printed = cli(words.format(**files, text=text, other=other, exits=exits), 2)
    assert printed.out == ""
    assert printed.err.startswith("splitnet: ")
    assert said in printed.err


NO_USAGE = "nonsense", "draw", "draw a b", "demo --epochs 0", "cluster up"


@pytest.mark.parametrize("words", [*NO_USAGE, "cluster up --workers 0 -- true"])
def test_usage_errors_exit_with_2(words, cli):
    assert "Usage: splitnet" in cli(words, 2).err


def test_a_script_that_is_given_for_a_command_is_told_how():
    words = "run 'train.py'.*command: python train.py"
    with pytest.raises(sn.ConfigError, match=words):
        run_program(["train.py"], {})


def test_tensorflow_is_loaded_only_where_it_is_needed(plan_file):
    """Not for saved files, and not to say that a file is missing."""
    done = python(
        "-c",
        "import sys; from splitnet.cli import main\n"
        "for words in ('plan none.py:x', 'audit no.such:x', 'measure none.keras'):\n"
        "    assert main(words.split()) == 2\n"
        "print('numba' in sys.modules)\n"
        f"main(['plan', {plan_file!r}, '--cluster', '2*gpu,cpu'])\n"
        f"main(['draw', {plan_file!r}, '-o', {plan_file + '.svg'!r}])\n"
        f"main(['simulate', {plan_file!r}])\n"
        "print([m for m in ('tensorflow', 'keras') if m in sys.modules])",
    )
    assert done.stdout.startswith("False\n")
    assert done.stdout.endswith("[]\n")
    assert done.stderr.count("there is no") == 3


def test_a_pipe_gets_nothing_but_answers(plan_file):
    """No colour, progress or noise; what its encoding lacks is replaced, or escaped."""
    path = Path(plan_file)
    path.write_text(path.read_text().replace("left", "l\u00efnks"), encoding="utf-8")
    words = ["--gpus=2", "--preset=A100", "--time-limit=0.5"]
    ascii_only = partial(python, "-m", "splitnet", PYTHONIOENCODING="ascii")
    shown = ascii_only("plan", plan_file, *words)
    assert "l?nks" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert shown.stderr == ""
    figures = ascii_only("simulate", plan_file, "--json")
    assert "l\u00efnks" in {one["part"] for one in json.loads(figures.stdout)["tasks"]}


def test_help_has_examples(cli):
    assert "Commands:" in cli("").out
    for name in ("plan", "draw", "audit", "run", "cluster up"):
        examples = cli(f"{name} --help").out.partition("Examples:")[2]
        assert f"splitnet {name} " in examples


def test_ctrl_c_in_planning_keeps_the_old_file(cli, plan_file, tmp_path, monkeypatch):
    # A program that a shell starts in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sn, "plan", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    out = tmp_path / "out.json"
    out.write_text("yesterday's")
    try:
        printed = cli(f"plan {plan_file} --cluster 2*gpu,cpu -o {out}", 130)
    finally:
        signal.signal(signal.SIGINT, before)
    assert printed.err.endswith("splitnet: interrupted\n")
    assert out.read_text() == "yesterday's"


def test_faults_of_the_system_are_said(cli, monkeypatch, plan_file, tmp_path):
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the working folder was deleted: change" in cli("config", 2).err
    full = Path("/dev/full").write_text
    monkeypatch.setattr(sn, "local_cluster", lambda **_: full("x"))
    assert "No space left on device" in cli("devices", 2).err
    [monkeypatch.setattr(sys, name, None) for name in ("stdout", "stderr")]
    assert main(["draw", plan_file, "-o", f"{plan_file}.dot"]) == 0


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("| true", 141, ""), ("> /dev/full", 2, "splitnet: OSError: [Errno 28] No space")],
)
def test_output_that_nobody_reads_or_has_no_room_ends_the_command(end, code, said):
    line = f"set -o pipefail; {sys.executable} -m splitnet --version {end}"
    done = run("bash", "-c", line, code=code, PYTHONUNBUFFERED="")
    assert done.stderr.partition(" left on device\n")[::2] == (said, "")


def test_completion_knows_what_there_is(cli, monkeypatch):
    monkeypatch.setenv("_SPLITNET_COMPLETE", "complete_bash")
    told = {"splitnet cluster h": "health", "splitnet plan --missing e": "error"}
    for words, offered in told.items():
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert cli("").out.split() == [offered]
