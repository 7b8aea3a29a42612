"""Saved, loaded, moved, exported: files of placed models are plain Keras."""

import contextlib
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.parallel.pipeline import obstacles_of
from tests.child import python
from tests.tf import check
from tests.tf.check import BATCH, Case, assert_near, emitted, flat, numbers

STRANGER = """
import sys
sys.modules["splitnet"] = None          # it cannot be imported here
import keras, numpy as np, tensorflow as tf
model = keras.models.load_model(sys.argv[1])
model.run_eagerly = True
assert len(tf.config.list_logical_devices()) == 1
x = [np.load(sys.argv[2]), np.load(sys.argv[3])]
np.save(sys.argv[4], model.predict(x, verbose=0))
print(type(model).__name__, int(model.optimizer.iterations))
model.fit(x, np.zeros((5, 2), "float32"), verbose=0)
"""
HOMES = {0: None, 3: {"read": "gpu:2", "see": "gpu:0"}}


@pytest.fixture(scope="module")
def case():
    """Two branches with weights, state and chance, and a merge."""
    net = sn.Net("kept")
    a, b = net.input("a", (5, 3)), net.input("b", (4,))
    body = [layers.Conv1D(4, 5, name="read"), layers.Flatten(name="flat")]
    read = net.branch("read", a, body, on="gpu:0")
    norm = [layers.Dense(4, name="see"), layers.BatchNormalization(name="norm")]
    norm.append(layers.Dropout(0.3, name="drop"))
    seen = net.branch("seen", b, norm, on="gpu:1")
    both = net.merge("both", [read, seen], layers.Concatenate(name="both"))
    net.output(net.branch("head", both, layers.Dense(2, name="head"), on="gpu:2"))
    x = [numbers(5, 3, count=BATCH), numbers(4, count=BATCH)]
    return Case(net, x, numbers(2, seed=1, count=BATCH))


@pytest.fixture(scope="module")
def trained(case, cluster):
    """A placed model after two steps; tests leave its weights as they are."""
    compiled = keras.optimizers.SGD(0.1, momentum=0.9), "mse"
    model = emitted(case.source, cluster, compiled=compiled)
    model.fit(case.x, case.y, batch_size=BATCH, epochs=2, verbose=0)
    return model


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    trained.save(path)
    return path


def test_saved_model_loads_without_splitnet_on_one_cpu(saved, trained, case, tmp_path):
    """Same predictions, training goes on; no file says where anything ran."""
    with zipfile.ZipFile(saved) as file:
        texts = [file.read(name) for name in file.namelist()]
    for word in (b"/device:", b"CPU:1", b"gpu:0", b"splitnet", b"sn_k"):
        assert not any(word in text for text in texts), word
    paths = [tmp_path / name for name in ("a.npy", "b.npy", "out.npy")]
    for path, data in zip(paths, case.x):
        np.save(path, data)
    done = python("-c", STRANGER, saved, *paths, TF_CPP_MIN_LOG_LEVEL="3")
    assert done.stdout.split()[-2:] == ["Functional", "2"]
    assert_near(np.load(paths[2]), trained.predict(case.x, verbose=0))


@pytest.mark.parametrize("gpus", HOMES)
def test_training_goes_on_elsewhere_as_if_never_moved(saved, trained, case, gpus):
    """Load, plan for other devices, say what moved, train: weights, slots, averages."""
    box = sn.local_cluster(stand_in_gpus=gpus)
    loaded = keras.models.load_model(saved)
    for variable, value in zip(loaded.variables, trained.variables):
        if "seed" in variable.path:  # Keras keeps none in a file
            variable.assign(value)
    placed = sn.place(loaded, box, batch=BATCH, pins=HOMES[gpus], time_limit=0.1)
    loaded.run_eagerly = True
    plan = sn.plan_of(placed)
    assert set(plan.device_of.values()) <= {d.name for d in box}
    assert "parts moved." in str(sn.plan_of(trained).compare(plan))
    assert int(placed.optimizer.iterations) == 2
    check.assert_alike(placed, loaded, case)


def test_weights_go_both_ways(trained, case, tmp_path):
    """Files of weights; the plain model's are on the default device."""
    plain = sn.unplace(trained)
    assert "_splitnet" not in vars(plain)
    assert {v.value.device.rpartition(":")[2] for v in plain.variables} == {"0"}
    mine, its = (flat([m.variables, m.optimizer.variables]) for m in (trained, plain))
    np.testing.assert_equal(mine, its)
    other = sn.emit(case.source, sn.plan_of(trained))
    trained.save_weights(tmp_path / "placed.weights.h5")
    plain.set_weights([np.zeros_like(w) for w in plain.get_weights()])
    plain.load_weights(tmp_path / "placed.weights.h5")
    plain.save_weights(tmp_path / "plain.weights.h5")
    other.load_weights(tmp_path / "plain.weights.h5")
    np.testing.assert_equal(trained.get_weights(), other.get_weights())
    assert other.get_layer("see").kernel.value.device.endswith("CPU:2")


def test_export_names_no_device_and_leaves_all_placed(trained, case, cluster, tmp_path):
    """An exported model serves where the devices do not exist, strictly placed too."""
    with contextlib.suppress(ImportError):  # of ONNX itself, where it is not installed
        trained.export(tmp_path / "served.onnx", format="onnx")
    trained.export(tmp_path / "served", verbose=False)
    text = (tmp_path / "served" / "saved_model.pb").read_bytes()
    served = tf.saved_model.load(str(tmp_path / "served"))
    assert b"device:CPU:1" not in text
    assert b"sn_k" not in text
    answer = served.serve([tf.constant(one) for one in case.x])
    assert_near(answer, trained.predict(case.x, verbose=0))
    sn.audit(trained, None, (case.x, case.y)).check()
    assert trained.get_layer("see").kernel.value.device.endswith("CPU:2")
    # As a layer, whose function holds its variables: a copy loads it, itself it stays.
    entry = [keras.Input(one.shape[1:]) for one in case.x]
    served = str(tmp_path / "served"), "serve"
    layer, pins = keras.layers.TFSMLayer(*served), {"*": "gpu:1"}
    source = keras.Model(entry, layers.Dense(2)(layer(entry)))
    first = emitted(source, cluster, {"copy": True}, ("sgd", "mse"), pins=pins)
    second = emitted(source, cluster, {"copy": False}, ("sgd", "mse"), pins=pins)
    plain = sn.unplace(first)
    for one in (first, second, plain):
        one.train_on_batch(case.x, case.y)
    assert_near([first.get_weights(), second.get_weights()], [plain.get_weights()] * 2)
    sn.audit(first, None, (case.x, case.y)).check()
    changing = keras.Model(entry, keras.layers.TFSMLayer(*served, "serve")(entry))
    assert "may keep averages" in obstacles_of(changing)["towers"]
    with pytest.warns(UserWarning, match="a loaded function may change states"):
        emitted(changing, cluster, {"recompute": True}, pins=pins)
