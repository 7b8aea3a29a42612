"""What README, docs and examples show is run, and the site builds."""

import re
from pathlib import Path

import pytest

from splitnet.core.cluster import Cluster
from tests.child import python

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for kind, text in found if kind == language]


def commands(page):
    lines = "".join(blocks(page, "bash")).splitlines()
    return [line for line in lines if line.startswith("splitnet ")]


PROGRAMS = [page for page in PAGES if blocks(page, "python")]
PROGRAMS += [DOCS / "quick-tour.ipynb", *EXAMPLES]
COMMANDS = {f"{p.stem} commands.py": lines for p in PAGES if (lines := commands(p))}
RUN_COMMANDS = """
import contextlib, io
from splitnet.cli import main
for line in {lines!r}:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([word.strip('"') for word in line.split()[1:]]) == 0, line
    assert printed.getvalue().strip(), line
"""
BAD_CALLS = """
import sys
sys.path.insert(0, {folder!r})
sys.argv = ["bad_calls.py", "--count", "30"]
from bad_calls import main
assert main() == 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def outcome(folder):
    """What became of every page: a line each, and the words of one that fails."""
    bad, other = folder / "bad.md", folder / "other.md"
    bad.write_text("# Bad\n\n```python\nassert 1 == 2\n```\n")
    other.write_text("```python\nprint(1)\n```\n\n```output\n2\n```\n")
    refused = folder / "refused.py"
    refused.write_text(BAD_CALLS.format(folder=str(ROOT / "benchmarks")))
    programs = [*PROGRAMS, bad, other, refused]
    for name, lines in COMMANDS.items():
        programs.append(folder / name)
        programs[-1].write_text(RUN_COMMANDS.format(lines=lines))
        beside = folder / programs[-1].stem
        beside.mkdir()
        for example in EXAMPLES:
            (beside / example.name).write_bytes(example.read_bytes())
    together = ROOT / "tests" / "pages.py", folder, *programs
    # It ends with 1 for the bad ones, see below.
    return python(*together, code=1, cwd=folder, COLUMNS="100").stdout


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("page", [*PROGRAMS, *COMMANDS], ids=lambda p: Path(p).stem)
def test_pages_and_examples_run_from_top_to_bottom(page, outcome):
    """The Python blocks of a page are one program, its commands another."""
    assert f"{page}: ok\n" in outcome, outcome[-6000:]


@pytest.mark.tf
@pytest.mark.slow
def test_what_fails_is_told_and_bad_calls_are_refused(folder, outcome):
    """No traceback, hang or silence in 30 calls, command lines and files."""
    for words in ("bad.md: Traceback", 'bad.md", line 4', "assert 1 == 2"):
        assert words in outcome
    assert "other.md: does not print\n2\nbut\n1\n" in outcome
    assert "refused.py: ok\n" in outcome, outcome[-6000:]
    printed = (folder / "refused" / "output.txt").read_text(encoding="utf-8")
    assert printed.count("'refused'") == 3


def words_in(picture):
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
        *((f"example_{e.stem}.svg", f"{e.stem}/{e.stem}.svg") for e in EXAMPLES),
    ],
)
def test_pictures_of_pages_are_what_the_code_draws(shown, drawn, folder, outcome):
    words = words_in(DOCS / "images" / shown)
    assert words == words_in(folder / drawn) != set(), "run docs/images/redraw.py"


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_print_and_draw_two_devices(example, folder, outcome):
    second = "worker:1" if example.stem == "two_workers" else "gpu:1"
    for name in ("output.txt", f"{example.stem}.svg"):
        assert second in (folder / example.stem / name).read_text(encoding="utf-8")


def test_each_example_has_a_page_in_the_gallery():
    """Its picture first, its program as it is, and a line on the gallery's index."""
    gallery = ROOT / "docs" / "gallery"
    index = (gallery / "index.md").read_text(encoding="utf-8")
    stale = [
        example.stem
        for example in EXAMPLES
        for page in [(gallery / f"{example.stem}.md").read_text(encoding="utf-8")]
        if f"\n``` py\n{example.read_text(encoding='utf-8')}```\n" not in page
        or f"../images/example_{example.stem}.svg" not in page.split("\n")[2]
        or f"]({example.stem}.md)" not in index
    ]
    assert stale == [], "run docs/images/redraw.py"


def test_there_is_nothing_else_to_run():
    """Blocks are Python, commands that are run, files that are read, or plain text."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    kinds = {kind for kind, _ in BLOCK.findall(text)}
    assert kinds == {"python", "output", "bash", "text", "toml"}


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")])
def test_toml_blocks_are_clusters(page, tmp_path):
    for text in blocks(page, "toml"):
        path = tmp_path / "box.toml"
        path.write_text(text, encoding="utf-8")
        assert len(Cluster.load(path)) >= 3


def test_links_of_pages_lead_somewhere():
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_readme_commands_need_nothing_but_python_and_pip():
    demo, tests = blocks(ROOT / "README.md", "bash")[:2]
    for command, last in ((demo, "splitnet demo"), (tests, "python -m tests")):
        assert command.startswith("python3.11 -m venv .venv && .venv/bin/pip install")
        assert command.strip().endswith(last)
        assert command.count("\n") == 1


def test_the_site_asks_no_other_host(tmp_path):
    python("-m", "mkdocs", "build", "--strict", "-q", "-d", tmp_path, cwd=ROOT)
    pages = list(tmp_path.rglob("*.html"))
    address = r'(?:src|<link[^>]* href)="(https?://[^"]+)"'
    strays = [
        f"{page.name}: {found}"
        for page in pages
        for found in re.findall(address, page.read_text())
    ]
    assert len(pages) > 25
    assert strays == []
