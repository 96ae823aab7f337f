"""Directions in weight space: an update, random ones, and those of a run's path."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchloom_threadlet.landscape.surface import Direction, inner, norm

_PLANE = 2


def update(before: Direction, after: Direction) -> list[Tensor]:
    """Return the difference of two sets of weights, as one step of the optimizer."""
    return [b.detach() - a.detach() for a, b in zip(before, after, strict=True)]


def filter_normalised(parameters: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Return a random direction in which each filter has the norm of the weights' filter.

    So models whose layers are rescaled against each other look equally flat or sharp. Parameters of
    less than two dimensions, biases and norms, get 0.

    References
    ----------
    .. [1] Li, Xu, Taylor, Studer, Goldstein: Visualizing the Loss Landscape of Neural Nets,
       NeurIPS 2018, section 4.
    """
    found = []
    for parameter in parameters:
        if parameter.dim() < 2:
            found.append(torch.zeros_like(parameter))
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64, device="cpu")
        own, drawn = (
            tensor.reshape(len(parameter), -1).norm(dim=1)
            for tensor in (parameter.detach().double().cpu(), noise)
        )
        scale = (own / drawn.clamp_min(1e-30)).reshape(-1, *[1] * (parameter.dim() - 1))
        found.append((noise * scale).to(parameter))
    return found


def orthogonal_to(direction: Direction, other: Direction) -> list[Tensor]:
    """Return the part of a direction that is orthogonal to another one."""
    length = inner(other, other)
    share = inner(direction, other) / length if length > 0 else 0.0
    return [d - share * o for d, o in zip(direction, other, strict=True)]


class TrajectoryPlane(NamedTuple):
    """The plane through a run's last weights that is closest to all of its checkpoints.

    ``variance_explained``: the share of the checkpoints' variance along each direction.
    ``coordinates``: each checkpoint's position in the plane; the last one is at the origin.
    """

    directions: tuple[list[Tensor], list[Tensor]]
    variance_explained: tuple[float, float]
    coordinates: list[tuple[float, float]]
    distances: list[float]


def plane_of(checkpoints: Sequence[Direction]) -> TrajectoryPlane:
    """Return the plane of the first two principal components of a run's path.

    Computed from the inner products of the checkpoints' differences to the last one, so that only
    two directions of the size of the model are allocated.

    Raises ValueError if there are fewer than three checkpoints, or they lie on a line.
    """
    if len(checkpoints) <= _PLANE:
        raise ValueError(f"need 3 checkpoints or more for a plane, was {len(checkpoints)}")
    last = checkpoints[-1]
    ways = [update(last, checkpoint) for checkpoint in checkpoints[:-1]]
    products = torch.tensor(
        [[inner(a, b) for b in ways] for a in ways], dtype=torch.float64, device="cpu"
    )
    values, vectors = torch.linalg.eigh(products)
    order = torch.argsort(values, descending=True)[:_PLANE]
    spread = float(values.clamp_min(0.0).sum())
    found: list[list[Tensor]] = []
    explained = []
    for value, column in zip(values[order].tolist(), vectors[:, order].T.tolist(), strict=True):
        if value <= 1e-12 * spread or spread == 0.0:
            raise ValueError("need checkpoints that are not on one line")
        found.append(
            [
                torch.stack([w * part for w, part in zip(column, parts, strict=True)]).sum(0)
                / value**0.5
                for parts in zip(*ways, strict=True)
            ]
        )
        explained.append(value / spread)
    first, second = found
    coordinates = [(inner(way, first), inner(way, second)) for way in ways]
    distances = [
        max(0.0, norm(way) ** 2 - x * x - y * y) ** 0.5
        for way, (x, y) in zip(ways, coordinates, strict=True)
    ]
    return TrajectoryPlane(
        (first, second),
        (explained[0], explained[1]),
        [*coordinates, (0.0, 0.0)],
        [*distances, 0.0],
    )
