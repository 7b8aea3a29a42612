"""strategy="auto", run: what the planner may choose trains as the plain model."""

import re
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn
from splitnet.tf.parallel.pipeline import obstacles_of

pytestmark = pytest.mark.slow

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
        (random_model, {"towers": 1, "microbatches": 3, "schedule": "1f1b"}),
        (random_net, {"towers": 1, "microbatches": 2, "recompute": True}),
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
    placed, batch = assert_trains_as_plain(model, plan, *data())

    assert plan.execution.microbatches == fixed.get("microbatches", 1)
    assert not sn.audit(placed, elsewhere(plan), batch).ok


def assert_trains_as_plain(source: Any, plan: sn.Plan, x: Any, y: Any) -> Any:
    """Losses and weights are the plain model's, and all is where planned.

    Returns the placed model and its first batch.
    """
    placed = sn.emit(source, plan)
    plain = sn.unplace(placed)
    losses = []
    for one in (placed, plain):
        one.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        made = one.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        losses.append(made.history["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for mine, its in zip(
        sn.unplace(placed).get_weights(), plain.get_weights(), strict=True
    ):
        np.testing.assert_allclose(mine, its, rtol=2e-5, atol=2e-6)
    batch = keras.tree.map_structure(lambda a: a[:BATCH], (x, y))
    sn.audit(placed, plan, batch).check()
    return placed, batch


def four(cluster: sn.Cluster) -> sn.Cluster:
    """All devices as GPUs, on which two towers of two stages have room."""
    home = replace(cluster["cpu:0"], name="gpu:3", stand_in=True)
    return sn.Cluster((home, *cluster.of_kind("gpu")))


def elsewhere(plan: sn.Plan) -> sn.Plan:
    """The plan with every part on the next device."""
    names = [device.name for device in plan.cluster]
    turned = dict(zip(names, [*names[1:], names[0]]))
    moved = (replace(p, device=turned[p.device]) for p in plan.placements)
    return replace(plan, placements=tuple(moved))


def wide_dense() -> Any:
    """A layer of 3,000 outputs whose activation must see all of them, in a chain."""
    x = keras.Input((WIDTH,))
    y = layers.Dense(3000, activation="softmax")(layers.Dense(40, "relu")(x))
    return keras.Model(x, layers.Dense(2)(y))


def wide_table() -> Any:
    """An embedding of many words, beside a branch of numbers and a nested model."""
    x, words = keras.Input((WIDTH,)), keras.Input((5,), dtype="int32")
    text = layers.GlobalAveragePooling1D()(layers.Embedding(4000, 31)(words))
    inner = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(9), layers.Dense(6)])
    both = layers.Concatenate()([text, inner(x)])
    return keras.Model([x, words], layers.Dense(2)(both))


def wide_attention() -> Any:
    """An attention layer of 6 heads in a chain, with a mask that it hands on."""
    words = keras.Input((5,), dtype="int32")
    x = layers.Embedding(30, 64, mask_zero=True)(words)
    y = layers.MultiHeadAttention(6, 64)(x, x)
    y = layers.GlobalAveragePooling1D()(layers.Add()([x, y]))
    return keras.Model(words, layers.Dense(2)(y))


def wide_net() -> Any:
    """A net with a wide layer in the middle of a branch's body, and one beside it."""
    net = sn.Net("net")
    x = net.input("x", (WIDTH,))
    body = [layers.Dense(40, "relu"), layers.Dense(3000, "gelu"), layers.Dense(4)]
    a, b = net.branch("a", x, body), net.branch("b", x, layers.Dense(3))
    both = net.merge("both", [a, b], layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(2)))
    return net


def small(cluster: sn.Cluster, source: Any) -> sn.Cluster:
    """The devices with too little memory for the largest layer and its slots."""
    graph = sn.read(source, BATCH)
    size = {weight.name: weight.bytes for weight in graph.weights}
    largest = max(sum(size[w] for w in call.weights) for call in graph.calls)
    devices = (replace(d, memory_bytes=int(2.8 * largest)) for d in cluster)
    return replace(cluster, devices=tuple(devices))


def given(source: Any) -> tuple[Any, np.ndarray]:
    """The data that a model of this file takes."""
    (x, words), y = data()
    kinds = [t.dtype for t in source.inputs] if hasattr(source, "inputs") else []
    taken = [words if kind == "int32" else x for kind in kinds] or [x]
    return taken if len(taken) > 1 else taken[0], y


@pytest.mark.parametrize(
    ("make", "fixed"),
    [
        (
            wide_attention,
            {"microbatches": 2, "recompute": True, "split": 3, "towers": 1},
        ),
        (wide_net, {"towers": 1}),
        (wide_net, {"towers": 2, "microbatches": 2}),
        (wide_dense, {"towers": 3, "split": 3}),
        (lambda: wide_table, {"towers": 3}),
        (lambda: wide_table, {"towers": 2, "hosts": 2}),
    ],
)
def test_a_layer_that_fits_nowhere_is_split(
    make: Any, fixed: dict[str, Any], cluster: sn.Cluster, tmp_path: Path
) -> None:
    """It trains as the plain model, from a file, over an equal model of other names."""
    keras.utils.set_random_seed(2)
    fixed, model = dict(fixed), make()
    build = model if isinstance(model, FunctionType) else None
    tight = small(four(cluster) if fixed.pop("hosts", 0) else cluster, model)
    if "split" in fixed:
        largest = max(model.layers, key=lambda layer: layer.count_params())
        fixed = fixed | {"split": {largest.name: fixed["split"]}}
    options = {"batch": BATCH, "time_limit": 0.1, "strategy": "auto"} | fixed
    plan = sn.plan(model, tight, **options)
    plan.save(tmp_path / "plan.json")
    plan = sn.load_plan(tmp_path / "plan.json")
    twin = make()
    if isinstance(twin, keras.Model):
        twin.set_weights(model.get_weights())
    placed, _ = assert_trains_as_plain(twin, plan, *given(build() if build else model))

    assert not any("slice" in layer.name for layer in sn.unplace(placed).layers)
    parts = [p.name for p in plan.graph.parts if "slice" in p.name]
    assert len({plan.device_of[name] for name in parts}) > 1
    assert max([one.count for one in plan.graph.towers.values()], default=1) == (
        fixed.get("towers", 1)
    )
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in tight)
    assert plan.execution.microbatches == fixed.get("microbatches", 1)


def tied() -> Any:
    """Layers that cannot be cut: called twice, inside a model, ruled along the cut."""
    x = keras.Input((WIDTH,))
    twice, inner = layers.Dense(WIDTH, name="twice"), layers.Dense(9, name="inner")
    y = keras.Sequential([keras.Input((WIDTH,)), inner])(twice(twice(x)))
    ruled = layers.Dense(
        8, name="ruled", kernel_constraint=keras.constraints.UnitNorm(1)
    )
    return keras.Model(x, layers.Dense(2, name="free")(ruled(y)))


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"nobody": 2}, "'nobody': the model has no such layer"),
        ({"inner": 2}, "'inner': the model has no such layer outside of nested"),
        ({"twice": 2}, "'twice': it is called 2 times"),
        ({"ruled": 2}, "UnitNorm of 'kernel' looks along axis 1"),
        ({"free": 3}, "has 2 outputs, which cannot be cut over 3 devices"),
        ({"free": 9}, "the slices must be at least 2 and at most"),
    ],
)
def test_a_layer_that_cannot_be_cut_is_named(
    split: dict[str, int], words: str, cluster: sn.Cluster
) -> None:
    """What `split=` cannot do says which layer, and why."""
    with pytest.raises(sn.DeclarationError, match=words):
        sn.plan(tied(), cluster, strategy="auto", split=split, time_limit=0.1)


def test_slices_are_refused_where_they_cannot_be(cluster: sn.Cluster) -> None:
    """A graph has no layers; a layer that asks for a device keeps it."""
    net = sn.Net("net")
    net.output(net.branch("a", net.input("x", (4,)), layers.Dense(8), on="gpu:0"))
    name = net.branches[1].body.name
    with pytest.raises(sn.DeclarationError, match="a Graph has no layers to cut"):
        sn.plan(sn.read(net), cluster, strategy="auto", split={name: 2})
    with pytest.raises(sn.DeclarationError, match="'a' is a branch .* for a device"):
        sn.plan(net, cluster, strategy="auto", split={name: 2})


def test_tables_are_cut_as_often_as_it_takes() -> None:
    """Into 8, as 4 leave no room, though a slow CPU could hold the tables.

    The rest of the model is copied to each device.
    """

    def build() -> Any:
        ids = [keras.Input((20,), dtype="int32") for _ in range(3)]
        tables = [layers.Flatten()(layers.Embedding(2_000_000, 64)(i)) for i in ids]
        return keras.Model(ids, layers.Dense(1)(layers.Concatenate()(tables)))

    box = sn.Cluster.of("8*gpu", "cpu", memory="1.5 GiB", cpu_memory="64 GiB")
    plan = sn.plan(build, box, batch=1024, strategy="auto", time_limit=0.2)

    assert plan.verdict.strategies.chosen == "towers"
    assert re.search(
        r"split=\{('embedding\w*': 8(, )?){3}\}", str(plan.verdict.strategies)
    )
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in box)


def test_a_refusal_names_the_slices_that_fit(cluster: sn.Cluster) -> None:
    """So does the comparison of strategies; without slices nothing fits."""
    model = wide_dense()
    tight = small(cluster, model)
    name = model.layers[2].name
    with pytest.raises(sn.InfeasibleError, match=rf"split=\{{'{name}': \d\}}"):
        sn.plan(model, tight, batch=BATCH, time_limit=0.1)
    options = {"batch": BATCH, "time_limit": 0.1}
    row = sn.compare_strategies(model, tight, **options)["split"]

    assert row.fits
    assert f"split={{'{name}': " in row.how
    with pytest.raises(sn.InfeasibleError):
        sn.plan(model, tight, **options, strategy="auto", split={})


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
