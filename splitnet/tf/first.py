"""Noting which line starts TensorFlow, from the moment that splitnet is imported.

Settings that come too late are to say what came before them, and TensorFlow remembers
nothing. Loads nothing itself; imports of anything else pass by.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

__all__ = ["watch_from_now"]

_CONTEXT = "tensorflow.python.eager.context"


def watch_from_now() -> None:
    """Watch TensorFlow's context: as it is loaded, or at once if it is."""
    if _CONTEXT in sys.modules:
        _watch(sys.modules[_CONTEXT])
    elif _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    """Meets the import of one module, once, and leaves all others alone."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's own specification, with the watch set up behind its code."""
        if name != _CONTEXT:
            return None
        sys.meta_path.remove(cls)
        spec = PathFinder.find_spec(name, path, target)
        return spec if spec is None or spec.loader is None else _followed(spec)


def _followed(spec: ModuleSpec) -> ModuleSpec:
    loader: Any = spec.loader
    run = loader.exec_module

    def exec_module(module: Any) -> None:
        run(module)
        _watch(module)

    loader.exec_module = exec_module
    return spec


def _watch(module: Any) -> None:
    """Note the line at which the context starts; the method is its own again then."""
    kind = getattr(module, "Context", None)
    start = getattr(kind, "ensure_initialized", None)
    if start is None or hasattr(start, "_noted"):
        return

    def ensure_initialized(self: Any) -> None:
        from splitnet.tf.context import note, started

        was = started()
        start(self)
        if not was and started():
            note(sys._getframe(1))
        if started():
            kind.ensure_initialized = start

    vars(ensure_initialized)["_noted"] = True
    kind.ensure_initialized = ensure_initialized
