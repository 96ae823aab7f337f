"""``torchloom landscape``: the loss around the run's newest weights, asked of a standby."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.options import AsJson, Connection
from torchloom_core.cli.standby_task_options import check, recorded, show
from torchloom_core.cli.times import Duration
from torchloom_core.cli.weaver_client import act
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.landscape import MOST_PARTS, MOST_REACH, MOST_SIDE, Ways
from torchloom_core.wire.standby_task import MOST_POINTS

if TYPE_CHECKING:
    from torchloom_core.trajectory.landscape import Landscape

_HERE = Connection()
_MINUTE = timedelta(minutes=1)


def landscape(
    trajectory: Path | None = None,
    /,
    *,
    points: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_POINTS))] = 3000,
    lasts: Annotated[Duration, Parameter(name="--for")] = _MINUTE,
    side: Annotated[int, Parameter(validator=Number(gte=3, lte=MOST_SIDE))] = 51,
    reach: Annotated[float, Parameter(validator=Number(gt=0, lte=MOST_REACH))] = 1.0,
    plane: Ways = "random",
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    over: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_PARTS))] = 1,
    end: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    plot: Path | None = None,
    json: AsJson = False,
    connection: Connection = _HERE,
) -> int:
    """Look at the loss around the run's newest weights, on a standby whose script offers it.

    First how the loss bends along the update, then a line along it, then a plane, coarse at first.
    Ctrl-C ends it at the next point, and shows what there is.

    Parameters
    ----------
    trajectory
        Show the newest that is on record in this trajectory's folder; nothing is asked.
    points
        How often the loss is evaluated at the most.
    lasts
        How long it may take, such as 30s or 10min; at most 1h.
    side
        Points of the line, and of each side of the plane.
    reach
        How far a plane of random directions goes, in multiples of the weights' length.
    plane
        Of random directions, or along the path of the run's checkpoints.
    seed
        Of the random directions.
    over
        Standbys among which the plane is divided, if there are as many.
    end
        End what is under way, whoever asked for it.
    plot
        Draw it into this file, .png or .svg.
    """
    if end:
        act(connection, "propose", {"action": MapLandscape(points=0)})
        return 0
    check(lasts, plot)
    from torchloom_core.trajectory.landscape import Landscape

    if trajectory is not None:
        _show(recorded(trajectory, Landscape()), plot, json)
        return 0
    from torchloom_core.cli.standby_task_client import run

    action = MapLandscape(
        points=points,
        seconds=lasts.total_seconds(),
        side=side,
        reach=reach,
        plane=plane,
        seed=seed,
        over=over,
    )
    seen = Landscape()
    leave_off = MapLandscape(points=0)
    return run(connection, action, leave_off, seen, lambda: _show(seen, plot, json))


def _show(seen: "Landscape", plot: Path | None, json: bool) -> None:
    from torchloom_core.cli.landscape_plot import draw
    from torchloom_core.cli.landscape_view import table

    show(seen, table, draw, plot, json)
