"""Models that nobody declared: read, split where it hurts, and equal to themselves.

Every call is sent to another stand-in than the call before it, so that whatever can be
cut is cut: each tensor, mask, state and tied weight crosses. `benchmarks/zoo.py` has
the same models, and more, on the roads that the planner chooses.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import splitnet as sn
from tests.tf.models import MODELS, Subject
from tests.tf.zoo import exactly

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
)

# One call reads twice what is read on another device too: see docs/placement.md.
ROUNDED = ("shared_inside", "variational_autoencoder")


def two_steps(model: Any, one: Subject) -> list[np.ndarray]:
    """Outputs before, losses of, and outputs, weights and slots after two steps."""
    model.compile("adam", one.loss)
    keras.utils.set_random_seed(1)
    seen = [model(one.x)]
    seen += [model.train_on_batch(one.x, one.y) for _ in range(2)]
    seen += [model.predict_on_batch(one.x), model.variables, model.optimizer.variables]
    return [np.asarray(number) for number in keras.tree.flatten(seen)]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_model_that_nobody_declared_stays_itself(
    name: str, cluster: sn.Cluster
) -> None:
    """Outputs, losses, weights and slots are the given model's, to the bit; audited."""
    built = MODELS[name]()
    x, y = keras.tree.map_structure(tf.convert_to_tensor, (built.x, built.y))
    one = Subject(built.model, x, y, built.loss)
    graph = sn.read(one.model, batch=4)
    free = [c.part for c in graph.calls if not c.cpu_only and c.kind != "InputLayer"]
    turns = {part: f"gpu:{i % 3}" for i, part in enumerate(free)}
    plan = sn.plan(one.model, cluster, batch=4, pins=lambda part: turns.get(part.name))
    placed = sn.emit(one.model, plan)
    with exactly():
        ours, theirs = (two_steps(model, one) for model in (placed, one.model))

    for mine, its in zip(ours, theirs, strict=True):
        if name in ROUNDED:
            np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(mine, its)
    assert set(plan.device_of.values()) >= {"gpu:0", "gpu:1", "gpu:2"}
    sn.audit(placed, plan, (one.x, one.y)).check()
