"""Emitted models: whose layers they have, when memory is used, how they run."""

import gc
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn
from splitnet.planner.evaluate import score
from tests.tf.emitted import devices, emitted
from tests.tf.zoo import BATCH, ZOO, Case, numbers, two_branches

pytestmark = [
    pytest.mark.tf,  # and what Keras makes NumPy say of its variables:
    pytest.mark.filterwarnings("ignore:__array__ impl:DeprecationWarning"),
]


def test_emit_leaves_the_layers_of_the_net_alone(cluster: sn.Cluster) -> None:
    """The user's layers are neither built nor called, before or after emission."""
    mine = [layers.Dense(4, name="l"), layers.LSTM(4, name="r"), layers.Dropout(0.5)]
    net = sn.Net("mine")
    x = net.input("x", (3, 4))
    a = net.branch("a", x, [mine[0], mine[2]], on="gpu:0")
    b = net.branch("b", a, mine[1], on="gpu:1")
    net.output(b)
    before = [dict(vars(layer)) for layer in mine]
    model = emitted(Case(net, None, None), cluster)

    assert not any(layer.built for layer in mine[:2])
    assert [set(vars(layer)) for layer in mine] == [set(one) for one in before]
    assert [layer._inbound_nodes for layer in mine] == [[], [], []]
    assert model.get_layer("l") is not mine[0]


def test_emit_leaves_the_garbage_collector_as_it_was(cluster: sn.Cluster) -> None:
    """It is paused for the copies; on or off before, it is so again afterwards."""
    case = two_branches(layers.Dense(4, name="l"), layers.Dense(4, name="r"))
    try:
        for turn in (gc.disable, gc.enable):
            turn()
            before = gc.isenabled()
            emitted(case, cluster)
            assert gc.isenabled() is before
    finally:
        gc.enable()


def test_emit_twice_gives_independent_models_that_start_equal(
    cluster: sn.Cluster,
) -> None:
    """Two emissions have the same values, and training one leaves the other."""
    case = two_branches(layers.Dense(4), layers.Dense(4))
    one, other = emitted(case, cluster), emitted(case, cluster)
    first = one.get_weights()
    for mine, its in zip(first, other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)
    one.compile("sgd", "mse")
    one.fit(case.x, case.y, verbose=0)

    assert any(np.any(a != b) for a, b in zip(first, one.get_weights()))
    for mine, its in zip(first, other.get_weights()):
        np.testing.assert_array_equal(mine, its)


def test_emit_starts_as_the_same_layers_start_in_plain_keras(
    cluster: sn.Cluster,
) -> None:
    """A model built by hand from the very same layers trains bit for bit alike."""
    image, tell = layers.Conv2D(3, 3, name="see"), layers.LSTM(4, name="tell")
    drop, head = layers.Dropout(0.4, seed=7), layers.Dense(2, name="head")
    net = sn.Net("by_hand")
    x, y = net.input("image", (6, 6, 2)), net.input("words", (5, 3))
    see = [image, layers.GlobalAveragePooling2D(), drop]
    a = net.branch("a", x, see, on="gpu:0")
    b = net.branch("b", y, tell, on="gpu:1")
    net.output(
        net.branch("head", net.merge("j", [a, b], layers.Concatenate()), head, on="cpu")
    )
    placed = emitted(Case(net, None, None), cluster)

    inputs = [keras.Input((6, 6, 2)), keras.Input((5, 3))]
    seen = drop(layers.GlobalAveragePooling2D()(image(inputs[0])))
    joined = layers.Concatenate()([seen, tell(inputs[1])])
    plain = keras.Model(inputs, head(joined))
    data = [numbers(6, 6, 2), numbers(5, 3)], numbers(2, seed=1)
    losses = []
    for model in (placed, plain):
        model.compile("adam", "mse")
        history = model.fit(*data, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])

    assert losses[0] == losses[1]
    for mine, its in zip(placed.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_emit_keeps_names_and_order_of_weights(dense: Any) -> None:
    """Layers have the user's names; weights stand in plain Keras' order."""
    plain = sn.unplace(dense)

    assert [v.path for v in dense.variables] == [v.path for v in plain.variables]
    assert type(dense) is type(plain)
    assert {"l", "r"} <= {layer.name for layer in dense.layers}


def test_emit_puts_weights_on_their_devices(dense: Any) -> None:
    """Variables are born where their branch is."""
    assert devices(dense.get_layer("l").variables) == ["CPU:1", "CPU:1"]
    assert devices(dense.get_layer("r").variables) == ["CPU:2", "CPU:2"]


def test_emit_shares_the_weights_of_a_shared_layer(cluster: sn.Cluster) -> None:
    """One layer in three branches has one kernel and one bias."""
    model = emitted(ZOO["triplet"](), cluster)

    assert len(model.weights) == 4
    assert set(devices(model.weights)) == {"CPU:1"}


def test_emit_names_outputs_for_branches_or_as_told(cluster: sn.Cluster) -> None:
    """Names given to net.output name losses; others are named by their branch."""
    net = sn.Net("outputs")
    x = net.input("x", (4,))
    net.output(net.branch("größe: a", x, layers.Dense(1)))
    net.output(net.branch("b", x, layers.Dense(1)), "price")
    model = emitted(Case(net, None, None), cluster)

    assert model.output_names == ["gr__e__a", "price"]


def test_emit_of_a_compiled_model_keeps_optimizer_state(cluster: sn.Cluster) -> None:
    """A model placed in the middle of training goes on as if it had not been."""
    x, y = numbers(4), numbers(2, seed=1)
    plain = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, name="a"), layers.Dense(2, name="b")]
    )
    plain.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    pins = {"a": "gpu:0", "b": "gpu:1"}
    plain.fit(x, y, shuffle=False, verbose=0)
    placed = sn.emit(plain, sn.plan(plain, cluster, pins=pins, time_limit=0.1))
    ours, theirs = (
        m.fit(x, y, shuffle=False, verbose=0).history for m in (placed, plain)
    )

    assert ours == theirs
    assert int(placed.optimizer.iterations) == 2


def test_emit_on_one_device_is_transparent(cluster: sn.Cluster) -> None:
    """A plan that puts everything on the CPU runs and audits like any other."""
    case = two_branches(layers.Dense(4), layers.Dense(4))
    graph = sn.read(case.net, batch=BATCH)
    plan = score(graph, cluster, dict.fromkeys(graph.part, "cpu:0"))
    model = sn.emit(case.net, plan)
    model.compile("adam", "mse")
    audit = sn.audit(model, plan, (case.x, case.y)).check()

    assert sum(actual for _, actual in audit.moved.values()) == 0


def test_emit_spares_cudnn_on_the_cpu(cluster: sn.Cluster) -> None:
    """Keras picks cuDNN where any GPU is; a recurrent branch on the CPU must not."""
    net = sn.Net("rnn")
    x = net.input("x", (4, 3))
    home = layers.Bidirectional(layers.LSTM(2, name="inner"), name="home")
    a = net.branch("a", x, home, on="cpu")
    b = net.branch("b", x, layers.GRU(4, name="away"), on="gpu:0")
    net.output(net.merge("m", [a, b], layers.Add()))
    model = emitted(Case(net, None, None), cluster)

    assert model.get_layer("home").forward_layer.use_cudnn is False
    assert model.get_layer("home").backward_layer.use_cudnn is False
    assert model.get_layer("away").use_cudnn == "auto"


def test_emit_refuses_a_plan_of_another_model(cluster: sn.Cluster) -> None:
    """The message lists what only one of them has."""
    one = two_branches(layers.Dense(4, name="p"), layers.Dense(4, name="q"))
    other = two_branches(
        [layers.Dense(4, name="p"), layers.ReLU(name="extra")],
        layers.Dense(4, name="q"),
    )
    plan = sn.plan(one.net, cluster, batch=BATCH, time_limit=0.1)

    with pytest.raises(sn.DeclarationError, match="'left/extra' is in the model only"):
        sn.emit(other.net, plan)


def test_emit_takes_a_rebuilt_net(cluster: sn.Cluster) -> None:
    """Layers that Keras has numbered on are matched by position and kind."""
    first = two_branches(layers.Dense(4), layers.Dense(4))
    again = two_branches(layers.Dense(4), layers.Dense(4))
    plan = sn.plan(first.net, cluster, batch=BATCH, time_limit=0.1)

    assert sn.emit(again.net, plan)(numbers(6)).shape == (13, 2)


def test_frozen_layers_stay_frozen(cluster: sn.Cluster) -> None:
    """A branch that does not train has neither gradients nor slots, and audits."""
    frozen = layers.Dense(4, name="frozen", trainable=False)
    case = two_branches(frozen, layers.Dense(4))
    model = emitted(case, cluster)
    model.compile("adam", "mse")
    before = model.get_layer("frozen").get_weights()
    model.fit(case.x, case.y, verbose=0)

    np.testing.assert_array_equal(before[0], model.get_layer("frozen").get_weights()[0])
    assert len(model.trainable_variables) == 4
    sn.audit(model, None, (case.x, case.y)).check()


class Guarded(layers.Layer):
    """A layer with a property of its own, and a part that does not train."""

    def __init__(self, gain: float = 1.0, **options: Any) -> None:
        self.before = "set before Keras' own"
        super().__init__(**options)
        self.inner = layers.Dense(2, trainable=False, name="i")
        self.gain = gain
        self.trainable = True  # says nothing new, and so leaves `inner` frozen
        self.table = {"of": [layers.Dense(3, name="t"), None]}

    @property
    def gain(self) -> float:
        """Twice what was given."""
        return self._gain

    @gain.setter
    def gain(self, value: float) -> None:
        self._gain = 2 * value

    def build(self, shape: Any) -> None:
        """Make all variables."""
        self.inner.build(shape)
        self.table["of"][0].build(shape)
        self.scale = self.add_weight(shape=(), name="scale")

    def call(self, x: Any) -> Any:
        """Use the parts."""
        return self.table["of"][0](x) + self.scale


def told(layer: Any) -> list[Any]:
    """What a layer and its parts say of themselves: attributes, variables, tracking."""
    if isinstance(layer, Guarded):
        layer.build((None, 2))
    return [
        (
            {k: v if type(v) in (bool, int, str) else type(v) for k, v in held.items()},
            [(v.name, v.trainable, tuple(v.shape)) for v in one.variables],
            [name for name in one._trackable_children() if name != "_tracker"],
        )
        for one in layer._flatten_layers()
        for held in [vars(one)]
    ]
