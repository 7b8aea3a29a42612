"""What README and docs show is run: programs, commands, files; and the site builds."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# It moves its process into a network of its own, which one with threads cannot do.
ALONE = DOCS / "machines.md"


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


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run this Python in a folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        check=False,
    )


PROGRAMS = [page for page in PAGES if page != ALONE and blocks(page, "python")]
NOTEBOOK = DOCS / "quick-tour.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pages run, each in a folder of its name."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def outcome(folder: Path) -> str:
    """What became of every page: a line each, and the words of one that fails."""
    bad, other = folder / "bad.md", folder / "other.md"
    bad.write_text("# Bad\n\n```python\nassert 1 == 2\n```\n")
    other.write_text("```python\nprint(1)\n```\n\n```output\n2\n```\n")
    pages = map(str, [*PROGRAMS, NOTEBOOK, bad, other])
    done = run([str(ROOT / "tests" / "pages.py"), str(folder), *pages], folder)
    assert done.returncode == 1  # for the bad ones, see below
    return done.stdout


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("page", [*PROGRAMS, NOTEBOOK], ids=lambda path: path.stem)
def test_pages_run_from_top_to_bottom(page: Path, outcome: str) -> None:
    """The Python blocks of a page are one program, and it runs in its own process."""
    assert f"{page}: ok\n" in outcome, outcome[-4000:]


def words_in(picture: Path) -> set[str]:
    """The words of a picture that hold no figure, which estimates may change."""
    texts = re.findall(r">([^<>]+)</text>", picture.read_text(encoding="utf-8"))
    return {text for text in texts if not re.search(r"\d", text)}


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shown", "drawn"),
    [
        ("placement.svg", "README/placement.svg"),
        ("fusion_placement.svg", "pictures/placement.svg"),
        ("fusion_timeline.svg", "pictures/timeline.svg"),
    ],
)
def test_pictures_of_pages_are_what_the_code_draws(
    shown: str, drawn: str, folder: Path, outcome: str
) -> None:
    """The pictures in the docs have the words that their program gives them now."""
    words = words_in(DOCS / "images" / shown)

    assert words
    assert words == words_in(folder / drawn), outcome


@pytest.mark.tf
@pytest.mark.slow
def test_the_page_about_machines_runs(tmp_path: Path) -> None:
    """Workers are started, joined and ended as the page says."""
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks(ALONE, "python")), encoding="utf-8")

    done = run(["-W", "error::UserWarning", str(program)], tmp_path)

    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.tf
@pytest.mark.slow
def test_a_page_that_fails_is_told(outcome: str) -> None:
    """The runner of pages does not pass on everything."""
    assert "bad.md: Traceback" in outcome
    assert 'bad.md", line 4' in outcome
    assert "assert 1 == 2" in outcome
    assert "other.md: does not print\n2\nbut\n1\n" in outcome


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem
)
def test_commands_of_pages_run(page: Path, tmp_path: Path) -> None:
    """The splitnet commands of a page run one after another, beside the examples."""
    for example in (ROOT / "examples").glob("*.py"):
        (tmp_path / example.name).write_bytes(example.read_bytes())

    for line in commands(page):
        words = [word.strip('"') for word in line.split()[1:]]
        done = run(["-W", "error::UserWarning", "-m", "splitnet", *words], tmp_path)
        assert done.returncode == 0, line + done.stdout[-1000:] + done.stderr[-3000:]
        assert done.stdout.strip(), line


def test_the_notebook_has_its_outputs() -> None:
    """Every code cell that ends with a value shows it, the diagram among them."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    shown = [
        kind
        for cell in cells
        for output in cell.get("outputs", ())
        for kind in output.get("data", {"stdout": ""})
    ]

    assert "error" not in {
        o["output_type"] for c in cells for o in c.get("outputs", ())
    }
    assert shown.count("image/svg+xml") == 2
    assert shown.count("stdout") >= 3


def test_messages_of_the_troubleshooting_page_are_the_codes() -> None:
    """What the page quotes is in the code, at least its pieces between dots."""
    page = (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        m for row in re.findall(r"^\*\*.*$", page, re.M) for m in row.split("`")[1::2]
    ]
    code = texts_of_the_code()
    pieces = [p.strip() for m in quoted for p in m.split("...") if len(p.strip()) > 5]

    assert len(quoted) >= 20
    assert [piece for piece in pieces if piece not in code] == []


def texts_of_the_code() -> str:
    """Every string of the package, those in pieces put together."""
    return "\n".join(
        "".join(
            part.value if isinstance(part, ast.Constant) else "..."
            for part in (node.values if isinstance(node, ast.JoinedStr) else [node])
        )
        for path in (ROOT / "splitnet").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    )


def test_there_is_nothing_else_to_run() -> None:
    """Blocks are Python, commands that are run, files that are read, or plain text."""
    known = {"python", "output", "bash", "text", "toml"}
    other = [
        f"{page.name}: {kind}"
        for page in PAGES
        for kind, _ in BLOCK.findall(page.read_text(encoding="utf-8"))
        if kind not in known
    ]

    assert other == []


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")])
def test_toml_blocks_are_clusters(page: Path, tmp_path: Path) -> None:
    """The cluster files of the pages load."""
    from splitnet.core.cluster import Cluster

    for text in blocks(page, "toml"):
        path = tmp_path / "box.toml"
        path.write_text(text, encoding="utf-8")
        assert len(Cluster.load(path)) >= 3


def test_the_cluster_file_means_what_it_says(tmp_path: Path) -> None:
    """What the page comments on is so: the preset, what beats it, and the links."""
    from splitnet.core.cluster import Cluster

    (text,) = blocks(DOCS / "how-to" / "not-here.md", "toml")
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


def test_the_site_asks_no_other_host(tmp_path: Path) -> None:
    """The site builds without a warning, and no page loads anything from elsewhere."""
    done = run(["-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)], ROOT)
    assert done.returncode == 0, done.stderr[-3000:]

    pages = list(tmp_path.rglob("*.html"))
    strays = [
        f"{page.name}: {found}"
        for page in pages
        for found in re.findall(
            r'(?:src|<link[^>]* href)="(https?://[^"]+)"', page.read_text()
        )
    ]

    assert len(pages) > 25
    assert strays == []
