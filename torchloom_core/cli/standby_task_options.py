"""Shared parts of the commands that run a standby task: preview and landscape."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from torchloom_core.cli.options import need
from torchloom_core.cli.output import console, print_json
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.floor.files import refuse_picture
from torchloom_core.wire.standby_task import MOST_SECONDS

# The reader imports pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from rich.table import Table

    from torchloom_core.live.trajectory.standby_tasks import Pieces

INTERRUPTED = 130
"""Exit status of a standby task that Ctrl-C ended."""

P = TypeVar("P", bound="Pieces")


def check(lasts: timedelta, plot: Path | None) -> None:
    """Raise ConfigError for a time limit above 1 h, or a plot that cannot be saved."""
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
    """Print the results, then draw them: a full disk must not lose the results."""
    if json:
        print_json(seen.as_dict())
    else:
        console().print(table(seen))
    if plot is not None:
        draw(plot, seen)
        if not json:
            console().print(f"wrote {plot}", markup=False, soft_wrap=True)


def recorded(trajectory: Path, empty: P) -> P:
    """Return the newest recorded task; raise StateError if there is none."""
    from torchloom_core.live.trajectory.standby_tasks import newest_recorded

    newest_recorded(trajectory, empty)
    if not empty.version:
        raise StateError(f"{trajectory}: contains no {empty.kind}")
    return empty
