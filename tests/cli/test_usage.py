"""The command line as such: what it refuses, completes, and prints into a pipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitnet.cli import main
from splitnet.cli.screen import progress, show_json
from tests.cli.given import ROOT, child


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "{graph}"], "a saved graph has no machine"),
        (["plan", "{graph}", "--memory", "1 GiB"], "belong to --cluster"),
        (["plan", "{graph}", "--cluster", "gpu", "--stand-ins", "2"], "two machines"),
        (["plan", "{graph}", "--cluster", "box,cpu"], "there is no device 'box'"),
        (["plan", "{graph}", "--cluster", "none.toml"], "cannot load the cluster file"),
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
