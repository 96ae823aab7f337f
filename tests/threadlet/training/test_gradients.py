import copy

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import TCPStore
from torchft import Optimizer

from torchloom_threadlet.training.gradients import Gradients


def build(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01), **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    inner = optimizer(list(model.parameters()))
    return model, inner, Gradients(inner, step=lambda: 5, **options)


def backward(model, scale=1.0):
    torch.manual_seed(1)
    model.zero_grad()
    (scale * model(torch.randn(4, 6)).square().sum()).backward()


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def gradient(model):
    return flat(parameter.grad for parameter in model.parameters())


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


def test_gradients_are_clipped_by_their_global_norm_and_measured_before():
    model, inner, gradients = build(clip_norm=0.5)
    backward(model)
    norm = gradient(model).norm()
    inner.step()
    torch.testing.assert_close(gradients.grad_norm, norm)
    torch.testing.assert_close(gradient(model).norm(), torch.tensor(0.5), rtol=1e-4, atol=0)


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_update_norm_is_the_norm_of_the_weights_change(wrapped):
    model, inner, gradients = build()
    if wrapped:
        gradients = Gradients(Optimizer(None, inner), step=lambda: 0)
    for _ in range(3):
        before = flat(model.parameters()).clone()
        backward(model)
        inner.step()
        change = (flat(model.parameters()) - before).norm()
        torch.testing.assert_close(gradients.update_norm, change)


def test_a_skipped_update_changes_neither_weights_nor_state():
    model, inner, gradients = build()
    backward(model)
    inner.step()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(inner.state_dict())
    gradients.skip_next(2)
    for left in (1, 0):
        backward(model, scale=1000.0)
        inner.step()
        assert gradients.skips == left
        assert gradients.update_norm == 0
        assert gradients.grad_norm > 100
        assert all(map(torch.equal, model.state_dict().values(), weights.values()))
        assert str(inner.state_dict()) == str(state)
    backward(model)
    inner.step()
    assert gradients.update_norm > 0


def test_gradients_of_a_closure_are_measured_clipped_and_skipped_after_it_has_computed_them():
    model, inner, gradients = build(sgd, clip_norm=0.5)
    norms = []

    def closure(scale=1.0):
        backward(model, scale)
        norms.append(gradient(model).norm())
        return scale

    inner.step(lambda: closure(2.0))
    assert inner.step(closure=closure) == 1.0
    torch.testing.assert_close(gradients.grad_norm, norms[1])
    torch.testing.assert_close(gradients.update_norm, torch.tensor(0.5), rtol=1e-4, atol=0)
    before = flat(model.parameters()).clone()
    gradients.skip_next()
    inner.step(closure)
    assert torch.equal(flat(model.parameters()), before)
    inner.step(closure)
    assert not torch.equal(flat(model.parameters()), before)


def test_a_skip_of_a_step_whose_closure_is_called_several_times_skips_it_alone():
    model, inner, gradients = build(lambda some: torch.optim.LBFGS(some, lr=0.1, max_iter=4))
    before = flat(model.parameters()).clone()
    gradients.skip_next(2)

    def closure():
        backward(model)
        return 1.0

    for _ in range(2):
        inner.step(closure)
        assert torch.equal(flat(model.parameters()), before)
    inner.step(closure)
    assert not torch.equal(flat(model.parameters()), before)


def test_a_norm_that_is_known_is_not_computed_again():
    model, inner, gradients = build()
    gradients.known_norm = torch.tensor(7.0)
    for expected in (7.0, None):
        backward(model)
        inner.step()
        expected = gradient(model).norm() if expected is None else torch.tensor(expected)
        torch.testing.assert_close(gradients.grad_norm, expected)


@pytest.mark.parametrize("unscales", [False, True])
def test_a_fused_optimizer_with_a_grad_scaler_is_measured_and_clipped_as_without(unscales):
    def adamw(parameters):
        return torch.optim.AdamW(parameters, lr=0.01, fused=True)

    settings = {"clip_norm": 0.5, "noise": 0.1}
    (model, inner, found), (other, plain, expected) = (build(adamw, **settings) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu")
    for overflows in (False, True, False):
        backward(model, scaler.scale(torch.tensor(float("inf") if overflows else 1.0)))
        if unscales:
            scaler.unscale_(inner)
        scaler.step(inner)
        scaler.update()
        if overflows:
            if not unscales:
                assert found.update_norm == 0
            continue
        backward(other)
        plain.step()
        torch.testing.assert_close(found.grad_norm, expected.grad_norm)
        torch.testing.assert_close(found.update_norm, expected.update_norm)
        torch.testing.assert_close(model.state_dict(), other.state_dict())


def test_noise_is_equal_on_all_ranks_and_differs_between_steps():
    noises = []
    for step in (3, 3, 4):
        model, inner, _ = build(sgd)
        gradients = Gradients(inner, step=lambda step=step: step, noise=0.1, seed=7)
        assert gradients.noise == 0.1
        backward(model)
        before = gradient(model)
        inner.step()
        noises.append(gradient(model) - before)
    assert torch.equal(noises[0], noises[1])
    assert not torch.equal(noises[0], noises[2])
    assert noises[0].std() == pytest.approx(0.1, rel=0.3)


def test_noise_differs_between_parameters_of_a_shape():
    parameters = [nn.Parameter(torch.zeros(50)) for _ in range(2)]
    inner = sgd(parameters)
    Gradients(inner, step=lambda: 1, noise=1.0)
    for parameter in parameters:
        parameter.grad = torch.zeros(50)
    inner.step()
    assert not torch.equal(parameters[0], parameters[1])


def test_frozen_and_added_parameters_are_supported():
    model, inner, gradients = build()
    backward(model)
    model[0].weight.grad = None
    inner.step()
    later = nn.Parameter(torch.ones(2))
    inner.add_param_group({"params": [later]})
    backward(model)
    later.grad = torch.ones(2)
    inner.step()
    assert gradients.update_norm.isfinite()


@pytest.mark.parametrize("name", ["clip_norm", "noise"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_negative_setting_is_refused_and_changes_nothing(name, value):
    _, _, gradients = build(**{name: 0.5})
    with pytest.raises(ValueError, match=f"need {name} >= 0, was {value}"):
        setattr(gradients, name, value)
    assert getattr(gradients, name) == 0.5


def sharded(rank, port, folder):
    """Do a single process's work on one rank of two, with FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    store = TCPStore("localhost", port, is_master=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    gradients = Gradients(inner, step=lambda: 5, clip_norm=0.5)
    backward(model)
    inner.step()
    assert {type(gradients.grad_norm), type(gradients.update_norm)} == {torch.Tensor}
    weights = flat(parameter.full_tensor() for parameter in model.parameters())
    model.zero_grad()
    noisy = Gradients(torch.optim.SGD(model.parameters(), lr=1.0), step=lambda: 5, noise=0.1)
    model(torch.zeros(4, 6)).sum().backward()
    before = [parameter.grad.full_tensor().clone() for parameter in model.parameters()]
    noisy._add_noise(None, model.parameters())
    after = [parameter.grad.full_tensor() for parameter in model.parameters()]
    noise = flat(after) - flat(before)
    torch.save((gradients.grad_norm, gradients.update_norm, weights, noise), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.long
@pytest.mark.integration
def test_shards_are_clipped_and_measured_as_the_whole(tmp_path):
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    mp.spawn(sharded, args=(store.port, tmp_path), nprocs=2)
    model, inner, gradients = build(clip_norm=0.5)
    backward(model)
    inner.step()
    expected = gradients.grad_norm, gradients.update_norm, flat(model.parameters())
    noises = []
    for rank in range(2):
        *found, noise = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(tuple(found), expected)
        noises.append(noise)
    assert torch.equal(*noises)
    assert len(noises[0].unique()) == len(noises[0])  # shards have different noise


def test_a_clip_norm_of_0_leaves_gradients_unchanged():
    model, inner, _ = build()
    backward(model)
    before = gradient(model)
    inner.step()
    assert torch.equal(gradient(model), before)
