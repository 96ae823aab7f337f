"""``torchloom landscape``: the loss around the run's newest weights, computed on a standby."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.capabilities.landscape import MapLandscape
from torchloom_core.cli.capability import HERE, AsJson, Connection, Duration
from torchloom_core.cli.standby_task_options import check, recorded, show
from torchloom_core.cli.weaver_client import act
from torchloom_core.wire.landscape import MOST_PARTS, MOST_REACH, MOST_SIDE, Ways
from torchloom_core.wire.standby_task import MOST_POINTS

if TYPE_CHECKING:
    from torchloom_core.live.trajectory.landscape import Landscape

GROUP = "Observe and analyze"

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
    connection: Connection = HERE,
) -> int:
    """Map the loss around the run's newest weights, on a standby.

    The standby's script has to support it. It measures the curvature along the update, then a line
    along the update, then a plane that is refined step by step. Ctrl-C ends it at the next point
    and shows the results so far.

    Parameters
    ----------
    trajectory
        Show the newest recorded loss landscape of this trajectory folder instead.
    points
        Maximum number of loss evaluations.
    lasts
        Time limit, such as 30s or 10min; at most 1h.
    side
        Number of points on the line and on each side of the plane.
    reach
        Half width of a random plane, in multiples of the weights' norm.
    plane
        Axes of the plane. random: random directions. path: principal components of the checkpoints.
    seed
        Seed of the random directions.
    over
        Maximum number of standbys that share the plane.
    end
        End the loss landscape in progress, also that of another person.
    plot
        Save a plot to this file, .png or .svg.
    """
    if end:
        act(connection, "propose", {"action": MapLandscape(points=0)})
        return 0
    check(lasts, plot)
    from torchloom_core.live.trajectory.landscape import Landscape

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
    end_request = MapLandscape(points=0)
    return run(connection, action, end_request, seen, lambda: _show(seen, plot, json))


def _show(seen: "Landscape", plot: Path | None, json: bool) -> None:
    from torchloom_core.capabilities.landscape.result import draw, table

    show(seen, table, draw, plot, json)
