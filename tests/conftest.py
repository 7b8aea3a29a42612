"""What every test shares: a terminal of a fixed width and no settings from outside."""

import json
import os
from typing import NamedTuple

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def pytest_addoption(parser):
    """Let tests with TensorFlow run on a card: `pytest tests/tf --real-gpu`."""
    text = "cut the first GPU into three, in place of stand-ins"
    parser.addoption("--real-gpu", action="store_true", help=text)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    """Whoever runs the tests may have SPLITNET_* set; the tests do not see it."""
    for name in [name for name in os.environ if name.startswith("SPLITNET_")]:
        monkeypatch.delenv(name)


class Printed(NamedTuple):
    out: str
    err: str

    @property
    def answer(self):
        return json.loads(self.out)


@pytest.fixture
def cli(capsys):
    """Run a command in this process, of words in a text; check its exit code."""
    from splitnet.cli import main

    def run(words, code=0):
        assert main(words.split()) == code
        return Printed(*capsys.readouterr())

    return run


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, so that two workers end together."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
