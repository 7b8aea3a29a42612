"""The examples in docstrings run: those of the rooms that need no framework."""

import doctest
import importlib
import pkgutil

import pytest

import splitnet.core
import splitnet.planner
import splitnet.simulator
import splitnet.view

MODULES = sorted(
    module.name
    for room in (splitnet.core, splitnet.simulator, splitnet.planner, splitnet.view)
    for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    results = doctest.testmod(importlib.import_module(name))

    assert results.failed == 0


def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [
        test
        for name in MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]

    assert len(found) >= 10
