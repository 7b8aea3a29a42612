"""Which symbolic tensors are really sparse."""

from typing import Any

import keras

from splitnet.tf.internals import keras_api

__all__ = ["is_sparse"]


def is_sparse(tensor: Any) -> bool:
    """Whether a symbolic tensor comes of something that makes sparse tensors.

    Keras marks products and quotients with plain numbers (`x / 255.0`) as sparse, and
    what is made of them. Sparse tensors begin at an input or a layer, or at an
    operation that was told to make them.
    """
    seen: dict[int, None] = {}
    ahead = [tensor]
    while ahead:
        one = ahead.pop()
        if not getattr(one, "sparse", False) or id(one) in seen:
            continue
        seen[id(one)] = None
        node = keras_api.producer(one)
        if node is None or getattr(node.operation, "sparse", False):
            return True
        marked = [t for t in node.input_tensors if getattr(t, "sparse", False)]
        if not marked and isinstance(node.operation, keras.layers.Layer):
            return True
        ahead += marked
    return False
