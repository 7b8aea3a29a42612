"""strategy="auto", run: what the planner may choose trains as the plain model."""

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn
from splitnet.tf.parallel.pipeline_checks import obstacles_of

pytestmark = pytest.mark.tf

SAMPLES, BATCH, WIDTH = 19, 8, 6


def random_model(seed: int) -> Any:
    """A random DAG over numbers and words, with a nested model and a shared layer."""
    draw = np.random.default_rng(seed)
    x, words = keras.Input((WIDTH,), name="x"), keras.Input((5,), dtype="int32")
    shared = layers.Dense(WIDTH, activation="tanh")
    inner = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(9), layers.Dense(6)])
    text = layers.GlobalAveragePooling1D()(layers.Embedding(30, WIDTH)(words))
    made = [x, text]
    for _ in range(4):
        one, other = (made[i] for i in draw.integers(0, len(made), 2))
        kind = draw.integers(0, 4)
        made.append(
            [shared, inner, layers.LayerNormalization(), layers.Add()][kind](
                [one, other] if kind == 3 else one
            )
        )
    last = layers.Concatenate()([shared(x), *made[1:]])
    return keras.Model([x, words], layers.Dense(2)(last), name=f"random{seed}")


def random_net(seed: int) -> sn.Net:
    """Branches side by side that the planner may put anywhere, and their merge."""
    draw, net = np.random.default_rng(seed), sn.Net("net")
    x, words = net.input("x", (WIDTH,)), net.input("words", (5,), dtype="int32")
    body = [layers.Embedding(30, 4), layers.GlobalAveragePooling1D()]
    branches = [net.branch("text", words, body)]
    for i in range(int(draw.integers(1, 4))):
        wide = layers.Dense(int(draw.integers(3, 9)), activation="relu")
        branches.append(net.branch(f"b{i}", x, [wide, layers.Dense(3)]))
    both = net.merge("both", branches, layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(2)))
    return net


def data() -> tuple[list[np.ndarray], np.ndarray]:
    """Samples whose last batch is smaller."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((SAMPLES, WIDTH)).astype("float32")
    words = draw.integers(0, 30, (SAMPLES, 5)).astype("int32")
    return [x, words], draw.standard_normal((SAMPLES, 2)).astype("float32")


@pytest.mark.parametrize(
    ("source", "fixed"),
    [
        (random_model, {"towers": 3}),
        (random_net, {"towers": 2, "microbatches": 3}),
        (random_model, {"towers": 1, "microbatches": 3, "schedule": "1f1b"}),
        (random_net, {"towers": 1, "microbatches": 2, "recompute": True}),
        (random_model, {"pins": {"*": "gpu:1"}, "microbatches": 3}),
        (random_model, {"towers": 2, "hosts": 2}),
        (random_net, {"towers": 2, "microbatches": 3, "hosts": 2}),
    ],
    ids=lambda one: str(getattr(one, "__name__", one)),
)
def test_every_strategy_trains_as_the_plain_model(
    source: Any, fixed: dict[str, Any], cluster: sn.Cluster
) -> None:
    """Losses and weights to rounding, a clean audit, and an alarm for another plan."""
    keras.utils.set_random_seed(1)
    model = source(sum(map(ord, str(fixed))))
    options = {"batch": BATCH, "time_limit": 0.1, "strategy": "auto"} | fixed
    if hosts := options.pop("hosts", 0):
        cluster = four(cluster)
    plan = sn.plan(model, cluster, **options)
    assert not hosts or set(plan.device_of.values()) == {d.name for d in cluster}
    placed = sn.emit(model, plan)
    plain = sn.unplace(placed)
    x, y = data()
    losses = []
    for one in (placed, plain):
        one.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        made = one.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        losses.append(made.history["loss"])

    assert plan.execution.microbatches == fixed.get("microbatches", 1)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for mine, its in zip(placed.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, its, rtol=2e-5, atol=2e-6)
    batch = keras.tree.map_structure(lambda a: a[:BATCH], (x, y))
    sn.audit(placed, plan, batch).check()
    assert not sn.audit(placed, elsewhere(plan), batch).ok


def four(cluster: sn.Cluster) -> sn.Cluster:
    """All devices as GPUs, on which two towers of two stages have room."""
    home = replace(cluster["cpu:0"], name="gpu:3", kind="gpu", stand_in=True)
    return sn.Cluster((home, *cluster.of_kind("gpu")))


def elsewhere(plan: sn.Plan) -> sn.Plan:
    """The plan with every part on the next device."""
    names = [device.name for device in plan.cluster]
    turned = dict(zip(names, [*names[1:], names[0]]))
    moved = (replace(p, device=turned[p.device]) for p in plan.placements)
    return replace(plan, placements=tuple(moved))


def test_a_function_is_planned_and_emitted(cluster: sn.Cluster) -> None:
    """The model that it builds never has weights of its own."""
    made = []

    def build() -> Any:
        made.append(random_model(7))
        return made[-1]

    plan = sn.plan(build, cluster, batch=BATCH, time_limit=0.1, strategy="auto")
    placed = sn.emit(build, plan)
    x, y = data()
    placed.compile("sgd", "mse")
    placed.fit(x, y, batch_size=BATCH, verbose=0)

    assert all(v._value is None for model in made for v in model.variables)
    batch = keras.tree.map_structure(lambda a: a[:BATCH], (x, y))
    sn.audit(placed, plan, batch).check()


@keras.saving.register_keras_serializable("test_auto")
class Counting(layers.Layer):
    """Counts its calls in a variable."""

    def build(self, input_shape: Any) -> None:
        """One number."""
        self.count = self.add_weight(shape=(), trainable=False, name="count")

    def call(self, x: Any) -> Any:
        """The input, counted."""
        self.count.assign_add(1.0)
        return x


@keras.saving.register_keras_serializable("test_auto")
class Stepping(keras.Model):
    """A step of its own."""

    def train_step(self, data: Any) -> Any:
        """As Keras' own."""
        return super().train_step(data)


def of(*body: Any, kind: Any = keras.Model, **options: Any) -> Any:
    """A chain of layers as a model."""
    x = made = keras.Input(**{"shape": (WIDTH,)} | options)
    for layer in body:
        made = layer(made)
    return kind(x, made)


def summed() -> Any:
    """A compiled model whose loss is a sum."""
    model = of(layers.Dense(2))
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    return model


BOTH = {"microbatches", "towers"}


@pytest.mark.parametrize(
    ("make", "which", "words"),
    [
        (lambda: of(layers.Dense(2), layers.Dropout(0.5)), set(), ""),
        (lambda: of(layers.BatchNormalization(name="bn")), {"microbatches"}, "'bn'"),
        (lambda: of(keras.Sequential([layers.BatchNormalization()])), BOTH, "itself"),
        (lambda: of(Counting(name="count")), BOTH, "'count' has a state"),
        (lambda: of(layers.Dense(2), batch_shape=(8, 6), shape=None), BOTH, "batch"),
        (lambda: of(layers.Dense(2), kind=Stepping), {"microbatches"}, "train_step"),
        (summed, {"microbatches"}, "is no mean over samples"),
        (
            lambda: of(layers.Embedding(9, 2, mask_zero=True), layers.Dense(2)),
            {"microbatches"},
            "hands a mask to its loss",
        ),
    ],
    ids=["none", "norm", "inside", "state", "fixed", "step", "sum", "mask"],
)
def test_what_cannot_be_divided_exactly_is_named(
    make: Any, which: set[str], words: str
) -> None:
    """Pieces or towers that would train another model are not chosen, and say why."""
    found = obstacles_of(make())

    assert set(found) == which
    assert all(words in why for why in list(found.values())[:1])
