import math

import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import CONFIG, JOB, policies
from torchloom_core.floor.errors import ConfigError
from torchloom_core.lab.evaluate.goodput.arms import baselines, random_alarms
from torchloom_core.lab.evaluate.goodput.candidates import Selection, candidates
from torchloom_core.lab.evaluate.goodput.job import job_spec, paid_nodes

ARMS = {arm.name: arm for arm in baselines(policies(), JOB)}
PER_STEP = replace(CONFIG, evaluate=replace(JOB, recovery="per_step"))
MTBF_S = 50_000.0


def spec(name, config=CONFIG):
    return job_spec(ARMS[name], config, MTBF_S)


def arms(config=CONFIG, **selected):
    return candidates(Selection(**selected), config, policies())


def test_every_baseline_and_oracle_of_the_method_is_there():
    assert {arm.name for arm in [*ARMS.values(), random_alarms(1.0)]} == {
        "no_failures",
        "static_30min",
        "static_1h",
        "static_3h",
        "young",
        "daly",
        "daly_online",
        "restart",
        "per_step",
        "warm_standby",
        "random_alarms",
        "always_alarm",
        "oracle",
        "clairvoyant",
    }


@pytest.mark.parametrize("name", ["daly", "elastic", "oracle", "random_alarms"])
def test_a_candidate_cannot_have_the_name_of_a_built_in_arm(name, tmp_path):
    message = f"need a name other than the built-in arms', was '{name}'"
    with pytest.raises(ConfigError, match=f"^--policy: {message}$"):
        arms(policies=(name,))
    config = replace(CONFIG, policies={"straggler": {}})
    with pytest.raises(ConfigError, match=f"^--config .*: {message}$"):
        arms(config, config_path=tmp_path / f"{name}.toml")


@pytest.mark.parametrize("was", [{"a": 1}, 0, ["ewma"]])
def test_a_policy_that_names_no_predictor_by_a_text_is_refused(was):
    config = replace(CONFIG, policies={"failure_forecast": {"predictor": was}})
    message = "^policies.failure_forecast.predictor: need the name of a predictor, was "
    with pytest.raises(ConfigError, match=message):
        arms(config, policies=("failure_forecast",))


def test_arms_whose_policy_is_missing_are_left_out():
    names = {arm.name for arm in baselines({}, JOB)}
    assert "static_1h" in names
    assert names.isdisjoint({"daly_online", "always_alarm", "oracle"})


def test_only_a_job_that_recovers_per_step_can_be_elastic():
    names = {arm.name for arm in baselines(policies(), PER_STEP.evaluate)}
    assert names - set(ARMS) == {"elastic"}
    assert "elastic" not in {arm.name for arm in baselines({}, PER_STEP.evaluate)}


@pytest.mark.parametrize("name", sorted(ARMS))
def test_every_arm_pays_for_the_same_nodes(name):
    assert spec(name).nodes == paid_nodes(JOB)


def test_each_arm_has_its_own_interval():
    assert spec("static_30min").durable.interval_s == 1800.0
    assert spec("young").durable.interval_s == pytest.approx(math.sqrt(2 * 20 * MTBF_S))
    assert spec("daly").durable.interval_s < spec("young").durable.interval_s
    assert spec("clairvoyant").durable.interval_s == math.inf
    assert spec("warm_standby").durable.interval_s == spec("daly").durable.interval_s
    given = replace(CONFIG, evaluate=replace(JOB, checkpoint_interval_s=777.0))
    assert spec("warm_standby", given).durable.interval_s == 777.0
    assert spec("daly_online", given).durable.interval_s == 777.0
    assert spec("static_1h", given).durable.interval_s == 3600.0


def test_an_arm_may_set_its_own_recovery_and_standbys():
    assert (spec("restart").standbys, spec("restart").spares) == (0, 3)
    assert spec("per_step").recovery == "per_step"
    assert spec("daly").recovery == JOB.recovery
    assert spec("daly").standbys == JOB.standbys


# --- candidates ---


def test_a_policy_is_an_arm_and_several_together_are_one():
    one, both = arms(policies=("straggler", "straggler+silence"))
    assert list(one.policies) == ["straggler"]
    assert list(both.policies) == ["straggler", "silence"]
    assert not both.needs_forecast


def test_a_policy_takes_its_options_from_the_config_but_acts_whatever_its_mode():
    table = {"ratio": 3.0, "mode": "shadow"}
    (arm,) = arms(replace(CONFIG, policies={"straggler": table}), policies=("straggler",))
    assert arm.policies == {"straggler": {"ratio": 3.0}}


def test_each_predictor_makes_an_arm_of_a_policy_that_reads_forecasts(tmp_path):
    selected = (("ewma", ""), ("trend", str(tmp_path / "m.tlmodel")))
    first, second = arms(policies=("failure_forecast",), predictors=selected)
    assert first.name == "failure_forecast(ewma)"
    assert first.policies == {"failure_forecast": {"predictor": "ewma"}}
    assert list(first.predictors) == ["ewma"]
    assert second.predictors == {"trend": {"model": str(tmp_path / "m.tlmodel")}}
    assert first.needs_forecast


TWO_MODELS = (("trend", "old.tlmodel"), ("trend", "new.tlmodel"))


@pytest.mark.parametrize("table", [{}, {"predictor": "trend"}], ids=["open", "set in the config"])
def test_each_model_of_a_predictor_makes_an_arm_under_its_own_name(tmp_path, monkeypatch, table):
    monkeypatch.chdir(tmp_path)
    config = replace(CONFIG, policies={"failure_forecast": table})
    first, second = arms(config, policies=("failure_forecast",), predictors=TWO_MODELS)
    assert (first.name, second.name) == (
        "failure_forecast(trend=old)",
        "failure_forecast(trend=new)",
    )
    assert second.what == "failure_forecast, with forecasts of trend=new"
    assert first.predictors == {"trend": {"model": str(tmp_path / "old.tlmodel")}}
    assert second.predictors == {"trend": {"model": str(tmp_path / "new.tlmodel")}}
    assert second.policies == {"failure_forecast": {"predictor": "trend"}}


def test_a_whole_config_is_one_arm_and_takes_one_model_of_a_predictor(tmp_path):
    config = replace(CONFIG, policies={"failure_forecast": {"predictor": "trend"}})
    path = tmp_path / "mine.toml"
    (arm,) = arms(config, predictors=TWO_MODELS[:1], config_path=path)
    assert arm.predictors["trend"]["model"].endswith("old.tlmodel")
    with pytest.raises(ConfigError, match="was trend=old and trend=new"):
        arms(config, predictors=TWO_MODELS, config_path=path)


def test_a_config_policy_without_a_predictor_reads_the_selected_one(tmp_path):
    tables = {"failure_forecast": {}, "checkpoint_interval": {}, "straggler": {}}
    config = replace(CONFIG, policies=tables)
    path = tmp_path / "mine.toml"
    (arm,) = arms(config, predictors=(("ewma", ""),), config_path=path)
    assert arm.policies == {**tables, "failure_forecast": {"predictor": "ewma"}}
    assert arm.what == "all of mine.toml, with forecasts of ewma"
    (alone,) = arms(config, config_path=path)
    assert (alone.policies, alone.what) == (tables, "all of mine.toml")
    with pytest.raises(ConfigError) as refused:
        arms(config, predictors=(("ewma", ""), ("trend", "")), config_path=path)
    assert str(refused.value) == (
        "--predictor: need a --policy for several predictors, or only one with mine.toml, was "
        "ewma and trend"
    )


def test_a_predictor_alone_is_no_arm():
    assert arms(predictors=(("ewma", ""),)) == []


def test_a_policy_that_can_do_without_forecasts_is_given_none():
    (arm,) = arms(policies=("checkpoint_interval",), predictors=(("ewma", ""),))
    assert arm.policies == {"checkpoint_interval": {}}
    assert not arm.predictors


def test_the_predictor_set_in_the_config_has_priority():
    config = replace(CONFIG, policies={"failure_forecast": {"predictor": "trend"}})
    (arm,) = arms(config, policies=("failure_forecast",), predictors=(("ewma", ""),))
    assert list(arm.predictors) == ["trend"]


def test_a_config_file_alone_is_one_arm_with_all_that_is_active_in_it(tmp_path):
    config = replace(CONFIG, policies={"silence": {}, "straggler": {"mode": "dry_run"}})
    (arm,) = arms(config, config_path=tmp_path / "mine.toml")
    assert arm.name == "mine"
    assert arm.policies == config.policies


def test_an_arm_that_sets_the_interval_itself_begins_with_the_first_one():
    (arm,) = arms(policies=("checkpoint_interval",))
    assert job_spec(arm, CONFIG, MTBF_S).durable.interval_s == 3600.0
