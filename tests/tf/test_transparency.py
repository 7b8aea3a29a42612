"""Placed equals unplaced: outputs, losses, gradients, weights, state; and proven."""

from dataclasses import replace

import keras
import pytest
from keras import layers

import splitnet as sn
from tests.tf.check import assert_same, in_policy
from tests.tf.zoo import MODELS, NETS, ZOO, two_branches

pytestmark = pytest.mark.slow

# In float32 these differ by more: sums in another order, or plain Keras from itself.
DOUBLE = {"own_gradients_in_pieces", "split_words", "towers", "towers_synchronised"}


@pytest.mark.parametrize("name", ZOO)
def test_placed_equals_plain(name, cluster):
    """Also models that nobody declared, cut at every call; and all is where planned."""
    keras.utils.set_random_seed(0)
    double = name in DOUBLE
    policy = name if name == "mixed_float16" else "float32"
    with in_policy("float64" if double else policy):
        case = ZOO[name]()
        if name in MODELS and not case.pins:
            calls = sn.read(case.source, batch=case.sizes[0]).calls
            free = [c.part for c in calls if not c.cpu_only and c.kind != "InputLayer"]
            turns = {part: f"gpu:{i % 3}" for i, part in enumerate(free)}
            case = replace(case, pins=lambda part: turns.get(part.name))
        placed, audit = assert_same(case, cluster, 1e-10 if double else 1e-6)
    if name in NETS:
        assert_moved_as_planned(audit)
    if name in MODELS:
        assert set(sn.plan_of(placed).device_of.values()) >= {"gpu:0", "gpu:1", "gpu:2"}


def assert_moved_as_planned(audit):
    """Activations cross as often as planned, to the byte; masks count among them."""
    for (source, target, kind), (planned, actual) in audit.moved.items():
        if kind.startswith("weights"):
            assert actual <= planned, (source, target, kind)
        if kind == "activation":
            masks = audit.moved.get((source, target, "mask"), (0, 0))[1]
            assert planned - masks <= actual <= planned, (source, target)


def everything():
    """A schedule, decay, clipping, averages that overwrite, accumulation."""
    averages = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2}
    options = {"weight_decay": 0.1, "clipnorm": 0.5, "gradient_accumulation_steps": 2}
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
    return keras.optimizers.AdamW(rate, **options, **averages)


def two_in_one():
    """An optimizer for kernels and another for the rest, which clips by their norm."""
    sgd, adam = keras.optimizers.SGD(0.1, global_clipnorm=0.1), keras.optimizers.Adam()
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        return sgd  # not in every Keras
    return keras.optimizers.MultiOptimizer(
        lambda variable: adam if "kernel" in variable.path else sgd
    )


@pytest.mark.parametrize("optimizer", [everything, two_in_one])
def test_placed_equals_plain_with_optimizers(optimizer, cluster):
    """Slots stay put; `silu`'s gradient, a function of its own, runs at its branch."""
    keras.utils.set_random_seed(0)
    branches = two_branches(layers.Dense(4, "silu"), layers.Dense(4, "silu"))
    case = replace(branches, optimizer=optimizer, sizes=(5, 5, 5, 5))
    _, audit = assert_same(case, cluster)
    assert not [key for key, (_, sent) in audit.moved.items() if key[2] == "other"]
