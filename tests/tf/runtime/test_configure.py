"""Settings for GPUs, on a machine that is made up: two cards, told by a made-up driver.

TensorFlow's functions are replaced by ones that keep what they were told and refuse
what the real ones refuse.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from splitnet.cli import main
from splitnet.core.errors import ConfigError
from splitnet.tf.runtime import configure as config
from splitnet.tf.runtime import devices as runtime
from splitnet.tf.runtime.nvml import Card

GIB = 2**30


class FakeGpu:
    """What `list_physical_devices` returns for a GPU."""

    device_type = "GPU"

    def __init__(self, index: int) -> None:
        self.name = f"/physical_device:GPU:{index}"


class Machine:
    """Two GPUs and a CPU, with the state that TensorFlow would keep."""

    def __init__(self) -> None:
        self.gpus = [FakeGpu(0), FakeGpu(1)]
        self.cpu = object()
        self.visible = list(self.gpus)
        self.growth: dict[str, bool] = {}
        self.logical: dict[Any, list[Any]] = {}
        self.details = {
            "device_name": "NVIDIA A100-SXM4-80GB",
            "compute_capability": (8, 0),
        }

    def physical(self, kind: str = "") -> list[Any]:
        """As `list_physical_devices`."""
        return {"GPU": self.gpus, "": [self.cpu, *self.gpus]}.get(kind, [self.cpu])

    def set_visible(self, gpus: list[Any], device_type: str) -> None:
        """As TensorFlow."""
        self.visible = list(gpus)

    def set_logical(self, device: Any, parts: list[Any]) -> None:
        """As TensorFlow, refuse what growth excludes."""
        if self.growth.get(getattr(device, "name", "")):
            raise ValueError("Cannot set virtual devices when memory growth is enabled")
        self.logical[device] = parts

    def set_growth(self, gpu: FakeGpu, growth: bool) -> None:
        """As TensorFlow, refuse what logical devices exclude."""
        if self.logical.get(gpu):
            raise ValueError("Cannot set memory growth on device when virtual devices")
        self.growth[gpu.name] = growth


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A machine with two GPUs of 80 GiB, TensorFlow not started, no settings."""
    made = Machine()
    set_ = monkeypatch.setattr
    set_(tf.config, "list_physical_devices", made.physical)
    set_(tf.config, "get_visible_devices", lambda kind: list(made.visible))
    set_(tf.config, "set_visible_devices", made.set_visible)
    set_(tf.config, "get_logical_device_configuration", made.logical.get)
    set_(tf.config, "set_logical_device_configuration", made.set_logical)
    experimental = tf.config.experimental
    set_(experimental, "get_memory_growth", lambda gpu: made.growth.get(gpu.name))
    set_(experimental, "set_memory_growth", made.set_growth)
    set_(experimental, "get_device_details", lambda gpu: made.details)
    set_(config, "cards", lambda: tuple(card(i) for i in (0, 1)))
    set_(runtime, "cards", lambda: tuple(card(i) for i in (0, 1)))
    set_(config, "started", lambda: False)
    set_(runtime, "started", lambda: False)
    set_(config, "_given", {})
    set_(runtime, "_free_before", {})
    monkeypatch.chdir(tmp_path)
    return made


def card(index: int, **more: Any) -> Card:
    """A card of 80 GiB with 60 free."""
    named = {"name": "NVIDIA A100-SXM4-80GB", "uuid": f"GPU-{index}"}
    return Card(
        index, **named | {"memory_bytes": 80 * GIB, "free_bytes": 60 * GIB} | more
    )


def limits(machine: Machine, index: int) -> list[int]:
    """The memory limits of a card's logical devices, in MiB."""
    return [part.memory_limit for part in machine.logical[machine.gpus[index]]]


def test_visible_shows_only_the_gpus_asked_for(machine: Machine) -> None:
    """An index is a GPU; the others are hidden, and are not limited."""
    config.configure(visible="1", memory_limit="4 GiB")

    assert machine.visible == [machine.gpus[1]]
    assert list(machine.logical) == [machine.gpus[1]]
    assert [d.name for d in runtime.local_cluster().of_kind("gpu")] == ["gpu:0"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"visible": [0, 2]}, "there is no GPU 2; TensorFlow finds GPU 0 to 1"),
        ({"visible": 5}, "under CUDA_VISIBLE_DEVICES='1,0'"),
        ({"memory_fraction": 0.01, "logical_gpus": 200}, "leaves nothing"),
    ],
)
def test_impossible_settings_of_gpus_are_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, settings: Any, words: str
) -> None:
    """The message says what there is and what hides it; nothing is applied."""
    if "CUDA" in words:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")

    with pytest.raises(ConfigError, match=words):
        config.configure(**settings)

    assert len(machine.visible) == 2


def test_memory_growth_is_set_on_all_gpus_alike(machine: Machine) -> None:
    """TensorFlow refuses growth on some GPUs only, so it is never set on some only."""
    config.configure(memory_growth=True)

    assert machine.growth == {gpu.name: True for gpu in machine.gpus}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"memory_limit": "4 GiB"}, [4096]),
        ({"memory_fraction": 0.5}, [40 * 1024 - 640]),
        ({"memory_fraction": 0.5, "logical_gpus": 2}, [(40 * 1024 - 640) // 2] * 2),
    ],
)
def test_memory_limits_are_each_gpus(
    machine: Machine, settings: Any, expected: list[int]
) -> None:
    """In MiB; a fraction leaves room for the CUDA context, and may be divided."""
    config.configure(**settings)

    assert [limits(machine, i) for i in (0, 1)] == [expected] * 2


def test_two_jobs_of_one_half_share_a_card(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`splitnet run` hands its flags on; both jobs fit the card with their contexts."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("job.py").write_text("import sys\nprint(__name__, *sys.argv)\nsys.exit(7)")
    flags = ("--gpus", "0", "--memory-fraction", "0.5")
    assert main(["run", *flags, "job.py", "--lr", "0.1"]) == 7

    assert capsys.readouterr().out == "__main__ job.py --lr 0.1\n"
    assert machine.visible == machine.gpus[:1]
    [limit] = limits(machine, 0)
    context = 512
    assert 75 * 1024 < 2 * limit <= 80 * 1024 - 2 * context
    assert os.environ["SPLITNET_MEMORY_FRACTION"] == "0.5"  # for child processes


def test_memory_fraction_needs_the_driver(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NVML the size of a card is not known, and the message says what helps."""
    monkeypatch.setattr(config, "cards", tuple)

    with pytest.raises(
        ConfigError, match="pip install nvidia-ml-py, or set memory_limit"
    ):
        config.configure(memory_fraction=0.5)


def test_configure_adds_up_and_repeats_harmlessly(machine: Machine) -> None:
    """The second call keeps what the first said, and the third changes nothing."""
    config.configure(visible=[0])
    config.configure(memory_limit="2 GiB")
    config.configure(memory_limit="2 GiB")

    assert machine.visible == [machine.gpus[0]]
    assert limits(machine, 0) == [2048]


def test_settings_of_gpus_too_late_are_named_each(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the start every setting that differs is listed, for every GPU."""
    monkeypatch.setattr(config, "started", lambda: True)

    with pytest.raises(ConfigError) as caught:
        config.configure(memory_growth=True, visible=[0, 1])

    assert str(caught.value).count("memory_growth=True (sn.configure)") == 2
    assert "visible=" not in str(caught.value)


def test_local_cluster_describes_gpus(machine: Machine) -> None:
    """Names, targets, the preset of the model, and the memory that is free."""
    cluster = runtime.local_cluster()

    assert [d.name for d in cluster] == ["gpu:0", "gpu:1", "cpu:0"]
    assert cluster["gpu:1"].target == "/device:GPU:1"
    assert cluster["gpu:0"].memory_bytes == 60 * GIB
    assert cluster["gpu:0"].flops_per_second == 78e12


def test_local_cluster_knows_logical_gpus_and_their_limits(machine: Machine) -> None:
    """A card that is cut is several devices, each as large as its limit."""
    config.configure(memory_limit="4 GiB", logical_gpus=2)

    gpus = runtime.local_cluster().of_kind("gpu")
    assert [d.name for d in gpus] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert {d.memory_bytes for d in gpus} == {4 * GIB}


def test_local_cluster_remembers_what_was_free(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once TensorFlow has taken the memory, it still counts as the plan's."""
    runtime.local_cluster()
    monkeypatch.setattr(runtime, "started", lambda: True)
    monkeypatch.setattr(runtime, "cards", lambda: (card(0, free_bytes=0), card(1)))

    assert runtime.local_cluster()["gpu:0"].memory_bytes == 60 * GIB


def test_local_cluster_without_a_driver_uses_the_presets(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A known model has a known size; an unknown one is a plain GPU."""
    monkeypatch.setattr(runtime, "cards", tuple)

    assert runtime.local_cluster()["gpu:0"].memory_bytes == 80 * 10**9
    machine.details = {"device_name": "Tesla K80"}
    assert runtime.local_cluster()["gpu:0"].memory_bytes == 16 * GIB


def test_force_cpu_and_stand_ins_hide_real_gpus(machine: Machine) -> None:
    """None is left; a stand-in goes by the name of a GPU."""
    config.force_cpu()
    assert machine.visible == []
    assert [d.name for d in runtime.local_cluster()] == ["cpu:0"]

    machine.visible = list(machine.gpus)
    cluster = runtime.local_cluster(stand_in_gpus=2)
    assert machine.visible == []
    assert all(d.stand_in for d in cluster.of_kind("gpu"))


def test_details_tell_what_a_plan_need_not_know(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, capability, use and links, for `splitnet devices`."""
    known = (card(0, busy=0.25, used_by=((42, GIB),), links=(1,)), card(1))
    monkeypatch.setattr(runtime, "cards", lambda: known)

    details = runtime.details_of(runtime.local_cluster())

    assert details["gpu:0"] == runtime.Details(
        "NVIDIA A100-SXM4-80GB", "8.0", 80 * GIB, 0.25, None, ((42, GIB),), (1,)
    )
    assert details["cpu:0"].memory_bytes > 0
