from typing import NamedTuple

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import StepLR
from torchft import Optimizer

import torchloom_threadlet
from tests.threadlet.training.groups import train, with_torchft
from torchloom_core.floor.errors import KnobError
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
    """The part of a Manager that a batch needs for its knobs."""

    step: int

    def current_step(self):
        return self.step


def test_every_knob_is_run_fenced_and_has_the_value_that_was_set():
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
def test_a_joiner_gets_its_peers_optimizer_before_that_ones_settings():
    def manage(group, manager, pg):
        loom, optimizer = attach(group=f"g{group}"), switchable()
        loom.manage(manager, optimizer)
        return loom._worker, optimizer

    (peer, _), (joiner, optimizer) = train(2, manage)
    peer.actuators.set_knobs({"optimizer": "sgd"})
    joiner.take_over(peer.changes.standing(peer.actuators.fenced_values()))
    assert optimizer.active == "sgd"
    assert joiner.actuators.values["momentum"] == 0.9


def test_a_rate_set_together_with_an_optimizer_is_the_new_optimizers():
    loom, optimizer = torchloom_threadlet.attach(), switchable()
    for each in (optimizer, *settings(optimizer)):
        each.register(loom)
    loom._worker.actuators.set_knobs({"lr": 0.25, "optimizer": "sgd"})
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer.switch("adamw")
    assert optimizer.param_groups[0]["lr"] == 0.001


def test_the_rate_before_a_change_is_that_of_the_then_active_optimizer():
    loom, optimizer = torchloom_threadlet.attach(), switchable()
    for each in (optimizer, *settings(optimizer)):
        each.register(loom)
    loom._worker.actuators.set_knobs({"optimizer": "sgd"})
    assert loom._worker.actuators.set_knobs({"lr": 0.25}) == {"lr": 0.1}


def test_a_failed_change_of_optimizer_and_rate_leaves_all_ranks_with_equal_rates():
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


def test_a_value_outside_its_range_is_still_rolled_back_to():
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


def several():
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    policy, value = SGD(weights[:1], lr=0.1), AdamW(weights[1:], lr=0.2)
    return policy, value, StepLR(value, 5)


def test_a_second_optimizer_has_its_own_prefix_and_its_own_scheduler():
    loom, (policy, value, schedule) = torchloom_threadlet.attach(), several()
    loom.manage(policy, value, schedule)
    values = loom.knobs
    assert {"lr", "momentum", "opt2.lr", "opt2.beta1", "opt2.weight_decay"} <= values.keys()
    assert "beta1" not in values
    loom._worker.actuators.set_knob("lr", 0.5)
    loom._worker.actuators.set_knob("opt2.lr", 0.25)
    assert [each.param_groups[0]["lr"] for each in (policy, value)] == [0.5, 0.25]
    assert schedule.base_lrs == [0.25]


@with_torchft
def test_wrapped_optimizers_report_figures_and_switch_under_their_own_names():
    def manage(group, manager, pg):
        loom, (policy, _, _), inner = attach(group=f"g{group}"), several(), switchable()
        loom.manage(manager, Optimizer(manager, policy), Optimizer(manager, inner))
        for each in (policy, inner):
            each.param_groups[0]["params"][0].grad = torch.full((2,), 3.0)
            each.step()
        loom.step()
        loom._worker.actuators.set_knobs({"opt2.optimizer": "sgd", "opt2.lr": 0.5})
        return loom, inner

    ((loom, inner),) = train(1, manage)
    assert (inner.active, inner.param_groups[0]["lr"]) == ("sgd", 0.5)
    ((_, row),) = loom._worker.samples.take(0)
    assert row["grad_norm"] == row["opt2.grad_norm"] == pytest.approx(18**0.5)


def test_what_is_no_optimizer_is_left_out_with_a_warning(caplog):
    loom, (policy, _, _) = torchloom_threadlet.attach(), several()
    loom.manage(torch.nn.Linear(1, 1), policy)
    assert "lr" in loom.knobs
    assert "manage: need optimizers and their schedulers, was Linear" in caplog.messages


def scheduled():
    loom, optimizer = torchloom_threadlet.attach(), SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    scheduler = StepLR(optimizer, 1, 0.5)
    for each in settings(optimizer, scheduler):
        each.register(loom)
    return loom, optimizer, scheduler


def test_a_scheduled_rate_is_reported_as_it_was_set_also_after_a_restart():
    loom, optimizer, scheduler = scheduled()
    loom._worker.actuators.set_knobs({"lr": 0.5})
    optimizer.step()
    scheduler.step()
    state = loom.state_dict()
    assert (state["knobs"]["lr"], loom.knobs["lr"]) == (0.25, 0.5)
    again, optimizer, scheduler = scheduled()
    again.load_state_dict(state)
    assert (optimizer.param_groups[0]["lr"], again.knobs["lr"]) == (0.25, 0.5)
    assert again.state_dict() == state
    assert again._worker.actuators.set_knobs({"lr": 0.1}) == {"lr": 0.25}


def test_a_rate_that_would_scale_the_whole_schedule_far_up_is_refused():
    loom, optimizer, scheduler = scheduled()
    for _ in range(20):
        optimizer.step()
        scheduler.step()
    check = loom._worker.actuators.check
    with pytest.raises(KnobError, match=r"1 now would scale its highest rate to 1.05e\+06"):
        check({"lr": 1.0})
    check({"lr": 5e-6})
    loom._worker.actuators.set_knobs({"lr": 5e-6})
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 2.5e-6


def test_a_value_that_the_script_has_changed_is_not_overwritten_by_the_checkpoints(caplog):
    def attach(accumulate):
        loom, values = torchloom_threadlet.attach(), {"accumulate": accumulate}
        loom.knob(
            "accumulate",
            lambda: values["accumulate"],
            lambda value: values.update(accumulate=value),
            kind="int",
            fence="run",
        )
        return loom, values

    loom, _ = attach(2)
    loom._worker.actuators.set_knobs({"accumulate": 3})
    state = loom.state_dict()
    again, values = attach(2)
    again.load_state_dict(state)
    assert values["accumulate"] == 3
    edited, values = attach(8)
    edited.load_state_dict(again.state_dict())
    assert values["accumulate"] == 8
    assert "the script has 8, no longer 2: the checkpoint's 3 is ignored" in caplog.text
