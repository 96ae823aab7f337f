"""The config names a model instead of options, and a policy may want one with skill."""

import re

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.fitting.models import changed
from tests.fitting.plugins import Blind, Heat, info
from torchloom_core.config.loading import parse
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError, ModelError
from torchloom_core.interface.contract import contract_problem
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import PluginInfo
from torchloom_core.lab.evaluate.forecasts.intervals import exact_share
from torchloom_core.lab.fitting.fit import fit
from torchloom_core.lab.learning.model import Model
from torchloom_core.plugin import NeedForecast
from torchloom_core.testing import view_of


class Trusting:
    """A policy that reads heat and blind."""

    name = "trusting"
    needs = (NeedForecast("heat"), NeedForecast("blind"))

    class Options(Heat.Options):
        pass

    def __init__(self, options):
        del options

    def on_tick(self, view):
        return ()


class Wary(Trusting):
    """One that wants skill."""

    name = "wary"
    needs = (NeedForecast("heat", skilled=True), NeedForecast("blind", skilled=True))


class Tolerant(Wary):
    """A policy that needs a skilled model unless its options say otherwise."""

    name = "tolerant"

    class Options(Heat.Options):
        accept_unskilled: bool = False


INFOS = [
    info(Heat),
    info(Blind),
    *(
        PluginInfo(p.name, "policy", p.name, "tests", "1.0", cls=p)
        for p in (Trusting, Wary, Tolerant)
    ),
]


@pytest.fixture(scope="module")
def folder(bundle, settings, tmp_path_factory):
    """Models of a predictor with skill and of one without."""
    folder = tmp_path_factory.mktemp("models")
    for cls in (Heat, Blind):
        fit(bundle, info(cls), {}, settings).save(folder / f"{cls.name}.tlmodel")
    return folder


def start(text):
    return activate(parse(text), INFOS, "torchloom.toml", text)


def test_a_model_is_activated_with_what_it_learned_and_named_in_the_versions(folder):
    active = start(f"[predictors.heat]\nmodel = '{folder}/heat.tlmodel'\n")
    predictor = active.predictors["heat"]
    assert predictor.card.verdict.level == "useful"
    assert active.versions["heat"].startswith("tests 1.0, model ")
    hazard = predictor.forecast(view_of({"heat": [0.0, 4.0]}))
    assert 0 < hazard.probability[0] < hazard.probability[1] < 1
    assert not np.array_equal(
        hazard.probability, Heat(Heat.Options()).forecast(view_of({"heat": [0.0, 4.0]})).probability
    )
    assert [need.metric for need in active.needs] == ["heat"]


def test_the_forecast_interval_can_be_set(folder):
    text = f"[predictors.heat]\nmodel = '{folder}/heat.tlmodel'\nevery_s = 60.0\n"
    assert start(text).predictors["heat"].every_s == 60.0


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("horizon_s = 60.0", "torchloom.toml:3: predictors.heat.horizon_s: unknown key"),
        ("every_s = 0.0", "torchloom.toml:3: predictors.heat.every_s: "),
    ],
)
def test_other_keys_beside_a_model_are_refused(folder, line, problem):
    text = f"[predictors.heat]\nmodel = '{folder}/heat.tlmodel'\n{line}\n"
    with pytest.raises(ConfigError) as error:
        start(text)
    assert str(error.value).startswith(problem)


def models(folder, policy):
    return (
        f"[predictors.heat]\nmodel = '{folder}/heat.tlmodel'\n"
        f"[predictors.blind]\nmodel = '{folder}/blind.tlmodel'\n[policies.{policy}]\n"
    )


def held(active):
    (policy,) = active.policies
    assert policy.mode == "dry_run"
    return policy.dry_run_reason


def test_a_policy_shows_only_what_it_would_do_on_a_model_that_is_not_useful(folder):
    active = start(models(folder, "wary"))
    assert held(active).startswith(
        "torchloom.toml:5: policies.wary: need a useful model to act on, was "
        f"{folder}/blind.tlmodel: No skill: AUPRC is not significantly above that of a random score"
    )
    (warning,) = (line for line in active.warnings if "useful" in line)
    assert warning == f"{held(active)} The policy is in dry run until then."


def test_a_policy_in_dry_run_names_the_option_to_act_and_then_acts(folder):
    assert (
        "torchloom.toml:5: policies.tolerant: need a useful model to act on, or accept_unskilled = "
        "true under [policies.tolerant] in a config file that --config names, was "
    ) in held(start(models(folder, "tolerant")))
    started = start(models(folder, "trusting"))
    assert [(p.mode, p.dry_run_reason) for p in started.policies] == [("act", "")]


def test_without_a_config_file_no_table_of_one_is_named_as_the_place(folder):
    config = parse(models(folder, "tolerant"))
    warning = held(activate(config, INFOS, "command line"))
    assert warning.startswith("policy tolerant: need a useful model to act on")


def old_card(folder, tmp_path, **fields):
    """Return a config of a model whose card is of before levels, budget and chance."""
    model = Model.load(folder / "heat.tlmodel")
    fields = {
        "skill": "Skill: much.", "verdict": "", "by_chance": msgspec.UNSET,
        "allowed_per_node_day": msgspec.UNSET, **fields,
    }  # fmt: skip
    card = replace(model.card, score=replace(model.card.score, **fields))
    Model(model.info, model.parts, card).save(tmp_path / "old.tlmodel")
    return (
        f"[predictors.heat]\nmodel = '{tmp_path}/old.tlmodel'\n[predictors.blind]\n"
        "[policies.wary]\n"
    )


def test_an_older_card_is_judged_by_the_current_rule(folder, tmp_path):
    """The card holds the rule of the time it was written."""
    text = old_card(folder, tmp_path, recall=exact_share(0, 50), leads_s=())
    assert re.search(r"old\.tlmodel: Weak: .* found none of", held(start(text)))


def test_an_older_card_that_is_useful_by_the_rule_of_today_is_acted_on(folder, tmp_path):
    assert start(old_card(folder, tmp_path)).policies[0].mode == "act"


def test_a_model_that_reads_what_knows_the_future_is_refused_in_one_line(folder, tmp_path):
    text = old_card(folder, tmp_path, flags=("leaky_column: heat: its first value",))
    with pytest.raises(ConfigError, match=r"old\.tlmodel: Refused: it reads leaky columns: heat"):
        start(text)


def test_a_predictor_without_a_model_has_no_card_and_passes():
    active = activate(
        Config(predictors={"heat": {}, "blind": {}}, policies={"wary": {}}), INFOS, "t.toml"
    )
    assert [p.name for p in active.policies] == ["wary"]


def test_a_predictor_may_have_no_option_called_model():
    class Taken(Heat):
        class Options(Heat.Options):
            model: str = ""

    assert contract_problem("predictor", Taken) == (
        "need Options without a field called model, which names a fitted model"
    )


def test_a_model_with_another_tick_than_it_was_fitted_on_causes_a_warning(folder):
    text = f"[predictors.heat]\nmodel = '{folder}/heat.tlmodel'\n"
    assert start(f"[weaver]\ntick_s = 43_200.0\n{text}").warnings == ()
    assert start(text).warnings == (
        "predictor heat: its model was fitted with one sample every 43200 s, but weaver.tick_s is "
        "1 s",
    )


def test_a_model_that_detects_is_taken_for_no_forecast(folder, tmp_path):
    model, path = Model.load(folder / "heat.tlmodel"), tmp_path / "now.tlmodel"
    changed(model, task="detect").save(path)
    with pytest.raises(ModelError) as error:
        start(f"[predictors.heat]\nmodel = '{path}'\n")
    assert str(error.value) == (
        f"{path}: need a model that was fitted with --task forecast, was detect: it "
        f"detects present incidents, but does not forecast failures"
    )
