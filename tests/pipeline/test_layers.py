import pytest
import torch
from torch import nn

from tests.pipeline.programs import program
from torchloom_core.floor.errors import ConfigError
from torchloom_threadlet.layers.layer_state import load_bytes, to_bytes
from torchloom_threadlet.pipeline import attach
from torchloom_threadlet.pipeline.boundaries import boundaries


def trained(number, steps):
    layer = program().layer(number)
    for step in range(steps):
        for weight in layer.parameters:
            weight.grad = torch.full_like(weight, 0.1 * (step + 1))
        layer.commit()
    return layer


def test_a_layer_continues_elsewhere_to_the_bit():
    source, target = trained(1, 3), trained(1, 0)
    load_bytes(target, to_bytes(source))
    for layer in (source, target):
        for weight in layer.parameters:
            weight.grad = torch.full_like(weight, 0.3)
        layer.commit()
    assert torch.equal(source.weights, target.weights)
    assert source.scheduler.state_dict() == target.scheduler.state_dict()


def test_initial_weights_depend_on_seed_and_layer_alone():
    torch.manual_seed(8)
    first = program().layer(2).weights
    assert torch.equal(first, program().layer(2).weights)
    assert not torch.equal(first, program().layer(3).weights)


def test_a_layer_that_does_not_fit_is_named():
    what = program(layers=[lambda: nn.Linear(4, 4), lambda: nn.Linear(5, 5)])
    with pytest.raises(ConfigError, match=r"^pipeline: layer 1 does not take shapes \(2, 4\): "):
        boundaries(what, '[[[2, 4], "float32"]]')


def test_a_layer_whose_forward_changes_a_buffer_is_refused():
    pipeline = attach(
        layers=[lambda: nn.Linear(4, 4), lambda: nn.BatchNorm1d(4)],
        loss=nn.functional.mse_loss,
        optimizer=torch.optim.SGD,
    )
    with pytest.raises(ConfigError, match="running_mean"), pipeline:
        pipeline.step(lambda replica: (torch.ones(4, 4), torch.ones(4, 4)))


def test_an_error_of_the_users_loss_reaches_the_user():
    def loss(output, targets):
        raise RuntimeError("no such loss")

    pipeline = attach(layers=[lambda: nn.Linear(4, 4)], loss=loss, optimizer=torch.optim.SGD)
    with pytest.raises(RuntimeError, match=r"^no such loss$"), pipeline:
        pipeline.step(lambda replica: (torch.ones(4, 4), torch.ones(4, 4)))
