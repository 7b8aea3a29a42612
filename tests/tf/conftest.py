"""One process and one machine for all tests that need TensorFlow: a CPU as four."""

import gc
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path, config):
    """Spare `-m "not tf"` the seconds of importing TensorFlow to leave these out."""
    return True if config.option.markexpr == "not tf" else None


def pytest_collection_modifyitems(items):
    """Mark every test of this folder, so that `-m tf` selects them."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("tf")


def pytest_collection_finish(session):
    """Refuse a test file that makes a layer when imported: devices come first."""
    if "tensorflow" in sys.modules:
        gc.freeze()  # a million objects of TensorFlow, which no test frees
        gc.set_threshold(100_000, 50)  # a trace makes as many, and frees few
        from splitnet.tf.runtime.configure import started

        if started():
            raise pytest.UsageError("a test file started TensorFlow.")


@pytest.fixture(scope="session", autouse=True)
def cluster(request):
    """Three CPU devices that stand in for GPUs, and the CPU itself."""
    import splitnet as sn

    if request.config.getoption("--real-gpu"):
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)
        sn.configure(logical_gpus=3, memory_limit="1.5 GiB")
        return sn.local_cluster()
    return sn.local_cluster(stand_in_gpus=3)
