"""The docstring examples of all four packages pass."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import torchloom_core
import torchloom_policies
import torchloom_predictors
import torchloom_threadlet

PACKAGES = (torchloom_core, torchloom_policies, torchloom_predictors, torchloom_threadlet)


def with_examples():
    for package in PACKAGES:
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            source = Path(info.module_finder.find_spec(info.name).origin)
            if ">>> " in source.read_text(encoding="utf-8"):
                yield info.name


@pytest.mark.parametrize("name", list(with_examples()))
def test_the_examples_in_a_module_pass(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert result.failed == 0
