"""The loss landscape equals a slow direct evaluation, and the weights are restored."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchloom_threadlet.landscape.curvature import critical_step, curvature
from torchloom_threadlet.landscape.directions import (
    filter_normalised,
    plane_of,
    update,
)
from torchloom_threadlet.landscape.surface import (
    Surface,
    in_rounds,
    inner,
    norm,
)


class Bowl:
    """A quadratic loss with a known Hessian."""

    def __init__(self, size=6, seed=0):
        generator = torch.Generator().manual_seed(seed)
        root = torch.randn(size, size, generator=generator, dtype=torch.float64)
        self.hessian = root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)
        self.weights = torch.randn(size, generator=generator, dtype=torch.float64)
        self.surface = Surface([self.weights], self.loss)
        self.evaluations = 0

    def loss(self):
        self.evaluations += 1
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
    bowl.evaluations = 0
    expected = exact / float(-step[0] @ bowl.gradient)
    assert critical_step(bowl.surface, step) == pytest.approx(2.0 / expected, rel=1e-6)
    assert bowl.evaluations <= 24


def test_a_typical_update_takes_few_evaluations():
    bowl = Bowl()
    critical_step(bowl.surface, [-0.3 * bowl.gradient])
    assert bowl.evaluations <= 8


def test_a_loss_that_is_no_number_counts_as_a_large_rise():
    weights = torch.tensor([1.0], dtype=torch.float64)

    def loss():
        return weights[0] ** 2 if abs(weights[0]) < 1.5 else float("nan")

    found = critical_step(Surface([weights], loss), [torch.tensor([-0.5]).double()])
    assert found == pytest.approx(4.0, rel=1e-6)
    found = critical_step(Surface([weights], loss), [torch.tensor([-100.0]).double()])
    assert found == pytest.approx(0.02, rel=1e-6)


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
