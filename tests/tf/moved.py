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
from tests.tf.zoo import exactly

BATCH, STEPS = 4, 3


def data() -> tuple[Any, Any]:
    """Three batches of small pictures."""
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(BATCH * STEPS, 32, 32, 3)).astype("float32")
    return pictures, rng.integers(0, 5, BATCH * STEPS)


def fit(model: Any) -> list[np.ndarray]:
    """Three steps: the loss, and every variable of the model and its optimizer."""
    with exactly():
        made = model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
    found = [*model.variables, *model.optimizer.variables]
    return [np.asarray(made.history["loss"]), *(np.asarray(v) for v in found)]


def leave(folder: Path) -> None:
    """Train on four stand-ins, save model and plan, train on, keep the outcome."""
    cluster = sn.local_cluster(stand_in_gpus=4)
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNet(
        weights=None, input_shape=(32, 32, 3), alpha=0.25, classes=5
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    plan = sn.plan(model, cluster, batch=BATCH, contiguity="pipeline", time_limit=1)
    placed = sn.emit(model, plan)
    fit(placed)
    placed.save(folder / "model.keras")
    plan.save(folder / "plan.json")
    np.savez(folder / "after.npz", *fit(placed))


def arrive(folder: Path) -> None:
    """Load on other machines, plan again, say what moved, train on: the same."""
    sn.local_cluster(stand_in_gpus=8)
    before = sn.load_plan(folder / "plan.json")
    wanted = list(np.load(folder / "after.npz").values())
    for count in (8, 2, 1):
        few = sn.local_cluster(stand_in_gpus=count)
        loaded = keras.models.load_model(folder / "model.keras")
        plan = sn.plan(loaded, few, batch=BATCH, contiguity="pipeline", time_limit=1)
        placed = sn.emit(loaded, plan)
        print(f"on {count}: {before.compare(plan)}")
        for mine, theirs in zip(fit(placed), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        pictures, labels = data()
        sn.audit(placed, plan, (pictures[:BATCH], labels[:BATCH])).check()
        print(f"on {count}: as if never moved")


if __name__ == "__main__":
    {"leave": leave, "arrive": arrive}[sys.argv[1]](Path(sys.argv[2]))
