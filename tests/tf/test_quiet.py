"""TensorFlow's start-up lines: hidden, and nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitnet.tf.quiet import hushed, is_start_up_line

ROOT = Path(__file__).resolve().parent.parent.parent

TALK = (
    "WARNING: All log messages before absl::InitializeLog() is called are written",
    "I0000 00:00:1795277086.404898   14108 port.cc:153] oneDNN custom operations on",
    "2026-01-02 03:04:05.678901: I tensorflow/core/util/port.cc:153] oneDNN is on",
    "To enable the following instructions: AVX2, in other operations, rebuild",
)
TROUBLE = (
    "E0000 00:00:1795276980.768642    8752 cuda_platform.cc:52] failed call to cuInit",
    "2026-01-02 03:04:05.678901: W tsl/framework/gpu.cc:77] cannot dlopen libcudnn",
)
OTHERS = (
    "Epoch 1/5",
    "I was here",
    "ValueError: E0000 is no batch",
    "UserWarning: densified",
)


@pytest.mark.parametrize("driver", [True, False])
def test_talk_is_told_from_what_a_program_says(driver: bool) -> None:
    """TensorFlow's information lines are talk; what others write is not."""
    assert all(is_start_up_line(line, driver=driver) for line in TALK)
    assert not any(is_start_up_line(line, driver=driver) for line in OTHERS)


def test_trouble_with_gpus_is_talk_only_without_a_driver() -> None:
    """Where there is a driver, a failing GPU is news."""
    assert all(is_start_up_line(line, driver=False) for line in TROUBLE)
    assert not any(is_start_up_line(line, driver=True) for line in TROUBLE)


def test_hushed_passes_on_all_other_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even when what was called fails, what it said is not lost."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)

    def fail() -> None:
        with hushed():
            os.write(2, f"{TALK[1]}\n{OTHERS[0]}\n".encode())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    os.write(2, b"after\n")

    assert capfd.readouterr().err == f"{OTHERS[0]}\nafter\n"


def test_hushed_hides_nothing_where_a_level_is_set(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who sets TF_CPP_MIN_LOG_LEVEL has said what to see."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")

    with hushed():
        os.write(2, f"{TALK[1]}\n".encode())

    assert TALK[1] in capfd.readouterr().err


@pytest.mark.tf
def test_a_script_that_starts_with_splitnet_is_quiet() -> None:
    """No line of TensorFlow's is on the screen, from the machine to the first layer."""
    code = (
        "import splitnet as sn; sn.local_cluster(stand_in_gpus=2)\n"
        "from keras import layers; layers.Dense(3).build((None, 4))"
    )
    environ = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environ | {"PYTHONPATH": str(ROOT)},
    )

    assert done.stderr == ""
