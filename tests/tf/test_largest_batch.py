"""The largest batch of nets and models, read and placed."""

import keras

import splitnet as sn

BOX = sn.Cluster.of("gpu", "cpu", memory="64 MiB", cpu_memory="32 MiB")


def test_a_model_with_inputs_by_name_has_a_largest_batch():
    """A model is read, not called."""
    inputs = {n: keras.Input((32,), name=n) for n in ("a", "b")}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    model = keras.Model(inputs, keras.layers.Dense(64)(joined))

    assert sn.largest_batch(model, BOX) > 32
