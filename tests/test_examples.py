"""Everything that is shown is run: the examples, the README and the docs.

Each runs in a Python of its own, in an empty folder, and must succeed without a word on
stderr from splitnet or a warning of Python's.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language, in order."""
    return [
        text
        for kind, text in BLOCK.findall(page.read_text(encoding="utf-8"))
        if kind == language
    ]


def commands(page: Path) -> list[str]:
    """The lines of a page's shell blocks that call splitnet."""
    return [
        line
        for block in blocks(page, "bash")
        for line in block.splitlines()
        if line.startswith("splitnet ")
    ]


def run(arguments: list[str], folder: Path) -> str:
    """Run this Python in a folder; what it printed, if it went well."""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_draw(example: Path, tmp_path: Path) -> None:
    """An example prints its plan, passes its own audit, and leaves its picture."""
    printed = run([str(example)], tmp_path)

    assert "gpu:1" in printed
    picture = (tmp_path / f"{example.stem}.svg").read_text(encoding="utf-8")
    assert "gpu:1" in picture


def test_there_are_four_examples() -> None:
    """The examples that the README names are there."""
    assert [path.stem for path in EXAMPLES] == [
        "existing_model",
        "many_branches",
        "shared_encoder",
        "two_towers",
    ]


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python")], ids=lambda path: path.stem
)
def test_pages_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """The Python blocks of a page are one program, and it runs."""
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks(page, "python")), encoding="utf-8")

    run([str(program)], tmp_path)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem
)
def test_commands_of_pages_run(page: Path, tmp_path: Path) -> None:
    """The splitnet commands of a page run one after another, beside the examples."""
    for example in EXAMPLES:
        (tmp_path / example.name).write_bytes(example.read_bytes())

    for line in commands(page):
        words = [word.strip('"') for word in line.split()[1:]]
        assert run(["-m", "splitnet", *words], tmp_path).strip(), line


def test_toml_blocks_are_clusters(tmp_path: Path) -> None:
    """The cluster file of the guide loads, and means what it says."""
    from splitnet.core.cluster import Cluster

    (text,) = blocks(ROOT / "docs" / "guide.md", "toml")
    path = tmp_path / "box.toml"
    path.write_text(text, encoding="utf-8")

    box = Cluster.load(path)

    assert [device.name for device in box] == ["gpu:0", "gpu:1", "cpu:0"]
    assert box["gpu:1"].memory_bytes == 24 * 2**30
    assert box.link("gpu:1", "gpu:0").bytes_per_second == 300e9
    assert box.link("gpu:0", "cpu:0").bytes_per_second == 25e9


def test_links_of_pages_lead_somewhere() -> None:
    """Every relative link in README and docs names a file that is there."""
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]

    assert broken == []


def test_readme_commands_need_nothing_but_python_and_pip() -> None:
    """The two commands make their own environment and go through to the end."""
    demo, tests = blocks(ROOT / "README.md", "bash")[:2]

    for command, last in ((demo, "splitnet demo"), (tests, "python -m tests")):
        assert command.startswith("python3.11 -m venv .venv && .venv/bin/pip install")
        assert command.strip().endswith(last)
        assert command.count("\n") == 1


def test_ci_runs_the_readmes_test_command() -> None:
    """What .ci/run looks for in the README is there, once."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    found = [x for x in lines if re.match(r"^python3\.11 -m venv .* -m tests$", x)]

    assert len(found) == 1
    assert "README.md" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
