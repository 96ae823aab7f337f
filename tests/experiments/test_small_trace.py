import tomllib
from pathlib import Path

import msgspec
import pytest

from torchloom_core.config.loading import load
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.goodput.candidates import Selection, candidates
from torchloom_core.lab.evaluate.goodput.job import of_trace
from torchloom_core.lab.evaluate.goodput.run import Setting, simulate
from torchloom_core.lab.trace import Bundle, Parameters, synthesize

HERE = Path(__file__).parents[2] / "experiments" / "small_trace"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.tltrace"
    synthesize(path, msgspec.convert(tomllib.loads((HERE / "fleet.toml").read_text()), Parameters))
    return path


def test_the_small_trace_is_synthetic_and_has_enough_failures_to_tell_something(trace):
    bundle = Bundle.open(trace)
    assert bundle.manifest.synthetic
    assert sum(event.fatal for event in bundle.events()) >= 50


def test_the_rules_see_failures_coming_that_the_policy_then_avoids(trace):
    path = HERE / "torchloom.toml"
    config = of_trace(load(path, {}), Bundle.open(trace))
    policies = {info.name: info.cls for info in installed() if info.kind == "policy"}
    selection = Selection(policies=("failure_forecast",), config_path=path)
    (arm,) = candidates(selection, config, policies)
    run = simulate(Setting(trace=str(trace), config=config, horizon_s=14_400.0), arm, 0)
    assert run.right_moves > 0
    assert not run.quarantined
