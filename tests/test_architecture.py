"""Architecture: imports point down, no circles, frameworks at the edge alone."""

import ast
import re
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest

import splitnet
from splitnet.core import HOOKS, hook
from tests.child import python

PACKAGE = Path(splitnet.__file__).parent
ROOT = PACKAGE.parent
LAYERS = "core, simulator, planner, tf view, api, callbacks demo, cli, __main__"
"""From below to above: a module imports its own package and what is below it."""

FRAMEWORKS = ("tensorflow", "keras")
ABOVE_FRAMEWORKS = ("tf", "api", "callbacks", "demo", "cli")
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES)
MODULES = {name.removesuffix(".__init__"): path for name, path in zip(NAMES, FILES)}
ROOMS = {name: name.split(".")[1] for name in MODULES if name != "splitnet"}
BELOW = [name for name, room in ROOMS.items() if room not in ABOVE_FRAMEWORKS]
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def imports_of(name):
    """What a module imports, at its top, in functions and for type checking alike."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (one for one in inner if one in MODULES)
            yield node.module


def import_graph():
    """Modules and what they import of one another, but for the root's `__init__`."""
    graph = nx.DiGraph()
    graph.add_nodes_from(ROOMS)
    for name in ROOMS:
        for target in imports_of(name):
            if target in graph and target != name:
                graph.add_edge(name, target)
    return graph


def upward_imports(graph):
    """Imports of a higher layer, or of another package of the same layer."""
    layer = {
        room: i for i, rooms in enumerate(LAYERS.split(", ")) for room in rooms.split()
    }
    found = []
    for name, target in graph.edges:
        here, there = ROOMS[name], ROOMS[target]
        if layer[there] >= layer[here] and there != here:
            found.append(f"{name} imports {target}")
    return found


def circles_in(graph):
    found = nx.strongly_connected_components(graph)
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def test_imports_point_down_and_have_no_circle():
    """From cli over api, tf or view, planner and simulator to core; lazily as well."""
    graph = import_graph()
    packages = nx.DiGraph(
        (one.split(".")[2], other.split(".")[2])
        for one, other in graph.edges
        if all(re.match(r"splitnet\.tf\.\w+\.", name) for name in (one, other))
    )
    assert upward_imports(graph) == []
    assert circles_in(graph) == []
    assert circles_in(packages) == []
    assert not nx.has_path(packages, "reading", "placement")
    assert not nx.has_path(packages, "placement", "parallel")


def test_one_import_turned_round_is_found():
    graph = import_graph()
    lazy = (f"splitnet.planner.engine.{name}" for name in ("solve", "tasks"))
    assert graph.has_edge(*lazy)
    graph.add_edge("splitnet.core.plan", "splitnet.view.render")
    graph.add_edge("splitnet.tf.emit", "splitnet.view.render")
    assert len(upward_imports(graph)) == 2
    assert any("splitnet.view.render" in circle for circle in circles_in(graph))


def test_only_the_edge_names_a_framework():
    strays = [
        f"{name} imports {target}"
        for name in BELOW
        for target in imports_of(name)
        if target.split(".")[0] in FRAMEWORKS
    ]
    assert strays == []


def test_files_and_folders_are_small_and_say_what_they_are_for():
    large = [n for n, p in MODULES.items() if len(p.read_text().splitlines()) > 500]
    files = [n for n, p in MODULES.items() if p.name != "__init__.py"]
    folders = Counter(name.rpartition(".")[0] for name in files)
    large += [folder for folder, count in folders.items() if count > 12]
    assert large == []
    assert [name for name, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_every_hook_is_a_function():
    files = (PACKAGE / "core").rglob("*.py")
    used = {n for f in files for n in re.findall(r'hook\("(\w+)"\)', f.read_text())}
    assert used == set(HOOKS)
    assert [name for name in HOOKS if not callable(hook(name))] == []


def test_import_and_help_load_no_framework_and_change_nothing():
    """Neither importing nor declaring a net loads TensorFlow or adds an import hook."""
    code = (
        "import sys, contextlib, io\n"
        "before = list(sys.meta_path), list(sys.path_hooks)\n"
        "import splitnet as sn; net = sn.Net('a'); net.input('x', (4,))\n"
        "print([m for m in ('tensorflow', 'keras', 'networkx', 'numpy', 'highspy', "
        "'rich', 'jinja2', 'pygraphviz') if m in sys.modules])\n"
        "sn.Plan; sn.Cluster; sn.Audit\n"
        "print(before == (sys.meta_path, sys.path_hooks))\n"
        "from splitnet.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), "
        "contextlib.suppress(SystemExit): main(['--help'])\n"
        "print([m for m in ('tensorflow', 'keras', 'networkx') if m in sys.modules])"
    )
    assert python("-c", code).stdout.split() == ["[]", "True", "[]"]


def test_public_names_are_exported_to_type_checkers():
    """By a redundant alias: `from module import name as name`."""
    _, *lines = Path(splitnet.__file__).with_suffix(".pyi").read_text().splitlines()
    imports = [line for line in lines if line.startswith("from")]
    names = [re.fullmatch(r"from [\w.]+ import (\w+) as \1", x)[1] for x in imports]
    assert [*names, "__version__"] == splitnet.__all__


@pytest.mark.tf
def test_every_public_name_resolves():
    assert [name for name in splitnet.__all__ if not hasattr(splitnet, name)] == []
    assert dir(splitnet) == sorted(splitnet.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        splitnet.nonsense  # noqa: B018  # the look-up is the test


def test_the_project_names_no_machine():
    places = ("/" + "work/", "/" + "tmp/venv", "/" + "root/")
    patterns = "*.md *.toml splitnet/**/*.py docs/**/*.md docs/**/*.svg examples/*.py"
    strays = [
        str(path.relative_to(ROOT))
        for pattern in [*patterns.split(), "benchmarks/*.*", "tests/**/*.py"]
        for path in ROOT.glob(pattern)
        if any(place in path.read_text(encoding="utf-8") for place in places)
    ]
    assert strays == []
