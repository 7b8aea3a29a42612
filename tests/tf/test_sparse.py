"""Sparse tensors are told from those that Keras only marks so."""

import keras
import pytest
from keras import layers, ops

from splitnet.tf.reading.flatten import is_sparse

pytestmark = [pytest.mark.tf, pytest.mark.usefixtures("cluster")]


def test_is_sparse_takes_no_product_with_a_number_for_one():
    """Keras marks `2 * x` as sparse, and what is made of it."""
    x = keras.Input((8,))
    scaled = ops.abs(ops.multiply(x, 2.0))
    assert scaled.sparse

    assert not is_sparse(scaled)
    assert not is_sparse(x / 255.0)


def test_is_sparse_knows_inputs_layers_and_what_is_made_of_them():
    """Sparse inputs, layers that make sparse tensors, and functions of them."""
    x = keras.Input((8,), sparse=True)
    coded = layers.CategoryEncoding(10, "count", sparse=True)(keras.Input((4,)))

    assert is_sparse(x)
    assert is_sparse(ops.abs(ops.multiply(x, 2.0)))
    assert is_sparse(coded)
    assert not is_sparse(layers.Dense(3)(x))
