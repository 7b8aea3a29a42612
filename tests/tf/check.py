"""Placed models held against plain ones: what most tests with TensorFlow do."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import splitnet as sn
from splitnet.tf.audit.observe import watching

SAMPLES, BATCH = 13, 5


@dataclass(frozen=True)
class Case:
    """A net or a Keras model, its data, and how it is planned, emitted and compiled.

    If `sizes` differ, the batch is traced as open, and nothing is audited.
    """

    source: Any
    x: Any
    y: Any
    loss: Any = "mse"
    pins: Any = None
    way: dict[str, Any] = field(default_factory=dict)
    optimizer: Callable[[], Any] = lambda: sgd()
    compilation: dict[str, Any] = field(default_factory=dict)
    weights: Any = None
    sizes: tuple[int, ...] = (5, 5)
    audited: bool = True


def into(table):
    """A decorator that registers a function in a table under its name."""

    def register(build):
        table[build.__name__] = build
        return build

    return register


def numbers(*shape, seed=0, count=SAMPLES):
    made = np.random.default_rng(seed).standard_normal((count, *shape))
    return made.astype("float32")


def words(length, count=11):
    """Whole numbers below `count`; the later half of the odd rows is padding."""
    made = np.random.default_rng(0).integers(1, count, (SAMPLES, length))
    made[1::2, length // 2 :] = 0
    return made.astype("int32")


def classes(count):
    return np.random.default_rng(0).integers(0, count, SAMPLES).astype("int32")


def sgd():
    """Its rate is a power of 2, by which gradients are divided without rounding."""
    return keras.optimizers.SGD(2.0**-4, momentum=0.9)


def with_plain(placed):
    """A placed model and its plain copy, which runs eagerly; compiled alike."""
    plain = sn.unplace(placed)
    for one in (placed, plain):
        one.compile(sgd(), "mse", run_eagerly=one is plain)
    return placed, plain


def devices(variables):
    return [v.value.device.rpartition("device:")[2] for v in variables]


def flat(structure):
    return [np.asarray(one) for one in keras.tree.flatten(structure)]


def assert_near(ours, theirs, tolerance=1e-6):
    """No difference of two structures is above the rule's; no text or seed differs.

    The rule allows `tolerance` of the largest value of a tensor: TensorFlow sums in
    another order, and an element in which large terms cancel carries the rounding of
    those terms. What is below the rounding of the largest tensor of all is noise, as a
    gradient that is truly 0.
    """
    pairs, found = [], 0.0
    for mine, its in zip(flat(ours), flat(theirs), strict=True):
        assert mine.shape == its.shape
        if its.dtype.kind in "USiub":
            found = max(found, 0.0 if (mine == its).all() else np.inf)
        else:
            pairs.append((mine.astype("float64"), its.astype("float64")))
    tops = [float(np.abs(its).max(initial=0.0)) for _, its in pairs]
    noise = float(np.finfo(keras.config.floatx()).eps) * max(tops, default=0.0)
    for (mine, its), top in zip(pairs, tops):
        differ = np.abs(mine - its)[~np.isclose(mine, its, 0, 0, equal_nan=True)]
        if differ.size:
            largest = float(np.nan_to_num(differ, nan=np.inf).max())
            found = max(found, largest / max(noise, tolerance * top))
    assert found <= 1.0, f"{found:.3g} times the difference that rounding explains"


def rows(case, count):
    """The first rows of a case's data, as the arguments of a step."""
    given = (case.x, case.y, *([] if case.weights is None else [case.weights]))
    return keras.tree.map_structure(lambda a: tf.constant(a[:count]), given)


def step(model, *batch, **options):
    """Train on one batch; Keras' logs of it alone, which before 3.15 add up."""
    model.reset_metrics()
    return model.train_on_batch(*batch, **options)


def logged(model, case):
    """Train a step of each size, in one `fit` if they differ; Keras' logs of each."""
    batches = [rows(case, count) for count in case.sizes]
    if model.run_eagerly or len(set(case.sizes)) == 1:
        return [step(model, *batch, return_dict=True) for batch in batches]
    seen = []
    steps = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: model.reset_metrics(),
        on_train_batch_end=lambda batch, logs: seen.append(dict(logs)),
    )
    options = {"steps_per_epoch": len(batches), "shuffle": False, "verbose": 0}
    model.fit((batch for batch in batches), callbacks=[steps], **options)
    return seen


def stack(*layers, **entry):
    """A functional model of layers in a row; `entry` is for its input, of 6 numbers."""
    x = made = keras.Input(**entry or {"shape": (6,)})
    for layer in layers:
        made = layer(made)
    return keras.Model(x, made)


def emitted(source, cluster, way=None, compiled=None, **plan):
    """A placed model; `way` is for `emit`, `compiled` for `compile`."""
    plan = {"batch": BATCH, "time_limit": 0.1, "objective": "memory"} | plan
    model = sn.emit(source, sn.plan(source, cluster, **plan), **way or {})
    if compiled:
        model.compile(*compiled)
    return model


def trained(model, case, watch=contextlib.nullcontext):
    """Outputs, logs, weights of whole layers, slots: SGD's are gradients; `watched`."""
    keras.utils.set_random_seed(1)
    seen = [model(rows(case, case.sizes[0])[0])]
    with watch(model) as watched:
        seen.append(logged(model, case))
    if any("_slice" in layer.name for layer in model.layers):
        model = sn.unplace(model)
    return [*seen, model.variables, model.optimizer.variables], watched


@contextlib.contextmanager
def in_policy(policy):
    def use(policy):
        keras.config.set_floatx("float64" if policy == "float64" else "float32")
        keras.config.set_dtype_policy(policy)

    use(policy)
    try:
        yield
    finally:
        use("float32")


def assert_same(case, cluster, tolerance=1e-6):
    """Train placed and, eagerly, plain; the placed model and its audit, or None."""
    plan = {"batch": case.sizes[0], "pins": case.pins}
    placed = emitted(case.source, cluster, case.way, **plan)
    plain = case.source if isinstance(case.source, keras.Model) else sn.unplace(placed)
    for model in (placed, plain):
        options = {"run_eagerly": model is plain} | case.compilation
        model.compile(case.optimizer(), case.loss, **options)
    return placed, assert_alike(placed, plain, case, tolerance)


def assert_alike(placed, plain, case, tolerance=1e-6):
    """Train two models, which are compiled; the audit of the placed one, or None."""
    closed = case.audited and len(set(case.sizes)) == 1
    watch = watching if closed else contextlib.nullcontext
    (ours, audit), (theirs, _) = trained(placed, case, watch), trained(plain, case)
    assert [log.keys() for log in ours[1]] == [log.keys() for log in theirs[1]]
    assert_near(ours, theirs, tolerance)
    return audit().check() if closed else None
