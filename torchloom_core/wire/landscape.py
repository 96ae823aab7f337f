"""The loss around a run's weights: what is asked for, and the pieces in which it comes back.

How they travel is in :mod:`torchloom_core.wire.standby_task`; docs/landscape.md says what the
numbers mean.
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
"""The kind of note that brings a piece."""

MOST_SIDE = 101
MOST_REACH = 100.0

MOST_PARTS = 16

MOST_CHECKPOINTS = 200
"""Of a run's way that are drawn at the most."""

Side = Annotated[int, msgspec.Meta(ge=3, le=MOST_SIDE)]
Place = Annotated[int, msgspec.Meta(ge=0, lt=MOST_SIDE)]
Ways = Literal["random", "path"]


class Look(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much is looked at, and in which plane.

    Attributes
    ----------
    points : int
        How often the loss is evaluated at the most; 0: leave off what is under way.
    seconds : float
        How long it may take.
    side : int
        Points of the line, and of each side of the plane.
    reach : float
        How far a plane of random directions goes, in multiples of the weights' own length.
    plane : str
        ``random`` directions, filter by filter as long as the weights, or along the ``path`` of the
        run's checkpoints.
    seed : int
        Of the random directions.
    over : int
        Standbys among which the plane is divided, if there are as many.
    among : tuple of str
        Those that are told; the first one looks at all that is not the plane, too.
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
    def leaves_off(self) -> bool:
        """Whether it only ends what is under way."""
        return not self.points

    def share_of(self, worker: str) -> tuple[int, int]:
        """Return which part of how many is this worker's.

        Examples
        --------
        >>> Look(among=("v0-0", "v1-0")).share_of("v1-0"), Look().share_of("v1-0")
        ((1, 2), (0, 1))
        """
        if worker not in self.among:
            return 0, 1
        return self.among.index(worker), len(self.among)

    def price_s(self, step_s: float | None) -> float:
        """Return what it costs at the most, seconds of standbys, however long a step takes."""
        return self.seconds * self.over


class Bend(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="part", tag="bend"
):
    """How the loss bends along the update.

    Attributes
    ----------
    loss : float
        At the newest weights.
    along : str
        The optimizer's own ``step``, or the descent along the ``gradient`` with a rate of 1.
    length : float
        Of the update.
    critical_step : float, optional
        The least multiple of the update after which the loss is where it was; None: it falls as
        far as it was looked, or the update leads up.
    sharpness : float, optional
        2 over the critical step, 0 where the loss only falls; None: the update leads up.
    curvature : float, optional
        The second derivative of the loss along the update, a unit of length in the weights.
    at : str
        The print of the newest weights, by which a preview is known that began there.
    of_step : int
        The step of the run that they are of; -1: the script does not say.
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
    """Points of the line along the update: the share of it, and the loss there."""

    points: Annotated[tuple[tuple[Number, Loss], ...], msgspec.Meta(max_length=MOST_AT_ONCE)]


class Plane(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="part", tag="plane"
):
    """The plane of which cells will come: rows and columns go from -reach to reach.

    Attributes
    ----------
    reach : float
        In multiples of the weights' length for random directions, else in units of the weights.
    variance_explained : tuple of float, optional
        The share of the checkpoints' spread that each direction has.
    path : tuple of (float, float, float)
        Where the checkpoints lie, the newest last: along rows, along columns, and off the plane.
    prints : tuple of str
        Of their weights.
    at : str
        The print of the newest weights.
    parts : int
        Standbys that look at it, each at cells of its own.
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


Piece = Bend | Line | Plane | Cells | End
