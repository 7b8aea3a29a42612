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
from tests.tf.test_transparency import assert_near

pytestmark = pytest.mark.tf


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def emitted(model: Any, cluster: sn.Cluster, **pins: str) -> tuple[Any, Any]:
    """A Keras model placed, and its plain copy."""
    plan = sn.plan(model, cluster, batch=4, pins=pins, time_limit=0.1)
    placed = sn.emit(model, plan)
    return placed, sn.unplace(placed)


def compiled(*models: Any) -> None:
    """Compile with SGD, whose steps are as near as the gradients are."""
    for model in models:
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")


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


@pytest.mark.parametrize("kind", ["dropout", "batch_norm", "both"])
def test_two_calls_of_one_layer_with_state_do_not_wait_for_each_other(
    kind: str, cluster: sn.Cluster
) -> None:
    """A shared seed or moving average orders small updates only, and is exact."""
    keras.utils.set_random_seed(1)
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    shared = [layers.Dense(5, "tanh", name="dense")]
    if kind != "batch_norm":
        shared.append(layers.Dropout(0.5, seed=3, name="drop"))
    if kind != "dropout":
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


def test_a_tensor_crosses_once_to_each_device_and_its_gradient_back_once(
    cluster: sn.Cluster,
) -> None:
    """Two readers on one device share a copy; their gradients are summed there."""
    x = keras.Input((6,), name="x")
    body = layers.Dense(5, name="body")(x)
    sides = [layers.Dense(4, name=f"side{i}")(body) for i in range(3)]
    model = keras.Model(x, layers.Concatenate(name="join")(sides))
    placed, _ = emitted(
        model, cluster, body="gpu:0", side0="gpu:1", side1="gpu:1", side2="gpu:2",
        join="gpu:1",
    )  # fmt: skip
    compiled(placed)

    audit = sn.audit(placed, None, (numbers(4, 6), numbers(4, 12))).check()

    one = 4 * 5 * 4
    for device in ("gpu:1", "gpu:2"):
        assert audit.moved["gpu:0", device, "activation"] == (one, one)
        assert audit.moved[device, "gpu:0", "gradient"] == (one, one)


def changed(model: Any, how: str) -> None:
    """Change what a trace depends on."""
    dense, drop = model.get_layer("dense"), model.get_layer("drop")
    if how == "trainable":
        dense.trainable = False
    elif how == "rate":
        drop.rate = 0.0
    elif how == "lora":
        dense.enable_lora(2)
    elif how == "dtype":
        dense.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    compiled(model)


@pytest.mark.parametrize("how", ["trainable", "rate", "lora", "recompile", "dtype"])
def test_no_trace_is_stale_between_two_fits(how: str, cluster: sn.Cluster) -> None:
    """A change that plain Keras sees after compile() is seen by parts as well."""
    keras.utils.set_random_seed(1)
    x = keras.Input((6,), name="x")
    y = layers.Dense(5, "relu", name="dense")(x)
    y = layers.Dropout(0.5, seed=2, name="drop")(y)
    model = keras.Model(x, layers.Dense(1, name="head")(y))
    placed, plain = emitted(model, cluster, dense="gpu:0", drop="gpu:0", head="gpu:1")
    compiled(placed, plain)
    for one in (placed, plain):
        one.fit(numbers(8, 6), numbers(8, 1), batch_size=4, shuffle=False, verbose=0)
        keras.utils.set_random_seed(1)
        changed(one, how)
        one.fit(numbers(8, 6), numbers(8, 1), batch_size=4, shuffle=False, verbose=0)

    assert_near(placed.get_weights(), plain.get_weights())


def test_a_placed_model_runs_inside_a_dataset(cluster: sn.Cluster) -> None:
    """`dataset.map` of a placed model gives the outputs of the plain one."""
    x = keras.Input((6,), name="x")
    y = layers.Dense(5, "relu", name="dense")(x)
    model = keras.Model(x, layers.Dense(1, name="head")(y))
    placed, plain = emitted(model, cluster, dense="gpu:0", head="gpu:1")
    data = tf.data.Dataset.from_tensor_slices(numbers(8, 6)).batch(4)

    ours, theirs = (list(data.map(one)) for one in (placed, plain))
    assert_near(ours, theirs)


def test_partial_batches_and_prediction_trace_as_often_as_keras(
    cluster: sn.Cluster,
) -> None:
    """A part is traced when its step is, and at no other time."""
    traced: list[str] = []

    class Counting(layers.Layer):
        def call(self, inputs: Any) -> Any:
            if not keras.config.backend() or tf.executing_eagerly():
                return inputs
            traced.append(self.name)
            return inputs * 2.0

    x = keras.Input((6,), name="x")
    y = layers.Dense(5, name="dense")(Counting(name="counting")(x))
    model = keras.Model(x, layers.Dense(1, name="head")(y))
    placed, plain = emitted(model, cluster, counting="gpu:0", dense="gpu:0", head="cpu")
    compiled(placed, plain)
    counts = []
    for one in (placed, plain):
        traced.clear()
        one.fit(numbers(100, 6), numbers(100, 1), batch_size=32, epochs=3, verbose=0)
        one.predict(numbers(50, 6), batch_size=16, verbose=0)
        counts.append(len(traced))

    assert counts[0] <= counts[1] + 1


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
            with sn.placement_scope(one), tf.GradientTape() as tape:
                loss = tf.reduce_mean(one(x, training=True) ** 2)
                loss += tf.reduce_mean(one.get_layer("keeps").scores ** 2)
            return tape.gradient(loss, [v.value for v in one.trainable_variables])

        return step(tf.constant(numbers(4, 4)))

    assert_near(gradients(placed), gradients(plain))


def test_losses_inside_parts_count_once(cluster: sn.Cluster) -> None:
    """add_loss and an activity regularizer, as in plain Keras."""

    class Watches(layers.Layer):
        def call(self, inputs: Any) -> Any:
            self.add_loss(0.1 * keras.ops.mean(inputs**2))
            return inputs

    x = keras.Input((4,), name="x")
    y = layers.Dense(3, activity_regularizer="l2", name="dense")(x)
    model = keras.Model(x, layers.Dense(1, name="head")(Watches(name="watches")(y)))
    placed, plain = emitted(model, cluster, dense="gpu:0", watches="gpu:1", head="cpu")
    compiled(placed, plain)
    histories = [
        one.fit(numbers(8, 4), numbers(8, 1), batch_size=4, shuffle=False, verbose=0)
        for one in (placed, plain)
    ]

    assert histories[0].history.keys() == histories[1].history.keys()
    for name, values in histories[0].history.items():
        assert_near(values, histories[1].history[name])


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
def test_every_stage_keeps_the_order_of_its_schedule(
    schedule: str, cluster: sn.Cluster
) -> None:
    """Forward calls of a stage wait for those before; with 1f1b the last alternates."""
    net = sn.Net("stages")
    a = net.branch("a", net.input("x", (6,)), layers.Dense(5, "tanh"), on="gpu:0")
    net.output(net.branch("b", a, layers.Dense(1), on="gpu:1"))
    plan = sn.plan(net, cluster, batch=6)
    placed = sn.emit(net, plan, microbatches=3, schedule=schedule)
    compiled(placed)
    placed.fit(numbers(6, 6), numbers(6, 1), batch_size=6, verbose=0)

    made = calls(step_graph(placed))
    for device in ("CPU:1", "CPU:2"):
        here = [op for op in made if op.device.endswith(device)]
        forward = [op for op in here if "backward" not in function_of(op)]
        backward = [op for op in here if "backward" in function_of(op)]
        assert [len(forward), len(backward)] == [3, 3]
        assert all(waits_for(b, a) for a, b in zip(forward, forward[1:]))
        window = 2 if device == "CPU:1" else 1
        for m, one in enumerate(forward):
            done = [waits_for(one, other) for other in backward]
            expected = max(0, m - window + 1) if schedule == "1f1b" else 0
            assert done == [i < expected for i in range(3)]


class Recomputed(layers.Dense):
    """Keeps nothing for its backward pass."""

    def call(self, inputs: Any) -> Any:
        """A dense layer that is computed again in its gradient."""
        again = tf.recompute_grad(lambda x: tf.tanh(tf.matmul(x, self.kernel)))
        return again(inputs)


class Doubled(layers.Dense):
    """Has a gradient of its own: twice the true one, for its input and its weights."""

    def call(self, inputs: Any) -> Any:
        """A product whose gradients are doubled."""

        @tf.custom_gradient
        def doubled(x: Any) -> Any:
            def back(dy: Any, variables: Any = None) -> Any:
                over_x = 2.0 * tf.matmul(dy, self.kernel, transpose_b=True)
                return over_x, [2.0 * tf.matmul(x, dy, transpose_a=True)]

            return tf.matmul(x, self.kernel), back

        return doubled(inputs)


class Compiled(layers.Dense):
    """Calls a function of its own, which is traced once."""

    def build(self, shape: Any) -> None:
        """Make the function with the weights."""
        super().build(shape)
        self.function = tf.function(lambda x: tf.tanh(tf.matmul(x, self.kernel)))

    def call(self, inputs: Any) -> Any:
        """What the function gives."""
        return self.function(inputs)


OWN = [
    (kind, how) for kind in (Recomputed, Doubled, Compiled) for how in ("", "towers")
]
OWN += [(Recomputed, "recompute"), (Doubled, "recompute"), (Doubled, "microbatches")]


@pytest.mark.parametrize(("kind", "how"), OWN)
def test_a_gradient_of_a_layers_own_reaches_weights_of_another_device(
    kind: type, how: str, cluster: sn.Cluster
) -> None:
    """Such a gradient knows variables, and no values that a function captures."""
    keras.utils.set_random_seed(1)
    net = sn.Net("shared")
    x, shared = net.input("x", (6,)), kind(6, use_bias=False, name="shared")
    if how == "towers":
        here = net.towers("here", x, shared, on=["gpu:0", "gpu:1"])
    else:
        here = net.branch("here", x, shared, on="gpu:0")
        here = net.branch("there", here, shared, on="gpu:1")
    head = layers.Dense(1, use_bias=False, name="out")
    net.output(net.branch("head", here, head, on="gpu:1"))
    option = {"recompute": True, "microbatches": 2}
    options = {how: option[how]} if how in option else {}
    placed = sn.emit(net, sn.plan(net, cluster, batch=8), **options)
    plain = sn.unplace(placed)
    compiled(placed, plain)
    for one in (placed, plain):
        one.fit(numbers(16, 6), numbers(16, 1), batch_size=8, shuffle=False, verbose=0)
        one.evaluate(numbers(16, 6), numbers(16, 1), batch_size=8, verbose=0)

    assert_near(placed.get_weights(), plain.get_weights())
    if how != "microbatches":  # each of which reads such weights itself
        sn.audit(placed, None, (numbers(8, 6), numbers(8, 1))).check()
