"""``torchloom landscape`` with a real Weaver, broker and standby, from the request to the plot."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.integration.conftest import standing_by
from tests.integration.landscape_trainer import NEWEST, network, pinned

pytestmark = pytest.mark.integration

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1

[arbiter]
cooldown_s = 0
"""


def newest():
    """Return the model with the run's newest weights."""
    model = network()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5).add_(0.1)
    return model


@pytest.fixture(scope="module")
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    return run


@pytest.fixture
def v0(run):
    """A standby that offers to look, and has a checkpoint of the run's to look at."""
    save_file(newest().state_dict(), run.folder / NEWEST)
    yield from _standing_by(run, "v0")


def _standing_by(run, group, **environment):
    standby = run.start_landscape_trainer(group, **environment)
    return standing_by(run, standby, f"{group}-0")


@pytest.mark.long
def test_the_landscape_equals_a_direct_evaluation_and_is_recorded(run, v0):
    result = run.torchloom("landscape", "--side", "5", "--json", "--plot", "seen.svg")
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    model = newest()
    loss = pinned(model)
    weights = list(model.parameters())
    own = [weight.detach().clone() for weight in weights]
    way = [-gradient for gradient in torch.autograd.grad(loss, weights)]
    assert seen["bend"]["loss"] == loss.item()
    assert len(seen["line"]) == 5
    for share, loss in seen["line"]:
        with torch.no_grad():
            for weight, start, part in zip(weights, own, way, strict=True):
                weight.copy_(start).add_(part, alpha=share)
            assert loss == float(pinned(model))
    assert len(seen["cells"]) == 25
    assert seen["end"]["why"] == ""
    assert (run.folder / "seen.svg").stat().st_size > 10_000
    again = run.torchloom("landscape", run.trajectory, "--json")
    assert json.loads(again.stdout) == seen
    table = run.torchloom("landscape", run.trajectory).stdout
    for part in ("computed on v0-0", "critical step", "25 points", "the gradient"):
        assert part in table


@pytest.mark.long
def test_two_standbys_together_compute_what_one_computes(run, v0):
    alone = json.loads(run.torchloom("landscape", "--side", "5", "--seed", "2", "--json").stdout)
    for _ in _standing_by(run, "v1"):
        words = ("--side", "5", "--seed", "2", "--over", "2", "--json")
        result = run.torchloom("landscape", *words)
        assert result.returncode == 0, result.stderr
        seen = json.loads(result.stdout)
    assert seen["worker"] == "v0-0, v1-0"
    assert seen["plane"]["parts"] == 2
    for part in ("bend", "line", "cells"):
        assert seen[part] == alone[part]
    assert seen["end"]["why"] == ""


@pytest.mark.long
def test_a_loss_that_is_another_each_time_is_one_line_and_the_stand_by_waits_on(run):
    save_file(newest().state_dict(), run.folder / NEWEST)
    for trainer in _standing_by(run, "n0", TEST_NOISE="1"):
        result = run.torchloom("landscape")
        assert result.returncode == 5
        assert "need the same loss twice at the same weights, was " in result.stderr
        assert result.stderr.count("\n") == 1
        assert trainer.process.poll() is None
        assert run.worker("n0-0")["state"] == "standby"
