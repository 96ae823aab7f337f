"""Every class and function of the plugin API has an example."""

import doctest
import importlib
import inspect

import pytest

FACES = ("torchloom_core.plugin", "torchloom_core.lab.learning", "torchloom_core.testing")


def offered():
    """Yield the classes and functions of torchLoom, without constants and type aliases."""
    for face in map(importlib.import_module, FACES):
        for name in face.__all__:
            thing = getattr(face, name)
            ours = getattr(thing, "__module__", "").startswith("torchloom_core.")
            if ours and (inspect.isclass(thing) or inspect.isfunction(thing)):
                yield f"{face.__name__}.{name}"


@pytest.mark.parametrize("name", list(offered()))
def test_it_has_an_example_that_runs(name):
    face, _, attribute = name.rpartition(".")
    text = inspect.getdoc(getattr(importlib.import_module(face), attribute)) or ""
    _, heading, example = text.partition("Examples\n--------\n")
    assert heading
    test = doctest.DocTestParser().get_doctest(example, {"__name__": "example"}, name, None, None)
    assert test.examples
    assert attribute in example
    assert doctest.DocTestRunner().run(test).failed == 0
