"""The examples in docstrings run: those of the rooms that need no framework."""

import doctest
import importlib
import pkgutil

import splitnet.core
import splitnet.planner
import splitnet.simulator
import splitnet.view

MODULES = sorted(
    module.name
    for room in (splitnet.core, splitnet.simulator, splitnet.planner, splitnet.view)
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
)


def test_examples_in_docstrings_hold():
    """What differs is printed with its file and line."""
    results = [doctest.testmod(importlib.import_module(name)) for name in MODULES]

    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 15
