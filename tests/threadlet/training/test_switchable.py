import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, Muon, NAdam
from torchft import DistributedDataParallel, Optimizer

from tests.examples import examples
from tests.threadlet.training.groups import train, with_torchft
from torchloom_threadlet.training.gradients import Gradients
from torchloom_threadlet.training.muon import MuonWithAdamW
from torchloom_threadlet.training.optimizer_knobs import settings as optimizer_settings
from torchloom_threadlet.training.switchable import SwitchableOptimizer

FACTORIES = {
    "adamw": lambda params: AdamW(params, lr=0.01),
    "sgd": lambda params: SGD(params, lr=0.05, momentum=0.9),
    "muon": lambda params: MuonWithAdamW(params, lr=0.02),
}


def build(start="adamw", factories=FACTORIES, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, SwitchableOptimizer(model.parameters(), factories, start, **options)


def backward(model, seed):
    generator = torch.Generator().manual_seed(seed)
    model.zero_grad()
    inputs = torch.randn(16, 6, generator=generator)
    loss = (model(inputs) - inputs[:, :3].sin()).square().mean()
    loss.backward()
    return loss


def run(model, optimizer, steps):
    for step in steps:
        backward(model, step)
        optimizer.step()


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("name", FACTORIES)
def test_without_a_switch_it_equals_the_plain_optimizer(name):
    model, optimizer = build(name, warmup_steps=5)
    run(model, optimizer, range(6))
    alone, _ = build()
    run(alone, FACTORIES[name](list(alone.parameters())), range(6))
    assert torch.equal(weights(model), weights(alone))


def test_muon_trains_matrices_and_adamw_the_rest():
    model, _ = build()
    embedding = nn.Parameter(torch.ones(3, 3))
    both = MuonWithAdamW([*model.parameters(), embedding], by_adamw=[embedding])
    by_muon, by_adamw = ([id(p) for p in group["params"]] for group in both.param_groups)
    assert by_muon == [id(model[0].weight), id(model[2].weight)]
    assert by_adamw == [id(model[0].bias), id(model[2].bias), id(embedding)]
    alone, _ = build()
    matrices = Muon([alone[0].weight, alone[2].weight], adjust_lr_fn="match_rms_adamw")
    others = AdamW([alone[0].bias, alone[2].bias], weight_decay=0.1, betas=(0.9, 0.95))
    embedding.grad = torch.zeros(3, 3)
    for step in range(3):
        backward(model, step)
        both.step()
        backward(alone, step)
        matrices.step()
        others.step()
    assert torch.equal(weights(model), weights(alone))


def constant_gradients(start, then, steps, **options):
    """Switch after so many steps of the same gradient; return the state after the switch."""
    model, optimizer = build(start, **options)
    for _ in range(steps):
        backward(model, 0)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)
        optimizer.step()
    optimizer.switch(then)
    return [optimizer.state[parameter] for parameter in model.parameters()]


@pytest.mark.parametrize("start", ["adamw", "sgd"])
def test_the_mean_gradient_is_carried_over_in_the_next_optimizers_scale(start):
    steps = 400  # until SGD's sum has converged
    for state in constant_gradients(start, "muon", steps)[::2]:
        torch.testing.assert_close(
            state["momentum_buffer"], torch.full_like(state["momentum_buffer"], 2.0)
        )
    other = "sgd" if start == "adamw" else "adamw"
    for state in constant_gradients(start, other, steps):
        if other == "sgd":
            buffer, mean = state["momentum_buffer"], 2.0 / (1 - 0.9)
        else:
            buffer, mean = state["exp_avg"], 2.0 * (1 - 0.9)
        torch.testing.assert_close(buffer, torch.full_like(buffer, mean))


def test_adams_state_is_carried_over_to_another_adam_unchanged():
    factories = {"adamw": lambda p: AdamW(p, lr=0.01), "adam": lambda p: Adam(p, lr=0.01)}
    model, optimizer = build("adamw", factories)
    run(model, optimizer, range(3))
    before = copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.switch("adam")
    assert str(optimizer.state_dict()["state"]) == str(before)


def test_an_optimizer_of_an_unknown_kind_starts_anew():
    factories = {"adamw": FACTORIES["adamw"], "nadam": lambda params: NAdam(params)}
    model, optimizer = build("adamw", factories)
    run(model, optimizer, range(3))
    for name in ("nadam", "adamw"):
        optimizer.switch(name)
        assert not optimizer.state
        run(model, optimizer, range(3))
    assert weights(model).isfinite().all()


@pytest.mark.parametrize("start", FACTORIES)
@pytest.mark.parametrize("then", FACTORIES)
def test_training_continues_through_a_switch(start, then):
    model, optimizer = build(start, warmup_steps=5)
    run(model, optimizer, range(60))
    before = sum(backward(model, seed).item() for seed in range(1000, 1010))
    optimizer.switch(then)
    losses = []
    for step in range(60, 120):
        losses.append(backward(model, step).item())
        optimizer.step()
    after = sum(backward(model, seed).item() for seed in range(1000, 1010))
    assert max(losses) < 2 * before / 10 + 0.2
    assert after < before + 0.2


def test_the_rate_rises_after_a_switch_and_the_knob_shows_the_final_one():
    factories = {
        "adamw": FACTORIES["adamw"],
        "sgd": lambda params: SGD(params, lr=0.1),
    }
    model, optimizer = build("adamw", factories, warmup_steps=4)
    run(model, optimizer, range(2))
    optimizer.switch("sgd")
    for step in range(6):
        before = weights(model)
        backward(model, step)
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        optimizer.step()
        rate = 0.1 * min(step + 1, 4) / 4
        torch.testing.assert_close(weights(model), before - rate * gradient)
        assert optimizer.param_groups[0]["lr"] == 0.1


def test_each_optimizer_keeps_its_own_settings(caplog):
    model, optimizer = build()
    knobs = {setting.name: setting for setting in optimizer_settings(optimizer)}
    knobs["lr"].set(0.5)
    knobs["beta1"].set(0.3)
    optimizer.switch("sgd")
    assert knobs["lr"].get() == 0.05
    assert knobs["beta1"].get() is None
    with pytest.raises(ValueError, match="the optimizer has no beta1"):
        knobs["beta1"].set(0.5)
    knobs["momentum"].set(0.7)
    optimizer.switch("adamw")
    assert (knobs["lr"].get(), knobs["beta1"].get(), knobs["momentum"].get()) == (0.5, 0.3, None)
    optimizer.switch("sgd")
    assert knobs["momentum"].get() == 0.7
    run(model, optimizer, range(2))
    assert not caplog.records


def test_hooks_see_the_steps_of_the_active_optimizer():
    model, optimizer = build()
    gradients = Gradients(optimizer, step=lambda: 0)
    for name in FACTORIES:
        optimizer.switch(name)
        before = weights(model)
        run(model, optimizer, range(2))
        gradients.skip_next()
        after = weights(model)
        assert not torch.equal(before, after)
        run(model, optimizer, range(1))
        assert torch.equal(weights(model), after)
        gradients.skip_next(0)


def test_a_state_of_other_optimizers_is_refused():
    _, optimizer = build()
    _, other = build("sgd", {"sgd": FACTORIES["sgd"]})
    with pytest.raises(ValueError, match="need a state of the optimizers adamw, sgd, muon, was"):
        optimizer.load_state_dict(other.state_dict())


def test_added_parameters_are_trained_by_each_optimizer():
    factories = {name: FACTORIES[name] for name in ("adamw", "sgd")}
    model, optimizer = build("adamw", factories)
    run(model, optimizer, range(2))
    more = nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [more], "weight_decay": 0.0})
    for name in ("adamw", "sgd"):
        optimizer.switch(name)
        before = more.detach().clone()
        more.grad = torch.ones(2)
        optimizer.step()
        assert (more < before).all()


MOVES = st.lists(
    st.one_of(
        st.sampled_from([*FACTORIES]),
        st.just("step"),
        st.floats(0.001, 0.1),  # a learning rate
    ),
    max_size=25,
)


@settings(max_examples=examples(50), deadline=None)
@given(moves=MOVES, start=st.sampled_from([*FACTORIES]), joined_at=st.integers(0, 25))
def test_ranks_that_switch_alike_and_a_joiner_have_equal_weights(moves, start, joined_at):
    ranks = [build(start, warmup_steps=3) for _ in range(2)]
    joiner = build("sgd", warmup_steps=3)
    for number, move in enumerate([*moves, "step", *FACTORIES, "step"]):
        if number == min(joined_at, len(moves)):
            model, optimizer = ranks[0]
            joiner[0].load_state_dict(copy.deepcopy(model.state_dict()))
            joiner[1].load_state_dict(copy.deepcopy(optimizer.state_dict()))
            ranks.append(joiner)
        for model, optimizer in ranks:
            if move == "step":
                run(model, optimizer, [number])
            elif isinstance(move, float):
                optimizer_settings(optimizer)[0].set(move)
            else:
                optimizer.switch(move)
    first = weights(ranks[0][0])
    assert all(torch.equal(weights(model), first) for model, _ in ranks[1:])
    assert {optimizer.active for _, optimizer in ranks} == {ranks[0][1].active}


@with_torchft
def test_a_torchft_group_that_heals_takes_over_the_peers_optimizer():
    replicas = [build(start, warmup_steps=3) for start in ("muon", "sgd")]

    def states(group):
        model, optimizer = replicas[group]

        def load(state):
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])

        return lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, load

    def body(group, manager, pg):
        model, inner = replicas[group]
        parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
        seen = []
        while manager.current_step() < 8:
            optimizer.zero_grad()
            seen.append(inner.active)
            inputs = torch.full((4, 6), float(group))
            parallel(inputs).square().mean().backward()
            optimizer.step()
            if manager.current_step() == 4:
                inner.switch("adamw")
        return seen, weights(model)

    (first, weights_of_first), (second, weights_of_second) = train(2, body, states=states)
    assert first == second
    assert set(first[:4]) in ({"muon"}, {"sgd"})  # depends on torchft's source of the state
    assert first[4:] == ["adamw"] * 4
    assert torch.equal(weights_of_first, weights_of_second)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_mean_before_a_zero_gradient_does_not_diverge_in_adam(name):
    weights = torch.nn.Parameter(torch.ones(4))
    factories = {
        "sgd": lambda params: SGD(params, lr=0.1, momentum=0.9),
        "adamw": lambda params: AdamW(params, lr=0.001, weight_decay=0.0),
        "muon": lambda params: MuonWithAdamW(params, lr=0.001, weight_decay=0.0),
    }
    optimizer = SwitchableOptimizer([weights], factories, "sgd")
    weights.grad = torch.full((4,), 0.1)
    optimizer.step()
    optimizer.switch(name)
    before = weights.detach().clone()
    weights.grad = torch.zeros(4)
    optimizer.step()
    assert (weights - before).abs().max() < 0.002


def test_an_unknown_optimizer_is_refused_and_the_active_one_stays():
    _, optimizer = build()
    with pytest.raises(ValueError, match="need one of adamw, sgd, muon, was lion"):
        optimizer.switch("lion")
    with pytest.raises(ValueError, match="need one of adamw, sgd, muon, was lion"):
        build("lion")
    assert optimizer.active == "adamw"
