"""``torchloom preview``: try a knob change on a standby before it is made."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from torchloom_core.capabilities.preview import PreviewChange
from torchloom_core.cli.capability import HERE, AsJson, Connection, Duration, console
from torchloom_core.cli.knob_commands import values_in
from torchloom_core.cli.standby_task_options import check, recorded, show
from torchloom_core.cli.weaver_client import act, open_client, send
from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.limits import KnobValue
from torchloom_core.wire.operator import Page
from torchloom_core.wire.preview import FEWEST_PAIRS, MOST_CHANGED, MOST_REPEATS, MOST_STEPS
from torchloom_core.wire.status import Status

if TYPE_CHECKING:
    from torchloom_core.live.trajectory.preview import Preview

GROUP = "Observe and analyze"

_TWO_MINUTES = timedelta(minutes=2)


def preview(
    *what: str,
    steps: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_STEPS))] = 50,
    repeats: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_REPEATS))] = FEWEST_PAIRS,
    lasts: Annotated[Duration, Parameter(name="--for")] = _TWO_MINUTES,
    seed: Annotated[int, Parameter(validator=Number(gte=0, lt=2**31))] = 0,
    price: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    end: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    plot: Path | None = None,
    json: AsJson = False,
    connection: Connection = HERE,
) -> int:
    """Try a knob change on a standby before you make it.

    The standby's script has to support it. It trains with the change, and without it as a control;
    both arms of a pair start from the run's newest state, with the same data. Ctrl-C ends the
    preview at the next step and shows the results so far.

    Parameters
    ----------
    what
        KNOB=VALUE, several to change them together; or the folder of a trajectory, to show its
        newest recorded preview.
    steps
        Steps per arm.
    repeats
        Number of pairs of arms, each on different data; fewer than 5 give no verdict.
    lasts
        Time limit, such as 30s or 10min; at most 1h.
    seed
        Seed of the data positions and of all random numbers.
    price
        Print the maximum cost, and run nothing.
    end
        End the preview in progress, also that of another person.
    plot
        Save a plot to this file, .png or .svg.
    """
    if end:
        act(connection, "propose", {"action": PreviewChange(steps=0)})
        return 0
    check(lasts, plot)
    from torchloom_core.live.trajectory.preview import Preview

    if len(what) == 1 and "=" not in what[0]:
        _show(recorded(Path(what[0]), Preview()), plot, json)
        return 0
    from torchloom_core.cli.standby_task_client import run

    values, seconds = _values(what), lasts.total_seconds()
    try:
        action = PreviewChange(
            values=values, steps=steps, repeats=repeats, seconds=seconds, seed=seed
        )
    except ValueError as error:
        raise ConfigError(f"preview: {error}") from None
    if price:
        console().print(asyncio.run(_price(connection, action)), markup=False)
        return 0
    seen = Preview()
    end_request = PreviewChange(steps=0)
    return run(connection, action, end_request, seen, lambda: _show(seen, plot, json))


async def _price(connection: Connection, action: PreviewChange) -> str:
    async with open_client(connection) as client:
        status = await send(client, "status", Status, Page(workers=False))
    step_s = status.step_time_s
    each = "unknown duration" if step_s is None else f"{step_s:.3g} s each"
    steps = f"2 x {action.repeats} x {action.steps} steps of {each}"
    return f"at most {action.price_s(step_s):.3g} GPU-s of one standby: {steps}"


def _values(what: tuple[str, ...]) -> dict[str, KnobValue]:
    if not what:
        raise ConfigError("preview: need KNOB=VALUE or the folder of a trajectory, was nothing")
    values = values_in("preview", what)
    if len(values) > MOST_CHANGED:
        raise ConfigError(f"preview: need at most {MOST_CHANGED} knobs, was {len(values)}")
    return values


def _show(seen: "Preview", plot: Path | None, json: bool) -> None:
    from torchloom_core.capabilities.preview.result import draw, table

    show(seen, table, draw, plot, json)
