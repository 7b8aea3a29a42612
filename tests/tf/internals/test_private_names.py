"""Private names of Keras and TensorFlow: in one room, checked when it is imported."""

import ast

import keras
import pytest
import tensorflow as tf

import splitnet as sn
from splitnet.tf import internals
from tests.test_architecture import ROOMS, ROOT, TREES

INSIDE = "splitnet.tf.internals"
OWN = ("_asdict", "_replace", "_exit", "_getframe", "_fields")


def private_names(tree):
    """Private attributes of others, and imports of private modules."""
    known = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] + [*OWN]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            if private and owner not in ("self", "cls") and node.attr not in known:
                yield ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None), *(one.name for one in node.names)]
            roots = ("keras.src", "tensorflow.python")
            yield from (name for name in names if name and name.startswith(roots))


def test_private_names_stand_in_internals_only():
    rooms = ("tf", "api", "callbacks", "demo")
    names = [n for n in ROOMS if ROOMS[n] in rooms and not n.startswith(INSIDE)]
    strays = {name: [*private_names(TREES[name])] for name in names}
    assert len(names) > 40
    assert {name: found for name, found in strays.items() if found} == {}


def test_every_private_name_is_listed_with_its_reason():
    """Those that are checked, and those that are imported."""
    tables = [text for its in internals.PRIVATE.values() for text in its.values()]
    names = {name for text in tables for name in text.split()}
    for tree in [TREES[name] for name in TREES if name.startswith(INSIDE)]:
        for node in ast.walk(tree):
            inside = ("keras.", "tensorflow.")
            if isinstance(node, ast.ImportFrom) and node.module.startswith(inside):
                names |= {one.name for one in node.names}
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert len(names) > 60
    assert [name for name in names if f"`{name}`" not in page] == []


def test_what_cannot_run_is_refused(monkeypatch):
    """Untested versions, a name that Keras dropped, a backend without tf.device."""
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    name = "_distributed_tf_update_step"
    for library, words in (
        (keras, "pip install 'keras>=3.12,<3.16'.*9.9.0 is outside 3.12 to 3.15"),
        (tf, "pip install 'tensorflow>=2.20,<2.22'.*9.9.0 is outside 2.20 to 2.21"),
        (None, f"TFOptimizer.{name} is gone"),
    ):
        with monkeypatch.context() as patch:
            if library:
                patch.setattr(library, "__version__", "9.9.0")
            else:
                patch.delattr(TFOptimizer, name)
            with pytest.raises(sn.ConfigError, match=f"(?s){words}"):
                internals.check_versions()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(sn.ConfigError, match="KERAS_BACKEND=tensorflow"):
        internals.check_versions()
