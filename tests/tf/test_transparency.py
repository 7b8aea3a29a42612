"""Placed equals unplaced: outputs, losses, gradients, weights, state; and proven.

`sn.unplace` gives the plain Keras model with the same weights and seeds; in `test_emit`
one is built by hand from the very layers that were declared.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import pytest
from keras import layers

import splitnet as sn
from tests.tf.check import Case, assert_same, assert_same_to_rounding
from tests.tf.zoo import MODELS, NETS, ZOO, two_branches

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ZOO)
def test_placed_equals_plain(name: str, cluster: sn.Cluster) -> None:
    """Outputs, losses, weights, slots, seeds and gradients; and all where planned.

    Every call of a model that nobody declared is sent to another stand-in than the call
    before it, so that whatever can be cut is cut.
    """

    def build() -> Case:
        case = ZOO[name]()
        if name not in MODELS or case.pins:
            return case
        calls = sn.read(case.source, batch=case.sizes[0]).calls
        free = [c.part for c in calls if not c.cpu_only and c.kind != "InputLayer"]
        turns = {part: f"gpu:{i % 3}" for i, part in enumerate(free)}
        return replace(case, pins=lambda part: turns.get(part.name))

    placed, audit = assert_same_to_rounding(build, cluster)

    if name in NETS:
        assert_moved_as_planned(audit)
    if name in MODELS:
        assert set(sn.plan_of(placed).device_of.values()) >= {"gpu:0", "gpu:1", "gpu:2"}


def assert_moved_as_planned(audit: sn.Audit) -> None:
    """Activations cross as often as planned, to the byte; masks count among them."""
    for (source, target, kind), (planned, actual) in audit.moved.items():
        if kind.startswith("weights"):
            assert actual <= planned, (source, target, kind)
        if kind == "activation":
            masks = audit.moved.get((source, target, "mask"), (0, 0))[1]
            assert planned - masks <= actual <= planned, (source, target)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adamw_everything": lambda: keras.optimizers.AdamW(
        0.01,
        weight_decay=0.1,
        clipnorm=0.5,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=2,
    ),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), centered=True
    ),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
}


def two_in_one() -> Any:
    """An optimizer for kernels and another for the rest."""
    sgd, adam = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam()
    return keras.optimizers.MultiOptimizer(
        lambda variable: adam if "kernel" in variable.path else sgd
    )


if hasattr(keras.optimizers, "MultiOptimizer"):  # not in every supported Keras
    OPTIMIZERS["two_in_one"] = two_in_one


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_placed_equals_plain_with_every_optimizer(
    name: str, cluster: sn.Cluster
) -> None:
    """Slots, averages, clipping, decay and accumulation change nothing and stay put.

    The gradient of `silu`, which is a function of its own, runs at its branch.
    """
    branches = two_branches(layers.Dense(4, "silu"), layers.Dense(4, "silu"))

    _, audit = assert_same(replace(branches, optimizer=OPTIMIZERS[name]), cluster)

    assert not [key for key, (_, sent) in audit.moved.items() if key[2] == "other"]
