"""The loss of each output, as Keras reports it, of a batch that comes in pieces.

Keras notes it whenever a loss is worked out, which is once for each piece. So the notes
are taken down and made one: their mean, each piece weighted by its samples.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.batch_shards import Shards

__all__ = ["noted_once"]


@contextlib.contextmanager
def noted_once(model: Any, rows: Shards) -> Iterator[None]:
    """Let the losses of all pieces, worked out inside, be reported as one batch's.

    Args:
        model: a compiled model.
        rows: how its batch is cut.
    """
    loss = keras_api.compiled_loss(model)
    taken: list[tuple[Any, list[Any]]] = []

    def take_down() -> None:
        for metric in loss.metrics:
            values: list[Any] = []
            vars(metric)["update_state"] = _note(values)
            taken.append((metric, values))

    def build(*args: Any, **kwargs: Any) -> None:
        del vars(loss)["build"]
        loss.build(*args, **kwargs)
        take_down()

    if loss is not None and loss.built:
        take_down()
    elif loss is not None:  # its metrics are made with it, in the first piece
        vars(loss)["build"] = build
    try:
        yield
    finally:
        for metric, _ in taken:
            del vars(metric)["update_state"]
        if loss is not None:
            vars(loss).pop("build", None)
    for metric, values in taken:
        metric.update_state(
            rows.mean(list(map(tf.convert_to_tensor, values))),
            sample_weight=rows.extent if rows.known else None,
        )


def _note(values: list[Any]) -> Any:
    def update_state(value: Any, sample_weight: Any = None) -> None:
        values.append(value)

    return update_state
