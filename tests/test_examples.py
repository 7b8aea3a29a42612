"""The examples are run.

Each in a process and a folder of its own, and must succeed without a warning of
Python's.
"""

from pathlib import Path

import pytest

from tests.test_pages import ROOT, run, words_in

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

# It moves its process into a network of its own, which one with threads cannot do.
ALONE = ROOT / "examples" / "two_workers.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples run, each in a folder of its name."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def outcome(folder: Path) -> str:
    """What became of every example: a line each, and the words of one that fails."""
    together = [str(path) for path in EXAMPLES if path != ALONE]
    (folder / ALONE.stem).mkdir()
    alone = ["-W", "error::UserWarning", str(ALONE)]
    done = run([str(ROOT / "tests" / "pages.py"), str(folder), *together], folder)
    last = run(alone, folder / ALONE.stem)
    (folder / ALONE.stem / "output.txt").write_text(last.stdout)
    verdict = last.stderr[-4000:] if last.returncode else "ok"
    return f"{done.stdout}{ALONE}: {verdict}\n{done.stderr[-2000:]}"


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_draw(example: Path, folder: Path, outcome: str) -> None:
    """An example prints its plan, passes its own audit, and leaves its picture."""
    second = "worker:1" if example == ALONE else "gpu:1"

    assert f"{example}: ok\n" in outcome, outcome[-6000:]
    assert second in (folder / example.stem / "output.txt").read_text(encoding="utf-8")
    picture = folder / example.stem / f"{example.stem}.svg"
    assert second in picture.read_text(encoding="utf-8")
    shown = ROOT / "docs" / "images" / f"example_{example.stem}.svg"
    assert words_in(shown) == words_in(picture), "run docs/images/redraw.py"


def test_each_example_has_a_page_in_the_gallery() -> None:
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
