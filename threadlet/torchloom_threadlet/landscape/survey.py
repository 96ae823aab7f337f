"""What a script offers its standby to look at the loss with, and how a look goes.

First how the loss bends along the update, then the line along it, then a plane: what is cheap and
says most comes first, and whoever has enough may end it at any point. The worker calls
:meth:`Landscape.run` in the thread that stands by.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec
import torch
from torch import Tensor, nn

from torchloom_core.wire.landscape import MOST_CHECKPOINTS, Bend, Look, Piece, Plane
from torchloom_core.wire.standby_task import End
from torchloom_threadlet.landscape.curvature import critical_sharpness, curvature
from torchloom_threadlet.landscape.directions import (
    filter_normalised,
    orthogonal_to,
    plane_of,
    update,
)
from torchloom_threadlet.landscape.grid import coarse_first, in_rounds, plane, shares
from torchloom_threadlet.landscape.report import Found, Point, Report
from torchloom_threadlet.landscape.surface import Direction, Surface, norm
from torchloom_threadlet.standby_tasks.budget import Budget, Spent
from torchloom_threadlet.standby_tasks.fingerprints import print_of
from torchloom_threadlet.standby_tasks.loaded import Loaded, loaded
from torchloom_threadlet.standby_tasks.pace import finite
from torchloom_threadlet.standby_tasks.saved_state import kept

_FROM, _TO = -1.0, 2.0
"""Where the line begins and ends, in critical steps, or updates where there is none."""

_MOST_OF_BEND = 30
"""Evaluations that all before the line takes at the most."""

_MARGIN = 1.25
"""A plane of the run's path reaches so far beyond its farthest checkpoint."""


class Landscape:
    """What a standby looks at the loss with; see docs/landscape.md.

    Parameters
    ----------
    model : torch.nn.Module
        What can be trained of it is moved about, in evaluation mode. Afterwards it is, to the bit,
        what it was before it was ever looked at.
    loss : callable
        Returns the loss of one pinned batch, as a tensor with a gradient where no ``step`` is
        given. It must not depend on anything that changes but the model.
    load : callable
        Loads the run's newest state into the model, from its newest checkpoint: no rank that
        trains is asked for it. It may return the step of the run that this state is of.
    step : callable, optional
        Takes one step of the run's optimizer, on a batch of the run's, after ``load`` gave both
        their state. Without it the update is the descent along the gradient of ``loss``, with a
        rate of 1.
    path : callable, optional
        Returns an iterable that loads the run's checkpoints into the model one after another, the
        oldest first, and yields after each.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[], float | Tensor],
        load: Callable[[], object],
        *,
        step: Callable[[], object] | None = None,
        path: Callable[[], Iterable[object]] | None = None,
    ) -> None:
        self._model = model
        self._loss = loss
        self._load = load
        self._step = step
        self._path = path

    @property
    def tries(self) -> tuple[str, ...]:
        """No knob: it only looks."""
        return ()

    def refusal(self, look: Look) -> str | None:
        """Return why it cannot be looked at, or None if it can."""
        if look.plane == "path" and self._path is None:
            return "the script's Landscape has no checkpoints to look at: need path="
        return None

    def run(
        self,
        look: Look,
        worker: str,
        seconds: float,
        tell: Callable[[int, int, Piece], object],
        is_asked: Callable[[], bool],
    ) -> str:
        """Look at the loss around the run's newest weights; return how far it came.

        Parameters
        ----------
        look : Look
            What is wanted.
        worker : str
            Who looks: of a plane that is divided it looks at its part.
        seconds : float
            How long it may take.
        tell : callable
            Takes the points so far, about how many there will be, and a piece.
        is_asked : callable
            Says whether the standby was asked for something else meanwhile: it ends at the next
            point.

        Raises
        ------
        ValueError
            If the loss is no number or another each time, or the update is none.
        Exception
            Whatever the script's functions raise.
        """
        budget = Budget(self._loss, look.points, seconds, is_asked)
        part, parts = look.share_of(worker)
        alone = 0 if part else _MOST_OF_BEND + look.side
        whole = min(look.points, alone + math.ceil(look.side**2 / parts))
        report = Report(lambda piece: tell(budget.points, whole, piece))
        why = ""
        with kept(self._model):
            try:
                budget.check()
                told = self._load()
                self._model.eval()
                for found in self._found(look, told, budget, part, parts):
                    report.add(found)
            except Spent as spent:
                why = str(spent)
        report.flush()
        end = End(points=budget.points, seconds=budget.spent_s, why=why)
        tell(budget.points, whole, end)
        return f"{end.points} points in {end.seconds:.1f} s" + (f": {why}" if why else "")

    def _found(
        self, look: Look, told: object, budget: Budget, part: int, parts: int
    ) -> Iterator[Found]:
        weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        surface = Surface(weights, budget)
        begin = loaded(told, weights)
        loss = surface.base()
        if part == 0:
            yield from self._along_the_update(look, surface, loss, begin, budget)
        if look.plane == "path":
            found, first, second = self._path_plane(look, weights, budget)
        else:
            found, first, second = _random_plane(look, weights)
        yield msgspec.structs.replace(found, at=begin.at, parts=parts)
        along_both = shares(look.side, found.reach)
        own = islice(in_rounds(look.side), part, None, parts)
        yield from plane(surface, first, second, along_both, own)

    def _along_the_update(
        self, look: Look, surface: Surface, loss: float, begin: Loaded, budget: Budget
    ) -> Iterator[Found]:
        along, way = self._update(list(surface.parameters), budget)
        bend = _bend(surface, loss, along, way, begin)
        yield bend
        unit = bend.critical_step or 1.0
        for place in coarse_first(look.side):
            share = unit * (_FROM + (_TO - _FROM) * place / (look.side - 1))
            yield Point(share, surface.at((way, share)))

    def _update(
        self, weights: list[Tensor], budget: Budget
    ) -> tuple[Literal["step", "gradient"], list[Tensor]]:
        if self._step is not None:
            before = _copies(weights)
            with kept(self._model):
                self._model.train()
                self._step()
                return "step", update(before, _copies(weights))
        loss = budget()
        if not (isinstance(loss, Tensor) and loss.requires_grad):
            raise ValueError(
                "need step=, or a loss that is a tensor with a gradient, to know the update, "
                f"was a {type(loss).__name__} without"
            )
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        pairs = zip(weights, gradients, strict=True)
        return "gradient", [torch.zeros_like(w) if g is None else -g for w, g in pairs]

    def _path_plane(
        self, look: Look, weights: list[nn.Parameter], budget: Budget
    ) -> tuple[Plane, Direction, Direction]:
        newest, checkpoints = _copies(weights), []
        with kept(self._model):
            for _ in self._path() if self._path is not None else ():
                budget.check()
                checkpoints.append(_copies(weights))
                if len(checkpoints) == MOST_CHECKPOINTS:
                    raise Spent(f"no plane: need fewer than {MOST_CHECKPOINTS} checkpoints")
        try:
            found = plane_of([*checkpoints, newest])
        except ValueError as error:
            raise Spent(f"no plane: {error}") from None
        path = tuple(
            (along_rows, along_columns, off)
            for (along_rows, along_columns), off in zip(
                found.coordinates, found.distances, strict=True
            )
        )
        reach = _MARGIN * max(max(abs(x), abs(y)) for x, y, _ in path)
        drawn = Plane(
            ways="path",
            side=look.side,
            reach=reach,
            variance_explained=found.variance_explained,
            path=path,
            prints=tuple(map(print_of, [*checkpoints, newest])),
        )
        return drawn, *found.directions


def _random_plane(look: Look, weights: list[nn.Parameter]) -> tuple[Plane, Direction, Direction]:
    generator = torch.Generator().manual_seed(look.seed)
    first = filter_normalised(weights, generator)
    if norm(first) == 0.0:
        raise Spent("no plane: need weights of two dimensions or more for random directions")
    second = orthogonal_to(filter_normalised(weights, generator), first)
    return Plane(ways="random", side=look.side, reach=look.reach), first, second


def _bend(
    surface: Surface,
    loss: float,
    along: Literal["step", "gradient"],
    way: Direction,
    begin: Loaded,
) -> Bend:
    length = norm(way)
    if not 0.0 < length < math.inf:
        raise ValueError(f"need an update that moves the weights, was one of length {length:g}")
    found = critical_sharpness(surface, way)
    step = finite(found.critical_step)
    bent = curvature(surface, way, step / 2 if step else 1.0)
    return Bend(
        loss=loss,
        along=along,
        length=length,
        critical_step=step,
        sharpness=finite(found.sharpness),
        curvature=finite(bent / length**2),
        at=begin.at,
        of_step=begin.of_step,
    )


def _copies(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.detach().clone() for weight in weights]
