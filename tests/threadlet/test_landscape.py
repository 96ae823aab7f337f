"""The loss landscape equals a slow direct evaluation, and the weights are restored."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchloom_threadlet.landscape.curvature import critical_sharpness, curvature
from torchloom_threadlet.landscape.directions import (
    filter_normalised,
    orthogonal_to,
    plane_of,
    update,
)
from torchloom_threadlet.landscape.surface import (
    Surface,
    in_rounds,
    inner,
    norm,
    plane,
    shares,
)


class Bowl:
    """A quadratic loss with a known Hessian."""

    def __init__(self, size=6, seed=0):
        generator = torch.Generator().manual_seed(seed)
        root = torch.randn(size, size, generator=generator, dtype=torch.float64)
        self.hessian = root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)
        self.weights = torch.randn(size, generator=generator, dtype=torch.float64)
        self.surface = Surface([self.weights], self.loss)

    def loss(self):
        return 0.5 * self.weights @ self.hessian @ self.weights + 3.0

    @property
    def gradient(self):
        return self.hessian @ self.weights


def network(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs, targets = torch.randn(32, 5), torch.randint(0, 3, (32,))
    return model, lambda: nn.functional.cross_entropy(model(inputs), targets)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [1e-3, 0.1, 1.0, 30.0])
def test_the_curvature_of_a_quadratic_is_exact(seed, rate):
    bowl = Bowl(seed=seed)
    step = [-rate * bowl.gradient]
    exact = float(step[0] @ bowl.hessian @ step[0])
    assert curvature(bowl.surface, step, 1.0) == pytest.approx(exact, rel=1e-6)
    found = critical_sharpness(bowl.surface, step)
    expected = exact / float(-step[0] @ bowl.gradient)
    assert found.sharpness == pytest.approx(expected, rel=1e-6)
    assert found.critical_step == pytest.approx(2.0 / expected, rel=1e-6)
    assert found.evaluations <= 24


def test_a_typical_update_takes_few_evaluations():
    bowl = Bowl()
    step = [-0.3 * bowl.gradient]
    assert critical_sharpness(bowl.surface, step).evaluations <= 8


def test_a_loss_that_is_no_number_counts_as_a_large_rise():
    weights = torch.tensor([1.0], dtype=torch.float64)

    def loss():
        return weights[0] ** 2 if abs(weights[0]) < 1.5 else float("nan")

    found = critical_sharpness(Surface([weights], loss), [torch.tensor([-0.5]).double()])
    assert found.critical_step == pytest.approx(4.0, rel=1e-6)
    found = critical_sharpness(Surface([weights], loss), [torch.tensor([-100.0]).double()])
    assert found.critical_step == pytest.approx(0.02, rel=1e-6)


def test_the_weights_are_restored_to_the_bit_even_if_the_loss_fails():
    model, loss = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    surface = Surface(model.parameters(), loss)
    direction = filter_normalised(list(model.parameters()), torch.Generator().manual_seed(1))
    for share in (0.1, -3.0, 1e6):
        surface.at((direction, share))
    critical_sharpness(surface, direction)

    def failing():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        Surface(model.parameters(), failing).at((direction, 0.5))
    for parameter, saved in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, saved)


def test_a_plane_equals_a_slow_direct_evaluation():
    model, loss = network()
    generator = torch.Generator().manual_seed(2)
    own = [parameter.detach().clone() for parameter in model.parameters()]
    first = filter_normalised(own, generator)
    second = orthogonal_to(filter_normalised(own, generator), first)
    along = shares(5, 1.0)
    surface = Surface(model.parameters(), loss)
    cells = list(plane(surface, first, second, along, in_rounds(5)))
    assert len(cells) == 25
    for row, column, found in cells:
        with torch.no_grad():
            for parameter, start, a, b in zip(model.parameters(), own, first, second, strict=True):
                parameter.copy_(start).add_(a, alpha=along[row]).add_(b, alpha=along[column])
            assert found == float(loss())
            for parameter, start in zip(model.parameters(), own, strict=True):
                parameter.copy_(start)


@given(st.integers(9, 60))
def test_any_prefix_of_a_plane_is_a_coarse_map_of_all_of_it(points):
    begun = list(in_rounds(points))[: points * points // 3]
    for row in range(0, points, 4):
        for column in range(0, points, 4):
            near = min(max(abs(row - r), abs(column - c)) for r, c in begun)
            assert near <= points / 4 + 1


def test_each_filter_of_a_random_direction_has_the_norm_of_the_weights():
    model, _ = network()
    parameters = list(model.parameters())
    direction = filter_normalised(parameters, torch.Generator().manual_seed(0))
    again = filter_normalised(parameters, torch.Generator().manual_seed(0))
    for parameter, part, same in zip(parameters, direction, again, strict=True):
        assert torch.equal(part, same)
        assert part.dtype == parameter.dtype
        if parameter.dim() < 2:
            assert not part.any()
        else:
            torch.testing.assert_close(part.norm(dim=1), parameter.detach().norm(dim=1))


def test_a_path_within_a_plane_is_shown_completely():
    generator = torch.Generator().manual_seed(0)
    axes = [torch.randn(2, 7, generator=generator).double() for _ in range(2)]
    origin = torch.randn(7, generator=generator).double()
    ways = [(3.0, 0.5), (2.0, 1.5), (1.0, 0.7), (0.4, 0.1), (0.0, 0.0)]
    checkpoints = [[origin + a * axes[0][0] + b * axes[0][1]] for a, b in ways]
    found = plane_of(checkpoints)
    assert sum(found.variance_explained) == pytest.approx(1.0)
    assert max(found.distances) < 1e-6
    assert found.coordinates[-1] == (0.0, 0.0)
    first, second = found.directions
    assert norm(first) == pytest.approx(1.0)
    assert norm(second) == pytest.approx(1.0)
    assert inner(first, second) == pytest.approx(0.0, abs=1e-9)
    for checkpoint, (x, y) in zip(checkpoints, found.coordinates, strict=True):
        (way,) = update(checkpoints[-1], checkpoint)
        torch.testing.assert_close(x * first[0] + y * second[0], way)


def test_a_loss_that_varies_or_is_no_number_is_refused_with_its_values():
    model, loss = network()
    surface = Surface(model.parameters(), loss)
    assert surface.base() == surface.at() == loss().item()
    values = iter([0.25, 0.5])
    with pytest.raises(
        ValueError, match=r"same loss twice at the same weights, was 0\.25 and 0\.5"
    ):
        Surface(model.parameters(), lambda: next(values)).base()
    with pytest.raises(ValueError, match="need a loss that is a number, was nan"):
        Surface(model.parameters(), lambda: math.nan).base()
