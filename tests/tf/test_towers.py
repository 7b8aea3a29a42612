"""Towers: exactly the model they replicate, on every device that was named."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn
from splitnet.core.net import Towers
from splitnet.core.replication import collapse
from splitnet.simulator.microbatch import scaled_graph
from splitnet.tf.parallel.data_parallel import towers_of

pytestmark = pytest.mark.tf

FOUR = ["gpu:0", "gpu:1", "gpu:2", "cpu"]


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Layers in float64, where the order of a sum does not show."""
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy("float32")


def numbers(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, the same for the same seed."""
    made = np.random.default_rng(seed).standard_normal((count, *shape))
    return made.astype("float32")


def towered(body: Any, shape: tuple[int, ...], **options: Any) -> sn.Net:
    """A net of one input, towers of a body, and a head on the CPU."""
    net = sn.Net("towered")
    x = net.input("x", shape)
    options.setdefault("on", FOUR)
    made = net.towers("body", x, body, **options)
    net.output(net.branch("head", made, layers.Dense(3), on="cpu"))
    return net


def both(net: sn.Net, cluster: sn.Cluster, **compilation: Any) -> tuple[Any, Any]:
    """A placed model and its plain copy, compiled alike."""
    keras.utils.set_random_seed(7)
    placed = sn.emit(net, sn.plan(net, cluster, batch=8))
    plain = sn.unplace(placed)
    for model in (placed, plain):
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **compilation)
    return placed, plain


def difference(one: Any, other: Any) -> float:
    """The largest difference between the weights of two models."""
    return max(
        float(np.abs(a - b).max())
        for a, b in zip(one.get_weights(), other.get_weights())
    )


def conv_body() -> list[Any]:
    """What TensorFlow's kernels would crash on if a tower had no sample."""
    return [
        layers.Conv2D(4, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(6, activation="tanh"),
    ]


def test_towers_train_as_the_unsplit_batch_for_every_batch_size(
    cluster: sn.Cluster,
) -> None:
    """Batches of 1 to 9 over four towers, also those that leave towers empty."""
    placed, plain = both(towered(conv_body(), (8, 8, 2)), cluster)
    x, y = numbers(9, 8, 8, 2), numbers(9, 3, seed=1)

    for size in range(1, 10):
        mine = placed.train_on_batch(x[:size], y[:size])
        theirs = plain.train_on_batch(x[:size], y[:size])
        assert mine == pytest.approx(theirs, rel=1e-6)

    assert difference(placed, plain) < 1e-6


@pytest.mark.usefixtures("double_precision")
def test_towers_fit_and_predict_with_an_incomplete_last_batch(
    cluster: sn.Cluster,
) -> None:
    """Nine samples in steps of four leave one, whose batch has an unknown size."""
    placed, plain = both(towered(conv_body(), (8, 8, 2)), cluster)
    x, y = numbers(9, 8, 8, 2), numbers(9, 3, seed=1)

    for model in (placed, plain):
        model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)

    assert difference(placed, plain) < 1e-12
    np.testing.assert_allclose(
        placed.predict(x, batch_size=4, verbose=0),
        plain.predict(x, batch_size=4, verbose=0),
        atol=1e-12,
    )


def test_towers_audit_clean_forward_backward_and_updates(cluster: sn.Cluster) -> None:
    """Every tower computes on its device, weights stay on the CPU, once."""
    placed, _ = both(towered(conv_body(), (8, 8, 2)), cluster)

    audit = sn.audit(placed, None, (numbers(8, 8, 8, 2), numbers(8, 3)))

    audit.check()
    rows = {row.part: row for row in audit.rows}
    assert [rows[f"body/{i}"].backward for i in range(3)] == ["gpu:0", "gpu:1", "gpu:2"]
    assert rows["body/weights"].variables == "cpu:0"
    assert rows["body/weights"].updates == "cpu:0"


def test_towers_keep_their_weights_on_a_chosen_device(cluster: sn.Cluster) -> None:
    """weights_on= moves variables, slots and updates there."""
    placed, plain = both(
        towered(conv_body(), (8, 8, 2), on=["gpu:0", "gpu:1"], weights_on="gpu:1"),
        cluster,
    )
    x, y = numbers(8, 8, 8, 2), numbers(8, 3)

    audit = sn.audit(placed, None, (x, y)).check()
    assert {r.part: r.slots for r in audit.rows}["body/weights"] == "gpu:1"
    placed.train_on_batch(x, y), plain.train_on_batch(x, y)
    assert difference(placed, plain) < 1e-6


def test_towers_share_the_batch_as_evenly_as_can_be(cluster: sn.Cluster) -> None:
    """Seven over four is 2, 2, 2, 1, in the graph that is planned."""
    graph = sn.read(towered(conv_body(), (8, 8, 2)), batch=7)

    assert [
        call.output_shapes[0][0] for call in graph.calls if call.kind == "Conv2D"
    ] == [2, 2, 2, 1]


def test_shares_of_towers_are_exact_in_float64(cluster: sn.Cluster) -> None:
    """Ninths of nine samples, in every digit that the model has."""
    net = sn.Net("exact")
    x = net.input("x", (4,), dtype="float64")
    body = [layers.BatchNormalization(dtype="float64")]
    net.output(net.towers("body", x, body, on=FOUR, batch_norm="synchronised"))
    placed, plain = both(net, cluster)
    given = np.random.default_rng(0).standard_normal((9, 4))

    mine, its = (np.asarray(model(given, training=True)) for model in (placed, plain))

    assert mine.dtype == "float64"
    assert np.abs(mine - its).max() < 1e-14


def test_synchronised_batch_norm_equals_the_unsplit_batch(cluster: sn.Cluster) -> None:
    """Statistics, moving averages and gradients are those of the whole batch."""
    body = [layers.Dense(6), layers.BatchNormalization(), layers.Dense(5)]
    placed, plain = both(towered(body, (4,), batch_norm="synchronised"), cluster)
    x, y = 3 + numbers(9, 4), numbers(9, 3)

    for size in (8, 5, 3, 9):
        mine = placed.train_on_batch(x[:size], y[:size])
        assert mine == pytest.approx(plain.train_on_batch(x[:size], y[:size]), rel=1e-5)
    assert difference(placed, plain) < 2e-6


def test_per_tower_batch_norm_updates_its_averages_once_by_the_mean(
    cluster: sn.Cluster,
) -> None:
    """The moving mean is that of the whole batch; empty towers do not count."""
    placed, plain = both(towered([layers.BatchNormalization()], (4,)), cluster)
    x, y = 3 + numbers(9, 4), numbers(9, 3)

    for size in (8, 7, 2):
        placed.train_on_batch(x[:size], y[:size])
        plain.train_on_batch(x[:size], y[:size])

    def moving_mean(model: Any) -> Any:
        return model.get_layer(index=1).moving_mean.numpy()

    np.testing.assert_allclose(moving_mean(placed), moving_mean(plain), atol=1e-6)


def test_dropout_draws_anew_in_every_tower(cluster: sn.Cluster) -> None:
    """Equal samples on different towers are dropped differently."""
    net = sn.Net("drop")
    x = net.input("x", (64,))
    net.output(net.towers("drop", x, layers.Dropout(0.5, seed=3), on=FOUR))
    model = sn.emit(net, sn.plan(net, cluster, batch=4))

    made = np.asarray(model(np.ones((4, 64), "float32"), training=True))

    assert len({row.tobytes() for row in made}) == 4


def test_towers_take_dicts_masks_and_several_outputs(cluster: sn.Cluster) -> None:
    """Embeddings with masks, an LSTM, and two outputs, joined with their masks."""
    net = sn.Net("rich")
    words, size = net.input("words", (6,), "int32"), net.input("size", (2,))
    embed = layers.Embedding(11, 5, mask_zero=True)
    narrow = layers.Dense(5)

    def body(words: Any, size: Any) -> Any:
        return {"words": embed(words), "size": narrow(size)}

    made = net.towers("both", {"words": words, "size": size}, body, on=FOUR)
    read = net.branch("read", made["words"], layers.LSTM(5), on="gpu:1")
    joined = net.merge("join", [read, made["size"]], layers.Add())
    net.output(net.branch("head", joined, layers.Dense(3), on="cpu"))
    placed, plain = both(net, cluster)
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 11, (7, 6)).astype("int32")
    ids[::2, 3:] = 0
    x, y = {"words": ids, "size": numbers(7, 2)}, numbers(7, 3)

    for model in (placed, plain):
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)

    assert difference(placed, plain) < 1e-6
    sn.audit(placed, None, (x, y)).check()


@pytest.mark.parametrize("microbatches", [1, 2])
def test_broadcast_inputs_reach_every_tower_whole(
    cluster: sn.Cluster, microbatches: int
) -> None:
    """A table that is no batch is split neither by towers nor by micro-batches."""
    net = sn.Net("table")
    x, table = net.input("x", (4,)), net.input("table", (4,))
    weigh = layers.Dense(4, use_bias=False, kernel_initializer="identity")
    made = net.towers(
        "look",
        [table, x],
        lambda table, x: keras.ops.matmul(weigh(x), keras.ops.transpose(table)),
        on=["gpu:0", "gpu:1"],
        broadcast=table,
    )
    net.output(made)
    plan = sn.plan(net, cluster, batch=5)
    model = sn.emit(net, plan, microbatches=microbatches)
    model.compile("sgd", "mse")
    one, other = numbers(5, 4), numbers(3, 4, seed=1)

    np.testing.assert_allclose(
        np.asarray(model([one, other])), one @ other.T, atol=1e-6
    )
    loss = model.train_on_batch([one, other], np.zeros((5, 3), "float32"))
    assert loss == pytest.approx(np.square(one @ other.T).mean(), rel=1e-5)


def test_bytes_of_broadcast_inputs_do_not_depend_on_the_batch() -> None:
    """Not those of a micro-batch, and not in the whole model of towers."""
    net = sn.Net("table")
    x, table = net.input("x", (4,)), net.input("table", (4,))
    made = net.towers(
        "look", [x, table], layers.Add(), on=["gpu:0", "gpu:1"], broadcast=table
    )
    net.output(made)
    graph = sn.read(net, batch=8)

    def sent(graph: Any) -> list[int]:
        return sorted({t.bytes for t in graph.tensors if t.source == "table"})

    assert sent(scaled_graph(graph, 2)) == sent(graph) == sent(collapse(graph)) == [128]


def test_losses_of_layers_are_the_means_of_the_unsplit_batch(
    cluster: sn.Cluster,
) -> None:
    """Regularizers of both kinds count as in the plain model, also for 2 over 4."""
    body = layers.Dense(5, activity_regularizer="l2", kernel_regularizer="l2")
    placed, plain = both(towered(body, (4,)), cluster)
    x, y = numbers(9, 4), numbers(9, 3)

    for size in (8, 2, 7):
        mine = placed.train_on_batch(x[:size], y[:size])
        assert mine == pytest.approx(plain.train_on_batch(x[:size], y[:size]), rel=1e-6)
    assert difference(placed, plain) < 1e-6


def test_saturated_softmax_in_towers_keeps_its_gradient(cluster: sn.Cluster) -> None:
    """Crossentropy reads logits that hang on the output: they are joined too."""
    net = sn.Net("soft")
    x = net.input("x", (4,))
    net.output(net.towers("soft", x, layers.Dense(3, activation="softmax"), on=FOUR))
    placed = sn.emit(net, sn.plan(net, cluster, batch=4))
    plain = sn.unplace(placed)
    x, y = 100 * numbers(6, 4), np.array([0, 1, 2, 0, 1, 2])
    for model in (placed, plain):
        model.compile("sgd", "sparse_categorical_crossentropy")

    assert placed.train_on_batch(x, y) == pytest.approx(plain.train_on_batch(x, y))
    assert difference(placed, plain) < 1e-5


def test_chained_towers_hand_their_samples_on_without_a_join(
    cluster: sn.Cluster,
) -> None:
    """Towers that read towers of the same number read them device by device."""
    net = sn.Net("chain")
    x = net.input("x", (4,))
    on = ["gpu:0", "gpu:1"]
    first = net.towers("first", x, layers.Dense(6, activation="relu"), on=on)
    second = net.towers("second", first, layers.Dense(5), on=["gpu:1", "gpu:2"])
    net.output(net.branch("head", second, layers.Dense(3), on="cpu"))
    placed, plain = both(net, cluster)
    x_, y = numbers(7, 4), numbers(7, 3)

    assert "first/join" not in sn.plan_of(placed).graph.call
    for model in (placed, plain):
        model.fit(x_, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert difference(placed, plain) < 1e-6
    sn.audit(placed, None, (x_, y)).check()


def test_a_layer_of_towers_may_be_shared_with_a_branch(cluster: sn.Cluster) -> None:
    """One weight, used by towers and by a branch, has one home and one gradient."""
    net = sn.Net("shared")
    a, b = net.input("a", (4,)), net.input("b", (4,))
    shared = layers.Dense(4)
    one = net.towers("one", a, shared, on=["gpu:0", "gpu:1"])
    two = net.branch("two", b, shared, on="gpu:2")
    net.output(net.merge("join", [one, two], layers.Add()))
    placed, plain = both(net, cluster)
    x, y = [numbers(7, 4), numbers(7, 4, seed=1)], numbers(7, 4, seed=2)

    for model in (placed, plain):
        model.fit(x, y, batch_size=3, epochs=2, shuffle=False, verbose=0)
    assert difference(placed, plain) < 1e-6
    sn.audit(placed, None, (x, y)).check()


def branched() -> Any:
    """A Keras model with two branches and BatchNormalization."""
    keras.utils.set_random_seed(5)
    x = keras.Input((6,), name="x")
    left = layers.Dense(4, activation="relu")(x)
    right = layers.Dense(4, activation="tanh")(x)
    return keras.Model(x, layers.Dense(3)(layers.Add()([left, right])), name="branched")


def test_data_parallel_trains_as_the_model_it_copies(cluster: sn.Cluster) -> None:
    """A branched Keras model on three towers, and its source left as it was."""
    model = branched()
    before = model.get_weights()
    placed = sn.data_parallel(model, cluster, batch=8)
    x, y = numbers(11, 6), numbers(11, 3)
    for one in (placed, model):
        one.compile("adam", "mse")

    placed.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    assert all((a == b).all() for a, b in zip(before, model.get_weights()))
    model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)
    assert difference(placed, model) < 1e-6
    sn.audit(placed, None, (x[:8], y[:8])).check()


def test_data_parallel_joins_outputs_where_data_come_in() -> None:
    """Among workers' processors, the join is on this program's own."""
    names = ("worker:0/cpu:0", "worker:1/cpu:0")
    machine = sn.Cluster.of("cpu:0", *names)
    towers = Towers(tuple((name,) for name in names), (names[0],))
    home = machine.home.name
    plan = sn.plan(towers_of(branched(), towers, 8, join_on=home), machine)

    assert plan[plan.graph.name].device == home == "cpu:0"
    assert [plan[f"{plan.graph.name}/{i}"].device for i in range(2)] == list(names)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_data_parallel_restores_on_fewer_towers_and_on_the_cpu(
    cluster: sn.Cluster, tmp_path: Any
) -> None:
    """The saved file is a plain model: three towers, two, or none give the same."""
    three = sn.data_parallel(branched(), cluster, batch=8)
    three.compile("adam", "mse")
    x, y = numbers(8, 6), numbers(8, 3)
    three.fit(x, y, verbose=0)
    three.save(tmp_path / "model.keras")

    loaded = keras.models.load_model(tmp_path / "model.keras")
    two = sn.data_parallel(loaded, cluster, devices=["gpu:0", "gpu:2"])
    assert type(loaded).__name__ == "Functional"
    for model in (loaded, two):
        np.testing.assert_allclose(
            model.predict(x, verbose=0), three.predict(x, verbose=0), atol=1e-6
        )
    losses = [m.fit(x, y, verbose=0).history["loss"][0] for m in (loaded, two, three)]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_data_parallel_takes_the_plain_model_of_a_placed_one(
    cluster: sn.Cluster, double_precision: None, tmp_path: Any
) -> None:
    """Slices are whole layers again, and neither pins nor micro-batches go over."""
    net = sn.Net("cut")
    x = net.input("x", (6,), dtype="float64")
    wide = net.split("wide", x, layers.Dense(9, "tanh"), on=["gpu:0", "gpu:1"])
    net.output(net.branch("head", wide, layers.Dense(3), on="gpu:2"))
    cut = sn.emit(net, sn.plan(net, cluster, batch=8), microbatches=2)
    plain, towers = sn.unplace(cut), sn.data_parallel(cut, cluster, batch=8)
    x, y = (numbers(11, count).astype("float64") for count in (6, 3))
    for model in (plain, towers):
        model.compile("adam", "mse")
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    towers.save(tmp_path / "towers.keras")
    loaded = keras.models.load_model(tmp_path / "towers.keras")

    assert [w.shape for w in loaded.weights] == [w.shape for w in plain.weights]
    assert difference(towers, plain) < 1e-12
    assert difference(loaded, towers) == 0.0
    sn.audit(towers, sn.plan_of(towers), (x[:8], y[:8])).check()


def test_plan_of_towers_survives_its_file(cluster: sn.Cluster, tmp_path: Any) -> None:
    """A saved plan of towers emits the same model."""
    net = towered(conv_body(), (8, 8, 2))
    plan = sn.plan(net, cluster, batch=8)
    plan.save(tmp_path / "plan.json")

    model = sn.emit(net, sn.load_plan(tmp_path / "plan.json"))

    assert model.predict(numbers(5, 8, 8, 2), verbose=0).shape == (5, 3)


def test_towers_that_cannot_be_split_are_refused(cluster: sn.Cluster) -> None:
    """Every fault at once: one device, an unknown policy, an output without a batch."""
    net = sn.Net("bad")
    x = net.input("x", (4,))
    net.output(net.towers("one", x, layers.Dense(2), on=["gpu:0"], batch_norm="all"))

    with pytest.raises(sn.DeclarationError) as error:
        sn.read(net)
    assert "two or more devices" in str(error.value)
    assert "'per_tower', 'synchronised'" in str(error.value)

    net = sn.Net("mean")
    x = net.input("x", (4,))
    net.output(net.towers("mean", x, lambda t: keras.ops.mean(t, axis=0), on=FOUR))
    with pytest.raises(sn.DeclarationError, match="first axis is not the batch"):
        sn.read(net)


def test_synchronised_inside_a_nested_model_is_refused(cluster: sn.Cluster) -> None:
    """A policy that could not be kept is not taken."""
    nested = keras.Sequential([keras.Input((4,)), layers.BatchNormalization()])

    with pytest.raises(sn.DeclarationError, match="list its layers"):
        sn.read(towered(nested, (4,), batch_norm="synchronised"))


def test_data_parallel_says_what_it_needs(cluster: sn.Cluster) -> None:
    """Too few devices, a fixed batch and a stranger's input are named."""
    model = branched()
    with pytest.raises(sn.DeviceError, match="needs two or more devices"):
        sn.data_parallel(model, cluster, devices=["gpu:0"])
    for none in ([], 0, -2):
        with pytest.raises(sn.DeviceError, match=r"has 0 \(none\)"):
            sn.data_parallel(model, cluster, devices=none)
    with pytest.raises(sn.DeclarationError, match="batch must be a whole number"):
        sn.data_parallel(model, cluster, batch=0)
    with pytest.raises(sn.DeviceError, match="there are 3 here"):
        sn.data_parallel(model, cluster, devices=9)
    with pytest.raises(sn.DeviceError, match="names 'gpu:0' 2 times"):
        sn.data_parallel(model, cluster, devices=["gpu:0", "gpu:1", "GPU:0"])
    with pytest.raises(sn.DeclarationError, match="'tabel', which is not an input"):
        sn.data_parallel(model, cluster, broadcast=["tabel"])
    fixed = keras.Input(batch_shape=(8, 4), name="fixed")
    with pytest.raises(sn.DeclarationError, match="fixed batch size"):
        sn.data_parallel(keras.Model(fixed, layers.Dense(2)(fixed)), cluster)
