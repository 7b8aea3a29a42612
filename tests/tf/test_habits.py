"""Keras and TensorBoard habits: the summary's device column, the callback."""

import os

import keras
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from tests.tf.check import emitted, numbers
from tests.tf.zoo import two_branches

LONG = "a_layer_whose_name_is_far_too_long_for_any_column_of_a_table"
DATA = numbers(6, count=32), numbers(2, count=32)


@pytest.fixture(scope="module")
def model(cluster):
    shared = layers.Dense(4, name=LONG)
    nested = keras.Sequential([layers.Dense(2, name="in_it")], name="nested")
    net = two_branches(shared, shared, nested).source
    return emitted(net, cluster, compiled=("adam", "mse"), batch=16)


def device_of(text, layer):
    rows = [line for line in text.splitlines() if line.startswith("│")]
    row = next(line for line in rows if line.lstrip("│ └").startswith(layer))
    return row.rstrip("│ ").rpartition("│")[2].strip()


def test_summary_has_a_device_for_every_layer(model, capsys):
    """Inputs, shared layers, long names, what is nested; the table stays straight."""
    text = sn.summary(model, expand_nested=True, show_trainable=True)
    assert device_of(text, "x") == "cpu:0"
    assert sorted(device_of(text, LONG[:8]).split(", ")) == ["gpu:0", "gpu:1"]
    assert device_of(text, "add") == "cpu:0"
    assert device_of(text, "nested") == device_of(text, "in_it") == "gpu:1"
    table = [line for line in text.splitlines() if line[:1] in tuple("┏┃┡│├└")]
    assert len({len(line) for line in table}) == 1
    assert f"Total params: {model.count_params()}" in text
    some = sn.summary(model, layer_range=("add", "nested"))
    assert device_of(some, "add") == "cpu:0"
    assert device_of(some, "nested") == "gpu:1"
    model.summary()
    shown = capsys.readouterr().out
    said = []
    model.summary(print_fn=said.append)
    assert device_of(shown, "add") == "cpu:0"
    assert said[0] in shown
    plain = sn.unplace(model)
    assert "Device" not in str(plain.summary(print_fn=str))
    with pytest.raises(sn.PlanFileError, match="has no plan: it was not emitted"):
        sn.summary(plain)


def events(folder):
    """Step, plugin and first bytes of everything written, by tag."""
    found, plugin_of = {}, {}
    for file in sorted(folder.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(os.fspath(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                name = value.metadata.plugin_data.plugin_name
                plugin = plugin_of.setdefault(value.tag, name)
                content = (value.tensor.string_val or [value.tensor.tensor_content])[-1]
                found.setdefault(value.tag, []).append((event.step, plugin, content))
    return found


def test_callback_writes_diagram_audit_and_time(model, tmp_path):
    """TensorBoard's plugins get pictures, texts and curves, and the audit is clean."""
    callback = sn.PlacementCallback(tmp_path)
    model.fit(*DATA, batch_size=16, epochs=2, verbose=0, callbacks=[callback])
    written = events(tmp_path)
    assert callback.audit.ok
    assert len(callback.audit.rows) == 5
    png = b"\x89PNG"
    pictures = [(s, p, c[:4]) for s, p, c in written["placement"]]
    assert pictures == [(0, "images", png), (1, "images", png)]
    assert [(s, p) for s, p, _ in written["timeline"]] == [(0, "images")]
    assert b"two_branches: batch 16" in written["plan"][0][2]
    assert b"report.html" in written["report"][0][2]
    assert "explorer" in next(tmp_path.rglob("report.html")).read_text("utf-8")
    assert written["audit"][0][:2] == (1, "text")
    for device in ("gpu:0", "gpu:1", "cpu:0"):
        assert written[f"planned/memory_bytes/{device}"][0][1] == "scalars"
        assert written[f"planned/compute_seconds/{device}"][0][1] == "scalars"
    assert [step for step, _, _ in written["measured/step_seconds"]] == [0, 1]
