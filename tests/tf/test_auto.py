"""strategy="auto", run: what the planner may choose trains as the plain model."""

import re
from dataclasses import replace

import keras
import numpy as np
import pytest
from keras import layers, ops

import splitnet as sn
from splitnet.tf.parallel.pipeline import obstacles_of
from tests.tf.check import Case, assert_alike, numbers, stack, with_plain, words
from tests.tf.zoo import two_branches

pytestmark = pytest.mark.slow

BATCH, WIDTH = 8, 6
X, Y = numbers(WIDTH, count=BATCH), numbers(2, seed=1, count=BATCH)
WORDS = words(5, 30)[:BATCH]
BOTH = [X, WORDS]
TEXTS = np.array(["a b", "c", "", "a b c", "c c", "b", "a", "b c a b"])


def model(rows=30, width=WIDTH):
    """A model over numbers and words, with a nested model and a shared layer."""
    x, ids = keras.Input((WIDTH,), name="x"), keras.Input((5,), dtype="int32")
    shared = layers.Dense(WIDTH, activation="tanh")
    inner = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(9), layers.Dense(6)])
    text = layers.GlobalAveragePooling1D()(layers.Embedding(rows, width)(ids))
    first = inner(layers.Add()([x, layers.Dense(WIDTH)(text)]))
    made = [shared(x), text, first, shared(layers.LayerNormalization()(first))]
    return keras.Model([x, ids], layers.Dense(2)(layers.Concatenate()(made)))


def net():
    """Branches side by side for any device, and one tensor for all samples."""
    net = sn.Net("net")
    x, ids = net.input("x", (WIDTH,)), net.input("words", (5,), dtype="int32")
    body = [layers.Embedding(30, 4), layers.GlobalAveragePooling1D()]
    branches = [net.branch("text", ids, body)]
    for i, units in enumerate((4, 7)):
        wide = layers.Dense(units, activation="relu")
        branches.append(net.branch(f"b{i}", x, [wide, layers.Dense(3)]))
    both = net.merge("both", branches, layers.Concatenate())
    one, dense = net.branch("one", x, PLACES), layers.Dense(WIDTH)
    last = net.branch("last", [both, one], lambda read: dense(read[0]) + read[1])
    net.output(net.branch("head", last, layers.Dense(2)))
    return net


FIXED = {model: {"towers": 1, "microbatches": 2, "schedule": "1f1b"}}
FIXED[net] = {"towers": 2, "microbatches": 3}


@pytest.mark.parametrize(("make", "fixed"), FIXED.items())
def test_every_strategy_trains_as_the_plain_model(make, fixed, cluster):
    """Losses and weights to rounding, and an audit that rings for another plan."""
    source, box = make(), four(cluster) if make is net else cluster
    plan = planned(source, box, **fixed)
    placed = assert_trains_as_plain(source, plan, BOTH)
    assert plan.execution.microbatches == fixed["microbatches"]
    if make is net:
        assert set(plan.device_of.values()) == {*box.names}
        assert not sn.audit(placed, elsewhere(plan), (BOTH, Y)).ok


def planned(source, cluster, **fixed):
    options = {"batch": BATCH, "time_limit": 0.1, "strategy": "auto"}
    return sn.plan(source, cluster, **options | fixed)


def assert_trains_as_plain(source, plan, x):
    """Losses and weights of two steps are the plain model's, and all is as planned."""
    placed, plain = with_plain(sn.emit(source, plan))
    assert_alike(placed, plain, Case(source, x, Y, sizes=(BATCH, BATCH)))
    return placed


def four(cluster):
    """All devices as GPUs, on which two towers of two stages have room."""
    home = replace(cluster["cpu:0"], name="gpu:3", stand_in=True)
    return sn.Cluster((home, *cluster.of_kind("gpu")))


def elsewhere(plan):
    names = plan.cluster.names
    turned = dict(zip(names, [*names[1:], names[0]]))
    moved = (replace(p, device=turned[p.device]) for p in plan.placements)
    return replace(plan, placements=tuple(moved))


BUILT = []


def build():
    """A model with a wide embedding; noted, as it never has weights."""
    BUILT.append(model(4000, 31))
    return BUILT[-1]


def wide_attention():
    """An attention layer of 6 heads in a chain, with a mask that it hands on."""
    ids = keras.Input((5,), dtype="int32")
    x = layers.Embedding(30, 64, mask_zero=True)(ids)
    y = layers.MultiHeadAttention(6, 64, name="wide")(x, x)
    y = layers.GlobalAveragePooling1D()(layers.Add()([x, y]))
    return keras.Model(ids, layers.Dense(2)(y))


def wide_text():
    """A wide table of words, behind texts of any length."""
    text = keras.Input((), dtype="string")
    ids = layers.TextVectorization(vocabulary=list("abc"))(text)
    y = layers.LSTM(3)(layers.Embedding(4000, 64, mask_zero=True, name="wide")(ids))
    return keras.Model(text, layers.Dense(2)(y))


def wide_net():
    """A net with a wide layer in the middle of a branch's body."""
    net = sn.Net("net")
    x = net.input("x", (WIDTH,))
    wide = layers.Dense(3000, "softmax", name="wide")  # must see all its outputs
    net.output(net.branch("a", x, [layers.Dense(40, "relu"), wide, layers.Dense(2)]))
    return net


def small(cluster, source):
    """The devices with too little memory for the largest layer and its slots."""
    graph = sn.read(source, BATCH)
    size = {weight.name: weight.bytes for weight in graph.weights}
    largest = max(sum(size[w] for w in call.weights) for call in graph.calls)
    devices = (replace(d, memory_bytes=int(2.8 * largest)) for d in cluster)
    return replace(cluster, devices=tuple(devices))


CUT = {"split": {"wide": 3}, "microbatches": 2}


@pytest.mark.parametrize(
    ("make", "x", "fixed"),
    [
        (wide_attention, WORDS, {**CUT, "recompute": True, "towers": 1}),
        (wide_net, X, {**CUT, "towers": 2}),
        (wide_text, TEXTS, {"split": {"wide": 3}, "microbatches": 1}),
        (lambda: build, BOTH, {"towers": 2, "microbatches": 1}),
    ],
)
def test_a_layer_that_fits_nowhere_is_split(make, x, fixed, cluster, tmp_path):
    """From a file, over an equal model of other names, or a function that builds it."""
    model = make()
    tight = small(four(cluster) if x is BOTH else cluster, model)
    planned(model, tight, **fixed).save(tmp_path / "plan.json")
    plan, twin = sn.load_plan(tmp_path / "plan.json"), make()
    placed = assert_trains_as_plain(twin, plan, x)
    assert not any("slice" in layer.name for layer in sn.unplace(placed).layers)
    parts = [p.name for p in plan.graph.parts if "slice" in p.name]
    assert len({plan.device_of[name] for name in parts}) > 1
    counts = [one.count for one in plan.graph.towers.values()]
    assert max(counts, default=1) == fixed.get("towers", 1)
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in tight)
    assert plan.execution.microbatches == fixed["microbatches"]
    assert all(v._value is None for one in BUILT for v in one.variables)


def tied():
    """Layers that cannot be cut: called twice, inside a model, too narrow."""
    x = keras.Input((WIDTH,))
    twice, inner = layers.Dense(WIDTH, name="twice"), layers.Dense(9, name="inner")
    y = keras.Sequential([keras.Input((WIDTH,)), inner])(twice(twice(x)))
    return keras.Model(x, layers.Dense(2, name="free")(y))


def pinned():
    return two_branches().source


@pytest.mark.parametrize(
    ("make", "split", "words"),
    [
        (tied, {"nobody": 2}, "'nobody': the model has no such layer"),
        (tied, {"inner": 2}, "'inner': the model has no such layer outside of nested"),
        (tied, {"twice": 2}, "'twice': it is called 2 times"),
        (tied, {"free": 3}, "has 2 outputs, which cannot be cut over 3 devices"),
        (tied, {"free": 9}, "the slices must be at least 2 and at most"),
        (lambda: sn.read(pinned(), 8), {"right": 2}, "a Graph has no layers to cut"),
        (pinned, {"right": 2}, "'right' is a branch .* for a device"),
    ],
)
def test_a_layer_that_cannot_be_cut_is_named(make, split, words, cluster):
    with pytest.raises(sn.DeclarationError, match=words):
        planned(make(), cluster, split=split)


def test_tables_are_cut_as_often_as_it_takes():
    """Into 8, as 4 leave no room; the rest of the model is copied to each device."""

    def build():
        ids = [keras.Input((20,), dtype="int32") for _ in range(2)]
        tables = [layers.Flatten()(layers.Embedding(3_000_000, 64)(i)) for i in ids]
        return keras.Model(ids, layers.Dense(512)(layers.Concatenate()(tables)))

    box = sn.Cluster.of("8*gpu", "cpu", memory="1.5 GiB", cpu_memory="64 GiB")
    plan = planned(build, box, batch=1024)
    rows, cut = plan.verdict.strategies, r"split=\{('embedding\w*': 8(, )?){2}\}"
    assert rows.chosen == "towers"
    assert re.search(cut, rows["towers"].how)
    assert rows["placement"].how.endswith("split={})")  # or it would be cut as well
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in box)


def test_a_refusal_names_the_slices_that_fit(cluster):
    with pytest.raises(sn.InfeasibleError, match=r"split=\{'wide': \d\}"):
        sn.plan(wide_net(), small(cluster, wide_net()), batch=BATCH, time_limit=0.1)


def test_layers_of_a_branch_that_fits_nowhere_are_cut():
    net = sn.Net("net")
    body = [layers.Dense(2048, name=name) for name in "ab"]
    net.output(net.branch("wide", net.input("x", (1024,)), body))
    box = sn.Cluster.of("4*gpu", "cpu", memory="48 MiB", cpu_memory="40 MiB")
    assert planned(net, box, batch=32).verdict.strategies.chosen == "split"


@keras.saving.register_keras_serializable("test_auto")
class Counting(layers.Layer):
    """Counts its calls in a variable."""

    def build(self, input_shape):
        self.count = self.add_weight(shape=(), trainable=False, name="count")

    def call(self, x):
        self.count.assign_add(1.0)
        return x


def summing(layer, x):
    layer.add_loss(ops.sum(x))
    return x


class Fixed(layers.Layer):
    """Has a weight that no call changes, and gives an empty tensor and a size."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:], trainable=False, name="scale")

    def call(self, x):
        size = ops.convert_to_tensor(ops.shape(x)[1])
        return x * self.scale, ops.zeros((0, *x.shape[1:])), size


def neighbours(x):
    return x + ops.take(x, ops.cast(x[:, 0] > 0.5, "int32"), axis=0)


def centred(x):
    return x - ops.mean(x, axis=0)


def noisy(x):
    return x * keras.random.uniform(ops.shape(x))


ANY = {"microbatches", "towers"}
PLACES = layers.Lambda(lambda x: ops.ones((1, *x.shape[1:])))
COMBINED = {
    "cumsum": lambda x: ops.cumsum(x, axis=-2),
    "flip": ops.flip,
    "outer": lambda x: ops.outer(x[:, 0], x[:, 0]),
    "item": lambda x: x - x[:1, :],
    "own": layers.Lambda(centred, name="own"),
    "acts": layers.Dense(2, centred, name="acts"),
    "inner": keras.Sequential([layers.Dense(2, centred)], name="inner"),
    "near": layers.Lambda(neighbours, name="near"),
    "noisy": layers.Lambda(lambda x: noisy(centred(x)), name="noisy"),
    "'penal' adds a loss that is no mean": layers.Dense(
        2, activity_regularizer=lambda x: ops.sum(ops.mean(x, 0) ** 2), name="penal"
    ),
    "'summed' is no batch": layers.Lambda(lambda x: ops.ones((3, 1)), name="summed"),
    "is no mean": type("Sum", (layers.Layer,), {"call": summing})(),
    "nested": keras.Sequential([layers.UnitNormalization(axis=0)], name="nested"),
}


def masks():
    inner = [layers.Embedding(9, 4, mask_zero=True), layers.Dense(2)]
    return keras.Sequential(inner, name="m")


def texts(**options):
    words, start = keras.Input((), dtype="string"), layers.TextVectorization()
    start.adapt(["a b c", "b a", "c"])
    return keras.Model(words, layers.Embedding(9, 4, **options)(start(words)))


def still():
    norm, dense = layers.BatchNormalization(trainable=False), layers.Dense(2)
    return stack(keras.Sequential([norm, layers.SpectralNormalization(dense)]))


@pytest.mark.parametrize(
    ("make", "which", "words"),
    [
        (lambda: stack(ops.sort, layers.Dropout(0.5)), set(), ""),
        (lambda: stack(lambda x: ops.take(X, ops.argmax(x, 1), axis=0)), set(), ""),
        (lambda: stack(layers.BatchNormalization(name="bn")), {"microbatches"}, "'bn'"),
        (lambda: stack(keras.Sequential([layers.BatchNormalization()])), ANY, "itself"),
        (lambda: stack(lambda x: Fixed()(x)[0]), set(), ""),
        (lambda: stack(layers.Lambda(noisy)), set(), ""),
        (still, {"microbatches"}, "divides its kernel"),
        (lambda: stack(masks(), layers.Dense(2)), {"microbatches"}, "'dense"),
        (lambda: stack(masks(), layers.GlobalMaxPooling1D()), set(), ""),
        (texts, {"microbatches"}, "the longest of their batch"),
        (lambda: texts(mask_zero=True), {"microbatches"}, "hands a mask"),
        (lambda: stack(Counting(name="count")), ANY, "'count' has a state"),
        (lambda: stack(layers.Dense(2), batch_shape=(8, 6)), {*ANY, "batch"}, "fixed"),
        (lambda: stack(lambda x: x + PLACES(x)), set(), ""),
        *((lambda one=one: stack(one), ANY, name) for name, one in COMBINED.items()),
    ],
)
def test_what_cannot_be_divided_exactly_is_named(make, which, words):
    found = obstacles_of(make())
    assert set(found) == which
    assert all(words in why for why in list(found.values())[:1])


def test_towers_reach_the_norms_of_a_model_inside_the_model(cluster):
    inner = keras.Sequential([layers.Dense(2), layers.BatchNormalization()])
    assert planned(stack(inner), cluster, batch=8, towers=2).graph.towers
    sn.data_parallel(stack(inner), cluster, batch=8, batch_norm="synchronised")
