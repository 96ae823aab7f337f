"""The examples in the docstrings of core are true."""

import doctest
import importlib
import pkgutil

import pytest

import torchloom_core

PURE = [
    info.name
    for info in pkgutil.walk_packages(torchloom_core.__path__, "torchloom_core.")
    if info.name.removeprefix("torchloom_core.").split(".")[0]
    in {
        "arbiter",
        "checkpointing",
        "codec",
        "endings",
        "fleet",
        "knobs",
        "messages",
        "naming",
        "plugin",
        "subjects",
        "testing",
    }
]


@pytest.mark.parametrize("name", PURE)
def test_the_examples_in_a_module_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    modules = map(importlib.import_module, PURE)
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert sum(bool(test.examples) for module in modules for test in finder.find(module)) >= 4
