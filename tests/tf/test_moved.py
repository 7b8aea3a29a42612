"""Saved on four devices, loaded on eight, two and one; planned for what is not here."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn

pytestmark = [pytest.mark.tf, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def test_training_goes_on_elsewhere_as_if_never_moved(tmp_path: Path) -> None:
    """Weights, statistics, seeds and slots equal those of the uninterrupted run."""
    for verb in ("leave", "arrive"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.tf.moved", verb, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]

    for count in (8, 2, 1):
        assert f"on {count}: as if never moved" in done.stdout
    assert "on 1: 1 part" in done.stdout or "parts moved." in done.stdout
    assert "gpu:3 -> " in done.stdout


def test_a_plan_for_eight_gpus_runs_on_a_laptop(cluster: sn.Cluster) -> None:
    """What is not here falls back with a receipt, and the numbers stay."""
    x = keras.Input((6,))
    branches = [layers.Dense(3, name=f"branch_{i}")(x) for i in range(8)]
    model = keras.Model(x, layers.Add(name="sum")(branches))
    box = sn.Cluster.of("8*gpu", "cpu", memory="16 GiB")
    pins = {f"branch_{i}": f"gpu:{i}" for i in range(8)} | {"sum": "cpu"}
    plan = sn.plan(model, box, batch=4, pins=pins, time_limit=0.1)
    with pytest.warns(UserWarning, match="was planned for gpu:7 and runs on") as seen:
        placed = sn.emit(model, plan)

    told = " ".join(str(one.message) for one in seen)
    for number in range(3, 8):
        assert f"planned for gpu:{number} " in told
    data = np.ones((4, 6), "float32")
    np.testing.assert_allclose(placed(data), model(data), rtol=1e-6)
    placed.compile("sgd", "mse")
    sn.audit(placed, plan, (data, np.ones((4, 3), "float32"))).check()
