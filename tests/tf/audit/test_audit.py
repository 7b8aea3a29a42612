"""Audits that must ring, audits that must not, and that auditing changes nothing."""

import gc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.placement import optimizer as placing
from splitnet.tf.placement.placed import placed_of
from tests.tf import check
from tests.tf.check import devices, flat, numbers
from tests.tf.zoo import two_branches

X, Y = numbers(6), numbers(2)


class Scoped(layers.Layer):
    """A Dense layer that opens a device scope in its call."""

    def __init__(self, device, **more):
        super().__init__(**more)
        self.inner, self.device = layers.Dense(4), device

    def get_config(self):
        return super().get_config() | {"device": self.device}

    def build(self, shape):
        with tf.device(self.device):
            self.inner.build(shape)

    def call(self, inputs):
        with tf.device(self.device):
            return self.inner(inputs)


def emitted(cluster, left=None):
    return check.emitted(two_branches(left).source, cluster, compiled=("adam", "mse"))


def recipe(left, right, *, scopes=True):
    """The Keras FAQ's: branches built under tf.device, joined and headed outside."""
    x, sides = keras.Input((6,), name="x"), []
    for number, layer in enumerate((left, right), 1):
        with tf.device(f"/device:CPU:{number}" if scopes else None):
            sides.append(layer(x))
    model = keras.Model(x, layers.Dense(2, name="head")(layers.Add(name="add")(sides)))
    model.compile("adam", "mse")
    return model


def of_the_faq():
    """Only its variables are where it says: forward and backward ops all strayed."""
    return recipe(layers.Dense(4, name="left"), layers.Dense(4, name="right"))


def with_a_device_in_call():
    """Its forward ops are there; its backward pass is not."""
    left = Scoped("/device:CPU:1", name="left")
    return recipe(left, Scoped("/device:CPU:2", name="right"), scopes=False)


def compiled_by_xla():
    """It shows nothing, so nothing is proven."""
    plain = keras.models.clone_model(of_the_faq())
    plain.compile("adam", "mse", jit_compile=True)
    return plain


PINS = {"left": "gpu:0", "right": "gpu:1", "add": "cpu", "head": "gpu:1"}


@pytest.mark.parametrize(
    ("make", "strayed", "there"),
    [
        (of_the_faq, ("forward", "backward"), "variables"),
        (with_a_device_in_call, ("backward",), "forward"),
        (compiled_by_xla, ("forward",), ""),
    ],
)
def test_audit_finds_plain_models_out(make, strayed, there, cluster):
    """Strays are found in both branches; marks lent to a plain model are taken back."""
    model = make()
    plan = sn.plan(model, cluster, pins=PINS, batch=13, time_limit=0.1)
    own = set(vars(model))
    audit = sn.audit(model, plan, (X, Y))
    strays = {(finding.aspect, finding.part) for finding in audit.findings}
    for part in ("left", "right"):
        assert {(aspect, part) for aspect in strayed} <= strays
        assert (there, part) not in strays
    assert set(vars(model)) - own <= {"history", "_eval_epoch_iterator"}


def with_a_device_inside_a_part(cluster):
    """A part's ops run on its device unless they ask for another."""
    return emitted(cluster, Scoped("/device:CPU:3"))


def with_a_variable_of_elsewhere(cluster):
    """What a part reads from another device without a plan is a transfer."""
    with tf.device("/device:CPU:3"):
        elsewhere = tf.Variable(tf.ones([2000]))

    class Reads(layers.Layer):
        def call(self, inputs):
            return inputs * tf.reduce_sum(elsewhere)

    return emitted(cluster, [layers.Dense(4), Reads()])


def with_a_moved_slot(cluster):
    model = emitted(cluster)
    model.optimizer.build(model.trainable_variables)
    slot = model.optimizer._velocities[0]
    with tf.device("/device:CPU:3"):
        slot._value = tf.Variable(slot._value)
    return model


def with_an_optimizer_without_hooks(cluster):
    """Updates run on device 0, and gradients pass through it."""
    placing._place = lambda optimizer: None
    return emitted(cluster)


CROSSED = "transfers of weights gradient from gpu:1 to cpu:0"


@pytest.mark.parametrize(
    ("make", "aspect", "parts", "words"),
    [
        (with_a_device_inside_a_part, "forward", {"left"}, "ran on gpu:2, planned on"),
        (with_a_variable_of_elsewhere, "transfers", {""}, "weights from gpu:2 to gpu:"),
        (with_a_moved_slot, "slots", {"left"}, "velocity' of 'left' is on gpu:2, plan"),
        (with_an_optimizer_without_hooks, "updates", {*PINS} - {"add"}, CROSSED),
    ],
)
def test_audit_finds_what_strays_in_a_placed_model(
    make, aspect, parts, words, cluster, monkeypatch
):
    monkeypatch.setattr(placing, "_place", placing._place)  # put back afterwards
    audit = sn.audit(make(cluster), None, (X, Y))
    assert {f.part for f in audit.findings if f.aspect == aspect} == parts
    assert words in str(audit)


@pytest.fixture(scope="module")
def placed(cluster):
    return emitted(cluster)


def test_audits_in_two_threads_do_not_disturb_each_other(placed):
    """TensorFlow collects graphs for the whole process, so one waits for the other."""
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: sn.audit(placed, None, (X, Y)), range(2))
    assert one.ok
    assert (one.rows, one.moved) == (other.rows, other.moved)


def test_audit_without_targets_watches_the_forward_pass(cluster, placed):
    """And says so; what the function hands to its caller is no transfer."""
    predicts = replace(sn.plan_of(placed), training=False)
    for plan, batch in ((None, X), (predicts, (X, Y))):
        audit = sn.audit(placed, plan, batch).check()
        assert "only the forward pass was watched" in audit.notes[0]
        rows = {row.part: row for row in audit.rows}
        assert (rows["left"].forward, rows["left"].backward) == ("gpu:0", "")
    first = keras.Input((6,))
    made, adds = layers.Dense(64, name="made")(first), {"activity_regularizer": "l2"}
    ends = [layers.Dense(64, name=name, **adds)(made) for name in ("near", "far")]
    pins = {"made": "gpu:0", "near": "gpu:0", "far": "gpu:1"}
    two = check.emitted(keras.Model(first, ends), cluster, batch=32, pins=pins)
    audit = sn.audit(two, None, np.ones((32, 6), "float32")).check()
    assert audit.moved["gpu:0", "gpu:1", "activation"] == (8192, 8192)
    assert not any(target == "cpu:0" for _, target, _ in audit.moved)
    two.compile("sgd")  # what its layers add is a loss, to train on without targets
    assert not sn.audit(two, None, np.ones((32, 6), "float32")).check().notes


ITEM = {"__getitem__": lambda self, index: (X, Y)}


def test_the_first_batch_of_a_dataset_or_generator_is_watched(placed):
    batches = type("Batches", (keras.utils.PyDataset,), ITEM)()
    whole = sn.audit(placed, None, (X, Y)).moved
    for given in (batches, iter(batches), tf.data.Dataset.from_tensors(batches[0])):
        assert sn.audit(placed, None, given).check().moved == whole
    for empty, words in (((X[:0], Y[:0]), "no sample"), (iter(()), r"Received: \(\)")):
        with pytest.raises(sn.AuditError, match=words):
            sn.audit(placed, None, empty)


def test_weights_that_a_layer_gets_later_are_known(cluster):
    """`quantize` and `enable_lora` make them beside the layer's first, or it rings."""
    model = emitted(cluster, layers.Dense(4, name="l"))
    model.get_layer("l").quantize("int8")
    model.get_layer("right").enable_lora(2)
    gc.collect()
    scale, *_ = (v for v in model.variables if v.path == "l/kernel_scale")
    lora, *_ = (v for v in model.variables if v.path == "right/lora_kernel_a")
    assert devices([scale, lora]) == ["CPU:1", "CPU:2"]
    known = set(map(id, placed_of(model).variables.values()))
    assert known <= set(map(id, model.variables))
    sn.audit(model, None, X).check()
    with tf.device("/device:CPU:3"):
        scale._value = tf.Variable(scale._value)
    words = "variable 'l/kernel_scale' of 'left' is on gpu:2, planned on gpu:0"
    assert words in str(sn.audit(model, None, X))


def test_audit_of_outputs_without_a_loss_is_clean(cluster):
    """They are no part of a training step, but of a forward pass."""
    first = keras.Input((8,))
    score = layers.Dense(3, name="score")(layers.Dense(8, name="made")(first))
    model = keras.Model(first, {"score": score, "best": keras.ops.max(score, -1)})
    pins = {"made": "gpu:0", "score": "gpu:1", "max*": "gpu:2"}
    loss = ("sgd", {"score": "mse"})
    placed = check.emitted(model, cluster, compiled=loss, batch=4, pins=pins)
    x, y = np.ones((4, 8), "float32"), {"score": np.ones((4, 3), "float32")}
    trained = sn.audit(placed, None, (x, y)).check()
    assert "nothing in this step needs" in trained.notes[-1]
    assert sn.audit(placed, None, x).check().notes[-1] != trained.notes[-1]


def test_audit_refuses_what_it_cannot_watch(placed):
    for batch, words in (
        (None, "batch is missing: audit.model, None"),
        ([], r"a batch is x, \(x, y\) or"),
        (numbers(7), "the watched step of model .* failed: (?!.*in user code)"),
    ):
        with pytest.raises(sn.AuditError, match=words):
            sn.audit(placed, None, batch)
    with pytest.raises(sn.AuditError, match="was not emitted by splitnet: give"):
        sn.audit(sn.unplace(placed), None, (X, Y))
    with pytest.raises(sn.DeclarationError, match="plan= must be Plan"):
        sn.audit(placed, (X, Y))


def assert_same_state(*models):
    kept = []
    for model in models:
        metrics = [metric.variables for metric in model.metrics]
        kept.append(flat([model.variables, model.optimizer.variables, metrics]))
    np.testing.assert_equal(*kept)


def stateful(net, cluster):
    """The net with slots that start at 0.7, a scale that grows, and a metric."""
    inner = keras.optimizers.Adagrad(initial_accumulator_value=0.7, use_ema=True)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, 64.0, 1)
    return check.emitted(net, cluster, compiled=(optimizer, "mse", None, ["mae"]))


def test_audits_change_nothing(cluster):
    """Weights, slots wherever they start, metrics, seeds, history, the traced step."""
    body = [layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)]
    net = two_branches(body).source
    model, other = stateful(net, cluster), stateful(net, cluster)
    sn.audit(model, None, (X, Y)).check()
    for one in (model, other):
        one.fit(X, Y, batch_size=len(X), shuffle=False, verbose=0)
    assert_same_state(model, other)
    history, step = model.history, model.train_function
    sn.audit(model, None, (X, Y)).check()
    assert_same_state(model, other)
    assert model.history is history
    assert model.train_function is step


def test_audit_after_fit_runs_the_step_that_fit_traced(cluster):
    """It finds the same as an audit before; another batch size is traced anew."""
    traced = []

    class Strays(Scoped):
        def call(self, inputs):
            traced.append(self.device)
            return super().call(inputs)

    model = emitted(cluster, Strays("/device:CPU:3"))
    first = sn.audit(model, None, (X, Y))
    model.fit(X, Y, batch_size=len(X), verbose=0)
    model.predict(X, verbose=0)
    count = len(traced)
    again = sn.audit(model, None, (X, Y))
    assert len(traced) == count
    assert again.findings == first.findings != ()
    assert (again.rows, again.moved) == (first.rows, first.moved)
    sn.audit(model, None, (X[:4], Y[:4]))
    assert len(traced) > count
