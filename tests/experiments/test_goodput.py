import json
from pathlib import Path

import msgspec

from experiments.goodput_2048 import run
from torchloom_core.config.loading import load
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.goodput.job import STALLS, paid_nodes
from torchloom_core.lab.trace.importers.infinitehbd import NODES

HERE = Path(run.__file__).parent
RESULTS = json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def test_the_two_scenarios_differ_in_how_the_job_recovers_and_in_nothing_else():
    restart, per_step = load(HERE / "restart.toml", {}), load(HERE / "per_step.toml", {})
    assert (restart.evaluate.recovery, per_step.evaluate.recovery) == ("restart", "per_step")
    stalls = dict.fromkeys(STALLS, 0.0)  # no group continues in a job that restarts as a whole
    other = msgspec.structs.replace(per_step.evaluate, recovery="restart", **stalls)
    assert msgspec.structs.replace(per_step, evaluate=other) == restart


def test_the_sweep_is_of_the_job_that_recovers_per_step():
    per_step, spares = load(HERE / "per_step.toml", {}), load(HERE / "spares.toml", {})
    other = msgspec.structs.replace(spares.evaluate, standbys=4, spares=12)
    assert other == per_step.evaluate
    assert (spares.costs, spares.policies) == (per_step.costs, {})


def test_the_job_has_2048_gpus_and_fits_on_the_traces_nodes():
    evaluate = load(HERE / "restart.toml", {}).evaluate
    assert evaluate.groups * evaluate.nodes_per_group * evaluate.gpus_per_node == 2048
    assert paid_nodes(evaluate) <= NODES


def test_every_predictor_takes_the_options_that_it_is_fitted_with():
    from torchloom_core.cli.fit_command import _configured, _given

    for name, given in run.PREDICTORS.items():
        config = load(HERE / "restart.toml", {})
        settings = {**_configured(name, config), **_given(given)}
        config = msgspec.structs.replace(config, policies={}, predictors={name: settings})
        assert not activate(config, installed(), "restart.toml").failed


def test_at_least_20_seeds_are_paired_and_all_are_later_than_the_training():
    assert set(RESULTS) == {*run.SCENARIOS, "spares"}
    for found in RESULTS.values():
        assert len(found["seeds"]) >= 20
        assert any("Runs begin no earlier than day 157" in text for text in found["assumptions"])
    for scenario in run.SCENARIOS:
        found = RESULTS[scenario]
        lengths = {len(goodput) for goodput in found["goodput_by_seed"].values()}
        assert lengths == {len(found["seeds"])}


def test_the_readme_shows_the_tables_of_the_results():
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    for scenario in run.SCENARIOS:
        assert "\n".join(run.table(scenario, RESULTS[scenario])).strip() in readme
    assert "\n".join(run.spares_table(RESULTS["spares"]["sweep"])).strip() in readme
