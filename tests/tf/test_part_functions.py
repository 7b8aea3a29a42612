"""A part is a function on a device: what could go wrong with that, case by case."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import splitnet as sn
from splitnet.tf.placement.device_function import function_of, key_of_function
from splitnet.tf.placement.placed import placed_of
from tests.tf.check import assert_near


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def emitted(model: Any, cluster: sn.Cluster, **pins: str) -> tuple[Any, Any]:
    """A Keras model placed, and its plain copy."""
    plan = sn.plan(model, cluster, batch=4, pins=pins, time_limit=0.1)
    placed = sn.emit(model, plan)
    return placed, sn.unplace(placed)


def compiled(*models: Any) -> None:
    """Compile with SGD; the second, which is plain, to run eagerly."""
    for number, model in enumerate(models):
        sgd = keras.optimizers.SGD(0.05, momentum=0.9)
        model.compile(sgd, "mse", run_eagerly=number > 0)


def step_graph(model: Any) -> Any:
    """The graph of the training step that was traced last."""
    [graph] = [g for ref in placed_of(model).graphs if (g := ref()) is not None][-1:]
    return graph


def calls(graph: Any) -> list[Any]:
    """The calls of part functions in a graph, forward and backward."""
    return [op for op in graph.get_operations() if key_of_function(function_of(op))]


def waits_for(op: Any, other: Any) -> bool:
    """Whether an op reads, or waits for, what another made."""
    seen, ahead = set(), [op]
    while ahead:
        one = ahead.pop()
        if one is other:
            return True
        if one not in seen:
            seen.add(one)
            ahead += [*(t.op for t in one.inputs), *one.control_inputs]
    return False


def test_two_calls_of_one_layer_with_state_do_not_wait_for_each_other(
    cluster: sn.Cluster,
) -> None:
    """A shared seed or moving average orders small updates only, and is exact."""
    keras.utils.set_random_seed(1)
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    shared = [layers.Dense(5, "tanh", name="dense")]
    shared.append(layers.Dropout(0.5, seed=3, name="drop"))
    shared.append(layers.BatchNormalization(name="norm"))
    sides = []
    for x in (a, b):
        for layer in shared:
            x = layer(x)
        sides.append(x)
    model = keras.Model([a, b], layers.Dense(1, name="head")(sides[0] - sides[1]))
    pins = {layer.name: "gpu:0" for layer in shared}
    pins |= {f"{layer.name}@2": "gpu:1" for layer in shared}
    placed, plain = emitted(model, cluster, **pins, head="cpu:0")
    compiled(placed, plain)
    x, y = [numbers(8, 6), numbers(8, 6, seed=1)], numbers(8, 1, seed=2)
    for one in (placed, plain):
        one.fit(x, y, batch_size=4, shuffle=False, verbose=0)

    assert_near(placed.get_weights(), plain.get_weights())
    assert_near(
        [v.value for v in placed.non_trainable_variables],
        [v.value for v in plain.non_trainable_variables],
    )
    forward = [
        op for op in calls(step_graph(placed)) if "backward" not in function_of(op)
    ]
    first = next(op for op in forward if op.device.endswith("CPU:1"))
    second = next(op for op in forward if op.device.endswith("CPU:2"))
    assert not waits_for(second, first)
    assert not waits_for(first, second)


def test_gradients_run_where_the_forward_call_ran(cluster: sn.Cluster) -> None:
    """Also of parts without weights, with an unknown batch and integer inputs."""
    ids = keras.Input((3,), dtype="int32", name="ids")
    rows = layers.Embedding(7, 4, name="rows")(ids)
    flat = layers.Flatten(name="flat")(rows)
    twice = layers.Add(name="twice")([flat, flat])
    model = keras.Model(ids, layers.Dense(1, name="head")(twice))
    placed, plain = emitted(
        model, cluster, rows="gpu:0", flat="gpu:1", twice="gpu:2", head="cpu:0"
    )
    compiled(placed, plain)
    x = np.random.default_rng(0).integers(0, 7, (8, 3))
    for one in (placed, plain):
        one.fit(x, numbers(8, 1), batch_size=4, shuffle=False, verbose=0)

    assert_near(placed.get_weights(), plain.get_weights())
    device_of: dict[str, set[str]] = {}
    for op in calls(step_graph(placed)):
        key = key_of_function(function_of(op))
        device_of.setdefault(key, set()).add(op.device.rpartition(":")[2])
    assert sorted(device_of.values(), key=str) == [{"0"}, {"1"}, {"2"}, {"3"}]
    assert len(calls(step_graph(placed))) == 8


def change(model: Any, how: str) -> None:
    """Change what a trace depends on."""
    dense = model.get_layer("dense")
    dense.trainable = how != "trainable"
    if how == "rate":
        model.get_layer("drop").rate = 0.0
    elif how == "lora":
        dense.enable_lora(2)
    elif how == "dtype":
        dense.dtype_policy = keras.DTypePolicy("mixed_bfloat16")


def test_no_trace_is_stale_after_a_change(cluster: sn.Cluster) -> None:
    """What plain Keras sees after compile() is seen by parts as well."""
    keras.utils.set_random_seed(1)
    x = keras.Input((6,), name="x")
    y = layers.Dense(5, "relu", name="dense")(x)
    y = layers.Dropout(0.5, seed=2, name="drop")(y)
    model = keras.Model(x, layers.Dense(1, name="head")(y))
    placed, plain = emitted(model, cluster, dense="gpu:0", drop="gpu:0", head="gpu:1")
    x, y = numbers(8, 6), numbers(8, 1)
    for how in ("nothing", "rate", "trainable", "lora", "dtype"):
        for one in (placed, plain):
            keras.utils.set_random_seed(1)
            change(one, how)
            # Half precision is rounded at other places eagerly.
            eager = one is plain and how != "dtype"
            one.compile(keras.optimizers.SGD(0.05), "mse", run_eagerly=eager)
            one.fit(
                numbers(8, 6), numbers(8, 1), batch_size=4, shuffle=False, verbose=0
            )

        assert_near(placed.get_weights(), plain.get_weights())


class KeepsScores(layers.Layer):
    """Keeps a tensor of its call as an attribute, as attention layers do."""

    scores: Any = None

    def call(self, inputs: Any) -> Any:
        """Twice the input."""
        self.scores = keras.ops.tanh(inputs)
        return inputs + self.scores


def test_a_tensor_that_a_layer_keeps_can_be_read_in_the_step(
    cluster: sn.Cluster,
) -> None:
    """A step of one's own adds what a layer keeps to the loss: as in plain Keras."""
    keras.utils.set_random_seed(1)
    x = keras.Input((4,), name="x")
    kept = KeepsScores(name="keeps")(layers.Dense(4, name="dense")(x))
    model = keras.Model(x, layers.Dense(1, name="head")(kept))
    placed, plain = emitted(model, cluster, dense="gpu:0", keeps="gpu:0", head="gpu:1")

    def gradients(one: Any) -> Any:
        @tf.function
        def step(x: Any) -> Any:
            with sn.placement_scope(one):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(one(x, training=True) ** 2)
                    loss += tf.reduce_mean(one.get_layer("keeps").scores ** 2)
                return tape.gradient(loss, [v.value for v in one.trainable_variables])

        return step(tf.constant(numbers(4, 4)))

    assert_near(gradients(placed), gradients(plain))


def test_a_part_that_leaves_its_device_and_comes_back_is_cut(
    cluster: sn.Cluster,
) -> None:
    """A function starts where something arrives, and ends where something leaves."""
    x = keras.Input((4,), name="x")
    a = layers.Dense(4, name="a")(x)
    b = layers.Dense(4, name="b")(a)
    away = layers.Dense(4, name="away")(a)
    back = layers.Add(name="back")([b, away])
    model = keras.Model(x, layers.Dense(1, name="head")(back))
    placed, _ = emitted(
        model, cluster, a="gpu:0", b="gpu:0", away="gpu:1", back="gpu:0", head="gpu:0"
    )

    found = [
        [node.operation.name for node in runner.segment.nodes]
        for runner in placed_of(placed).runners
    ]
    assert sorted(found) == [["a"], ["away"], ["b"], ["back", "head"]]


def test_a_long_part_runs_as_several_functions(cluster: sn.Cluster) -> None:
    """Cut where one tensor passes: what a function saved is freed when it has run."""
    x = entry = keras.Input((8,))
    for _ in range(12):
        x = layers.Add()([x, layers.Dense(8)(layers.LayerNormalization()(x))])
    model = keras.Model(entry, layers.Dense(1)(x))
    placed, plain = emitted(model, cluster, **{"*": "gpu:0"})
    runs = [runner.segment for runner in placed_of(placed).runners]
    compiled(placed, plain)
    data = numbers(4, 8), numbers(4, 1, seed=1)

    assert [len(run.nodes) for run in runs] == [9, 9, 9, 10]
    assert all(len(run.reads) == len(run.gives) == 1 for run in runs)
    for _ in range(2):
        assert_near(placed.train_on_batch(*data), plain.train_on_batch(*data))


@pytest.mark.parametrize("option", [{}, {"recompute": True}])
def test_weights_of_another_device_are_read_once_a_step(
    option: dict[str, Any], cluster: sn.Cluster
) -> None:
    """A shared layer's weights cross once; micro-batches share the copy."""
    keras.utils.set_random_seed(1)
    net = sn.Net("shared")
    x = net.input("x", (6,))
    dense = layers.Dense(6, "tanh", name="dense")
    here = net.branch("here", x, dense, on="gpu:0")
    there = net.branch("there", here, dense, on="gpu:1")
    net.output(net.branch("head", there, layers.Dense(1, name="out"), on="gpu:1"))
    plan = sn.plan(net, cluster, batch=8)
    placed = sn.emit(net, plan, microbatches=4, **option)
    plain = sn.unplace(placed)
    compiled(placed, plain)
    for one in (placed, plain):
        one.fit(numbers(8, 6), numbers(8, 1), batch_size=8, shuffle=False, verbose=0)

    assert_near(placed.get_weights(), plain.get_weights())
    audit = sn.audit(placed, None, (numbers(8, 6), numbers(8, 1))).check()
    assert audit.moved["gpu:0", "gpu:1", "weights"][1] == 4 * (6 * 6 + 6)


def test_each_stage_is_traced_once_for_all_micro_batches(cluster: sn.Cluster) -> None:
    """Eight pieces call two traces, forward and backward, in their order."""
    net = sn.Net("chain")
    x = net.input("x", (6,))
    first = net.branch("first", x, [layers.Dense(6, "relu")] * 1, on="gpu:0")
    net.output(net.branch("second", first, layers.Dense(1), on="gpu:1"))
    placed = sn.emit(net, sn.plan(net, cluster, batch=16), microbatches=8)
    compiled(placed)
    placed.fit(numbers(16, 6), numbers(16, 1), batch_size=16, verbose=0)

    found = calls(step_graph(placed))
    assert len(found) == 2 * 2 * 8
    assert len({function_of(op) for op in found}) == 4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_1f1b_bounds_the_micro_batches_in_flight(
    schedule: str, cluster: sn.Cluster
) -> None:
    """The third micro-batch starts when the first has come back to the first stage."""
    made = piped_calls([layers.Dense(5, "tanh")], schedule, cluster)
    window = 2 if schedule == "1f1b" else 3
    for forward, backward in made.values():
        assert [len(forward), len(backward)] == [3, 3]
        for m, one in enumerate(forward):
            done = [waits_for(one, other) for other in backward]
            assert done == [i <= m - window for i in range(3)]


def test_a_stage_of_several_functions_runs_one_micro_batch_after_the_other(
    cluster: sn.Cluster,
) -> None:
    """Its first function waits for its last; a stage of one function waits for none."""
    made = piped_calls([layers.Dense(5) for _ in range(20)], "gpipe", cluster)
    forward, _ = made["CPU:1"]
    first, last = forward[::2], forward[1::2]

    assert len(forward) == 6
    assert all(waits_for(b, a) for a, b in zip(last, first[1:]))
    forward, _ = made["CPU:2"]
    assert not any(waits_for(b, a) for a, b in zip(forward, forward[1:]))


def piped_calls(body: list[Any], schedule: str, cluster: sn.Cluster) -> Any:
    """Forward and backward calls by device, of three micro-batches."""
    net = sn.Net("stages")
    a = net.branch("a", net.input("x", (6,)), body, on="gpu:0")
    net.output(net.branch("b", a, layers.Dense(1), on="gpu:1"))
    plan = sn.plan(net, cluster, batch=6)
    placed = sn.emit(net, plan, microbatches=3, schedule=schedule)
    compiled(placed)
    placed.fit(numbers(6, 6), numbers(6, 1), batch_size=6, verbose=0)

    made = calls(step_graph(placed))
    found = {}
    for device in ("CPU:1", "CPU:2"):
        here = [op for op in made if op.device.endswith(device)]
        forward = [op for op in here if "backward" not in function_of(op)]
        found[device] = (forward, [op for op in here if op not in forward])
    return found


def test_a_placed_model_runs_inside_a_dataset(cluster: sn.Cluster) -> None:
    """`dataset.map` of a placed model gives the outputs of the plain one."""
    x = keras.Input((6,), name="x")
    y = layers.Dense(5, "relu", name="dense")(x)
    model = keras.Model(x, layers.Dense(1, name="head")(y))
    placed, plain = emitted(model, cluster, dense="gpu:0", head="gpu:1")
    data = tf.data.Dataset.from_tensor_slices(numbers(8, 6)).batch(4)

    ours, theirs = (list(data.map(one)) for one in (placed, plain))
    assert_near(ours, theirs)


def test_sums_of_gradients_meet_where_their_tensor_was_made(
    cluster: sn.Cluster,
) -> None:
    """An addition hands its gradient on without an op that would say where it is."""
    first = keras.Input((5, 16))
    found = layers.Dense(16, name="enter")(first)
    for i in range(3):
        mixed = layers.LayerNormalization(name=f"norm_{i}")(found)
        mixed = layers.Dense(16, name=f"mix_{i}")(mixed)
        found = layers.Add(name=f"sum_{i}")([found, mixed])
    model = keras.Model(first, layers.Dense(2, name="head")(found))
    names = [call.part for call in sn.read(model, batch=13).calls][1:]
    pins = {name: f"gpu:{at}" for name, at in zip(names, map(int, "02012001012"))}
    plan = sn.plan(model, cluster, batch=13, pins=pins)
    placed = sn.emit(model, plan)
    placed.compile("adam", "mse")
    x, y = (tf.random.stateless_normal((13, 5, n), (n, 1)) for n in (16, 2))

    audit = sn.audit(placed, plan, (x, y)).check()
    sent = {key: moved for key, moved in audit.moved.items() if key[2] == "gradient"}
    assert sent["gpu:1", "gpu:0", "gradient"][1] >= 13 * 5 * 16 * 4
    assert sent.get(("gpu:1", "gpu:2", "gradient"), (0, 0)) == (0, 0)


def test_uneven_batches_are_traced_as_often_as_by_keras(cluster: sn.Cluster) -> None:
    """1,000 samples by 32 for three epochs, then a prediction by another batch."""
    traced: list[str] = []

    @keras.saving.register_keras_serializable("traces")
    class Counted(layers.Dense):
        def call(self, inputs: Any, training: Any = None) -> Any:
            traced.append("symbolic" if tf.executing_eagerly() else "graph")
            return super().call(inputs)

    x = keras.Input((6,))
    model = keras.Model(x, Counted(1)(x))
    counts = []
    for one in (model, sn.emit(model, sn.plan(model, cluster, batch=32))):
        compiled(one)
        traced.clear()
        one.fit(numbers(1000, 6), numbers(1000, 1), batch_size=32, epochs=3, verbose=0)
        one.predict(numbers(50, 6), batch_size=25, verbose=0)
        counts.append(traced.count("graph"))

    plain, placed = counts
    assert 0 < placed <= plain + 1
