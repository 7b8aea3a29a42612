"""Failures of workers, in words: which, since when, and what to do."""

from collections.abc import Mapping

from splitnet.core.errors import listed
from splitnet.tf.health import Health

__all__ = ["ended_words", "is_about_workers", "lost_words"]


def is_about_workers(error: BaseException) -> bool:
    """Whether TensorFlow may say this of a worker that is lost."""
    import tensorflow as tf

    kinds = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
    )
    return isinstance(error, kinds) or (
        isinstance(error, tf.errors.InvalidArgumentError)
        and "remote_handle" in str(error)
    )


def ended_words(bad: Mapping[str, Health], error: BaseException) -> str:
    """What to say of a step that `error` ended; `bad` are the workers that failed."""
    if bad:
        return listed(
            f"the step ended because a worker failed. {_remedy(bad)}",
            [health.words for health in bad.values()],
        )
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        "the step ended because a worker was lost; all of them answer now, so one was "
        f"started anew and what it held is gone ({first[:200]}). {_remedy(bad)}"
    )


def lost_words(bad: Mapping[str, Health]) -> str:
    """What to say before anything is asked of workers that are lost."""
    return listed(
        "a worker is lost, and TensorFlow would wait for it for ever. " + _remedy(bad),
        [health.words for health in bad.values()],
    )


def _remedy(bad: Mapping[str, Health]) -> str:
    names = ", ".join(repr(name) for name in bad)
    without = f", or without it, sn.connect(cluster.without({names}))" if bad else ""
    return (
        f"Join again, sn.connect(cluster), once it is back{without}; plan and emit the "
        "model for that cluster, and fit with the same keras.callbacks."
        "BackupAndRestore: training goes on from its last backup."
    )
