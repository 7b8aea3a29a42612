"""The commands about this machine: jobs side by side, and devices looked at again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from splitnet.cli import device_commands, main

pytestmark = pytest.mark.tf

GIB = 2**30

# What a machine with one GPU would be told, and then the command itself.
ONE_GPU = """
import sys
import tensorflow as tf
from splitnet.tf.runtime import configure
from splitnet.tf.runtime.nvml import Card

class Gpu:
    name, device_type = "/physical_device:GPU:0", "GPU"

gpu, config = Gpu(), tf.config
listed, logical = config.list_physical_devices, config.set_logical_device_configuration
config.told = {"limits": [], "visible": None}

def see(devices, device_type):
    config.told["visible"] = len(devices)

def divide(device, parts):
    if device is gpu:
        config.told["limits"] = [part.memory_limit for part in parts]
    else:
        logical(device, parts)

def physical(kind=None):
    return [gpu] if kind == "GPU" else listed(kind)

known = config.get_logical_device_configuration
config.list_physical_devices = physical
config.get_visible_devices = lambda kind=None: []
config.set_visible_devices = see
config.set_logical_device_configuration = divide
config.get_logical_device_configuration = lambda d: None if d is gpu else known(d)
config.experimental.get_memory_growth = lambda d: False
configure.cards = lambda: (Card(0, "card", "GPU-0", 80 * 2**30, 80 * 2**30),)

from splitnet.cli import main
sys.exit(main(["run", *sys.argv[1:]]))
"""

JOB = """
import json, os, sys
import tensorflow as tf
told = dict(tf.config.told)
told["arguments"] = sys.argv[1:]
told["file"] = os.path.basename(__file__)
told["omp"] = os.environ.get("OMP_NUM_THREADS")
told["threads"] = tf.config.threading.get_intra_op_parallelism_threads()
told["cpus"] = len(tf.config.list_logical_devices("CPU"))
told["name"] = __name__
print(json.dumps(told))
"""


def job(folder: Path, *words: str) -> "subprocess.Popen[str]":
    """Start a job under `splitnet run`, on a machine with one GPU of 80 GiB."""
    (folder / "one_gpu.py").write_text(ONE_GPU)
    (folder / "job.py").write_text(JOB)
    return subprocess.Popen(
        [sys.executable, str(folder / "one_gpu.py"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def told(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What a job found."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_two_jobs_share_a_gpu_and_neither_starves(tmp_path: Path) -> None:
    """Two jobs of one half fit the card with their contexts; each flag arrives."""
    halves = ("--memory-fraction", "0.5")
    threads = ("--cpu-threads", "1", "--cpu-devices", "3")
    one = job(tmp_path, "--gpus", "0", *halves, *threads, "job.py", "--lr", "0.1")
    two = job(tmp_path, *halves, "job.py")
    first, second = told(one), told(two)

    [limit] = first["limits"]
    assert second["limits"] == [limit]
    context = 512 * 2**20
    assert 2 * (limit * 2**20 + context) <= 80 * GIB
    assert 2 * limit * 2**20 > 75 * GIB
    assert (first["visible"], first["threads"], first["omp"]) == (1, 1, "1")
    assert first["cpus"] == 3
    assert first["arguments"] == ["--lr", "0.1"]
    assert (first["file"], first["name"]) == ("job.py", "__main__")
    assert second["arguments"] == []
    assert second["threads"] == 0


def test_run_names_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such script, and impossible values, are words and exit code 2."""
    script = tmp_path / "job.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setenv("SPLITNET_MEMORY_FRACTION", "1")  # restored afterwards

    assert main(["run", "none.py"]) == 2
    assert "there is no script 'none.py'" in capsys.readouterr().err
    assert main(["run", "--memory-fraction", "3", str(script)]) == 2
    assert "memory_fraction must be a finite number" in capsys.readouterr().err


def test_devices_show_memory_users_and_links(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row with every figure of a GPU."""
    row = {
        "name": "gpu:0",
        "kind": "gpu",
        "target": "/device:GPU:0",
        "stand_in": False,
        "free_bytes": 60 * GIB,
        "flops_per_second": 1e12,
        "model": "A100",
        "capability": "8.0",
        "memory_bytes": 80 * GIB,
        "busy": 0.25,
        "watts": 100.0,
        "used_by": [(4711, 20 * GIB)],
        "links": [1],
    }
    monkeypatch.setattr(device_commands, "_device_rows", lambda stand_ins: [row])

    assert main(["devices"]) == 0
    printed = capsys.readouterr().out
    for figure in ("A100 (cc 8.0)", "60.0 GiB", "80.0 GiB", "25%", "4711 (20.0 GiB)"):
        assert figure in printed
    assert "gpu:1" in printed


def test_config_can_be_held_against_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """--check finds what only the machine can tell; without it the table is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITNET_VISIBLE", "97")

    assert main(["config"]) == 0
    assert main(["config", "--check"]) == 2
    said = capsys.readouterr().err
    assert "visible=(97,) (SPLITNET_VISIBLE): there is no GPU 97" in said
    monkeypatch.setenv("SPLITNET_VISIBLE", "none")
    assert main(["config", "--check"]) == 0
    assert "SPLITNET_VISIBLE" in capsys.readouterr().out
