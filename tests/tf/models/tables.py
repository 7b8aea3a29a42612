"""Models that prepare what they are given: strings, ages and categories."""

from typing import Any

import keras
import numpy as np
from keras import layers

from tests.tf.models.subject import Subject, model, numbers


@model
def prepared_columns() -> Any:
    """Six ways to prepare a column, by name, and two outputs by name."""
    city = keras.Input((1,), name="city", dtype="string")
    age = keras.Input((1,), name="age")
    visits = keras.Input((1,), name="visits", dtype="int64")
    look_up = layers.StringLookup(vocabulary=["ulm", "bonn"], output_mode="one_hot")
    scale = layers.Normalization(axis=-1)
    scale.adapt(np.array([[20.0], [40.0], [61.0]]))
    bins = layers.Discretization(bin_boundaries=[18.0, 40.0, 65.0])
    counted = layers.IntegerLookup(vocabulary=[1, 2, 5], output_mode="multi_hot")
    columns = [
        look_up(city),
        scale(age),
        layers.CategoryEncoding(4, output_mode="one_hot")(bins(age)),
        counted(visits),
        layers.Flatten()(layers.Embedding(8, 3)(layers.Hashing(8)(city))),
    ]
    x = layers.Concatenate()(columns)
    x = layers.Dense(8, activation="relu")(x)
    outputs = {
        "stays": layers.Dense(1, activation="sigmoid", name="stays")(x),
        "spends": layers.Dense(1, name="spends")(x),
    }
    inputs = {"city": city, "age": age, "visits": visits}
    batch = {
        "city": np.array([["ulm"], ["bonn"], ["rom"], ["ulm"]], object),
        "age": np.array([[17.0], [33.0], [50.0], [80.0]], "float32"),
        "visits": np.array([[1], [2], [3], [5]]),
    }
    y = {"stays": np.array([[0.0], [1], [1], [0]]), "spends": numbers(1)}
    loss = {"stays": "binary_crossentropy", "spends": "mae"}
    return Subject(keras.Model(inputs, outputs), batch, y, loss)


@model
def wide_and_deep() -> Any:
    """Crossed features beside dense ones, and a raw output that is an input too."""
    user = keras.Input((1,), dtype="int32", name="user")
    item = keras.Input((1,), dtype="int32", name="item")
    liked = keras.Input((3,), dtype="bool", name="liked")
    crossed = layers.HashedCrossing(16, output_mode="one_hot")((user, item))
    rows = [layers.Flatten()(layers.Embedding(9, 4)(one)) for one in (user, item)]
    alike = layers.Dot(axes=1, normalize=True)(rows)
    deep = layers.Concatenate()([*rows, alike, keras.ops.cast(liked, "float32")])
    for width in (8, 6):
        deep = layers.Dense(width, activation="relu")(deep)
    wide = layers.Dense(1, use_bias=False)(crossed)
    made = wide + layers.Dense(1)(deep)
    x = [np.array([[1], [2], [3], [4]], "int32")] * 2 + [numbers(3) > 0]
    return Subject(keras.Model([user, item, liked], made), x, numbers(1))
