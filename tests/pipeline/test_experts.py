"""The experts of a pipeline's lost worker are taken over, restored, or left out."""

import pytest
from torch import nn

from tests.pipeline.fleet import undisturbed
from tests.pipeline.live_worker import attached
from tests.pipeline.programs import Mixture
from tests.waiting import until
from torchloom_core.cli.plan_command import _look
from torchloom_core.floor.errors import ConfigError

pytestmark = pytest.mark.integration
STEPS = 30


def trained(fleet, **options):
    """Kill w1 of three workers with four experts in each of two layers; return what was seen."""
    three = fleet(3)
    options |= {"moe_aux_loss_coeff": 0.0}
    three.start(STEPS, "w0", "w1", "w2", experts=options, replicas=3, step_s=0.02)
    three.kill("w1", after_step=8)
    until(lambda: _look(three.address).assignment.generation == 2)
    experts, why = _look(three.address).assignment.experts, _look(three.address).assignment.why
    three.weights("w0", "w2")
    return experts, why, three.losses("w0")


@pytest.mark.parametrize(
    ("options", "left", "how"),
    [
        ({"mirror_every": 2}, 8, "'s memory"),
        pytest.param({}, 6, "left out", marks=pytest.mark.long),
        pytest.param({"copies": 2}, 8, "routes", marks=pytest.mark.long),
    ],
)
def test_training_goes_on_without_a_worker_with_experts(fleet, options, left, how):
    experts, why, losses = trained(fleet, **options)
    assert sum(map(bool, experts)) == left
    assert how in why
    assert list(losses) == list(range(1, STEPS + 1))
    alone, _ = undisturbed(STEPS, experts={"moe_aux_loss_coeff": 0.0}, replicas=3)
    same = STEPS if "copies" in options else 8
    expected = [alone[step] for step in range(1, same + 1)]
    assert [losses[step] for step in range(1, same + 1)] == pytest.approx(expected, rel=1e-3)


@pytest.mark.long
def test_a_standby_takes_the_place_of_a_worker_with_experts(fleet):
    four = fleet(4, standbys=1)
    four.start(STEPS, "w0", "w1", "w2", "w3", experts={"copies": 2}, replicas=3, step_s=0.02)
    four.kill("w1", after_step=8)
    four.weights("w0", "w2", "w3")
    assert list(four.losses("w0")) == list(range(1, STEPS + 1))


def test_mistakes_with_experts_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match="experts: layer 2: need first_expert=4, was 0"):
        attached("w0", None, layers=[Mixture, nn.Identity, Mixture])
    with pytest.raises(ConfigError, match="checkpoints: need layers without experts"):
        attached("w0", None, experts={}, options={"checkpoints": tmp_path})
