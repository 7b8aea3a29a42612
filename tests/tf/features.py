"""What Keras users rely on, on placed models: the numbers of the plain model.

A feature is a function of a model that is not compiled and a folder; it returns
numbers. The source itself is the plain model: emission leaves it as it was.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks, layers

Feature = Callable[[Any, Path], Any]
FEATURES: dict[str, Feature] = {}
PINS = {"left": "gpu:0", "norm": "gpu:0", "right": "gpu:1", "drop": "gpu:1"}
BATCH, STEPS = 4, 3


def feature(run: Feature) -> Feature:
    """Register a feature under its function's name."""
    FEATURES[run.__name__] = run
    return run


def source() -> Any:
    """Two branches with state and chance, and two named outputs."""
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    left = layers.Dense(5, "tanh", kernel_regularizer="l2", name="left")(a)
    left = layers.BatchNormalization(name="norm")(left)
    right = layers.Dense(5, "relu", activity_regularizer="l1", name="right")(b)
    right = layers.Dropout(0.4, name="drop")(right)
    both = layers.Concatenate(name="both")([left, right])
    outputs = {
        "kind": layers.Dense(3, "softmax", name="kind")(both),
        "size": layers.Dense(1, name="size")(both),
    }
    return keras.Model({"a": a, "b": b}, outputs, name="two")


def data() -> tuple[dict[str, Any], dict[str, Any]]:
    """Three batches of four samples."""
    rng = np.random.default_rng(0)
    n = BATCH * STEPS
    x = {key: rng.normal(size=(n, 6)).astype("float32") for key in "ab"}
    kind = rng.integers(0, 3, n).astype("int32")
    return x, {"kind": kind, "size": rng.normal(size=(n, 1)).astype("float32")}


def compiled(model: Any, **more: Any) -> Any:
    """The model with a loss for each output."""
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    model.compile(**{"optimizer": keras.optimizers.Adam(0.01), "loss": losses} | more)
    return model


def fit(model: Any, *sources: Any, **more: Any) -> Any:
    """The history of two epochs, without clocks."""
    x, y = data()
    if not sources:
        sources = (x, y)
        more.setdefault("batch_size", BATCH)
    made = model.fit(*sources, **{"epochs": 2, "shuffle": False, "verbose": 0} | more)
    return made.history


def state(model: Any) -> list[Any]:
    """Weights and slots."""
    found = model.get_weights()
    if model.optimizer is not None:
        found += [np.asarray(v) for v in model.optimizer.variables]
    return found


# --- where data comes from ------------------------------------------------------------


def batches() -> Iterator[Any]:
    """Batches without an end, as a Python generator gives them."""
    x, y = data()
    while True:
        for i in range(0, BATCH * STEPS, BATCH):
            yield keras.tree.map_structure(lambda t, i=i: t[i : i + BATCH], (x, y))


class Pages(keras.utils.PyDataset):
    """The same batches by number."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, page: int) -> Any:
        i = page * BATCH
        return keras.tree.map_structure(lambda t: t[i : i + BATCH], data())


def dataset() -> Any:
    """The same batches of TensorFlow's."""
    return tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)


@feature
def numpy_arrays(model: Any, folder: Path) -> Any:
    """Arrays, a share of them for validation."""
    return fit(compiled(model), validation_split=0.34), state(model)


@feature
def tf_data(model: Any, folder: Path) -> Any:
    """A tf.data pipeline, validated by another."""
    found = fit(compiled(model), dataset().prefetch(2), validation_data=dataset())
    return found, state(model)


@feature
def generator(model: Any, folder: Path) -> Any:
    """A Python generator."""
    return fit(compiled(model), batches(), steps_per_epoch=STEPS), state(model)


@feature
def py_dataset(model: Any, folder: Path) -> Any:
    """A keras.utils.PyDataset with two threads."""
    return fit(compiled(model), Pages(workers=2)), state(model)


@feature
def steps_per_execution(model: Any, folder: Path) -> Any:
    """Two steps in one call of TensorFlow, and one over."""
    found = fit(compiled(model, steps_per_execution=2))
    return found, state(model), model.evaluate(*data(), BATCH, verbose=0)


@feature
def run_eagerly(model: Any, folder: Path) -> Any:
    """Step by step, without a graph."""
    return fit(compiled(model, run_eagerly=True)), state(model)


# --- weights of samples and classes, losses, metrics ----------------------------------


@feature
def sample_weights(model: Any, folder: Path) -> Any:
    """A weight per sample and output, seen by weighted metrics too."""
    metrics = {"kind": ["accuracy"], "size": [keras.metrics.MeanAbsoluteError()]}
    compiled(model, metrics=metrics, weighted_metrics={"kind": ["accuracy"]})
    weights = {
        "kind": np.linspace(0, 1, BATCH * STEPS),
        "size": np.linspace(1, 0, BATCH * STEPS),
    }
    return fit(model, sample_weight=weights), state(model)


@feature
def class_weights(model: Any, folder: Path) -> Any:
    """Of a model with one output, cut out of this one."""
    one = keras.Model(model.inputs, model.get_layer("kind").output)
    compiled(one, loss="sparse_categorical_crossentropy")
    x, y = data()
    return fit(one, x, y["kind"], class_weight={0: 1.0, 1: 0.5, 2: 3.0})


@feature
def weighted_losses(model: Any, folder: Path) -> Any:
    """Losses by name with weights, one a function, with metrics that are functions."""

    def off(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    compiled(
        model,
        loss={"kind": keras.losses.SparseCategoricalCrossentropy(), "size": off},
        loss_weights={"kind": 0.3, "size": 2.0},
        metrics={"size": [off, keras.metrics.RootMeanSquaredError()]},
    )
    return fit(model), model.evaluate(*data(), return_dict=True, verbose=0)


@feature
def mixed_precision(model: Any, folder: Path) -> Any:
    """Loss scaling that overflows at first: the step is skipped, the scale halved."""
    inner = keras.optimizers.SGD(0.01, momentum=0.9)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**126)
    return fit(compiled(model, optimizer=scaled)), state(model)


# --- callbacks ------------------------------------------------------------------------


@feature
def model_checkpoint(model: Any, folder: Path) -> Any:
    """The best model and the last weights, and what they predict when loaded."""
    kept = [
        callbacks.ModelCheckpoint(folder / "best.keras", "loss", save_best_only=True),
        callbacks.ModelCheckpoint(folder / "last.weights.h5", save_weights_only=True),
    ]
    found = fit(compiled(model), callbacks=kept)
    best = keras.models.load_model(folder / "best.keras")
    model.load_weights(folder / "last.weights.h5")
    return found, state(best), state(model), best.predict(data()[0], verbose=0)


@feature
def backup_and_restore(model: Any, folder: Path) -> Any:
    """Training that breaks off in its second epoch goes on where it was."""

    class Break(callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    compiled(model)
    kept = callbacks.BackupAndRestore(folder / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[kept, Break()])
    seen: list[int] = []
    told = callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: seen.append(epoch))
    found = fit(model, callbacks=[callbacks.BackupAndRestore(folder / "backup"), told])
    assert seen == [1]
    return found, state(model)


@feature
def early_stopping(model: Any, folder: Path) -> Any:
    """Stops when nothing improves, and brings the best weights back."""
    stop = callbacks.EarlyStopping(
        "loss", patience=1, mode="max", restore_best_weights=True
    )
    found = fit(compiled(model), epochs=6, callbacks=[stop])
    assert stop.stopped_epoch > 0
    return found, state(model)


@feature
def rates(model: Any, folder: Path) -> Any:
    """A scheduler, a plateau, a log, and a schedule within the optimizer."""
    kept = [
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=9.0, factor=0.3),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.TerminateOnNaN(),
    ]
    found = fit(compiled(model), callbacks=kept)
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    again = fit(compiled(model, optimizer=keras.optimizers.SGD(decay)))
    lines = (folder / "log.csv").read_text().splitlines()
    return found, again, len(lines), state(model)


@feature
def swapped_averages(model: Any, folder: Path) -> Any:
    """Averages of the weights are evaluated and saved in their place."""
    optimizer = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5)
    compiled(model, optimizer=optimizer)
    found = fit(model, callbacks=[callbacks.SwapEMAWeights(swap_on_epoch=True)])
    return found, state(model)


@feature
def not_a_number(model: Any, folder: Path) -> Any:
    """TerminateOnNaN ends a training that went wrong, at the same batch."""
    x, y = data()
    x["a"][6] = np.nan
    stop = callbacks.TerminateOnNaN()
    seen: list[int] = []
    told = callbacks.LambdaCallback(on_train_batch_end=lambda n, logs: seen.append(n))
    fit(compiled(model), x, y, batch_size=BATCH, callbacks=[stop, told])
    assert model.stop_training
    return len(seen)


@feature
def tensorboard(model: Any, folder: Path) -> Any:
    """Writes its events, histograms of weights and the graph among them."""
    board = callbacks.TensorBoard(folder / "logs", histogram_freq=1)
    found = fit(compiled(model), callbacks=[board], validation_data=data())
    assert list((folder / "logs").rglob("events*"))
    return found, state(model)


# --- the model as a thing to change and to carry --------------------------------------


@feature
def freezing(model: Any, folder: Path) -> Any:
    """A branch is frozen, trained around, thawed and trained."""
    model.get_layer("left").trainable = False
    first = fit(compiled(model)), len(model.trainable_weights), state(model)
    model.get_layer("left").trainable = True
    return first, fit(compiled(model)), len(model.trainable_weights), state(model)


@feature
def weights_to_and_fro(model: Any, folder: Path) -> Any:
    """get, set, save, load; of the whole and of one layer."""
    fit(compiled(model))
    model.save_weights(folder / "all.weights.h5")
    before = model.get_weights()
    fit(model)
    model.set_weights([w * 0.5 for w in before])
    half = model.predict(data()[0], verbose=0)
    model.load_weights(folder / "all.weights.h5")
    layer = model.get_layer("right")
    layer.set_weights([w + 1 for w in layer.get_weights()])
    return half, model.predict(data()[0], verbose=0), fit(model)


@feature
def cloned(model: Any, folder: Path) -> Any:
    """A clone and a configuration make equal plain models."""
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    x = data()[0]
    return [one.predict(x, verbose=0) for one in (model, clone, again)]


@feature
def low_rank(model: Any, folder: Path) -> Any:
    """LoRA of two layers: the kernels freeze, the new factors train."""
    for name in ("left", "right", "kind"):
        keras.utils.set_random_seed(3)
        model.get_layer(name).enable_lora(2)
    return fit(compiled(model)), state(model)


@feature
def quantized(model: Any, folder: Path) -> Any:
    """int8 weights predict the same."""
    model.quantize("int8", filters="left|right|kind|size")
    return model.predict(data()[0], verbose=0)


@feature
def intermediate_outputs(model: Any, folder: Path) -> Any:
    """A model cut out of the middle shares the weights."""
    fit(compiled(model))
    middle = keras.Model(model.inputs, model.get_layer("both").output)
    return middle.predict(data()[0], verbose=0)


@feature
def drawn(model: Any, folder: Path) -> Any:
    """What keras.utils.plot_model hands to Graphviz, its numbers of objects aside."""
    dot = keras.utils.model_to_dot(
        model, show_shapes=True, expand_nested=True, show_trainable=True
    )
    seen: dict[str, str] = {}
    return re.sub(
        r"\d{9,}", lambda n: seen.setdefault(n[0], f"n{len(seen)}"), dot.to_string()
    )


@feature
def batch_by_batch(model: Any, folder: Path) -> Any:
    """train_on_batch, test_on_batch and predict_on_batch."""
    x, y = keras.tree.map_structure(lambda t: t[:BATCH], data())
    compiled(model)
    steps = [model.train_on_batch(x, y, return_dict=True) for _ in range(3)]
    return steps, model.test_on_batch(x, y), model.predict_on_batch(x), state(model)
