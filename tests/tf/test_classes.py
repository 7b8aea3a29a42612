"""Models of a user's class, functional inside: steps, attributes, own arguments."""

from pathlib import Path
from types import MethodType

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from tests.tf.check import assert_near, emitted, stack


class Words(layers.Layer):
    """Saves its words beside its configuration, and needs no build."""

    def save_assets(self, folder):
        Path(folder, "words").write_text(" ".join(self.words))

    def load_assets(self, folder):
        self.words = Path(folder, "words").read_text().split()


class Tracker(keras.Model):
    """A step and a metric of its own, as Keras' guides write them."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.tracker = keras.metrics.Mean(name="mine")
        self.factor = 3.0

    def __call__(self, x, **more):
        return super().__call__(2.0 * x, **more)

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            made = self(x, training=True) + self(-x, training=True)
            loss = self.factor * keras.ops.mean((made - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        self.tracker.update_state(loss)
        return {"mine": self.tracker.result()}


class Extra(keras.Model):
    """Layers beside the graph, two optimizers, a variable, its own compile."""

    def __init__(self, inputs, outputs, width):
        super().__init__(inputs, outputs)
        self.augment = keras.Sequential([layers.Dense(width), layers.Dropout(0.5)])
        self.augment.build((None, 6))
        self.second = keras.optimizers.SGD(0.1, momentum=0.9)
        self.steps = keras.Variable(0.0, trainable=False, name="steps")
        self.blocks = (self.get_layer("a"), self.get_layer("b"))
        self.words, self.none = Words(), Words()
        self.words.words = ["a", "b"]
        self.loose = layers.Dense(3)
        self.loose.build((None, 6))
        self.middle = {"a": self.get_layer("a").output}

    def compile(self, *args, weight=2.0, **more):
        super().compile(*args, **more)
        self.weight = weight

    def train_step(self, data):
        x, y = data
        x = self.augment(x, training=True)
        with tf.GradientTape(persistent=True) as tape:
            made = self(x, training=True)
            loss = self.weight * self.compute_loss(x=x, y=y, y_pred=made)
        one, two = (block.trainable_weights for block in self.blocks)
        self.optimizer.apply(tape.gradient(loss, one), one)
        self.second.apply(tape.gradient(loss, two), two)
        self.steps.assign_add(1.0)
        return {"loss": loss, "steps": self.steps + 0.0}


class Backbone(keras.Model):
    """Makes its graph from arguments of its own, as model libraries do."""

    def __init__(self, units, depth=2, **more):
        x = keras.Input((6,), name="x")
        body = [layers.Dense(units, "relu", name="ab"[i]) for i in range(depth)]
        self.last = body[-1]  # so its weights are the model's first
        super().__init__(inputs=x, outputs=body[1](body[0](x)), **more)
        self.units, self.depth = units, depth

    def get_config(self):
        return {"units": self.units, "depth": self.depth, "name": self.name}


def graph(kind, **more):
    x = keras.Input((6,), name="x")
    a, b = layers.Dense(5, "tanh", name="a")(x), layers.Dense(5, name="b")(x)
    return kind(x, layers.Dense(2, name="c")(a + b), **more)


class OfTexts(keras.Model):
    """Trains on texts, as tasks of model libraries do."""

    def fit(self, x, y=None, **more):
        counts = np.array([[len(text)] * 6 for text in x], "float32")
        return super().fit(counts, counts[:, :2], **more)


def late():
    """An attribute that was changed and a step bound to one model."""
    model = graph(Tracker)
    model.factor = 7.0

    def test_step(self, data):
        return {"total": keras.ops.sum(self(data[0], training=True)) * self.factor}

    model.test_step = MethodType(test_step, model)
    return model


def inside():
    return stack(Backbone(4, name="body", trainable=False), layers.Dense(2, name="c"))


@pytest.mark.parametrize("make", [late, lambda: Backbone(4), inside])
def test_models_of_a_class_train_as_plain(make, cluster):
    """Same logs, weights and predictions; the class and what hangs on it are kept."""
    keras.utils.set_random_seed(0)
    found, model = [], make()
    placed = emitted(model, cluster, batch=4, pins={"a": "gpu:0", "b": "gpu:1"})
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    y = np.zeros((4, model.output.shape[-1]), "float32")
    assert [w.path for w in placed.weights] == [w.path for w in model.weights]
    for one in (placed, model):
        one.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=one is model)
        made = one.fit(x, y, epochs=2, verbose=0)
        seen = one.evaluate(x, y, verbose=0, return_dict=True)
        found.append([made.history, seen, one.get_weights(), one(x)])
    assert_near(*found)
    assert type(placed) is type(model)
    sn.audit(placed, None, (x, y)).check()
    hung = {n for n in vars(model) if not n.startswith("_")} - {"history"}
    assert hung <= {*vars(placed)} | {"stop_predicting", "stop_evaluating"}
    again, plain = sn.place(placed, cluster, batch=4), sn.unplace(placed)
    assert_near(again(x), plain(x))
    sn.audit(sn.data_parallel(plain, cluster, batch=4), None, (x, y)).check()


def test_what_hangs_on_a_model_is_its_own(cluster):
    """It is copied, and a compiled model with two optimizers goes on where it was."""
    keras.utils.set_random_seed(0)
    model = graph(Extra, width=6)
    x, y = np.ones((4, 6), "float32"), np.zeros((4, 2), "float32")
    model.compile("adam", "mse", weight=1.0, run_eagerly=True)
    model.fit(x, y, verbose=0)
    placed = sn.place(model, cluster, batch=4, time_limit=0.1)
    placed.steps.assign(5.0)
    assert float(model.steps) == 1.0
    assert placed.second is not model.second
    assert placed.blocks[0] is placed.get_layer("a")
    assert placed.middle["a"] is placed.get_layer("a").output
    assert placed.augment is not model.augment
    assert placed.words.words == ["a", "b"]
    assert placed.words is not model.words
    placed.compile(placed.optimizer, "mse", weight=1.0)
    sn.audit(placed, None, (x, y)).check()
    with pytest.raises(sn.AuditError, match="the watched step .* failed: Op"):
        sn.audit(placed, None, x)  # on which a step of its own trains, if it can
    assert int(placed.second.iterations) == 1
    model.steps.assign(5.0)
    for one in (placed, model):
        one.fit(x, y, verbose=0)
    assert_near(placed.get_weights(), model.get_weights())


def test_audit_of_texts_is_of_the_fit_that_takes_them(cluster):
    way = {"batch": 2, "pins": {"a": "gpu:0", "b": "gpu:1"}}
    placed = emitted(graph(OfTexts), cluster, compiled=("sgd", "mse"), **way)
    audit = sn.audit(placed, None, (["one", "three"],))
    assert audit.ok
    assert audit.notes == ()  # that it was of a forward pass alone
