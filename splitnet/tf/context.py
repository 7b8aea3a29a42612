"""TensorFlow's context: whether it has started, which workers it has joined.

Starting means that devices are claimed: from then on most settings are closed.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["guard", "rejoin", "settle", "started"]

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
