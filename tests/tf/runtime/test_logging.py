"""TensorFlow's start-up lines: hidden, and nothing else is."""

import os
import sys

import pytest

from splitnet.tf.runtime import logging

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
OTHERS = "Epoch 1/5", "I was here", "ValueError: E0000 is none", "Warning: sparse"
EVERY = (*TALK, *TROUBLE, *OTHERS)


@pytest.mark.parametrize(
    ("level", "driver", "shown"),
    [(None, True, (*TROUBLE, *OTHERS)), (None, False, OTHERS), ("0", False, EVERY)],
)
def test_log_filter_keeps_the_rest(monkeypatch, capfd, tmp_path, level, driver, shown):
    """A failing GPU matters where there is a driver; level 0 asks for every line."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level or "2")
    monkeypatch.setattr(logging, "_DRIVER", tmp_path / ("" if driver else "none"))

    def fail():
        with logging.log_filter():
            os.write(2, "\n".join([*EVERY, ""]).encode())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines() == [*shown, "after"]


def test_hide_remarks_leaves_what_was_asked_for(monkeypatch):
    """INFO lines are hidden from now on, if TensorFlow has not read the variable."""
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    logging.hide_remarks()
    assert "TF_CPP_MIN_LOG_LEVEL" not in os.environ
    monkeypatch.delitem(sys.modules, "tensorflow")
    logging.hide_remarks()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1"
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    logging.hide_remarks()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
