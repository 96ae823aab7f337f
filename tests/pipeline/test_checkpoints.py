"""A checkpoint of another program is refused in one line."""

import pytest
from torch import nn

from tests.pipeline.live_worker import attached
from tests.pipeline.programs import WIDTH, Block, batch
from torchloom_core.floor.errors import CheckpointError

pytestmark = pytest.mark.integration
LAYERS = [lambda: nn.Linear(WIDTH, WIDTH), Block, lambda: nn.Linear(WIDTH, 3)]


@pytest.fixture
def saved(tmp_path):
    with attached("w0", None, layers=LAYERS, options={"checkpoints": tmp_path}) as pipeline:
        pipeline.step(lambda replica: batch(0, replica))
    return {"options": {"checkpoints": tmp_path}}


def test_a_checkpoint_with_another_number_of_layers_is_refused(saved):
    with pytest.raises(CheckpointError, match="layers: need 3, as were saved, was 2"):
        attached("w0", None, layers=LAYERS[1:], **saved)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda: nn.Linear(WIDTH, WIDTH, bias=False), "layer 0: .*Unexpected key"),
        (Block, "layer 0: .*Missing key"),
    ],
)
def test_a_layer_of_another_shape_ends_the_script_in_one_line(saved, other, why):
    pipeline = attached("w0", None, layers=[other, *LAYERS[1:]], **saved)
    with pytest.raises(SystemExit, match=why) as ended:
        pipeline.step(lambda replica: batch(1, replica))
    pipeline.close(finished=False)
    assert "\n" not in str(ended.value)


def test_a_rate_that_was_set_is_still_the_reported_one_after_a_start_from_a_checkpoint(tmp_path):
    options = {"options": {"checkpoints": tmp_path}}
    with attached("w0", None, **options) as first:
        first.step(lambda replica: batch(0, replica))
        first.loom.adapter.worker.actuators.set_knob("lr", 0.005)
        for step in range(1, 5):
            first.step(lambda replica, step=step: batch(step, replica))
        rate = first.layers[0].optimizer.param_groups[0]["lr"]
    again = attached("w0", None, **options)
    again.step(lambda replica: batch(5, replica))
    assert again.layers[0].optimizer.param_groups[0]["lr"] <= rate < 0.005
    assert again.loom.adapter.worker.actuators.values["lr"] == 0.005
    again.close(finished=False)
