"""The command line, in this process where it needs no TensorFlow, else in a child."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from splitnet.cli import main
from splitnet.cli.screen import progress, show_json
from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.graphfile import graph_to_dict
from splitnet.core.planfile import load_plan
from splitnet.core.planner import plan_graph
from splitnet.core.search import search

ROOT = Path(__file__).resolve().parent.parent


def towers() -> Graph:
    """Two branches that meet in a merge; a few megabytes and a gigaflop each."""
    calls = [Call("x", "x", "InputLayer", output_bytes=1 << 20)]
    for name in ("left", "right"):
        calls.append(
            Call(
                name,
                name,
                "Dense",
                output_shapes=((32, 64),),
                output_bytes=1 << 20,
                forward_flops=1e9,
                backward_flops=2e9,
                moved_bytes=4 << 20,
                activation_bytes=1 << 20,
                weights=(f"{name}/kernel",),
            )
        )
    calls.append(Call("join", "join", "Concatenate", output_bytes=2 << 20))
    return Graph(
        name="towers",
        batch=32,
        calls=tuple(calls),
        tensors=tuple(
            Tensor(a, b, bytes=1 << 20)
            for a, b in (
                ("x", "left"),
                ("x", "right"),
                ("left", "join"),
                ("right", "join"),
            )
        ),
        weights=tuple(Weights(f"{n}/kernel", 1 << 20) for n in ("left", "right")),
        parts=(
            Part("x", "input", ("cpu",)),
            Part("left", on=("gpu:0",)),
            Part("right", on=("gpu:1",)),
            Part("join", "merge", ("cpu",)),
        ),
        outputs=("join",),
    )


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    """A saved graph."""
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph_to_dict(towers())))
    return str(path)


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    """A saved plan for two GPUs and a CPU."""
    path = tmp_path / "plan.json"
    plan_graph(towers(), Cluster.of("2*gpu", "cpu")).save(path)
    return str(path)


@pytest.fixture
def workload_file(tmp_path: Path) -> str:
    """A benchmark workload: a chain of three, two accelerators and a core."""
    nodes = [
        {
            "id": i,
            "fpgaLatency": 1.0,
            "cpuLatency": 10.0,
            "size": 1,
            "supportedOnFpga": True,
            "isBackwardNode": False,
        }
        for i in (1, 2, 3)
    ]
    edges = [
        {"sourceId": 1, "destId": 2, "cost": 0.25},
        {"sourceId": 2, "destId": 3, "cost": 0.25},
    ]
    path = tmp_path / "workload.json"
    path.write_text(
        json.dumps(
            {
                "maxFPGAs": 2,
                "maxCPUs": 1,
                "maxSizePerFPGA": 100,
                "nodes": nodes,
                "edges": edges,
            }
        )
    )
    return str(path)


def answer(capsys: pytest.CaptureFixture[str]) -> dict:
    """The JSON that was printed."""
    return json.loads(capsys.readouterr().out)


def child(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python of its own."""
    return subprocess.run(
        [sys.executable, "-m", "splitnet", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        check=False,
    )


def test_plan_of_a_saved_graph_shows_its_table(
    graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A graph and a machine that is not here give a table."""
    assert main(["plan", graph_file, "--cluster", "2*gpu,cpu"]) == 0
    printed = capsys.readouterr().out
    assert "left" in printed
    assert "gpu:1" in printed


def test_plan_answers_programs(
    graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json the answer is one JSON value with every figure."""
    assert main(["plan", graph_file, "--cluster", "2*gpu,cpu", "--json"]) == 0
    figures = answer(capsys)
    assert figures["device_of"]["right"] == "gpu:1"
    assert figures["value"] >= figures["bound"] > 0
    assert figures["fallbacks"] == []
    assert figures["largest_batch"] > 32


def test_plan_saves_and_plans_again(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A saved plan is a target of its own, on its machine or on another."""
    saved = str(tmp_path / "saved.json")
    assert main(["plan", graph_file, "--cluster", "2*gpu,cpu", "-o", saved]) == 0
    assert load_plan(saved).device_of["left"] == "gpu:0"
    capsys.readouterr()

    assert main(["plan", saved, "--cluster", "gpu,cpu", "--json"]) == 0
    assert [f["asked"] for f in answer(capsys)["fallbacks"]] == ["gpu:1"]


def test_plan_takes_pins(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--pin beats the declaration."""
    words = ["plan", graph_file, "--cluster", "2*gpu,cpu", "--json"]
    assert main([*words, "--pin", "left=gpu:1", "--pin", "join=gpu:0,cpu"]) == 0
    device_of = answer(capsys)["device_of"]
    assert (device_of["left"], device_of["join"]) == ("gpu:1", "gpu:0")


def test_plan_that_cannot_fit_is_a_no(
    graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, the reason on stderr, nothing on stdout, no traceback."""
    words = ["plan", graph_file, "--cluster", "2*gpu,cpu", "--memory", "64 KiB"]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("splitnet: InfeasibleError: ")
    assert "Traceback" not in printed.err


def test_plan_with_a_missing_device_can_be_refused(
    graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """--missing error turns a fallback into a refusal."""
    words = ["plan", graph_file, "--cluster", "gpu,cpu", "--missing", "error"]
    assert main(words) == 2
    assert "gpu:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "{graph}"], "a saved graph has no machine"),
        (["plan", "{graph}", "--memory", "1 GiB"], "belong to --cluster"),
        (["plan", "{graph}", "--cluster", "gpu", "--stand-ins", "2"], "two machines"),
        (["plan", "{graph}", "--cluster", "box,cpu"], "there is no device 'box'"),
        (["plan", "{graph}", "--cluster", "none.toml"], "cannot read the cluster file"),
        (["plan", "{graph}", "--cluster", "gpu,cpu", "--pin", "left"], "write a name"),
        (["plan", "none.json", "--cluster", "cpu"], "cannot read 'none.json'"),
        (["plan", "{text}", "--cluster", "cpu"], "is not JSON"),
        (["plan", "{other}", "--cluster", "cpu"], "neither a plan, a graph nor"),
        (["plan", "{workload}", "--cluster", "cpu"], "brings its machine"),
        (["draw", "{graph}"], "plan"),
        (["draw", "{plan}", "-o", "placement.jpg"], "jpg"),
        (["score", "{graph}", "{other}", "--cluster", "cpu"], "is not a placement"),
        (["audit", "{plan}"], "a JSON file has none"),
        (["run", "none.py"], "there is no script 'none.py'"),
        (["run", "--cpu", "--gpus", "0", "{text}"], "exclude each other"),
        (["demo", "--epochs", "0"], "--epochs is 1 or more"),
    ],
)
def test_wrong_questions_are_answered_with_words(
    words: list[str],
    said: str,
    tmp_path: Path,
    graph_file: str,
    plan_file: str,
    workload_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and a message that says what was wrong; no traceback."""
    text, other = tmp_path / "text.json", tmp_path / "other.json"
    text.write_text("{ not json")
    other.write_text('{"some": {"thing": 1}}')
    files = {
        "graph": graph_file,
        "plan": plan_file,
        "workload": workload_file,
        "text": str(text),
        "other": str(other),
    }

    assert main([word.format(**files) for word in words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("splitnet: ")
    assert said in printed.err


@pytest.mark.parametrize("words", [[], ["nonsense"], ["plan"], ["draw", "a", "b"]])
def test_usage_errors_exit_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the parser refuses is a usage error too."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: splitnet" in capsys.readouterr().err


def test_plan_of_a_workload_has_the_benchmarks_fields(
    workload_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Objective, value, bound, gap, seconds, and a device for every node id."""
    words = ["plan", workload_file, "--time-limit", "1"]
    assert main([*words, "--json"]) == 0
    figures = answer(capsys)
    assert figures["objective"] == "throughput"
    assert figures["value"] == pytest.approx(2.25)
    assert figures["bound"] <= figures["value"]
    assert set(figures["device_of"]) == {"1", "2", "3"}
    assert {"gap", "seconds"} <= set(figures)


def test_figures_of_a_workload_are_those_of_its_plan(
    workload_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The short way, for figures alone, answers what the way over a plan answers."""
    for objective in ("throughput", "call_latency"):
        words = ["plan", workload_file, "--objective", objective, "--json"]
        words += ["--time-limit", "1"]
        assert main(words) == 0
        short = answer(capsys)
        assert main([*words, "--out", str(tmp_path / "plan.json")]) == 0
        long = answer(capsys)

        assert list(short) == list(long)
        assert short["device_of"] == long["device_of"]
        for name in ("value", "bound", "gap"):
            assert short[name] == pytest.approx(long[name])


def test_a_workloads_reading_counts_against_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that takes a good part of the limit to read leaves the rest to search.

    The clock is set 1.9 of 2 seconds on between reading and searching.
    """
    rows = [
        {"id": i, "fpgaLatency": 1.0, "cpuLatency": 9.0, "supportedOnFpga": 1}
        for i in range(40)
    ]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.1} for i in range(39)]
    machine = {"maxFPGAs": 4, "maxCPUs": 1, "maxSizePerFPGA": 1}
    path = tmp_path / "long.json"
    path.write_text(json.dumps(machine | {"nodes": rows, "edges": edges}))
    limits = list[float]()

    def watched(*arguments: Any, time_limit: float, **options: Any) -> Any:
        limits.append(time_limit)
        return search(*arguments, time_limit=time_limit, **options)

    late = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 1.9)
    monkeypatch.setattr("splitnet.cli.workloads.time", late)
    monkeypatch.setattr("splitnet.core.search.search", watched)
    assert main(["plan", str(path), "--json", "--time-limit", "2"]) == 0
    figures = answer(capsys)

    assert len(limits) == 1
    assert 0 <= limits[0] < 0.1
    assert figures["seconds"] >= 1.9
    assert figures["value"] <= 40.0


def test_score_of_a_workload_split(
    workload_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A split has its load counted: two and a transfer on one accelerator."""
    split = tmp_path / "split.json"
    split.write_text(
        json.dumps({"fpgas": [{"nodes": [1, 2]}, {"nodes": [3]}], "cpus": []})
    )
    assert main(["score", workload_file, str(split), "--json"]) == 0
    figures = answer(capsys)
    assert figures["throughput"] == pytest.approx(2.25)
    assert figures["violations"] == []


def test_score_of_a_split_that_breaks_a_rule_is_a_no(
    workload_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that is nowhere is a violation, and exit code 1."""
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"fpgas": [{"nodes": [1, 2]}], "cpus": []}))
    assert main(["score", workload_file, str(split), "--json"]) == 1
    assert answer(capsys)["violations"]


def test_score_takes_what_plan_printed(
    workload_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A workload's plan is a split too, and is worth what the plan said."""
    words = ["plan", workload_file, "--objective", "call_latency", "--json"]
    assert main([*words, "--time-limit", "1"]) == 0
    planned = answer(capsys)
    split = tmp_path / "planned.json"
    split.write_text(json.dumps(planned))
    assert main(["score", workload_file, str(split), "--json"]) == 0
    assert answer(capsys)["call_latency"] == pytest.approx(planned["value"])


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ([], "is not a split"),
        ({"device_of": {"one": "gpu:0"}}, "'one' is no node's id"),
        ({"device_of": {"1": "tpu:0"}}, "'tpu:0' is neither"),
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
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person's placement gets the planner's figures, and no better ones."""
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"left": "gpu:0", "right": "gpu:0", "join": "cpu:0"}))
    words = [graph_file, "--cluster", "2*gpu,cpu", "--json"]

    assert main(["score", words[0], str(mine), *words[1:]]) == 0
    person = answer(capsys)
    assert main(["plan", *words]) == 0
    planner = answer(capsys)

    assert person["device_of"]["right"] == "gpu:0"
    assert person["value"] >= planner["value"]


def test_simulate_shows_a_chart_and_writes_a_trace(
    plan_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lane per device on the screen, events in the file."""
    trace = tmp_path / "trace.json"
    assert main(["simulate", plan_file, "--trace", str(trace)]) == 0
    assert "gpu:1" in capsys.readouterr().out
    assert json.loads(trace.read_text())["traceEvents"]


def test_simulate_answers_programs(
    plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of the timeline add up to the busy times."""
    assert main(["simulate", plan_file, "--json"]) == 0
    figures = answer(capsys)
    for device, busy in figures["busy"].items():
        spent = [
            t["stop"] - t["start"] for t in figures["tasks"] if t["device"] == device
        ]
        assert sum(spent) == pytest.approx(busy)


@pytest.mark.parametrize(
    ("name", "first"),
    [("a.svg", b"<"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.dot", b"")],
)
def test_draw_writes_what_the_suffix_says(
    name: str,
    first: bytes,
    plan_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A picture of the right kind, and its path on the screen."""
    out = tmp_path / name
    assert main(["draw", plan_file, "-o", str(out)]) == 0
    assert out.read_bytes().startswith(first)
    assert str(out) in capsys.readouterr().out


def test_draw_can_draw_the_timeline(plan_file: str, tmp_path: Path) -> None:
    """--timeline draws when, not where."""
    out = tmp_path / "timeline.svg"
    assert main(["draw", plan_file, "--timeline", "-o", str(out)]) == 0
    assert "gpu:0" in out.read_text()


def test_report_writes_a_page(plan_file: str, tmp_path: Path) -> None:
    """One HTML page with the plan's parts."""
    out = tmp_path / "report.html"
    assert main(["report", plan_file, "-o", str(out)]) == 0
    assert "left" in out.read_text()


def test_config_shows_every_option_and_its_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A value from the environment, one from the file, and the calls they lead to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITNET_VISIBLE", "0,1")
    (tmp_path / "splitnet.toml").write_text('memory_limit = "4 GiB"\n')

    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert "0,1" in printed
    assert "SPLITNET_VISIBLE" in printed
    assert "4.00 GiB" in printed
    assert "tf.config.set_visible_devices" in printed


def test_config_answers_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every option with value, origin and call."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITNET_CPU_THREADS", "3")

    assert main(["config", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["cpu_threads"]["value"] == 3
    assert rows["cpu_threads"]["origin"] == "environment"
    assert all(row["call"] for row in rows.values())


def test_saved_files_need_no_tensorflow(graph_file: str, plan_file: str) -> None:
    """Planning, drawing and simulating saved files load neither framework."""
    code = (
        "import sys; from splitnet.cli import main\n"
        f"main(['plan', {graph_file!r}, '--cluster', '2*gpu,cpu'])\n"
        f"main(['draw', {plan_file!r}, '-o', {plan_file + '.svg'!r}])\n"
        f"main(['simulate', {plan_file!r}])\n"
        "print([m for m in ('tensorflow', 'keras') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_nothing_but_answers_when_piped(plan_file: str) -> None:
    """No colour, no progress and no noise where no terminal is."""
    done = child("simulate", plan_file)

    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_progress_is_silent_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, progress can be told and nobody hears it."""
    with progress("working", total=2) as advance:
        advance(1, "half")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_json_answers_are_strict() -> None:
    """What JSON cannot say is an error here, not a NaN in somebody's parser."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        show_json({"value": float("nan")})


def test_score_has_no_option_that_it_would_ignore(
    graph_file: str, plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pin cannot change a placement that is given, so it is refused, not dropped."""
    with pytest.raises(SystemExit) as stopped:
        main(["score", graph_file, plan_file, "--pin", "left=gpu:1"])
    assert stopped.value.code == 2
    assert "unrecognized arguments: --pin" in capsys.readouterr().err


def completions(script: Path, *words: str) -> list[str]:
    """What bash would offer for the last word."""
    asked = (
        f"source {script}; COMP_WORDS=({' '.join(words)}); "
        f"COMP_CWORD={len(words) - 1}; _shtab_splitnet; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", asked], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_completion_knows_commands_options_and_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script for bash, sourced in a bash, offers what the parser has."""
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "splitnet"
    script.write_text(capsys.readouterr().out)

    assert completions(script, "splitnet", "pl") == ["plan"]
    assert completions(script, "splitnet", "cluster", "h") == ["health"]
    assert completions(script, "splitnet", "plan", "--mis") == ["--missing"]
    assert completions(script, "splitnet", "plan", "--missing", "w") == ["warn"]


def test_completion_without_shtab_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing writer of scripts is a message, not a traceback."""
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert main(["completion", "zsh"]) == 2
    assert "pip install shtab" in capsys.readouterr().err


def test_version_is_the_packages() -> None:
    """`python -m splitnet --version` is the command, and tells the version."""
    from splitnet import __version__

    assert child("--version").stdout.strip() == f"splitnet {__version__}"


def test_plan_shows_its_best_so_far_on_a_terminal(graph_file: str) -> None:
    """A person sees a bar and the best step yet, in units; the answer stays clean."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    arguments = ("plan", graph_file, "--cluster", "2*gpu,cpu", "--time-limit", "1")
    child = subprocess.Popen(
        [sys.executable, "-m", "splitnet", *arguments],
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
    assert re.search(rb"planning.*best [\d.]+ (us|ms|s)\b", said)
    assert b"\x1b" not in answer
