"""Towers: exactly the model they replicate, on every device that was named."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.core.graph import Towers
from splitnet.tf.parallel.data_parallel import towers_of
from splitnet.tf.parallel.towers import Shards
from tests.tf import check
from tests.tf.check import assert_near, emitted, in_policy, numbers, sgd, stack
from tests.tf.zoo import MODELS
from tests.tf.zoo.ways import FOUR, TWO, towered


def test_moments_of_batch_norm_are_those_of_the_whole_batch(cluster):
    """Moving means; empty towers do not count. Wide ones return to their home."""
    net = towered([layers.BatchNormalization(), layers.Dense(8)], (30,))
    placed, plain = check.with_plain(emitted(net, cluster, batch=8))
    x, y = 3 + numbers(30, count=8), numbers(3, count=8)
    for size in (8, 2):
        for one in (placed, plain):
            one.train_on_batch(x[:size], y[:size])
    assert_near(*(one.get_layer(index=1).moving_mean for one in (placed, plain)))
    sn.audit(placed, None, (x, y)).check()


def test_dropout_draws_anew_in_every_tower(cluster):
    net = sn.Net("drop")
    x = net.input("x", (64,))
    net.output(net.towers("drop", x, layers.Dropout(0.5, seed=3), on=FOUR))
    model = emitted(net, cluster, batch=4)
    made = np.asarray(model(np.ones((4, 64), "float32"), training=True))
    assert len({row.tobytes() for row in made}) == 4


def test_a_sample_may_become_several_rows(cluster):
    net = sn.Net("rows")
    x = net.input("x", (6, 2))
    net.output(net.towers("t", x, lambda t: keras.ops.reshape(t, (-1, 2)), on=FOUR))
    model, rows = emitted(net, cluster, batch=8), numbers(6, 2, count=5)
    for size in (5, 2):  # five samples, and their targets, go to towers as 2, 1, 1, 1
        made = model.predict_on_batch(rows[:size])
        np.testing.assert_array_equal(made, rows[:size].reshape(-1, 2))
    assert [len(one) for one in Shards(5, 4).split(made[:10])] == [4, 2, 2, 2]


def test_ragged_samples_and_targets_are_divided(cluster):
    """Among three towers and three micro-batches; the last batch has two samples."""
    words = keras.Input((None,), dtype="int32", ragged=True)
    mean = layers.Lambda(lambda x: keras.ops.mean(x, axis=1), output_shape=(4,))
    made = layers.Dense(1)(mean(layers.Embedding(9, 4)(words)))
    plain, sizes = keras.Model(words, made), [3, 2, 4, 1, 5, 2, 4]
    towers = sn.data_parallel(plain, cluster, devices=3, batch=5)
    cut = emitted(plain, cluster, {"microbatches": 3}, batch=5)
    values = tf.RaggedTensor.from_row_lengths(np.arange(21, dtype="int32") % 9, sizes)
    data = tf.data.Dataset.from_tensor_slices((values, tf.cast(values, "float32")))
    for model in (plain, towers, cut):
        model.compile(sgd(), lambda y, made: (made[:, 0] - tf.reduce_max(y, 1)) ** 2)
        model.fit(data.batch(5), epochs=2, verbose=0, shuffle=False)
    assert_near(towers.get_weights(), plain.get_weights())
    assert_near(cut.get_weights(), plain.get_weights())


def test_data_parallel_trains_and_restores_as_the_model_it_copies(cluster, tmp_path):
    """Its source is left as it was; three towers, two, or none go on from the file."""
    keras.utils.set_random_seed(5)
    entry = keras.Input((6,))
    sides = [layers.Dense(4, activation=one)(entry) for one in ("relu", "tanh")]
    seen = layers.Reshape((2, 2))(layers.Add()(sides))
    seen = layers.Flatten()(layers.Conv1D(4, 1, groups=2)(seen))  # XLA runs it
    model = keras.Model(entry, layers.Dense(3)(seen))
    before = model.get_weights()
    three = sn.data_parallel(model, cluster, batch=4)
    x, y = numbers(6, count=4), numbers(3, count=4)
    for one in (three, model):
        one.compile("adam", "mse", run_eagerly=one is model)

    def fit(one):
        return [check.step(one, x, y) for _ in range(2)]

    fit(three)
    np.testing.assert_equal(model.get_weights(), before)
    fit(model)
    assert_near(three.get_weights(), model.get_weights())
    sn.audit(three, None, (x, y)).check()
    three.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    two = sn.data_parallel(loaded, cluster, devices=["gpu:0", "gpu:2"])
    assert type(loaded).__name__ == "Functional"
    for one in (loaded, two):
        np.testing.assert_allclose(one(x), three(x), atol=1e-6)
    losses = [fit(one) for one in (three, loaded, two)]
    np.testing.assert_allclose(losses, [losses[0]] * 3, rtol=1e-6)


def test_towers_leave_what_only_a_cpu_can_run(cluster):
    """Strings are looked up once, whether towers are asked for or chosen."""
    case = MODELS["prepared_columns"]()
    how = {"batch": 4, "strategy": "auto", "towers": 2, "effort": 3000}
    chosen = sn.emit(case.source, sn.plan(case.source, cluster, **how))
    for model in (sn.data_parallel(case.source, cluster, batch=4), chosen):
        parts = [p.name for p in sn.plan_of(model).graph.parts if p.kind == "tower"]
        assert {sn.plan_of(model)[name].device[:3] for name in parts} == {"gpu"}
        made = model.predict_on_batch(case.x)
        for name, values in case.source.predict_on_batch(case.x).items():
            np.testing.assert_allclose(made[name], values, atol=1e-6)


def test_data_parallel_joins_outputs_where_data_come_in():
    """Among workers' processors, the join is on this program's own."""
    names = ("worker:0/cpu:0", "worker:1/cpu:0")
    machine = sn.Cluster.of("cpu:0", *names)
    towers = Towers((), (names[0],))
    plan = sn.plan(towers_of(stages(), None, machine, names, towers, 8), machine)
    assert plan[plan.graph.name].device == machine.home.name == "cpu:0"
    assert [plan[f"{plan.graph.name}/{i}"].device for i in range(2)] == list(names)


@in_policy("float64")
def test_data_parallel_takes_the_plain_model_of_a_placed_one(cluster):
    """Slices are whole layers again, and neither pins nor micro-batches go over."""
    net = sn.Net("cut")
    wide = net.split("wide", net.input("x", (6,)), layers.Dense(9, "tanh"), on=TWO)
    net.output(net.branch("head", wide, layers.Dense(3), on="gpu:2"))
    cut = emitted(net, cluster, {"microbatches": 2}, batch=8)
    plain, towers = sn.unplace(cut), sn.data_parallel(cut, cluster, batch=8)
    x, y = (numbers(count, count=8).astype("float64") for count in (6, 3))
    for model in (plain, towers):
        model.compile("adam", "mse", run_eagerly=model is plain)
    check.assert_alike(towers, plain, check.Case(net, x, y, sizes=(8, 8)), 1e-12)


def siamese():
    net = sn.Net("siamese")
    x = net.input("x", (6,))
    shared = keras.Sequential([layers.Dense(6, "tanh"), layers.Dense(7, "tanh")])
    a = net.branch("a", x, [layers.Dense(6, "tanh"), shared], on="gpu:0")
    b = net.branch("b", x, shared, on="gpu:1")
    joined = net.merge("join", [a, b], layers.Concatenate())
    net.output(net.branch("head", joined, layers.Dense(3), on="gpu:1"))
    return net


def stages():
    twice = layers.Dense(6, "tanh")
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6, "relu"), twice])
    x = keras.Input((6,), name="x")
    y = layers.LayerNormalization()(layers.Add()([x, inner(x)]))
    return keras.Model(x, layers.Dense(3)(twice(y)), name="stages")


def lookup():
    body = layers.Embedding(3, 2), layers.Flatten(), layers.Dense(3)
    return keras.Sequential([keras.Input((6,)), layers.Rescaling(0.0), *body])


@pytest.mark.parametrize(
    ("make", "pins", "microbatches"),
    [
        (siamese, None, 2),
        (stages, {"sequential*": "gpu:0", "*": "gpu:1"}, 1),
        (lookup, {"embedding*": "gpu:0", "*": "gpu:1"}, 2),
    ],
)
@in_policy("float64")  # where the order of a sum does not show
def test_towers_of_a_placed_model_keep_its_placement(make, pins, microbatches, cluster):
    """Each tower is over two devices, and exact where some have no sample."""
    way = {"microbatches": microbatches}
    placed = emitted(make(), cluster, way, batch=8, pins=pins)
    plan, plain = sn.plan_of(placed), sn.unplace(placed)
    towers = sn.data_parallel(placed, cluster, devices=FOUR, batch=8)
    mine = sn.plan_of(towers)
    x, y = (numbers(count).astype("float64") for count in (6, 3))
    for model in (towers, plain):
        model.compile(sgd(), "mse", run_eagerly=model is plain)
    other = {"gpu:0": "gpu:2", "gpu:1": "cpu:0", "cpu:0": "cpu:0"}
    for part, device in plan.device_of.items():
        if plan.graph.part[part].kind != "input" and device != "cpu:0":
            assert mine[f"{part}/0"].device == device
            assert mine[f"{part}/1"].device == other[device]
    assert mine.execution.microbatches == microbatches
    check.assert_alike(towers, plain, check.Case(None, x, y, sizes=(8, 1)), 1e-12)
    sn.audit(towers, mine, (x[:8], y[:8])).check()


def bad(net):
    x = net.input("x", (4,))
    one = net.towers("one", x, layers.Dense(2), on=["gpu:0"], batch_norm="all")
    return net.split("two", one, layers.Dense(4), on=["gpu:0", "gpu:1", "gpu:0"])


def mean(net):
    x = net.input("x", (4,))
    net.output(net.towers("mean", x, lambda t: keras.ops.mean(t, axis=0), on=FOUR))
    body = keras.Sequential([keras.Input((4,)), layers.BatchNormalization()])
    net.output(net.towers("t", x, body, on=FOUR, batch_norm="synchronised"))
    words = net.input("words", (4,), "int32")
    coded = net.branch("coded", words, lambda t: keras.ops.one_hot(t, 9, sparse=True))
    return net.towers("sparse", coded, layers.Dense(2), on=FOUR)


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (bad, ["two or more devices", "'per_tower', 'synchronised'", "each once"]),
        (mean, ["first axis is not the batch", "list its layers", "sparse tensor"]),
    ],
)
def test_towers_that_cannot_be_split_are_refused(declare, words):
    net = sn.Net("bad")
    net.output(declare(net))
    with pytest.raises(sn.DeclarationError) as error:
        sn.read(net)
    assert all(word in str(error.value) for word in words)


def test_a_norm_that_is_called_twice_moves_its_averages_twice(cluster):
    ends, norm = [keras.Input((4,)) for _ in range(2)], layers.BatchNormalization()
    model = keras.Model(ends, layers.Dense(1)(layers.Add()([*map(norm, ends)])))
    towers = sn.data_parallel(model, cluster, batch=8, batch_norm="synchronised")
    x = [numbers(4, count=8), 3.0 + numbers(4, count=8)]
    for one in (model, towers):
        one.compile("sgd", "mse")
        one.fit(x, numbers(1, count=8), epochs=2, batch_size=8, verbose=0)
    for mine, its in zip(towers.get_weights(), model.get_weights()):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)


def test_what_towers_change_is_said(cluster):
    inner = keras.Sequential([layers.BatchNormalization(trainable=False)], name="in")
    body = [inner, layers.Softmax(0, name="soft")]
    model = emitted(towered(body, (4,), batch_norm="synchronised"), cluster)
    model.get_layer("in").layers[0].trainable = True
    of_samples = pytest.warns(UserWarning, match="'soft' combines samples, here those")
    with of_samples, pytest.warns(UserWarning, match="into 'in', .* Freeze it again"):
        model.compile("sgd", "mse")


def test_data_parallel_says_what_it_needs(cluster):
    still = stack(layers.Dense(2), batch_shape=(8, 4))
    placed = emitted(stages(), cluster, pins={"sequential*": "gpu:1", "*": "gpu:0"})
    faults = [
        ("needs two or more devices", {"devices": ["gpu:0"]}),
        (r"has 0 \(none\)", {"devices": 0}),
        ("all here.*; there are 3 GPUs here", {"devices": 9}),
        ("each once; has 3", {"devices": ["gpu:0", "gpu:1", "GPU:0"]}),
        (r"need 4\. .* data_parallel\(sn.unplace", {"model": placed}),
        ("batch=? must be int", {"batch": 0}),
        ("takes batches of 8 alone. Build it without", {"model": still}),
    ]
    for words, given in faults:
        with pytest.raises(sn.SplitnetError, match=words):
            sn.data_parallel(**{"model": stages(), "cluster": cluster} | given)
