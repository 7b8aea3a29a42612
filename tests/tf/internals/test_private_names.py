"""Private names of Keras and TensorFlow: in one room, checked when it is imported."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest

import splitnet as sn
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.checks import is_there, missing

PACKAGE = Path(sn.__file__).parent
ROOMS = ("tf", "api.py", "callbacks.py", "demo.py")
OWN = ("_asdict", "_replace", "_exit", "_getframe", "_fields")


def sources() -> Iterator[tuple[str, ast.AST]]:
    """The files that may know Keras, without the room of private names."""
    for room in ROOMS:
        root = PACKAGE / room
        for path in [root] if root.suffix else sorted(root.rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            if not name.startswith("tf/internals/"):
                yield name, ast.parse(path.read_text(encoding="utf-8"))


def private_names(tree: ast.AST) -> Iterator[str]:
    """Private attributes of anything but `self` and `cls`, and of the file's own."""
    own = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and node.attr not in (*OWN, *own)
            and not (isinstance(node.value, ast.Name) and node.value.id in _OWNERS)
        ):
            yield ast.unparse(node)


_OWNERS = ("self", "cls")


def test_private_attributes_stand_in_internals_only() -> None:
    """No other module reads `x._name` of what is not its own."""
    strays = [
        f"{name}: {found}" for name, tree in sources() for found in private_names(tree)
    ]

    assert strays == []


def test_private_modules_are_imported_by_internals_only() -> None:
    """No other module imports `keras.src` or `tensorflow.python`."""
    strays = [
        f"{name}: {found}"
        for name, tree in sources()
        for node in ast.walk(tree)
        for found in _imported(node)
        if found.startswith(("keras.src", "tensorflow.python"))
    ]

    assert strays == []


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


@pytest.mark.parametrize(
    ("room", "library", "version", "range_", "wanted"),
    [
        (keras_api, keras, "3.11.3", "3.12 to 3.15", "'keras>=3.12,<3.16'"),
        (keras_api, keras, "3.99.0", "3.12 to 3.15", "'keras>=3.12,<3.16'"),
        (tf_api, tf_api.tf, "2.15.1", "2.20 to 2.21", "'tensorflow>=2.20,<2.22'"),
    ],
)
def test_a_version_outside_the_tested_range_is_refused(
    room: Any,
    library: Any,
    version: str,
    range_: str,
    wanted: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error says which one is here, which are tested, and what to install."""
    monkeypatch.setattr(library, "__version__", version)
    with pytest.raises(sn.ConfigError) as caught:
        room.check_versions()

    assert f"{version} is outside {range_}" in str(caught.value)
    assert f"pip install {wanted}" in str(caught.value)


def test_a_private_name_that_is_gone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that Keras dropped is named before anything runs."""
    name = "_distributed_tf_update_step"
    monkeypatch.delattr(keras_api.TFOptimizer, name)

    with pytest.raises(sn.ConfigError, match=f"TFOptimizer.{name} is gone"):
        keras_api.check_versions()


def test_an_attribute_that_a_constructor_sets_is_there() -> None:
    """Attributes of instances are looked for in the code of their class."""

    class Owner:
        def __init__(self) -> None:
            self._set = 1

    assert is_there(Owner, "_set")
    assert missing(((Owner, ("_set", "_gone")),)) == ["Owner._gone is gone"]


def test_another_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX and PyTorch have no tf.device."""
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")

    with pytest.raises(sn.ConfigError, match="KERAS_BACKEND=tensorflow"):
        keras_api.check_versions()
