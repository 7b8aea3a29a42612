"""Placed equals unplaced: outputs, losses, gradients, weights, state; and proven.

`sn.unplace` gives the plain Keras model with the same weights and seeds; in `test_emit`
a few are built by hand from the very layers that were declared.
"""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import splitnet as sn
from tests.tf.zoo import BATCH, OPTIMIZERS, ZOO, Case, two_branches

pytestmark = pytest.mark.tf


class Losses(keras.callbacks.Callback):
    """The running loss after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep it."""
        self.seen.append(logs["loss"])


def placed_and_plain(case: Case, cluster: sn.Cluster) -> tuple[Any, Any]:
    """The emitted model of a case and its plain Keras model, both compiled."""
    placed = sn.emit(case.net, sn.plan(case.net, cluster, batch=BATCH, time_limit=0.2))
    plain = sn.unplace(placed)
    for model in (placed, plain):
        model.compile(**case.compilation())
    return placed, plain


def flat(structure: Any) -> list[np.ndarray]:
    """All numbers of a structure of tensors and variables."""
    return [np.asarray(one) for one in keras.tree.flatten(structure)]


def assert_near(
    ours: Any, theirs: Any, tolerance: float = 1e-6, noise: float = 0.0
) -> None:
    """Near 1e-6 of the largest value of each tensor, or of 1; text is equal.

    TensorFlow sums in another order, and an element in which large terms cancel carries
    the rounding of those terms. Nets of more than 50 layers may differ by 1e-5. `noise`
    is what a gradient may be whose true value is 0, such as that of a key's bias.
    """
    for mine, its in zip(flat(ours), flat(theirs), strict=True):
        if its.dtype.kind in "US":
            np.testing.assert_array_equal(mine, its)
            continue
        largest = max(1.0, float(np.abs(its).max(initial=0.0)))
        limit = max(tolerance * largest, noise)
        np.testing.assert_allclose(mine, its, rtol=2e-5, atol=limit)


def fit(model: Any, case: Case) -> list[float]:
    """Three steps, the last one incomplete; the running loss after each."""
    losses = Losses()
    model.fit(
        case.x,
        case.y,
        sample_weight=case.weights,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=[losses],
        **case.fit,
    )
    return losses.seen


def gradients(model: Any, case: Case) -> list[Any]:
    """Gradients of the compiled loss, by a step of one's own under the scope."""

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with sn.placement_scope(model):
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
            found = tape.gradient(loss, model.trainable_variables)
        return [tf.convert_to_tensor(g) for g in found if g is not None]

    first = keras.tree.map_structure(lambda a: tf.constant(a[:BATCH]), (case.x, case.y))
    return step(*first)


def assert_transparent(case: Case, placed: Any, plain: Any) -> None:
    """Before, during and after training nothing tells the two apart."""
    outputs = [m.predict(case.x, BATCH, verbose=0) for m in (placed, plain)]
    assert_near(*outputs)
    assert_near(fit(placed, case), fit(plain, case))
    assert_near(placed.variables, plain.variables)
    assert_near(placed.optimizer.variables, plain.optimizer.variables)


def first_batch(case: Case) -> Any:
    """One batch as `sn.audit` takes it."""
    data = (case.x, case.y) if case.weights is None else (case.x, case.y, case.weights)
    return keras.tree.map_structure(lambda a: a[:BATCH], data)


@pytest.mark.parametrize("name", ZOO)
def test_placed_equals_plain(name: str, cluster: sn.Cluster) -> None:
    """Outputs, losses, weights, slots, seeds and gradients; and all where planned."""
    case = ZOO[name]()
    placed, plain = placed_and_plain(case, cluster)

    assert_transparent(case, placed, plain)
    assert_near(gradients(placed, case), gradients(plain, case))
    assert_moved_as_planned(sn.audit(placed, None, first_batch(case)).check())


def assert_moved_as_planned(audit: sn.Audit) -> None:
    """Activations cross as often as planned, to the byte; masks count among them."""
    for (source, target, kind), (planned, actual) in audit.moved.items():
        if kind.startswith("weights"):
            assert actual <= planned, (source, target, kind)
        if kind == "activation":
            masks = audit.moved.get((source, target, "mask"), (0, 0))[1]
            assert planned - masks <= actual <= planned, (source, target)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_placed_equals_plain_with_every_optimizer(
    name: str, cluster: sn.Cluster
) -> None:
    """Slots, averages, clipping, decay and accumulation change nothing and stay put."""
    dense = keras.layers.Dense
    case = replace(
        two_branches(dense(4), dense(4)),
        compilation=lambda: {"optimizer": OPTIMIZERS[name](), "loss": "mse"},
    )
    placed, plain = placed_and_plain(case, cluster)

    assert_transparent(case, placed, plain)
    audit = sn.audit(placed, None, first_batch(case)).check()
    assert not [key for key, (_, sent) in audit.moved.items() if key[2] == "other"]
