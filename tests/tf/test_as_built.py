"""`pins="as_built"`: a model built under `tf.device` runs where its variables are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from tests.tf.zoo import two_branches


def recipe(devices):
    """The Keras FAQ's recipe: encoders under `tf.device`, joined without a scope."""
    entries = [keras.Input((6, 4), name=f"tweet_{i}") for i in range(len(devices))]
    ends = []
    for i, (entry, device) in enumerate(zip(entries, devices, strict=True)):
        with tf.device(device):
            x = layers.LSTM(5, name=f"lstm_{i}")(entry)
            ends.append(layers.ReLU(name=f"relu_{i}")(x))
    with tf.device("/cpu:0"):
        head = layers.Dense(1, name="head")(layers.Concatenate(name="joined")(ends))
    return keras.Model(entries, head, name="faq")


def test_layers_run_where_their_variables_are(cluster):
    """Also calls without variables: where their inputs come from, as audited."""
    model = recipe(("/cpu:1", "/cpu:2"))
    placed = sn.place(model, cluster, pins="as_built", batch=8, time_limit=0.5)
    plan = sn.plan_of(placed)
    where = {call.name: plan.device_of[call.part] for call in plan.graph.calls}
    assert {where[name] for name in ("lstm_0", "relu_0")} == {"gpu:0"}
    assert {where[name] for name in ("lstm_1", "relu_1")} == {"gpu:1"}
    assert where["head"] == "cpu:0"
    placed.compile("sgd", "mse")
    x = [np.ones((8, 6, 4), "float32")] * 2
    sn.audit(placed, plan, (x, np.ones((8, 1), "float32"))).check()
    far = sn.plan(model, sn.Cluster.of("2*gpu", "cpu"), batch=8, pins="as_built")
    assert far.device_of == plan.device_of


def test_the_command_line_knows_the_word(tmp_path, cli):
    words = "from tests.tf.test_as_built import recipe\n"
    (tmp_path / "faq.py").write_text(words + "faq = recipe(('/cpu:2', '/cpu:1'))\n")
    words = f"plan {tmp_path}/faq.py:faq --stand-ins 3 --json --pin as_built"
    where = cli(f"{words} --time-limit 0.5").answer["device_of"]
    where = {part.partition(" ")[0]: device for part, device in where.items()}
    assert [where[f"lstm_{i}"] for i in range(2)] == ["gpu:1", "gpu:0"]


def test_one_device_for_all_is_said_at_the_callers_line(cluster):
    """TensorFlow uses the CPU where the device of a scope is not available."""
    soft = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    model = recipe(("/gpu:5", "/gpu:6"))
    tf.config.set_soft_device_placement(soft)
    with pytest.warns(UserWarning, match="are on cpu:0") as caught:
        sn.plan(model, cluster, pins="as_built", time_limit=0.5)
    assert caught[0].filename == __file__


def test_only_a_built_model_has_variables_to_go_by(cluster):
    for source in (two_branches().source, lambda: recipe(("/cpu:1", "/cpu:2"))):
        with pytest.raises(sn.DeclarationError, match="needs a built Keras model"):
            sn.plan(source, cluster, pins="as_built")
