import copy
import logging

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torchft import Optimizer

from torchloom_threadlet.training.optimizer_knobs import settings


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))


def adamw(**options):
    body, head = model()
    groups = [
        {"params": body.parameters(), "lr": 0.01, "weight_decay": 0.1},
        {"params": head.parameters(), "lr": 0.03, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, **options)


def knobs(optimizer, scheduler=None):
    return {setting.name: setting for setting in settings(optimizer, scheduler)}


def values(optimizer, key):
    return [group[key] for group in optimizer.param_groups]


def run(optimizer, scheduler, steps=1):
    for _ in range(steps):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        if scheduler:
            scheduler.step()


def test_an_optimizer_has_the_knobs_of_its_kind():
    parameters = list(model().parameters())
    names = ["lr", "beta1", "beta2", "weight_decay"]
    assert list(knobs(torch.optim.AdamW(parameters))) == names
    assert list(knobs(torch.optim.SGD(parameters, lr=1.0))) == ["lr", "momentum", "weight_decay"]
    assert list(knobs(torch.optim.Rprop(parameters))) == ["lr"]


def test_groups_keep_the_ratios_of_their_learning_rates():
    optimizer = adamw()
    lr = knobs(optimizer)["lr"]
    assert lr.get() == 0.01
    lr.set(0.02)
    assert lr.get() == 0.02
    assert values(optimizer, "lr") == pytest.approx([0.02, 0.06])


def test_a_rate_of_0_is_undone_with_the_ratios_also_by_a_joiner():
    optimizer, joiner = adamw(), adamw()
    knobs(optimizer)["lr"].set(0.0)
    assert values(optimizer, "lr") == [0.0, 0.0]
    joiner.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each in (optimizer, joiner):
        knobs(each)["lr"].set(0.1)
        assert values(each, "lr") == pytest.approx([0.1, 0.3])
    assert values(optimizer, "lr") == values(joiner, "lr")


def test_groups_without_decay_stay_without():
    optimizer = adamw()
    decay = knobs(optimizer)["weight_decay"]
    for value in (0.5, 0.0, 0.2):
        decay.set(value)
        assert values(optimizer, "weight_decay") == [value, 0.0]


def test_decay_begins_in_all_groups_if_there_was_none():
    optimizer = torch.optim.SGD([{"params": [torch.ones(1)]}, {"params": [torch.ones(1)]}], lr=1.0)
    knobs(optimizer)["weight_decay"].set(0.3)
    assert values(optimizer, "weight_decay") == [0.3, 0.3]


def test_betas_and_momentum_are_set_in_all_groups():
    optimizer = adamw()
    knobs(optimizer)["beta1"].set(0.5)
    knobs(optimizer)["beta2"].set(0.7)
    assert values(optimizer, "betas") == [(0.5, 0.7)] * 2
    sgd = torch.optim.SGD(model().parameters(), lr=1.0)
    knobs(sgd)["momentum"].set(0.8)
    assert values(sgd, "momentum") == [0.8]


def test_torchfts_inner_optimizer_is_set_through_the_wrapper():
    inner = adamw()
    knobs(Optimizer(manager=None, optim=inner))["lr"].set(0.5)
    assert inner.param_groups[0]["lr"] == 0.5


def test_a_rate_in_a_cuda_graph_is_changed_in_place():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.SGD(model().parameters(), lr=rate)
    knobs(optimizer)["lr"].set(0.25)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.25


SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.001),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, [0.1, 0.3], 20),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(o, 20)],
        [3],
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_continues_from_the_rate_that_was_set(name):
    optimizer, undisturbed = adamw(), adamw()
    scheduler, other = SCHEDULERS[name](optimizer), SCHEDULERS[name](undisturbed)
    run(optimizer, scheduler, 2)
    run(undisturbed, other, 2)
    lr = knobs(optimizer, scheduler)["lr"]
    factor = 0.5 / lr.get()
    lr.set(0.5)
    assert lr.get() == 0.5
    for _ in range(6):
        rates = [factor * rate for rate in values(undisturbed, "lr")]
        assert values(optimizer, "lr") == pytest.approx(rates)
        run(optimizer, scheduler)
        run(undisturbed, other)


def test_a_schedule_is_not_multiplied_by_0():
    optimizer = adamw()
    scheduler = SCHEDULERS["lambda"](optimizer)
    lr = knobs(optimizer, scheduler)["lr"]
    with pytest.raises(ValueError, match="need a learning rate > 0 to scale a schedule, was 0"):
        lr.set(0.0)
    assert values(optimizer, "lr") == [0.01, 0.03]


def test_a_schedule_that_is_still_at_0_is_scaled_as_a_whole():
    optimizer = adamw()
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    lr = knobs(optimizer, scheduler)["lr"]
    assert lr.low <= lr.get() == 0.0
    lr.set(0.5)
    run(optimizer, scheduler, 10)
    assert values(optimizer, "lr") == pytest.approx([0.5, 1.5])


def test_a_change_that_a_scheduler_undoes_is_warned_of_once(caplog):
    optimizer = adamw()
    scheduler = SCHEDULERS["lambda"](optimizer)
    lr = knobs(optimizer)["lr"]
    lr.set(0.5)
    with caplog.at_level(logging.WARNING):
        run(optimizer, scheduler, 4)
    (record,) = caplog.records
    assert record.getMessage() == (
        "lr was set to 0.5, but something else has set it to 0.005 since: pass the scheduler with "
        "scheduler="
    )


def test_a_healed_rate_causes_no_warning(caplog):
    optimizer = adamw()
    state = copy.deepcopy(optimizer.state_dict())
    knobs(optimizer)["lr"].set(0.5)
    optimizer.load_state_dict(state)
    run(optimizer, None, 2)
    assert not caplog.records
