"""The main job, from the command line, on real data; and commands of this machine."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

import splitnet as sn
from splitnet.cli import commands
from splitnet.demo import DemoResult, pairs_of_digits
from splitnet.tf.runtime import devices
from tests.child import python

GIB = 2**30

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
compiled = keras.Model(x := keras.Input((4,)), {n: layers.Dense(3)(x) for n in "ab"})
compiled.compile("sgd", {"a": "mse", "b": "sparse_categorical_crossentropy"})
nothing = print("what a program prints")
def broken():
    return 1 / 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("program")
    (made / "program.py").write_text(PROGRAM)
    return made


def test_demo_learns_to_compare_held_out_digits(folder, monkeypatch):
    """On the devices that were planned, with two pictures, the plan, and no noise."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    words = ("-m", "splitnet", "demo", "--epochs", "1", "--out", "shown")
    done = python(*words, cwd=folder)
    accuracy = re.search(r"^validation accuracy ([\d.]+) %", done.stdout, re.MULTILINE)
    assert done.stderr == ""
    assert float(accuracy[1]) >= 94
    assert "\naudit: all as planned\n" in done.stdout
    assert "gpu:1" in (folder / "shown" / "placement.svg").read_text()
    assert (folder / "shown" / "placement.png").read_bytes().startswith(b"\x89PNG")
    where = sn.load_plan(folder / "shown" / "plan.json").device_of
    homes = {"left": "gpu:0", "right": "gpu:1", "distance": "cpu:0"}
    assert homes.items() <= where.items()


def test_demo_pairs_share_no_image():
    """No validation image is among the training images; half the pairs are alike."""
    (training, same), (validation, truth) = pairs_of_digits(seed=3)
    seen = {image.tobytes() for part in training for image in part}
    assert not any(image.tobytes() in seen for part in validation for image in part)
    assert 0.48 < same.mean() < 0.52
    assert truth.shape == (4_000, 1)
    assert training[0].dtype == np.float32
    assert training[0].max() <= 1.0
    assert np.array_equal(training[1], pairs_of_digits(seed=3)[0][0][1])
    for accuracy, as_planned in ((0.95, True), (0.93, True), (0.99, False)):
        result = DemoResult(SimpleNamespace(ok=as_planned), accuracy, 0.0, ())
        assert result.ok is (as_planned and accuracy > 0.94)


@pytest.fixture
def cli(cli, folder, cluster, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return cli


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan program.py:absent", "has no 'absent'. It has: broken, "),
        ("plan program.py:nothing", "neither a Net, a Keras model nor a Graph"),
        ("plan program.py:broken", "raised ZeroDivisionError: division by zero"),
        ("plan no.such.module:net", "there is no module 'no.such.module'"),
        ("plan none.keras", "there is no file 'none.keras'"),
        ("plan program.py", "cannot tell what 'program.py' is"),
        ("audit program.py:model --loss nope", "interpret loss identifier: nope. Give"),
        ("audit program.py:model --loss ctc", "'program.py:model': ValueError: Logits"),
        ("audit program.py:compiled --loss mse", "leave --optimizer and --loss out"),
        ("run --memory-fraction 3 program.py", "memory_fraction must be float"),
        ("config --check", "visible=(97,) (SPLITNET_VISIBLE): there is no GPU 97"),
    ],
)
def test_what_cannot_be_is_said(cli, monkeypatch, words, said):
    if words.startswith("plan"):
        words += " --cluster gpu,cpu"
    elif words.startswith("run"):
        monkeypatch.setenv("SPLITNET_MEMORY_FRACTION", "1")  # restored afterwards
    elif words.startswith("config"):
        monkeypatch.setenv("SPLITNET_VISIBLE", "97")
    printed = cli(words, 2)
    assert printed.out == ""
    assert said in printed.err
    assert "options.py" not in printed.err


def test_a_plan_takes_pins_and_an_audit_keeps_it(cli):
    """package.module:name, pins of a Keras model; sparse losses get class numbers."""
    words = "plan program:model --stand-ins 2 --pin told=gpu:1 -o model.json"
    cli(f"{words} --optimizer momentum")
    assert "gpu:1" in sn.load_plan("model.json").device_of.values()
    loss = "--loss sparse_categorical_crossentropy"
    words = f"audit program.py:model --plan model.json {loss}"
    assert "all as planned" in cli(words).out  # with the momentum of the plan
    assert cli("audit program.py:compiled --stand-ins 2 --json").answer["ok"]


def test_bench_times_the_plan_against_one_device(cli):
    """Medians, their ratio, what was predicted, and what stand-ins cannot tell."""
    for how, said in ("", "4 training steps"), ("--inference", "4 inference steps"):
        cli(f"plan program.py:net --gpus 2 -o gpus.json {how}")
        out, err = cli("bench program.py:net --plan gpus.json --stand-ins 2 --steps 4")
        assert err == "what a program prints\n"
        for part in (said, "one device ", "as planned ", "predicted ", "stand-ins"):
            assert part in out


def test_devices_lists_stand_ins(cli, monkeypatch):
    """Each with what it stands on, or all of a GPU's; settings against the machine."""
    out, err = cli("devices --stand-ins 2")
    assert err == ""
    assert "stand-in: /device:CPU:2" in out
    rows = {row["name"]: row for row in cli("devices --json").answer}
    assert rows["cpu:0"]["free_bytes"] > 0
    assert rows["cpu:0"]["stand_in"] is False
    monkeypatch.setenv("SPLITNET_VISIBLE", "none")
    assert "SPLITNET_VISIBLE" in cli("config --check").out
    card = {"model": "A100", "capability": "8.0", "memory_bytes": 80 * GIB}
    gpu = devices.Details(**card, busy=0.25, used_by=((4711, 20 * GIB),), links=(1,))
    here = sn.Cluster.of("gpu:0", memory="60 GiB")
    monkeypatch.setattr(commands, "local_devices", lambda _: here)
    monkeypatch.setattr(devices, "details_of", lambda _: {"gpu:0": gpu})
    out = cli("devices").out
    for figure in ("A100 (cc 8.0)", "60.0 GiB", "80.0 GiB", "25 %", "4711 (20.0 GiB)"):
        assert figure in out
    assert "gpu:1" in out
