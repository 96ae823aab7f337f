"""``torchloom recovery``: where the seconds between a fault and training again went."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from torchloom_core.cli.options import AsJson, ConfigPath, Last
from torchloom_core.cli.output import console, print_json, warn
from torchloom_core.cli.recorded_lines import local_time, trajectory_root

# The reader imports pyarrow, which `torchloom --help` should not wait for.
if TYPE_CHECKING:
    from torchloom_core.live.trajectory.recovery_phases import Recovery

_BAR = 40
_BLOCK = "█"


def recovery(
    trajectory: Annotated[
        Path | None, Parameter(help="Folder of a trajectory. Default: that of this run.")
    ] = None,
    /,
    *,
    last: Last = None,
    json: AsJson = False,
    config: ConfigPath = None,
) -> None:
    """Show each recovery's phases, from a fault to the first committed step, oldest first.

    Parameters
    ----------
    last
        Show only this many of the newest recoveries.
    """
    from torchloom_core.live.trajectory.recorded_recoveries import recorded_recoveries

    folder = trajectory_root(trajectory, config)
    found = recorded_recoveries(folder)
    found = found[-last:] if last is not None else found
    if json:
        print_json(found)
        return
    if not found:
        warn(f"no recovery in {folder}: no worker that had trained was lost")
    for one in found:
        _print(one)


def _print(one: "Recovery") -> None:
    from torchloom_core.live.trajectory.recovery_phases import MEANINGS

    out = console()
    out.print(f"{local_time(one.lost_ns)} {one.group}: {one.cause}", markup=False, style="bold")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right")
    for column in ("phase", "share", "bar", "meaning"):
        table.add_column(column, justify="right" if column == "share" else "left")
    most_s = max(one.phases.values(), default=0.0)
    for name, spent_s in one.phases.items():
        table.add_row(
            f"{spent_s:.2f} s",
            name,
            f"{spent_s / one.total_s:.0%}",
            _BLOCK * max(1, round(_BAR * spent_s / most_s)),
            MEANINGS[name],
        )
    table.add_row(f"{one.total_s:.2f} s", "in total")
    out.print(table)
    for line in _sentences(one):
        out.print(f"  {line}", markup=False)
    out.print()


def _sentences(one: "Recovery") -> Iterable[str]:
    if one.phase:
        yield f"not over: in the phase {one.phase} at the end of the record"
    if one.failed_starts:
        yield f"{one.failed_starts} starts within it failed"
    if one.by and (one.by != one.group or one.nodes != (one.node,)):
        yield f"trains now: {one.by} on {', '.join(one.nodes)}; lost on {one.node}"
    if one.stood_still_s is not None:
        yield f"the other groups stood still for {one.stood_still_s:.2f} s at most"
    if one.longest:
        yield f"longest: {one.longest}; {one.advice}"
