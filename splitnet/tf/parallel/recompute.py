"""Which calls run recomputed or compiled by XLA, and why others do not."""

from collections.abc import Callable
from typing import Any

import keras

from splitnet.core.plan import Fallback
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.xla import refusal
from splitnet.tf.placement.placed import Placed
from splitnet.tf.reading.flatten import is_sparse

__all__ = ["how_to_run"]

_LOOPING = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed)


def how_to_run(
    placed: Placed, how: str, wanted: Callable[[str], bool]
) -> tuple[dict[int, str], list[Fallback]]:
    """How each call runs, by the id of its node, and what cannot run so.

    Args:
        placed: the placement of an emitted model.
        how: "recompute" or "xla".
        wanted: whether the part of a key shall run so.
    """
    found: dict[int, str] = {}
    fallbacks: dict[tuple[str, str], Fallback] = {}
    for node in placed.flow.nodes:
        key = placed.key_of[id(node)]
        if not wanted(key):
            continue
        reason = _obstacle(node, placed, how)
        if not reason:
            found[id(node)] = how
            continue
        part = placed.part_of[key]
        fallbacks.setdefault((part, reason), Fallback(part, how, "as it is", reason))
    return found, list(fallbacks.values())


def _obstacle(node: Any, placed: Placed, how: str) -> str:
    """Why a call cannot run so; "" if it can."""
    if id(node) in placed.keys_of:
        return "towers run plainly"
    operation = node.operation
    kinds = [*node.input_tensors, *node.outputs]
    if any(keras.backend.standardize_dtype(t.dtype) == "string" for t in kinds):
        return "it works on text"
    if any(map(is_sparse, kinds)):
        return "it works on sparse tensors"
    if how != "xla":
        return ""
    if any(isinstance(one, _LOOPING) for one in keras_api.sublayers(operation)):
        return "XLA compiles its loop for one length only"
    return refusal(node)
