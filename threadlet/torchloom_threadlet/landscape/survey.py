"""The survey of the loss landscape: what a script offers its standby, and its order.

First the curvature along the update, then the line along it, then a plane: cheap and informative
results come first, so that a survey may be ended at any point. The worker calls
:meth:`Landscape.run` in the thread that waits.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from torchloom_core.wire.landscape import (
    MOST_CHECKPOINTS,
    Cells,
    Curvature,
    LandscapeRequest,
    Line,
    Plane,
)
from torchloom_core.wire.standby_task import Loss
from torchloom_threadlet.landscape.curvature import critical_step, curvature
from torchloom_threadlet.landscape.directions import (
    filter_normalised,
    orthogonal_to,
    plane_of,
    update,
)
from torchloom_threadlet.landscape.surface import (
    Cell,
    Direction,
    Surface,
    coarse_first,
    in_rounds,
    norm,
    plane,
    shares,
)
from torchloom_threadlet.standby_tasks.progress import Budget, BudgetUsed, Report, finite
from torchloom_threadlet.standby_tasks.saved_state import Loaded, fingerprint, loaded, restoring
from torchloom_threadlet.trainer.standby_tasks import Send

_FROM, _TO = -1.0, 2.0
"""The range of the line, in critical steps, or in updates where there is none."""

_MOST_OF_BEND = 30
"""The most evaluations before the line."""

_MARGIN = 1.25
"""A plane of the run's path extends this far beyond its farthest checkpoint."""


class Point(NamedTuple):
    """One point of the line: the share of the update, and the loss there."""

    share: float
    loss: float


Found = Curvature | Point | Plane | Cell


class Landscape:
    """Computes the loss landscape on a standby; see docs/landscape.md.

    Parameters
    ----------
    model : torch.nn.Module
        Its trainable weights are changed, in evaluation mode. Afterwards the model is restored, to
        the bit.
    loss : callable
        Returns the loss of one fixed batch, as a tensor with a gradient where no ``step`` is
        given. It must not depend on anything that changes except the model.
    load : callable
        Loads the run's newest checkpoint into the model, without help of a training rank. It may
        return the checkpoint's step.
    step : callable, optional
        Takes one step of the run's optimizer, on a batch of the run's data, after ``load`` has
        loaded the state of both. Without it the update is the negative gradient of ``loss``, with a
        learning rate of 1.
    path : callable, optional
        Returns an iterable that loads the run's checkpoints into the model one by one, the
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
        """No knobs: a survey changes none."""
        return ()

    def refusal(self, look: LandscapeRequest) -> str | None:
        """Return why the survey cannot be run, or None if it can."""
        if look.plane == "path" and self._path is None:
            return "the script's Landscape has no checkpoints: pass path= to it"
        return None

    def run(
        self,
        look: LandscapeRequest,
        worker: str,
        seconds: float,
        send: Send,
        should_stop: Callable[[], bool],
    ) -> str:
        """Survey the loss around the run's newest weights; return how far it came.

        Raises ValueError if the loss is no number or differs between evaluations, or the update is
        0, and what the script's functions raise.
        """
        budget = Budget(self._loss, look.points, seconds, should_stop)
        part, parts = look.share_of(worker)
        alone = 0 if part else _MOST_OF_BEND + look.side
        whole = min(look.points, alone + math.ceil(look.side**2 / parts))
        report = Report(budget, whole, send)
        why = ""
        with restoring(self._model):
            try:
                budget.check()
                step = self._load()
                self._model.eval()
                for found in self._found(look, step, budget, part, parts):
                    _add(found, report)
            except BudgetUsed as used:
                why = str(used)
        return report.end("points", why)

    def _found(
        self, look: LandscapeRequest, step: object, budget: Budget, part: int, parts: int
    ) -> Iterator[Found]:
        weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        surface = Surface(weights, budget)
        begin = loaded(step, weights)
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
        self, look: LandscapeRequest, surface: Surface, loss: float, begin: Loaded, budget: Budget
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
            with restoring(self._model):
                self._model.train()
                self._step()
                return "step", update(before, _copies(weights))
        loss = budget()
        if not (isinstance(loss, Tensor) and loss.requires_grad):
            raise ValueError(
                "need step=, or a loss that is a tensor with a gradient, to compute the update, "
                f"was a {type(loss).__name__} without"
            )
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        pairs = zip(weights, gradients, strict=True)
        return "gradient", [torch.zeros_like(w) if g is None else -g for w, g in pairs]

    def _path_plane(
        self, look: LandscapeRequest, weights: list[nn.Parameter], budget: Budget
    ) -> tuple[Plane, Direction, Direction]:
        newest, checkpoints = _copies(weights), []
        with restoring(self._model):
            for _ in self._path() if self._path is not None else ():
                budget.check()
                checkpoints.append(_copies(weights))
                if len(checkpoints) == MOST_CHECKPOINTS:
                    raise BudgetUsed(f"no plane: need fewer than {MOST_CHECKPOINTS} checkpoints")
        try:
            found = plane_of([*checkpoints, newest])
        except ValueError as error:
            raise BudgetUsed(f"no plane: {error}") from None
        off = zip(found.coordinates, found.distances, strict=True)
        path = tuple((*coordinates, distance) for coordinates, distance in off)
        reach = _MARGIN * max(max(abs(x), abs(y)) for x, y, _ in path)
        drawn = Plane(
            ways="path",
            side=look.side,
            reach=reach,
            variance_explained=found.variance_explained,
            path=path,
            prints=tuple(map(fingerprint, [*checkpoints, newest])),
        )
        return drawn, *found.directions


def _add(found: Found, report: Report) -> None:
    if isinstance(found, Point):
        report.gather(_line, (found.share, finite(found.loss)))
    elif isinstance(found, Cell):
        report.gather(_cells, (found.row, found.column, finite(found.loss)))
    else:
        report.send(found)


def _line(points: tuple[tuple[float, Loss], ...]) -> Line:
    return Line(points=points)


def _cells(cells: tuple[tuple[int, int, Loss], ...]) -> Cells:
    return Cells(cells=cells)


def _random_plane(
    look: LandscapeRequest, weights: list[nn.Parameter]
) -> tuple[Plane, Direction, Direction]:
    generator = torch.Generator().manual_seed(look.seed)
    first = filter_normalised(weights, generator)
    if norm(first) == 0.0:
        raise BudgetUsed("no plane: need weights of two dimensions or more for random directions")
    second = orthogonal_to(filter_normalised(weights, generator), first)
    return Plane(ways="random", side=look.side, reach=look.reach), first, second


def _bend(
    surface: Surface,
    loss: float,
    along: Literal["step", "gradient"],
    way: Direction,
    begin: Loaded,
) -> Curvature:
    length = norm(way)
    if not 0.0 < length < math.inf:
        raise ValueError(f"need an update that changes the weights, was one of norm {length:g}")
    multiple = critical_step(surface, way)
    step = finite(multiple)
    bent = curvature(surface, way, step / 2 if step else 1.0)
    return Curvature(
        loss=loss,
        along=along,
        length=length,
        critical_step=step,
        sharpness=finite(2.0 / multiple),
        curvature=finite(bent / length**2),
        at=begin.at,
        of_step=begin.of_step,
    )


def _copies(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.detach().clone() for weight in weights]
