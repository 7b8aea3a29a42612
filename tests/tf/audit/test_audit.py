"""Audits that must ring, audits that must not, and that auditing changes nothing."""

import gc
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.placement import optimizer as placing
from splitnet.tf.placement.placed import placed_of
from tests.tf.check import BATCH, Case, devices, numbers
from tests.tf.test_transparency import OPTIMIZERS
from tests.tf.zoo import two_branches


class Scoped(layers.Layer):
    """A Dense layer that opens a device scope in its call."""

    def __init__(self, device: str, **more: Any) -> None:
        super().__init__(**more)
        self.inner, self.device = layers.Dense(4), device

    def get_config(self) -> Any:
        """As Keras asks for it."""
        return super().get_config() | {"device": self.device}

    def build(self, shape: Any) -> None:
        """Build what it wraps, there."""
        with tf.device(self.device):
            self.inner.build(shape)

    def call(self, inputs: Any) -> Any:
        """Run it there."""
        with tf.device(self.device):
            return self.inner(inputs)


def recipe(left: Any, right: Any, *, scopes: bool = True) -> Any:
    """The Keras FAQ's: branches built under tf.device, joined and headed outside."""
    x = keras.Input((6,), name="x")
    if scopes:
        with tf.device("/device:CPU:1"):
            a = left(x)
        with tf.device("/device:CPU:2"):
            b = right(x)
    else:
        a, b = left(x), right(x)
    model = keras.Model(x, layers.Dense(2, name="head")(layers.Add(name="add")([a, b])))
    model.compile("adam", "mse")
    return model


PINS = {"left": "gpu:0", "right": "gpu:1", "add": "cpu", "head": "gpu:1"}


def found(model: Any, plan: Any) -> set[tuple[str, str]]:
    """The aspect and part of each finding of an audit that must not be clean."""
    audit = sn.audit(model, plan, (numbers(6), numbers(2)))
    with pytest.raises(sn.AuditError, match="the step differs from the plan"):
        audit.check()
    return {(finding.aspect, finding.part) for finding in audit.findings}


# --- what must ring -------------------------------------------------------------------


def of_the_faq() -> Any:
    """Only its variables are where it says: forward and backward ops all strayed."""
    model = recipe(layers.Dense(4, name="left"), layers.Dense(4, name="right"))
    model.train_on_batch(numbers(6), numbers(2))
    return model


def with_a_device_in_call() -> Any:
    """Its forward ops are there; its backward pass is not."""
    left, right = (
        Scoped(f"/device:CPU:{i}", name=n) for i, n in ((1, "left"), (2, "right"))
    )
    return recipe(left, right, scopes=False)


def compiled_by_xla() -> Any:
    """It shows nothing, so nothing is proven."""
    plain = keras.models.clone_model(of_the_faq())
    plain.compile("adam", "mse", jit_compile=True)
    return plain


@pytest.mark.parametrize(
    ("make", "strayed", "there"),
    [
        (of_the_faq, ("forward", "backward"), "variables"),
        (with_a_device_in_call, ("backward",), "forward"),
        (compiled_by_xla, ("forward",), ""),
    ],
)
def test_audit_finds_plain_models_out(
    make: Any, strayed: tuple[str, ...], there: str, cluster: sn.Cluster
) -> None:
    """What is not on its device is found in both branches, and nothing else.

    The marks that an audit lends to a plain model are taken back.
    """
    model = make()
    plan = sn.plan(model, cluster, pins=PINS, batch=13, time_limit=0.1)
    own = set(vars(model))
    strays = found(model, plan)

    for part in ("left", "right"):
        assert {(aspect, part) for aspect in strayed} <= strays
        assert (there, part) not in strays
    assert set(vars(model)) - own <= {"history", "_eval_epoch_iterator"}
    assert "call" not in vars(model)


def emitted(cluster: sn.Cluster, optimizer: Any = "adam", case: Any = None) -> Any:
    """A placed, compiled model of two branches."""
    net = (case or two_branches(layers.Dense(4), layers.Dense(4))).source
    model = sn.emit(net, sn.plan(net, cluster, batch=BATCH, time_limit=0.1))
    model.compile(optimizer, "mse")
    return model


def with_a_device_inside_a_part(cluster: sn.Cluster) -> Any:
    """A part's ops run on its device unless they ask for another."""
    case = two_branches(Scoped("/device:CPU:3"), layers.Dense(4))
    return emitted(cluster, case=case)


def with_a_variable_of_elsewhere(cluster: sn.Cluster) -> Any:
    """What a part reads from another device without a plan is a transfer."""
    with tf.device("/device:CPU:3"):
        elsewhere = tf.Variable(tf.ones([2000]))

    class Reads(layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs * tf.reduce_sum(elsewhere)

    case = two_branches([layers.Dense(4), Reads()], layers.Dense(4))
    return emitted(cluster, case=case)


def with_a_moved_slot(cluster: sn.Cluster) -> Any:
    """One slot was put elsewhere."""
    model = emitted(cluster)
    model.optimizer.build(model.trainable_variables)
    slot = model.optimizer._velocities[0]
    with tf.device("/device:CPU:3"):
        slot._value = tf.Variable(slot._value)
    return model


def with_an_optimizer_without_hooks(cluster: sn.Cluster) -> Any:
    """Updates run on device 0, and gradients pass through it."""
    placing._place = lambda optimizer: None
    return emitted(cluster)


@pytest.mark.parametrize(
    ("make", "aspect", "parts", "words"),
    [
        (
            with_a_device_inside_a_part,
            "forward",
            {"left"},
            "ran on gpu:2, planned on gpu:0",
        ),
        (
            with_a_variable_of_elsewhere,
            "transfers",
            {""},
            "transfers of weights from gpu:2 to gpu:0",
        ),
        (
            with_a_moved_slot,
            "slots",
            {"left"},
            "velocity' of 'left' is on gpu:2, planned on gpu:0",
        ),
        (
            with_an_optimizer_without_hooks,
            "updates",
            {"left", "right", "head"},
            "transfers of weights gradient from gpu:1 to cpu:0",
        ),
    ],
)
def test_audit_finds_what_strays_in_a_placed_model(
    make: Any,
    aspect: str,
    parts: set[str],
    words: str,
    cluster: sn.Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ops, variables, slots and updates elsewhere are found, and named."""
    monkeypatch.setattr(placing, "_place", placing._place)  # put back afterwards
    audit = sn.audit(make(cluster), None, (numbers(6), numbers(2)))

    assert {f.part for f in audit.findings if f.aspect == aspect} == parts
    assert words in str(audit)


@pytest.fixture(scope="module")
def plain_case() -> Case:
    """Two branches of one layer each."""
    return two_branches(layers.Dense(4), layers.Dense(4))


@pytest.fixture(scope="module")
def placed(cluster: sn.Cluster, plain_case: Case) -> Any:
    """A model for tests that leave it as it is."""
    return emitted(cluster, case=plain_case)


def test_audit_finds_another_plan_out(
    cluster: sn.Cluster, placed: Any, plain_case: Case
) -> None:
    """A model held against a plan for other devices is not clean."""
    other = sn.plan(
        plain_case.source,
        cluster,
        batch=BATCH,
        pins={"left": "gpu:2", "right": "gpu:0"},
        time_limit=0.1,
    )

    strays = found(placed, other)

    assert {("forward", "left"), ("backward", "left"), ("variables", "left")} <= strays


# --- what must not --------------------------------------------------------------------


def test_audits_in_two_threads_do_not_disturb_each_other(placed: Any) -> None:
    """TensorFlow collects graphs for the whole process, so one waits for the other."""
    audits: dict[int, sn.Audit] = {}

    def act(number: int) -> None:
        audits[number] = sn.audit(placed, None, (numbers(6), numbers(2)))

    threads = [threading.Thread(target=act, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert audits[0].ok
    assert audits[0].rows == audits[1].rows
    assert audits[0].moved == audits[1].moved


def test_audit_without_targets_watches_the_forward_pass(placed: Any) -> None:
    """`x` alone, or a model that is not compiled: forward only, and it says so."""
    audit = sn.audit(placed, None, numbers(6)).check()

    assert "only the forward pass was watched" in audit.notes[0]
    rows = {row.part: row for row in audit.rows}
    assert (rows["left"].forward, rows["left"].backward) == ("gpu:0", "")


def test_audit_of_a_forward_pass_leaves_outputs_where_they_are(
    cluster: sn.Cluster,
) -> None:
    """What the watched function hands to its caller is no transfer of the model."""
    first = keras.Input((6,))
    made = layers.Dense(64, name="made")(first)
    ends = [layers.Dense(64, name=name)(made) for name in ("near", "far")]
    model = keras.Model(first, ends)
    pins = {"made": "gpu:0", "near": "gpu:0", "far": "gpu:1"}
    placed = sn.emit(model, sn.plan(model, cluster, batch=32, pins=pins))
    audit = sn.audit(placed, None, np.ones((32, 6), "float32")).check()

    assert audit.moved["gpu:0", "gpu:1", "activation"] == (8192, 8192)
    assert not any(target == "cpu:0" for _, target, _ in audit.moved)


def test_weights_that_a_layer_gets_later_are_known(cluster: sn.Cluster) -> None:
    """`quantize` and `enable_lora` make them beside the layer's first; else it rings.

    Those that `quantize` frees are known no more, although others may get their ids.
    """
    left, right = layers.Dense(4, name="l"), layers.Dense(4, name="r")
    model = emitted(cluster, case=two_branches(left, right))
    model.quantize("int8", filters="^l$")
    model.get_layer("r").enable_lora(2)
    gc.collect()
    scale, *_ = (v for v in model.variables if v.path == "l/kernel_scale")
    lora, *_ = (v for v in model.variables if v.path == "r/lora_kernel_a")

    assert devices([scale, lora]) == ["CPU:1", "CPU:2"]
    assert placed_of(model).weight_of.keys() <= {id(v) for v in model.variables}
    sn.audit(model, None, numbers(6)).check()
    with tf.device("/device:CPU:3"):
        scale._value = tf.Variable(scale._value)
    audit = sn.audit(model, None, numbers(6))
    assert "variable 'l/kernel_scale' of 'left' is on gpu:2, planned on gpu:0" in str(
        audit
    )


def test_audit_of_outputs_without_a_loss_is_clean(cluster: sn.Cluster) -> None:
    """They are no part of a training step, but of a forward pass."""
    first = keras.Input((8,))
    score = keras.layers.Dense(3, name="score")(
        keras.layers.Dense(8, name="made")(first)
    )
    best = keras.ops.max(score, -1)
    model = keras.Model(first, {"score": score, "best": best})
    pins = {"made": "gpu:0", "score": "gpu:1", "max*": "gpu:2"}
    placed = sn.emit(model, sn.plan(model, cluster, batch=4, pins=pins))
    placed.compile("sgd", {"score": "mse"})
    x, y = np.ones((4, 8), "float32"), {"score": np.ones((4, 3), "float32")}

    trained = sn.audit(placed, None, (x, y)).check()
    assert "nothing in this step needs" in trained.notes[-1]
    assert sn.audit(placed, None, x).check().notes[-1] != trained.notes[-1]


@pytest.mark.parametrize(
    ("plan", "batch", "error", "words"),
    [
        (None, None, sn.AuditError, "batch is missing: audit.model, None"),
        (None, [], sn.AuditError, r"a batch is x, \(x, y\) or"),
        (None, numbers(7), sn.AuditError, "the watched step of model .* failed"),
        ((numbers(6), numbers(2)), None, sn.DeclarationError, "plan= must be Plan"),
    ],
)
def test_audit_refuses_what_it_cannot_watch(
    placed: Any, plan: Any, batch: Any, error: Any, words: str
) -> None:
    """No batch, one that does not fit, something else than a plan: it says which."""
    with pytest.raises(error, match=words):
        sn.audit(placed, plan, batch)


def test_audit_refuses_models_without_a_plan(cluster: sn.Cluster, placed: Any) -> None:
    """A plain model, and something else than a model."""
    with pytest.raises(sn.AuditError, match="was not emitted by splitnet: give audit"):
        sn.audit(sn.unplace(placed), None, ([1], [2]))
    with pytest.raises(sn.DeclarationError, match="model= must be Model"):
        sn.audit(cluster, None, numbers(6))


# --- what it leaves behind ------------------------------------------------------------


def state(model: Any) -> list[np.ndarray]:
    """All numbers that a model keeps."""
    kept = [*model.variables, *model.optimizer.variables]
    kept += [v for metric in model.metrics for v in metric.variables]
    return [v.numpy() for v in kept]


def stateful() -> Case:
    """Seeds, averages, weights."""
    body = [layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5)]
    return two_branches(body, layers.Dense(4))


def loss_scale() -> Any:
    """Slots that start at 0.7, and a scale that grows."""
    inner = keras.optimizers.Adagrad(initial_accumulator_value=0.7)
    return keras.optimizers.LossScaleOptimizer(
        inner, initial_scale=64.0, dynamic_growth_steps=1
    )


def test_audit_before_the_first_fit_changes_nothing(cluster: sn.Cluster) -> None:
    """Training after an audit equals training without one, wherever slots start."""
    case = stateful()
    audited, other = (emitted(cluster, loss_scale(), case) for _ in range(2))
    sn.audit(audited, None, (case.x, case.y)).check()
    for model in (audited, other):
        model.fit(case.x, case.y, batch_size=BATCH, shuffle=False, verbose=0)

    for mine, its in zip(state(audited), state(other), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_audit_in_the_middle_of_training_changes_nothing(cluster: sn.Cluster) -> None:
    """Weights, slots, metrics, seeds, history and the traced step are as before."""
    case = stateful()
    model = emitted(cluster, OPTIMIZERS["adamw_everything"](), case)
    model.compile(model.optimizer, "mse", metrics=["mae"])
    model.fit(case.x, case.y, verbose=0)
    before, history, step = state(model), model.history, model.train_function
    sn.audit(model, None, (case.x, case.y)).check()

    for mine, its in zip(before, state(model), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert model.history is history
    assert model.train_function is step
