"""Every class and function that a plugin's author imports shows how it is used."""

import doctest
import importlib
import inspect

import pytest

FACES = ("torchloom_core.plugin", "torchloom_core.learning", "torchloom_core.testing")


def offered():
    """Yield the classes and functions of ours, but not numbers and names of types."""
    for face in map(importlib.import_module, FACES):
        for name in face.__all__:
            thing = getattr(face, name)
            ours = getattr(thing, "__module__", "").startswith("torchloom_core.")
            if ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
                yield f"{face.__name__}.{name}"


@pytest.mark.parametrize("name", list(offered()))
def test_it_has_an_example_that_runs_as_it_stands(name):
    face, _, attribute = name.rpartition(".")
    text = inspect.getdoc(getattr(importlib.import_module(face), attribute)) or ""
    _, heading, example = text.partition("Examples\n--------\n")
    assert heading
    test = doctest.DocTestParser().get_doctest(example, {"__name__": "example"}, name, None, None)
    assert test.examples
    assert attribute in example
    assert doctest.DocTestRunner().run(test).failed == 0
