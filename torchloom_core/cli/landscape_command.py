"""``torchloom landscape``: the loss around the run's newest weights, asked of a stand-by."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.cli.extras import need
from torchloom_core.cli.options import AsJson, Connection
from torchloom_core.cli.output import console, print_json
from torchloom_core.cli.times import Duration
from torchloom_core.cli.weaver_client import act
from torchloom_core.errors import ConfigError, StateError
from torchloom_core.files import refuse_picture
from torchloom_core.wire.actions import MapLandscape
from torchloom_core.wire.landscape import MOST_POINTS, MOST_REACH, MOST_SECONDS, MOST_SIDE, Ways

# The reader brings pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.trajectory.landscape import Landscape

_HERE = Connection()
_MINUTE = timedelta(minutes=1)
_INTERRUPTED = 130


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
    end: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    plot: Path | None = None,
    json: AsJson = False,
    connection: Connection = _HERE,
) -> int:
    """Look at the loss around the run's newest weights, on a stand-by whose script offers it.

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
    end
        End what is under way, whoever asked for it.
    plot
        Draw it into this file, .png or .svg.
    """
    if end:
        act(connection, "propose", {"action": MapLandscape(points=0)})
        return 0
    if lasts.total_seconds() > MOST_SECONDS:
        raise ConfigError(f"--for: need at most 1h, was {lasts.total_seconds():g} s")
    if plot is not None:
        need("matplotlib")
        refuse_picture(plot, ConfigError)
    interrupted = False
    if trajectory is not None:
        seen = _recorded(trajectory)
    else:
        from torchloom_core.cli.landscape_client import look

        action = MapLandscape(
            points=points,
            seconds=lasts.total_seconds(),
            side=side,
            reach=reach,
            plane=plane,
            seed=seed,
        )
        seen, interrupted = asyncio.run(look(connection, action))
    _show(seen, plot, json)
    return _INTERRUPTED if interrupted else 0


def _recorded(trajectory: Path) -> "Landscape":
    from torchloom_core.trajectory.landscape import newest_recorded

    seen = newest_recorded(trajectory)
    if seen is None:
        raise StateError(f"{trajectory}: need a landscape on record, there is none")
    return seen


def _show(seen: "Landscape", plot: Path | None, json: bool) -> None:
    if plot is not None:
        from torchloom_core.cli.landscape_plot import draw

        draw(plot, seen)
    if json:
        print_json(seen.for_machines())
        return
    from torchloom_core.cli.landscape_view import table

    console().print(table(seen))
    if plot is not None:
        console().print(f"wrote {plot}", markup=False, soft_wrap=True)
