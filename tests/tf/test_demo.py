"""The main job, from the command line, on real data; and the commands that run models.

Each command runs in a Python of its own, as TensorFlow starts once per process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from splitnet.demo import pairs_of_digits

pytestmark = pytest.mark.tf

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import keras
from keras import layers
import splitnet as sn

def net():
    net = sn.Net("small")
    x = net.input("x", (4,))
    left = net.branch("left", x, layers.Dense(3), on="gpu:0")
    right = net.branch("right", x, layers.Dense(3), on="gpu:1")
    net.output(net.merge("join", [left, right], layers.Add()))
    return net

def model():
    x = keras.Input((4,))
    words = keras.Input((6,), dtype="int32")
    told = layers.LSTM(3, name="told")(layers.Embedding(5, 3, name="seen")(words))
    joined = layers.Concatenate(name="joined")([layers.Dense(3, name="dense")(x), told])
    return keras.Model([x, words], layers.Dense(1, name="head")(joined))

nothing = 3
"""


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run splitnet in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "splitnet", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
        | {"PYTHONPATH": str(ROOT)},
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program in it."""
    made = tmp_path_factory.mktemp("program")
    (made / "program.py").write_text(PROGRAM)
    (made / "script.py").write_text(
        "import sys, json, os, tensorflow as tf\n"
        "print(json.dumps({'words': sys.argv[1:], 'name': __name__,"
        " 'gpus': len(tf.config.get_visible_devices('GPU')),"
        " 'cpus': len(tf.config.list_logical_devices('CPU')),"
        " 'threads': tf.config.threading.get_intra_op_parallelism_threads(),"
        " 'said': os.environ['SPLITNET_CPU_THREADS']}))\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    return made


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict:
    """The demonstration with one epoch fewer than usual, as JSON."""
    done = command(folder, "demo", "--epochs", "3", "--out", "shown", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) | {"stderr": done.stderr}


def test_demo_learns_to_compare_held_out_digits(shown: dict) -> None:
    """It tells pairs of digits that it has never seen."""
    assert shown["accuracy"] >= 0.94


def test_demo_ran_where_it_was_planned(shown: dict) -> None:
    """The audit has nothing to find, and the branches are on two devices."""
    assert shown["audit_ok"]
    assert shown["findings"] == []
    assert shown["device_of"]["left"] == "gpu:0"
    assert shown["device_of"]["right"] == "gpu:1"
    assert shown["device_of"]["distance"] == "cpu:0"


def test_demo_draws_and_saves(shown: dict, folder: Path) -> None:
    """Two pictures and the plan are where it says."""
    svg, png, plan = (folder / name for name in shown["files"])

    assert "gpu:1" in svg.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")
    assert json.loads(plan.read_text())["splitnet_plan"]


def test_demo_keeps_quiet_when_piped(shown: dict) -> None:
    """No start-up lines, no progress: stderr is empty."""
    assert shown["stderr"] == ""


def test_demo_on_fewer_devices_falls_back(folder: Path) -> None:
    """With one GPU the second branch falls back, and the audit is clean."""
    words = ("--epochs", "1", "--gpus", "1", "--out", "fewer")
    done = command(folder, "demo", *words)

    assert done.returncode in (0, 1), done.stderr
    assert "requested gpu:1" in done.stdout
    assert "audit: all as planned" in done.stdout
    assert "CPU devices stood in for GPUs, which cannot show:" in done.stdout


def test_demo_that_learns_too_little_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy or audit: one of them failing is enough."""
    from types import SimpleNamespace

    from splitnet.demo import Outcome

    def outcome(accuracy: float, *, ok: bool) -> Outcome:
        audit = SimpleNamespace(ok=ok)
        return Outcome((), None, audit, accuracy, 1, 0.0, 0.0, ())  # type: ignore[arg-type]  # stand-ins

    assert outcome(0.95, ok=True).ok
    assert not outcome(0.93, ok=True).ok
    assert not outcome(0.99, ok=False).ok


def test_demo_pairs_share_no_image() -> None:
    """No validation image is among the training images; half the pairs are alike."""
    (training, same), (validation, truth) = pairs_of_digits()

    seen = {image.tobytes() for part in training for image in part}
    assert not any(image.tobytes() in seen for part in validation for image in part)
    assert 0.48 < same.mean() < 0.52
    assert truth.shape == (4_000, 1)
    assert training[0].dtype == np.float32
    assert training[0].max() <= 1.0


def test_demo_pairs_are_the_same_for_the_same_seed() -> None:
    """Nothing about the data is left to chance."""
    one, other = pairs_of_digits(seed=3), pairs_of_digits(seed=3)

    assert np.array_equal(one[0][0][1], other[0][0][1])


def test_plan_of_a_program_uses_stand_ins(folder: Path) -> None:
    """file.py:name may be a function; stand-ins are made before its layers."""
    done = command(folder, "plan", "program.py:net", "--stand-ins", "2", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["device_of"]["right"] == "gpu:1"
    assert done.stderr == ""


def test_plan_of_a_module_takes_pins(folder: Path) -> None:
    """package.module:name, with a pin on a Keras model's layer."""
    words = ("plan", "program:model", "--cluster", "2*gpu,cpu", "--json")
    done = command(folder, *words, "--pin", "told=gpu:1")

    assert done.returncode == 0, done.stderr
    assert "gpu:1" in json.loads(done.stdout)["device_of"].values()


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("program.py:absent", "has no name 'absent'"),
        ("program.py:nothing", "neither a Net, a Keras model nor a Graph"),
        ("none.py:net", "there is no file 'none.py'"),
        ("no.such.module:net", "there is no module 'no.such.module'"),
        ("none.keras", "there is no file 'none.keras'"),
        ("program.py", "cannot tell what 'program.py' is"),
    ],
)
def test_targets_that_are_none_are_said(folder: Path, target: str, said: str) -> None:
    """Exit code 2 and words, whatever is wrong with a target."""
    done = command(folder, "plan", target, "--cluster", "gpu,cpu")

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_audit_runs_a_program_and_says_yes(folder: Path) -> None:
    """One step of a net on stand-ins, with synthetic data."""
    done = command(folder, "audit", "program.py:net", "--stand-ins", "2", "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == {"ok": True, "findings": []}


def test_audit_keeps_a_saved_plan(folder: Path) -> None:
    """A plan with stand-ins makes them, and the model keeps the plan."""
    saved = command(
        folder, "plan", "program.py:model", "--stand-ins", "2", "-o", "model.json"
    )
    assert saved.returncode == 0, saved.stderr

    done = command(folder, "audit", "program.py:model", "--plan", "model.json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "all as planned" in done.stdout


def test_run_starts_a_script_under_settings(folder: Path) -> None:
    """Flags become settings, the rest goes to the script, its exit code comes back."""
    words = (
        "--cpu",
        "--cpu-threads",
        "2",
        "--cpu-devices",
        "3",
        "script.py",
        "7",
        "-x",
    )
    done = command(folder, "run", *words)

    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == {
        "words": ["7", "-x"],
        "name": "__main__",
        "gpus": 0,
        "cpus": 3,
        "threads": 2,
        "said": "2",
    }


def test_devices_lists_stand_ins(folder: Path) -> None:
    """Each with what it stands on."""
    done = command(folder, "devices", "--stand-ins", "2")

    assert done.returncode == 0, done.stderr
    assert "stand-in: /device:CPU:2" in done.stdout
    assert done.stderr == ""


def test_devices_answers_programs(folder: Path) -> None:
    """Every device with its figures."""
    done = command(folder, "devices", "--json")

    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["cpu:0"]["free_bytes"] > 0
    assert rows["cpu:0"]["stand_in"] is False


def test_audit_takes_losses_of_class_numbers(folder: Path) -> None:
    """A sparse loss gets class numbers as targets."""
    words = ("--stand-ins", "2", "--loss", "sparse_categorical_crossentropy")
    done = command(folder, "audit", "program.py:model", *words)

    assert done.returncode == 0, done.stdout + done.stderr
