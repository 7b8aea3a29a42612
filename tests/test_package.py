"""What is uploaded: an sdist that makes a wheel, which runs without the clone."""

import re
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser

import pytest

import splitnet as sn
from tests.child import python
from tests.test_pages import ROOT
from tests.zoo import shared


def built(folder, source, kind):
    python("-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=source)
    (made,) = folder.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built(folder, ROOT, "sdist")) as archive:
        if hasattr(tarfile, "data_filter"):  # the first patches of 3.11 have none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder / f"splitnet-{sn.__version__}"


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(built(folder, sdist, "wheel")) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def outside(wheel, folder, *words):
    return python(*words, cwd=folder, PYTHONPATH=str(wheel)).stdout


def test_the_wheel_plans_draws_and_reports_outside_the_clone(wheel, tmp_path):
    """Fonts, templates and the command are in it, and nothing of the clone is used."""
    sn.score(shared(), sn.Cluster.of("cpu"), {"*": "cpu"}).save(tmp_path / "old.json")
    found = outside(wheel, tmp_path, "-c", "import splitnet; print(splitnet.__file__)")
    plan = "plan", "old.json", "--cluster", "2*gpu,cpu", "-o", "plan.json"
    outside(wheel, tmp_path, "-m", "splitnet", *plan)
    outside(wheel, tmp_path, "-m", "splitnet", "draw", "plan.json", "-o", "plan.png")
    outside(wheel, tmp_path, "-m", "splitnet", "report", "plan.json")
    version = outside(wheel, tmp_path, "-m", "splitnet", "--version")
    assert found.strip() == str(wheel / "splitnet" / "__init__.py")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert "gpu:1" in (tmp_path / "report.html").read_text()
    assert version == f"splitnet {sn.__version__}\n"


def test_the_wheel_has_every_module_its_licences_and_types(wheel):
    """The licence, the font's and d3's, in SPDX's words; no test, no relative link."""
    (info,) = wheel.glob("*.dist-info")
    text = (info / "METADATA").read_text()
    said = HeaderParser().parsestr(text)
    view = info / "licenses" / "splitnet" / "view"
    assert said["Version"] == sn.__version__
    assert said["License-Expression"] == "Apache-2.0 AND OFL-1.1 AND ISC"
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text()
    assert "SIL OPEN FONT LICENSE" in (view / "fonts" / "OFL.txt").read_text().upper()
    assert "Permission to use" in (view / "vendor" / "d3.LICENSE.txt").read_text()
    assert re.findall(r"\]\((?!https?:)[^)]*\)", text) == []
    assert "which strategy" in text
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "splitnet").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    theirs = {str(p.relative_to(wheel)) for p in wheel.rglob("*") if p.is_file()}
    assert "splitnet/py.typed" in theirs
    assert sorted(ours - theirs) == []
    assert not (wheel / "tests").exists()


def test_the_sdist_can_be_tested_and_documented(sdist):
    needed = ("tests", "docs", "examples", "benchmarks", "mkdocs.yml", ".ci/run")
    assert [name for name in needed if not (sdist / name).exists()] == []


def test_the_version_is_in_one_place():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "docs" / "changelog.md").read_text(encoding="utf-8")
    assert settings["project"]["dynamic"] == ["readme", "version"]
    assert settings["tool"]["hatch"]["version"]["path"] == "splitnet/__init__.py"
    assert f"\nversion: {sn.__version__}\n" in citation
    assert re.search(rf"^## {re.escape(sn.__version__)} ", changelog, re.MULTILINE)
