"""Installed plugins are checked when they register; broken ones are reported."""

import importlib.metadata
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchloom_core.config.schema import Config
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import ENTRY_POINT_GROUP, PluginInfo, by_name, discover

HEAD = """
from collections.abc import Iterable
import msgspec
from torchloom_core.plugin import FleetView, Hazard, Need, Proposal, Registry, hookimpl

class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ratio: float = 1.5
"""

GOOD = """
class {cls}:
    name = "{name}"
    Options = Options
    needs = ()
    def __init__(self, options):
        self.options = options
    def on_tick(self, view):
        return []
"""

REGISTER = """
@hookimpl
def torchloom_register(registry):
    registry.policy({cls})
"""

Install = Callable[..., importlib.metadata.EntryPoint]

_numbers = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write a module and return an entry point to it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def write(text: str, name: str = "mine", head: str = HEAD) -> importlib.metadata.EntryPoint:
        module = f"plugin_under_test_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(head + text)
        written.append(module)
        return importlib.metadata.EntryPoint(name, module, "torchloom")

    yield write
    for module in written:
        sys.modules.pop(module, None)


def policy(name: str = "mine", cls: str = "Mine") -> str:
    return GOOD.format(name=name, cls=cls)


def registered(text: str, cls: str = "Mine") -> str:
    return text + REGISTER.format(cls=cls)


def the(infos: list[PluginInfo]) -> PluginInfo:
    (info,) = infos
    return info


def test_a_good_policy_is_found_with_its_options(install):
    info = the(discover([install(registered(policy()))]))
    assert (info.name, info.kind, info.problem) == ("mine", "policy", "")
    assert info.options == [("ratio", "a number", "1.5")]


BROKEN_CLASSES = {
    "need on_tick(self, view), was on_tick(self)": ("def on_tick(self, view)", "def on_tick(self)"),
    "need on_tick(self, view), was on_tick(self, view, more)": (
        "def on_tick(self, view)",
        "def on_tick(self, view, more)",
    ),
    "on_tick is async: need a plain method": ("def on_tick", "async def on_tick"),
    "need a method on_tick(self, view), has none": ("def on_tick", "def on_tik"),
    "need __init__(self, options), was __init__(self)": (
        "def __init__(self, options)",
        "def __init__(self)",
    ),
    "need a class attribute name that is an identifier, was None": ('name = "mine"', "pass"),
    "need a class attribute name that is an identifier, was 'my plugin'": ('"mine"', '"my plugin"'),
    "need a class attribute name that is an identifier, was 3": ('"mine"', "3"),
    "need a name other than person": ('"mine"', '"person"'),
    "need a class attribute Options that is a msgspec.Struct, was None": (
        "Options = Options",
        "Options = None",
    ),
    "need Options with forbid_unknown_fields=True": (
        "Options = Options",
        "Options = msgspec.defstruct('Options', ['ratio'])",
    ),
    "need Options without a field called mode": (
        "Options = Options",
        "Options = msgspec.defstruct('Options', ['mode'], forbid_unknown_fields=True)",
    ),
}


@pytest.mark.parametrize("problem", BROKEN_CLASSES)
def test_a_class_that_breaks_the_contract_is_reported_with_the_rule(install, problem):
    old, new = BROKEN_CLASSES[problem]
    text = policy()
    assert old in text
    info = the(discover([install(registered(text.replace(old, new)))]))
    assert info.problem.startswith(problem)


BROKEN_MODULES = {
    "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found'": (
        "import nowhere_to_be_found"
    ),
    "cannot be loaded: SystemExit: 3": "raise SystemExit(3)",
    "cannot be loaded: ZeroDivisionError: division by zero": "1 / 0",
    "cannot be loaded: SyntaxError:": "def",
    "cannot be loaded: RuntimeError: no message": "raise RuntimeError",
    "cannot be loaded: KeyError: 'later'": (registered(policy()) + "    raise KeyError('later')\n"),
    "cannot be loaded: PluginValidationError: unknown hook 'torchloom_regster'": (
        "@hookimpl\ndef torchloom_regster(registry): ..."
    ),
    "cannot be loaded: PluginValidationError: Plugin 'mine'": (
        "@hookimpl\ndef torchloom_register(registre): ..."
    ),
    "torchloom_register is async: need a plain function": (
        "@hookimpl\nasync def torchloom_register(registry): ..."
    ),
    "plugin_under_test": "x = 1",
}


@pytest.mark.parametrize("problem", BROKEN_MODULES)
def test_a_module_that_does_not_load_or_registers_nothing_is_reported(install, problem):
    info = the(discover([install(BROKEN_MODULES[problem])]))
    assert (info.name, info.kind) == ("mine", None)
    assert info.problem.startswith(problem)
    assert "\n" not in info.problem


@pytest.mark.parametrize("offer", ["Mine(Options())", "3", "[Mine]"])
def test_something_else_than_a_class_is_refused(install, offer):
    text = policy() + REGISTER.format(cls=offer)
    assert the(discover([install(text)])).problem.startswith("need a class, was ")


def test_a_class_that_raises_on_inspection_is_reported(install):
    text = """
class Meta(type):
    def __getattribute__(cls, name):
        raise OSError("leave me alone")
class Mine(metaclass=Meta): ...
"""
    assert the(discover([install(registered(text))])).problem.startswith("cannot be loaded: OSErr")


def test_of_two_with_one_name_the_first_entry_point_is_used(install):
    second = install(registered(policy()), "b_second")
    first = install(registered(policy()), "a_first")
    kept, refused = discover([second, first])
    assert (kept.entry_point, kept.problem) == ("a_first", "")
    assert refused.problem == "the name is already used by entry point a_first (unknown)"


def test_a_name_of_torchlooms_own_plugins_cannot_be_replaced(install):
    foreign = install(registered(policy().replace("mine", "straggler")), "a_first")
    infos = discover([foreign, *importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)])
    kept, refused = (info for info in infos if info.name == "straggler")
    assert (kept.package, kept.problem) == ("torchloom", "")
    assert refused.problem == "the name is already used by entry point straggler (torchloom)"
    config = Config(policies={"straggler": {}})
    (warning,) = activate(config, infos, "torchloom.toml").warnings
    assert warning.startswith(
        "policy straggler: the one of torchloom (straggler) is used, unknown (a_first)"
    )


def test_of_two_predictors_with_one_name_the_used_one_is_found_by_name(install):
    text = policy().replace("mine", "forest").replace("on_tick", "forecast")
    register = REGISTER.format(cls="Mine").replace("policy", "predictor")
    foreign = install(text + register, "a_first")
    infos = discover([foreign, *importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)])
    assert by_name(infos, "predictor")["forest"].package == "torchloom"
    assert by_name(infos[::-1], "predictor")["forest"].package == "torchloom"


@pytest.mark.parametrize("name", ["random", "row_rule", "auto", "scripted"])
def test_a_predictor_cannot_have_the_name_of_a_baseline(install, name):
    text = policy().replace('"mine"', f'"{name}"').replace("on_tick", "forecast")
    register = REGISTER.format(cls="Mine").replace("policy", "predictor")
    problem = the(discover([install(text + register)])).problem
    assert problem.startswith("need a name other than random, row_rule, auto, scripted")


def test_a_broken_plugin_does_not_reserve_its_name(install):
    broken = install(registered(policy().replace("def on_tick", "def on_tik")), "a_first")
    whole = install(registered(policy()), "b_second")
    assert [bool(info.problem) for info in discover([broken, whole])] == [True, False]


def test_broken_plugins_do_not_affect_the_others(install):
    broken = [install(text, f"broken{n}") for n, text in enumerate(BROKEN_MODULES.values())]
    infos = discover([*broken, install(registered(policy()), "whole")])
    assert [info.name for info in infos if not info.problem] == ["mine"]
    assert len(infos) == len(broken) + 1


def test_one_module_may_register_several_plugins(install):
    text = policy("one", "One") + policy("two", "Two")
    text += "\n@hookimpl\ndef torchloom_register(registry):\n"
    text += "    registry.policy(One)\n    registry.policy(Two)\n    registry.policy(One)\n"
    infos = discover([install(text)])
    assert [(info.name, bool(info.problem)) for info in infos] == [
        ("one", False),
        ("two", False),
        ("one", True),
    ]
