import pytest
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import nn
from torchft import Optimizer

from tests.threadlet.training.groups import train, with_torchft
from torchloom_threadlet.training.decoupled_momentum import DecoupledMomentum, _Layout

SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=4).map(tuple)


@given(shape=SHAPES, chunk=st.integers(1, 5))
def test_the_inverse_transform_restores_the_tensor(shape, chunk):
    tensor = torch.randn(shape)
    layout = _Layout(tensor.shape, chunk)
    torch.testing.assert_close(layout.restored(layout.transformed(tensor)), tensor)


def test_the_transform_is_the_orthonormal_cosine_transform_of_each_chunk():
    tensor = torch.randn(8, 12)
    found = _Layout(tensor.shape, 4).transformed(tensor)
    expected = [
        scipy.fft.dctn(tensor[row : row + 4, column : column + 4].numpy(), norm="ortho")
        for row in (0, 4)
        for column in (0, 4, 8)
    ]
    expected = torch.stack([torch.from_numpy(chunk).flatten() for chunk in expected])
    torch.testing.assert_close(found, expected.float())


def one(top_k, gradients, **options):
    weight = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = DecoupledMomentum([weight], lr=1.0, top_k=top_k, sign=False, **options)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight, optimizer


def test_with_every_coefficient_sent_it_is_plain_gradient_descent():
    gradients = [torch.randn(5, 7) for _ in range(4)]
    weight, _ = one(100, gradients, momentum_decay=0.9)
    torch.testing.assert_close(weight.data, -sum(gradients))


def test_the_unsent_part_stays_in_the_momentum():
    gradients = [torch.randn(6, 6) for _ in range(5)]
    weight, optimizer = one(2, gradients, momentum_decay=1.0, chunk=3)
    (left,) = optimizer._momenta.values()
    assert left.norm() > 0.5
    torch.testing.assert_close(left - weight.data, sum(gradients))


def test_weights_decay_apart_from_the_momentum():
    weight = nn.Parameter(torch.ones(4))
    optimizer = DecoupledMomentum([weight], lr=0.1, weight_decay=0.5)
    weight.grad = torch.zeros(4)
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.full((4,), 0.95))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "need lr >= 0, was -1"),
        ({"momentum_decay": 1.5}, "need 0 <= momentum_decay <= 1, was 1.5"),
        ({"chunk": 182}, "need 1 <= chunk <= 181, was 182"),
        ({"top_k": 0}, "need top_k >= 1, was 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DecoupledMomentum([torch.ones(1)], **{"lr": 0.1} | options)


def test_the_state_dict_has_no_momentum_of_its_own():
    _, optimizer = one(1, [torch.randn(6, 6)])
    assert not optimizer.state_dict()["state"]


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))


def train_digits(steps, between=lambda manager, pg, inner: None, *, async_quorum=False):
    """Train three groups; return their weights, momenta and last losses."""
    digits = load_digits()
    images, labels = torch.tensor(digits.data).float() / 16, torch.tensor(digits.target)
    models = [build() for _ in range(3)]

    def body(group, manager, pg):
        model = models[group]
        inner = DecoupledMomentum(model.parameters(), lr=4e-3, pg=pg, manager=manager, top_k=16)
        optimizer = Optimizer(manager, inner)
        generator = torch.Generator().manual_seed(group)
        losses = []
        while manager.current_step() < steps:
            optimizer.zero_grad()
            rows = torch.randint(len(images), (32,), generator=generator)
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            between(manager, pg, inner)
            inner.exchange()
            optimizer.step()
            losses.append(loss.item())
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        momenta = torch.cat([momentum.flatten() for momentum in inner._momenta.values()])
        return weights, momenta, losses, inner.bytes_sent

    def states(group):
        return lambda: models[group].state_dict(), models[group].load_state_dict

    return train(3, body, states=states, async_quorum=async_quorum)


@pytest.mark.long
@with_torchft
@pytest.mark.parametrize("async_quorum", [False, True])
def test_torchft_groups_learn_with_few_coefficients_and_have_equal_weights(async_quorum):
    trained = train_digits(150, async_quorum=async_quorum)
    weights, momenta, losses, bytes_sent = zip(*trained, strict=True)
    assert all(torch.equal(one, weights[0]) for one in weights)
    assert not torch.equal(momenta[0], momenta[1])
    assert {len(each) for each in losses} == {150}  # no step failed
    assert all(sum(each[-5:]) / 5 < 0.7 < each[0] for each in losses)
    # Chunks: 2 of 64 x 64, 2 of 1 x 64, 2 of 10 x 64, 1 of 1 x 10; 6 bytes a value, to two others.
    assert set(bytes_sent) == {(6 * 16 + 10) * 6 * 2}


@with_torchft
def test_an_error_in_the_exchange_fails_the_step_and_leaves_the_momentum():
    before = {}

    def between(manager, pg, inner):
        if manager.current_step() != 3:
            return
        momenta = [momentum.clone() for momentum in inner._momenta.values()]
        if inner not in before:
            before[inner] = momenta
            allgather = pg.allgather

            def raise_once(*args):
                pg.allgather = allgather
                raise RuntimeError("planted")

            pg.allgather = raise_once
        else:
            assert all(map(torch.equal, momenta, before[inner]))

    trained = train_digits(6, between)
    weights, _, losses, _ = zip(*trained, strict=True)
    assert all(torch.equal(one, weights[0]) for one in weights)
    assert {len(each) for each in losses} == {7}
