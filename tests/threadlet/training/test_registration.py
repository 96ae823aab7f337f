from typing import NamedTuple

import pytest
import torch
from torch.optim import SGD, AdamW

import torchloom_threadlet
from tests.threadlet.training.groups import train, with_torchft
from torchloom_threadlet.torchft import attach
from torchloom_threadlet.training.global_batch import GlobalBatch
from torchloom_threadlet.training.gradients import Gradients
from torchloom_threadlet.training.optimizer_knobs import settings
from torchloom_threadlet.training.switchable import SwitchableOptimizer

VALUES = {
    "optimizer": "sgd",
    "clip_norm": 1.5,
    "gradient_noise": 0.25,
    "skip_updates": 2,
    "lr": 0.125,
    "momentum": 0.5,
    "weight_decay": 0.75,
    "micro_batch": 8,
    "global_batch": 40,
}


class AtStep(NamedTuple):
    """All that a batch asks of a Manager for its knobs."""

    step: int

    def current_step(self):
        return self.step


def test_every_knob_is_registered_for_the_run_and_is_what_it_was_set_to():
    loom = torchloom_threadlet.attach()
    factories = {"adamw": AdamW, "sgd": lambda params: SGD(params, lr=0.1)}
    optimizer = SwitchableOptimizer([torch.nn.Parameter(torch.ones(2))], factories, "adamw")
    for each in (optimizer, Gradients(optimizer, step=lambda: 0), *settings(optimizer)):
        each.register(loom)
    batch = GlobalBatch(100, 20, 4)
    batch.register(loom, AtStep(3))
    actuators = loom._worker.actuators
    assert {spec.name for spec in actuators.specs} == {*VALUES, "beta1", "beta2"}
    assert {spec.fence for spec in actuators.specs} == {"run"}
    for name, value in VALUES.items():
        actuators.set_knob(name, value)
        assert actuators.values[name] == value
    assert optimizer.active == "sgd"
    assert torch.equal(batch.rows(3), GlobalBatch(100, 100, 4).rows(0)[60:])
    assert [optimizer.param_groups[0][name] for name in ("lr", "momentum", "weight_decay")] == [
        VALUES[name] for name in ("lr", "momentum", "weight_decay")
    ]


def switchable():
    factories = {"adamw": AdamW, "sgd": lambda params: SGD(params, lr=0.1, momentum=0.9)}
    return SwitchableOptimizer([torch.nn.Parameter(torch.ones(2))], factories, "adamw")


@with_torchft
def test_a_joiner_has_its_peers_optimizer_before_the_settings_of_that_one():
    def manage(group, manager, pg):
        loom, optimizer = attach(group=f"g{group}"), switchable()
        loom.manage(manager, optimizer)
        return loom._worker, optimizer

    (peer, _), (joiner, optimizer) = train(2, manage)
    peer.actuators.set_knobs({"optimizer": "sgd"})
    joiner.take_over(peer.changes.standing(peer.actuators.fenced_values()))
    assert optimizer.active == "sgd"
    assert joiner.actuators.values["momentum"] == 0.9


def test_a_rate_that_is_set_with_an_optimizer_is_the_new_ones_however_they_are_named():
    loom, optimizer = torchloom_threadlet.attach(), switchable()
    for each in (optimizer, *settings(optimizer)):
        each.register(loom)
    loom._worker.actuators.set_knobs({"lr": 0.25, "optimizer": "sgd"})
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer.switch("adamw")
    assert optimizer.param_groups[0]["lr"] == 0.001


def test_what_a_rate_was_before_is_that_of_the_optimizer_which_is_active_then():
    loom, optimizer = torchloom_threadlet.attach(), switchable()
    for each in (optimizer, *settings(optimizer)):
        each.register(loom)
    loom._worker.actuators.set_knobs({"optimizer": "sgd"})
    assert loom._worker.actuators.set_knobs({"lr": 0.25}) == {"lr": 0.1}


def test_a_set_of_optimizer_and_rate_that_one_rank_cannot_make_leaves_all_with_the_same_rates():
    def rank(at_fault):
        loom, optimizer, odd = (
            torchloom_threadlet.attach(),
            switchable(),
            {"odd": 0},
        )

        def put(value):
            odd["odd"] = value
            if at_fault and value:
                raise ValueError(value)

        optimizer.register(loom)
        loom.knob("odd", lambda: odd["odd"], put, kind="int", fence="run")
        for setting in settings(optimizer):
            setting.register(loom)
        return loom._worker.actuators, optimizer

    values = {"optimizer": "sgd", "odd": 1, "lr": 0.25}
    (actuators, optimizer), (failing, other) = rank(at_fault=False), rank(at_fault=True)
    actuators.set_back(actuators.set_knobs(values))
    with pytest.raises(ValueError, match="1"):
        failing.set_knobs(values)
    assert optimizer.active == other.active == "adamw"
    assert optimizer.state_dict() == other.state_dict() == switchable().state_dict()


def test_a_value_that_left_its_range_behind_our_back_is_set_back_to_all_the_same():
    loom, rate = torchloom_threadlet.attach(), {"rate": 1.0}

    def put(value):
        if value == 2.0:
            raise ValueError(value)
        rate["rate"] = value

    loom.knob("rate", lambda: rate["rate"], put, kind="float", low=0.0, high=5.0, fence="run")
    actuators = loom._worker.actuators
    rate["rate"] = 7.0
    with pytest.raises(ValueError, match="2"):
        actuators.set_knobs({"rate": 2.0})
    before = actuators.set_knobs({"rate": 3.0})
    actuators.set_back(before)
    assert rate["rate"] == 7.0
