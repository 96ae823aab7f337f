"""What the commands have in common that have a standby do a standby task."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchloom_core.cli.extras import need
from torchloom_core.cli.output import console, print_json
from torchloom_core.errors import ConfigError, StateError
from torchloom_core.files import refuse_picture
from torchloom_core.wire.standby_task import MOST_SECONDS

# The reader brings pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from rich.table import Table

    from torchloom_core.trajectory.pieces import Pieces

INTERRUPTED = 130
"""The exit status of a standby task that a person ended."""

P = TypeVar("P", bound="Pieces")


def check(lasts: timedelta, plot: Path | None) -> None:
    """Refuse a time that is too long, and a plot that cannot be drawn; raises ConfigError."""
    if lasts.total_seconds() > MOST_SECONDS:
        raise ConfigError(f"--for: need at most 1h, was {lasts.total_seconds():g} s")
    if plot is not None:
        need("matplotlib")
        refuse_picture(plot, ConfigError)


def show(
    seen: P,
    table: Callable[[P], "Table"],
    draw: Callable[[Path, P], None],
    plot: Path | None,
    json: bool,
) -> None:
    """Print what was found, and only then draw it: it is lost to nobody whose disk is full."""
    if json:
        print_json(seen.for_machines())
    else:
        console().print(table(seen))
    if plot is not None:
        draw(plot, seen)
        if not json:
            console().print(f"wrote {plot}", markup=False, soft_wrap=True)


def recorded(trajectory: Path, empty: P) -> P:
    """Return the newest on record; raises StateError where there is none."""
    from torchloom_core.trajectory.standby_tasks import newest_recorded

    newest_recorded(trajectory, empty)
    if not empty.version:
        raise StateError(f"{trajectory}: need a {empty.kind} on record, there is none")
    return empty
