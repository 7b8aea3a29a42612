"""Models that nobody declared: read, split where it hurts, and equal to themselves.

Every call is sent to another stand-in than the call before it, so that whatever can be
cut is cut: each tensor, mask, state and tied weight crosses. `benchmarks/zoo.py` has
the same models, and more, with the placements that the planner chooses.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import splitnet as sn
from tests.tf.models import MODELS, Subject
from tests.tf.test_transparency import assert_near

pytestmark = pytest.mark.tf

CHOSEN = (
    "stateful_recurrence",
    "words_from_strings",
    "bidirectional_stack",
    "variational_autoencoder",
    "prepared_columns",
    "graph_network",
    "gathered_by_operations",
    "layers_with_several_inputs",
    "nested_models",
    "shared_inside",
    "outputs_along_the_way",
    "numbers_of_other_kinds",
    "transformer_decoder",
    "transformer_encoder_decoder",
)


def two_steps(model: Any, one: Subject) -> list[np.ndarray]:
    """Outputs before, losses of, and outputs, weights and slots after two steps."""
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), one.loss)
    keras.utils.set_random_seed(1)
    seen = [model(one.x)]
    seen += [model.train_on_batch(one.x, one.y) for _ in range(2)]
    seen += [model(one.x), model.variables, model.optimizer.variables]
    return [np.asarray(number) for number in keras.tree.flatten(seen)]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_model_that_nobody_declared_stays_itself(
    name: str, cluster: sn.Cluster
) -> None:
    """Outputs, losses, weights and slots equal the model's to rounding; audited."""
    built = MODELS[name]()
    x, y = keras.tree.map_structure(tf.convert_to_tensor, (built.x, built.y))
    one = Subject(built.model, x, y, built.loss)
    graph = sn.read(one.model, batch=4)
    free = [c.part for c in graph.calls if not c.cpu_only and c.kind != "InputLayer"]
    turns = {part: f"gpu:{i % 3}" for i, part in enumerate(free)}
    plan = sn.plan(one.model, cluster, batch=4, pins=lambda part: turns.get(part.name))
    placed = sn.emit(one.model, plan)
    ours, theirs = (two_steps(model, one) for model in (placed, one.model))

    assert_near(ours, theirs, noise=1e-8)  # of the gradients of keys' biases
    assert set(plan.device_of.values()) >= {"gpu:0", "gpu:1", "gpu:2"}
    sn.audit(placed, plan, (one.x, one.y)).check()


READERS = {
    "normalization": lambda x: keras.layers.BatchNormalization(name="reader")(x),
    "attention": lambda x: keras.layers.MultiHeadAttention(2, 4, name="reader")(x, x),
}
# Where the first reader, and then two sums that read the same tensor, are.
PLACES = (("gpu:1", "gpu:2", "gpu:0"), ("gpu:1", "gpu:1", "gpu:1"))


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("kind", READERS)
def test_gradients_of_several_reads_over_devices_are_equal(
    kind: str, places: tuple[str, ...], cluster: sn.Cluster
) -> None:
    """A call may read a tensor several times that calls elsewhere read as well."""
    keras.utils.set_random_seed(3)
    first = keras.Input((5, 8))
    read = keras.layers.Dense(8, name="made")(first)
    found = keras.layers.Add(name="one")([read, READERS[kind](read)])
    found = keras.layers.Add(name="two")([found, read])
    model = keras.Model(first, keras.layers.Dense(2, name="head")(found))
    x, y = (tf.random.stateless_normal((13, 5, n), (n, 1)) for n in (8, 2))
    one = Subject(model, x, y, "mse")
    pins = dict(zip(("reader", "one", "two"), places)) | {"made": "gpu:0"}
    plan = sn.plan(model, cluster, batch=13, pins=pins | {"head": "gpu:2"})
    placed = sn.emit(model, plan)
    ours, theirs = (two_steps(model, one) for model in (placed, one.model))

    assert_near(ours, theirs, noise=1e-8)  # of the gradients of keys' biases
    sn.audit(placed, plan, (x, y)).check()


def test_sums_of_gradients_meet_where_their_tensor_was_made(
    cluster: sn.Cluster,
) -> None:
    """An addition hands its gradient on without an op that would say where it is."""
    first = keras.Input((5, 16))
    found = keras.layers.Dense(16, name="enter")(first)
    for i in range(3):
        mixed = keras.layers.LayerNormalization(name=f"norm_{i}")(found)
        mixed = keras.layers.Dense(16, name=f"mix_{i}")(mixed)
        found = keras.layers.Add(name=f"sum_{i}")([found, mixed])
    model = keras.Model(first, keras.layers.Dense(2, name="head")(found))
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


def test_gradients_of_shared_weights_over_devices_are_equal(
    cluster: sn.Cluster,
) -> None:
    """A head that reads five levels, each on another device than the one before."""
    keras.utils.set_random_seed(3)
    level = first = keras.Input((8,))
    inner, outer = keras.layers.Dense(9, "tanh"), keras.layers.Dense(6, "tanh")
    found = []
    for i in range(5):
        level = keras.layers.Dense(8, "tanh", name=f"level_{i}")(level)
        found.append(outer(inner(keras.layers.LayerNormalization()(level))))
    model = keras.Model(first, keras.layers.Concatenate()(found))
    parts = [call.part for call in sn.read(model, batch=13).calls][1:]
    turns = {part: f"gpu:{i % 3}" for i, part in enumerate(parts)}
    plan = sn.plan(model, cluster, batch=13, pins=lambda part: turns.get(part.name))
    x, y = (tf.random.stateless_normal((13, n), (n, 1)) for n in (8, 30))
    placed = sn.emit(model, plan)
    ours, theirs = (
        two_steps(one, Subject(model, x, y, "mse")) for one in (placed, model)
    )

    assert_near(ours, theirs, noise=1e-8)  # of the gradients of keys' biases
    sn.audit(placed, plan, (x, y)).check()


class Centred(keras.layers.Layer):
    """Takes off a mean that each call in training moves first."""

    def build(self, shape: Any) -> None:
        """Make the mean."""
        self.mean = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False
        )

    def call(self, x: Any, training: bool = False) -> Any:
        """Assign, and read what was assigned."""
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(x, 0))
        return x - self.mean


def test_no_gradient_flows_through_a_state_that_is_away(cluster: sn.Cluster) -> None:
    """As in plain Keras, which reads a variable again after an assignment."""
    keras.utils.set_random_seed(3)
    first, centred = keras.Input((6,)), Centred(name="c")
    found = keras.layers.Dense(5, name="d")(centred(keras.layers.Dense(5)(first)))
    model = keras.Model(first, keras.layers.Dense(2, name="e")(centred(found)))
    x, y = (tf.random.stateless_normal((4, n), (n, 1)) for n in (6, 2))
    pins = {"c": "gpu:1", "c@2": "gpu:0", "d": "gpu:2"}
    placed = sn.emit(model, sn.plan(model, cluster, batch=4, pins=pins))
    ours, theirs = (
        two_steps(one, Subject(model, x, y, "mse")) for one in (placed, model)
    )

    assert_near(ours, theirs)
