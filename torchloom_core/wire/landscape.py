"""The loss landscape around a run's weights: the request, and the pieces of its result.

:mod:`torchloom_core.wire.standby_task` describes their transport, docs/landscape.md the numbers.
"""

from typing import Annotated, ClassVar, Literal

import msgspec

from torchloom_core.wire.limits import Name, Step
from torchloom_core.wire.standby_task import (
    MOST,
    MOST_AT_ONCE,
    Duration,
    End,
    Loss,
    Number,
    Points,
    Print,
)

LANDSCAPE = "landscape"
"""The kind of note that has a piece."""

MOST_SIDE = 101
MOST_REACH = 100.0

MOST_PARTS = 16

MOST_CHECKPOINTS = 200
"""Of the run's path that are drawn at most."""

Side = Annotated[int, msgspec.Meta(ge=3, le=MOST_SIDE)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=MOST_SIDE)]
Ways = Literal["random", "path"]


class LandscapeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The size and plane of a loss landscape.

    Attributes
    ----------
    points : int
        How often the loss is evaluated at most; 0: end the present task.
    seconds : float
        Its time limit.
    side : int
        Points of the line, and of each side of the plane.
    reach : float
        Half the side of a plane of random directions, in multiples of the weights' norm.
    plane : str
        ``random``: filter-normalized random directions; ``path``: along the run's checkpoints.
    seed : int
        Of the random directions.
    over : int
        Standbys that share the plane, if there are as many.
    among : tuple of str
        The standbys that take part; the first one also does everything besides the plane.
    """

    note: ClassVar[str] = LANDSCAPE

    points: Points = 3000
    seconds: Duration = 60.0
    side: Side = 51
    reach: Annotated[float, msgspec.Meta(gt=0, le=MOST_REACH)] = 1.0
    plane: Ways = "random"
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    over: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTS)] = 1
    among: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_PARTS)] = ()

    @property
    def ends_task(self) -> bool:
        """Whether it only ends the present task."""
        return not self.points

    def share_of(self, worker: str) -> tuple[int, int]:
        """Return the number of this worker's part, and how many parts there are.

        Examples
        --------
        >>> LandscapeRequest(among=("v0-0", "v1-0")).share_of("v1-0")
        (1, 2)
        >>> LandscapeRequest().share_of("v1-0")
        (0, 1)
        """
        if worker not in self.among:
            return 0, 1
        return self.among.index(worker), len(self.among)

    def price_s(self, step_s: float | None) -> float:
        """Return its highest cost, standby-seconds; the step time does not matter."""
        return self.seconds * self.over


class Curvature(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="part", tag="bend"
):
    """The curvature of the loss along the update.

    Attributes
    ----------
    loss : float
        At the newest weights.
    along : str
        The optimizer's own ``step``, or the descent along the ``gradient`` with a rate of 1.
    length : float
        Of the update.
    critical_step : float, optional
        The smallest multiple of the update at which the loss is back at its start; None: the loss
        still falls at the largest multiple, or rises from the start.
    sharpness : float, optional
        2 over the critical step, 0 if the loss only falls; None: it rises from the start.
    curvature : float, optional
        The second derivative of the loss along the update, per unit of weight norm squared.
    at : str
        The fingerprint of the newest weights; a preview that began there has the same one.
    of_step : int
        The run's step of these weights; -1: the script does not report it.
    """

    loss: Number
    along: Literal["step", "gradient"]
    length: Annotated[float, msgspec.Meta(ge=0, le=MOST)]
    critical_step: Number | None = None
    sharpness: Number | None = None
    curvature: Number | None = None
    at: Print = ""
    of_step: Step = -1


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="line"):
    """Points of the line along the update: the multiple of it, and the loss there."""

    points: Annotated[tuple[tuple[Number, Loss], ...], msgspec.Meta(max_length=MOST_AT_ONCE)]


class Plane(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="part", tag="plane"
):
    """The plane whose cells follow: rows and columns go from -reach to reach.

    Attributes
    ----------
    reach : float
        In multiples of the weights' norm for random directions, else in units of the weights.
    variance_explained : tuple of float, optional
        The share of the checkpoints' spread that each direction has.
    path : tuple of (float, float, float)
        The checkpoints, the newest last: along rows, along columns, and distance from the plane.
    prints : tuple of str
        Fingerprints of their weights.
    at : str
        The fingerprint of the newest weights.
    parts : int
        Standbys that evaluate it, each its own cells.
    """

    ways: Ways
    side: Side
    reach: Annotated[float, msgspec.Meta(gt=0, le=MOST)]
    variance_explained: tuple[Number, Number] | None = None
    path: Annotated[
        tuple[tuple[Number, Number, Number], ...], msgspec.Meta(max_length=MOST_CHECKPOINTS)
    ] = ()
    prints: Annotated[tuple[Print, ...], msgspec.Meta(max_length=MOST_CHECKPOINTS)] = ()
    at: Print = ""
    parts: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARTS)] = 1


class Cells(msgspec.Struct, frozen=True, kw_only=True, tag_field="part", tag="cells"):
    """Points of the plane: row, column, and the loss there."""

    cells: Annotated[tuple[tuple[Place, Place, Loss], ...], msgspec.Meta(max_length=MOST_AT_ONCE)]


Piece = Curvature | Line | Plane | Cells | End
