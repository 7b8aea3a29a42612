"""The command line as such: what it refuses, completes, and prints into a pipe."""

import json
import signal
from pathlib import Path

import pytest

import splitnet as sn
from splitnet.cli import main
from splitnet.core.cluster import Cluster
from splitnet.core.serialization import write_cluster
from tests.cli.given import child, python


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "{plan}", "--memory", "1 GiB"], "belong to --gpus or to a list"),
        (["plan", "{plan}", "--gpus", "2", "--batch", "64"], "has its own batch"),
        (["plan", "{plan}", "--cluster", "gpu", "--stand-ins", "2"], "give one of"),
        (["plan", "{plan}", "--cluster", "box,cpu"], "there is no device 'box'"),
        (["plan", "{plan}", "--cluster", "none.toml"], "cannot load the cluster file"),
        (["plan", "{plan}", "--cluster", "gpu,cpu", "--pin", "left"], "write PATTERN="),
        (["plan", "none.json", "--cluster", "cpu"], "'none.json': No such file"),
        (["plan", "{text}", "--cluster", "cpu"], "is not JSON"),
        (["plan", "{other}", "--cluster", "cpu"], "neither a plan nor"),
        (["plan", "{workload}", "--cluster", "cpu"], "includes its machine"),
        (["draw", "{workload}"], "it is not a plan of version 1"),
        (["draw", "{plan}", "-o", "placement.jpg"], "jpg"),
        (["score", "{plan}", "{other}", "--cluster", "cpu"], "'some'"),
        (["audit", "{plan}"], "has none"),
        (["run", "none.py"], "there is no script 'none.py'"),
        (["audit", "none.py:x", "--plan", "{plan}"], "there is no file 'none.py'"),
        (["worker", "--cluster", "{cluster}"], "the number of this worker is unknown"),
        (["audit", __file__ + ":x", "--plan", "{plan}", "--batch", "8"], "its own"),
    ],
)
def test_wrong_questions_are_answered_with_words(
    words: list[str],
    said: str,
    tmp_path: Path,
    plan_file: str,
    workload_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and a message that says what was wrong; no traceback."""
    text, other = tmp_path / "text.json", tmp_path / "other.json"
    text.write_text("{ not json")
    other.write_text('{"some": {"thing": 1}}')
    cluster = tmp_path / "cluster.toml"
    write_cluster(Cluster.of("cpu", "worker:0/cpu:0"), cluster)
    files = {
        "cluster": str(cluster),
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


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["draw"], ["draw", "a", "b"], ["demo", "--epochs", "0"]]
    + [["cluster", "up"]],
)
def test_usage_errors_exit_with_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the parser refuses is a usage error too."""
    assert main(words) == 2
    assert "Usage: splitnet" in capsys.readouterr().err


def test_tensorflow_is_loaded_only_where_it_is_needed(
    plan_file: str,
) -> None:
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
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False\n")
    assert done.stdout.endswith("[]\n")
    assert done.stderr.count("there is no") == 3


def test_a_pipe_gets_nothing_but_answers(plan_file: str) -> None:
    """No colour, progress or noise; what its encoding lacks is replaced, or escaped."""
    path = Path(plan_file)
    path.write_text(path.read_text().replace("left", "l\u00efnks"), encoding="utf-8")
    shown = child("simulate", plan_file)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert shown.stderr == ""
    words = ("plan", plan_file, "--gpus", "2", "--time-limit", "0.5")
    shown = child(*words, PYTHONIOENCODING="ascii")
    assert "l?nks" in shown.stdout
    figures = child(*words, "--json", PYTHONIOENCODING="ascii")
    assert json.loads(figures.stdout)["device_of"]["l\u00efnks"] == "gpu:0"


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """`splitnet` alone is no error; help of each command ends with lines to copy."""
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out
    for name in ("plan", "draw", "audit", "run", "cluster up"):
        assert main([*name.split(), "--help"]) == 0
        assert f"splitnet {name} " in capsys.readouterr().out.partition("Examples:")[2]


def test_ctrl_c_while_planning_keeps_the_old_file(
    plan_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 130, "interrupted", and nothing is written."""
    # A program that a shell starts in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sn, "plan", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    out = tmp_path / "out.json"
    out.write_text("yesterday's")
    words = ["plan", plan_file, "--cluster", "2*gpu,cpu", "-o", str(out)]

    try:
        assert main(words) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.endswith("splitnet: interrupted\n")
    assert out.read_text() == "yesterday's"


def test_completion_and_version_know_what_there_is() -> None:
    """Commands, options and choices; `--version` is the package's."""

    def offered(words: str, current: int) -> list[str]:
        asked = {
            "_SPLITNET_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(current),
        }
        return child(**asked).stdout.split()

    assert offered("splitnet pl", 1) == ["plan"]
    assert offered("splitnet cluster h", 2) == ["health"]
    assert offered("splitnet plan --mis", 2) == ["--missing"]
    assert offered("splitnet plan --missing e", 3) == ["error"]
    assert child("--version").stdout.strip() == f"splitnet {sn.__version__}"
