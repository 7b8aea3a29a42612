"""The house: imports point down, and importing splitnet is light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import splitnet

PACKAGE = Path(splitnet.__file__).parent
DOCS = PACKAGE.parent / "docs"

# room -> the rooms of splitnet that it may import; the front door sees all
ALLOWED = {
    # `core` and `simulator` still reach upwards in a few places.
    "core": {"core", "simulator", "planner", "_version"},
    "simulator": {"core", "simulator", "planner", "_version"},
    "planner": {"core", "simulator", "planner", "_version"},
    "tf": {"core", "simulator", "planner", "tf", "_version"},
    "view": {"core", "simulator", "planner", "view", "_version"},
    "cli": {
        *("core", "simulator", "planner", "tf", "view"),
        *("cli", "demo", "api", "_version"),
    },
}
HEAVY = ("tensorflow", "keras")


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def imports_of(path: Path, *, top_level: bool = False) -> Iterator[str]:
    """What a module imports; `top_level` leaves out functions and type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = ast.walk(tree) if not top_level else _at_import_time(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            known = modules()
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in inner)


def _at_import_time(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _at_import_time(node)


def in_a_child(code: str) -> str:
    """What a fresh Python prints for a program."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("room", ["core", "simulator", "planner", "tf", "view", "cli"])
def test_rooms_import_only_what_is_below(room: str) -> None:
    """Core sees itself; tf and view see core and never each other."""
    strays = [
        f"{name} imports {target}"
        for name, path in modules().items()
        if name.split(".")[1:2] == [room]
        for target in imports_of(path)
        if target.startswith("splitnet.") and target.split(".")[1] not in ALLOWED[room]
    ]

    assert strays == []


@pytest.mark.parametrize("room", ["core", "simulator", "planner", "view"])
def test_rooms_without_keras_never_name_it(room: str) -> None:
    """Neither core nor view imports TensorFlow or Keras, not even inside a function."""
    strays = [
        f"{name} imports {target}"
        for name, path in modules().items()
        if name.split(".")[1:2] == [room]
        for target in imports_of(path)
        if target.split(".")[0] in HEAVY
    ]

    assert strays == []


def test_imports_have_no_cycle() -> None:
    """What modules import when they are imported can be put in one order."""
    known = modules()
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, path in known.items():
        for target in imports_of(path, top_level=True):
            if target in known and target not in (name, "splitnet"):
                graph.add_edge(name, target)

    assert list(nx.simple_cycles(graph)) == []


def test_import_loads_no_framework() -> None:
    """`import splitnet`, and declaring a net, load neither TensorFlow nor networkx."""
    loaded = in_a_child(
        "import sys, splitnet as sn; net = sn.Net('a'); net.input('x', (4,));"
        "print([m for m in ('tensorflow', 'keras', 'networkx', 'numpy', 'highspy', "
        "'rich', 'jinja2', 'pygraphviz') if m in sys.modules])"
    )

    assert loaded == "[]"


def test_help_loads_no_framework() -> None:
    """`splitnet --help` answers without TensorFlow, Keras or the planner."""
    loaded = in_a_child(
        "import sys, contextlib, io; from splitnet.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), "
        "contextlib.suppress(SystemExit): main(['--help'])\n"
        "print([m for m in ('tensorflow', 'keras', 'networkx') if m in sys.modules])"
    )

    assert loaded == "[]"


def test_only_terminals_and_examples_print() -> None:
    """No module but the command line's calls print()."""
    printing = [
        name
        for name, path in modules().items()
        if not name.startswith("splitnet.cli")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    ]

    assert printing == []


@pytest.mark.tf
def test_every_public_name_resolves() -> None:
    """Each name of `__all__` is there, and `dir` shows them."""
    missing = [name for name in splitnet.__all__ if not hasattr(splitnet, name)]

    assert missing == []
    assert dir(splitnet) == sorted(splitnet.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    """A name that is not public fails as on any module."""
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        splitnet.nonsense  # noqa: B018  # the look-up is the test


def test_every_public_name_is_documented() -> None:
    """docs/api.md has a line for every public name."""
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    missing = [name for name in splitnet.__all__ if f"`{name}" not in text]

    assert missing == []


def test_every_module_says_what_it_is_for() -> None:
    """Each module begins with a sentence, and the ones with code list their names."""
    silent = [
        name
        for name, path in modules().items()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert silent == []


def test_the_project_names_no_machine() -> None:
    """No file of the project names a path of the machine it was written on."""
    root = PACKAGE.parent
    places = ("/" + "work/", "/" + "tmp/venv", "/" + "root/")
    files = [
        path
        for pattern in (
            "*.md",
            "*.toml",
            "splitnet/**/*.py",
            "docs/**/*.md",
            "docs/**/*.svg",
            "examples/*.py",
            "benchmarks/*.*",
            "tests/**/*.py",
        )
        for path in root.glob(pattern)
    ]
    strays = [
        str(path.relative_to(root))
        for path in files
        if any(place in path.read_text(encoding="utf-8") for place in places)
    ]

    assert strays == []
