"""TensorFlow's start-up lines: hidden, and nothing else is."""

import os
import sys

import pytest

from splitnet.tf.runtime.logging import (
    hidden_severities,
    hide_remarks,
    is_startup_line,
    log_filter,
)

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
def test_information_lines_of_tensorflow_are_hidden(driver: bool) -> None:
    """What the program itself writes is not."""
    hidden = hidden_severities(None, driver=driver)

    assert all(is_startup_line(line, hidden) for line in TALK)
    assert not any(is_startup_line(line, hidden) for line in OTHERS)


def test_errors_about_gpus_are_hidden_only_without_a_driver() -> None:
    """Where there is a driver, a failing GPU matters."""
    for driver in (False, True):
        hidden = hidden_severities(None, driver=driver)
        assert [is_startup_line(line, hidden) for line in TROUBLE] == [not driver] * 2


@pytest.mark.parametrize("driver", [True, False])
@pytest.mark.parametrize("level", ["1", "2", "3"])
def test_a_higher_level_hides_at_least_as_much(level: str, driver: bool) -> None:
    """TensorFlow alone writes lines before it reads the level."""
    usual = hidden_severities(None, driver=driver)

    assert set(usual) <= set(hidden_severities(level, driver=driver))
    assert set("IWE"[: int(level)]) <= set(hidden_severities(level, driver=driver))


def test_log_filter_keeps_all_other_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Even when what was called fails, what it said is not lost."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)

    def fail() -> None:
        with log_filter():
            os.write(2, f"{TALK[1]}\n{OTHERS[0]}\n".encode())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    os.write(2, b"after\n")

    assert capfd.readouterr().err == f"{OTHERS[0]}\nafter\n"


def test_log_filter_hides_nothing_at_level_0(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """TF_CPP_MIN_LOG_LEVEL=0 asks for every line."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")

    with log_filter():
        os.write(2, f"{TALK[1]}\n".encode())

    assert TALK[1] in capfd.readouterr().err


@pytest.mark.parametrize(
    ("loaded", "level", "then"),
    [(False, None, "1"), (False, "0", "0"), (True, None, None)],
)
def test_hide_remarks_leaves_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, loaded: bool, level: str | None, then: str | None
) -> None:
    """INFO lines are hidden from now on, if TensorFlow has not read the variable."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level or "")
    if level is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    if not loaded:
        monkeypatch.delitem(sys.modules, "tensorflow")

    hide_remarks()

    assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == then
