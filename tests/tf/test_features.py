"""What Keras users rely on gives the numbers of the plain model on placed ones.

A feature is a function of a model that is not compiled and a folder; it returns
numbers. The source itself is the plain model: emission leaves it as it was.
"""

import os
import sys

import keras
import numpy as np
import pytest
from keras import callbacks, layers

import splitnet as sn
from tests.tf.check import assert_near, classes, emitted, numbers
from tests.tf.zoo import two_branches

pytestmark = pytest.mark.slow

PINS = {"left": "gpu:0", "norm": "gpu:0", "right": "gpu:1", "drop": "gpu:1"}
BATCH, COUNT = 4, 12


def source():
    """Two branches with state and chance, and two named outputs."""
    keras.utils.set_random_seed(1)
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    left = layers.Dense(5, "tanh", kernel_regularizer="l2", name="left")(a)
    left = layers.BatchNormalization(name="norm")(left)
    right = layers.Dense(5, "relu", activity_regularizer="l1", name="right")(b)
    right = layers.Dropout(0.4, name="drop")(right)
    both = layers.Concatenate(name="both")([left, right])
    outputs = {"kind": layers.Dense(3, "softmax", name="kind")(both)}
    outputs["size"] = layers.Dense(1, name="size")(both)
    return keras.Model({"a": a, "b": b}, outputs, name="two")


def data():
    x = {key: numbers(6, seed=i, count=COUNT) for i, key in enumerate("ab")}
    return x, {"kind": classes(3)[:COUNT], "size": numbers(1, seed=2, count=COUNT)}


def placed(model):
    return "_splitnet" in vars(model)


def compiled(model, **more):
    """The model with a loss for each output; the plain one runs eagerly."""
    loss = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    options = {"optimizer": keras.optimizers.SGD(0.01, momentum=0.9), "loss": loss}
    model.compile(**options | {"run_eagerly": not placed(model)} | more)
    return model


def fit(model, **more):
    options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    return model.fit(*data(), **options | more).history


def state(model):
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def steps_per_execution(model, folder):
    """Two steps in one call of TensorFlow, and one over; averaged weights."""
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)
    several = {"steps_per_execution": 2} if placed(model) else {}
    compiled(model, optimizer=optimizer, **several)
    found = fit(model, callbacks=[callbacks.SwapEMAWeights(swap_on_epoch=True)])
    return found, state(model), model(data()[0])


def run_eagerly(model, folder):
    return fit(compiled(model, run_eagerly=True)), state(model)


def weights_and_losses(model, folder):
    """Weights of samples and outputs, own loss and metric, a share for validation."""

    def off(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    compiled(
        model,
        loss={"kind": keras.losses.SparseCategoricalCrossentropy(), "size": off},
        loss_weights={"kind": 0.3, "size": 2.0},
        metrics={"kind": ["accuracy"], "size": [off]},
        weighted_metrics={"kind": ["accuracy"]},
    )
    ramp = np.linspace(0, 1, COUNT)
    weights = {"kind": ramp, "size": 1 - ramp}
    return fit(model, sample_weight=weights, validation_split=0.33), state(model)


def many_callbacks(model, folder):
    """Files of the best and the last, rates, a board, and an early end."""
    stop = callbacks.EarlyStopping(
        "loss", patience=1, mode="max", restore_best_weights=True
    )
    kept = [
        callbacks.ModelCheckpoint(folder / "best.keras", "loss", save_best_only=True),
        callbacks.ModelCheckpoint(folder / "last.weights.h5", save_weights_only=True),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=9.0, factor=0.3),
        callbacks.TensorBoard(folder / "logs", histogram_freq=1),
        stop,
    ]
    found = fit(compiled(model), callbacks=kept, epochs=4)
    assert stop.stopped_epoch > 0
    assert list((folder / "logs").rglob("events*"))
    ended, best = state(model), keras.models.load_model(folder / "best.keras")
    model.load_weights(folder / "last.weights.h5")
    return found, ended, state(best), model.get_weights()


def quantized(model, folder):
    model.quantize("int8", filters="left|right|kind|size")
    return model.predict(data()[0], verbose=0)


AUDITED = [steps_per_execution, run_eagerly, quantized]
FEATURES = [*AUDITED, weights_and_losses, many_callbacks]


@pytest.mark.parametrize("run", FEATURES)
def test_feature_gives_the_numbers_of_the_plain_model(run, cluster, tmp_path):
    """Placed and plain return the same to rounding; what changes a step is audited."""
    plain = source()
    ours = emitted(plain, cluster, batch=BATCH, pins=PINS)
    found = []
    for model, folder in ((ours, "placed"), (plain, "plain")):
        (tmp_path / folder).mkdir()
        keras.utils.set_random_seed(1)
        found.append(run(model, tmp_path / folder))
    assert_near(*found)
    if run in AUDITED:
        batch = keras.tree.map_structure(lambda t: t[:BATCH], data())
        if not ours.compiled:
            compiled(ours)
        audit = sn.audit(ours, None, batch).check()
        assert any(row.backward for row in audit.rows) is (run is not run_eagerly)
        hides = any("run_eagerly=True" in note for note in audit.notes)
        assert hides is (run is run_eagerly)


DOT = f"""#!{sys.executable}
import pygraphviz, sys
kind, path = sys.argv[1].removeprefix("-T"), sys.argv[2]
sys.stdout.buffer.write(pygraphviz.AGraph(path).draw(format=kind, prog="dot"))
"""


def test_plot_model_draws_a_placed_model_like_plain(cluster, tmp_path, monkeypatch):
    """Keras wants a program named dot: here it is one that lends pygraphviz's."""
    (tmp_path / "dot").write_text(DOT)
    (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    plain = source()
    ours = emitted(plain, cluster, batch=BATCH, pins=PINS)
    pictures = []
    for number, model in enumerate((ours, plain)):
        path = tmp_path / f"{number}.png"
        keras.utils.plot_model(model, path, show_shapes=True, expand_nested=True)
        pictures.append(path.read_bytes())
    assert pictures[0].startswith(b"\x89PNG")
    assert len(pictures[0]) > 5000
    assert pictures[0] == pictures[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Skipping variable loading:UserWarning")
def test_a_tuner_searches_over_placed_models(cluster, tmp_path):
    import keras_tuner as tuning

    def build(hp, *, plain=False):
        keras.utils.set_random_seed(1)
        model = emitted(two_branches().source, cluster)
        model = sn.unplace(model) if plain else model
        rate = hp.Choice("rate", [0.1, 0.01])
        model.compile(keras.optimizers.SGD(rate), "mse", run_eagerly=plain)
        return model

    x, y = numbers(6, count=4), numbers(2, count=4)
    tuner = tuning.GridSearch(
        build, objective=tuning.Objective("loss", "min"), directory=tmp_path, seed=0
    )
    tuner.search(x, y, verbose=0)
    best = tuner.get_best_models(1)[0]
    assert best.get_layer("right").kernel.value.device[-5:] == "CPU:2"
    for trial in tuner.oracle.get_best_trials(2):
        plain = build(trial.hyperparameters, plain=True)
        assert_near(trial.score, plain.train_on_batch(x, y))
