"""Whether TensorFlow has started, and waiting for what workers were asked."""

import sys
from collections.abc import Callable

__all__ = ["guard", "settle", "started"]

_guards: list[Callable[[bool], None]] = []


def started() -> bool:
    """Whether TensorFlow has claimed its devices; neither loads nor starts it.

    From then on most settings are closed.
    """
    if "tensorflow.python.eager.context" not in sys.modules:
        return False
    from splitnet.tf.internals import tf_api

    return tf_api.started()


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
        from splitnet.tf.internals import tf_api

        tf_api.wait_for_eager_operations()
