"""The config activates plugins; a plugin that cannot be built is quarantined with one line."""

import math
from typing import Any

import msgspec
import pytest

from torchloom_core.config.loading import parse
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.plugin import Need, NeedFaults, NeedForecast
from torchloom_core.wire.decisions import PolicyFailed
from torchloom_core.wire.events import PredictorFailed


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ratio: float = 1.5

    def __post_init__(self) -> None:
        if self.ratio <= 0:
            raise ValueError("need ratio > 0")
        if self.ratio > 100:
            raise KeyError("too much")


A_SEQUENCE = (
    "need a sequence of Need, NeedFaults, NeedPast, NeedLabels, NeedNotes, NeedForecast or "
    "NeedOffers in .needs"
)


def plugin(needs: Any = (), error: BaseException | None = None, **attributes: Any) -> type[Any]:
    class Mine:
        name = "mine"
        Options: Any = None

        def __init__(self, options: Any) -> None:
            if error:
                raise error
            self.options = options
            self.needs = needs

    Mine.Options = Options
    for name, value in attributes.items():
        setattr(Mine, name, value)
    return Mine


def start(cls: Any, kind: Any = "policy", name: str = "mine", **settings: Any) -> ActivePlugins:
    infos = [PluginInfo("mine", kind, "entry", "package", "1.0", cls=cls)]
    section = "policies" if kind == "policy" else "predictors"
    return activate(Config(**{section: {name: settings}}), infos, "torchloom.toml")


def test_a_policy_gets_its_options_and_its_mode():
    active = start(plugin(), ratio=2.0, mode="shadow")
    (policy,) = active.policies
    assert (policy.mode, policy.policy.options.ratio) == ("shadow", 2.0)
    assert active.versions == {"mine": "package 1.0"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratoi": 2.0}, "torchloom.toml: policies.mine.ratoi: unknown key"),
        ({"ratio": "two"}, "torchloom.toml: policies.mine.ratio: "),
        ({"ratio": 0.0}, "torchloom.toml: policies.mine: "),
        ({"mode": "acting"}, "torchloom.toml: policies.mine.mode: "),
    ],
)
def test_a_bad_option_is_a_config_error_that_names_file_and_key(settings, message):
    with pytest.raises(ConfigError) as error:
        start(plugin(), **settings)
    assert str(error.value).startswith(message)


def test_an_unregistered_name_is_an_error_with_the_nearest_name():
    with pytest.raises(ConfigError) as error:
        start(plugin(), name="mien")
    assert str(error.value) == (
        "torchloom.toml: policies.mien: no policy has this name; did you mean mine?"
    )


def test_an_unknown_name_is_an_error_that_lists_broken_plugins():
    infos = [PluginInfo("theirs", None, "theirs", "p", "1", "cannot be loaded: no")]
    with pytest.raises(ConfigError, match="there are none; could not be loaded: theirs"):
        activate(Config(policies={"mine": {}}), infos, "torchloom.toml")


def test_a_broken_plugin_is_quarantined_and_the_others_are_active():
    infos = [
        PluginInfo("broken", None, "broken", "p", "1", "cannot be loaded: no"),
        PluginInfo("mine", "policy", "entry", "p", "1", cls=plugin()),
    ]
    active = activate(Config(policies={"broken": {}, "mine": {}}), infos, "torchloom.toml")
    assert [policy.name for policy in active.policies] == ["mine"]
    detail = "policy broken (entry point broken): cannot be loaded: no"
    assert active.failed == (PolicyFailed(policy="broken", rule="cannot_start", detail=detail),)


@pytest.mark.parametrize("error", [ValueError("no\nway"), SystemExit(1), AttributeError()])
def test_a_constructor_that_raises_is_quarantined(error):
    (failure,) = start(plugin(error=error)).failed
    assert failure.detail.startswith(f"policy mine: cannot be built: {type(error).__name__}: ")
    assert "\n" not in failure.detail


def test_options_that_raise_any_exception_are_quarantined():
    (failure,) = start(plugin(), ratio=101.0).failed
    assert failure.detail == "policy mine: cannot be built: KeyError: 'too much'"


def test_a_constructor_may_raise_a_config_error():
    with pytest.raises(ConfigError, match="rules"):
        start(plugin(error=ConfigError("rules.0: no")))


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        (None, f"{A_SEQUENCE}, was None"),
        ("heat", f"{A_SEQUENCE}, was 'heat'"),
        ([3], f"{A_SEQUENCE}, was [3]"),
        ([Need(str(number)) for number in range(10_001)], "need a"),
        (iter([Need("heat")]), f"{A_SEQUENCE}, was <"),
        ([Need(3)], "need a metric's name in every Need, was 3"),  # type: ignore[arg-type]
        ([Need("")], "need a metric's name in every Need, was ''"),
        ([Need("heat", math.nan)], "heat: need window_s in 0..34560000, was nan"),
        ([Need("heat", -1.0)], "heat: need window_s in 0..34560000, was -1.0"),
        ([Need("heat", math.inf)], "heat: need window_s in 0..34560000, was inf"),
        ([Need("heat", "3")], "heat: need window_s in 0..34560000, was '3'"),  # type: ignore[arg-type]
        ([NeedFaults(math.nan)], "NeedFaults: need memory_s in 0..1e+09, was nan"),
        ([NeedFaults("30 d")], "NeedFaults: need memory_s in 0..1e+09, was '30 d'"),  # type: ignore[arg-type]
        ([NeedForecast("")], "need a predictor's name in every NeedForecast, was ''"),
        ([NeedForecast("trend", 1)], "trend: need skilled true or false, was 1"),  # type: ignore[arg-type]
        ([NeedFaults], f"{A_SEQUENCE}, was [<"),
        (
            [Need("heat", 100_001.0)],
            "heat: need window_s of at most 100000 ticks of 1 s, was 100001",
        ),
    ],
)
def test_invalid_needs_are_quarantined(needs, problem):
    (failure,) = start(plugin(needs)).failed
    assert failure.detail.startswith(f"policy mine: {problem}")


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.nan, math.inf, "60", True])
@pytest.mark.parametrize("name", ["horizon_s", "every_s"])
def test_a_predictor_without_a_pace_is_quarantined(name, value):
    pace = {"horizon_s": 60.0, "every_s": 5.0, name: value}
    (failure,) = start(plugin(**pace), "predictor").failed
    assert isinstance(failure, PredictorFailed)
    assert failure.detail == f"predictor mine: need {name} > 0 and at most 1e+09, was {value!r}"


def test_a_predictor_with_a_pace_is_active():
    assert list(start(plugin(horizon_s=60, every_s=5.0), "predictor").predictors) == ["mine"]


def test_a_misspelt_need_is_an_error_before_the_plugin_runs():
    class Mine(plugin()):
        def __init__(self, options: Any) -> None:
            super().__init__(options)
            self.needs = (NeedFaults(memroy_s=7.0),)  # type: ignore[call-arg]

    (failed,) = start(Mine).failed
    assert failed.detail == (
        "policy mine: cannot be built: TypeError: Unexpected keyword argument 'memroy_s'"
    )


def test_a_predictor_reads_no_forecasts():
    pace = {"horizon_s": 60.0, "every_s": 5.0}
    (failed,) = start(plugin([NeedForecast("trend")], **pace), "predictor").failed
    assert failed.detail.startswith(
        "predictor mine: need a sequence of Need, NeedFaults, NeedPast or NeedLabels in .needs, was"
    )


def test_a_needed_predictor_that_is_inactive_is_an_error_with_the_nearest_name():
    infos = [
        PluginInfo("mine", "policy", "entry", "p", "1", cls=plugin([NeedForecast("trned")])),
        PluginInfo("trend", "predictor", "entry", "p", "1", cls=plugin(horizon_s=9.0, every_s=1.0)),
    ]
    with pytest.raises(ConfigError) as error:
        activate(Config(policies={"mine": {}}, predictors={"trend": {}}), infos, "torchloom.toml")
    assert str(error.value) == (
        "torchloom.toml: policies.mine: need predictor 'trned' under [predictors]; did you mean "
        "trend?"
    )


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("predictors", ("trend",), "need a NeedForecast for each in needs, was an attribute pred"),
        ("needs_skill", True, "need a NeedForecast with skilled=True in needs, was an attribute"),
        ("fault_memory_s", 9.0, "need a NeedFaults in needs, was an attribute fault_memory_s"),
    ],
)
def test_an_attribute_that_belongs_into_needs_is_an_error(name, value, problem):
    (failure,) = start(plugin(**{name: value})).failed
    assert failure.detail.startswith(f"policy mine: {problem}")


def test_a_role_has_policies_of_its_own_and_those_of_the_run_see_the_trainers():
    infos = [PluginInfo("mine", "policy", "entry", "package", "1.0", cls=plugin())]
    config = parse(
        """
        [policies.mine]
        [roles.rollout.policies.mine]
        ratio = 3.0
        mode = "shadow"
        """
    )
    mine, own = activate(config, infos, "torchloom.toml").policies
    assert (mine.name, mine.roles, mine.policy.options.ratio) == ("mine", ("trainer",), 1.5)
    assert (own.name, own.roles, own.mode) == ("rollout.mine", ("rollout",), "shadow")
    assert own.policy.options.ratio == 3.0
    both = parse('[policies.mine]\nroles = ["trainer", "rollout"]')
    assert activate(both, infos, "t").policies[0].roles == ("trainer", "rollout")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[roles.a.policies.mien]", "t:1: roles.a.policies.mien: no policy has this name"),
        ("[roles.a.policies.mine]\nratoi = 1", "t:2: roles.a.policies.mine.ratoi: unknown key"),
        ("[roles.a.policies.mine]\nroles = ['b']", "t:2: roles.a.policies.mine.roles: unknown key"),
        ("[roles.a.policies.mine]\nmode = 'no'", "t:2: roles.a.policies.mine.mode: need one of"),
        ("[roles.a]\nprize = 2.0", "t:2: roles.a.prize: unknown key; did you mean price?"),
        ("[roles.'a b']", "t:1: roles.a b: need 1 to 64 of A-Z a-z 0-9 _ -, was 'a b'"),
        ("[policies.mine]\nroles = []", "t:2: policies.mine.roles: "),
    ],
)
def test_a_mistake_in_a_role_is_named_with_its_place(text, error):
    infos = [PluginInfo("mine", "policy", "entry", "package", "1.0", cls=plugin())]
    with pytest.raises(ConfigError) as raised:
        activate(parse(text, "t"), infos, "t", text)
    assert str(raised.value).startswith(error)
