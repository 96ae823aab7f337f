from typing import NamedTuple

import torch
from torch.optim import SGD, AdamW

import torchloom_threadlet
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
    loom = torchloom_threadlet.attach("/nowhere/join.json")
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
