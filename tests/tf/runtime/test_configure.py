"""Settings for GPUs with a driver and TensorFlow's functions made up: two cards."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from splitnet.core.errors import ConfigError
from splitnet.tf.runtime import configure as config
from splitnet.tf.runtime import devices as runtime
from splitnet.tf.runtime.nvml import Details

GIB = 2**30


class Machine:
    """Two GPUs and a CPU, with the state that TensorFlow would keep."""

    def __init__(self):
        self.gpus = [tf.config.PhysicalDevice(f"GPU:{i}", "GPU") for i in (0, 1)]
        self.visible = list(self.gpus)
        self.started = False
        self.growth = {}
        self.logical = {}
        model = "NVIDIA A100-SXM4-80GB"
        self.details = {"device_name": model, "compute_capability": (8, 0)}

    def _physical(self, kind=""):
        cpus = [tf.config.PhysicalDevice("CPU:0", "CPU")]
        return self.gpus if kind == "GPU" else cpus

    def _set_visible(self, gpus, device_type):
        if self.started and self.visible != gpus:
            raise RuntimeError
        self.visible = list(gpus)

    def _set_logical(self, device, parts):
        if self.growth.get(device):
            raise ValueError("Cannot set virtual devices when memory growth is enabled")
        self.logical[device] = parts

    def _set_growth(self, gpu, growth):
        if self.logical.get(gpu):
            raise ValueError("Cannot set memory growth on device when virtual devices")
        if self.started:
            raise RuntimeError
        self.growth[gpu] = growth


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with two GPUs of 80 GiB, TensorFlow not started, no settings."""
    made = Machine()
    set_ = monkeypatch.setattr
    set_(tf.config, "list_physical_devices", made._physical)
    set_(tf.config, "get_visible_devices", lambda kind: list(made.visible))
    set_(tf.config, "set_visible_devices", made._set_visible)
    set_(tf.config, "get_logical_device_configuration", made.logical.get)
    set_(tf.config, "set_logical_device_configuration", made._set_logical)
    set_(tf.config.experimental, "set_memory_growth", made._set_growth)
    set_(tf.config.experimental, "get_device_details", lambda gpu: made.details)
    for module in (config, runtime):
        set_(module, "cards", lambda: [card(0), card(1)])
    set_(config, "started", lambda: False)
    set_(config, "_given", {})
    set_(runtime, "_free_before", {})
    monkeypatch.chdir(tmp_path)
    return made


def card(index, **more):
    known = {"model": "NVIDIA A100-SXM4-80GB", "uuid": f"GPU-{index}", "index": index}
    return Details(**known | {"memory_bytes": 80 * GIB, "free_bytes": 60 * GIB} | more)


def limits(machine):
    cut = machine.logical.items()
    return {machine.gpus.index(g): [p.memory_limit for p in parts] for g, parts in cut}


CUT = [4096] * 2
HALF = 40 * 1024 - 640  # of a card, in MiB; its CUDA context takes 512 beside it


@pytest.mark.parametrize(
    ("settings", "expected", "gpus"),
    [
        ({"visible": "1", "memory_limit": "4 GiB"}, {1: [4096]}, 1),
        ({"memory_limit": "4 GiB"}, {0: [4096], 1: [4096]}, 2),
        ({"memory_limit": "4 GiB", "logical_gpus": 2}, {0: CUT, 1: CUT}, 4),
        ({"visible": [0], "memory_fraction": 0.5}, {0: [HALF]}, 1),
    ],
)
def test_memory_limits_are_each_gpus(machine, settings, expected, gpus):
    """In MiB, of visible GPUs, or of each device that a card is cut into."""
    for name, value in settings.items():  # calls add up
        if name != "logical_gpus":
            config.configure(**{name: value})
    config.configure(**settings)
    assert limits(machine) == expected
    assert len(machine.visible) == len(expected)
    found = runtime.local_cluster().of_kind("gpu")
    assert [d.name for d in found] == [f"gpu:{i}" for i in range(gpus)]
    sizes = [size * 2**20 for each in expected.values() for size in each]
    assert [d.memory_bytes for d in found] == sizes


def test_impossible_settings_of_gpus_are_refused(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with pytest.raises(ConfigError, match=r"no GPU 2; TensorFlow finds 2.*='1,0'"):
        config.configure(visible=[0, 2])
    with pytest.raises(ConfigError, match="leaves nothing"):
        config.configure(memory_fraction=0.01, logical_gpus=200)
    monkeypatch.setattr(config, "cards", list)  # the driver tells the size of a card
    with pytest.raises(ConfigError, match="pip install nvidia-ml-py, or set memory_li"):
        config.configure(memory_fraction=0.5)
    assert len(machine.visible) == 2


def test_two_jobs_of_one_half_share_a_card(machine, monkeypatch, cli):
    """`splitnet run` hands its flags on, shows errors and warnings as Python does."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("job.py").write_text("import sys\nprint(__name__, *sys.argv)\nsys.exit(7)")
    words = "run --gpus 0 --memory-fraction 0.5"
    assert cli(f"{words} job.py --lr 0.1", 7).out == "__main__ job.py --lr 0.1\n"
    Path("lost.py").write_text("import warnings; warnings.warn('old')\nopen('no.csv')")
    with pytest.warns(UserWarning, match="old"):
        assert 'last):\n  File "lost.py", line 2' in cli(f"{words} lost.py", 1).err
    assert limits(machine) == {0: [HALF]}
    assert os.environ["SPLITNET_MEMORY_FRACTION"] == "0.5"  # for child processes


def test_settings_of_gpus_too_late_are_named_each(machine):
    """Every setting that differs after the start is listed, for every GPU."""
    config.configure(memory_growth=True)
    assert machine.growth == dict.fromkeys(machine.gpus, True)
    machine.growth.clear()
    machine.started = True
    with pytest.raises(ConfigError) as caught:
        config.configure(memory_growth=True, visible=[0, 1])
    assert str(caught.value).count("memory_growth=True (sn.configure)") == 2
    assert "visible=" not in str(caught.value)


def test_local_cluster_describes_gpus(machine, monkeypatch):
    """With memory that was free before TensorFlow took it; details tell the rest."""
    cluster = runtime.local_cluster()
    assert cluster.names == ("gpu:0", "gpu:1", "cpu:0")
    assert cluster["gpu:1"].target == "/device:GPU:1"
    assert cluster["gpu:0"].memory_bytes == 60 * GIB
    assert cluster["gpu:0"].flops_per_second == 78e12
    known = card(1, busy=0.25, used_by=((42, GIB),), links=(1,))
    monkeypatch.setattr(runtime, "cards", lambda: [known, card(0)])
    details = runtime.details_of(cluster)
    assert details["gpu:1"] == replace(known, capability="8.0")
    assert details["cpu:0"].memory_bytes > 0
    monkeypatch.setattr(config, "started", lambda: True)
    monkeypatch.setattr(runtime, "cards", lambda: [card(0, free_bytes=0), card(1)])
    assert runtime.local_cluster()["gpu:0"].memory_bytes == 60 * GIB


def test_local_cluster_without_a_driver_uses_the_presets(machine, monkeypatch):
    """An unknown model is a plain GPU; hidden GPUs make room for stand-ins."""
    monkeypatch.setattr(runtime, "cards", list)
    assert runtime.local_cluster()["gpu:0"].memory_bytes == 80 * 10**9
    machine.details = {"device_name": "Tesla K80"}
    assert runtime.local_cluster()["gpu:0"].memory_bytes == 16 * GIB
    config.force_cpu()
    assert machine.visible == []
    assert runtime.local_cluster().names == ("cpu:0",)
    machine.visible = list(machine.gpus)
    cluster = runtime.local_cluster(stand_in_gpus=2)
    assert machine.visible == []
    assert [d.stand_in for d in cluster] == [True, True, False]
