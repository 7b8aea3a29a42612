"""The largest batch of nets and models, read and placed."""

import keras
import pytest

import splitnet as sn

BOX = sn.Cluster.of("gpu", "cpu", memory="64 MiB", cpu_memory="32 MiB")


def test_a_net_has_a_largest_batch():
    """Bytes grow with the batch; twice the batch that fits does not."""
    net = sn.Net("wide")
    x = net.input("x", (64,))
    net.output(net.branch("body", x, [keras.layers.Dense(256) for _ in range(4)]))
    most = sn.largest_batch(net, BOX)

    assert most > 32
    sn.plan(net, BOX, batch=most // 2, time_limit=0.3)
    with pytest.raises(sn.InfeasibleError):
        sn.plan(net, BOX, batch=4 * most, time_limit=0.3)


def test_a_model_with_inputs_by_name_has_a_largest_batch():
    """A model is read, not called."""
    inputs = {n: keras.Input((32,), name=n) for n in ("a", "b")}
    joined = keras.layers.Concatenate()(list(inputs.values()))
    model = keras.Model(inputs, keras.layers.Dense(64)(joined))

    assert sn.largest_batch(model, BOX) > 32
