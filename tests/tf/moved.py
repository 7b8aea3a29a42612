"""A model of keras.applications trained on four devices, moved to 8, 2 and 1.

Run by `test_moved.py`, a process for each machine: a process makes its devices once.

    python -m tests.tf.moved leave FOLDER      # four stand-ins: train, save, train on
    python -m tests.tf.moved arrive FOLDER     # eight: load for 8, 2 and 1, train on
"""

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import splitnet as sn

BATCH, STEPS = 4, 2


def data() -> tuple[Any, Any]:
    """Batches of small pictures."""
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(BATCH * STEPS, 32, 32, 3)).astype("float32")
    return pictures, rng.integers(0, 5, BATCH * STEPS)


def state(model: Any) -> list[np.ndarray]:
    """Every variable of the model, its seeds too, and every one of its optimizer."""
    return [np.asarray(v) for v in [*model.variables, *model.optimizer.variables]]


def fit(model: Any) -> list[np.ndarray]:
    """An epoch: the loss, and the state after it."""
    made = model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
    return [np.asarray(made.history["loss"]), *state(model)]


def leave(folder: Path) -> None:
    """Train on four stand-ins, save model and plan, train on, keep the outcome."""
    cluster = sn.local_cluster(stand_in_gpus=4)
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNet(
        weights=None, input_shape=(32, 32, 3), alpha=0.25, dropout=0.3, classes=5
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    plan = sn.plan(model, cluster, batch=BATCH, objective="memory", time_limit=0.2)
    placed = sn.emit(model, plan)
    fit(placed)
    placed.save(folder / "model.keras")
    plan.save(folder / "plan.json")
    np.savez(folder / "saved.npz", *state(placed))
    np.savez(folder / "after.npz", *fit(placed))


def arrive(folder: Path) -> None:
    """Load on other machines, plan again, say what moved, train on: the same."""
    sn.local_cluster(stand_in_gpus=8)
    before = sn.load_plan(folder / "plan.json")
    saved, after = (
        list(np.load(folder / name).values()) for name in ("saved.npz", "after.npz")
    )
    for count in (8, 2, 1):
        few = sn.local_cluster(stand_in_gpus=count)
        loaded = keras.models.load_model(folder / "model.keras")
        for variable, value in zip(loaded.variables, saved):
            if "seed" in variable.path:  # Keras keeps none in a file
                variable.assign(value)
        plan = sn.plan(loaded, few, batch=BATCH, objective="memory", time_limit=0.2)
        placed = sn.emit(loaded, plan)
        print(f"on {count}: {', '.join(sorted(set(plan.device_of.values())))}")
        print(before.compare(plan))
        same(state(placed), saved)
        same(fit(placed), after)
        assert len({v.value.device for v in placed.trainable_variables}) > 1
        print(f"on {count}: as if never moved")


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """Bit for bit."""
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine, its)


if __name__ == "__main__":
    {"leave": leave, "arrive": arrive}[sys.argv[1]](Path(sys.argv[2]))
