"""Whether TensorFlow has started, and what started it.

The one place that touches the private names of TensorFlow's context. Starting means
that devices are claimed: from then on most settings are closed.
"""

import linecache
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from splitnet.tf.quiet import hushed

__all__ = ["guard", "note", "rejoin", "settle", "starter", "started", "watch"]

_OUR_FOLDERS = ("/tensorflow/", "/keras/", "/splitnet/", "/importlib/")
_seen: list[str] = []
_guards: list[Callable[[bool], None]] = []


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def started() -> bool:
    """Say whether TensorFlow has claimed its devices; does not make it do so."""
    return getattr(_context(), "_context_handle", None) is not None


def rejoin(spec: Any) -> None:
    """Join the workers of a cluster again, or others, at this program's old address.

    TensorFlow's public way would listen at that address a second time, unless nothing
    at all has changed.
    """
    context = _context()
    known = context.get_server_def()
    fresh = type(known)()
    fresh.CopyFrom(known)
    fresh.cluster.CopyFrom(spec.as_cluster_def())
    context.update_server_def(fresh)


def guard(check: Callable[[bool], None]) -> None:
    """Let `settle` call this first: it raises if a worker is lost.

    Its argument says whether to ask the workers, or to go by what is known of them.
    """
    _guards[:] = [check]


def settle(*, ask: bool = False) -> None:
    """Wait until workers have done what they were asked outside of any function.

    TensorFlow hands such operations over and goes on; a function that is called next
    can overtake them, and find variables that are still empty. It would wait for a lost
    worker for ever, so that is looked for first.

    Raises:
        WorkerError: a worker is lost.
    """
    if started():
        for check in _guards:
            check(ask)
        _context().sync_executors()


def watch() -> None:
    """Note the user's line that starts TensorFlow, should it happen later.

    Wraps one method of the context and takes the wrapper off when it has fired.
    """
    context = _context()
    if started() or "ensure_initialized" in vars(context):
        return
    original = context.ensure_initialized

    def ensure_initialized() -> None:
        was = started()
        with hushed():
            original()
        if not was:
            note(sys._getframe(1))
        vars(context).pop("ensure_initialized", None)

    context.ensure_initialized = ensure_initialized


def note(frame: FrameType | None) -> None:
    """Remember the line that started TensorFlow: the user's innermost of a frame."""
    _seen.append(_user_line(frame))


def starter() -> str:
    """Say what started TensorFlow, as far as it can be known, in half a sentence."""
    if _seen:
        return f"it was started at {_seen[0]}"
    holders = _holders()
    if holders:
        return f"what holds its objects: {'; '.join(holders[:4])}"
    return "what started it is not known: a layer, a tensor, a variable or a dataset"


def _user_line(frame: FrameType | None) -> str:
    """The innermost line that is the user's own, and what it says."""
    while frame is not None:
        name = frame.f_code.co_filename.replace("\\", "/")
        if not name.startswith("<") and not any(f in name for f in _OUR_FOLDERS):
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            return f"{frame.f_code.co_filename}:{frame.f_lineno}" + (
                f" ({text})" if text else ""
            )
        frame = frame.f_back
    return "a line that is not known"


def _holders() -> list[str]:
    """Modules of the user whose names hold tensors, variables or layers with them."""
    found = []
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        if not isinstance(module, ModuleType) or top in _FRAMEWORKS:
            continue
        for attribute, value in list(vars(module).items()):
            if _is_live(value):
                where = "the main program" if name == "__main__" else f"module {name!r}"
                kind = type(value).__name__
                found.append(f"{where} has {attribute!r} (a {kind})")
                break
    return found


_FRAMEWORKS = ("tensorflow", "keras", "splitnet", "numpy", "absl", "__mp_main__")


def _is_live(value: object) -> bool:
    """Whether a value needed TensorFlow's devices when it was made."""
    import tensorflow as tf
    from tensorflow import keras

    kind = type(value)  # some modules hold objects that cannot be asked for more
    if issubclass(kind, tf.Variable | tf.Tensor | tf.data.Dataset):
        return True
    return issubclass(kind, keras.layers.Layer) and bool(value.variables)
