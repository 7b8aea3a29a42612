"""Measured costs: complete, kept in a file, and used by a plan."""

import keras
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.core.costs import signature
from splitnet.tf.internals import tf_api
from splitnet.tf.profiling import measure
from splitnet.tf.profiling.measure import _kinds, synthetic_batch


@pytest.fixture(scope="module")
def model(cluster):
    """Text and numbers, a mask, a loop, a shared layer, and calls without weights."""
    title, adapted = keras.Input((), dtype="string"), layers.StringLookup()
    adapted.adapt(["a", "b"])
    words = keras.Input((6,), dtype="int32", name="words")
    numbers = keras.Input((8,), name="numbers")
    text = layers.SimpleRNN(4)(layers.Embedding(50, 4, mask_zero=True)(words))
    shared = layers.Dense(8, "relu")
    once = shared(numbers)
    known = layers.Embedding(3, 2)(adapted(title))
    joined = layers.Concatenate()([text, once, shared(once), known])
    made = keras.Model([words, numbers, title], layers.BatchNormalization()(joined))
    made.compile("sgd", "mse")
    return made


def test_measure_times_calls_updates_and_links(model, cluster, monkeypatch, tmp_path):
    """Of all calls and devices; the model is left alone, and a file is as good."""
    before = [w.tolist() for w in model.get_weights()]
    nodes = [len(layer._inbound_nodes) for layer in model.layers]
    told, warned = [], []
    monkeypatch.setattr(tf.get_logger(), "warning", lambda *text: warned.append(text))
    monkeypatch.setattr(measure, "_LINK_RUNS", 2)
    monkeypatch.setattr(measure, "_RUNS", 1)
    monkeypatch.setattr(measure, "_LOOP_SECONDS", -1.0)
    real = measure._memory_seconds
    monkeypatch.setattr(measure, "_memory_seconds", lambda *how: 1 + 0 * real(*how))
    how = {"optimizer": "momentum", "on_progress": lambda *now: told.append(now)}
    with tf_api.watch_graphs() as functions:
        costs = sn.measure(model, cluster, 16, **how)
    assert not warned  # TensorFlow would, of functions that it traces again and again
    # Each loop is on its device alone, or each round of it would wait for another one.
    loops = [{n.device for n in nodes if n.op == "Merge"} for nodes in functions]
    assert max(map(len, loops)) == 1
    assert [w.tolist() for w in model.get_weights()] == before
    assert [len(layer._inbound_nodes) for layer in model.layers] == nodes
    calls = [c for c in sn.read(model, 16).calls if c.kind != "InputLayer"]
    known = {(signature(c), c.forward_flops, c.backward_flops) for c in calls}
    for kind in ("gpu", "cpu"):
        its = [one for one in costs.calls if one.device == kind]
        assert {(one.call, one.flops, one.backward_flops) for one in its} == known
    assert all(0 <= one.forward_fixed <= one.forward for one in costs.calls)
    assert all(0 <= one.backward_fixed <= one.backward for one in costs.calls)
    fixed = {c.call: (int(c.forward_fixed), int(c.backward_fixed)) for c in costs.calls}
    assert (fixed["Dense (8)"], fixed["Embedding (6, 4)"]) == ((288, 576), (0, 0))
    assert {one.rows for one in costs.calls} == {16}
    assert {one.device for one in costs.updates} == {"gpu", "cpu"}
    assert [one.name for one in costs.measured_on] == ["gpu:0", "cpu:0"]
    assert not any(map(costs.of_another, cluster))
    assert len({(link.source, link.target) for link in costs.links}) == 12
    assert all(link.bytes_per_second > 0 for link in costs.links)
    assert all(0 <= link.gap_seconds <= link.latency_seconds for link in costs.links)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert (shares[0], told[-1]) == (0, (1.0, "done"))
    assert any(" on gpu:0" in text for _, text in told)
    sn.save_costs(costs, path := tmp_path / "costs.json")
    on_cpu = {part.name: "cpu:0" for part in sn.read(model, 16).parts}
    assert sn.score(model, cluster, on_cpu, batch=16, costs=path).costs == costs


def test_the_audit_takes_synthetic_texts_and_whole_numbers(model, cluster):
    placed = sn.place(model, cluster, batch=16, time_limit=0.1)
    assert not sn.audit(placed, None, synthetic_batch(placed, 16)).check().notes


def test_measure_refuses_devices_that_are_not_here(model):
    with pytest.raises(sn.DeviceError, match=r"(?s)sn\.connect.*gpu:7.*worker:3/cpu:0"):
        sn.measure(model, sn.Cluster.of("gpu:7", "worker:3/cpu:0", "cpu"), 16)


def test_kinds_tell_unlike_devices_of_a_kind_apart():
    """Workers and the client are CPUs of two sorts; equal GPUs are one."""
    labels = _kinds(sn.Cluster.of("2*gpu", "cpu", "worker:0/cpu", "worker:1/cpu"))
    assert list(labels) == [("gpu",), ("cpu:0",), ("worker:0/cpu:0", "worker:1/cpu:0")]
